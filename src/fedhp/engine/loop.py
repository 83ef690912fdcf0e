"""THE round loop: plan, train, exchange, account; the caller commits each record.

What surrounds a round (tests while the next one trains, lost shards) is in testing.py. Training
leaves the models of the last round as they are, so that a round that is interrupted simply did
not happen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fedhp.algorithms.base import is_synchronous
from fedhp.engine.accounting import (
    SimulatedRound,
    Stopwatch,
    TrainedRound,
    account,
    calibration,
    check_clock,
    group_round,
    together,
)
from fedhp.engine.executor import Estimates, ModelTester, RoundExecutor
from fedhp.engine.testing import tested_rounds
from fedhp.engine.until import StopCondition
from fedhp.record.checkpoint import Checkpoint
from fedhp.record.tensors import pack, unpack
from fedhp.rounds.context import PlanningContext
from fedhp.rounds.planner import Observed, Planner
from fedhp.timing import Network
from fedhp.types import BoolArray, FloatArray, IntArray, Plan, Reports, RoundRecord


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a run after a round, without its models."""

    round_index: int
    clock: float  # at the end of that round
    started: float  # clock at its start
    carried: FloatArray  # [N] s spent on steps that a group average left unfinished


class RoundLoop:
    """Drives a synchronous algorithm."""

    def __init__(
        self,
        context: PlanningContext,
        executor: RoundExecutor,
        *,
        tester: ModelTester | None = None,
    ) -> None:
        assert is_synchronous(context.algorithm)
        self.context = context
        self.executor = executor
        self.tester = tester
        self.algorithm = context.algorithm
        self.world = context.world
        self.experiment = context.experiment
        self.stop_condition = StopCondition(context.experiment, tested=tester is not None)
        self.planner = Planner(context)
        self.planner.last_reports = calibration(self.world)
        self.progress = Progress(
            round_index=0,
            clock=0.0,
            started=0.0,
            carried=np.zeros(self.experiment.workers),
        )

    @property
    def round_index(self) -> int:
        """The last round that is done."""
        return self.progress.round_index

    def rounds(self) -> Iterator[RoundRecord]:
        """Run the rounds that are left; a round is yielded when its tests are done."""
        return tested_rounds(self)

    def train(self) -> TrainedRound:
        """The first half of a round; the models stay those of the last one."""
        watch = Stopwatch()
        # 1. Plan: the algorithm decides by the reports of the last round.
        with watch.phase("plan"):
            simulated = self._plan()
        # 2. Train: every worker its local steps; some measure what the plan asks for.
        with watch.phase("train"):
            planned = simulated.planned
            training = self.executor.train(
                simulated.first_steps,
                round_index=planned.round_index,
                learning_rate=planned.observation.learning_rate,
                present=planned.observation.available,
            )
        with watch.phase("estimate"):
            estimates = self._estimate(simulated)
        return TrainedRound(simulated, training, estimates, watch)

    def finish(self, trained: TrainedRound) -> RoundRecord:
        """The second half; the caller commits the record."""
        simulated, training, watch = trained.simulated, trained.training, trained.watch
        planned = simulated.planned
        # 3. Exchange: models travel and mix. After a group average everyone trains on.
        with watch.phase("mix"):
            exchanged = self.executor.exchange(
                planned.plan.exchange, round_index=planned.round_index
            )
        if simulated.group is not None:
            with watch.phase("train"):
                more = self.executor.train_on(
                    simulated.local_steps - simulated.first_steps,
                    round_index=planned.round_index,
                    learning_rate=planned.observation.learning_rate,
                )
                training = together(simulated, training, more)
        # 4. Account: what it cost in virtual time. Then the mixed models are the current ones.
        with watch.phase("account"):
            measured = account(
                self.context,
                simulated,
                training=training,
                estimates=trained.estimates,
                exchanged=exchanged,
                wall=watch.seconds,
            )
            clock = planned.observation.clock + measured.timing.round_time
            check_clock(clock, measured.timing, self.experiment, round_index=planned.round_index)
            self.executor.advance()
            record = self.planner.finish(planned, measured)
            self.progress = Progress(
                round_index=record.round_index,
                clock=record.clock,
                started=planned.observation.clock,
                carried=np.zeros(self.experiment.workers)
                if simulated.group is None
                else simulated.group.carried,
            )
        return record

    def _plan(self) -> SimulatedRound:
        """Algorithm 2, and the steps that its deadlines leave room for."""
        last, round_index = self.progress, self.progress.round_index + 1
        # A late monitor knows the links as they were one round ago.
        late = self.experiment.world.monitor_delay > 0
        observed = Observed(
            round_index=round_index,
            clock=last.clock,
            available=self.world.available(round_index, last.clock),
            network=self._monitored(last.started if late else last.clock, round_index),
            epoch_steps=self.context.epoch_steps,
            share_done=self.context.share_done(last.clock),
        )
        planned = self.planner.plan(observed, self.planner.reports)
        plan, observation = planned.plan, planned.observation
        lead_time = plan.exchange.lead_time_in(self.world, clock=last.clock, event=round_index)
        if lead_time is not None:
            local_steps, group = group_round(
                self.world, plan, observation, last.carried, transfer_time=lead_time
            )
            return SimulatedRound(planned, local_steps, group)
        return SimulatedRound(planned, self._local_steps(plan, round_index, observation.available))

    def _monitored(self, clock: float, round_index: int) -> Network:
        """The links as the planner sees them, with the size of what travels."""
        network, share = self.world.monitored(clock, round_index), self.context.transfer_share
        return network if share == 1 else replace(network, model_bits=share * network.model_bits)

    def _local_steps(self, plan: Plan, round_index: int, available: BoolArray) -> IntArray:
        """Step counts as planned, or as many as fit the plan's deadline."""
        if plan.local_steps is not None:
            return plan.local_steps
        if plan.deadline is None:
            raise ValueError("a plan needs local_steps or a deadline")
        counts = [
            self.world.steps_until(
                worker, round_index, deadline=plan.deadline, time=self.progress.clock
            )
            for worker in range(self.experiment.workers)
        ]
        return np.where(available, counts, 0).astype(np.int64)

    def _estimate(self, simulated: SimulatedRound) -> Estimates | None:
        """Algorithm 1, line 5, by the workers the plan asks."""
        planned = simulated.planned
        if planned.plan.estimate is None:
            return None
        chosen = planned.plan.estimate & (simulated.local_steps > 0)
        return self.executor.estimate(chosen, round_index=planned.round_index)

    def checkpoint(self) -> Checkpoint:
        """Everything needed to resume from here, without the models."""
        progress = self.progress
        state_arrays, state_scalars = pack("state", self.planner.state)
        report_arrays, report_scalars = pack("reports", self.planner.reports)
        return Checkpoint(
            round_index=progress.round_index,
            arrays={**state_arrays, **report_arrays, "carried": progress.carried},
            scalars={
                "clock": progress.clock,
                "started": progress.started,
                **state_scalars,
                **report_scalars,
            },
        )

    def restore(self, saved: Checkpoint) -> None:
        """Resume from a checkpoint."""
        planner, kind = self.planner, type(self.planner.state)
        planner.state = unpack("state", kind, saved.arrays, saved.scalars)
        planner.last_reports = unpack("reports", Reports, saved.arrays, saved.scalars)
        self.progress = Progress(
            round_index=saved.round_index,
            clock=saved.scalars["clock"],
            started=saved.scalars["started"],
            carried=saved.arrays["carried"],
        )
