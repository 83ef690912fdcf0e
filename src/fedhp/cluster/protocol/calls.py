"""How a server takes calls, and how many one peer, by its certificate, may have open and make.

gRPC itself would read and parse a request before it asks anybody. Here every method takes a stream
of messages that are read and parsed one by one, inside the service's own checks; for a caller it
is the same on the wire. What is not read waits in the window of its stream (limits.py). A call
beyond the limits is held for a while, unread, before it is refused: a flood slows down itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.guard import Refused
from fedhp.cluster.protocol.message_checks import one_line

M = TypeVar("M", bound=Message)
Context: TypeAlias = Any  # grpc.aio.ServicerContext
Handler: TypeAlias = Callable[["Messages[Any]", Context], Awaitable[Any]]

COORDINATOR_SERVICE: ServiceDescriptor = wire.DESCRIPTOR.services_by_name["Coordinator"]
PEER_SERVICE: ServiceDescriptor = wire.DESCRIPTOR.services_by_name["Peer"]
METHOD_LENGTH = 100  # of a method's name in a refusal
CLOSING_SECONDS = 1.0  # until gRPC says that a caller without a message has hung up
CALLS_AT_ONCE = 8  # of one peer; an honest one has at most four
CALLS_PER_SECOND, CALLS_IN_A_BURST = 150.0, 300.0
REFUSAL_COST = 10.0  # calls; of a refusal that an honest peer does not cause again and again
HOLD_SECONDS, LONGEST_HOLD_SECONDS = 0.02, 10.0  # per call that is held already, and at most
CONNECTIONS = 4  # of one peer with open calls; an honest one has one or two
# In the windows of held calls; beyond that calls are refused at once.
HELD_BYTES_PER_PEER, HELD_BYTES = 32 << 20, 128 << 20


class Service(Protocol):
    """One handler per method of the service, and this one for all other calls."""

    async def refuse_method(self, refusal: Refused, context: Context) -> None:
        """End a call of a method that this service does not have."""


@dataclass(slots=True)
class Messages(Generic[M]):
    """The messages of one call, each read and parsed when it is asked for."""

    context: Context
    kind: type[M]
    most: int  # bytes of one message
    size: int = 0  # bytes of the last one

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> M:
        content = await self.context.read()
        if content is grpc.aio.EOF:
            raise StopAsyncIteration
        self.size = len(content)
        if self.size > self.most:
            raise Refused("size", f"a message has {self.size} bytes, over {self.most}")
        try:
            message: M = self.kind.FromString(content)
            return message
        except DecodeError:
            text = f"{self.size} bytes are no {self.kind.DESCRIPTOR.name} of this protocol"
            raise Refused("encoding", text) from None

    async def only(self) -> M:
        """The one message of a call that has one."""
        try:
            async with asyncio.timeout(limits.REQUEST_SECONDS):
                return await anext(self)
        except TimeoutError:
            raise Refused("patience", "the message did not come in time") from None
        except StopAsyncIteration:
            pass
        # If the message was too large for gRPC or the caller has hung up, gRPC cancels this task.
        # It ends here in any case: the refusal only has to be counted.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(CLOSING_SECONDS)
        raise Refused("empty", f"no message came, or one of far more than {self.most} bytes")


class ServiceMethods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The methods of a service for a gRPC server, and an answer to calls of all others."""

    def __init__(
        self, service: Service, description: ServiceDescriptor, bounds: limits.ServerLimits
    ) -> None:
        self._service = service
        self._handlers = {
            f"/{description.full_name}/{method.name}": _handler(
                getattr(service, method.name), method, most=bounds.message
            )
            for method in description.methods
        }

    def service(self, handler_call_details: Any) -> Any:
        """Called by gRPC for every call, before anything of it is read."""
        handler = self._handlers.get(handler_call_details.method)
        return self._unknown(handler_call_details.method) if handler is None else handler

    def _unknown(self, method: str) -> Any:
        name = one_line(method, most=METHOD_LENGTH)
        refusal = Refused("method", f"there is no {name!r} here; does the caller run this version?")

        async def refuse(_: Any, context: Context) -> None:
            await self._service.refuse_method(refusal, context)

        return grpc.stream_unary_rpc_method_handler(refuse)


def _handler(handle: Handler, method: MethodDescriptor, *, most: int) -> Any:
    request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)

    async def call(_: Any, context: Context) -> Any:
        return await handle(Messages(context, request, most=most), context)

    if method.server_streaming:
        return grpc.stream_stream_rpc_method_handler(call, None, response.SerializeToString)
    return grpc.stream_unary_rpc_method_handler(call, None, response.SerializeToString)


class CallLimits:
    """The open calls of each peer, and how many it may make at the moment."""

    def __init__(
        self,
        *,
        at_once: int = CALLS_AT_ONCE,
        window: int = limits.REQUEST_WINDOW_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """window: bytes that may have arrived of a call that is held."""
        self._at_once, self._window = at_once, window
        self._clock = clock
        self._open: dict[str, Counter[str]] = {}  # calls by peer and connection
        self._held: Counter[str] = Counter()
        self._budgets: dict[str, tuple[float, float]] = {}  # calls left, and as of when
        self.refused = 0  # calls so far

    @asynccontextmanager
    async def one_call(
        self, peer: str, *, connection: str = "", cost: float = 1.0
    ) -> AsyncIterator[None]:
        """Count one call of this peer for as long as it is open; Refused("streams") after a while
        if there are too many."""
        calls = self._open.get(peer, Counter())
        connected = connection in calls or len(calls) < CONNECTIONS
        room = not calls or (connected and calls.total() < self._at_once)
        # What costs more than all that a peer may have could never be called.
        if not room or not self.charge(peer, min(cost, CALLS_IN_A_BURST), later=False):
            await self._hold(peer)
            self.refused += 1
            raise Refused(
                "streams",
                f"this peer has {self._at_once} open calls or {CONNECTIONS} connections already, "
                "or made too many calls in a second",
            )
        calls = self._open.setdefault(peer, calls)
        calls[connection] += 1
        try:
            yield
        finally:
            calls[connection] -= 1
            if not calls[connection]:
                del calls[connection]
            if not calls:
                self._open.pop(peer, None)

    def charge(self, peer: str, cost: float, *, later: bool = True) -> bool:
        """Count what a call costs; whether so much was left. If not, calls that come later pay
        for it, or nothing is counted."""
        now = self._clock()
        left, then = self._budgets.get(peer, (CALLS_IN_A_BURST, now))
        left = min(CALLS_IN_A_BURST, left + (now - then) * CALLS_PER_SECOND)
        enough = left >= cost
        if enough or later:
            left = max(left - cost, -CALLS_IN_A_BURST)
        self._budgets[peer] = (left, now)
        return enough

    async def _hold(self, peer: str) -> None:
        if (self._held[peer] + 1) * self._window > HELD_BYTES_PER_PEER or (
            self._held.total() + 1
        ) * self._window > HELD_BYTES:
            return
        self._held[peer] += 1
        try:
            await asyncio.sleep(min(HOLD_SECONDS * self._held[peer], LONGEST_HOLD_SECONDS))
        finally:
            self._held[peer] -= 1
            if not self._held[peer]:
                del self._held[peer]
