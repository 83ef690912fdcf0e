"""The events of histories: what a coordinator, a worker and a launcher write down of a run.

Declared once, for those that write them and those that read them (audit, dash). The facts of an
event are its fields, in their order: attempts and mappings as several facts, and nothing for None,
which earlier releases, or runs of another kind, leave out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar, dataclass_transform

from fedhp.cluster.protocol.attempt import Attempt


@dataclass_transform(frozen_default=True)
class Event:
    """One line of a history; every kind of event is a frozen dataclass."""

    event: ClassVar[str]

    def __init_subclass__(cls, event: str = "") -> None:
        cls.event = event
        dataclasses.dataclass(frozen=True)(cls)


Kind: TypeAlias = type[Event]
Shape = TypeVar("Shape", bound=Event)


def kind(event: str, shape: type[Shape]) -> type[Shape]:
    """One more kind of event, with the facts of this shape."""
    return type(shape.__name__, (shape,), {}, event=event)


class Reason(Event):
    why: str


class NamedReason(Event):
    name: str
    why: str


class AboutWorkers(Event):
    workers: Sequence[int]


class AttemptEvent(Event):
    attempt: Attempt


class MemberEvent(Event):
    worker: int


class MemberReason(MemberEvent):
    why: str


class Silence(MemberEvent):
    seconds: float  # without a heartbeat


class LeftOut(Event, event="left_out"):
    """Lines of these attempts were left out, where there were many at one round."""

    epoch: int
    round: int
    first: int
    last: int
    lines: int


class Dropped(AttemptEvent, event="dropped"):
    """Lines up to this attempt were dropped with the oldest parts."""

    lines: int
    parts: int


# --- the run, by a coordinator -------------------------------------------------------------

Paused = kind("paused", Reason)  # nothing can be written or committed
Stopped = kind("stopped", Reason)  # an operator's stop is committed


class Lead(Event, event="lead"):
    run: str
    epoch: int
    stand: Sequence[int]  # the last committed attempt
    min_workers: int
    asynchronous: bool


class Waiting(Event, event="waiting"):
    """Too few workers are ready, or some catch up."""

    why: str | None = None
    ready: Sequence[int] = ()
    patience: float | None = None  # s until fewer than all are enough
    late: Sequence[int] | None = None  # those that catch up


class Resumed(Event, event="resumed"):
    round: int  # from which on something can be written again


class Frozen(Event, event="frozen"):
    """The process did not run; s, wall clock."""

    since: float
    seconds: float


class Finished(Event, event="finished"):
    round: int  # the last one
    why: str


class Warned(Event, event="warning"):
    key: str
    members: Sequence[str]
    value: float
    text: str


# --- attempts, by a coordinator ------------------------------------------------------------

GaveUp = kind("gave_up", AttemptEvent)  # the attempt does not count
LeftAside = kind("left_aside", AboutWorkers)  # the round is tried again without them
Gone = kind("gone", AboutWorkers)  # nobody waits for them


class Surveyed(Event, event="survey"):
    """Links were timed before the first plan."""

    told: Sequence[int]  # the workers that answered
    seconds: float


class Began(AttemptEvent, event="attempt"):
    participants: Sequence[int]
    deadline: float  # s
    exchange: dict[str, Any]  # what the record does not say of it: enough to repeat it
    restarted: Sequence[int] | None = None  # who begins again; group averages only
    back_to: Sequence[int] | None = None  # the attempt that everyone goes back to


class Reported(AttemptEvent, event="report"):
    """A report of a worker was accepted."""

    worker: int
    digest: str
    turn: int | None = None
    steps: int | None = None  # group averages only, as the next two
    during: int | None = None
    consensus: str | None = None
    lost: Sequence[int] | None = None  # peers whose model it did not get
    lost_at: Sequence[int] | None = None  # from which exchange on, if not in any of the round


class Failed(AttemptEvent, event="failed"):
    """A worker has no group average."""

    worker: int
    lost: Sequence[int]
    why: str


class Disputed(AttemptEvent, event="disputed"):
    """Two neighbors in a tree have different results."""

    above: int
    below: int


class WentBack(AttemptEvent, event="went_back"):
    to: Sequence[int]  # the attempt that everyone continues from
    why: str


class Committed(AttemptEvent, event="commit"):
    reported: Sequence[int]


class Suspended(MemberEvent, event="suspended"):
    """A worker is put aside."""

    rounds: int
    why: str


# --- members, by a coordinator -------------------------------------------------------------

Left = kind("leave", MemberReason)
Dismissed = kind("dismissed", MemberEvent)  # it got its last order
Drained = kind("drain", MemberEvent)  # it is to leave after its round
Released = kind("released", MemberEvent)  # nobody waits any longer for one that is to leave
FellBehind = kind("behind", MemberEvent)  # it has to catch up
Removed = kind("removed", MemberReason)
Allowed = kind("allowed", MemberEvent)  # it may join again
CallRefused = kind("refused", NamedReason)
Lost = kind("lost", MemberReason)  # it or its connection is gone
Suspect = kind("suspect", Silence)
Dead = kind("dead", Silence)  # it must join again
Heard = kind("heard", MemberEvent)  # it was silent
Ended = kind("ended", NamedReason)  # a process, as its launcher says


class Joined(MemberEvent, event="join"):
    name: str


class SetupNoted(MemberEvent, event="setup"):
    private: bool  # it trains on samples of its own


class NewCertificate(Event, event="certificate"):
    name: str


class Quarantined(Event, event="quarantined"):
    """Everything of this caller is refused."""

    name: str
    worker: int | None = None


# --- by a worker ---------------------------------------------------------------------------

Advanced = kind("advanced", AttemptEvent)  # its model of this attempt is committed
ModelDiverged = kind("diverged", AttemptEvent)  # its model would not be finite any more
DiskFull = kind("disk_full", Reason)  # it waits for space


class Trusted(Event, event="trust"):
    trusted: str  # the module whose parts may be used
    file: str
    sha256: str


class JoinedRun(Event, event="join"):
    run: str
    epoch: int
    worker: int


class DataRead(Event, event="data"):
    """What the worker trains on, and how it is scaled."""

    samples: int
    private: bool
    file: str | None = None
    not_used: int | None = None  # samples of the file
    mean: Sequence[float] | None = None
    deviation: Sequence[float] | None = None


class Ordered(Event, event="order"):
    kind: str
    attempt: Attempt


class CaughtUp(AttemptEvent, event="caught_up"):
    """It took the committed model from a peer."""

    peer: str
    position: dict[str, Any]  # of its batches, where it has any


class Trained(AttemptEvent, event="trained"):
    turn: int | None = None
    steps: int = 0
    during: int | None = None  # of these, while the group averaged
    seconds: float | None = None


class Mixed(AttemptEvent, event="mixed"):
    """Its model after the exchange is stored."""

    turn: int | None = None
    digest: str = ""
    consensus: str | None = None


class Averaged(Event, event="averaged"):
    peer: str  # that asked for a swap


class LostAverage(AttemptEvent, event="average_lost"):
    why: str


class ReportAnswered(AttemptEvent, event="reported"):
    accepted: bool
    why: str


class MessageRefused(Event, event="refused"):
    peer: str
    what: str
    reason: str
    quarantined: bool
    left_out: int | None = None  # lines like this one, before


class WorkerFinished(Event, event="finished"):
    why: str
    attempt: Attempt
