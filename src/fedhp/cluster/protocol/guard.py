"""Who may send a message, and whether it comes once and in time: envelopes, epochs, quarantine.

A Guard judges the envelope of every message that arrives, by the name in the sender's
certificate; message_checks.py judges the fields. Both raise Refused with a stable word.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

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
            self._check_not_quarantined(peer, self._senders.setdefault(peer, _Sender()))

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
            sender = self._senders.get(peer)
            if sender is None:
                sender = self._senders[peer] = _Sender()
            self._check_not_quarantined(peer, sender)
            if not envelope.ByteSize():
                raise Refused("missing", "the message has no envelope")
            _check_version(envelope.version)
            if envelope.sender != peer:
                raise Refused(
                    "sender",
                    f"the certificate is {quoted(peer)}'s, the message says it is from "
                    f"{quoted(envelope.sender)}",
                )
            if not roles & rule.allowed:
                needed = _either(rule.allowed)
                raise Refused(
                    "role",
                    f"{quoted(peer)} has the role {_either(roles)}; this call needs {needed}",
                )
            self._check_run(envelope.run, without_run=rule.without_run)
            self._check_epoch(envelope.epoch, rule.epochs)
            self._check_token(envelope)
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
            return sender is not None and self._in_quarantine(sender)

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

    def _check_not_quarantined(self, peer: str, sender: _Sender) -> None:
        if self._in_quarantine(sender):
            raise Refused(
                "quarantined", f"{quoted(peer)} sent too many bad messages and is in quarantine"
            )

    def _in_quarantine(self, sender: _Sender) -> bool:
        """Whether everything of it is refused; a quarantine that has lasted long enough ends."""
        limit = self._quarantine
        if sender.quarantined and limit is not None and self._clock() - sender.strikes[-1] >= limit:
            sender.pardon()
        return sender.quarantined

    def _check_run(self, run: str, *, without_run: bool) -> None:
        if not run and without_run:
            return
        if self.run is None:
            raise Refused("run", "this process has not joined a run yet")
        if run != self.run:
            raise Refused(
                "run", f"the message is of run {quoted(run)}, this process is in run {self.run}"
            )

    def _check_epoch(self, epoch: int, epochs: Epochs) -> None:
        late = epochs != "any" and epoch < self.epoch
        early = epochs == "same" and epoch > self.epoch
        if late or early:
            raise Refused(
                "epoch",
                f"the message is of epoch {epoch}, the current one is {self.epoch}: ask the "
                "coordinator again",
            )

    def _check_token(self, envelope: wire.Envelope) -> None:
        known = bool(self.token and envelope.token)
        if known and envelope.epoch == self.epoch and envelope.token != self.token:
            raise Refused(
                "epoch",
                f"the sender follows another coordinator, which also has epoch {self.epoch}: one "
                "of the two leads from a copy of the run's state",
            )


def quoted(value: str) -> str:
    """A text from outside, quoted for a message or a log: one short printable line."""
    shown = value if len(value) <= limits.NAME_LENGTH else value[: limits.NAME_LENGTH] + "..."
    return ascii(shown)


def _either(roles: frozenset[str]) -> str:
    return " or ".join(sorted(roles))


def _check_version(version: int) -> None:
    if version != limits.PROTOCOL_VERSION:
        behind = "sender" if version < limits.PROTOCOL_VERSION else "receiver"
        raise Refused(
            "version",
            f"the sender uses protocol version {version}, the receiver version "
            f"{limits.PROTOCOL_VERSION}: update fedhp on the {behind}'s machine",
        )
