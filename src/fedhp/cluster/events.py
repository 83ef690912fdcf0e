"""The events of histories: what a coordinator, a worker and a launcher write down of a run.

Declared once, for those that write them and those that read them (audit, dash). The facts of an
event are its fields, in their order: attempts and mappings as several facts, and nothing for None,
which earlier releases, or runs of another kind, leave out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias, dataclass_transform

from fedhp.cluster.history import DROPPED, LEFT_OUT
from fedhp.cluster.protocol.attempt import Attempt


@dataclass_transform(frozen_default=True)
class Event:
    """One line of a history; every kind of event is a frozen dataclass."""

    event: ClassVar[str]

    def __init_subclass__(cls, event: str) -> None:
        cls.event = event
        dataclasses.dataclass(frozen=True)(cls)

    def facts(self) -> dict[str, Any]:
        """What the line says, apart from when and who."""
        facts: dict[str, Any] = {}
        for name, value in vars(self).items():
            if value is None:
                continue
            if isinstance(value, Attempt):
                facts.update(value.to_facts())
            elif isinstance(value, dict):
                facts.update(value)
            else:
                facts[name] = value
        return facts


Kind: TypeAlias = type[Event]


class LeftOut(Event, event=LEFT_OUT):
    """Lines of these attempts were left out, where there were many at one round."""

    epoch: int
    round: int
    first: int
    last: int
    lines: int


class Dropped(Event, event=DROPPED):
    """Lines up to this attempt were dropped with the oldest parts."""

    attempt: Attempt
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


class Began(Event, event="attempt"):
    """An attempt begins."""

    attempt: Attempt
    participants: Sequence[int]
    deadline: float  # s
    exchange: dict[str, Any]  # what the record does not say of it: enough to repeat it
    restarted: Sequence[int] | None = None  # who begins again; group averages only
    back_to: Sequence[int] | None = None  # the attempt that everyone goes back to


class Reported(Event, event="report"):
    """A report of a worker was accepted."""

    attempt: Attempt
    worker: int
    digest: str
    turn: int | None = None
    steps: int | None = None  # group averages only, as the next two
    during: int | None = None
    consensus: str | None = None
    lost: Sequence[int] | None = None  # peers whose model it did not get
    lost_at: Sequence[int] | None = None  # from which exchange on, if not in any of the round


class Failed(Event, event="failed"):
    """A worker has no group average."""

    attempt: Attempt
    worker: int
    lost: Sequence[int]
    why: str


class Disputed(Event, event="disputed"):
    """Two neighbors in a tree have different results."""

    attempt: Attempt
    above: int
    below: int


class GaveUp(Event, event="gave_up"):
    """The attempt does not count."""

    attempt: Attempt


class LeftAside(Event, event="left_aside"):
    """The round is tried again without these workers."""

    workers: Sequence[int]


class WentBack(Event, event="went_back"):
    """Everyone continues from an earlier attempt."""

    attempt: Attempt
    to: Sequence[int]
    why: str


class Committed(Event, event="commit"):
    """The attempt counts."""

    attempt: Attempt
    reported: Sequence[int]


class Gone(Event, event="gone"):
    """Nobody waits for these workers."""

    workers: Sequence[int]


class Suspended(Event, event="suspended"):
    """A worker is put aside."""

    worker: int
    rounds: int
    why: str


# --- members, by a coordinator -------------------------------------------------------------


class Joined(Event, event="join"):
    """A worker is a member."""

    worker: int
    name: str


class SetupNoted(Event, event="setup"):
    """A worker said what it has; private: it trains on samples of its own."""

    worker: int
    private: bool


class Left(Event, event="leave"):
    """A member left."""

    worker: int
    why: str


class Dismissed(Event, event="dismissed"):
    """A member got its last order."""

    worker: int


class Drained(Event, event="drain"):
    """A member is to leave after its round."""

    worker: int


class Released(Event, event="released"):
    """Nobody waits any longer for a member that is to leave."""

    worker: int


class FellBehind(Event, event="behind"):
    """A member has to catch up."""

    worker: int


class Removed(Event, event="removed"):
    """A member is out."""

    worker: int
    why: str


class Allowed(Event, event="allowed"):
    """A member may join again."""

    worker: int


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


class Lost(Event, event="lost"):
    """A member or its connection is gone."""

    worker: int
    why: str


class Suspect(Event, event="suspect"):
    """No heartbeat for a while."""

    worker: int
    seconds: float


class Dead(Event, event="dead"):
    """No heartbeat for so long that the member must join again."""

    worker: int
    seconds: float


class Heard(Event, event="heard"):
    """A member that was silent is there again."""

    worker: int


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


class Advanced(Event, event="advanced"):
    """Its model of this attempt is committed."""

    attempt: Attempt


class CaughtUp(Event, event="caught_up"):
    """It took the committed model from a peer."""

    attempt: Attempt
    peer: str
    position: dict[str, Any]  # of its batches, where it has any


class Trained(Event, event="trained"):
    """Its local steps are done."""

    attempt: Attempt
    turn: int | None = None
    steps: int = 0
    during: int | None = None  # of these, while the group averaged
    seconds: float | None = None


class Mixed(Event, event="mixed"):
    """Its model after the exchange is stored."""

    attempt: Attempt
    turn: int | None = None
    digest: str = ""
    consensus: str | None = None


class Averaged(Event, event="averaged"):
    """It averaged its model with that of a peer that asked for a swap."""

    peer: str


class LostAverage(Event, event="average_lost"):
    """There is no group average."""

    attempt: Attempt
    why: str


class ModelDiverged(Event, event="diverged"):
    """Its model would not be finite any more."""

    attempt: Attempt


class ReportAnswered(Event, event="reported"):
    """Whether its report counts."""

    attempt: Attempt
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
