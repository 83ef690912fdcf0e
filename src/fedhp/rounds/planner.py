"""Asks the algorithm for rounds and turns, and makes the record of what happened in them.

The only place that builds an Observation, a RoundRecord or Reports. Algorithm 2 of the paper:
the coordinator decides by the reports of the last round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedhp.algorithms import Observation
from fedhp.algorithms.base import rule_of
from fedhp.algorithms.plan_checks import next_action, next_plan
from fedhp.rounds.context import PlanningContext
from fedhp.schedules import learning_rate
from fedhp.timing import Network
from fedhp.types import (
    Action,
    BoolArray,
    Decision,
    Evaluation,
    FloatArray,
    IntArray,
    LinkVerdict,
    Pair,
    Plan,
    Reports,
    RoundRecord,
    StepReason,
    Timing,
    TurnPhase,
)


@dataclass(frozen=True, slots=True)
class Observed:
    """What whoever drives the planner knows at the start of a round, or of a turn."""

    round_index: int
    clock: float
    available: BoolArray  # [N]
    network: Network  # with the size of what travels
    epoch_steps: IntArray | None = None  # [N] what training.local_epochs takes, if it is set
    avoid: frozenset[Pair] = frozenset()  # links that do not work
    received: tuple[int, ...] = ()  # of a turn: whose deliveries it begins with


@dataclass(frozen=True, slots=True)
class PlannedRound:
    """What was decided for a round, and what it was decided from."""

    state: Any  # of the algorithm, after its plan
    plan: Plan
    observation: Observation


@dataclass(frozen=True, slots=True)
class Measured:
    """What happened in a round: in virtual time, or as the workers report it. [N] unless it says
    otherwise; NaN for a worker that is away or did not measure."""

    local_steps: IntArray
    step_time: FloatArray
    timing: Timing
    links: IntArray  # [E, 2] directed where the exchange is: (receiver, sender)
    link_time: FloatArray  # [E]
    link_bytes: IntArray  # [E]
    link_distance: FloatArray  # [E]
    train_loss: FloatArray
    update_norm: FloatArray
    bandwidth: FloatArray
    wall: dict[str, float]
    smoothness: FloatArray | None = None  # None: nobody measured it
    gradient_variance: FloatArray | None = None
    start_loss: FloatArray | None = None
    selected: IntArray | None = None  # [N, keep] peers kept by scoring
    transfer_time: float = np.nan  # s of an exchange that began with the round
    evaluation: Evaluation | None = None
    final_evaluation: Evaluation | None = None
    phases: tuple[TurnPhase, ...] = ()
    measures: Mapping[str, FloatArray] = field(default_factory=dict)


def first_reports(step_time: FloatArray) -> Reports:
    """The reports of round 0: nothing is known but the time of a step, [N]."""
    missing = np.full(len(step_time), np.nan)
    return Reports(
        round_index=0,
        step_time=step_time,
        update_norm=missing,
        links=np.empty((0, 2), dtype=np.int64),
        distance=np.empty(0),
        smoothness=missing,
        gradient_variance=missing,
        start_loss=missing,
        selected=np.empty((len(step_time), 0), dtype=np.int64),
    )


def rate_at(context: PlanningContext, round_index: int, clock: float) -> float:
    return learning_rate(
        context.learning_rate, context.experiment, round_index=round_index, clock=clock
    )


def observe(context: PlanningContext, observed: Observed) -> Observation:
    federation, horizon = context.federation, context.experiment.horizon
    return Observation(
        round_index=observed.round_index,
        clock=observed.clock,
        learning_rate=rate_at(context, observed.round_index, observed.clock),
        available=observed.available,
        network=observed.network,
        share_done=None if horizon is None else observed.clock / horizon,
        topology=federation.topology_at(observed.round_index),
        changing=federation.changing is not None,
        epoch_steps=observed.epoch_steps,
        avoid=observed.avoid,
        received=observed.received,
    )


class Planner:
    """What an algorithm needs from one round or turn to the next."""

    def __init__(
        self,
        context: PlanningContext,
        *,
        believe: Callable[[Reports], Reports] | None = None,
        on_network: bool = False,
    ) -> None:
        """believe: what the next plan may believe of what workers report. on_network: real machines
        carry the plans out, and what they cannot is refused."""
        self.context = context
        self.algorithm: Any = context.algorithm
        self.state: Any = self.algorithm.start(context.federation)
        self.last_reports: Reports | None = None  # None before the first round
        self._rule = rule_of(context.algorithm)
        self._believe = believe
        self._on_network = on_network

    @property
    def reports(self) -> Reports:
        assert self.last_reports is not None
        return self.last_reports

    # --- rounds ----------------------------------------------------------------------------

    def plan(
        self,
        observed: Observed,
        reports: Reports | None = None,
        *,
        state: Any = None,
        change: Callable[[Plan, Observation], Plan] | None = None,
    ) -> PlannedRound:
        """The next round. Nothing changes here: a plan that is not carried out was never made.

        reports, state: what the plan builds on, if it is not that of the last round. change: what
        links that do not work make of the plan.
        """
        observation = observe(self.context, observed)
        before = self.state if state is None else state
        after, plan = next_plan(
            self.algorithm,
            before,
            rule=self._rule,
            observation=observation,
            reports=self.reports if reports is None else reports,
            on_network=self._on_network,
        )
        if change is not None:
            plan = change(plan, observation)
        experiment = self.context.experiment
        plan.exchange.check_experiment(experiment)
        if experiment.exchange.robust != "none":
            # A robust rule that drops the extremes needs enough models to drop some, and a planner
            # that cuts links does not know that.
            present = int(observation.available.sum())
            exchange = plan.exchange.with_min_peers(
                observation.available,
                observation.network,
                least=experiment.exchange.min_peers(experiment.workers, present=present),
                round_index=observation.round_index,
            )
            plan = plan if exchange is plan.exchange else replace(plan, exchange=exchange)
        return PlannedRound(after, plan, observation)

    def finish(self, planned: PlannedRound, measured: Measured) -> RoundRecord:
        """The record of a round; the next plan builds on it."""
        decision = planned.plan.decision
        if np.isfinite(measured.transfer_time):
            facts = {**decision.facts, "transfer_time": measured.transfer_time}
            decision = replace(decision, facts=facts)
        observation = planned.observation
        record = _record(
            measured,
            decision,
            round_index=observation.round_index,
            clock=observation.clock + measured.timing.round_time,
            rate=observation.learning_rate,
        )
        workers = len(measured.local_steps)
        unknown, nobody = np.full(workers, np.nan), np.empty((workers, 0), dtype=np.int64)
        start_loss = measured.start_loss if record.round_index == 1 else None
        reports = Reports(
            round_index=record.round_index,
            step_time=measured.step_time,
            update_norm=measured.update_norm,
            links=measured.links,
            distance=measured.link_distance,
            smoothness=record.smoothness,
            gradient_variance=record.gradient_variance,
            start_loss=unknown if start_loss is None else start_loss,
            selected=nobody if measured.selected is None else measured.selected,
            transfer_time=measured.transfer_time,
        )
        self.last_reports = reports if self._believe is None else self._believe(reports)
        self.state = planned.state
        return record

    # --- turns without a barrier -----------------------------------------------------------

    def act(self, worker: int, observed: Observed, *, turn: int) -> Action:
        self.state, action = next_action(
            self.algorithm,
            self.state,
            worker,
            observation=observe(self.context, observed),
            turn=turn,
        )
        return action

    def finish_turns(
        self,
        measured: Measured,
        rule: StepReason,
        *,
        round_index: int,
        clock: float,
        rate: float,
    ) -> RoundRecord:
        """The record of the turns that ended since the last round."""
        decision = Decision(
            links=measured.links,
            verdicts=np.full(len(measured.links), LinkVerdict.DRAWN, dtype=np.int64),
            link_time=measured.link_time,
            rule=rule,
        )
        return _record(measured, decision, round_index=round_index, clock=clock, rate=rate)


def _record(
    measured: Measured, decision: Decision, *, round_index: int, clock: float, rate: float
) -> RoundRecord:
    unknown = np.full(len(measured.local_steps), np.nan)
    smoothness, variance = measured.smoothness, measured.gradient_variance
    return RoundRecord(
        round_index=round_index,
        clock=clock,
        learning_rate=rate,
        local_steps=measured.local_steps,
        step_time=measured.step_time,
        timing=measured.timing,
        links=measured.links,
        link_time=measured.link_time,
        link_bytes=measured.link_bytes,
        link_distance=measured.link_distance,
        decision=decision,
        train_loss=measured.train_loss,
        update_norm=measured.update_norm,
        smoothness=unknown if smoothness is None else smoothness,
        gradient_variance=unknown if variance is None else variance,
        bandwidth=measured.bandwidth,
        evaluation=measured.evaluation,
        wall=measured.wall,
        final_evaluation=measured.final_evaluation,
        phases=measured.phases,
        measures=measured.measures,
    )
