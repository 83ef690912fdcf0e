"""Who may send a message, and whether it comes once and in time: envelopes, epochs, quarantine;
what one worker may ask of another (tickets), and which coordinator may follow which (the line).

A Guard judges the envelope of every message that arrives, by the name in the sender's
certificate; message_checks.py judges the fields. Both raise Refused with a stable word.
"""

from __future__ import annotations

import hmac
import secrets
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL, Attempt

# Which epochs of a sender are accepted: the receiver's own; that or a later one (at a peer, which
# may hear of a new coordinator later than others); any (the reply names the new one).
Epochs: TypeAlias = Literal["same", "since", "any"]

# Refusals that happen in an honest network and are not punished: late messages, a process that
# does not know yet that it was replaced, an old program, a worker of another run, a stranger.
LATE_REASONS = frozenset(
    {
        *("epoch", "round", "attempt", "incarnation"),
        *("version", "run", "unknown", "quarantined", "ticket"),
    }
)
# Refusals that an honest program of this version never causes. Each is a strike.
BAD_REASONS = frozenset(
    {
        *("sender", "role", "replay", "future"),
        *("method", "missing", "kind", "size", "text", "name", "address", "digest", "encoding"),
        *("worker", "duplicate", "order", "weights", "range", "nan", "infinite"),
    }
)

WORKER_ROLE, OPERATOR_ROLE = "worker", "operator"  # those that call others

STRIKE_SECONDS = 3600.0  # until a strike is forgotten
# Tickets: every member gets a secret key with the reply to its join. An order has a ticket for each
# peer that it names, made with that peer's key: only the coordinator could have made it, for this
# caller, this purpose and this attempt. Keys and tickets travel over mutual TLS alone, and last for
# one epoch.
KEY_BYTES = 32
_SERIAL = struct.Struct(">Q")
_MAC_BYTES = 16
TICKET_BYTES = _SERIAL.size + _MAC_BYTES
# The line of leaders: every epoch has a random token, and every leader knows the epochs before its
# own. A run folder that was copied begins a second line: its leaders have other tokens, or lack
# rounds that were committed. A worker follows one line and refuses any other.
TOKEN_BYTES = 16
LONGEST_LINE = 1000  # leaders that are remembered
COPY = "it leads from a copy or an old backup of the run's state, next to the real coordinator"
_SEEN_MASK = (1 << limits.SEQUENCE_WINDOW) - 1


class Refused(Exception):
    """A message that is not accepted: a stable word for programs and a sentence for people."""

    def __init__(self, reason: str, text: str) -> None:
        self.reason = reason
        self.text = text
        super().__init__(f"{reason}: {text}")

    @property
    def bad(self) -> bool:
        """Whether it counts against its sender; being late, or not a member, does not."""
        return self.reason in BAD_REASONS


@dataclass(frozen=True, slots=True)
class CallRule:
    """Which roles may make a call, and what its envelope must contain."""

    allowed: frozenset[str]
    epochs: Epochs
    without_run: bool = False  # the sender need not know the run yet
    # Whether a later process of a name replaces this one. Not for questions that change nothing:
    # `fedhp doctor` asks them next to the worker whose name it uses.
    replaces: bool = True


_WORKERS_ONLY = frozenset({WORKER_ROLE})
CALL_RULES: Mapping[str, CallRule] = {
    "Join": CallRule(_WORKERS_ONLY, "any", without_run=True),
    "Next": CallRule(_WORKERS_ONLY, "any"),
    "Report": CallRule(_WORKERS_ONLY, "same"),
    "Beat": CallRule(_WORKERS_ONLY, "any"),
    "Leave": CallRule(_WORKERS_ONLY, "any"),
    "Status": CallRule(
        frozenset({WORKER_ROLE, OPERATOR_ROLE}), "any", without_run=True, replaces=False
    ),
    "DialBack": CallRule(_WORKERS_ONLY, "any", without_run=True, replaces=False),
    "Command": CallRule(frozenset({OPERATOR_ROLE}), "any"),
    "Pull": CallRule(_WORKERS_ONLY, "since"),
    "Swap": CallRule(_WORKERS_ONLY, "since"),
    "Average": CallRule(_WORKERS_ONLY, "since"),
}


