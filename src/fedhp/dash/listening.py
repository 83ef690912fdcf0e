"""An address to listen on, which a command may take before the server starts."""

from __future__ import annotations

import errno
import socket

from fedhp.errors import AddressUnavailable
from fedhp.tables import COMMAND_LINE

FIRST_PORT = 8420  # of the ports that are tried if none is given
PORTS_TRIED = 20
BACKLOG = 128
PORT_ERRORS = (errno.EADDRINUSE, errno.EACCES)


def listening_socket(host: str, port: int | None, *, option: str = "--port") -> socket.socket:
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
                key=option if error.errno in PORT_ERRORS else "--host",
                source=COMMAND_LINE,
                allowed="an address of this machine and a port that no other process uses",
                fix=f"choose another {option}, or leave it out for a free one",
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
    port = listener.getsockname()[1]
    name = {"0.0.0.0": "localhost", "::": "localhost"}.get(host, host)
    shown = f"[{name}]" if ":" in name else name
    return f"{'https' if tls else 'http'}://{shown}:{port}/"
