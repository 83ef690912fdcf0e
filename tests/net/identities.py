"""Identities for tests, also such as fedhp would never issue, and servers that show them."""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.addresses import parse_address
from fedhp.cluster.protocol.guard import CallRule, Envelopes, Guard, Refused
from fedhp.cluster.security import tls
from fedhp.cluster.security.certificates import init_authority, issue
from fedhp.cluster.security.identity import ROLES, Identity
from fedhp.cluster.security.tls import AllowList, identify_caller, open_channel
from waiting import PATIENCE

TODAY = datetime.now(UTC)
LONG_AGO, FAR_AHEAD = TODAY - timedelta(days=400), TODAY + timedelta(days=400)
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
DENIED = grpc.StatusCode.PERMISSION_DENIED


async def why_refused(
    identity: Identity,
    address: str,
    *,
    name: str | None,
    error: grpc.aio.AioRpcError | None = None,
) -> str:
    """Why a call to this address failed, as text."""
    return (await tls.cause_of(identity, address, name=name, error=error)).text


def certificate(file: Path) -> x509.Certificate:
    """The certificate in a file."""
    return x509.load_pem_x509_certificate(file.read_bytes())


def sign(folder: Path, name: str, *, uris: list[str], key: rsa.RSAPrivateKey | None = None) -> None:
    """A certificate of the authority as fedhp would never issue it."""
    authority = certificate(folder / "ca.crt")
    signer = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    own = key or ec.generate_private_key(ec.SECP256R1())
    names = [x509.DNSName(name), *map(x509.UniformResourceIdentifier, uris)]
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(authority.subject)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(authority.not_valid_before_utc)
        .not_valid_after(authority.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(signer, hashes.SHA256())
    )
    (folder / f"{name}.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    handle = os.open(folder / f"{name}.key", os.O_WRONLY | os.O_CREAT, 0o600)
    with open(handle, "wb") as stream:
        stream.write(
            own.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )


def make_certificates(folder: Path, workers: int) -> Path:
    """An authority, a coordinator "boss", an operator and the workers w0, w1, ..."""
    init_authority(folder)
    issue(folder, "boss", hosts=["127.0.0.1"], roles=["coordinator"])
    issue(folder, "operator", roles=["operator"])
    for worker in range(workers):
        issue(folder, f"w{worker}", hosts=["127.0.0.1"])
    return folder


def make_ours(folder: Path) -> Path:
    """An authority with a server, two workers, one for another host, and two out of their time."""
    init_authority(folder, now=TODAY - timedelta(days=800))
    issue(folder, "server", hosts=["localhost", "127.0.0.1", "::1"], roles=["coordinator"])
    issue(folder, "nowhere", hosts=["elsewhere.example"])
    for name in ("worker-1", "worker-2"):
        issue(folder, name)
    issue(folder, "old", days=30, now=LONG_AGO)
    issue(folder, "early", days=30, now=FAR_AHEAD)
    return folder


def make_theirs(folder: Path) -> Path:
    """Another authority, with a worker of the same name."""
    init_authority(folder)
    issue(folder, "worker-1")
    return folder


class Doorkeeper:
    """One call: the request is the caller's envelope, the reply who it is by its certificate."""

    def __init__(self, allowed: AllowList, roles: tuple[str, ...] = ROLES) -> None:
        self.allowed = allowed
        self._guard = Guard(run=None)
        self._rule = CallRule(frozenset(roles), "any", without_run=True)
        self.calls = 0

    async def knock(self, request: wire.Envelope, context: Any) -> bytes:
        self.calls += 1
        peer = await identify_caller(context)
        roles = frozenset(() if self.allowed.refusal(peer.name) else peer.roles)
        try:
            self._guard.check(request, peer=peer.name, roles=roles, rule=self._rule)
        except Refused as refused:
            await context.abort(DENIED, str(refused))
        return f"{peer.name} {' '.join(sorted(peer.roles))}".encode()


@asynccontextmanager
async def serving(
    identity: Identity,
    door: Doorkeeper | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
) -> AsyncIterator[tuple[str, Doorkeeper]]:
    door = door or Doorkeeper(AllowList(None))
    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(
        door.knock, request_deserializer=wire.Envelope.FromString
    )
    handlers = grpc.method_handlers_generic_handler("test.Door", {"Knock": method})
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_secure_port(f"{host}:{port}", tls.server_credentials(identity))
    await server.start()
    try:
        yield f"{host}:{port}", door
    finally:
        await server.stop(None)


async def knock(channel: grpc.aio.Channel, sender: str) -> str:
    call = channel.unary_unary(
        "/test.Door/Knock", request_serializer=wire.Envelope.SerializeToString
    )
    reply: bytes = await call(Envelopes(sender).make(), timeout=PATIENCE)
    return reply.decode()


async def turned_away(
    identity: Identity, address: str, *, name: str | None, sender: str = ""
) -> grpc.aio.AioRpcError:
    """The error of a call that must fail."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async with open_channel(identity, address, name=name) as channel:
            await knock(channel, sender or identity.name)
    return caught.value


def run(scene: Callable[[], Awaitable[object]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(PATIENCE):
            await scene()

    asyncio.run(limited())


def read_first(address: str, context: ssl.SSLContext) -> bytes:
    """The first byte of HTTP/2 from a server, after a handshake outside gRPC."""
    target = parse_address(address, key="address")
    with (
        socket.create_connection((target.host, target.port), timeout=PATIENCE) as plain,
        context.wrap_socket(plain) as connection,
    ):
        return connection.recv(1)


@contextmanager
def plain_server(
    identity: Identity, change: Callable[[ssl.SSLContext], None]
) -> Iterator[tuple[str, queue.Queue[str]]]:
    """A TLS server outside gRPC, and the versions of the handshakes that came about."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    stem = str(identity.folder / identity.name)
    context.load_cert_chain(f"{stem}.crt", f"{stem}.key")
    context.set_alpn_protocols(["h2"])
    change(context)
    seen: queue.Queue[str] = queue.Queue()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            plain.settimeout(PATIENCE)
            with suppress(OSError), context.wrap_socket(plain, server_side=True) as connection:
                seen.put(str(connection.version()))
                connection.recv(1)
            plain.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}", seen
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)
        listener.close()
    assert not thread.is_alive()
