"""Asks an algorithm for a plan or an action and checks the answer before anything acts on it.

A bad answer is refused with the problem, what is allowed, and the method's place in its file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedhp.algorithms.base import Algorithm, AsyncAlgorithm, Observation, rule_of, traits_of
from fedhp.errors import BadPlan, definition_place
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
from fedhp.rule import Rule
from fedhp.types import Action, BoolArray, Decision, LinkVerdict, Plan, Reports

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
