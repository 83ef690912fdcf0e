"""An operator's commands with several coordinators: a standby says who leads, others take over."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from faults.in_process import experiment, run, until
from faults.scripted import ScriptedWorker
from fedhp.cli import call as main
from fedhp.cluster.coordinator.process import announcements
from fedhp.cluster.coordinator.process.announcements import (
    ANNOUNCEMENT,
    STANDBY_ANNOUNCEMENT,
    Announcement,
    read_announcement,
)
from fedhp.cluster.coordinator.process.leadership import CoordinatorProcessSettings, coordinate
from fedhp.cluster.coordinator.process.standby import read_refusal, standby_refusal
from fedhp.cluster.ledger.etcd import Leader
from fedhp.cluster.ops import operator
from fedhp.cluster.ops.operator import CoordinatorAddress, Target
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.guard import Envelopes
from fedhp.cluster.protocol.stubs import CoordinatorStub
from fedhp.cluster.security.identity import load_identity
from fedhp.cluster.security.tls import open_channel
from fedhp.dash import actions as dash_actions
from fedhp.dash.schema import Command, ListedRun
from fedhp.errors import Interrupted, RunError
from net.clusters import ENDLESS
from net.fake_coordinator import RUN, FakeCoordinator
from net.federation import experiment as scripted_experiment
from net.leaders import RUN as OLD_RUN
from net.leaders import Leader as RecordedLeader


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcements, "STANDBY_SECONDS", 0.2)
    monkeypatch.setattr(operator, "TAKEOVER_PAUSE", 0.1)


@dataclass
class Pair:
    """A leader and a standby of one folder, and where they are."""

    leader: str
    standby: str
    folder: Path
    leading: asyncio.Task[str]
    waiting: asyncio.Task[str]
    fail: asyncio.Event  # ends the leader


@asynccontextmanager
async def leader_and_standby(certificates: Path, folder: Path, allow: Path) -> AsyncIterator[Pair]:
    """Both in this process; the second waits for the ledger of the first."""
    tasks: list[asyncio.Task[str]] = []
    ends = [asyncio.Event(), asyncio.Event()]

    def start(**changes: Any) -> asyncio.Task[str]:
        settings = CoordinatorProcessSettings(
            experiment=experiment(
                # One worker is missing: no round begins.
                rounds=ENDLESS,
                cluster={"gather": 600.0, "dead_after": 600.0},
            ),
            certificates=certificates,
            folder=folder,
            name="boss",
            **changes,
        )
        tasks.append(asyncio.create_task(coordinate(settings, stop=ends[len(tasks)])))
        return tasks[-1]

    try:
        leading = start()
        await until(lambda: leading.done() or (folder / ANNOUNCEMENT).exists())
        waiting = start(allow=allow)
        await until(lambda: waiting.done() or (folder / STANDBY_ANNOUNCEMENT).exists())
        yield Pair(
            read_announcement(folder).address,
            read_announcement(folder, STANDBY_ANNOUNCEMENT).address,
            folder,
            leading,
            waiting,
            ends[0],
        )
    finally:
        for end in ends:
            end.set()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        problems = [error for error in ended if not isinstance(error, str | Interrupted)]
        assert not problems, problems


def test_commands_find_the_leader_through_a_standby_and_after_a_failover(
    certificates: Path, tmp_path: Path
) -> None:
    allow = tmp_path / "allow"
    allow.write_text("operator\nw0\nw1\nboss\n")

    async def scenario() -> None:
        notes: list[str] = []

        async def call(function: Any, target: Target, **what: Any) -> Any:
            notes.clear()
            return await asyncio.to_thread(
                function, target, notify=notes.append, patience=30.0, **what
            )

        async with leader_and_standby(certificates, tmp_path / "run", allow) as pair:
            address = pair.leader
            workers = [
                ScriptedWorker.named(certificates, name, tmp_path / name, lambda: address)
                for name in ("w0", "w1")
            ]
            lives = [asyncio.create_task(worker.live()) for worker in workers]
            standby = Target(pair.standby, certificates)
            await until(lambda: all(worker.run for worker in workers))
            with pytest.raises(RunError, match="not known which run"):
                await call(operator.command, standby, drain="w1")
            standby = replace(standby, run=workers[0].run)

            status = await call(operator.leader_status, standby)
            assert status.leader == CoordinatorAddress(pair.leader, "boss")
            assert notes == [f"{pair.standby} is a standby; boss at {pair.leader} leads"]
            assert {member.name for member in status.reply.members} == {"w0", "w1"}
            assert "w1 leaves" in await call(operator.command, standby, drain="w1")
            await asyncio.wait_for(lives[1], 60)
            assert "w1 is removed" in await call(operator.command, standby, remove="w1")
            assert "w1 may join" in await call(operator.command, standby, allow="w1")
            assert "w1 is removed" in await call(operator.command, standby, remove="w1")
            assert len(notes) == 1

            pair.fail.set()  # the standby takes over
            await asyncio.wait({pair.leading}, timeout=60)
            address = pair.standby
            others = (CoordinatorAddress(pair.standby),)
            both = Target(pair.leader, certificates, others=others, run=workers[0].run)
            status = await call(operator.leader_status, both)
            assert status.leader.address == pair.standby
            assert status.reply.epoch == 2
            assert any(f"{pair.standby} leads" in note for note in notes), notes
            removed = {member.name: member.status for member in status.reply.members}
            assert removed["w1"] == "removed"  # no round was committed in between
            by_folder = await call(
                operator.leader_status, operator.target_of(pair.folder, certificates=certificates)
            )
            assert by_folder.reply.epoch == 2
            await until(lambda: workers[0].epoch == 2)
            assert "w0 is removed" in await call(operator.command, both, remove="w0")
            assert "the run ends" in await call(operator.command, both, stop=True)
            await asyncio.wait_for(lives[0], 60)
            assert await asyncio.wait_for(pair.waiting, 60) == "stopped by the operator"

    run(scenario())


def test_a_standby_sends_workers_on_and_tells_strangers_nothing(
    certificates: Path, tmp_path: Path
) -> None:
    import grpc.aio

    allow = tmp_path / "allow"
    allow.write_text("operator\nw0\n")

    async def scenario() -> None:
        async with leader_and_standby(certificates, tmp_path / "run", allow) as pair:
            for name, code, word in (
                ("w0", grpc.StatusCode.UNAVAILABLE, f"the leader is boss at {pair.leader}"),
                ("w1", grpc.StatusCode.PERMISSION_DENIED, "allow-list"),
            ):
                identity = load_identity(certificates, name)
                async with open_channel(identity, pair.standby, name=None) as channel:
                    stub: Any = CoordinatorStub(channel)
                    for method, request in (
                        ("Join", wire.JoinRequest(envelope=Envelopes(name).make())),
                        ("Next", wire.NextRequest()),
                        ("Beat", wire.BeatRequest()),
                    ):
                        with pytest.raises(grpc.aio.AioRpcError) as caught:
                            await getattr(stub, method)(request, timeout=60)
                        assert caught.value.code() == code
                        assert word in str(caught.value.details())

    run(scenario())


def test_without_a_leader_the_error_says_so_after_a_while(certificates: Path) -> None:
    target = Target("127.0.0.1:1", certificates, others=(CoordinatorAddress("127.0.0.1:2"),))
    notes: list[str] = []
    with pytest.raises(RunError, match="no coordinator answered") as caught:
        operator.leader_status(target, patience=0.3, notify=notes.append)
    (note,) = notes
    assert "waiting for a coordinator to take over" in note
    with pytest.raises(RunError, match="no coordinator answered"):  # of one, it is told at once
        operator.leader_status(Target("127.0.0.1:1", certificates), patience=600.0)
    assert "127.0.0.1:1" in str(caught.value)
    assert "127.0.0.1:2" in str(caught.value)


def test_what_a_standby_says_is_read_with_care() -> None:
    leader = Leader("c0", "10.0.0.1:7700", 0)
    known = read_refusal(standby_refusal("c1", leader))
    assert known is not None
    assert known.leader == leader
    nobody = read_refusal(standby_refusal("c1", None))
    assert nobody is not None
    assert nobody.leader is None
    assert read_refusal("run: the message is of another run") is None
    for address in ("unix:/tmp/x", "10.0.0.1:7700 ", "10.0.0.1", "a:1 b:2"):
        odd = read_refusal(f"standby: c1 waits for the lead; the leader is c0 at {address}")
        assert odd is not None
        assert odd.leader is None


class Terminal(io.StringIO):
    """Somebody types these answers."""

    def isatty(self) -> bool:
        return True


class Commanded(FakeCoordinator):
    """A coordinator of another run than that of the folder, at the same address."""

    def __init__(self, certificates: Path) -> None:
        super().__init__(scripted_experiment(), certificates)
        self.commands: list[str] = []

    async def Status(self, request: wire.StatusRequest, context: Any) -> wire.StatusReply:
        return wire.StatusReply(run=RUN, epoch=1, state="running")

    async def Command(self, request: wire.CommandRequest, context: Any) -> wire.Receipt:
        assert request.envelope.run == RUN
        self.commands.append(str(request.WhichOneof("what")))
        return wire.Receipt(accepted=True, why="done")


def test_a_command_for_a_run_that_is_over_does_not_reach_the_next_one(
    certificates: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = RecordedLeader(tmp_path / "old", "boss").lead(1).rounds(1, 6).finish().folder
    assert OLD_RUN != RUN

    async def scenario() -> None:
        async def fedhp(*arguments: object) -> tuple[int, str]:
            words = ["cluster", *map(str, arguments), "--certs", str(certificates)]
            code = await asyncio.to_thread(main, words)
            return code, capsys.readouterr().err

        async with Commanded(certificates) as coordinator:
            announced = Announcement("boss", coordinator.address, 1, 1)
            (old / ANNOUNCEMENT).write_text(json.dumps(asdict(announced)))
            for words in (("stop",), ("drain", "w0"), ("remove", "w0"), ("allow", "w0")):
                code, errors = await fedhp(*words, "--out", old)
                assert code == 2
                assert f"leads run {RUN}, not run {OLD_RUN}" in errors
            code, errors = await fedhp("status", "--out", old)
            assert f"leads run {RUN}, not run {OLD_RUN}" in errors

            page = dash_actions.Operator(certificates)
            facts: dict[str, Any] = {"run": ".", "network": True, "live": True}
            entry = ListedRun.model_construct(None, **facts)
            with pytest.raises(RunError, match=f"leads run {RUN}, not run {OLD_RUN}"):
                await asyncio.to_thread(page.act, "stop", entry, old, Command(run="."))
            assert coordinator.commands == []

            address = ("--coordinator", coordinator.address)
            code, errors = await fedhp("stop", *address)  # nobody can be asked here
            assert code == 2
            assert f"if that run is meant: --run {RUN}" in errors
            code, errors = await fedhp("stop", *address, "--run", "nonsense")
            assert "does not name a run" in errors
            code, errors = await fedhp("stop", *address, "--run", OLD_RUN[:8])
            assert f"leads run {RUN}, not run {OLD_RUN[:8]}" in errors
            assert coordinator.commands == []
            assert await fedhp("stop", *address, "--run", RUN[:8]) == (0, "")
            assert await fedhp("drain", "w0", "--out", old, "--run", RUN) == (0, "")
            assert coordinator.commands == ["stop", "drain"]

            for answer, code in (("n", 130), ("y", 0)):  # a terminal shows the run and asks
                monkeypatch.setattr(sys, "stdin", Terminal(f"{answer}\n"))
                assert (await fedhp("stop", *address))[0] == code
                assert len(coordinator.commands) == (3 if answer == "y" else 2)

    run(scenario())


def test_a_folder_with_several_runs_is_no_target(certificates: Path, tmp_path: Path) -> None:
    for name, of_run in (("one", "a" * 32), ("two", "b" * 32)):
        RecordedLeader(tmp_path / name, "boss").lead(1, run=of_run).finish()
        announced = Announcement("boss", "127.0.0.1:1", 1, 1)
        (tmp_path / name / ANNOUNCEMENT).write_text(json.dumps(asdict(announced)))
    with pytest.raises(RunError, match="holds several runs"):
        operator.target_of(tmp_path, certificates=certificates)
    assert operator.target_of(tmp_path / "two", certificates=certificates).run == "b" * 32
