"""Servers of tests: what a coordinator or a peer answers, without the checks of the real ones."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from fedhp.cluster.protocol.calls import COORDINATOR_SERVICE, PEER_SERVICE


def add_service(server: Any, servicer: object) -> None:
    """The methods that this object has, of the service whose methods they are."""
    for service in (COORDINATOR_SERVICE, PEER_SERVICE):
        handlers = {}
        for method in service.methods:
            if not hasattr(servicer, method.name):
                continue
            kind = "_".join(
                "stream" if streams else "unary"
                for streams in (method.client_streaming, method.server_streaming)
            )
            handlers[method.name] = getattr(grpc, f"{kind}_rpc_method_handler")(
                getattr(servicer, method.name),
                GetMessageClass(method.input_type).FromString,
                GetMessageClass(method.output_type).SerializeToString,
            )
        if handlers:
            handler = grpc.method_handlers_generic_handler(service.full_name, handlers)
            server.add_generic_rpc_handlers((handler,))
