"""Tickets: what one worker may ask of another, by the coordinator's decision.

Every member gets a secret key with the reply to its join. An order has a ticket for each peer that
it names, made with that peer's key: only the coordinator could have made it, for this caller, this
purpose and this attempt. Keys and tickets travel over mutual TLS alone, and last for one epoch.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from enum import StrEnum

from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.guard import Refused

KEY_BYTES = 32
_SERIAL = struct.Struct(">Q")
_MAC_BYTES = 16
TICKET_BYTES = _SERIAL.size + _MAC_BYTES


class TicketPurpose(StrEnum):
    """What a ticket is for."""

    TRAINED = "trained"  # the model of this attempt
    COMMITTED = "committed"  # the model of an earlier attempt, to catch up
    PROBE = "probe"
    SWAP = "swap"
    AVERAGE = "average"  # the sums of this attempt, to the worker above in the tree


def new_key() -> bytes:
    """A key for one member."""
    return secrets.token_bytes(KEY_BYTES)


def make_ticket(
    key: bytes,
    *,
    run: str,
    caller: str,
    purpose: TicketPurpose,
    attempt: Attempt,
    version: Attempt = INITIAL,
    serial: int = 0,
) -> bytes:
    """A ticket for a caller, to show to the owner of the key.

    attempt: the one that the order is about. version: of the committed model that the caller may
    take. serial: tickets to swap are used once, in rising order.
    """
    words = (run, purpose, caller, *attempt.to_list(), *version.to_list(), serial)
    mac = hmac.digest(key, "\0".join(map(str, words)).encode(), "sha256")
    return _SERIAL.pack(serial) + mac[:_MAC_BYTES]


class TicketChecker:
    """At a worker: which calls of peers the coordinator has allowed."""

    def __init__(self) -> None:
        self.key = b""  # empty: this coordinator gives no tickets
        self.barred: frozenset[str] = frozenset()  # names that are no longer members
        self._swaps: dict[str, tuple[int, int]] = {}  # epoch and serial of the last, by caller

    def check_member(self, caller: str) -> None:
        """Refuse a name that is no longer a member, whatever it asks for."""
        if caller in self.barred:
            raise Refused("removed", f"{caller} is no longer a member of this run")

    def check(
        self,
        ticket: bytes,
        *,
        run: str,
        caller: str,
        purpose: TicketPurpose,
        attempt: Attempt,
        version: Attempt = INITIAL,
    ) -> None:
        """Accept the call of a peer, or raise Refused."""
        self.check_member(caller)
        if not self.key:
            return
        serial = 0
        if len(ticket) == TICKET_BYTES:
            (serial,) = _SERIAL.unpack_from(ticket)
        expected = make_ticket(
            self.key,
            run=run,
            caller=caller,
            purpose=purpose,
            attempt=attempt,
            version=version,
            serial=serial,
        )
        if not hmac.compare_digest(ticket, expected):
            raise Refused(
                "ticket", f"the coordinator did not name {caller} as a partner for this ({purpose})"
            )
        if purpose is TicketPurpose.SWAP and (attempt.epoch, serial) <= self._swaps.get(
            caller, (0, -1)
        ):
            raise Refused("ticket", f"{caller} has used this ticket already")

    def swapped(self, caller: str, attempt: Attempt, ticket: bytes) -> None:
        """A swap took place: its ticket, and all before it, are used up."""
        if len(ticket) == TICKET_BYTES:
            self._swaps[caller] = (attempt.epoch, _SERIAL.unpack_from(ticket)[0])
