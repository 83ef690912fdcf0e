"""What this worker asks of its peers: trained and committed models, probes, swaps.

A peer that does not deliver is Lost with a reason that is told in the report: "gone", "deadline",
"unreachable", "refused: ..." with the word of the side that refused. A link's seconds begin when
the other side is ready to send, so that its training does not count as a slow link.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from fedhp.cluster import failpoints
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.codec import BadModel
from fedhp.cluster.protocol.compression import Incoming, Row
from fedhp.cluster.protocol.guard import RULES, Refused
from fedhp.cluster.protocol.message_checks import check_first_chunk
from fedhp.cluster.protocol.services import call
from fedhp.cluster.security.tls import open_channel
from fedhp.cluster.worker.learner import Learner
from fedhp.cluster.worker.model_offer import ModelOffer
from fedhp.cluster.worker.session import WORKERS, WorkerSession

SWAP_PAUSE = 0.02  # s after the first swap that found its partner busy; doubled each time
LONGEST_SWAP_PAUSE = 1.0
PROBE_BURST = 0.25  # of a probe's bytes, which say nothing of the link


@dataclass(frozen=True, slots=True)
class PeerPlace:
    """Another worker and where it is."""

    worker: int
    name: str
    address: str

    @classmethod
    def of(cls, peer: wire.PeerAddress) -> PeerPlace:
        """From an order."""
        return cls(peer.worker, peer.name, peer.address)


@dataclass(frozen=True, slots=True)
class Pulled:
    """What came over a link."""

    row: Row
    took: ModelTransfer


@dataclass(frozen=True, slots=True)
class ModelTransfer:
    """How long so many bytes took, from when on by this process's clock."""

    bytes: int
    started: float
    seconds: float


