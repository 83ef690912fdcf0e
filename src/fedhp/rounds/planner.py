"""Asks the algorithm for rounds and turns, and makes the record of what happened in them.

The only place that builds an Observation, a RoundRecord or Reports (Algorithm 2 of the paper). A
bad answer is refused with the problem, what is allowed, and the method's place in its file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedhp.algorithms.base import Algorithm, AsyncAlgorithm, Observation, rule_of, traits_of
from fedhp.config import TrainingConfig
from fedhp.errors import BadPlan, Diverged, definition_place
from fedhp.exchange.base import (
    Unusable,
    check_array,
    check_exchange,
    check_links,
    is_number,
    is_whole,
    kind_of,
)
from fedhp.exchange.mailbox import Here, check_action
from fedhp.rounds.context import PlanningContext
from fedhp.rule import Rule
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

MOST_STEPS = 1_000_000  # of one worker in one round
PLAIN_RULE = Rule()


def next_plan(
    algorithm: Algorithm,
    state: Any,
    *,
    rule: Rule = PLAIN_RULE,
    observation: Observation,
    reports: Reports,
    on_network: bool = False,
) -> tuple[Any, Plan]:
    """The algorithm's next state and plan, checked. rule: of its workers."""
    answer: Any = algorithm.plan(state, observation, reports)
    try:
        _check_answer(answer, Plan, "plan")
        _check_plan(answer[1], rule, observation.available)
        if on_network:
            answer[1].exchange.check_network()
    except Unusable as unusable:
        raise _bad_plan(algorithm, "plan", observation, unusable) from None
    return answer[0], answer[1]


def next_action(
    algorithm: AsyncAlgorithm, state: Any, worker: int, *, observation: Observation, turn: int
) -> tuple[Any, Action]:
    """The algorithm's next state and the worker's next action, checked."""
    answer: Any = algorithm.act(state, worker, observation, turn=turn)
    try:
        _check_answer(answer, Action, "act")
        traits = traits_of(algorithm)
        here = Here(
            worker,
            len(observation.available),
            rule_of(algorithm),
            mailbox=traits.mailbox,
            fragments=traits.fragments,
        )
        _check_action(answer[1], here)
    except Unusable as unusable:
        raise _bad_plan(algorithm, "act", observation, unusable) from None
    return answer[0], answer[1]


def _bad_plan(algorithm: Any, method: str, observation: Observation, unusable: Unusable) -> BadPlan:
    problem, allowed = unusable.args
    place = definition_place(getattr(type(algorithm), method))
    return BadPlan(
        f"{type(algorithm).__name__}, round {observation.round_index}: {problem}"
        + (f" ({method}() is at {place})" if place else ""),
        allowed=allowed,
        fix=f"change the settings in [algorithm], or correct {method}() if it is yours",
    )


def _check_answer(answer: Any, kind: type[Plan] | type[Action], method: str) -> None:
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], kind):
        return
    got = kind_of(answer)
    if isinstance(answer, tuple):
        got = f"({', '.join(type(item).__name__ for item in answer)})"
    raise Unusable(f"{method}() returned {got}", f"(state, {kind.__name__})")


def _check_plan(plan: Plan, rule: Rule, here: BoolArray) -> None:
    workers = len(here)
    _check_work(plan, workers)
    check_exchange(plan.exchange, plan, workers)
    _check_decision(plan.decision, workers)
    if plan.estimate is not None:
        wanted = f"None, or booleans, one for each of the {workers} workers"
        check_array(plan.estimate, "estimate", wanted, shape=(workers,), kinds="b")
    # What travels with the models is known before the first round: the class declares it.
    plan.exchange.check_rule(rule)
    if plan.estimate is not None and rule.acts():
        raise Unusable(
            "its plan has estimate, and its rule sends or receives",
            "None: what is trained is not what travels",
        )
    # Who is away neither trains nor exchanges anything.
    if plan.local_steps is not None and len(away := np.flatnonzero(~here & (plan.local_steps > 0))):
        raise Unusable(
            f"it plans {int(plan.local_steps[away[0]])} steps for worker {away[0]}, which is away",
            "0 steps for workers that are not available",
        )
    plan.exchange.check_present(here)


