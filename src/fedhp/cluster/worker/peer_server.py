"""The Peer service: which models this worker gives to its peers, and to whom.

Every call needs a ticket of the coordinator (tickets.py). A trained model goes only to the readers
that its order names, for exactly that attempt; probes stay within a budget. Every refusal has a
status code and "reason: text". A message that an honest peer never sends is a strike.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import grpc
import grpc.aio

from fedhp.cluster import events, failpoints
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.calls import REFUSAL_COST, CallLimits, Messages
from fedhp.cluster.protocol.codec import (
    ENCODINGS,
    GROUP_STREAMS,
    BadModel,
    Encoded,
    ModelReceiver,
    OutgoingModel,
)
from fedhp.cluster.protocol.group_codec import PieceWriter
from fedhp.cluster.protocol.guard import CALL_RULES, Refused, TicketPurpose
from fedhp.cluster.protocol.message_checks import check_first_chunk, check_pull
from fedhp.cluster.security.tls import PeerIdentity, identify_caller
from fedhp.cluster.worker.learner import Learner, run_codec
from fedhp.cluster.worker.session import WorkerSession
from fedhp.cluster.worker.tree_node import NotAvailable, OpenAverage, TreeNode

MAX_CALLS_PER_PEER = 4  # at once; more are refused
AVERAGE_SECONDS = 20.0  # that a child waits for the order of the worker above it
KEPT_EXCHANGES = 4  # of a round, whose models are still offered
MAX_SENDING = 64  # streams that send at once; more wait for their turn
PROBE_BUDGET_BYTES = 2 * limits.PROBE_BYTES  # that one peer may ask for at once
PROBE_BUDGET_RATE = limits.PROBE_BYTES / 10.0  # bytes per s by which it is refilled
# The first chunk is the share of a probe that comes out of buffers; the others are timed together.
PROBE_CHUNKS, MIN_PROBE_CHUNK_BYTES = 4, 1024

_DENIED = ("unknown", "role", "sender", "quarantined", "removed", "ticket")
_TOO_EARLY_OR_LATE = ("epoch", "attempt", "run", "stand")
STATUS_CODES = {
    **dict.fromkeys(_DENIED, grpc.StatusCode.PERMISSION_DENIED),
    **dict.fromkeys(_TOO_EARLY_OR_LATE, grpc.StatusCode.FAILED_PRECONDITION),
    "method": grpc.StatusCode.UNIMPLEMENTED,
    "streams": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "probes": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "busy": grpc.StatusCode.ABORTED,
    "patience": grpc.StatusCode.DEADLINE_EXCEEDED,
    "starting": grpc.StatusCode.UNAVAILABLE,
}

# What a pull needs a ticket for.
PULL_PURPOSES = {
    wire.TRAINED: TicketPurpose.TRAINED,
    wire.COMMITTED: TicketPurpose.COMMITTED,
    wire.PROBE: TicketPurpose.PROBE,
}

Context: TypeAlias = Any  # grpc.aio.ServicerContext


class ModelOffer:
    """The trained model of the current attempt, and the peers that may read it."""

    def __init__(self) -> None:
        self.attempt = INITIAL
        self._readers: list[frozenset[str]] = []  # by exchange of the round
        self._model: OutgoingModel | None = None
        self._offered = 0  # exchanges so far
        self._withdrawn = 0  # of them
        self._read: Counter[str] = Counter()  # exchanges that are over for each reader
        self._changed = asyncio.Condition()

    async def open(self, attempt: Attempt, readers: Sequence[Collection[str]]) -> None:
        """Begin a new attempt; the model of the previous one is no longer offered. readers: of
        each exchange of the round."""
        async with self._changed:
            self.attempt, self._readers = attempt, [frozenset(names) for names in readers]
            self._model, self._offered, self._withdrawn = None, 0, 0
            self._read.clear()
            self._changed.notify_all()

    async def put(
        self, attempt: Attempt, model: OutgoingModel, exchange: int = 0, *, until: float = math.inf
    ) -> None:
        """Offer the model with which an exchange begins. Only the last few are kept: readers that
        are further behind are waited for, until a moment on the monotonic clock."""
        oldest = exchange - KEPT_EXCHANGES
        async with self._changed:
            if oldest >= 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, until - time.monotonic())):
                        await self._changed.wait_for(lambda: self._is_read(oldest))
                model.withdraw(oldest)
                self._withdrawn = oldest + 1
            if attempt == self.attempt:
                self._model, self._offered = model, exchange + 1
                self._changed.notify_all()

    async def was_read(self, attempt: Attempt, *, reader: str, exchange: int) -> None:
        """A reader has the model of an exchange."""
        if len(self._readers) > 1 and attempt == self.attempt:
            async with self._changed:
                self._read[reader] = max(self._read[reader], exchange + 1)
                self._changed.notify_all()

    def _is_read(self, exchange: int) -> bool:
        return all(self._read[reader] > exchange for reader in self._readers[exchange])

    async def take(
        self, attempt: Attempt, *, reader: str, patience: float, exchange: int = 0
    ) -> OutgoingModel:
        """Wait for the model of this attempt, which a peer may learn of before this worker."""
        if exchange:  # its reader does not ask for those before it any more
            await self.was_read(attempt, reader=reader, exchange=exchange - 1)
        try:
            async with asyncio.timeout(patience), self._changed:
                while True:
                    if attempt < self.attempt:
                        raise NotAvailable("attempt", "this worker is at a later attempt")
                    if attempt == self.attempt:
                        if exchange >= len(self._readers) or reader not in self._readers[exchange]:
                            raise Refused("role", "it is not a reader of this worker's model")
                        if exchange < self._withdrawn:
                            why = "this worker is at a later exchange of the round"
                            raise NotAvailable("attempt", why)
                        if exchange < self._offered:
                            assert self._model is not None
                            return self._model
                    await self._changed.wait()
        except TimeoutError:
            raise NotAvailable("patience", "the model was not ready in time") from None


class ProbeBudget:
    """How many probe bytes each peer may ask for, so that none can fill the link."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}  # bytes left, and as of when

    def spend(self, peer: str, size: int) -> None:
        """Take so many bytes, or raise NotAvailable."""
        now = self._clock()
        left, then = self._left.get(peer, (PROBE_BUDGET_BYTES, now))
        left = min(PROBE_BUDGET_BYTES, left + (now - then) * PROBE_BUDGET_RATE)
        if size > left:
            raise NotAvailable("probes", "this peer asked for too many probe bytes recently")
        self._left[peer] = (left - size, now)


