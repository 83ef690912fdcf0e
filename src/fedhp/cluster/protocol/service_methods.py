"""How a server takes calls: nothing of a call is read before its service has let it in.

gRPC itself would read and parse a request before it asks anybody. Here every method takes a stream
of messages that are read and parsed one by one, inside the service's own checks; for a caller it
is the same on the wire. What is not read waits in the window of its stream (limits.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
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


class Service(Protocol):
    """One handler per method of the service, and this one for all other calls."""

    async def refuse_method(self, refusal: Refused, context: Context) -> None:
        """End a call of a method that this service does not have."""


class Messages(Generic[M]):
    """The messages of one call, each read and parsed when it is asked for."""

    def __init__(self, context: Context, kind: type[M], *, most: int) -> None:
        self._context, self._kind, self._most = context, kind, most  # bytes of one message
        self.size = 0  # bytes of the last one

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> M:
        content = await self._context.read()
        if content is grpc.aio.EOF:
            raise StopAsyncIteration
        self.size = len(content)
        if self.size > self._most:
            raise Refused("size", f"a message has {self.size} bytes, over {self._most}")
        try:
            message: M = self._kind.FromString(content)
            return message
        except DecodeError:
            text = f"{self.size} bytes are no {self._kind.DESCRIPTOR.name} of this protocol"
            raise Refused("encoding", text) from None

    async def only(self) -> M:
        """The one message of a call that has one."""
        try:
            async with asyncio.timeout(limits.REQUEST_SECONDS):
                async for message in self:
                    return message
        except TimeoutError:
            raise Refused("patience", "the message did not come in time") from None
        # If the message was too large for gRPC or the caller has hung up, gRPC cancels this task.
        # It ends here in any case: the refusal only has to be counted.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(CLOSING_SECONDS)
        raise Refused("empty", f"no message came, or one of far more than {self._most} bytes")


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
