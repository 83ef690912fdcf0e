"""Members of a federation that misbehave, and what a test asks of its coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.in_process import InProcessFederation
from faults.scripted import MODEL_BYTES, ScriptedWorker
from fedhp.cluster.history import read_history
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.guard import Envelopes
from fedhp.cluster.protocol.stubs import CoordinatorStub
from fedhp.cluster.security.identity import load_identity
from fedhp.cluster.security.tls import open_channel
from waiting import emulate_work


@dataclass
class Attacker(ScriptedWorker):
    """A scripted worker that breaks the rules it is told to break."""

    claimed_step_time: float = 0.0  # in every Next and report; 0: the true one
    model_bytes: int = MODEL_BYTES
    reports: bool = True  # otherwise it sends heartbeats, and never a report
    accuracy: float = 0.5  # in every report
    lost: tuple[int, ...] = ()  # peers whose models it says it waited for in vain

    async def _next(self) -> wire.Order:
        request = wire.NextRequest(
            envelope=self.envelope(),
            stands=self._stands(),
            step_time=self.claimed_step_time or self.step_seconds,
            model_bytes=self.model_bytes,
        )
        order: wire.Order = await self.call(
            "Next", request, seconds=limits.POLL_SECONDS + limits.POLL_SLACK
        )
        self.guard.obey(order.epoch)
        return order

    async def _report(self, attempt: Attempt, report: wire.RoundReport) -> None:
        report.step_time = self.claimed_step_time or report.step_time
        report.accuracy = self.accuracy
        for link in report.links:
            if link.worker in self.lost:
                link.lost, link.bytes = "deadline", 0
        if self.reports:
            await super()._report(attempt, report)
        else:
            await emulate_work(0.05)


def start_attacker(
    federation: InProcessFederation, name: str, kind: type[Attacker] = Attacker, **traits: Any
) -> Attacker:
    """Start a worker that misbehaves."""
    import asyncio

    worker = kind(
        load_identity(federation.certificates, name),
        federation.folder / "workers" / name,
        lambda: federation.address,
        **traits,
    )
    federation.workers[name] = worker
    federation.worker_tasks[name] = asyncio.create_task(worker.live())
    return worker


async def command(federation: InProcessFederation, **fields: Any) -> str:
    """An operator's command; what the coordinator answers."""
    identity = load_identity(federation.certificates, "operator")
    async with open_channel(identity, federation.address, name=None) as channel:
        stub: Any = CoordinatorStub(channel)
        envelopes = Envelopes("operator")
        status = await stub.Status(wire.StatusRequest(envelope=envelopes.make()), timeout=20)
        request = wire.CommandRequest(envelope=envelopes.make(run=status.run), **fields)
        receipt = await stub.Command(request, timeout=20)
    return str(receipt.why)


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The events of one kind in the coordinator's history."""
    return [
        event for event in read_history(folder / "history-boss.jsonl") if event["event"] == kind
    ]
