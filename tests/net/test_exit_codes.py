"""How a coordinator, a standby and a worker end: "try again" (75) or never (2)."""

from __future__ import annotations

import asyncio
import configparser
import re
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from fedhp.cli import call as main
from fedhp.cluster.coordinator.coordinator import Coordinator
from fedhp.cluster.coordinator.process import leadership
from fedhp.cluster.coordinator.process.leadership import CoordinatorProcessSettings, coordinate
from fedhp.cluster.ledger.base import Unreachable
from fedhp.cluster.ledger.local import LocalLedger
from fedhp.cluster.ops import processes
from fedhp.cluster.protocol.attempt import INITIAL
from fedhp.cluster.protocol.wire_pb2 import Finished, JoinReply, JoinRequest, Order
from fedhp.cluster.security.certificates import issue
from fedhp.cluster.security.identity import load_identity
from fedhp.cluster.security.tls import cause_of
from fedhp.cluster.worker import coordinator_client
from fedhp.cluster.worker.session import WorkerSession
from fedhp.cluster.worker.worker import Worker
from fedhp.errors import NO_RESTART, ExitCode, FedhpError, StorageFull, restart_helps
from fedhp.record.lock import FolderLock
from net.clusters import tiny
from net.fake_coordinator import FakeCoordinator
from net.federation import Federation, experiment, run, start_federation
from net.identities import LONG_AGO, TODAY, make_certificates, make_ours, serving
from waiting import PATIENCE, wait_until, wait_until_async

UNITS = Path(__file__).parents[2] / "docs" / "systemd"
TRY_AGAIN, NEVER = ExitCode.TRY_AGAIN, ExitCode.NEVER


@pytest.fixture
def busy_port() -> Iterator[int]:
    with closing(socket.create_server(("127.0.0.1", 0))) as holder:
        yield holder.getsockname()[1]


async def end_of(federation: Federation, **settings: Any) -> FedhpError:
    """The error with which a worker ends."""
    with pytest.raises(FedhpError) as caught:
        await asyncio.wait_for(federation.start(0, **settings), PATIENCE)
    federation.running.clear()
    return caught.value


@pytest.mark.parametrize(
    ("status", "reason", "code"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, "unknown: 'w0' is not on the allow-list", NEVER),
        (grpc.StatusCode.PERMISSION_DENIED, "removed: by the operator", NEVER),
        (grpc.StatusCode.PERMISSION_DENIED, "quarantined: too many bad messages", NEVER),
        (grpc.StatusCode.INVALID_ARGUMENT, "version: the worker has fedhp 9.9", NEVER),
        (grpc.StatusCode.FAILED_PRECONDITION, "epoch: an older leader", TRY_AGAIN),
        (grpc.StatusCode.UNAVAILABLE, "not leading yet", TRY_AGAIN),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "slow after a power cut", TRY_AGAIN),
    ],
)
def test_a_worker_that_is_refused(
    status: grpc.StatusCode, reason: str, code: int, certificates: Path, tmp_path: Path
) -> None:
    class Refusing(FakeCoordinator):
        async def Join(self, request: JoinRequest, context: Any) -> JoinReply:
            await context.abort(status, reason)
            raise AssertionError

    async def test() -> None:
        async with Refusing(experiment(), certificates) as coordinator:
            error = await end_of(Federation(coordinator, tmp_path), give_up=0.3)
            assert error.exit_code == code, error

    run(test())


