"""Single values that come from outside: texts, names, addresses, numbers, worker indices.

Each function returns nothing or raises Refused with the word for that kind of fault.
"""

from __future__ import annotations

import ipaddress
import math
import re

from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol.guard import Refused, quoted

WEEK = 7 * 86_400.0  # s; longer than any round, and any deadline
DIGEST_BYTES = 32  # of SHA-256

# Names become file names and metric labels: no separators, no dot or dash at an end.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_RUN = re.compile(r"[0-9a-f]{32}")
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
# What a resolver takes for an IPv4 address, though it may be an unusual way to write one.
_NUMBER_LIKE = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")


def check_text(value: str, what: str, *, most: int = limits.TEXT_LENGTH) -> None:
    """A text for logs and terminals: bounded, one line, nothing that moves a cursor."""
    if len(value) > most:
        raise Refused("size", f"{what} has {len(value)} characters, at most {most} are allowed")
    if not value.isprintable():
        raise Refused("text", f"{what} has control characters: {quoted(value)}")


def one_line(text: str, *, most: int = limits.TEXT_LENGTH) -> str:
    """Any text so that check_text takes it; senders use it on errors of many lines."""
    line = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return line if len(line) <= most else line[: most - 3] + "..."


def check_name(value: str, what: str) -> None:
    """A worker's name: letters, digits, dot, dash and underscore."""
    if len(value) > limits.NAME_LENGTH:
        raise Refused(
            "size", f"{what} has {len(value)} characters, at most {limits.NAME_LENGTH} are allowed"
        )
    if not _NAME.fullmatch(value):
        raise Refused("name", f"{what} is {quoted(value)}, which is no name")


def check_run(value: str, what: str) -> None:
    """The identity of a run: 32 hex digits."""
    if not _RUN.fullmatch(value):
        raise Refused("name", f"{what} is {quoted(value)}, not 32 hex digits")


def check_address(value: str, what: str) -> None:
    """host:port, with an IPv6 address in brackets; nothing else that gRPC would dial."""
    if len(value) > limits.ADDRESS_LENGTH:
        raise Refused(
            "size",
            f"{what} has {len(value)} characters, at most {limits.ADDRESS_LENGTH} are allowed",
        )
    found = _ADDRESS.fullmatch(value)
    if not found or not _is_host(found["host"]):
        raise Refused("address", f"{what} is {quoted(value)}, not host:port (IPv6: [address]:port)")
    if not 1 <= int(found["port"]) <= 65_535:
        raise Refused("address", f"the port of {what} is {found['port']}, not 1 to 65535")


def _is_host(host: str) -> bool:
    labels = host.split(".")
    try:
        if host.startswith("["):
            return _is_reachable(ipaddress.IPv6Address(host[1:-1]))
        if _NUMBER_LIKE.fullmatch(labels[-1]):
            return _is_reachable(ipaddress.IPv4Address(host))
    except ValueError:
        return False
    return len(host) <= 253 and all(map(_LABEL.fullmatch, labels))


def _is_reachable(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    # 0.0.0.0 is where one listens: a peer that calls it would call itself.
    return not (address.is_unspecified or address.is_multicast)


def check_number(
    value: float,
    what: str,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    nan: bool = False,
) -> None:
    """A finite number from least to most; NaN only where it may stand for "not measured"."""
    if math.isnan(value):
        if not nan:
            raise Refused("nan", f"{what} is not a number")
    elif math.isinf(value):
        raise Refused("infinite", f"{what} is infinite")
    elif not least <= value <= most:
        raise Refused("range", f"{what} is {value}, not {least:g} to {most:g}")


def check_positive(value: float, what: str, *, most: float = math.inf) -> None:
    """A finite number above 0."""
    check_number(value, what, least=0.0, most=most)
    if value == 0:
        raise Refused("range", f"{what} is 0, it must be more")


def check_count(value: int, what: str, *, least: int = 0, most: int) -> None:
    """A whole number from least to most."""
    if not least <= value <= most:
        raise Refused("range", f"{what} is {value}, not {least} to {most}")


def check_length(length: int, what: str, *, most: int) -> None:
    """How many of something there are, or how many bytes."""
    if length > most:
        raise Refused("size", f"{what}: {length}, at most {most} are allowed")


def check_worker(value: int, what: str, *, workers: int, own: int | None = None) -> None:
    """The index of a worker, other than the sender or receiver itself where own is given."""
    if value >= workers:
        raise Refused("worker", f"{what} names worker {value} of {workers}")
    if value == own:
        raise Refused("worker", f"{what} names worker {value}, which is itself")


def check_digest(value: bytes, what: str) -> None:
    """A SHA-256, or nothing."""
    if len(value) not in (0, DIGEST_BYTES):
        raise Refused("digest", f"{what} has {len(value)} bytes, not {DIGEST_BYTES}")
