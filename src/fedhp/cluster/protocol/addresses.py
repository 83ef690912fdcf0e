"""Names and HOST:PORT addresses of machines: the only place that parses, checks and formats them.

Options, messages and certificates follow the same rules. Messages are checked with them, so they
are part of the protocol and not of `security`, which is built on top of it.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fedhp.cluster.protocol import limits
from fedhp.errors import AddressUnavailable, ConfigError

# An address may be in use by a process that is about to end, and a network may come up late.
_PASSING = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, socket.EAI_AGAIN)
_HOST_PORT = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})")
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
# What a resolver takes for an IPv4 address, though it may be an unusual way to write one.
_NUMBER_LIKE = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
# Names become file names and metric labels: no separators, no dot or dash at an end.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class HostPort:
    """A host name or IP address (IPv6 without brackets) and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def everywhere(self) -> bool:
        """Whether it means all addresses of the machine, so that nobody can call it."""
        ip = ip_address_in(self.host)
        return ip is not None and ip.is_unspecified

    @property
    def family(self) -> socket.AddressFamily:
        """IPv6 for an IPv6 address, otherwise IPv4."""
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET


def split_host_port(text: str) -> HostPort | None:
    """HOST:PORT or [IPv6]:PORT, with any port from 0 to 65535; None if it is neither."""
    match = _HOST_PORT.fullmatch(text) if len(text) <= limits.ADDRESS_LENGTH else None
    if match is None or int(match[3]) > 65535:
        return None
    ip = ip_address_in(match[1] or match[2])
    if match[1] and not isinstance(ip, ipaddress.IPv6Address):
        return None
    return HostPort(str(ip or match[2]), int(match[3]))


def parse_address(text: str, *, key: str) -> HostPort:
    """HOST:PORT to connect to; `key` is the option that the error names."""
    address = split_host_port(text)
    if address is None or not address.port:
        raise ConfigError(
            f"{text[: limits.ADDRESS_LENGTH]!r} is not an address",
            key=key,
            allowed="HOST:PORT, for example node1.lan:7000, 10.0.0.5:7000 or [fd00::5]:7000",
        )
    return address


def parse_listen(text: str, *, key: str) -> HostPort:
    """HOST:PORT to listen on; `key` is the option that the error names."""
    address = split_host_port(text)
    if address is None:
        raise ConfigError(
            f"{text[: limits.ADDRESS_LENGTH]!r} is not an address to listen on",
            key=key,
            allowed="HOST:PORT, for example 0.0.0.0:7700, 127.0.0.1:0 or [::]:7700",
            fix="0.0.0.0 listens on all addresses of this machine, port 0 is any free port",
        )
    return address


def is_name(text: str) -> bool:
    """Whether a machine may have this name: letters, digits, dot, dash and underscore."""
    return len(text) <= limits.NAME_LENGTH and _NAME.fullmatch(text) is not None


def is_host(text: str) -> bool:
    """Whether it is an IP address in its usual form, or can be a DNS name."""
    if ip_address_in(text) is not None:
        return True
    labels = text.split(".")
    if _NUMBER_LIKE.fullmatch(labels[-1]):
        return False
    return len(text) <= 253 and all(map(_LABEL.fullmatch, labels))


def is_reachable(host: str) -> bool:
    """Whether another machine can call it: 0.0.0.0, for example, would be the caller itself."""
    ip = ip_address_in(host)
    return is_host(host) and (ip is None or not (ip.is_unspecified or ip.is_multicast))


def same_host(one: str, other: str) -> bool:
    """Whether two hosts are the same, however they are written."""
    return (ip_address_in(one) or one.casefold()) == (ip_address_in(other) or other.casefold())


def ip_address_in(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The text as an IP address, if it is one."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def own_address(listen: HostPort, *, towards: HostPort | None) -> HostPort:
    """Where others reach a server of this machine: the host it listens on, or this side of a
    connection to another machine."""
    if not listen.everywhere:
        return listen
    own = socket.gethostname()
    if towards is not None:
        with contextlib.suppress(OSError):
            family, kind, protocol, _, target = socket.getaddrinfo(
                towards.host, towards.port, type=socket.SOCK_DGRAM
            )[0]
            with socket.socket(family, kind, protocol) as datagrams:
                datagrams.connect(target)  # a datagram socket sends nothing here
                own = str(datagrams.getsockname()[0])
    return HostPort(own, listen.port)


def check_free(address: HostPort, *, key: str) -> None:
    """Raise if this machine cannot listen there; the port is free again afterwards."""
    with reserve_port(address, key=key, listening=True):
        pass


@contextmanager
def reserve_port(address: HostPort, *, key: str, listening: bool = False) -> Iterator[HostPort]:
    """Reserve a port, any free one for 0, until a server of this process has bound to it.

    The server can bind meanwhile, because nobody listens yet. Raise if the port is not available.
    """
    holder = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((address.host, address.port))
        if listening:
            holder.listen(1)
    except OSError as error:
        holder.close()
        raise cannot_listen(str(address), error, key=key) from None
    with holder:
        yield HostPort(address.host, int(holder.getsockname()[1]))


def cannot_listen(address: str, error: OSError, *, key: str) -> ConfigError:
    """The error for an address that cannot be listened on; AddressUnavailable if that may pass."""
    kind = AddressUnavailable if error.errno in _PASSING else ConfigError
    return kind(
        f"cannot listen on {address}: {error.strerror or error}",
        key=key,
        allowed="HOST:PORT of this machine that is not in use, port 0 for any free one",
        fix="choose another port, or stop the process that uses it",
    )