class PeerService:
    """The methods of the gRPC service `Peer`."""

    def __init__(
        self,
        session: WorkerSession,
        offer: ModelOffer,
        *,
        average: OpenAverage | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.learner: Learner | None = None  # set once it is built
        self._session = session
        self._offer = offer
        self._average = average or OpenAverage()
        self._limits = CallLimits(at_once=MAX_CALLS_PER_PEER, window=limits.WORKER_LIMITS.window)
        self._sending = asyncio.Semaphore(MAX_SENDING)
        self._probes = ProbeBudget(clock)

    async def Pull(self, requests: Messages[wire.PullRequest], context: Context) -> None:
        """Stream a model, or the bytes of a probe."""
        async with self._answering(context, "pull") as caller:
            peer, request = caller.name, await requests.only()
            self._session.guard.check(
                request.envelope, peer=peer, roles=caller.roles, rule=CALL_RULES["Pull"]
            )
            check_pull(request)
            committed = request.wanted == wire.COMMITTED
            version = Attempt.from_wire(request.stand) if committed else INITIAL
            attempt = self._check_partner(peer, request, PULL_PURPOSES[request.wanted], version)
            if request.wanted == wire.PROBE:
                self._probes.spend(peer, request.bytes)
                envelope = self._session.envelope(attempt)
                await self._send(_probe_chunks(request.bytes, envelope), context)
                return
            if committed:
                encoded = await self._committed_model(version)
            else:
                exchange = request.exchange
                outgoing = await self._offer.take(
                    attempt, reader=peer, patience=request.patience, exchange=exchange
                )
                encoded = await run_codec(
                    outgoing.codec, outgoing.take, peer, request.base, exchange
                )
                if self._offer.attempt != attempt:
                    raise NotAvailable("attempt", "this worker is at a later attempt")
            # Made just before it is sent.
            envelope = self._session.envelope(attempt)
            await self._send(encoded.chunks(envelope), context)
            if not committed:
                await self._offer.was_read(attempt, reader=peer, exchange=request.exchange)

    async def Swap(self, chunks: Messages[wire.Chunk], context: Context) -> None:
        """AD-PSGD: take the mean of the caller's model and the own one, return the own one.

        The mean is taken in one step of the event loop: completely or not at all. If the
        connection breaks after it, the caller keeps its own model, and the mean of all models
        has moved by half the difference of the two, divided by their number.
        """
        async with self._answering(context, "swap") as caller:
            peer = caller.name
            first, attempt = await self._first_chunk(chunks, caller, "Swap", TicketPurpose.SWAP)
            if (learner := self.learner) is None:
                raise NotAvailable("starting", "this worker is not ready yet")
            if not learner.asynchronous:
                raise Refused("kind", "this run does not average models in pairs")
            _check_not_swapping(learner)
            receiver = ModelReceiver(learner.codec)
            chunk: wire.Chunk | None = first
            while chunk is not None:
                receiver.push(chunk)
                self._session.received_bytes += len(chunk.data)
                if chunk is first:
                    failpoints.reach("worker.receiving", self._session.attempt.round_index)
                async with asyncio.timeout(limits.CHUNK_SECONDS):
                    chunk = await anext(chunks, None)
            theirs = await run_codec(learner.codec, receiver.finish)
            _check_not_swapping(learner)
            # Once more: the same ticket may have been used, or its caller removed, meanwhile.
            self._check_partner(peer, first, TicketPurpose.SWAP)
            self._session.tickets.swapped(peer, attempt, first.ticket)
            mine = learner.current()
            learner.average(theirs)
            self._session.note(events.Averaged(peer))
            encoded = await run_codec(learner.codec, learner.codec.encode, mine)
            await self._send(encoded.chunks(self._reply_to(first)), context)

    async def Average(self, chunks: Messages[wire.Chunk], context: Context) -> None:
        """A group average: take the sums of a child in the tree, and return the result to it.

        Only a child that this worker's order names can send or get anything.
        """
        async with self._answering(context, "average") as caller:
            first, attempt = await self._first_chunk(
                chunks, caller, "Average", TicketPurpose.AVERAGE, encodings=GROUP_STREAMS
            )
            node = await self._average.take(attempt, child=caller.name, patience=AVERAGE_SECONDS)
            child = node.children[caller.name]
            node.reader(child)
            await self._exchange_sums(node, child, first, chunks, context)

    async def refuse_method(self, refusal: Refused, context: Context) -> None:
        """A call of something that no worker offers."""
        async with self._answering(context, "call"):
            raise refusal

    async def _exchange_sums(
        self,
        node: TreeNode,
        child: int,
        first: wire.Chunk,
        source: AsyncIterator[wire.Chunk],
        context: Context,
    ) -> None:
        """Both directions of one link of the tree."""
        own = asyncio.current_task()
        assert own is not None
        node.keep(own)
        writing = asyncio.ensure_future(self._send_result(node, child, first, context))
        why = "unreachable"
        try:
            chunk: wire.Chunk | None = first
            while chunk is not None:
                self._session.received_bytes += len(chunk.data)
                node.take(child, chunk)
                failpoints.reach("worker.reducing", node.attempt.round_index)
                chunk = await anext(source, None)
            if not node.readers[child].complete:
                raise NotAvailable("attempt", "the stream ended before its last piece")
            await writing
            why = ""
        except (BadModel, Refused) as error:
            why = f"refused: {error.reason}"
            raise
        except asyncio.CancelledError:
            if not node.closed:
                raise
            raise NotAvailable("attempt", "this worker is at a later attempt") from None
        finally:
            writing.cancel()
            if why:  # also when the connection breaks, which cancels this call
                node.lose(child, why)

    async def _send_result(
        self, node: TreeNode, child: int, first: wire.Chunk, context: Context
    ) -> None:
        envelope = self._reply_to(first)
        writer = PieceWriter(node.codec, node.kind_for(child), envelope)
        async for data in node.pieces_down(child):
            await context.write(writer.chunk(data))
            self._session.sent_bytes += len(data)

    # --- inside ----------------------------------------------------------------------------

    @asynccontextmanager
    async def _answering(self, context: Context, what: str) -> AsyncIterator[PeerIdentity]:
        """Who calls, if it may; nothing of the call is read before the block. An error in the
        block aborts the call with a code and the reason."""
        caller = await identify_caller(context)
        peer = caller.name
        self._session.expiry.see(peer, caller.certificate)
        try:
            refusal: Refused | None = None
            try:
                self._session.tickets.check_member(peer)
                self._session.guard.enter(peer)
            except Refused as refused:
                refusal = refused
            cost = 1.0 if refusal is None else REFUSAL_COST
            async with self._limits.one_call(peer, connection=context.peer(), cost=cost):
                if refusal is not None:
                    raise refusal
                yield caller
            return
        except (Refused, BadModel) as error:
            if isinstance(error, Refused) and error.bad:
                self._limits.charge(peer, REFUSAL_COST)
            self._session.note_refusal(peer, error, what=what)
            reason, text = error.reason, error.text
        except NotAvailable as error:
            reason, text = error.reason, error.text
        except TimeoutError:
            reason, text = "patience", "the next chunk did not come in time"
        code = STATUS_CODES.get(reason, grpc.StatusCode.INVALID_ARGUMENT)
        await context.abort(code, f"{reason}: {text}")

    def _check_partner(
        self,
        peer: str,
        message: wire.PullRequest | wire.Chunk,
        purpose: TicketPurpose,
        version: Attempt = INITIAL,
    ) -> Attempt:
        """Only a partner that the coordinator named for this attempt, which is returned, gets
        anything."""
        attempt, own = Attempt.from_wire(message.envelope), self._session.attempt
        self._session.tickets.check(
            message.ticket,
            run=self._session.guard.run or "",
            caller=peer,
            purpose=purpose,
            attempt=attempt,
            version=version,
        )
        # A turn of an asynchronous algorithm may outlast its round, and a trained model waits
        # for its attempt; the others are over with the round that their ticket names.
        now = own if attempt.number else Attempt.after(own, epoch=own.epoch)
        if purpose is TicketPurpose.PROBE and attempt < now:
            raise NotAvailable("attempt", "this worker is at a later attempt")
        if purpose is TicketPurpose.COMMITTED and version.round_index + 1 < own.round_index:
            raise NotAvailable("stand", "this worker is at a later round")
        return attempt

    async def _first_chunk(
        self,
        chunks: AsyncIterator[wire.Chunk],
        caller: PeerIdentity,
        call: str,
        purpose: TicketPurpose,
        *,
        encodings: Collection[str] = ENCODINGS,
    ) -> tuple[wire.Chunk, Attempt]:
        """With which a stream begins, and the attempt that it names."""
        async with asyncio.timeout(limits.CHUNK_SECONDS):
            first = await anext(chunks, None)
        if first is None:  # its caller has given up meanwhile
            raise NotAvailable("attempt", "the stream ended before its first chunk")
        self._session.guard.check(
            first.envelope, peer=caller.name, roles=caller.roles, rule=CALL_RULES[call]
        )
        check_first_chunk(first, encodings=encodings)
        return first, self._check_partner(caller.name, first, purpose)

    def _reply_to(self, message: wire.Chunk) -> wire.Envelope:
        """An envelope that names the attempt of the question; made just before it is sent."""
        return self._session.envelope(Attempt.from_wire(message.envelope))

    async def _committed_model(self, version: Attempt) -> Encoded:
        if (learner := self.learner) is None:
            raise NotAvailable("starting", "this worker is not ready yet")
        if learner.asynchronous:  # it has one model, which changes all the time
            row = learner.current()
        else:
            model = learner.store.get(version)
            if model is None:
                raise NotAvailable("stand", "this worker does not have the model of that attempt")
            row = model.row[: learner.layout.mixed]
        return await run_codec(learner.codec, learner.codec.encode, row)

    async def _send(self, chunks: Iterable[wire.Chunk], context: Context) -> None:
        async with self._sending:
            # The caller's clock starts with the headers: from here on nothing has to be waited for.
            await context.send_initial_metadata(())
            first = True
            for chunk in chunks:
                async with asyncio.timeout(limits.CHUNK_SECONDS):
                    await context.write(chunk)
                self._session.sent_bytes += len(chunk.data)
                if first:
                    failpoints.reach("worker.sending", self._session.attempt.round_index)
                    first = False


def _check_not_swapping(learner: Learner) -> None:
    if learner.swapping:
        raise NotAvailable("busy", "this worker is in a swap that it began itself")


def _probe_chunks(size: int, envelope: wire.Envelope) -> Iterator[wire.Chunk]:
    """Random bytes, which no link can compress."""
    step = max(math.ceil(size / PROBE_CHUNKS), MIN_PROBE_CHUNK_BYTES)
    step = min(step, limits.MODEL_CHUNK_BYTES)
    data = os.urandom(min(size, step))
    parts = [data[: size - start] for start in range(0, size, step)]
    return Encoded.of("raw", parts).chunks(envelope, step)
