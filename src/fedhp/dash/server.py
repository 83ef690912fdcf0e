"""The server: an address to listen on, TLS, and the loop that serves."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from fedhp.dash.app import DashSettings, create_app
from fedhp.errors import AddressUnavailable, ConfigError
from fedhp.tables import COMMAND_LINE

FIRST_PORT = 8420  # of the ports that are tried if none is given
PORTS_TRIED = 20
BACKLOG = 128
GOODBYE_SECONDS = 1  # that open streams have when the server ends


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A certificate, with its chain, and its key, both PEM."""

    certificate: Path
    key: Path


def listening_socket(host: str, port: int | None) -> socket.socket:
    """A socket at this address; without a port the first free one of a few."""
    ports = range(FIRST_PORT, FIRST_PORT + PORTS_TRIED) if port is None else [port]
    for candidate in ports:
        try:
            return _listen(host, candidate)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and candidate != ports[-1]:
                continue
            raise AddressUnavailable(
                f"cannot listen on {host} port {candidate}: {error.strerror or error}",
                key="--host" if error.errno != errno.EADDRINUSE else "--port",
                source=COMMAND_LINE,
                allowed="an address of this machine and a port that no other process uses",
                fix="choose another --port, or leave it out for a free one",
            ) from None
    raise AssertionError("there is a port to try")


def _listen(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def url_of(listener: socket.socket, host: str, *, tls: bool) -> str:
    """The address for a browser on this machine."""
    port = listener.getsockname()[1]
    name = {"0.0.0.0": "localhost", "::": "localhost"}.get(host, host)
    shown = f"[{name}]" if ":" in name else name
    return f"{'https' if tls else 'http'}://{shown}:{port}/"


def check_tls(files: TlsFiles) -> None:
    """Refuse a certificate and a key that cannot be used together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(files.certificate, files.key, password=lambda: b"")
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{files.certificate} and {files.key} cannot be used: {error}",
            key="--cert, --key",
            source=COMMAND_LINE,
            allowed="a PEM certificate and its PEM key, without a password",
            fix="issue one: fedhp certs issue NAME --host HOST --role coordinator",
        ) from None


def serve(
    settings: DashSettings,
    listener: socket.socket,
    *,
    tls: TlsFiles | None = None,
    started: Callable[[], None] = lambda: None,
    ended: Callable[[], Any] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; `ended` blocks until something else ends the server."""
    options: dict[str, Any] = {}
    if tls is not None:
        options = {"ssl_certfile": str(tls.certificate), "ssl_keyfile": str(tls.key)}
    config = uvicorn.Config(
        create_app(settings),
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        lifespan="off",
        timeout_graceful_shutdown=GOODBYE_SECONDS,
        ws="none",
        **options,
    )
    asyncio.run(_serve(_Server(config, started), listener, ended))


async def _serve(
    server: uvicorn.Server, listener: socket.socket, ended: Callable[[], Any] | None
) -> None:
    watching = None
    if ended is not None:

        async def watch() -> None:
            await asyncio.to_thread(ended)
            server.should_exit = True

        watching = asyncio.create_task(watch())
    with contextlib.suppress(KeyboardInterrupt):
        await server.serve(sockets=[listener])
    if watching is not None:
        watching.cancel()


class _Server(uvicorn.Server):
    """Says when it has started."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._say_started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As in uvicorn."""
        await super().startup(sockets=sockets)
        self._say_started()
