"""What a coordinator knows while it leads: one object for each idea.

Made when the lead is taken, so it is always whole. coordinator.py drives the rounds, handlers.py
answers calls; both change the objects only through their methods, and pass the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fedhp.cluster.coordinator.attempts.attempts import Attempts
from fedhp.cluster.coordinator.committed_state import CommittedState
from fedhp.cluster.coordinator.context import LeaderContext
from fedhp.cluster.coordinator.members.admission import Admission
from fedhp.cluster.coordinator.members.catch_up import CatchUp
from fedhp.cluster.coordinator.members.dial_back import DialBacks
from fedhp.cluster.coordinator.members.members import Members
from fedhp.cluster.coordinator.members.setup_checks import SetupChecks
from fedhp.cluster.coordinator.phase import RunPhase
from fedhp.cluster.coordinator.planning.planning import Planning
from fedhp.cluster.coordinator.planning.survey import Survey
from fedhp.cluster.coordinator.reachability import Reachability
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.guard import Guard
from fedhp.cluster.protocol.succession import extended
from fedhp.cluster.security.tls import AllowList
from fedhp.config import to_tables


@dataclass(frozen=True, slots=True)
class LeadingProcess:
    """What the process of a coordinator has, apart from what is committed."""

    leads: Callable[[], bool]  # ask before giving an order
    place: str = ""  # which copy of the ledger this is
    allowed: AllowList = field(default_factory=lambda: AllowList(None))
    compares: bool = False  # the workers' data and models with those of this machine


class CoordinatorState:
    """The state of a coordinator that leads."""

    def __init__(
        self, context: LeaderContext, committed: CommittedState, process: LeadingProcess
    ) -> None:
        self.context, self.conductor = context, context.conductor
        self.experiment, self.run = committed.experiment, committed.run
        self._tables = to_tables(committed.experiment)
        self.leads, self.place = process.leads, process.place
        epoch = self.conductor.epoch
        self.leaders = extended(committed.leaders, epoch, start=committed.attempt)
        self.guard = Guard(run=committed.run, epoch=epoch)
        self.guard.token = self.token
        self.phase = RunPhase(committed)
        self.reachability = Reachability()
        self.dial_backs = DialBacks()
        self.planning = Planning(context, committed)
        self.survey = Survey(context, self.planning)
        self.attempts = Attempts(
            context,
            committed,
            phase=self.phase,
            planning=self.planning,
            reachability=self.reachability,
        )
        self.catch_up = CatchUp(context, self.planning, self.attempts)
        self.admission = Admission(
            context,
            committed,
            allowed=process.allowed,
            guard=self.guard,
            attempts=self.attempts,
            reachability=self.reachability,
        )
        self.members = Members(
            context,
            committed,
            phase=self.phase,
            planning=self.planning,
            survey=self.survey,
            attempts=self.attempts,
            admission=self.admission,
            reachability=self.reachability,
            setups=SetupChecks(
                committed.setup,
                private=committed.private,
                awaits_own=process.compares and not committed.setup,
            ),
        )

    @property
    def round_index(self) -> int:
        """The last committed round."""
        return self.context.round_index

    @property
    def token(self) -> bytes:
        """Of this epoch."""
        return self.leaders[-1].token

    def committed_state(self, attempt: Attempt | None = None) -> CommittedState:
        """What the ledger is to hold once this attempt, or the last one, is committed."""
        groups, digests = self.attempts.groups, self.attempts.digests
        planner, allowed = self.planning.planner, self.admission.allowed.names
        return CommittedState(
            run=self.run,
            experiment=self.experiment,
            attempt=attempt or self.conductor.committed,
            members=self.members.named(),
            model_bytes=self.planning.model_bytes,
            allowed=None if allowed is None else tuple(sorted(allowed)),
            removed=self.admission.removed_names(),
            planner=b"" if planner is None else planner.pack(),
            bytes_sent=self.phase.stop_condition.bytes_sent,
            ended=self.phase.stop_condition.reason,
            stopped=self.phase.stopping,
            informed=tuple(sorted(self.members.informed)),
            digests=digests.by_worker if attempt is None else digests.after_commit(),
            versions=groups.versions if attempt is None else groups.versions_after(attempt),
            norms=groups.norms if attempt is None else groups.norms_after(),
            checkpoints=groups.checkpoints.pack(),
            certificates=self.admission.bindings.pack(),
            setup=self.members.setups.reference(),
            private=tuple(sorted(self.members.setups.private)),
            leaders=self.leaders,
            place=self.place,
            tables=self._tables,
        )
