"""The round protocol as a state machine: who is a member, which attempt runs, what counts.

No clock, no network, no disk: the caller passes the time, and makes a commit durable before it
calls commit(). docs/protocol.md describes the same in words; tests check it with a model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.guard import Refused

T = TypeVar("T")
LONGEST_SUSPENSION = 64  # rounds
REPORTS_TO_FORGIVE = 50  # in a row, until one miss is forgotten
SLOW_ROUNDS = 3  # in a row, until being slow counts as a miss


class MemberStatus(StrEnum):
    """Whether a member can take part, and if not, why."""

    READY = "ready"
    BEHIND = "behind"  # alive, but without the committed model
    SUSPECT = "suspect"  # silent: nobody waits for it
    DEAD = "dead"  # silent for long: it must join again
    LEFT = "left"
    SUSPENDED = "suspended"  # put aside for some rounds: it missed reports
    REMOVED = "removed"  # by the operator or the allow-list
    QUARANTINED = "quarantined"  # by the guard, which refuses all its messages


class AttemptVerdict(StrEnum):
    """What to do about the running attempt."""

    WAIT = "wait"
    COMMIT = "commit"
    GIVE_UP = "give up"


@dataclass(slots=True)
class Member:
    """What is known about one worker."""

    worker: int
    name: str
    address: str = ""
    incarnation: int = 0
    seen: float = float("-inf")  # time of its last sign of life
    models: tuple[Attempt, ...] = ()  # the attempts whose models it holds
    step_time: float = float("nan")
    phase: str = ""
    accuracy: float = float("nan")
    left: bool = True  # until it joins
    draining: bool = False
    removed: str = ""  # why; it may not join before the operator allows it again
    misses: int = 0  # reports that others had to wait for in vain, not yet forgiven
    punctual: int = 0  # reports in time since the last miss
    slow: int = 0  # rounds in a row in which it was far slower than the others
    suspended_to: int = 0  # it takes part in no round up to this one

    def beat(self, phase: str, now: float) -> None:
        """A sign of life. A member that left must join again first."""
        if self.left:
            raise Refused("joined", f"{self.name} is not a member: join again")
        self.seen, self.phase = max(now, self.seen), phase

    def readmit(self) -> None:
        """It may join again, and starts with a clean sheet."""
        self.removed, self.misses, self.slow, self.suspended_to = "", 0, 0, 0

    def was_punctual(self) -> None:
        """It reported in time; misses are forgiven one by one, and slowly."""
        self.punctual += 1
        self.slow = 0
        if self.punctual >= REPORTS_TO_FORGIVE:
            self.punctual, self.misses = 0, max(0, self.misses - 1)

    def was_slow(self) -> bool:
        """It reported, but far later than the others; whether that counts as a miss now."""
        self.slow += 1
        return self.slow >= SLOW_ROUNDS


@dataclass(frozen=True, slots=True)
class ConductorSettings:
    """Counts and times of the protocol; times in seconds."""

    workers: int  # the largest number of members
    min_workers: int
    suspect_after: float
    dead_after: float
    asynchronous: bool = False  # each worker continues from its own model, whatever it is
    groups: bool = False  # each worker continues from the last round in which it was counted
    hearing: float = 0.0  # s within which every member that is alive gives a sign of life


@dataclass(frozen=True, slots=True)
class Failure:
    """What a participant says of a group average that did not come."""

    lost: tuple[int, ...]  # the neighbors in the tree whose part is missing
    late: bool  # it waited for them until the end; else the link broke
    at: float = 0.0  # when it said so
    diverged: bool = False  # there was an average, and its model is not finite any more


@dataclass(slots=True)
class RunningAttempt(Generic[T]):
    """The attempt that is under way."""

    attempt: Attempt
    participants: frozenset[int]
    deadline: float
    started: float = 0.0
    reports: dict[int, T] = field(default_factory=dict)
    awaited: set[int] = field(default_factory=set)  # participants that have not reported yet
    arrivals: dict[int, float] = field(default_factory=dict)  # s from the start, by worker
    sealed: bool = False  # it is being committed: a report that comes now is late
    required: frozenset[int] = frozenset()  # without the reports of these it cannot be committed
    failed: dict[int, Failure] = field(default_factory=dict)  # by worker that says so

    def release(self, worker: int) -> bool:
        """Nobody waits for the report of this worker; whether somebody did."""
        if worker not in self.awaited:
            return False
        self.awaited.discard(worker)
        self.participants -= {worker}
        return True


class Conductor(Generic[T]):
    """Members and attempts; T is the body of a report."""

    def __init__(
        self, settings: ConductorSettings, *, epoch: int, committed: Attempt = INITIAL
    ) -> None:
        if epoch <= committed.epoch:
            raise ValueError(f"epoch {epoch} is not after {committed.epoch}")
        self.settings = settings
        self.epoch = epoch
        self.committed = committed
        self.members: dict[int, Member] = {}  # by worker, ascending
        self.by_name: dict[str, Member] = {}
        self.running: RunningAttempt[T] | None = None
        self.tries = 0  # attempts at the next round in this epoch

    # --- members ---------------------------------------------------------------------------

    def restore(self, names: Iterable[tuple[int, str]]) -> None:
        """The members of an earlier coordinator: an index belongs to its name for the whole run."""
        for worker, name in names:
            self._add(Member(worker, name))

    def join(
        self,
        name: str,
        address: str,
        *,
        incarnation: int,
        models: tuple[Attempt, ...],
        now: float,
        step_time: float = float("nan"),
    ) -> Member:
        member = self.by_name.get(name)
        if member is None:
            member = self._add(Member(self._free_index(name), name))
        elif member.removed:
            raise Refused("removed", f"{name} was removed: {member.removed}")
        elif incarnation < member.incarnation:
            raise Refused("sender", f"a later process of {name} has joined already")
        if incarnation > member.incarnation and self.running is not None:
            # Its earlier process took what it knew of this attempt with it.
            self.running.release(member.worker)
        member.address, member.incarnation, member.models = address, incarnation, models
        member.seen, member.left, member.draining, member.phase = now, False, False, "joined"
        member.step_time = step_time
        return member

    def remove(self, member: Member, why: str) -> None:
        """It is out of the run at once, and stays out until it is allowed again."""
        member.removed, member.left = why, True
        self.release(member)

    def release(self, member: Member) -> bool:
        """Nobody waits for its report in the running attempt; whether somebody did."""
        running = self.running
        return running is not None and not running.sealed and running.release(member.worker)

    def loses_report(self, name: str, *, incarnation: int) -> bool:
        """Whether the running attempt waits for a report that a later process of this name does
        not have. Members of a group are judged with their attempt."""
        running, member = self.running, self.by_name.get(name)
        if running is None or member is None or not incarnation > member.incarnation > 0:
            return False
        return member.worker in running.awaited - running.required

    def status(self, member: Member, now: float) -> MemberStatus:
        """Whether a member can take part now."""
        silent = now - member.seen
        if member.removed:
            return MemberStatus.REMOVED
        if member.left:
            return MemberStatus.LEFT
        if silent > self.settings.dead_after:
            return MemberStatus.DEAD
        if silent > self.settings.suspect_after:
            return MemberStatus.SUSPECT
        if member.suspended_to > self.committed.round_index:
            return MemberStatus.SUSPENDED
        return MemberStatus.READY if self.holds(member) else MemberStatus.BEHIND

    def holds(self, member: Member) -> bool:
        """Whether it has a model to continue from; the initial one everyone can make."""
        settings = self.settings
        anyone = settings.asynchronous or settings.groups or self.committed == INITIAL
        return anyone or self.committed in member.models

    def alive(self, now: float) -> list[Member]:
        """Members from which something may be expected, by worker."""
        return [member for member in self.members.values() if self.is_alive(member, now)]

    def is_alive(self, member: Member, now: float) -> bool:
        """Whether it is ready or behind; quicker than status(), which every heartbeat would ask
        of everyone."""
        silent = now - member.seen
        return not (
            member.removed
            or member.left
            or silent > self.settings.suspect_after
            or silent > self.settings.dead_after
            or member.suspended_to > self.committed.round_index
        )

    def ready(self, now: float) -> list[Member]:
        """Members that can take part in the next attempt, by worker."""
        return [
            member
            for member in self.members.values()
            if self.status(member, now) is MemberStatus.READY and not member.draining
        ]

    # --- members that keep the others waiting ----------------------------------------------

    def missed(self, member: Member) -> int:
        """The others waited for it in vain; for how many rounds it is put aside. The first miss
        has no consequence, since every machine is slow once; then 1, 2, 4, ... rounds."""
        member.misses, member.punctual, member.slow = member.misses + 1, 0, 0
        rounds = 0 if member.misses < 2 else min(2 ** (member.misses - 2), LONGEST_SUSPENSION)
        if rounds:
            member.suspended_to = self.committed.round_index + 1 + rounds
        return rounds

    def end_suspensions(self, now: float) -> list[Member]:
        """Without them there are too few: all that are put aside may take part again."""
        suspended = [
            member
            for member in self.members.values()
            if self.status(member, now) is MemberStatus.SUSPENDED
        ]
        for member in suspended:
            member.suspended_to = 0
        return suspended

    def overdue(self, now: float) -> list[Member]:
        """Members that are alive and whose report the running attempt still waits for."""
        running = self.running
        if running is None:
            return []
        alive = {member.worker: member for member in self.alive(now)}
        return [alive[worker] for worker in sorted(running.awaited & alive.keys())]

    # --- attempts --------------------------------------------------------------------------

    def begin(
        self,
        participants: Iterable[int],
        *,
        deadline: float,
        started: float = 0.0,
        required: Iterable[int] = (),
    ) -> Attempt:
        """Start an attempt at the round after the committed one; required: the members of a
        group average, which takes effect for all of them or for none."""
        if self.running is not None:
            raise RuntimeError("an attempt is running")
        self.tries += 1
        attempt = Attempt(self.epoch, self.committed.round_index + 1, self.tries)
        workers = frozenset(participants)
        self.running = RunningAttempt(
            attempt,
            workers,
            deadline,
            started,
            awaited=set(workers),
            required=frozenset(required),
        )
        return attempt

    def report(self, worker: int, attempt: Attempt, body: T, *, now: float = 0.0) -> None:
        """A participant's report counts once, and only for the running attempt."""
        running = self._check_report(worker, attempt)
        running.reports[worker] = body
        running.awaited.discard(worker)
        running.arrivals[worker] = now - running.started

    def fail(self, worker: int, attempt: Attempt, failure: Failure) -> None:
        """A member of a group says that there is no average: it has no report."""
        running = self._check_report(worker, attempt)
        if worker not in running.required:
            raise Refused("kind", f"worker {worker} is not a member of the group of {attempt}")
        running.failed[worker] = failure
        running.awaited.discard(worker)

    def dispute(self, above: int, below: int) -> None:
        """Two neighbors in the tree of a group average do not have the same result: there is
        none, and each of them says that it is the other."""
        running = self.running
        assert running is not None
        for worker, other in ((above, below), (below, above)):
            before = running.failed.get(worker, Failure((), late=False))
            running.failed[worker] = Failure((*before.lost, other), late=False)
            running.reports.pop(worker, None)

    def _check_report(self, worker: int, attempt: Attempt) -> RunningAttempt[T]:
        running = self.running
        if running is None or attempt != running.attempt:
            current = "none" if running is None else str(running.attempt)
            raise Refused("attempt", f"a report of {attempt}; {current} is running")
        if running.sealed and worker not in running.reports:
            raise Refused("attempt", f"{attempt} is being committed without worker {worker}")
        if worker not in running.participants:
            raise Refused("participant", f"worker {worker} does not take part in {attempt}")
        if worker in running.reports or worker in running.failed:
            raise Refused("doubled", f"worker {worker} has already reported in {attempt}")
        return running

    def verdict(self, now: float) -> AttemptVerdict:
        """Commit when all that are alive have reported, or at the deadline if enough have."""
        running = self.running
        if running is None:
            return AttemptVerdict.WAIT
        if running.required and self._group_is_lost(running, now):
            return AttemptVerdict.GIVE_UP
        members = self.members
        if now < running.deadline and any(
            worker in members and self.is_alive(members[worker], now) for worker in running.awaited
        ):
            return AttemptVerdict.WAIT
        if len(running.reports) >= max(1, self.settings.min_workers):
            return AttemptVerdict.COMMIT
        return AttemptVerdict.GIVE_UP

    def _group_is_lost(self, running: RunningAttempt[T], now: float) -> bool:
        """Whether the group average can no longer take effect for all of its members. Where some
        waited in vain, the others may still say for whom."""
        missing = running.required - running.reports.keys()
        silent = missing - running.failed.keys()
        if any(
            not failure.late and self._has_heard(running, worker, now)
            for worker, failure in running.failed.items()
        ):
            return True
        if self._gone(running, silent, now):
            return True
        return bool(missing) and (now >= running.deadline or not silent)

    def _has_heard(self, running: RunningAttempt[T], worker: int, now: float) -> bool:
        """Whether those that a failure names have given a sign of life since, or had the time to:
        one that has stopped is the cause, and two that quarrel both are. Nobody waits for those
        that a member names which was waited for in vain more often than any of them."""
        failure, misses = running.failed[worker], self.members[worker].misses
        if misses > max((self.members[lost].misses for lost in failure.lost), default=0):
            return True
        return now >= failure.at + self.settings.hearing or not self._unheard(running, failure)

    def _unheard(self, running: RunningAttempt[T], failure: Failure) -> set[int]:
        return {
            worker
            for worker in failure.lost
            if worker in running.awaited and self.members[worker].seen <= failure.at
        }

    def absent(self, now: float) -> set[int]:
        """Members of the group that owe a word: they began again, are silent, gave no sign of
        life since another one said that their part is missing, or said nothing until the end."""
        running = self.running
        if running is None:
            return set()
        owed = running.required - running.reports.keys() - running.failed.keys()
        unheard = {
            worker
            for failure in running.failed.values()
            if now >= failure.at + self.settings.hearing
            for worker in self._unheard(running, failure)
        }
        # Where most said nothing until the end, the cause is not one of them.
        over = now >= running.deadline and 2 * len(owed) <= len(running.required)
        return self._gone(running, owed, now) | unheard | (owed if over else set())

    def seal(self) -> dict[int, T]:
        """No further report counts; returns those that are going to be committed."""
        assert self.running is not None
        self.running.sealed = True
        return dict(self.running.reports)

    def commit(self) -> Attempt:
        """The attempt counts; it is durable already. Those that reported hold its models."""
        assert self.running is not None
        attempt = self.committed = self.running.attempt
        for worker in self.running.reports:
            member = self.members[worker]
            member.models = (*member.models[-limits.MODEL_VERSIONS + 1 :], attempt)
        self.running, self.tries = None, 0
        return attempt

    def give_up(self) -> None:
        """Drop the attempt; everyone's model is still the committed one."""
        self.running = None

    # --- inside ----------------------------------------------------------------------------

    def _add(self, member: Member) -> Member:
        """Keeps the members in the order of their index, which few ever join."""
        self.members[member.worker] = self.by_name[member.name] = member
        self.members = dict(sorted(self.members.items()))
        return member

    def _gone(self, running: RunningAttempt[T], workers: Iterable[int], now: float) -> set[int]:
        """Those of the workers from which no report can come any more."""
        members = self.members
        return {
            worker
            for worker in workers
            if worker not in running.awaited
            or worker not in members
            or not self.is_alive(members[worker], now)
        }

    def _free_index(self, name: str) -> int:
        """The index for a new name: the number at its end if that is free, else the lowest."""
        number = re.search(r"([0-9]{1,6})$", name)
        preferred = int(number[1]) if number else -1
        if 0 <= preferred < self.settings.workers and preferred not in self.members:
            return preferred
        for worker in range(self.settings.workers):
            if worker not in self.members:
                return worker
        raise Refused(
            "full", f"all {self.settings.workers} places are taken; there is none for {name}"
        )
