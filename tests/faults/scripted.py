"""Workers without a model: they speak the protocol over mutual TLS and make their reports up.

Each writes a history like a real one. Some misbehave on purpose. Many fit in one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedhp import __version__
from fedhp.cluster.history import History
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.guard import Envelopes, Guard, Refused
from fedhp.cluster.protocol.stubs import CoordinatorStub
from fedhp.cluster.security.identity import Identity, load_identity
from fedhp.cluster.security.leader_proof import new_nonce
from fedhp.cluster.security.tls import open_channel
from waiting import emulate_work

MODEL_BYTES = 400_000
NAN = float("nan")
PAUSE = 0.05  # s before a call that failed is tried again


@dataclass
class ScriptedWorker:
    """One such worker; `find` says where the coordinator is."""

    identity: Identity
    folder: Path
    find: Callable[[], str]
    step_seconds: float = 0.001
    times: int = 1  # that each report is sent
    uninvited: bool = False  # reports although it has no part
    orders: list[tuple[str, Attempt]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    stale: int = 0  # orders of an earlier epoch that were not obeyed
    receipts: list[wire.Receipt] = field(default_factory=list)
    beat_seconds: float = 0.2
    epoch: int = 0
    run: str = ""

    @classmethod
    def named(
        cls, certificates: Path, name: str, folder: Path, find: Callable[[], str]
    ) -> ScriptedWorker:
        """With the certificate of this name."""
        return cls(load_identity(certificates, name), folder, find)

    async def live(self) -> None:
        """Until the run is over."""
        self.guard, self.envelopes = Guard(run=None), Envelopes(self.identity.name)
        self.attempt = self.model = INITIAL
        self.mixed: Attempt | None = None
        self.steps: int = 0
        self.folder.mkdir(parents=True, exist_ok=True)
        self.history = History(self.folder, self.identity.name)
        self.channels: dict[str, Any] = {}
        beating: asyncio.Task[None] | None = None
        try:
            while True:
                try:
                    await self._join()
                    beating = beating or asyncio.create_task(self._beat())
                    while not await self._obey(await self._next()):
                        pass
                    return
                except Refused:
                    self.stale += 1
                    await emulate_work(PAUSE)
                except ConnectionError:
                    await emulate_work(PAUSE)
        finally:
            if beating is not None:
                beating.cancel()
                await asyncio.gather(beating, return_exceptions=True)
            for channel in self.channels.values():
                await channel.close()
            self.history.close()

    # --- calls -----------------------------------------------------------------------------

    async def call(self, method: str, request: Any, *, seconds: float) -> Any:
        """A call; ConnectionError if the worker must join again."""
        import grpc.aio

        address = self.find()
        if address not in self.channels:  # closed at the end: others may be using it
            self.channels[address] = open_channel(self.identity, address, name=None)
        call = getattr(CoordinatorStub(self.channels[address]), method)
        try:
            return await call(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            self.refused.append(error.details() or error.code().name)
            raise ConnectionError(error.details()) from None

    def envelope(self, attempt: Attempt | None = None) -> wire.Envelope:
        """For one message."""
        return self.envelopes.make(run=self.run, attempt=attempt or self.attempt)

    async def _join(self) -> None:
        request = wire.JoinRequest(
            envelope=self.envelopes.make(),
            address="127.0.0.1:1",
            fedhp=__version__,
            samples=100,
            stands=self._stands(),
            nonce=new_nonce(),
        )
        reply = await self.call("Join", request, seconds=limits.JOIN_SECONDS)
        self.guard.obey(reply.epoch)
        self.run, self.epoch, self.worker = reply.run, reply.epoch, reply.worker
        self.beat_seconds = reply.beat_seconds
        self.history.append("join", {"run": self.run, "epoch": self.epoch, "worker": self.worker})

    async def _beat(self) -> None:
        while True:
            with contextlib.suppress(ConnectionError):
                request = wire.BeatRequest(envelope=self.envelope(), phase="scripted")
                await self.call("Beat", request, seconds=limits.BEAT_SECONDS)
            await emulate_work(self.beat_seconds)

    async def _next(self) -> wire.Order:
        request = wire.NextRequest(
            envelope=self.envelope(),
            stands=self._stands(),
            step_time=self.step_seconds,
            model_bytes=MODEL_BYTES,
        )
        order: wire.Order = await self.call(
            "Next", request, seconds=limits.POLL_SECONDS + limits.POLL_SLACK
        )
        self.guard.obey(order.epoch)
        return order

    # --- orders ----------------------------------------------------------------------------

    async def _obey(self, order: wire.Order) -> bool:
        kind, committed = order.WhichOneof("what"), Attempt.from_wire(order.committed)
        about = Attempt.from_order(order)
        self.orders.append((kind, about))
        self.history.append("order", {"kind": kind, **about.to_facts()})
        if self.mixed == committed and self.model != committed:
            self.model = committed
            self.history.append("advanced", committed.to_facts())
        if kind == "catch_up":
            self.model = committed
            self.history.append("caught_up", {**committed.to_facts(), "peer": "anyone"})
        if kind == "work":
            await self._work(about, order.work)
        elif self.uninvited and kind == "wait":
            # One that was left out tells of the attempt that it heard its peers speak of.
            running = Attempt(order.epoch, committed.round_index + 1, 1)
            await self._report(running, self._made_up(running, ()))
        if kind == "finished":
            request = wire.LeaveRequest(envelope=self.envelope(), finished=True)
            with contextlib.suppress(ConnectionError):
                await self.call("Leave", request, seconds=limits.BEAT_SECONDS)
        return bool(kind == "finished")

    async def _work(self, attempt: Attempt, work: wire.Work) -> None:
        self.attempt = attempt
        await emulate_work(work.local_steps * self.step_seconds)
        self.history.append("trained", {**attempt.to_facts(), "steps": work.local_steps})
        report = self._made_up(attempt, [peer.worker for peer in work.peers])
        self.mixed = attempt
        self.history.append("mixed", {**attempt.to_facts(), "digest": report.digest.hex()})
        for _ in range(self.times):
            await self._report(attempt, report)

    async def _report(self, attempt: Attempt, report: wire.RoundReport) -> None:
        report.envelope.CopyFrom(self.envelope(attempt))
        receipt = await self.call("Report", report, seconds=limits.REPORT_SECONDS)
        self.receipts.append(receipt)
        self.history.append("reported", {**attempt.to_facts(), "accepted": receipt.accepted})

    def _made_up(self, attempt: Attempt, peers: Any) -> wire.RoundReport:
        text = f"{self.identity.name} {attempt}"
        return wire.RoundReport(
            step_time=self.step_seconds,
            compute_seconds=0.01,
            exchange_seconds=0.01,
            train_loss=1.0 / attempt.round_index,
            update_norm=1.0,
            smoothness=1.0,
            gradient_variance=1.0,
            start_loss=2.0,
            links=[
                wire.LinkReport(worker=peer, bytes=MODEL_BYTES, seconds=0.01, distance=0.5)
                for peer in peers
            ],
            accuracy=0.5,
            whole_accuracy=NAN,
            images=100,
            digest=hashlib.sha256(text.encode()).digest(),
        )

    def _stands(self) -> list[wire.Stand]:
        kept = {self.model} if self.mixed is None else {self.model, self.mixed}
        return [version.to_wire() for version in sorted(kept) if version.round_index]
