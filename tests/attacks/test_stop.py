"""Finding 6: after an operator's stop nobody goes on, and everybody learns it."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from pathlib import Path

import pytest

from attacks.places import SOON, Place, endless, worker
from fedhp.cluster.coordinator import coordinator as coordinators
from fedhp.cluster.coordinator.committed_state import CommittedState
from fedhp.cluster.coordinator.process import finders
from fedhp.cluster.coordinator.process.finders import leader_finder
from fedhp.cluster.coordinator.process.leadership import CoordinatorProcessSettings, coordinate
from fedhp.cluster.ledger.base import PURPOSE, RunStopped
from fedhp.cluster.ops import operator
from fedhp.cluster.ops.launch import Cluster
from fedhp.cluster.protocol.addresses import parse_address
from fedhp.cluster.protocol.attempt import INITIAL
from fedhp.cluster.security.identity import load_identity
from fedhp.cluster.security.signatures import sign
from fedhp.errors import RunError
from fedhp.record.reader import RunReader
from net.clusters import ENDLESS, PATIENCE, round_of, tiny, until
from net.etcd_support import needs_etcd, running_etcd
from net.identities import make_certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("stop"), 1)


def test_a_stop_is_committed_before_it_is_answered_and_nobody_goes_on(
    certificates: Path, tmp_path: Path
) -> None:
    """The leader dies right after it has answered; the worker has not heard of the stop."""

    async def scenario() -> None:
        run = tmp_path / "run"
        async with Place(run, certificates).leading() as first:
            address = first.coordinator.address
            async with worker(certificates, tmp_path / "w0", address) as task:
                await first.rounds(2)
                assert "ends after round" in await first.stop()
                kept = tmp_path / "kept"
                shutil.copytree(run, kept)  # the disk at the moment of the answer
                await first.ended()  # with the round that was running
                assert await asyncio.wait_for(task, SOON) == 0
        # As if it had died at that moment: the next one continues from that disk.
        async with Place(kept, certificates, moved=True).leading() as second:
            committed = await second.committed()
            assert committed.stopped == "stopped by the operator"
            before = second.round_index
            async with worker(certificates, tmp_path / "w1", second.coordinator.address) as task:
                assert await asyncio.wait_for(task, SOON) == 0  # it learns of the stop
                await second.ended()
            assert second.round_index == before
            assert second.coordinator.stopped == "stopped by the operator"

    asyncio.run(scenario())


def test_a_worker_that_missed_the_stop_learns_it_from_the_next_coordinator(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinators, "MISSED_SECONDS", SOON)

    async def scenario() -> None:
        run = tmp_path / "run"
        first = Place(run, certificates)
        async with first.leading():
            address = first.coordinator.address
            task_context = worker(certificates, tmp_path / "w0", address)
            task = await task_context.__aenter__()
            await first.rounds(1)
            first.state.leads = lambda: False  # no order gets out any more
            await first.stop()
        try:
            listen = str(parse_address(address, key="address"))
            async with Place(run, certificates, listen=listen).leading() as second:
                assert await asyncio.wait_for(task, SOON) == 0
                await second.ended()
                assert (await second.committed()).informed == (0,)
            # Everybody knows: the next one has nobody to wait for.
            async with Place(run, certificates, listen=listen).leading() as third:
                await asyncio.wait_for(third.ended(), 10)
        finally:
            await task_context.__aexit__(None, None, None)

    asyncio.run(scenario())


def test_a_stopped_run_goes_on_with_resume_only(
    certificates: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        run, state = tmp_path / "run", tmp_path / "w0"
        async with (
            Place(run, certificates).leading() as first,
            worker(certificates, state, first.coordinator.address) as task,
        ):
            await first.rounds(1)
            await first.stop()
            await first.ended()
            assert await asyncio.wait_for(task, SOON) == 0
        done = first.round_index
        with RunReader(run) as reader:
            assert reader.meta("operator_stop") == "stopped by the operator"
        settings = CoordinatorProcessSettings(
            experiment=endless(), certificates=certificates, folder=run, name="boss"
        )
        reason = await asyncio.wait_for(coordinate(settings, stop=asyncio.Event()), SOON)
        assert reason == "stopped by the operator"
        assert "--resume continues it" in caplog.text
        async with (
            Place(run, certificates, resume=True).leading() as second,
            worker(certificates, state, second.coordinator.address),
        ):
            await second.rounds(1)
            assert second.round_index > done
            assert (await second.committed()).stopped == ""
        async with (
            Place(run, certificates).leading() as third,  # resumed once: it is not stopped now
            worker(certificates, state, third.coordinator.address),
        ):
            await third.rounds(1)

    asyncio.run(scenario())


def test_the_launcher_says_that_a_run_was_stopped(tmp_path: Path) -> None:
    with Cluster(tiny(workers=1, rounds=ENDLESS), tmp_path / "run", restart=False) as cluster:
        cluster.start()
        until(cluster, lambda: round_of(cluster) >= 1, "a round")
        operator.command(operator.target_of(cluster.folder), stop=True)
        cluster.wait(PATIENCE)
        assert cluster.stopped() == "stopped by the operator"
        with pytest.raises(RunError, match="was stopped by the operator") as refused:
            cluster.check_not_stopped()
        assert "--resume" in refused.value.fix
        cluster.resume = True
        cluster.check_not_stopped()


def test_only_a_signed_stop_in_etcd_is_believed(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = CommittedState("a" * 32, endless(), INITIAL, stopped="stopped").to_bytes()
    going = CommittedState("a" * 32, endless(), INITIAL).to_bytes()
    boss, worker_0 = (load_identity(certificates, name) for name in ("boss", "w0"))

    async def nobody(*_: object, **__: object) -> None:
        return None

    def find(content: bytes) -> str:
        async def read(*_: object, **__: object) -> bytes:
            return content

        monkeypatch.setattr(finders, "read_committed", read)
        url = "etcds://127.0.0.1:1"
        return asyncio.run(leader_finder(url, authority=boss.authority)())  # type: ignore[arg-type]

    monkeypatch.setattr(finders, "find_leader", nobody)
    with pytest.raises(RunStopped, match="the run was stopped"):
        find(sign(boss, stopped, purpose=PURPOSE))
    for content in (
        stopped,
        sign(worker_0, stopped, purpose=PURPOSE),
        sign(boss, going, purpose=PURPOSE),
        sign(boss, b"no JSON", purpose=PURPOSE),
    ):
        with pytest.raises(OSError, match="nobody coordinates at the moment"):
            find(content)


@needs_etcd
@pytest.mark.slow
def test_a_standby_does_not_go_on_after_a_stop(tmp_path: Path) -> None:
    experiment = tiny(workers=2, rounds=ENDLESS)
    with (
        running_etcd(tmp_path, 1) as etcd,
        Cluster(
            experiment,
            tmp_path / "run",
            coordinators=("c0",),
            standbys=("c1",),
            ha=etcd.url,
            insecure_etcd=True,
            lease=3.0,
            restart=False,
        ) as cluster,
    ):
        cluster.start()
        until(cluster, lambda: round_of(cluster) >= 2, "two rounds")
        target = operator.target_of(cluster.folder)
        assert target.coordinator == "c0"
        assert "not durable" not in operator.command(target, stop=True)
        cluster.kill("c0")
        names = ("c1", *cluster.workers)
        until(cluster, lambda: all(cluster.exit_codes()[name] == 0 for name in names), "the end")
        history = cluster.record_folder("c1") / "history-c1.jsonl"
        events = [json.loads(line) for line in history.read_text().splitlines() if line]
        assert "lead" in {event["event"] for event in events}
        assert "attempt" not in {event["event"] for event in events}


@needs_etcd
@pytest.mark.slow
def test_a_worker_learns_of_a_stop_when_no_coordinator_is_left(tmp_path: Path) -> None:
    experiment = tiny(workers=2, rounds=ENDLESS)
    with (
        running_etcd(tmp_path, 1) as etcd,
        Cluster(
            experiment,
            tmp_path / "run",
            coordinators=("c0",),
            ha=etcd.url,
            insecure_etcd=True,
            lease=3.0,
            restart=False,
        ) as cluster,
    ):
        cluster.start()
        until(cluster, lambda: round_of(cluster) >= 2, "two rounds")
        for name in cluster.workers:
            cluster.kill(name, signal.SIGSTOP)  # cut off while the run is stopped
        operator.command(operator.target_of(cluster.folder), stop=True)
        cluster.kill("c0")
        for name in cluster.workers:
            cluster.kill(name, signal.SIGCONT)
        names = cluster.workers
        until(cluster, lambda: all(cluster.exit_codes()[name] == 0 for name in names), "the end")
        assert all((cluster.folder / "workers" / n / "model.safetensors").is_file() for n in names)
