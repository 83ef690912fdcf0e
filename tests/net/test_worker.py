"""Real workers over real gRPC and TLS on the loopback, led by a scripted coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from net.fake_coordinator import FakeCoordinator, make_certificates

from fedhp.cluster.guard import Attempt
from fedhp.cluster.history import read_history
from fedhp.cluster.keep import INITIAL
from fedhp.cluster.worker import WorkerSettings, run_worker
from fedhp.config import Experiment, parse
from fedhp.engine.local import LocalEngine
from fedhp.engine.prepare import prepare
from fedhp.graph import topology_from
from fedhp.types import NeighborMixing


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("net") / "certs", 3)


def experiment(**changes: Any) -> Experiment:
    tables: dict[str, Any] = {
        "workers": 3,
        "rounds": 3,
        "algorithm": {"name": "dpsgd"},
        "data": {"skew": 0.8},
        "training": {"local_steps": 3, "batch_size": 8, "kernel": "worker", "mixing": "ordered"},
        "evaluation": {"images": 50},
    }
    for key, value in changes.items():
        tables[key] = {**tables.get(key, {}), **value} if isinstance(value, dict) else value
    return parse(tables)


@dataclass
class Federation:
    boss: FakeCoordinator
    folder: Path
    running: dict[int, asyncio.Task[int]] = field(default_factory=dict)
    stops: dict[int, asyncio.Event] = field(default_factory=dict)

    def start(self, worker: int, **settings: Any) -> asyncio.Task[int]:
        self.stops[worker] = asyncio.Event()
        self.running[worker] = asyncio.ensure_future(
            run_worker(
                WorkerSettings(
                    name=f"w{worker}",
                    coordinator=self.boss.address,
                    certificates=self.boss.certificates,
                    state=self.folder / f"w{worker}",
                    listen="127.0.0.1:0",
                    **settings,
                ),
                stop=self.stops[worker],
            )
        )
        return self.running[worker]

    async def ready(self, workers: Sequence[int]) -> None:
        for worker in workers:
            self.start(worker)
        await self.boss.until(lambda: all(f"w{each}" in self.boss.stands for each in workers))

    def events(self, worker: int, event: str) -> list[dict[str, Any]]:
        name = f"w{worker}"
        lines = read_history(self.folder / name / f"history-{name}.jsonl")
        return [line for line in lines if line["event"] == event]


@asynccontextmanager
async def federation(
    settings: Experiment, certificates: Path, folder: Path
) -> AsyncIterator[Federation]:
    async with FakeCoordinator(settings, certificates) as boss:
        there = Federation(boss, folder)
        try:
            yield there
        finally:
            for task in there.running.values():
                task.cancel()
            for task in there.running.values():
                with contextlib.suppress(asyncio.CancelledError):
                    await task


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def digests(engine: LocalEngine) -> list[bytes]:
    """Of the models that all workers have now in the simulation."""
    width = engine.prepared.layout.mixed
    return [hashlib.sha256(row[:width].numpy()).digest() for row in engine.shard.models]


def line(workers: int) -> NeighborMixing:
    pairs = np.array([[a, a + 1] for a in range(workers - 1)])
    return NeighborMixing(topology_from(workers, pairs), "metropolis")


def test_three_rounds_have_the_bits_of_the_simulation(certificates: Path, tmp_path: Path) -> None:
    settings, exchange = experiment(), line(3)
    engine = LocalEngine(prepare(settings))

    async def test() -> None:
        async with federation(settings, certificates, tmp_path) as there:
            await there.ready(range(3))
            committed = INITIAL
            for round_index in (1, 2, 3):
                attempt = Attempt(1, round_index, 1)
                there.boss.mixing(
                    exchange, committed=committed, attempt=attempt, changes={"estimate": True}
                )
                steps = np.full(3, 3)
                trained = engine.train(steps, round_index=round_index, learning_rate=0.1)
                estimates = engine.estimate(steps > 0, round_index=round_index)
                mixed = engine.exchange(exchange, round_index=round_index)
                engine.advance()
                tested = engine.evaluate()
                apart = dict(zip(map(tuple, mixed.links.tolist()), mixed.distance, strict=True))
                for worker in range(3):
                    report = await there.boss.report(worker)
                    assert report.digest == digests(engine)[worker]
                    assert report.train_loss == trained.loss[worker]
                    assert report.update_norm == trained.update_norm[worker]
                    assert report.smoothness == estimates.smoothness[worker]
                    assert report.gradient_variance == estimates.gradient_variance[worker]
                    assert report.accuracy == tested.accuracy[worker]
                    assert report.images == 50
                    for link in report.links:
                        pair = (min(worker, link.worker), max(worker, link.worker))
                        assert link.distance == apart[pair]
                        assert link.bytes > 4 * engine.prepared.layout.mixed
                        assert not link.lost
                committed = attempt
            for worker in range(3):
                there.boss.finish(worker, committed)
                assert await there.running[worker] == 0
                assert (tmp_path / f"w{worker}" / "model.safetensors").exists()
                stands = [each["round"] for each in there.events(worker, "advanced")]
                assert stands == [1, 2, 3]

    run(test())
    engine.close()
