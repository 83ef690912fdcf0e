"""What this worker asks of its peers: trained and committed models, probes, swaps.

A peer that does not deliver raises PeerLost with the reason that goes into the report: "gone",
"deadline", "unreachable", "late" (this worker is), or "refused: ..." with the peer's own word. A
link is timed from when the peer is ready to send: its training does not look like a slow link.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import grpc
import grpc.aio

from fedhp.cluster import failpoints
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.codec import (
    ENCODINGS,
    GROUP_STREAMS,
    BadModel,
    IncomingModels,
    ModelCodec,
    ModelReceiver,
)
from fedhp.cluster.protocol.group_codec import PieceReader, PieceWriter
from fedhp.cluster.protocol.guard import CALL_RULES, WORKER_ROLE, Refused
from fedhp.cluster.protocol.message_checks import check_first_chunk
from fedhp.cluster.protocol.stubs import PeerStub, Stub
from fedhp.cluster.security.identity import Identity
from fedhp.cluster.security.tls import open_channel
from fedhp.cluster.worker.learner import Learner, run_codec
from fedhp.cluster.worker.session import WorkerSession
from fedhp.cluster.worker.tree_node import TreeNode
from fedhp.learn.quantize import Row

WORKERS_ONLY = frozenset({WORKER_ROLE})
LATE = "late"  # this worker itself came to the exchange after its end: no peer is to blame
FIRST_SWAP_PAUSE = 0.02  # s after a swap that found its partner busy; doubled each time
LONGEST_SWAP_PAUSE = 1.0
RETRY_SECONDS = 0.3  # until a peer that could not be reached is tried once more
BUFFERED_SHARE = 0.25  # of a probe's bytes: they come out of buffers and say nothing of the link
IDLE_ROUNDS = 10  # until the connection to a peer that no order names any more is closed
IDLE_CONNECTIONS = 32  # that are kept in addition to those of the last round


@dataclass(frozen=True, slots=True)
class TransferTime:
    """How long a transfer took; `started` is on this process's monotonic clock."""

    bytes: int
    started: float
    seconds: float


ReceivedModel: TypeAlias = tuple[Row, TransferTime]


