"""A scripted coordinator and real workers in one event loop, over TLS on 127.0.0.1."""

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
from numpy.typing import NDArray

from fedhp.cluster.history import read_history
from fedhp.cluster.worker.worker import WorkerSettings, run_worker
from fedhp.config import Experiment, parse
from fedhp.engine.sharded import LocalExecutor
from fedhp.exchange import NeighborMixing
from fedhp.graph import topology_from
from fedhp.record.tensors import read_tensors
from fedhp.tables import merge_tables
from net.fake_coordinator import FakeCoordinator


def experiment(**changes: Any) -> Experiment:
    tables: dict[str, Any] = {
        "workers": 3,
        "rounds": 3,
        "algorithm": {"name": "dpsgd"},
        "data": {"skew": 0.8},
        "training": {"local_steps": 3, "batch_size": 8, "kernel": "worker", "mixing": "ordered"},
        "evaluation": {"images": 50},
    }
    return parse(merge_tables(tables, changes))


@dataclass
class Federation:
    coordinator: FakeCoordinator
    folder: Path
    running: dict[int, asyncio.Task[int]] = field(default_factory=dict)
    stops: dict[int, asyncio.Event] = field(default_factory=dict)

    def start(self, worker: int, **settings: Any) -> asyncio.Task[int]:
        self.stops[worker] = asyncio.Event()
        self.running[worker] = asyncio.ensure_future(
            run_worker(
                WorkerSettings(
                    name=f"w{worker}",
                    coordinator=self.coordinator.address,
                    certificates=self.coordinator.certificates,
                    state=self.folder / f"w{worker}",
                    listen="127.0.0.1:0",
                    **settings,
                ),
                stop=self.stops[worker],
            )
        )
        return self.running[worker]

    async def ready(self, workers: Sequence[int]) -> None:
        """Start workers and wait until they ask for orders."""
        for worker in workers:
            self.start(worker)
        await self.coordinator.until(
            lambda: all(f"w{worker}" in self.coordinator.stored for worker in workers)
        )

    def events(self, worker: int, event: str) -> list[dict[str, Any]]:
        name = f"w{worker}"
        lines = read_history(self.folder / name / f"history-{name}.jsonl")
        return [line for line in lines if line["event"] == event]


@asynccontextmanager
async def start_federation(
    settings: Experiment, certificates: Path, folder: Path
) -> AsyncIterator[Federation]:
    async with FakeCoordinator(settings, certificates) as coordinator:
        federation = Federation(coordinator, folder)
        try:
            yield federation
        finally:
            for task in federation.running.values():
                task.cancel()
            for task in federation.running.values():
                with contextlib.suppress(asyncio.CancelledError):
                    await task


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def digests(engine: LocalExecutor) -> list[bytes]:
    """Digests of the models that all workers have now in the simulation."""
    width = engine.prepared.layout.mixed
    return [
        hashlib.sha256(row[:width].numpy().tobytes()).digest() for row in engine.shard.rows.models
    ]


def line(workers: int) -> NeighborMixing:
    """Workers in a row, each with a link to the next."""
    pairs = np.array([[a, a + 1] for a in range(workers - 1)])
    return NeighborMixing(topology_from(workers, pairs), "metropolis")


def final_model(folder: Path) -> NDArray[np.float32]:
    """All numbers of a worker's last model, tensor by tensor in the order of their names."""
    arrays, _ = read_tensors(folder / "model.safetensors")
    return np.concatenate([arrays[name].ravel() for name in sorted(arrays)])
