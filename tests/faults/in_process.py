"""A real coordinator and scripted workers in one event loop, so that guards can be removed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.scripted import ScriptedWorker
from fedhp.cluster.coordinator.context import Phase
from fedhp.cluster.coordinator.coordinator import Coordinator, CoordinatorSettings
from fedhp.cluster.coordinator.service import CoordinatorService, CoordinatorState
from fedhp.cluster.ledger.local import LocalLedger
from fedhp.cluster.security.identity import load_identity
from fedhp.cluster.security.tls import AllowList
from fedhp.config import Experiment, parse
from fedhp.tables import merge_tables
from waiting import wait_until_async

SOON = 60.0  # s: nothing here takes longer, even on a busy machine


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
    return parse(merge_tables(tables, changes))


@dataclass
class InProcessFederation:
    """Workers, and a coordinator that can be stopped and started again in the same folder."""

    settings: Experiment
    certificates: Path
    folder: Path
    address: str = "127.0.0.1:1"
    allowed: Path | None = None  # the file of the allow-list
    running: asyncio.Task[None] | None = None
    coordinator: Coordinator | None = None  # the last one that was started
    workers: dict[str, ScriptedWorker] = field(default_factory=dict)
    worker_tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def start_coordinator(self, ledger_folder: str = "ledger") -> CoordinatorState:
        """Start a coordinator and wait until it serves; returns its state."""
        ledger = LocalLedger(self.folder / ledger_folder)
        coordinator = Coordinator(
            CoordinatorSettings(
                experiment=self.settings,
                identity=load_identity(self.certificates, "boss"),
                listen="127.0.0.1:0",
                folder=self.folder,
                allowed=AllowList(self.allowed),
                moved=ledger_folder != "ledger",
            ),
            ledger,
        )
        self.coordinator = coordinator
        self.running = asyncio.create_task(_coordinate(coordinator, ledger))
        running = self.running
        await until(lambda: running.done() or _is_serving(coordinator.state))
        if running.done():
            running.result()
        assert coordinator.state is not None
        self.address = coordinator.address
        return coordinator.state

    async def stop_coordinator(self) -> None:
        """Stop it as a kill would: nothing more is written."""
        if self.running is not None:
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)
            self.running = None

    def start_worker(self, name: str) -> ScriptedWorker:
        """Start one more worker."""
        worker = ScriptedWorker.named(
            self.certificates, name, self.folder / "workers" / name, lambda: self.address
        )
        self.workers[name] = worker
        self.worker_tasks[name] = asyncio.create_task(worker.live())
        return worker

    async def stop_worker(self, name: str) -> None:
        """Stop a worker at once."""
        task = self.worker_tasks.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def finish(self) -> None:
        """Wait until the run is over and all workers know."""
        assert self.running is not None
        async with asyncio.timeout(SOON):
            await asyncio.gather(self.running, *self.worker_tasks.values())


def _is_serving(state: CoordinatorState | None) -> bool:
    return state is not None and state.phase.current is not Phase.STARTING


def service_of(state: CoordinatorState) -> CoordinatorService:
    """What answers calls from this state, for calls that prove nothing."""
    nobody: Any = None
    return CoordinatorService(state, nobody, address="")


async def _coordinate(coordinator: Coordinator, ledger: LocalLedger) -> None:
    try:
        await coordinator.run()
    finally:
        await ledger.close()


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    await wait_until_async(lambda: bool(condition()), "what a coordinator does", seconds=SOON)


@asynccontextmanager
async def in_process_federation(
    settings: Experiment, certificates: Path, folder: Path
) -> AsyncIterator[InProcessFederation]:
    """A federation without a coordinator yet; everything is stopped at the end."""
    federation = InProcessFederation(settings, certificates, folder)
    try:
        yield federation
    finally:
        for name in list(federation.worker_tasks):
            await federation.stop_worker(name)
        await federation.stop_coordinator()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Run the body of a test, with a deadline."""

    async def limited() -> None:
        async with asyncio.timeout(3 * SOON):
            await scenario

    asyncio.run(limited())
