"""A coordinator in a run folder and a worker, both real, in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from faults.in_process import service_of
from fedhp.cluster.coordinator.committed_state import CommittedState
from fedhp.cluster.coordinator.context import Phase
from fedhp.cluster.coordinator.coordinator import Coordinator, CoordinatorSettings
from fedhp.cluster.coordinator.service import CoordinatorState
from fedhp.cluster.history import read_history
from fedhp.cluster.ledger.base import SignedLedger
from fedhp.cluster.ledger.local import LocalLedger
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.security.identity import load_identity
from fedhp.cluster.security.tls import AllowList
from fedhp.cluster.worker.worker import WorkerSettings, run_worker
from fedhp.config import Experiment
from net.clusters import ENDLESS, tiny
from waiting import wait_until_async

SOON = 120.0  # s: nothing here takes longer, even on a busy machine


def endless() -> Experiment:
    return tiny(workers=1, rounds=ENDLESS, cluster={"beat": 0.2, "dead_after": 60.0})


class Place:
    """A run folder and the coordinator that leads from it."""

    def __init__(
        self,
        folder: Path,
        certificates: Path,
        *,
        listen: str = "127.0.0.1:0",
        resume: bool = False,
        moved: bool = False,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        identity = load_identity(certificates, "boss")
        self.folder = folder
        self.ledger = SignedLedger(LocalLedger(folder / "ledger"), identity, where=str(folder))
        self.coordinator = Coordinator(
            CoordinatorSettings(
                experiment=endless(),
                identity=identity,
                listen=listen,
                folder=folder,
                allowed=AllowList(None),
                resume=resume,
                moved=moved,
            ),
            self.ledger,
        )
        self.running: asyncio.Task[None] | None = None

    @property
    def state(self) -> CoordinatorState:
        assert self.coordinator.state is not None
        return self.coordinator.state

    @property
    def round_index(self) -> int:
        return self.state.round_index

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[Place]:
        """It leads inside the block, and is gone as after a kill at its end."""
        self.running = running = asyncio.create_task(self.coordinator.run())
        try:
            await self.until(lambda: running.done() or self._serves(), "it leads")
            if running.done():
                running.result()
            yield self
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await self.ledger.close()

    def _serves(self) -> bool:
        state = self.coordinator.state
        return state is not None and state.phase.current is not Phase.STARTING

    async def rounds(self, count: int) -> None:
        """Wait for so many more rounds."""
        goal = self.round_index + count
        await self.until(lambda: self.round_index >= goal, f"round {goal}")

    async def stop(self) -> str:
        """An operator's `fedhp cluster stop`, as the service handles it; the answer."""
        receipt = await service_of(self.state).command("boss", wire.CommandRequest(stop=True))
        assert self.state.phase.stop_committed.is_set()
        return str(receipt.why)

    @staticmethod
    async def until(holds: Callable[[], bool], what: str) -> None:
        await wait_until_async(holds, what, seconds=SOON)

    async def ended(self) -> None:
        """Wait until it ends by itself."""
        assert self.running is not None
        await asyncio.wait_for(asyncio.shield(self.running), SOON)

    async def committed(self) -> CommittedState:
        content = await self.ledger.committed()
        assert content is not None
        return CommittedState.from_bytes(content)

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = read_history(self.folder / "history-boss.jsonl")
        return [line for line in lines if line["event"] == event]


@asynccontextmanager
async def worker(
    certificates: Path, state: Path, *addresses: str
) -> AsyncIterator[asyncio.Task[int]]:
    """w0, as long as the block lasts."""
    task = asyncio.ensure_future(
        run_worker(
            WorkerSettings(
                name="w0",
                coordinator=",".join(addresses),
                certificates=certificates,
                state=state,
                listen="127.0.0.1:0",
            )
        )
    )
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
