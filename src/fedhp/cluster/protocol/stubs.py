"""What a caller of a coordinator or of a peer has: one callable per method of the service."""

from __future__ import annotations

from functools import partial
from typing import Any

from google.protobuf.message_factory import GetMessageClass

from fedhp.cluster.protocol import wire_pb2 as wire


class Stub:
    """The calls of one service over a channel."""

    def __init__(self, channel: Any, *, service: str) -> None:
        description = wire.DESCRIPTOR.services_by_name[service]
        for method in description.methods:
            kind = "_".join(
                "stream" if streams else "unary"
                for streams in (method.client_streaming, method.server_streaming)
            )
            call = getattr(channel, kind)(
                f"/{description.full_name}/{method.name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
                _registered_method=True,
            )
            setattr(self, method.name, call)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the service has no method {name}")


CoordinatorStub = partial(Stub, service="Coordinator")  # the calls of workers and operators
PeerStub = partial(Stub, service="Peer")  # those between workers