class Envelopes:
    """Makes the envelopes of one process; safe to use from several threads.

    The incarnation is the time of the start. `after` is the incarnation of the previous process
    of this name: the new one is larger even if the machine's clock was set back.
    """

    def __init__(
        self, name: str, *, after: int = 0, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self.name = name
        self.incarnation = max(clock(), after + 1)
        self._sequence = 0
        self._lock = threading.Lock()

    def make(
        self, *, run: str = "", attempt: Attempt = INITIAL, token: bytes = b""
    ) -> wire.Envelope:
        """A new envelope with the next sequence number; a message sent again needs a new one."""
        with self._lock:
            self._sequence += 1
            sequence = self._sequence
        return wire.Envelope(
            version=limits.PROTOCOL_VERSION,
            run=run,
            epoch=attempt.epoch,
            round=attempt.round_index,
            attempt=attempt.number,
            sender=self.name,
            incarnation=self.incarnation,
            sequence=sequence,
            token=token,
        )


@dataclass(slots=True)
class _Sender:
    """What is remembered of a name on the allow-list: about 1.5 kB, however much it sends."""

    incarnation: int = 0
    newest: int = 0  # the largest sequence number seen
    seen: int = 0  # bit i: newest - i was seen
    strikes: deque[float] = field(default_factory=lambda: deque(maxlen=limits.STRIKES))
    quarantined: bool = False

    def pardon(self) -> None:
        """It begins again without strikes."""
        self.quarantined = False
        self.strikes.clear()

    def take(self, incarnation: int, sequence: int) -> None:
        """Mark one message as seen, or raise Refused."""
        if incarnation < self.incarnation:
            raise Refused(
                "incarnation",
                "a later process of this name was seen; if there is none, the sender's clock is "
                "behind: set it, or let an operator run `fedhp cluster allow NAME`",
            )
        if incarnation > self.incarnation:
            self.incarnation, self.newest, self.seen = incarnation, sequence, 1
            return
        ahead = sequence - self.newest
        if ahead > 0:
            # A sender chooses the number: an unbounded shift would take gigabytes.
            moved = self.seen << min(ahead, limits.SEQUENCE_WINDOW)
            self.newest, self.seen = sequence, (moved & _SEEN_MASK) | 1
        elif -ahead >= limits.SEQUENCE_WINDOW:
            raise Refused("replay", f"sequence {sequence} is far behind {self.newest}")
        elif self.seen >> -ahead & 1:
            raise Refused("replay", f"sequence {sequence} was received before")
        else:
            self.seen |= 1 << -ahead


class Guard:
    """Judges envelopes; remembers the names on the allow-list and no others.

    run is None until this process knows its run. epoch is that of the coordinator that a worker
    follows, or of this coordinator itself; token is that of its leadership, empty if not known.
    quarantine is how many seconds one lasts after the last strike; None: until it is pardoned.
    """

    def __init__(
        self,
        *,
        run: str | None,
        epoch: int = 0,
        quarantine: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.run = run
        self._quarantine = quarantine
        self.epoch = epoch
        self.token = b""
        self._clock = clock
        self._senders: dict[str, _Sender] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def enter(self, peer: str) -> None:
        """A name on the allow-list calls: from now on its bad messages count against it. Refused
        if it is in quarantine."""
        with self._lock:
            self._known(peer)

    def check(
        self,
        envelope: wire.Envelope,
        *,
        peer: str,
        roles: frozenset[str],
        rule: CallRule,
    ) -> None:
        """Accept the envelope of a message, once, or raise Refused.

        peer is the name in the certificate; roles are those that the allow-list gives it, none for
        a stranger; rule is that of the call, from CALL_RULES.
        """
        if not roles:
            raise Refused("unknown", f"{quoted(peer)} is not on the allow-list of this federation")
        with self._lock:
            sender = self._known(peer)
            if not envelope.ByteSize():
                raise Refused("missing", "the message has no envelope")
            if (version := envelope.version) != limits.PROTOCOL_VERSION:
                behind = "sender" if version < limits.PROTOCOL_VERSION else "receiver"
                raise Refused(
                    "version",
                    f"the sender uses protocol version {version}, the receiver version "
                    f"{limits.PROTOCOL_VERSION}: update fedhp on the {behind}'s machine",
                )
            if envelope.sender != peer:
                raise Refused(
                    "sender",
                    f"the certificate is {quoted(peer)}'s, the message says it is from "
                    f"{quoted(envelope.sender)}",
                )
            if not roles & rule.allowed:
                has, needed = (" or ".join(sorted(each)) for each in (roles, rule.allowed))
                text = f"{quoted(peer)} has the role {has}; this call needs {needed}"
                raise Refused("role", text)
            # Run, epoch and leader are those of this process, as far as they have to.
            run, epoch = envelope.run, envelope.epoch
            if run != self.run and (run or not rule.without_run):
                if self.run is None:
                    raise Refused("run", "this process has not joined a run yet")
                raise Refused(
                    "run", f"the message is of run {quoted(run)}, this process is in run {self.run}"
                )
            late = rule.epochs != "any" and epoch < self.epoch
            if late or (rule.epochs == "same" and epoch > self.epoch):
                raise Refused(
                    "epoch",
                    f"the message is of epoch {epoch}, the current one is {self.epoch}: ask the "
                    "coordinator again",
                )
            known = bool(self.token and envelope.token)
            if known and epoch == self.epoch and envelope.token != self.token:
                raise Refused(
                    "epoch",
                    f"the sender follows another coordinator, which also has epoch {self.epoch}: "
                    "one of the two leads from a copy of the run's state",
                )
            if not envelope.incarnation or not envelope.sequence:
                raise Refused("missing", "the envelope has no incarnation or no sequence number")
            if rule.replaces:
                sender.take(envelope.incarnation, envelope.sequence)

    def obey(self, epoch: int) -> None:
        """At a worker: follow an order of this epoch, and none of a smaller one ever after."""
        with self._lock:
            if epoch < max(self.epoch, 1):
                raise Refused(
                    "epoch",
                    f"the order is of epoch {epoch}, this worker follows epoch {self.epoch}",
                )
            self.epoch = epoch

    def strike(self, peer: str, reason: str) -> bool:
        """Count a refusal; return whether its sender is in quarantine now.

        Lateness is counted but never punished. The refusals of strangers are counted under an empty
        name: under their own they could fill the memory.
        """
        with self._lock:
            sender = self._senders.get(peer)
            self._counts["" if sender is None else peer, reason] += 1
            if sender is None or reason not in BAD_REASONS:
                return sender is not None and self._in_quarantine(sender)
            now = self._clock()
            sender.strikes.append(now)
            recent = sum(now - strike < STRIKE_SECONDS for strike in sender.strikes)
            if recent >= limits.STRIKES:
                sender.quarantined = True
            return sender.quarantined

    def is_quarantined(self, peer: str) -> bool:
        """Whether everything from this name is refused."""
        with self._lock:
            sender = self._senders.get(peer)
            return sender is not None and sender.quarantined and self._in_quarantine(sender)

    def pardon(self, peer: str) -> None:
        """End a quarantine; messages that were seen before are still refused as replays."""
        with self._lock:
            sender = self._senders.get(peer)
            if sender is not None:
                sender.pardon()

    def restart(self, peer: str) -> None:
        """Expect another process of this name, whatever its clock says; strikes stay."""
        with self._lock:
            sender = self._senders.get(peer)
            if sender is not None:
                sender.incarnation = sender.newest = sender.seen = 0

    def forget(self, peer: str) -> None:
        """Drop everything known of a name: it left the allow-list, or starts over."""
        with self._lock:
            self._senders.pop(peer, None)
            for key in [key for key in self._counts if key[0] == peer and peer]:
                del self._counts[key]

    def counts(self) -> dict[tuple[str, str], int]:
        """Refusals so far by (name, reason), for metrics; strangers are ""."""
        with self._lock:
            return dict(self._counts)

    def quarantined(self) -> frozenset[str]:
        """All names in quarantine."""
        with self._lock:
            return frozenset(
                name for name, sender in self._senders.items() if self._in_quarantine(sender)
            )

    def _known(self, peer: str) -> _Sender:
        """What is remembered of a name; Refused if it is in quarantine."""
        sender = self._senders.get(peer)
        if sender is None:
            sender = self._senders[peer] = _Sender()
        if sender.quarantined and self._in_quarantine(sender):
            raise Refused(
                "quarantined", f"{quoted(peer)} sent too many bad messages and is in quarantine"
            )
        return sender

    def _in_quarantine(self, sender: _Sender) -> bool:
        """Whether everything of it is refused; a quarantine that has lasted long enough ends."""
        limit = self._quarantine
        if sender.quarantined and limit is not None and self._clock() - sender.strikes[-1] >= limit:
            sender.pardon()
        return sender.quarantined


def quoted(value: str) -> str:
    """A text from outside, quoted for a message or a log: one short printable line."""
    shown = value if len(value) <= limits.NAME_LENGTH else value[: limits.NAME_LENGTH] + "..."
    return ascii(shown)


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


@dataclass(frozen=True, slots=True)
class Leadership:
    """One leader: its epoch, its token, and the committed attempt from which it began."""

    epoch: int
    token: bytes
    start: Attempt

    def to_wire(self) -> wire.Leadership:
        """As part of a message."""
        return wire.Leadership(epoch=self.epoch, token=self.token, start=self.start.to_wire())

    @classmethod
    def from_wire(cls, message: wire.Leadership) -> Leadership:
        """As a message names it."""
        return cls(message.epoch, message.token, Attempt.from_wire(message.start))

    def to_list(self) -> list[Any]:
        """For JSON."""
        return [self.epoch, self.token.hex(), *self.start.to_list()]

    @classmethod
    def from_list(cls, values: Iterable[Any]) -> Leadership:
        """As to_list gave it."""
        epoch, token, *start = values
        return cls(int(epoch), bytes.fromhex(token), Attempt.from_list(start))


Line = tuple[Leadership, ...]  # the oldest first; the last one leads


def extended(line: Line, epoch: int, *, start: Attempt) -> Line:
    """The line with a new leader at its end, who has a new token."""
    return (*line, Leadership(epoch, secrets.token_bytes(TOKEN_BYTES), start))[-LONGEST_LINE:]


def check_line(line: Sequence[wire.Leadership], *, epoch: int) -> None:
    """The line of leaders in a reply of this epoch; an empty one comes from an older program."""
    if len(line) > LONGEST_LINE:
        raise Refused("size", f"the reply names {len(line)} leaders, at most {LONGEST_LINE}")
    for leader in line:
        check_leader(epoch, leader.token)
        if not leader.token:
            raise Refused("missing", "a leader in the reply has no token")
    epochs = [leader.epoch for leader in line]
    if epochs and (epochs != sorted(set(epochs)) or epochs[-1] != epoch):
        raise Refused("order", "the epochs of the leaders do not rise to that of the reply")


def check_leader(epoch: int, token: bytes = b"") -> None:
    """The epoch of a leader, and its token or none."""
    if not epoch:
        raise Refused("missing", "the reply names no epoch")
    if len(token) not in (0, TOKEN_BYTES):
        raise Refused("size", f"a leader's token has {len(token)} bytes, not {TOKEN_BYTES}")


class Follower:
    """What a worker knows of the line that it follows: the last leader, the last commit."""

    def __init__(self, epoch: int = 0, token: bytes = b"", committed: Attempt = INITIAL) -> None:
        self.epoch, self.token, self.committed = epoch, token, committed

    def follow(self, line: Line, *, epoch: int, committed: Attempt) -> None:
        """Follow this leader from now on; Refused if it is not of the same line."""
        if epoch < self.epoch:
            raise Refused(
                "epoch",
                f"the coordinator has epoch {epoch}, but this worker follows epoch {self.epoch}",
            )
        if self.token:
            if {leader.epoch: leader.token for leader in line}.get(self.epoch) != self.token:
                raise Refused("epoch", self._other_leader(epoch))
            later = [leader for leader in line if leader.epoch > self.epoch]
            if later and later[0].start < self.committed:
                raise Refused(
                    "epoch",
                    f"the coordinator of epoch {later[0].epoch} began after {later[0].start}, but "
                    f"this worker has seen the commit of {self.committed}: {COPY}",
                )
        if committed.round_index < self.committed.round_index:
            raise Refused(
                "epoch",
                f"the coordinator of epoch {epoch} has committed round {committed.round_index}, "
                f"but this worker has seen round {self.committed.round_index}: {COPY}",
            )
        self.epoch, self.token = epoch, line[-1].token if line else b""
        self.committed = max(self.committed, committed)

    def check_reply(self, epoch: int, token: bytes, committed: Attempt = INITIAL) -> None:
        """A later reply must come from the leader that this worker follows; it may say that this
        attempt is committed."""
        if self.token and (epoch, token) != (self.epoch, self.token):
            raise Refused("epoch", self._other_leader(epoch))
        self.committed = max(self.committed, committed)

    def _other_leader(self, epoch: int) -> str:
        if epoch == self.epoch:
            return f"another coordinator also has epoch {epoch}: {COPY}"
        return (
            f"the coordinator of epoch {epoch} does not know the one of epoch {self.epoch}, which "
            f"this worker follows: {COPY}"
        )
