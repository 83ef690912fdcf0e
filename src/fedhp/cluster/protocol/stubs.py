"""What a caller of a coordinator or of a peer has: one callable per method of the service."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from fedhp.cluster.protocol import wire_pb2 as wire


class _Stub:
    def __init__(self, channel: Any, service: ServiceDescriptor) -> None:
        for method in service.methods:
            kind = "_".join(
                "stream" if streams else "unary"
                for streams in (method.client_streaming, method.server_streaming)
            )
            call = getattr(channel, kind)(
                f"/{service.full_name}/{method.name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
                _registered_method=True,
            )
            setattr(self, method.name, call)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the service has no method {name}")


class CoordinatorStub(_Stub):
    """The calls of workers and operators."""

    def __init__(self, channel: Any) -> None:
        super().__init__(channel, wire.DESCRIPTOR.services_by_name["Coordinator"])


class PeerStub(_Stub):
    """The calls between workers."""

    def __init__(self, channel: Any) -> None:
        super().__init__(channel, wire.DESCRIPTOR.services_by_name["Peer"])
