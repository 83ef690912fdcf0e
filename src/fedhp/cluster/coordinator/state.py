"""One term of office: everything that the coordinator's two halves share.

coordinator.py drives attempts; office.py answers calls. Both run in one event loop, so nothing
here needs a lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping

import numpy as np

from fedhp.algorithms import Algorithm, load_algorithm
from fedhp.cluster.coordinator import orders
from fedhp.cluster.coordinator.conductor import Conductor, Member, Status
from fedhp.cluster.coordinator.planning import Planning
from fedhp.cluster.coordinator.run_record import RunRecordWriter
from fedhp.cluster.coordinator.survey import Survey
from fedhp.cluster.coordinator.turns import TurnOrder, Turns
from fedhp.cluster.history import History
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.guard import Guard
from fedhp.config import Experiment
from fedhp.engine.context import bare_stage
from fedhp.types import FloatArray

IN_VAIN = 3  # times that the others wait for a worker which does not catch up
CATCH_UP_SECONDS = 1.5  # at least


class CoordinatorState:
    """The state of a coordinator in office."""

    def __init__(
        self, experiment: Experiment, *, history: History, leads: Callable[[], bool]
    ) -> None:
        self.experiment = experiment
        self.leads = leads  # asked before an order is given
        self.history = history
        self.guard = Guard(run=None)
        self.state, self.why = "starting", ""  # as told to an operator
        self.stopping = ""  # why the run is to end early
        self.conductor: Conductor[wire.RoundReport]
        self.book: RunRecordWriter
        self.planner: Planning | Turns | None = None  # once the size of a model is known
        self.model_bytes = 0
        self.survey: Survey | None = None  # while it goes on
        self.works: dict[int, wire.Work] = {}
        self.turns: dict[int, TurnOrder] = {}
        self.asked: dict[int, frozenset[int]] = {}  # whose links a report may tell of
        self.catching: dict[int, int] = {}  # told to catch up: how often waited for in vain
        self.round_seconds = 0.0  # the last round took so long; 0: none was timed yet
        self._changed = asyncio.Event()
        part = experiment.algorithm
        self.asynchronous = not isinstance(load_algorithm(part.name, part.settings), Algorithm)

    @property
    def round_index(self) -> int:
        """The last committed round."""
        return self.conductor.committed.round_index

    def alive(self) -> list[Member]:
        """Members from whom something may be expected."""
        return self.conductor.alive(time.monotonic())

    def expected_back(self) -> list[Member]:
        """Members that may still call: neither gone for good nor silent for too long."""
        now, over = time.monotonic(), (Status.LEFT, Status.DEAD, Status.QUARANTINED)
        members = self.conductor.members.values()
        return [each for each in members if self.conductor.status(each, now) not in over]

    def create_planner(self, model_bytes: int) -> None:
        """Now that the size of a model is known, there can be plans."""
        if self.planner is None:
            self.model_bytes = model_bytes
            stage = bare_stage(self.experiment, model_bits=8.0 * model_bytes)
            self.planner = Turns(stage) if self.asynchronous else Planning(stage)

    def step_times(self) -> FloatArray:
        """Everyone's last step time, [N]."""
        times = np.full(self.experiment.workers, np.nan)
        for worker, member in self.conductor.members.items():
            times[worker] = member.step_time
        return times

    def learn_step_times(self, reports: Mapping[int, wire.RoundReport]) -> None:
        """As the workers measured them in a round."""
        for worker, report in reports.items():
            if report.step_time > 0:
                self.conductor.members[worker].step_time = report.step_time

    def tests(self, coming: int) -> orders.Tests:
        """Whether models are tested after this round."""
        last = coming == self.experiment.rounds
        evaluation = self.experiment.evaluation
        return orders.Tests(
            some=last or coming % evaluation.every == 0, whole=last and evaluation.whole_at_end
        )

    def late(self) -> list[Member]:
        """Members that are about to have the committed model: the next attempt may wait for them.

        Without this a worker that was away would never be back: whenever it has caught up, the
        others have begun the next round.
        """
        return [
            member
            for member in self.alive()
            if self.catching.get(member.worker, IN_VAIN) < IN_VAIN
            and not self.conductor.holds(member)
            and not member.draining
        ]

    def catch_up_seconds(self, late: list[Member]) -> float:
        """How long to wait for them: as long as a model takes, with patience, but no longer than
        for a report."""
        cluster, planner = self.experiment.cluster, self.planner
        if planner is None or not late:
            return 0.0
        ends = [member.worker for member in late]
        others = [member.worker for member in self.alive() if self.conductor.holds(member)]
        speed = planner.links.bandwidth[np.ix_(ends, others)]
        known = speed[np.isfinite(speed)]
        pull = 8.0 * self.model_bytes / float(known.min()) if known.size else 0.0
        longest = max(cluster.least_deadline, cluster.patience * self.round_seconds)
        return min(longest, max(CATCH_UP_SECONDS, cluster.patience * pull))

    def notify(self) -> None:
        """Something changed: wake everyone who waits."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Until something changes, or so long."""
        event = self._changed
        with contextlib.suppress(TimeoutError):
            # wait_for would lose a cancellation that comes together with the event.
            async with asyncio.timeout(seconds):
                await event.wait()