def test_a_worker_without_a_coordinator_tries_again(certificates: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with start_federation(experiment(), certificates, tmp_path) as federation:
            federation.coordinator.address = "127.0.0.1:1"
            assert (await end_of(federation, give_up=0.3)).exit_code == TRY_AGAIN

    run(test())


def test_a_worker_that_has_joined_waits_unless_it_is_to_give_up(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_lines: list[str]
) -> None:
    monkeypatch.setattr(coordinator_client, "ALONE_SECONDS", 0.3)
    phases: list[str] = []
    enter = WorkerSession.enter

    def note(session: WorkerSession, phase: str) -> None:
        phases.append(phase)
        enter(session, phase)

    monkeypatch.setattr(WorkerSession, "enter", note)

    async def test() -> None:
        async with start_federation(experiment(), certificates, tmp_path) as federation:
            waiting = federation.start(0, give_up=2.0)
            await federation.coordinator.until(lambda: "w0" in federation.coordinator.stored)
            await federation.coordinator._server.stop(grace=None)
            with pytest.raises(FedhpError, match="no coordinator answered within") as caught:
                await asyncio.wait_for(waiting, PATIENCE)
            assert caught.value.exit_code == TRY_AGAIN
            federation.running.clear()

    run(test())
    assert phases[-1] == coordinator_client.ALONE
    (line,) = (line for line in log_lines if line.startswith("no coordinator for"))
    assert "start it again with the same command" in line


def test_a_worker_whose_coordinator_began_another_run_tries_again(
    certificates: Path, tmp_path: Path
) -> None:
    class Forgetful(FakeCoordinator):
        async def Join(self, request: JoinRequest, context: Any) -> JoinReply:
            reply = await super().Join(request, context)
            if len(self.joins) > 1:
                reply.run = "f" * 32
            return self.signed(reply, request, "w0")

        async def Next(self, request: Any, context: Any) -> Any:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "joined: not a member")

    async def test() -> None:
        async with Forgetful(experiment(), certificates) as coordinator:
            error = await end_of(Federation(coordinator, tmp_path))
            assert error.exit_code == TRY_AGAIN
            assert "another run" in str(error)

    run(test())


