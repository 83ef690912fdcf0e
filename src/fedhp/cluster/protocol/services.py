"""The two services of wire.proto as tables: handlers for a server, calls for a client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire

PACKAGE = "fedhp.cluster.v1"


@dataclass(frozen=True, slots=True)
class Method:
    """One call: what goes there and what comes back, each once or as a stream."""

    request: Any
    reply: Any
    requests: bool = False  # a stream of them
    replies: bool = False


COORDINATOR: Mapping[str, Method] = {
    "Join": Method(wire.JoinRequest, wire.JoinReply),
    "Next": Method(wire.NextRequest, wire.Order),
    "Report": Method(wire.RoundReport, wire.Receipt),
    "Beat": Method(wire.BeatRequest, wire.BeatReply),
    "Leave": Method(wire.LeaveRequest, wire.Receipt),
    "Status": Method(wire.StatusRequest, wire.StatusReply),
    "Command": Method(wire.CommandRequest, wire.Receipt),
}
PEER: Mapping[str, Method] = {
    "Pull": Method(wire.PullRequest, wire.Chunk, replies=True),
    "Swap": Method(wire.Chunk, wire.Chunk, requests=True, replies=True),
}
SERVICES = {"Coordinator": COORDINATOR, "Peer": PEER}

# The largest message either side takes; a stopped peer is noticed by deadlines and beats.
OPTIONS = (
    ("grpc.max_receive_message_length", limits.MESSAGE_BYTES),
    ("grpc.max_send_message_length", limits.MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.so_reuseport", 0),
)


def handler(service: str, implementation: Any) -> grpc.GenericRpcHandler:
    """An object whose coroutine methods are named as the calls, ready for a server."""
    kinds = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    table = {
        name: kinds[method.requests, method.replies](
            getattr(implementation, name),
            request_deserializer=method.request.FromString,
            response_serializer=method.reply.SerializeToString,
        )
        for name, method in SERVICES[service].items()
    }
    return grpc.method_handlers_generic_handler(f"{PACKAGE}.{service}", table)


def call(channel: grpc.aio.Channel, service: str, name: str) -> Any:
    """The call of this name over a channel: call(request, timeout=...)."""
    method = SERVICES[service][name]
    kinds = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
        (True, True): channel.stream_stream,
    }
    return kinds[method.requests, method.replies](
        f"/{PACKAGE}.{service}/{name}",
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.reply.FromString,
    )
