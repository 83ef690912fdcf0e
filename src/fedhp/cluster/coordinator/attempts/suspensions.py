"""Members that keep the others waiting are put aside for some rounds."""

from __future__ import annotations

import logging

from fedhp.cluster import events
from fedhp.cluster.coordinator.conductor import Member
from fedhp.cluster.coordinator.context import LeaderContext

LOG = logging.getLogger("fedhp.coordinator")
PUT_ASIDE = "put_aside"  # key of a warning


class Suspensions:
    """Counts misses, and says so in the history, the log and a warning."""

    def __init__(self, context: LeaderContext) -> None:
        self._context = context

    def missed(self, member: Member, why: str) -> None:
        """Count a miss; from the second one on, the member is put aside for some rounds."""
        rounds = self._context.conductor.missed(member)
        if rounds:
            self._context.history.note(events.Suspended(member.worker, rounds, why))
            LOG.warning("%s is put aside for %d rounds: %s", member.name, rounds, why)
            times = "once" if member.misses == 2 else f"{member.misses - 1} times"
            self._context.warnings.set(
                PUT_ASIDE,
                members=(member.name,),
                value=member.misses,
                text=f"{member.name} was put aside {times}, last for {rounds} rounds: {why}",
            )

    def was_punctual(self, member: Member) -> None:
        """It did its part in time; after many such rounds a miss is forgiven."""
        member.was_punctual()
        if member.misses < 2:
            self.end_warning(member)

    def end_warning(self, member: Member) -> None:
        """Nothing is unusual about this member any more."""
        self._context.warnings.end(PUT_ASIDE, members=(member.name,))
