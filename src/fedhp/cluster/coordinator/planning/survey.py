"""The survey: before the first plan, the workers time some links."""

from __future__ import annotations

from collections.abc import Sequence

from fedhp.cluster import events
from fedhp.cluster.coordinator.conductor import Member
from fedhp.cluster.coordinator.context import LeaderContext
from fedhp.cluster.coordinator.planning.link_estimates import SURVEY_SECONDS, LinkSurvey
from fedhp.cluster.coordinator.planning.planning import Planning
from fedhp.cluster.protocol import wire_pb2 as wire


class Survey:
    """The survey of a run: once under each coordinator, if no link was timed yet."""

    def __init__(self, context: LeaderContext, planning: Planning) -> None:
        self._context, self._planning = context, planning
        self.links: LinkSurvey | None = None  # while it runs
        self._began: float | None = None

    def is_due(self, participants: Sequence[int]) -> bool:
        """Whether links have to be timed before the next plan."""
        probes = self._context.experiment.cluster.probe_bytes > 0
        wanted = probes and not self._planning.rounds.links.known()
        return self._began is None and wanted and len(participants) >= 2

    def begin(self, participants: Sequence[int], now: float) -> None:
        """Have links timed by these workers."""
        stage = self._planning.rounds.stage
        self._began = now
        self.links = LinkSurvey(participants, stage.federation.base_topology.links)
        self._context.waiting.wake(participants)

    def add(self, member: Member, links: Sequence[wire.LinkReport]) -> bool:
        """What a member timed; whether a survey runs and it timed anything."""
        if self.links is None or not links:
            return False
        self.links.add(member.worker, links)
        return True

    def is_over(self, now: float) -> bool:
        """Whether nobody waits for the rest of it."""
        assert self.links is not None
        assert self._began is not None
        alive = [member.worker for member in self._context.conductor.alive(now)]
        return self.links.is_over(alive) or now - self._began > SURVEY_SECONDS

    def end(self, now: float) -> None:
        """The first plan is made with what was timed until now."""
        assert self.links is not None
        assert self._began is not None
        timed, self.links = self.links.timed, None
        self._planning.rounds.learn_survey(timed)
        self._context.history.note(events.Surveyed(sorted(timed), now - self._began))
