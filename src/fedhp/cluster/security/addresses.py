"""Where a process listens: HOST:PORT parsed, and whether the port is free."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fedhp.cluster.protocol import limits
from fedhp.errors import ConfigError

_LISTEN = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Listen:
    """A host and a port of this machine; port 0 is any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def everywhere(self) -> bool:
        """Whether it means all addresses of the machine, so that nobody can be told it."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False

    @property
    def family(self) -> socket.AddressFamily:
        """IPv6 for an address in brackets, otherwise IPv4."""
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET


def parse_listen(address: str, *, key: str) -> Listen:
    """HOST:PORT to listen at; `key` is the option that is blamed."""
    found = _LISTEN.fullmatch(address) if len(address) <= limits.ADDRESS_LENGTH else None
    if found is None or int(found[3]) > 65535:
        raise ConfigError(
            f"{address[: limits.ADDRESS_LENGTH]!r} is no address to listen at",
            key=key,
            allowed="HOST:PORT, for example 0.0.0.0:7700, 127.0.0.1:0 or [::]:7700",
            fix="0.0.0.0 listens at all addresses of this machine, port 0 is any free port",
        )
    return Listen(found[1] or found[2], int(found[3]))


def check_free(listen: Listen, *, key: str) -> None:
    """Refuse a place where this machine cannot listen; the port is free again afterwards."""
    with held(listen, key=key, listening=True):
        pass


@contextmanager
def held(listen: Listen, *, key: str, listening: bool = False) -> Iterator[Listen]:
    """Keep a port, any free one for 0, from everybody else until a server of this process has it
    (which can bind to it meanwhile, as nobody listens). Refuse one that cannot be had."""
    holder = socket.socket(listen.family, socket.SOCK_STREAM)
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((listen.host, listen.port))
        if listening:
            holder.listen(1)
    except OSError as error:
        holder.close()
        raise ConfigError(
            f"cannot listen at {listen}: {error.strerror or error}",
            key=key,
            allowed="an address of this machine and a port that nobody uses",
            fix="choose another port, or end the process that uses it",
        ) from None
    with holder:
        yield Listen(listen.host, int(holder.getsockname()[1]))
