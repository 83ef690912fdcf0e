"""The server: TLS, and the loop that serves."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from fedhp.dash.app import DashSettings, create_app
from fedhp.errors import ConfigError
from fedhp.tables import COMMAND_LINE
from fedhp.trust import NO_TRUST, limited_to

GOODBYE_SECONDS = 1  # that open streams have when the server ends


@dataclass(frozen=True, slots=True)
class DashCertificate:
    """A certificate, with its chain, and its key, both PEM."""

    certificate: Path
    key: Path


def check_tls(files: DashCertificate) -> None:
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
            fix="issue one: fedhp certs issue NAME --host HOST --role operator",
        ) from None


def serve(
    settings: DashSettings,
    listener: socket.socket,
    *,
    tls: DashCertificate | None = None,
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
    with limited_to(NO_TRUST):  # whatever a record names, this process imports nothing for it
        asyncio.run(_serve(_DashServer(config, started), listener, ended))


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


class _DashServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._say_started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._say_started()