class PeerLost(Exception):
    """A peer did not deliver; `reason` says why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class _PartnerBusy(Exception):
    """The partner of a swap is in another one."""


@dataclass(slots=True)
class _Connection:
    """A connection to one peer."""

    address: str
    channel: grpc.aio.Channel
    stub: Stub
    identity: Identity  # that was shown to the peer
    last_round: int  # that used it
    calls: int = 0  # in progress


class PeerClient:
    """Calls to peers, over one connection per peer; only those in use are kept."""

    def __init__(self, session: WorkerSession) -> None:
        self._session = session
        self._connections: dict[str, _Connection] = {}  # by name of the peer

    async def close(self) -> None:
        """Close all connections."""
        for name in list(self._connections):
            await self._close(name)

    async def close_unused(self) -> None:
        """Close the connections that the last rounds did not use, and the oldest ones if there
        are many."""
        now = self._session.attempt.round_index
        idle = {
            name: connection.last_round
            for name, connection in self._connections.items()
            if not connection.calls and connection.last_round < now
        }
        newest_first = sorted(idle, key=lambda name: -idle[name])
        for position, name in enumerate(newest_first):
            if position >= IDLE_CONNECTIONS or idle[name] <= now - IDLE_ROUNDS:
                await self._close(name)

    async def pull_trained(
        self,
        peer: wire.PeerAddress,
        attempt: Attempt,
        *,
        incoming: IncomingModels,
        until: float,
        exchange: int = 0,
    ) -> ReceivedModel:
        """The peer's model of this attempt, after its local steps and so many exchanges. A peer
        that could not be reached is called once more."""
        tried = False
        while True:
            base, receiver = incoming.begin(peer.name)
            patience = until - time.monotonic()
            request = wire.PullRequest(
                envelope=self._session.envelope(attempt),
                wanted=wire.TRAINED,
                patience=patience,
                base=base,
                ticket=peer.ticket,
                exchange=exchange,
            )
            try:
                transfer = await self._pull(peer, request, receiver.push, patience=patience)
                finish = partial(incoming.finish, peer.name, receiver)
                return await self._finish(peer, incoming.codec, finish), transfer
            except PeerLost as error:
                late = time.monotonic() + RETRY_SECONDS >= until
                if tried or late or error.reason != "unreachable":
                    raise
            tried = True
            await asyncio.sleep(RETRY_SECONDS)

    async def pull_committed(
        self,
        peer: wire.PeerAddress,
        committed: Attempt,
        *,
        epoch: int,
        learner: Learner,
        patience: float,
    ) -> Row:
        """The model of a committed attempt, complete and exact; epoch: that of the order."""
        request = wire.PullRequest(
            envelope=self._session.envelope(Attempt.after(committed, epoch=epoch)),
            wanted=wire.COMMITTED,
            stand=committed.to_wire(),
            patience=patience,
            ticket=peer.ticket,
        )
        receiver = ModelReceiver(learner.codec)
        await self._pull(peer, request, receiver.push, patience=patience)
        return await self._finish(peer, learner.codec, receiver.finish)

    async def probe(
        self, peer: wire.PeerAddress, attempt: Attempt, *, size: int, patience: float
    ) -> TransferTime:
        """Time so many bytes over a link that carries no model now.

        The first ones are not counted where more follow: they come in a burst, out of buffers.
        """
        request = wire.PullRequest(
            envelope=self._session.envelope(attempt),
            wanted=wire.PROBE,
            bytes=size,
            patience=patience,
            ticket=peer.ticket,
        )
        arrivals: list[tuple[int, float]] = []  # bytes so far, and when they had arrived

        def push(chunk: wire.Chunk) -> None:
            before = arrivals[-1][0] if arrivals else 0
            arrivals.append((before + len(chunk.data), time.monotonic()))

        try:
            transfer = await self._pull(peer, request, push, patience=patience, max_bytes=size)
        except PeerLost as error:
            # What came in time shows how slow the link is.
            counted = [arrival for arrival in arrivals if arrival[0] >= size * BUFFERED_SHARE]
            if error.reason != "deadline" or len(counted) < 2:
                raise
            (before, then), (total, end) = counted[0], counted[-1]
            return TransferTime(total - before, then, end - then)
        buffered, then = next(
            (arrival for arrival in arrivals if arrival[0] >= size * BUFFERED_SHARE), (0, 0.0)
        )
        if buffered in (0, transfer.bytes):
            return transfer
        end = transfer.started + transfer.seconds
        return TransferTime(transfer.bytes - buffered, then, end - then)

    async def swap(
        self, peer: wire.PeerAddress, attempt: Attempt, *, learner: Learner, patience: float
    ) -> tuple[float, TransferTime]:
        """Both sides take the mean of their models; the distance between the two before that.

        Neither side waits for the other while its own model is held: a busy partner refuses at
        once, and this side releases its model until the next try. Pauses differ from worker to
        worker, so that two that collide do not collide forever.
        """
        if patience <= 0:
            raise PeerLost(LATE)
        until = time.monotonic() + patience
        pause = FIRST_SWAP_PAUSE * (1 + self._session.worker / max(self._session.workers, 1))
        while True:
            left = until - time.monotonic()
            if left <= 0:
                raise PeerLost("deadline")
            with contextlib.suppress(_PartnerBusy):
                return await self._swap_once(peer, attempt, learner, left)
            await asyncio.sleep(min(pause, max(0.0, until - time.monotonic())))
            pause = min(2 * pause, LONGEST_SWAP_PAUSE)

    async def climb(self, peer: wire.PeerAddress, node: TreeNode, *, until: float) -> None:
        """Exchange sums with the worker above in the tree; a link that breaks loses the average.
        One that could not be reached at all is called once more."""
        reader = node.reader(peer.worker)
        for last in (False, True):
            try:
                await self._climb(peer, node, reader, until - time.monotonic())
                return
            except PeerLost as error:
                if last or reader.taken or error.reason != "unreachable":
                    node.lose(peer.worker, error.reason)
                    return
            await asyncio.sleep(RETRY_SECONDS)

    async def _climb(
        self, peer: wire.PeerAddress, node: TreeNode, reader: PieceReader, patience: float
    ) -> None:
        envelope = self._session.envelope(node.attempt)
        writer = PieceWriter(node.codec, "sum", envelope)

        async def sums() -> AsyncIterator[wire.Chunk]:
            ticket = peer.ticket
            async for data in node.pieces_up():
                self._session.sent_bytes += len(data)
                yield writer.chunk(data, ticket=ticket)
                ticket = b""
                failpoints.reach("worker.reducing", node.attempt.round_index)

        async with self._calling(peer, "Average", sums(), patience) as stream:
            await self._read(
                peer, stream, partial(node.take, peer.worker), envelope, encodings=GROUP_STREAMS
            )
            if not reader.complete:
                raise PeerLost("unreachable")

    # --- inside ----------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _calling(
        self, peer: wire.PeerAddress, method: str, request: Any, patience: float
    ) -> AsyncIterator[Any]:
        """The stream of one call to a peer, which is not interrupted because other connections are
        closed. What goes wrong in the block raises PeerLost."""
        if self._session.guard.is_quarantined(peer.name):
            raise PeerLost("refused: quarantined")
        if peer.name in self._session.tickets.barred:
            raise PeerLost("refused: removed")
        connection = self._connections.get(peer.name)
        identity = self._session.certificates.current()
        if connection is not None and (
            connection.address != peer.address
            or (connection.identity is not identity and not connection.calls)
        ):
            await self._close(peer.name)
            connection = self._connections.get(peer.name)
        if connection is None:
            channel = open_channel(identity, peer.address, name=peer.name)
            connection = _Connection(
                peer.address, channel, PeerStub(channel), identity, last_round=0
            )
            self._connections[peer.name] = connection
        connection.last_round = self._session.attempt.round_index
        stream = getattr(connection.stub, method)(request, timeout=max(patience, 0.01))
        connection.calls += 1
        try:
            yield stream
        except (Refused, BadModel) as error:
            self._session.note_refusal(peer.name, error, what="model")
            raise PeerLost(f"refused: {error.reason}") from None
        except TimeoutError:
            raise PeerLost("deadline") from None
        except grpc.aio.AioRpcError as error:
            raise _from_status(error) from None
        finally:
            stream.cancel()
            connection.calls -= 1

    async def _close(self, name: str) -> None:
        await self._connections.pop(name).channel.close()

    async def _pull(
        self,
        peer: wire.PeerAddress,
        request: wire.PullRequest,
        push: Callable[[wire.Chunk], None],
        *,
        patience: float,
        max_bytes: int = limits.MODEL_BYTES,
    ) -> TransferTime:
        """Read all chunks of an answer and check them as they come."""
        if patience <= 0:
            raise PeerLost(LATE)
        async with self._calling(peer, "Pull", request, patience) as stream:
            await stream.initial_metadata()
            started = time.monotonic()
            size = await self._read(peer, stream, push, request.envelope, most=max_bytes)
            return TransferTime(size, started, time.monotonic() - started)

    async def _swap_once(
        self, peer: wire.PeerAddress, attempt: Attempt, learner: Learner, patience: float
    ) -> tuple[float, TransferTime]:
        with _holding(learner):
            started = time.monotonic()
            encoded = await run_codec(learner.codec, learner.codec.encode, learner.current())
            envelope = self._session.envelope(attempt)
            receiver = ModelReceiver(learner.codec)

            async def own_chunks() -> AsyncIterator[wire.Chunk]:
                ticket = peer.ticket
                for chunk in encoded.chunks(envelope):
                    chunk.ticket, ticket = ticket, b""
                    self._session.sent_bytes += len(chunk.data)
                    yield chunk

            async with self._calling(peer, "Swap", own_chunks(), patience) as stream:
                size = await self._read(peer, stream, receiver.push, envelope)
            theirs = await self._finish(peer, learner.codec, receiver.finish)
            distance = learner.average(theirs)
            seconds = time.monotonic() - started
            return distance, TransferTime(size + encoded.total, started, seconds)

    async def _read(
        self,
        peer: wire.PeerAddress,
        stream: Any,
        push: Callable[[wire.Chunk], None],
        request: wire.Envelope,
        *,
        most: int = limits.MODEL_BYTES,
        encodings: Collection[str] = ENCODINGS,
    ) -> int:
        """Push all chunks of a stream, at most so many bytes: these are returned. The answer comes
        from the peer that was asked, and names the attempt of the request."""
        size, first = 0, True
        models = encodings is ENCODINGS  # sums wait for those of other workers
        while True:
            async with asyncio.timeout(limits.CHUNK_SECONDS if models else None):
                chunk = await stream.read()
            if chunk is grpc.aio.EOF:
                return size
            if first:
                check_first_chunk(chunk, most=most, encodings=encodings)
                self._session.guard.check(
                    chunk.envelope, peer=peer.name, roles=WORKERS_ONLY, rule=CALL_RULES["Pull"]
                )
                if Attempt.from_wire(chunk.envelope) != Attempt.from_wire(request):
                    raise Refused("kind", "the answer belongs to another request")
                if models:
                    failpoints.reach("worker.receiving", request.round)
                first = False
            size += len(chunk.data)
            self._session.received_bytes += len(chunk.data)
            if size > most:
                raise BadModel("size", f"there are more than {most} bytes")
            push(chunk)

    async def _finish(
        self, peer: wire.PeerAddress, codec: ModelCodec, finish: Callable[[], Row]
    ) -> Row:
        """Decode and check a received model."""
        try:
            return await run_codec(codec, finish)
        except BadModel as error:
            self._session.note_refusal(peer.name, error, what="model")
            raise PeerLost(f"refused: {error.reason}") from None


@contextlib.contextmanager
def _holding(learner: Learner) -> Iterator[None]:
    """The current model does not change while a peer averages it with its own."""
    learner.swapping = True
    try:
        yield
    finally:
        learner.swapping = False


def _from_status(error: grpc.aio.AioRpcError) -> Exception:
    """The reason in an error of the other side, or of the way to it."""
    reason, colon, _ = (error.details() or "").partition(": ")
    is_reason = colon and reason.isalpha() and len(reason) <= limits.NAME_LENGTH
    code = error.code()
    if code == grpc.StatusCode.ABORTED and reason == "busy":
        return _PartnerBusy()
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return PeerLost("deadline")
    if code == grpc.StatusCode.UNAVAILABLE and reason != "starting":
        return PeerLost("unreachable")
    return PeerLost(f"refused: {reason}" if is_reason else f"failed: {code.name.lower()}")