def test_a_worker_that_is_removed_is_not_restarted(certificates: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with start_federation(experiment(), certificates, tmp_path) as federation:
            await federation.ready([0])
            finished = Finished(why="the operator removed it", removed=True)
            order = Order(epoch=1, committed=INITIAL.to_wire(), finished=finished)
            federation.coordinator.order(0, order)
            with pytest.raises(FedhpError, match="fedhp cluster allow w0") as caught:
                await asyncio.wait_for(federation.running.pop(0), PATIENCE)
            assert caught.value.exit_code == NEVER

    run(test())


def worker_command(certificates: Path, state: Path, *more: str) -> list[str]:
    command = ["worker", "--name", "w0", "--coordinator", "127.0.0.1:1"]
    return [*command, "--certs", str(certificates), "--state", str(state), *more]


def coordinator_command(folder: Path, certificates: Path, *more: str) -> list[str]:
    file = folder / "experiment.toml"
    file.write_text("workers = 3\nrounds = 1\n")
    command = ["coordinator", str(file), "--name", "boss", "--certs", str(certificates)]
    return [*command, "--out", str(folder / "run"), *more]


def test_a_port_in_use_may_become_free(
    certificates: Path, tmp_path: Path, busy_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    busy, free = f"127.0.0.1:{busy_port}", "127.0.0.1:0"
    for command in (
        worker_command(certificates, tmp_path / "w0", "--listen", busy),
        coordinator_command(tmp_path, certificates, "--listen", busy),
        coordinator_command(tmp_path, certificates, "--listen", free, "--metrics", busy),
    ):
        assert main(command) == TRY_AGAIN
        assert f"cannot listen on {busy}" in capsys.readouterr().err


def test_wrong_settings_stay_wrong(certificates: Path, tmp_path: Path) -> None:
    assert main(worker_command(certificates, tmp_path / "w0", "--listen", "nowhere")) == NEVER
    assert main(worker_command(tmp_path, tmp_path / "w0")) == NEVER  # no certificate
    for option in (["--listen", "nowhere"], ["--listen", "127.0.0.1:0", "rounds=-1"]):
        assert main(coordinator_command(tmp_path, certificates, *option)) == NEVER


def test_a_full_disk_may_get_space(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(self: object, *arguments: object) -> None:
        raise StorageFull("the disk is full")

    monkeypatch.setattr(Worker, "run", full)
    assert main(worker_command(certificates, tmp_path / "w0")) == TRY_AGAIN
    monkeypatch.setattr(Coordinator, "_lead", full)
    command = coordinator_command(tmp_path, certificates, "--listen", "127.0.0.1:0")
    assert main(command) == TRY_AGAIN


def test_a_folder_in_use_may_become_free(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedhp.record.lock.LOCK_PATIENCE", 0.01)
    (tmp_path / "run").mkdir()
    with FolderLock(tmp_path / "run"):
        command = coordinator_command(tmp_path, certificates, "--listen", "127.0.0.1:0")
        assert main(command) == TRY_AGAIN


def test_an_own_certificate_and_the_clock(tmp_path: Path) -> None:
    make_ours(tmp_path)
    for name, code in (("old", NEVER), ("early", TRY_AGAIN), ("missing", NEVER)):
        with pytest.raises(FedhpError) as caught:
            load_identity(tmp_path, name)
        assert caught.value.exit_code == code, name


def test_a_certificate_that_is_renewed_elsewhere_is_waited_for(tmp_path: Path) -> None:
    make_ours(tmp_path)
    issue(tmp_path, "late", hosts=["127.0.0.1"], days=30, now=LONG_AGO)

    async def test() -> None:
        worker = load_identity(tmp_path, "worker-1")
        for name, final in (("late", False), ("nowhere", True)):
            identity = load_identity(tmp_path, name, now=LONG_AGO if name == "late" else TODAY)
            async with serving(identity) as (address, _):
                assert (await cause_of(worker, address, name=None)).final is final, name
        expired = load_identity(tmp_path, "old", now=LONG_AGO + timedelta(days=1))
        assert (await cause_of(expired, "127.0.0.1:1", name=None)).final

    run(test())


class Absent:
    """A ledger whose etcd does not answer the first times."""

    def __init__(self, ledger: LocalLedger, misses: list[int]) -> None:
        self._ledger, self._misses = ledger, misses
        self.lost = ledger.lost

    async def lead(self, *, name: str, address: str) -> int:
        if self._misses:
            self._misses.pop()
            raise Unreachable("etcd cannot be reached")
        return await self._ledger.lead(name=name, address=address)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)


@pytest.mark.parametrize("standby", [False, True], ids=["coordinator", "standby"])
def test_etcd_that_does_not_answer_yet(
    standby: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_certificates(tmp_path, 0)
    settings = CoordinatorProcessSettings(
        experiment=None if standby else tiny(),
        certificates=tmp_path,
        folder=tmp_path / "run",
        name="boss",
        ha="etcds://127.0.0.1:1",
    )
    misses = [1, 2]
    monkeypatch.setattr(leadership, "check_etcd", lambda url, *, insecure: None)
    monkeypatch.setattr(leadership, "CANDIDATE_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(
        leadership, "_ledger", lambda *_: Absent(LocalLedger(tmp_path / "ledger"), misses)
    )

    async def test() -> None:
        stop = asyncio.Event()
        if not standby:
            with pytest.raises(FedhpError, match="etcd") as caught:
                await coordinate(settings, stop=stop)
            assert caught.value.exit_code == TRY_AGAIN
            return
        running = asyncio.ensure_future(coordinate(settings, stop=stop))
        await wait_until_async(lambda: not misses or running.done(), "another try")
        assert not running.done(), running.result()
        stop.set()
        with suppress(FedhpError):
            await running

    run(test())


class Ended:
    """A process that has ended, or runs until it is terminated."""

    def __init__(self, code: int | None) -> None:
        self.exitcode = code

    def is_alive(self) -> bool:
        return self.exitcode is None

    def join(self, seconds: float | None = None) -> None:
        pass

    def terminate(self) -> None:
        self.exitcode = ExitCode.STOPPED

    kill = terminate


@pytest.mark.parametrize(
    ("codes", "starts"),
    [([TRY_AGAIN, -9, ExitCode.BUG, None], 4), ([NEVER], 1), ([0], 1), ([ExitCode.STOPPED], 1)],
)
def test_a_standby_is_restarted_where_that_helps(
    codes: list[int | None], starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "STANDBY_RESTART_SECONDS", 0.0)
    started = [Ended(code) for code in codes]
    waiting, count = iter(started), [0]

    def start() -> Any:
        count[0] += 1
        return next(waiting)

    standby = processes.StandbyProcess(start)
    if codes[-1] is None:
        wait_until(lambda: count[0] == starts, "the restarts")
    else:
        standby._thread.join(PATIENCE)
    standby.close()
    assert count[0] == starts
    assert not started[-1].is_alive()


@pytest.mark.parametrize("unit", ["coordinator", "worker"])
def test_the_systemd_units_restart_as_the_codes_say(unit: str) -> None:
    text = (UNITS / f"fedhp-{unit}.service").read_text(encoding="utf-8")
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(text)
    service = parser["Service"]
    prevented = [int(code) for code in service["RestartPreventExitStatus"].split()]
    assert prevented == sorted(NO_RESTART)
    assert service["Restart"] == "on-failure"
    assert parser["Unit"]["StartLimitIntervalSec"] == "0"


def test_the_table_in_the_documentation_has_all_codes() -> None:
    text = (UNITS.parent / "cluster.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| .* \| (yes|no) \|$", text, re.M)
    assert {int(code): answer == "yes" for code, answer in rows} == {
        code: restart_helps(code) for code in ExitCode
    }
    assert restart_helps(-9)
