"""The events of histories: what a coordinator, a worker and a launcher write down of a run.

Declared once, for those that write them and those that read them (audit, dash). The facts of an
event are its fields, in their order: attempts and mappings as several facts, and nothing for None,
which earlier releases, or runs of another kind, leave out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias, dataclass_transform

from fedhp.cluster.protocol.attempt import Attempt


@dataclass_transform(frozen_default=True)
class Event:
    """One line of a history; every kind of event is a frozen dataclass."""

    event: ClassVar[str]

    def __init_subclass__(cls, event: str = "") -> None:
        cls.event = event
        dataclasses.dataclass(frozen=True)(cls)

    def facts(self) -> dict[str, Any]:
        """What the line says, apart from when and who."""
        facts: dict[str, Any] = {}
        for name, value in vars(self).items():
            several = value.to_facts() if isinstance(value, Attempt) else value
            if isinstance(several, dict):
                facts.update(several)
            elif value is not None:
                facts[name] = value
        return facts


Kind: TypeAlias = type[Event]


class AttemptEvent(Event):
    attempt: Attempt


class MemberEvent(Event):
    worker: int


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


class Lead(Event, event="lead"):
    """A coordinator leads from now on."""

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


class Paused(Event, event="paused"):
    """Nothing can be written or committed."""

    why: str


class Resumed(Event, event="resumed"):
    """It can again, from this round on."""

    round: int


class Frozen(Event, event="frozen"):
    """The process did not run; s, wall clock."""

    since: float
    seconds: float


class Stopped(Event, event="stopped"):
    """An operator's stop is committed."""

    why: str


class Finished(Event, event="finished"):
    """The run is over after this round."""

    round: int
    why: str


class Warned(Event, event="warning"):
    """Something unusual lasts."""

    key: str
    members: Sequence[str]
    value: float
    text: str


# --- attempts, by a coordinator ------------------------------------------------------------


class Surveyed(Event, event="survey"):
    """Links were timed before the first plan."""

    told: Sequence[int]  # the workers that answered
    seconds: float


class Began(AttemptEvent, event="attempt"):
    """An attempt begins."""

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


class GaveUp(AttemptEvent, event="gave_up"):
    """The attempt does not count."""


class LeftAside(Event, event="left_aside"):
    """The round is tried again without these workers."""

    workers: Sequence[int]


class WentBack(AttemptEvent, event="went_back"):
    """Everyone continues from an earlier attempt."""

    to: Sequence[int]
    why: str


class Committed(AttemptEvent, event="commit"):
    """The attempt counts."""

    reported: Sequence[int]


class Gone(Event, event="gone"):
    """Nobody waits for these workers."""

    workers: Sequence[int]


class Suspended(MemberEvent, event="suspended"):
    """A worker is put aside."""

    rounds: int
    why: str


# --- members, by a coordinator -------------------------------------------------------------


class Joined(MemberEvent, event="join"):
    """A worker is a member."""

    name: str


class SetupNoted(MemberEvent, event="setup"):
    """A worker said what it has; private: it trains on samples of its own."""

    private: bool


class Left(MemberEvent, event="leave"):
    """A member left."""

    why: str


class Dismissed(MemberEvent, event="dismissed"):
    """A member got its last order."""


class Drained(MemberEvent, event="drain"):
    """A member is to leave after its round."""


class Released(MemberEvent, event="released"):
    """Nobody waits any longer for a member that is to leave."""


class FellBehind(MemberEvent, event="behind"):
    """A member has to catch up."""


class Removed(MemberEvent, event="removed"):
    """A member is out."""

    why: str


class Allowed(MemberEvent, event="allowed"):
    """A member may join again."""


class NewCertificate(Event, event="certificate"):
    """A name belongs to another certificate."""

    name: str


class CallRefused(Event, event="refused"):
    """A call was refused."""

    name: str
    why: str


class Quarantined(Event, event="quarantined"):
    """Everything of this caller is refused."""

    name: str
    worker: int | None = None


class Lost(MemberEvent, event="lost"):
    """A member or its connection is gone."""

    why: str


class Suspect(MemberEvent, event="suspect"):
    """No heartbeat for a while."""

    seconds: float


class Dead(MemberEvent, event="dead"):
    """No heartbeat for so long that the member must join again."""

    seconds: float


class Heard(MemberEvent, event="heard"):
    """A member that was silent is there again."""


class Ended(Event, event="ended"):
    """A process ended, as its launcher says."""

    name: str
    why: str


# --- by a worker ---------------------------------------------------------------------------


class Trusted(Event, event="trust"):
    """Parts of this module may be used."""

    trusted: str
    file: str
    sha256: str


class JoinedRun(Event, event="join"):
    """The worker is a member of this run."""

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
    """The worker got an order."""

    kind: str
    attempt: Attempt


class Advanced(AttemptEvent, event="advanced"):
    """Its model of this attempt is committed."""


class CaughtUp(AttemptEvent, event="caught_up"):
    """It took the committed model from a peer."""

    peer: str
    position: dict[str, Any]  # of its batches, where it has any


class Trained(AttemptEvent, event="trained"):
    """Its local steps are done."""

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
    """It averaged its model with that of a peer that asked for a swap."""

    peer: str


class LostAverage(AttemptEvent, event="average_lost"):
    """There is no group average."""

    why: str


class ModelDiverged(AttemptEvent, event="diverged"):
    """Its model would not be finite any more."""


class ReportAnswered(AttemptEvent, event="reported"):
    """Whether its report counts."""

    accepted: bool
    why: str


class MessageRefused(Event, event="refused"):
    """A message of a peer was refused."""

    peer: str
    what: str
    reason: str
    quarantined: bool
    left_out: int | None = None  # lines like this one, before


class DiskFull(Event, event="disk_full"):
    """It waits for space."""

    why: str


class WorkerFinished(Event, event="finished"):
    """The run is over for this worker."""

    why: str
    attempt: Attempt
