"""The end of a run: a worker counts as one that knows of it only when it has said so."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

from faults.in_process import InProcessFederation, experiment, in_process_federation, run, until
from faults.scripted import ScriptedWorker
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.security.identity import load_identity
from net.identities import make_certificates


class GoneForNow(BaseException):
    """The process ends at this point."""


@dataclass
class LosesTheEnd(ScriptedWorker):
    """Does not get its last order, the first time; `dies`: and ends at that moment."""

    dies: bool = False
    lost: int = 0

    async def _next(self) -> wire.Order:
        order = await super()._next()
        if order.HasField("finished") and not self.lost:
            self.lost += 1
            if self.dies:
                raise GoneForNow
            raise ConnectionError("the reply was lost")
        return order


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("end"), 2)


def start(federation: InProcessFederation, *, dies: bool) -> LosesTheEnd:
    worker = LosesTheEnd(
        load_identity(federation.certificates, "w1"),
        federation.folder / "workers" / "w1",
        lambda: federation.address,
        dies=dies,
    )
    federation.worker_tasks["w1"] = asyncio.create_task(worker.live())
    return worker


def informed(federation: InProcessFederation) -> set[int]:
    """Who knows of the end, by the last coordinator."""
    assert federation.coordinator is not None
    assert federation.coordinator.state is not None
    return federation.coordinator.state.members.informed


def quick() -> dict[str, float]:
    return {"suspect_after": 0.5, "dead_after": 1.5}


def test_a_worker_that_lost_its_last_order_gets_it_again(
    certificates: Path, tmp_path: Path
) -> None:
    async def scenario() -> None:
        settings = experiment(workers=2, rounds=1, cluster=quick())
        async with in_process_federation(settings, certificates, tmp_path) as federation:
            await federation.start_coordinator()
            federation.start_worker("w0")
            worker = start(federation, dies=False)
            await federation.finish()
            assert worker.lost == 1
            assert worker.orders[-1][0] == "finished"
            assert informed(federation) == {0, 1}

    run(scenario())


def test_a_worker_that_was_gone_is_waited_for_by_the_next_coordinator(
    certificates: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", logger="fedhp")

    async def scenario() -> None:
        settings = experiment(workers=2, rounds=1, cluster=quick())
        async with in_process_federation(settings, certificates, tmp_path) as federation:
            await federation.start_coordinator()
            federation.start_worker("w0")
            start(federation, dies=True)
            dying = federation.worker_tasks.pop("w1")
            await federation.finish()
            assert isinstance((await asyncio.gather(dying, return_exceptions=True))[0], GoneForNow)
            assert informed(federation) == {0}
            assert "have not said that they know it: w1;" in caplog.text

            state = await federation.start_coordinator()
            assert [member.name for member in state.members.uninformed()] == ["w1"]
            again = federation.start_worker("w1")
            await until(lambda: again.orders)
            assert [kind for kind, _ in again.orders] == ["finished"]
            await federation.finish()
            assert informed(federation) == {0, 1}

    run(scenario())