class Lost(Exception):
    """A peer did not deliver; `reason` says why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class _Busy(Exception):
    """The partner of a swap is in another one."""


class Pulls:
    """Calls to peers, each over a connection that is kept."""

    def __init__(self, member: WorkerSession, shelf: ModelOffer) -> None:
        self._member = member
        self._shelf = shelf
        self._channels: dict[str, tuple[str, grpc.aio.Channel]] = {}

    async def close(self) -> None:
        """Close all connections."""
        for _, channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    async def trained(
        self, peer: PeerPlace, attempt: Attempt, *, incoming: Incoming, patience: float
    ) -> Pulled:
        """The model of this attempt, after the peer's local steps."""
        base, receiver = incoming.begin(peer.name)
        request = wire.PullRequest(
            envelope=self._member.envelope(attempt),
            wanted=wire.TRAINED,
            patience=patience,
            base=base,
        )
        took = await self._pull(peer, request, receiver.push, patience=patience)
        row = await self._judged(peer, lambda: incoming.finish(peer.name, receiver))
        return Pulled(row, took)

    async def committed(
        self, peer: PeerPlace, stand: Attempt, *, learner: Learner, patience: float
    ) -> Pulled:
        """The model of a committed stand, whole and exact."""
        request = wire.PullRequest(
            envelope=self._member.envelope(),
            wanted=wire.COMMITTED,
            stand=stand.to_wire(),
            patience=patience,
        )
        receiver = learner.codec.receiver()
        took = await self._pull(peer, request, receiver.push, patience=patience)
        return Pulled(await self._judged(peer, receiver.finish), took)

    async def probe(self, peer: PeerPlace, size: int, *, patience: float) -> ModelTransfer:
        """So many bytes over a link that carries no model now.

        The first ones are left out where more follow: they come as a burst, out of buffers.
        """
        request = wire.PullRequest(
            envelope=self._member.envelope(), wanted=wire.PROBE, bytes=size, patience=patience
        )
        marks: list[tuple[int, float]] = []  # bytes so far, and when they were here

        def push(chunk: wire.Chunk) -> None:
            marks.append(((marks[-1][0] if marks else 0) + len(chunk.data), time.monotonic()))

        took = await self._pull(peer, request, push, patience=patience, most=size)
        burst, then = next((mark for mark in marks if mark[0] >= size * PROBE_BURST), (0, 0.0))
        if burst in (0, took.bytes):
            return took
        return ModelTransfer(took.bytes - burst, then, took.started + took.seconds - then)

    async def swap(
        self, peer: PeerPlace, attempt: Attempt, *, learner: Learner, patience: float
    ) -> tuple[float, int, float]:
        """Both sides take the mean of their models: how far apart they were, bytes, seconds.

        Nobody waits for the other while its own model is held: a partner that is busy lets go at
        once, and so does this side, until a later try. Pauses differ from worker to worker, so
        that two that meet do not meet for ever.
        """
        until = time.monotonic() + patience
        pause = SWAP_PAUSE * (1 + self._member.worker / max(self._member.workers, 1))
        while True:
            left = until - time.monotonic()
            if left <= 0:
                raise Lost("deadline")
            with contextlib.suppress(_Busy):
                return await self._swap_once(peer, attempt, learner, left)
            await asyncio.sleep(min(pause, max(0.0, until - time.monotonic())))
            pause = min(2 * pause, LONGEST_SWAP_PAUSE)

    # --- inside ----------------------------------------------------------------------------

    async def _channel(self, peer: PeerPlace) -> grpc.aio.Channel:
        if self._member.guard.is_quarantined(peer.name):
            raise Lost("refused: quarantined")
        address, channel = self._channels.get(peer.name, ("", None))
        if channel is None or address != peer.address:
            if channel is not None:
                await channel.close()
            channel = open_channel(self._member.identity, peer.address, name=peer.name)
            self._channels[peer.name] = (peer.address, channel)
        return channel

    async def _pull(
        self,
        peer: PeerPlace,
        request: wire.PullRequest,
        push: Callable[[wire.Chunk], None],
        *,
        patience: float,
        most: int = limits.MODEL_BYTES,
    ) -> ModelTransfer:
        """All chunks of an answer, judged as they come."""
        pull = call(await self._channel(peer), "Peer", "Pull")(request, timeout=max(patience, 0.01))
        with self._told(peer, pull):
            await pull.initial_metadata()
            started = time.monotonic()
            size = await self._read(peer, pull, push, request.envelope, most)
            return ModelTransfer(size, started, time.monotonic() - started)

    async def _swap_once(
        self, peer: PeerPlace, attempt: Attempt, learner: Learner, patience: float
    ) -> tuple[float, int, float]:
        channel = await self._channel(peer)
        self._shelf.swapping = True  # until the answer is in, the model must stay what was sent
        try:
            started = time.monotonic()
            encoded = await asyncio.to_thread(learner.codec.encode, learner.current())
            envelope = self._member.envelope(attempt)
            receiver = learner.codec.receiver()

            async def sent() -> AsyncIterator[wire.Chunk]:
                for chunk in learner.codec.chunks(encoded, envelope):
                    yield chunk

            swap = call(channel, "Peer", "Swap")(sent(), timeout=max(patience, 0.01))
            with self._told(peer, swap):
                size = await self._read(peer, swap, receiver.push, envelope, limits.MODEL_BYTES)
            theirs = await self._judged(peer, receiver.finish)
            apart = learner.average(theirs)
            return apart, size + encoded.total, time.monotonic() - started
        finally:
            self._shelf.swapping = False

    async def _read(
        self,
        peer: PeerPlace,
        stream: Any,
        push: Callable[[wire.Chunk], None],
        asked: wire.Envelope,
        most: int,
    ) -> int:
        size, first = 0, True
        while True:
            async with asyncio.timeout(limits.CHUNK_SECONDS):
                chunk = await stream.read()
            if chunk is grpc.aio.EOF:
                return size
            if first:
                self._check_first(peer, chunk, asked, most)
                failpoints.reach("worker.receiving", asked.round)
                first = False
            size += len(chunk.data)
            if size > most:
                raise BadModel("size", f"there are more than {most} bytes")
            push(chunk)

    def _check_first(
        self, peer: PeerPlace, chunk: wire.Chunk, asked: wire.Envelope, most: int
    ) -> None:
        """The answer is of the peer that was asked, and to the question that was asked."""
        check_first_chunk(chunk, most=most)
        self._member.guard.check(chunk.envelope, peer=peer.name, roles=WORKERS, rule=RULES["Pull"])
        if Attempt.from_envelope(chunk.envelope) != Attempt.from_envelope(asked):
            raise Refused("kind", "the answer is to another question")

    async def _judged(self, peer: PeerPlace, finish: Callable[[], Row]) -> Row:
        try:
            return await asyncio.to_thread(finish)
        except BadModel as error:
            self._member.refused(peer.name, error, what="model")
            raise Lost(f"refused: {error.reason}") from None

    @contextlib.contextmanager
    def _told(self, peer: PeerPlace, stream: Any) -> Iterator[None]:
        """Whatever goes wrong with a stream, as the reason of a lost link."""
        try:
            yield
        except (Refused, BadModel) as error:
            self._member.refused(peer.name, error, what="model")
            raise Lost(f"refused: {error.reason}") from None
        except TimeoutError:
            raise Lost("deadline") from None
        except grpc.aio.AioRpcError as error:
            raise _lost(error) from None
        finally:
            stream.cancel()


def link_reports(
    peers: list[PeerPlace],
    pulled: dict[int, Pulled],
    lost: dict[int, str],
    distances: dict[int, float],
    *,
    received: float,
) -> list[wire.LinkReport]:
    """What a report says of the links that should have carried a model."""
    return [
        wire.LinkReport(worker=peer.worker, distance=float("nan"), lost=lost[peer.worker])
        if peer.worker in lost
        else wire.LinkReport(
            worker=peer.worker,
            bytes=pulled[peer.worker].took.bytes,
            seconds=pulled[peer.worker].took.seconds,
            started=pulled[peer.worker].took.started - received,
            distance=distances[peer.worker],
        )
        for peer in peers
    ]


def _lost(error: grpc.aio.AioRpcError) -> Exception:
    """The reason in an error of the other side, or of the way to it."""
    reason, colon, _ = (error.details() or "").partition(": ")
    said = colon and reason.isalpha() and len(reason) <= limits.NAME_LENGTH
    code = error.code()
    if code == grpc.StatusCode.ABORTED and reason == "busy":
        return _Busy()
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return Lost("deadline")
    if code == grpc.StatusCode.UNAVAILABLE and reason != "starting":
        return Lost("unreachable")
    return Lost(f"refused: {reason}" if said else f"failed: {code.name.lower()}")
