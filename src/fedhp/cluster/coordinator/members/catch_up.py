"""Members without the committed model: who can give it to them, and how long others wait.

Otherwise a worker that was away would never be back: whenever it has caught up, the others have
begun the next round.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedhp.cluster import events
from fedhp.cluster.coordinator.attempts.attempts import Attempts
from fedhp.cluster.coordinator.conductor import Member
from fedhp.cluster.coordinator.context import LeaderContext
from fedhp.seeds import Purpose, generator

MOST_CATCH_UP_WAITS = 3  # attempts that wait for a worker which does not catch up
CATCH_UP_SECONDS = 1.5  # the least time that an attempt waits for it


class CatchUp:
    """The members that were ordered to take the committed model from a peer."""

    def __init__(self, context: LeaderContext, attempts: Attempts) -> None:
        self._context, self._conductor = context, context.conductor
        self._planning, self._attempts = attempts.planning, attempts
        self.waits: dict[int, int] = {}  # attempts that waited, by worker

    def order(self, member: Member) -> None:
        """A member gets the order to take the committed model from a peer."""
        if member.worker not in self.waits:
            self.waits[member.worker] = 0
            self._context.history.note(events.FellBehind(member.worker))

    def holders(self, member: Member, *, now: float) -> list[Member]:
        """Other members that hold the committed model, in an order that nobody's numbers decide:
        who says that its links are fast could choose what others continue from."""
        holders = [
            other
            for other in self._conductor.alive(now)
            if other.worker != member.worker and self._conductor.holds(other)
        ]
        # Others have caught up, or their report never came: then their model may be refused.
        wanted, digests = set(self._attempts.digests.wanted()), self._attempts.digests.by_worker
        holders = [other for other in holders if digests.get(other.worker) in wanted] or holders
        keys = self._context.round_index, member.worker
        drawn = generator(self._context.experiment.seed, Purpose.HELPERS, *keys)
        return [holders[index] for index in drawn.permutation(len(holders))]

    def late_members(self, now: float) -> list[Member]:
        """Members that will soon have the committed model: the next attempt may wait for them."""
        return [
            member
            for member in self._conductor.alive(now)
            if self.waits.get(member.worker, MOST_CATCH_UP_WAITS) < MOST_CATCH_UP_WAITS
            and not self._conductor.holds(member)
            and not member.draining
        ]

    def seconds(self, late: Sequence[Member], *, now: float) -> float:
        """How long to wait for them: as long as a model takes, with patience, but no longer than
        for a report."""
        planner = self._planning.planner
        if planner is None or not late:
            return 0.0
        alive, holds = self._conductor.alive(now), self._conductor.holds
        receivers = [member.worker for member in late]
        slowest = planner.links.slowest(receivers, [one.worker for one in alive if holds(one)])
        pull = 8.0 * self._planning.model_bytes / slowest if np.isfinite(slowest) else 0.0
        wait = max(CATCH_UP_SECONDS, self._context.experiment.cluster.patience * pull)
        return min(self._attempts.deadlines.longest_wait(), wait)

    def waited_for(self, late: Sequence[Member], *, ready: Sequence[int]) -> None:
        """An attempt begins with the ready workers; the late ones have had one more chance."""
        for member in late:
            self.waits[member.worker] += 1
        for worker in ready:
            self.waits.pop(worker, None)