def _check_work(plan: Plan, workers: int) -> None:
    if plan.local_steps is None:
        if not is_number(plan.deadline) or not 0 < float(plan.deadline or 0) < np.inf:
            raise Unusable(
                f"its plan has no local_steps, and the deadline {plan.deadline}",
                "local_steps, or a deadline in seconds above 0",
            )
        return
    wanted = f"whole numbers, one for each of the {workers} workers"
    steps = check_array(plan.local_steps, "local_steps", wanted)
    if steps.dtype.kind == "f" and not np.isfinite(steps).all():
        worker = int(np.flatnonzero(~np.isfinite(steps))[0])
        raise Unusable(f"local_steps holds {steps.flat[worker]} for worker {worker}", wanted)
    if steps.shape != (workers,) or steps.dtype.kind not in "iu":
        raise Unusable(f"local_steps is {steps.dtype} of the shape {steps.shape}", wanted)
    wrong = np.flatnonzero((steps < 0) | (steps > MOST_STEPS))
    if len(wrong):
        worker = int(wrong[0])
        _check_step_count(int(steps[worker]), worker)


def _check_step_count(count: int, worker: int) -> None:
    if not 0 <= count <= MOST_STEPS:
        raise Unusable(
            f"it plans {count} steps for worker {worker}",
            f"0 to {MOST_STEPS} steps for each worker",
        )


def _check_decision(decision: Any, workers: int) -> None:
    if not isinstance(decision, Decision):
        raise Unusable(f"the decision of its plan is {kind_of(decision)}", "a fedhp.Decision")
    links = check_links(decision.links, "its decision", workers)
    columns = {"verdicts": decision.verdicts, "link_time": decision.link_time}
    if decision.distance is not None:
        columns["distance"] = decision.distance
    for name, values in columns.items():
        wanted = f"numbers, one for each of the {len(links)} links of the decision"
        whose = f"{name} of its decision"
        check_array(values, whose, wanted, shape=(len(links),), kinds="iuf")
    verdicts = np.asarray(decision.verdicts)
    if verdicts.size and (verdicts.min() < 0 or verdicts.max() >= len(LinkVerdict)):
        bad = verdicts.max() if verdicts.max() >= len(LinkVerdict) else verdicts.min()
        raise Unusable(f"its decision has the unknown verdict {bad}", "a fedhp.LinkVerdict")
    setter = decision.pace_setter
    if setter is not None and not (is_whole(setter) and 0 <= setter < workers):
        raise Unusable(
            f"pace_setter of its decision is {setter!r}", f"None, or a worker 0 to {workers - 1}"
        )
    if not isinstance(decision.facts, Mapping) or not all(map(is_number, decision.facts.values())):
        raise Unusable(
            f"facts of its decision is {decision.facts!r}", "a table of names and numbers"
        )


def _check_action(action: Action, here: Here) -> None:
    if not is_whole(action.local_steps):
        raise Unusable(
            f"it plans {action.local_steps!r} steps for worker {here.worker}",
            f"a whole number from 0 to {MOST_STEPS}",
        )
    _check_step_count(int(action.local_steps), here.worker)
    check_action(action, here)


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


def check_finite(
    loss: FloatArray,
    norms: FloatArray,
    *,
    worked: BoolArray,
    round_index: int,
    learning_rate: float,
    training: TrainingConfig,
) -> None:
    """Refuse to go on with a model that diverged, all [N]; worked: who took a step."""
    bad = np.flatnonzero(worked & ~(np.isfinite(loss) & np.isfinite(norms)))
    if len(bad):
        # What multiplies the weights themselves: a step overshoots where it is large, too.
        pulls = [("proximal", training.proximal), ("weight_decay", training.weight_decay)]
        raise Diverged(
            f"round {round_index}: the model of worker {bad[0]} diverged "
            f"(loss {loss[bad[0]]}, {len(bad)} workers in all); rounds before it are kept",
            fix=f"lower the learning rate (it was {learning_rate:g} in this round)"
            + "".join(f", or training.{name} ({value:g})" for name, value in pulls if value),
        )


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
