"""A full disk pauses a coordinator, and makes a worker wait: nothing is lost, and both go on."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.test_disk import fill
from disks import mounted
from faults.in_process import experiment, in_process_federation, run, until
from fedhp import files
from fedhp.cluster.audit.invariants import check_invariants, find_pauses
from fedhp.cluster.coordinator import coordinator as coordinator_module
from fedhp.cluster.coordinator.committed_state import RunRecordWriter
from fedhp.cluster.coordinator.conductor import MemberStatus
from fedhp.cluster.coordinator.context import Phase
from fedhp.cluster.coordinator.service import CoordinatorState
from fedhp.cluster.history import History, read_history
from fedhp.cluster.ledger.local import LocalLedger
from fedhp.cluster.worker import model_store
from fedhp.cluster.worker import worker as worker_module
from fedhp.errors import StorageFull
from fedhp.files import storage_error
from net.federation import experiment as small_experiment
from net.federation import run as run_workers
from net.federation import start_federation
from net.test_worker import FIRST, alone

WORKERS = ("w0", "w1", "w2")


@dataclass
class Disk:
    """A disk that can be full, for what is patched to ask it."""

    full: bool = False

    def check(self, what: object = "") -> None:
        if self.full:
            raise storage_error(OSError(errno.ENOSPC, "No space left on device"), str(what))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(coordinator_module, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(coordinator_module, "has_space", lambda folder, size: not disk.full)
    return disk


def failing(method: Callable[..., Any], disk: Disk) -> Callable[..., Any]:
    def wrapped(self: Any, *arguments: Any, **settings: Any) -> Any:
        disk.check(self)
        return method(self, *arguments, **settings)

    return wrapped


@pytest.mark.parametrize(
    ("owner", "method"),
    [(RunRecordWriter, "write"), (LocalLedger, "_commit"), (History, "flush")],
    ids=["record", "ledger", "history"],
)
def test_a_full_disk_pauses_the_run_and_the_same_round_goes_on(
    owner: type[Any],
    method: str,
    disk: Disk,
    certificates: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(owner, method, failing(getattr(owner, method), disk))
    caplog.set_level(logging.INFO, "fedhp.coordinator")

    async def scenario() -> None:
        settings = experiment(rounds=100_000, cluster={"least_deadline": 0.2})
        async with in_process_federation(settings, certificates, tmp_path) as federation:
            leader = await federation.start_coordinator()
            for name in WORKERS:
                federation.start_worker(name)
            await until(lambda: leader.round_index >= 2)
            disk.full = True
            await until(lambda: leader.phase.current is Phase.PAUSED)
            before, running = leader.round_index, leader.conductor.running
            reply = leader.status()
            assert reply.state == "paused"
            assert f"disk full at {tmp_path}" in reply.why
            assert "MB free, needs about 1." in reply.why
            # Longer than any deadline of this run: nobody is blamed for it.
            await let_the_pause_last(leader, beats=5)
            assert leader.round_index == before
            now, members = time.monotonic(), leader.conductor.members.values()
            statuses = {leader.members.status_of(member, now=now) for member in members}
            assert statuses == {MemberStatus.READY}
            assert leader.conductor.running is running
            disk.full = False
            await until(lambda: leader.round_index >= before + 2)
            assert leader.phase.current is Phase.RUNNING
            assert not any(member.misses for member in leader.conductor.members.values())
            leader.phase.stop("stopped by the operator")
            await federation.finish()

    run(scenario())
    assert check_invariants(tmp_path) == []
    paused = [record for record in caplog.records if record.getMessage().startswith("paused: ")]
    assert len(paused) == len(find_pauses(tmp_path)) == 1
    assert paused[0].levelno == logging.WARNING


def test_a_disk_that_is_full_before_the_first_round(
    disk: Disk, certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(History, "flush", failing(History.flush, disk))

    async def scenario() -> None:
        async with in_process_federation(experiment(), certificates, tmp_path) as federation:
            leader = await federation.start_coordinator()
            disk.full = True
            federation.start_worker("w0")
            await until(lambda: leader.phase.current is Phase.PAUSED)
            assert f"disk full at {tmp_path}" in leader.phase.why
            disk.full = False
            await until(lambda: leader.phase.current is Phase.GATHERING)
            for name in ("w1", "w2"):
                federation.start_worker(name)
            await federation.finish()
            assert leader.round_index == 3

    run(scenario())
    assert check_invariants(tmp_path, rounds=3) == []


async def let_the_pause_last(leader: CoordinatorState, *, beats: int) -> None:
    """Until every worker was heard of so many more times, and a deadline has passed."""
    for _ in range(beats):
        seen = {member.worker: member.seen for member in leader.conductor.members.values()}
        await until(
            lambda seen=seen: all(  # type: ignore[misc]
                member.seen > seen[member.worker] for member in leader.conductor.members.values()
            )
        )
    assert leader.phase.current is Phase.PAUSED


def test_a_disk_that_is_broken_and_not_full_ends_the_run(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: RunRecordWriter, record: object) -> None:
        raise StorageFull("the record cannot be written: disk I/O error")

    monkeypatch.setattr(coordinator_module, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(RunRecordWriter, "write", broken)

    async def scenario() -> None:
        async with in_process_federation(experiment(), certificates, tmp_path) as federation:
            await federation.start_coordinator()
            for name in WORKERS:
                federation.start_worker(name)
            assert federation.running is not None
            with pytest.raises(StorageFull, match="disk I/O error"):
                await asyncio.wait_for(asyncio.shield(federation.running), 60)

    run(scenario())


def test_a_process_that_did_not_run_notes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The clock and the work of this process at each look: a pulse, 40 s asleep, 40 s of work.
    clock, work = iter([100.0, 100.5, 140.5, 180.5, 181.0]), iter([1.0, 1.1, 1.2, 41.2, 41.3])
    history = History(tmp_path, "boss")
    monkeypatch.setattr(coordinator_module, "PULSE_SECONDS", 0.0)
    scripted = SimpleNamespace(time=lambda: next(clock), process_time=lambda: next(work))
    monkeypatch.setattr(coordinator_module, "time", scripted)
    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(coordinator_module.note_freezes(history))
    history.close()
    (frozen,) = read_history(tmp_path / "history-boss.jsonl")
    assert (frozen["event"], frozen["since"]) == ("frozen", 100.5)
    assert frozen["seconds"] == pytest.approx(39.9)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "4m") as place:
        yield place


def test_a_real_disk_that_fills_up(
    certificates: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_module, "RETRY_SECONDS", 0.05)
    folder = small_disk / "run"
    folder.mkdir()

    async def scenario() -> None:
        settings = experiment(rounds=100_000, cluster={"gather": 0.2})
        async with in_process_federation(settings, certificates, folder) as federation:
            leader = await federation.start_coordinator()
            for name in ("w0", "w1"):
                federation.start_worker(name)
            await until(lambda: leader.round_index >= 2)
            filler = fill(small_disk)
            await until(lambda: leader.phase.current is Phase.PAUSED)
            assert f"disk full at {folder}" in leader.phase.why
            before = leader.round_index
            await let_the_pause_last(leader, beats=2)
            federation.start_worker("w2")  # a join is written, too
            await until(lambda: len(leader.conductor.members) == 3)
            filler.unlink()
            await until(lambda: leader.round_index >= before + 2)
            leader.phase.stop("stopped by the operator")
            await federation.finish()

    run(scenario())
    assert check_invariants(folder) == []
    assert find_pauses(folder)


def test_a_history_keeps_its_lines_until_there_is_space(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(small_disk, "boss")
    history.append("first", {})
    filler = fill(small_disk)
    for number in range(100):
        history.append("more", {"number": number, "text": "x" * 100})
    with pytest.raises(StorageFull, match="history"):
        history.flush()
    filler.unlink()
    history.flush()
    history.close()
    numbers = [line.get("number") for line in read_history(small_disk / "history-boss.jsonl")]
    assert numbers == [None, *range(100)]


def test_a_worker_with_a_full_disk_leaves_waits_and_joins_again(
    disk: Disk,
    certificates: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write = files.write_parts

    def write_parts(path: Path, *arguments: Any, **settings: Any) -> None:
        if disk.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, *arguments, **settings)

    monkeypatch.setattr(model_store, "write_parts", write_parts)
    monkeypatch.setattr(worker_module, "SPACE_SECONDS", 0.02)
    monkeypatch.setattr(worker_module, "has_space", lambda folder, size: not disk.full)
    caplog.set_level(logging.INFO, "fedhp.worker")

    async def test() -> None:
        async with start_federation(small_experiment(), certificates, tmp_path) as federation:
            coordinator = federation.coordinator
            await federation.ready([0])
            disk.full = True
            alone(coordinator, 0, FIRST)
            await coordinator.until(lambda: "w0" in coordinator.left)
            assert coordinator.left["w0"].startswith(f"disk full at {tmp_path / 'w0'}")
            disk.full = False
            await coordinator.until(lambda: len(coordinator.joins) == 2)
            alone(coordinator, 0, FIRST)
            await coordinator.report(0)
            await coordinator.until(lambda: FIRST in coordinator.stored["w0"])
            coordinator.phases.clear()
            disk.full = True  # now the final model does not fit
            coordinator.finish(0, FIRST)
            await coordinator.until(lambda: "disk full" in coordinator.phases["w0"])
            disk.full = False
            assert await federation.running[0] == 0
            assert (tmp_path / "w0" / "model.safetensors").is_file()

    run_workers(test())
    waits = [record for record in caplog.records if "waits for space" in record.getMessage()]
    assert len(waits) == 2
    assert f"disk full at {tmp_path / 'w0'}" in waits[0].getMessage()
