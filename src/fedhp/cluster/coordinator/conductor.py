"""The round protocol as a state machine: who is a member, which attempt runs, what counts.

No clock, no network, no disk: whoever calls says what time it is, and makes a commit durable
before telling. docs/protocol.md says the same in words; a model checks it in the tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.guard import Refused

T = TypeVar("T")


class Status(StrEnum):
    """How a member stands."""

    READY = "ready"
    BEHIND = "behind"  # alive, but without the committed model
    SUSPECT = "suspect"  # silent: nobody waits for it
    DEAD = "dead"  # silent for long: it must join again
    LEFT = "left"
    QUARANTINED = "quarantined"


class AttemptVerdict(StrEnum):
    """What to do about the attempt that runs."""

    WAIT = "wait"
    COMMIT = "commit"
    GIVE_UP = "give up"


@dataclass(slots=True)
class Member:
    """What is known of one worker."""

    worker: int
    name: str
    address: str = ""
    incarnation: int = 0
    seen: float = float("-inf")  # clock of its last sign of life
    stands: tuple[Attempt, ...] = ()
    step_time: float = float("nan")
    phase: str = ""
    accuracy: float = float("nan")
    left: bool = True  # until it joins
    draining: bool = False
    quarantined: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """The times and counts that the protocol goes by; seconds."""

    workers: int  # at most so many members
    min_workers: int
    suspect_after: float
    dead_after: float
    asynchronous: bool = False  # everyone goes on from its own model, whatever it is


@dataclass(slots=True)
class Running(Generic[T]):
    """The attempt that runs."""

    attempt: Attempt
    participants: frozenset[int]
    deadline: float
    reports: dict[int, T] = field(default_factory=dict)
    sealed: bool = False  # it is being committed: what comes now is late


class Conductor(Generic[T]):
    """Members and attempts; T is the body of a report."""

    def __init__(self, rules: Rules, *, epoch: int, committed: Attempt = INITIAL) -> None:
        if epoch <= committed.epoch:
            raise ValueError(f"epoch {epoch} is not after {committed.epoch}")
        self.rules = rules
        self.epoch = epoch
        self.committed = committed
        self.members: dict[int, Member] = {}
        self.running: Running[T] | None = None
        self._tries = 0  # attempts at the coming round in this epoch

    # --- members ---------------------------------------------------------------------------

    def restore(self, names: Iterable[tuple[int, str]]) -> None:
        """The members of an earlier life: an index belongs to its name for the whole run."""
        for worker, name in names:
            self.members[worker] = Member(worker, name)

    def join(
        self,
        name: str,
        address: str,
        *,
        incarnation: int,
        stands: tuple[Attempt, ...],
        now: float,
    ) -> Member:
        """A worker is there, for the first time or again."""
        member = self.by_name(name)
        if member is None:
            member = Member(self._free(name), name)
            self.members[member.worker] = member
        elif incarnation < member.incarnation:
            raise Refused("sender", f"a later process of {name} has joined already")
        if incarnation > member.incarnation and self.running is not None:
            # Its earlier life took what it knew of this attempt with it.
            self.running.participants -= {member.worker} - self.running.reports.keys()
        member.address, member.incarnation, member.stands = address, incarnation, stands
        member.seen, member.left, member.draining, member.phase = now, False, False, "joined"
        return member

    def beat(self, member: Member, phase: str, now: float) -> None:
        """A sign of life. Who was taken for dead must join again first."""
        if member.left:
            raise Refused("joined", f"{member.name} is no member: join again")
        member.seen, member.phase = max(now, member.seen), phase

    def leave(self, member: Member) -> None:
        """It goes, by its own wish or the operator's."""
        member.left = True

    def by_name(self, name: str) -> Member | None:
        """The member of this name."""
        return next((each for each in self.members.values() if each.name == name), None)

    def status(self, member: Member, now: float) -> Status:
        """How a member stands now."""
        silent = now - member.seen
        if member.left:
            return Status.LEFT
        if member.quarantined:
            return Status.QUARANTINED
        if silent > self.rules.dead_after:
            return Status.DEAD
        if silent > self.rules.suspect_after:
            return Status.SUSPECT
        return Status.READY if self.holds(member) else Status.BEHIND

    def holds(self, member: Member) -> bool:
        """Whether it has a model to go on from; the initial one everyone can make."""
        anyone = self.rules.asynchronous or self.committed == INITIAL
        return anyone or self.committed in member.stands

    def alive(self, now: float) -> list[Member]:
        """Members from whom something may be expected, by worker."""
        good = (Status.READY, Status.BEHIND)
        return [each for each in self._sorted() if self.status(each, now) in good]

    def ready(self, now: float) -> list[Member]:
        """Members that can take part in the next attempt, by worker."""
        return [
            each
            for each in self._sorted()
            if self.status(each, now) is Status.READY and not each.draining
        ]

    def gone(self, now: float) -> list[int]:
        """Workers nobody should wait for."""
        there = {each.worker for each in self.alive(now)}
        return [worker for worker in sorted(self.members) if worker not in there]

    # --- attempts --------------------------------------------------------------------------

    def begin(self, participants: Iterable[int], *, deadline: float) -> Attempt:
        """Start an attempt at the round after the committed one."""
        if self.running is not None:
            raise RuntimeError("an attempt is running")
        self._tries += 1
        attempt = Attempt(self.epoch, self.committed.round_index + 1, self._tries)
        self.running = Running(attempt, frozenset(participants), deadline)
        return attempt

    def report(self, worker: int, attempt: Attempt, body: T) -> None:
        """A participant's report counts once, and only for the attempt that runs."""
        running = self.running
        if running is None or attempt != running.attempt:
            late = "none" if running is None else str(running.attempt)
            raise Refused("attempt", f"a report of {attempt}; {late} is running")
        if running.sealed and worker not in running.reports:
            raise Refused("attempt", f"{attempt} is being committed without worker {worker}")
        if worker not in running.participants:
            raise Refused("participant", f"worker {worker} takes no part in {attempt}")
        if worker in running.reports:
            raise Refused("doubled", f"worker {worker} reported in {attempt} already")
        running.reports[worker] = body

    def verdict(self, now: float) -> AttemptVerdict:
        """Commit when all that are alive have reported, or at the deadline if enough have."""
        running = self.running
        if running is None:
            return AttemptVerdict.WAIT
        there = {each.worker for each in self.alive(now)}
        awaited = (running.participants & there) - running.reports.keys()
        if awaited and now < running.deadline:
            return AttemptVerdict.WAIT
        if len(running.reports) >= max(1, self.rules.min_workers):
            return AttemptVerdict.COMMIT
        return AttemptVerdict.GIVE_UP

    def seal(self) -> dict[int, T]:
        """From now on no report counts any more: these are the ones that are committed."""
        if self.running is None:
            raise RuntimeError("no attempt is running")
        self.running.sealed = True
        return dict(self.running.reports)

    def commit(self) -> Attempt:
        """The attempt counts; it was made durable before. Who reported stands there now."""
        if self.running is None:
            raise RuntimeError("no attempt is running")
        attempt = self.committed = self.running.attempt
        for worker in self.running.reports:
            member = self.members[worker]
            member.stands = (*member.stands[-1:], attempt)
        self.running, self._tries = None, 0
        return attempt

    def give_up(self) -> None:
        """The attempt never was; everyone's model is still the committed one."""
        self.running = None

    # --- inside ----------------------------------------------------------------------------

    def _sorted(self) -> list[Member]:
        return [self.members[worker] for worker in sorted(self.members)]

    def _free(self, name: str) -> int:
        """The index for a new name: the number at its end if that is free, else the lowest."""
        ending = re.search(r"([0-9]{1,6})$", name)
        wanted = int(ending[1]) if ending else -1
        if 0 <= wanted < self.rules.workers and wanted not in self.members:
            return wanted
        for worker in range(self.rules.workers):
            if worker not in self.members:
                return worker
        raise Refused("full", f"all {self.rules.workers} places are taken; {name} has none")
