"""The Peer service: what this worker gives to its peers, and to whom.

A trained model goes to the readers of its order alone, for exactly that attempt; a committed one
to any worker of the run; probes within a budget. Every refusal has a code and "reason: text",
and what an honest peer never sends is a strike against its sender.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeAlias

import grpc
import grpc.aio

from fedhp.cluster import failpoints
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.codec import BadModel, Encoded
from fedhp.cluster.protocol.guard import RULES, Refused
from fedhp.cluster.protocol.message_checks import check_first_chunk, check_pull
from fedhp.cluster.security.tls import peer_of
from fedhp.cluster.worker.learner import Learner
from fedhp.cluster.worker.model_offer import ModelOffer, NotNow, ProbeBudget, Streams
from fedhp.cluster.worker.session import WorkerSession
from fedhp.errors import IdentityError

PROBE_CHUNKS, PROBE_CHUNK_BYTES = 16, 1024  # a probe comes in so many, but none so small

CODES = {
    "unknown": grpc.StatusCode.PERMISSION_DENIED,
    "role": grpc.StatusCode.PERMISSION_DENIED,
    "sender": grpc.StatusCode.PERMISSION_DENIED,
    "quarantined": grpc.StatusCode.PERMISSION_DENIED,
    "streams": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "probes": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "busy": grpc.StatusCode.ABORTED,
    "patience": grpc.StatusCode.DEADLINE_EXCEEDED,
    "epoch": grpc.StatusCode.FAILED_PRECONDITION,
    "attempt": grpc.StatusCode.FAILED_PRECONDITION,
    "run": grpc.StatusCode.FAILED_PRECONDITION,
    "stand": grpc.StatusCode.FAILED_PRECONDITION,
    "starting": grpc.StatusCode.UNAVAILABLE,
}

Context: TypeAlias = Any  # grpc.aio.ServicerContext


class PeerService:
    """The methods of the service `Peer`."""

    def __init__(
        self,
        member: WorkerSession,
        shelf: ModelOffer,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.learner: Learner | None = None  # as soon as it is there
        self._member = member
        self._shelf = shelf
        self._streams = Streams()
        self._probes = ProbeBudget(clock)

    async def Pull(self, request: wire.PullRequest, context: Context) -> None:
        """A model or some bytes, as a stream."""

        async def answer(peer: str) -> None:
            self._admit(request.envelope, context, "Pull")
            check_pull(request)
            with self._streams.one(peer):
                if request.wanted == wire.PROBE:
                    self._probes.spend(peer, request.bytes)
                    await self._send(_probe(request.bytes, self._reply(request)), context)
                    return
                if request.wanted == wire.TRAINED:
                    encoded = await self._trained(request, peer)
                else:
                    encoded = await self._committed(request)
                await self._send_model(encoded, self._reply(request), context)

        await self._answer(context, "pull", answer)

    async def Swap(self, chunks: AsyncIterator[wire.Chunk], context: Context) -> None:
        """AD-PSGD: take the mean of the caller's model and the own one, give back the own.

        The mean is taken at one instant of the event loop: it is done wholly or not at all. If
        the connection breaks after it, the caller keeps its own model, and the mean of all
        models has moved by half the difference of the two, over their number.
        """

        async def answer(peer: str) -> None:
            async with asyncio.timeout(limits.CHUNK_SECONDS):
                first = await anext(aiter(chunks), None)
            if first is None:
                raise Refused("missing", "the stream is empty")
            self._admit(first.envelope, context, "Swap")
            check_first_chunk(first)
            learner = self._ready()
            if not learner.asynchronous:
                raise Refused("kind", "the models of this run are not averaged in pairs")
            with self._streams.one(peer):
                self._check_free()
                receiver = learner.codec.receiver()
                receiver.push(first)
                failpoints.reach("worker.receiving", self._member.attempt.round_index)
                async for chunk in _timely(chunks):
                    receiver.push(chunk)
                theirs = await asyncio.to_thread(receiver.finish)
                self._check_free()
                mine = learner.current()
                learner.average(theirs)
                self._member.note("averaged", {"peer": peer})
                encoded = await asyncio.to_thread(learner.codec.encode, mine)
                envelope = self._member.envelope(Attempt.from_envelope(first.envelope))
                await self._send_model(encoded, envelope, context)

        await self._answer(context, "swap", answer)

    # --- inside ----------------------------------------------------------------------------

    async def _answer(
        self, context: Context, what: str, answer: Callable[[str], Awaitable[None]]
    ) -> None:
        """Answer, or refuse with a code and the reason."""
        try:
            peer = peer_of(context).name
        except IdentityError as error:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"sender: {error.problem}")
        try:
            await answer(peer)
            return
        except (Refused, BadModel) as error:
            self._member.refused(peer, error, what=what)
            reason, text = error.reason, getattr(error, "text", str(error))
        except NotNow as error:
            reason, text = error.reason, error.text
        except TimeoutError:
            reason, text = "patience", "the next chunk did not come in time"
        await context.abort(
            CODES.get(reason, grpc.StatusCode.INVALID_ARGUMENT), f"{reason}: {text}"
        )

    def _admit(self, envelope: wire.Envelope, context: Context, call: str) -> None:
        caller = peer_of(context)
        self._member.guard.check(envelope, peer=caller.name, roles=caller.roles, rule=RULES[call])

    def _ready(self) -> Learner:
        if self.learner is None:
            raise NotNow("starting", "this worker is not ready yet")
        return self.learner

    def _check_free(self) -> None:
        if self._shelf.swapping:
            raise NotNow("busy", "this worker is in a swap of its own")

    async def _trained(self, request: wire.PullRequest, peer: str) -> Encoded:
        attempt = Attempt.from_envelope(request.envelope)
        outgoing = await self._shelf.take(attempt, reader=peer, patience=request.patience)
        encoded = await asyncio.to_thread(outgoing.take, peer, request.base)
        if self._shelf.attempt != attempt:
            raise NotNow("attempt", "this worker is at a later attempt")
        return encoded

    async def _committed(self, request: wire.PullRequest) -> Encoded:
        learner = self._ready()
        if learner.asynchronous:  # there is one model, which moves all the time
            row = learner.current()
        else:
            model = learner.keep.get(Attempt.from_wire(request.stand))
            if model is None:
                raise NotNow("stand", "this worker does not have the model of that stand")
            row = model.row[: learner.layout.mixed]
        return await asyncio.to_thread(learner.codec.encode, row)

    def _reply(self, request: wire.PullRequest) -> wire.Envelope:
        """The answer names the attempt it was asked for."""
        return self._member.envelope(Attempt.from_envelope(request.envelope))

    async def _send_model(
        self, encoded: Encoded, envelope: wire.Envelope, context: Context
    ) -> None:
        await self._send(self._ready().codec.chunks(encoded, envelope), context)

    async def _send(self, chunks: Iterable[wire.Chunk], context: Context) -> None:
        async with self._streams.sending:
            # The caller's clock starts with the headers: there is nothing more to wait for.
            await context.send_initial_metadata(())
            first = True
            for chunk in chunks:
                async with asyncio.timeout(limits.CHUNK_SECONDS):
                    await context.write(chunk)
                if first:
                    failpoints.reach("worker.sending", self._member.attempt.round_index)
                    first = False


async def _timely(chunks: AsyncIterator[wire.Chunk]) -> AsyncIterator[wire.Chunk]:
    """The rest of a stream; TimeoutError where it stalls."""
    source = aiter(chunks)
    while True:
        async with asyncio.timeout(limits.CHUNK_SECONDS):
            chunk = await anext(source, None)
        if chunk is None:
            return
        yield chunk


def _probe(size: int, envelope: wire.Envelope) -> Iterator[wire.Chunk]:
    """Bytes that no link can compress."""
    step = min(max(size // PROBE_CHUNKS, PROBE_CHUNK_BYTES), limits.CHUNK_BYTES)
    data = os.urandom(min(size, step))
    digest = hashlib.sha256()
    for start in range(0, size, step):
        part = data[: size - start]
        digest.update(part)
        chunk = wire.Chunk(data=part)
        if not start:
            chunk.envelope.CopyFrom(envelope)
            chunk.total, chunk.encoding = size, "raw"
        if start + len(part) == size:
            chunk.digest = digest.digest()
        yield chunk
