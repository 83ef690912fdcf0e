"""A real coordinator and scripted workers in one event loop, so that guards can be taken out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.scripted import Scripted
from fedhp.cluster.coordinator.coordinator import Coordinator, CoordinatorSettings
from fedhp.cluster.coordinator.state import CoordinatorState, Phase
from fedhp.cluster.ledger.local import LocalLedger
from fedhp.cluster.security.identity import load_identity
from fedhp.cluster.security.tls import AllowList
from fedhp.config import Experiment, parse
from waiting import wait_until_async

SOON = 60.0  # s: nothing here takes longer, even on a busy machine
NOTHING = frozenset[str]()


def experiment(**changes: Any) -> Experiment:
    """A few quick rounds; changes by section."""
    tables: dict[str, Any] = {
        "workers": 3,
        "rounds": 3,
        "algorithm": {"name": "dpsgd"},
        "training": {"local_steps": 2},
        "cluster": {
            "min_workers": 2,
            "gather": 5.0,
            "beat": 0.2,
            "suspect_after": 2.0,
            "dead_after": 10.0,
            "least_deadline": 5.0,
            "probe_bytes": 0,
        },
    }
    for key, value in changes.items():
        tables[key] = {**tables.get(key, {}), **value} if isinstance(value, dict) else value
    return parse(tables)


@dataclass
class Office:
    """A coordinator that can be started, cut off and started again in the same folder."""

    settings: Experiment
    certificates: Path
    folder: Path
    address: str = "127.0.0.1:1"
    running: asyncio.Task[None] | None = None
    workers: dict[str, Scripted] = field(default_factory=dict)
    living: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def open(self, ledger_folder: str = "ledger") -> CoordinatorState:
        """A new coordinator that leads; its state."""
        ledger = LocalLedger(self.folder / ledger_folder)
        coordinator = Coordinator(
            CoordinatorSettings(
                experiment=self.settings,
                identity=load_identity(self.certificates, "boss"),
                listen="127.0.0.1:0",
                folder=self.folder,
                allowed=AllowList(None),
            ),
            ledger,
        )
        self.running = asyncio.create_task(_term(coordinator, ledger))
        running = self.running
        await until(lambda: running.done() or _is_serving(coordinator.state))
        if running.done():
            running.result()
        assert coordinator.state is not None
        self.address = coordinator.address
        return coordinator.state

    async def close(self) -> None:
        """End the term, as a kill would: nothing more is written."""
        if self.running is not None:
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)
            self.running = None

    def hire(self, name: str) -> Scripted:
        """One more worker, alive from now on."""
        worker = Scripted.named(
            self.certificates, name, self.folder / "workers" / name, lambda: self.address
        )
        self.workers[name] = worker
        self.living[name] = asyncio.create_task(worker.live())
        return worker

    async def fire(self, name: str) -> None:
        """End a worker at once."""
        task = self.living.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def finish(self) -> None:
        """Until the run is over and everyone knows."""
        assert self.running is not None
        async with asyncio.timeout(SOON):
            await asyncio.gather(self.running, *self.living.values())


def _is_serving(state: CoordinatorState | None) -> bool:
    return state is not None and state.phase is not Phase.STARTING


async def _term(coordinator: Coordinator, ledger: LocalLedger) -> None:
    try:
        await coordinator.run()
    finally:
        await ledger.close()


async def until(condition: Callable[[], object]) -> None:
    """Look until something is so."""
    await wait_until_async(lambda: bool(condition()), "what a coordinator does", seconds=SOON)


@asynccontextmanager
async def office(settings: Experiment, certificates: Path, folder: Path) -> AsyncIterator[Office]:
    """An office without a coordinator yet; everyone is ended at the end."""
    there = Office(settings, certificates, folder)
    try:
        yield there
    finally:
        for name in list(there.living):
            await there.fire(name)
        await there.close()


def run(scene: Coroutine[Any, Any, None]) -> None:
    """A test's body, with an end in any case."""

    async def limited() -> None:
        async with asyncio.timeout(3 * SOON):
            await scene

    asyncio.run(limited())
