"""Rounds of group averages: what everyone continues from, and what to do when one fails.

Everyone continues from the last round in which it was counted. An average takes effect for all
members of a group or for none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fedhp.cluster import events
from fedhp.cluster.coordinator.attempts.blame import REMEMBERED_ROUNDS, Blame
from fedhp.cluster.coordinator.attempts.checkpoints import Checkpoints, GroupCheckpoint
from fedhp.cluster.coordinator.attempts.group_checks import (
    WrongParts,
    disputed_links,
    norms_after,
)
from fedhp.cluster.coordinator.committed_state import Norms
from fedhp.cluster.coordinator.conductor import Member, RunningAttempt
from fedhp.cluster.coordinator.context import LeaderContext
from fedhp.cluster.coordinator.planning.planning import Planning
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.exchange import GroupAverage

WRONG_PARTS, WENT_BACK = "wrong_parts", "went_back"  # keys of warnings


class GroupRounds:
    """Versions, norms and checkpoints of all workers, and who spoiled averages."""

    def __init__(self, context: LeaderContext, planning: Planning) -> None:
        self._context, self._conductor = context, context.conductor
        committed = context.taken_over
        self._planning = planning
        # What each worker continues from; INITIAL for all others.
        self.versions: dict[int, Attempt] = dict(committed.versions)
        self.norms: Norms = dict(committed.norms)  # of what each brings into the next averages
        self.checkpoints = Checkpoints(committed.checkpoints)
        self._own: dict[int, Attempt] = {}  # the versions as the running attempt was planned
        self.trees: Sequence[GroupAverage] = ()  # of the running attempt
        # To which everyone goes back with the next commit, and in which round that was last.
        self._return: GroupCheckpoint | None = None
        self._went_back = 0
        self.blame = Blame()
        self._wrong_parts, self._suspects = WrongParts(), set[tuple[str, ...]]()
        # Workers that lost an average: in which round, and when.
        self._left_aside: dict[int, tuple[int, float]] = {}

    # --- versions --------------------------------------------------------------------------

    def own_version(self, member: Member) -> Attempt:
        """What a member continues from: the last round in which it was counted, or the initial
        model if it has lost that."""
        if member.worker in self._own:
            return self._own[member.worker]
        version = self.versions.get(member.worker, INITIAL)
        return version if version in member.models else INITIAL

    def settle_versions(self, workers: Iterable[int]) -> None:
        """Before an attempt is planned: what everyone is going to continue from."""
        members, self._own = self._conductor.members, {}
        self._own = {worker: self.own_version(members[worker]) for worker in workers}

    def restarting(self) -> list[int]:
        """Workers that have lost what they had, and begin again in the attempt that is planned."""
        return [
            worker
            for worker, version in sorted(self._own.items())
            if version != self.versions.get(worker, INITIAL)
        ]

    def versions_after(self, attempt: Attempt) -> dict[int, Attempt]:
        """What everyone continues from once the running attempt is committed."""
        running = self._conductor.running
        if self._return is not None:
            return self._return.versions
        if running is None:
            return self.versions
        return {**self.versions, **self._own, **dict.fromkeys(running.reports, attempt)}

    def norms_after(self) -> Norms:
        """What everyone brings into the next averages once the running attempt is committed."""
        running = self._conductor.running
        if self._return is not None:
            return self._return.norms
        if running is None:
            return self.norms
        return norms_after(self.norms, running.reports, self.trees)

    def gave_up(self) -> None:
        """The attempt does not count."""
        self._own = {}

    def committed(self, attempt: Attempt) -> None:
        """The running attempt is durable; before the conductor knows it."""
        self.norms = self.norms_after()
        self._wrong_parts.forget(round_index=attempt.round_index)
        self._warn_of_wrong_parts()
        self.versions, self._own = self.versions_after(attempt), {}
        self._return = None

    # --- returns ---------------------------------------------------------------------------

    def judge_losses(self, attempt: Attempt, reports: Mapping[int, wire.RoundReport]) -> None:
        """Before a round is committed: everyone goes back if most losses explode."""
        if self.checkpoints.explode(reports):
            self._go_back(attempt, "the losses of most workers exploded")
            return
        versions, norms = self.versions_after(attempt), self.norms_after()
        plan = self._planning.rounds.pack_state()
        self.checkpoints.round_ended(reports, GroupCheckpoint(attempt, versions, norms, plan))
        if attempt.round_index > self._went_back + REMEMBERED_ROUNDS:
            self._context.warnings.end(WENT_BACK)

    def average_lost(self, running: RunningAttempt[wire.RoundReport], now: float) -> bool:
        """The attempt has to be given up: tried again without the members that are taken for the
        cause. Where the models of most have diverged, everyone goes back to an earlier round,
        which has to be committed: whether that is so."""
        diverged = [each for each in running.failed.values() if each.diverged]
        if 2 * len(diverged) <= len(running.required):
            self._leave_aside(running, now)
            return False
        self._go_back(running.attempt, "the models of most workers diverged")
        if self._return is None:
            return False
        self.versions, self.norms = self._return.versions, self._return.norms
        self._return = None
        return True

    def _go_back(self, attempt: Attempt, why: str) -> None:
        """Everyone continues from a checkpoint, with the next commit."""
        self._return = self.checkpoints.go_back()
        if self._return is None:
            return
        self._planning.rounds.go_back(self._return.plan)
        to, self._went_back = self._return.attempt, attempt.round_index
        self._context.history.note(events.WentBack(attempt, to.to_list(), why))
        self._context.warnings.set(
            WENT_BACK,
            value=self.checkpoints.returns,
            text=f"in round {attempt.round_index} {why}: everyone went back to the models of round "
            f"{to.round_index}. Either a member poisons the averages, or the learning rate is too "
            "high",
        )

    # --- who is the cause ------------------------------------------------------------------

    def dispute_results(self) -> bool:
        """Whether the members of a group do not have the same result: then there is no average,
        and each end of a link where the difference begins blames the other."""
        running = self._conductor.running
        if running is None or not running.required <= running.reports.keys():
            return False
        disputed = [link for tree in self.trees for link in disputed_links(tree, running.reports)]
        for above, below in disputed:
            self._conductor.dispute(above, below)
            self._context.history.note(events.Disputed(running.attempt, above, below))
            self.note_wrong_part(above, below)
        return bool(disputed)

    def note_wrong_part(self, one: int, other: int) -> None:
        """Two neighbors in a tree contradict each other."""
        self._wrong_parts.add(one, other, round_index=self._context.round_index + 1)
        self._warn_of_wrong_parts()

    def _warn_of_wrong_parts(self) -> None:
        members, before = self._conductor.members, self._suspects
        self._suspects = {
            tuple(members[worker].name for worker in suspects)
            for suspects in self._wrong_parts.suspects()
        }
        for names in before - self._suspects:
            self._context.warnings.end(WRONG_PARTS, members=names)
        for names in sorted(self._suspects):
            whose = f"{names[0]} sends" if len(names) == 1 else f"{names[0]} or {names[1]} sends"
            self._context.warnings.set(
                WRONG_PARTS,
                members=names,
                value=self._context.round_index + 1,
                text=f"{whose} wrong parts of group averages, which others refused or contradict",
            )

    def _leave_aside(self, running: RunningAttempt[wire.RoundReport], now: float) -> None:
        members, coming = self._conductor.members, self._context.round_index + 1
        causes = self.blame.judge(
            running.failed,
            absent=self._conductor.absent(now),
            misses={worker: member.misses for worker, member in members.items()},
            round_index=coming,
        )
        for worker in causes & members.keys():
            self._left_aside[worker] = coming, now
        if causes:
            self._context.history.note(events.LeftAside(sorted(causes)))

    def left_aside(self) -> list[int]:
        """Workers without which the next round is tried: they lost an average in this round, or
        in an earlier one and gave no sign of life since. Who did has kept the others waiting."""
        members = self._conductor.members
        back = [
            worker
            for worker, (round_index, when) in self._left_aside.items()
            if round_index <= self._context.round_index and members[worker].seen > when
        ]
        self.end_left_aside(back)
        return sorted(self._left_aside)

    def end_left_aside(self, workers: Iterable[int]) -> None:
        """They may take part again: they are there, or without them there are too few."""
        for worker in workers:
            del self._left_aside[worker]
            self._context.missed(
                self._conductor.members[worker], "group averages failed because of it"
            )

    def allow(self, worker: int) -> None:
        """The operator let it in again: the next round is tried with it."""
        self._left_aside.pop(worker, None)
