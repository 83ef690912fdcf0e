"""Single values that come from outside: texts, names, addresses, numbers, worker indices.

Each function returns nothing or raises Refused with the word for that kind of fault.
"""

from __future__ import annotations

import math
import re

from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol.addresses import is_name, is_reachable, split_host_port
from fedhp.cluster.protocol.guard import Refused, quoted

WEEK = 7 * 86_400.0  # s; longer than any round, and any deadline
DIGEST_BYTES = 32  # of SHA-256

_RUN = re.compile(r"[0-9a-f]{32}")


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
    if not is_name(value):
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
    address = split_host_port(value)
    if address is None or not address.port or not is_reachable(address.host):
        raise Refused(
            "address",
            f"{what} is {quoted(value)}, not HOST:PORT with a port from 1 to 65535 "
            "(IPv6: [ADDRESS]:PORT)",
        )


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
