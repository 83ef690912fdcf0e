"""THE round loop: plan, train, exchange, account; the caller commits each record.

What surrounds a round (tests while the next one trains, lost shards) is in testing.py. Training
leaves the models of the last round as they are, so that a round that is interrupted simply did
not happen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fedhp.algorithms.base import is_synchronous
from fedhp.engine.accounting import (
    Progress,
    SimulatedRound,
    Stopwatch,
    TrainedRound,
    account,
    calibration,
    check_clock,
    group_round,
    together,
)
from fedhp.engine.executor import ModelTester, RoundExecutor
from fedhp.engine.testing import StopCondition, tested_rounds
from fedhp.record.checkpoint import Checkpoint
from fedhp.record.tensors import pack, unpack
from fedhp.rounds.context import PlanningContext
from fedhp.rounds.planner import Planner, observe
from fedhp.types import Reports, RoundRecord


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

    def rounds(self) -> Iterator[RoundRecord]:
        """Run the rounds that are left; a round is yielded when its tests are done."""
        return tested_rounds(self)

    def train(self) -> TrainedRound:
        """The first half of a round; the models stay those of the last one."""
        watch, estimates = Stopwatch(), None
        # 1. Plan: the algorithm decides by the reports of the last round.
        with watch.phase("plan"):
            simulated = self._plan()
        # 2. Train: every worker its local steps; some measure what the plan asks for.
        with watch.phase("train"):
            planned = simulated.planned
            training = self.executor.train(
                simulated.first_steps,
                round_index=planned.observation.round_index,
                learning_rate=planned.observation.learning_rate,
                present=planned.observation.available,
            )
        with watch.phase("estimate"):  # Algorithm 1, line 5
            if planned.plan.estimate is not None:
                estimates = self.executor.estimate(
                    planned.plan.estimate & (simulated.local_steps > 0),
                    round_index=planned.observation.round_index,
                )
        return TrainedRound(simulated, training, estimates, watch)

    def finish(self, trained: TrainedRound) -> RoundRecord:
        """The second half; the caller commits the record."""
        simulated, training, watch = trained.simulated, trained.training, trained.watch
        planned, observation = simulated.planned, simulated.planned.observation
        # 3. Exchange: models travel and mix. After a group average everyone trains on.
        with watch.phase("mix"):
            exchanged = planned.plan.exchange.carry_out(
                self.executor, round_index=observation.round_index
            )
        if simulated.group is not None:
            with watch.phase("train"):
                more = self.executor.train(
                    simulated.local_steps - simulated.first_steps,
                    round_index=observation.round_index,
                    learning_rate=observation.learning_rate,
                    continued=True,
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
            clock = observation.clock + measured.timing.round_time
            check_clock(
                clock, measured.timing, self.experiment, round_index=observation.round_index
            )
            self.executor.advance()
            record = self.planner.finish(planned, measured)
            self.progress = Progress(
                round_index=record.round_index,
                clock=record.clock,
                started=observation.clock,
                carried=np.zeros(self.experiment.workers)
                if simulated.group is None
                else simulated.group.carried,
            )
        return record

    def _plan(self) -> SimulatedRound:
        """Algorithm 2, and the steps that its deadlines leave room for."""
        last, round_index, world = self.progress, self.progress.round_index + 1, self.world
        # A late monitor knows the links as they were one round ago.
        late = self.experiment.world.monitor_delay > 0
        network = world.monitored(last.started if late else last.clock, round_index)
        if (share := self.context.transfer_share) != 1:  # the size of what travels
            network = replace(network, model_bits=share * network.model_bits)
        observed = observe(
            self.context,
            round_index,
            last.clock,
            available=world.availability.at(round_index, last.clock),
            network=network,
            epoch_steps=self.context.epoch_steps,
        )
        planned = self.planner.plan(observed)
        plan = planned.plan
        if plan.local_steps is not None:
            return SimulatedRound(planned, plan.local_steps, plan.local_steps)
        assert plan.deadline is not None
        lead_time = plan.exchange.lead_time_in(world, clock=last.clock, event=round_index)
        if lead_time is not None:
            return group_round(world, planned, last.carried, transfer_time=lead_time)
        counts = [
            world.steps_until(worker, round_index, deadline=plan.deadline, time=last.clock)
            for worker in range(world.workers)
        ]
        steps = np.where(observed.available, counts, 0).astype(np.int64)
        return SimulatedRound(planned, steps, steps)

    def checkpoint(self) -> Checkpoint:
        progress = self.progress
        state_arrays, state_scalars = pack("state", self.planner.state)
        report_arrays, report_scalars = pack("reports", self.planner.last_reports)
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
        planner, kind = self.planner, type(self.planner.state)
        planner.state = unpack("state", kind, saved.arrays, saved.scalars)
        planner.last_reports = unpack("reports", Reports, saved.arrays, saved.scalars)
        self.progress = Progress(
            round_index=saved.round_index,
            clock=saved.scalars["clock"],
            started=saved.scalars["started"],
            carried=saved.arrays["carried"],
        )
