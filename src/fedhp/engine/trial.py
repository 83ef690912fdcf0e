"""The trial of an algorithm before a run: its plan for round 1, in the true world.

A plan that cannot be carried out, or a state that a checkpoint cannot hold, is refused before a
folder is made.
"""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any

import numpy as np

from fedhp.algorithms import Algorithm, AsyncAlgorithm, Observation
from fedhp.engine.accounting import calibration, rate_at
from fedhp.engine.context import PlanningContext
from fedhp.errors import ConfigError, FedhpError, RunError
from fedhp.record.tensors import pack
from fedhp.types import Action, Plan

MOST_STEPS = 1_000_000  # of one worker in one round


def try_algorithm(context: PlanningContext, *, source: str = "") -> None:
    """Ask for the first plan and check it; algorithms are pure, so nothing is changed."""
    name = context.experiment.algorithm.name
    try:
        _check_state(_first_state(context))
        return
    except FedhpError:
        raise
    except _Unusable as unusable:
        problem, allowed = unusable.args
    except Exception as error:  # the code of a user may fail in any way
        words = " ".join(str(error).split())
        problem = f"the first round cannot be planned: {type(error).__name__}: {words}"
        allowed = "start(), and plan() or act(), as in docs/own-parts.md"
    raise ConfigError(
        f"{name!r}: {problem}",
        key="algorithm.name",
        source=source,
        allowed=allowed,
        fix="change the settings in [algorithm]" + (", or correct its code" if ":" in name else ""),
    )


class _Unusable(Exception):
    """A problem, and what is allowed."""


def _first_state(context: PlanningContext) -> Any:
    """The state before round 1; the first decision is checked."""
    algorithm, world = context.algorithm, context.world
    observation = Observation(
        round_index=1,
        clock=0.0,
        learning_rate=rate_at(context.experiment, 1, 0.0),
        available=world.available(1),
        network=world.network(0.0),
    )
    state = algorithm.start(context.federation)
    if isinstance(algorithm, Algorithm):
        answer: Any = algorithm.plan(state, observation, calibration(world))
        _check_answer(answer, Plan, "plan")
        _check_plan(answer[1], world.workers)
    else:
        assert isinstance(algorithm, AsyncAlgorithm)
        answer = algorithm.act(state, 0, observation, turn=0)
        _check_answer(answer, Action, "act")
        _check_steps([answer[1].local_steps])
    return state


def _check_answer(answer: Any, kind: type[Plan] | type[Action], method: str) -> None:
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], kind):
        return
    got = "None" if answer is None else f"a {type(answer).__name__}"
    if isinstance(answer, tuple):
        got = f"({', '.join(type(item).__name__ for item in answer)})"
    raise _Unusable(f"{method}() returned {got}", f"(state, {kind.__name__})")


def _check_plan(plan: Plan, workers: int) -> None:
    if plan.local_steps is None:
        if plan.deadline is None or not 0 < plan.deadline < np.inf:
            wanted = "local_steps, or a deadline in seconds above 0"
            raise _Unusable(
                f"its plan has no local_steps, and the deadline {plan.deadline}", wanted
            )
        return
    steps = np.asarray(plan.local_steps)
    if steps.shape != (workers,) or steps.dtype.kind not in "iu":
        wanted = f"whole numbers, one for each of the {workers} workers"
        raise _Unusable(f"local_steps is {steps.dtype} of the shape {steps.shape}", wanted)
    _check_steps(steps.tolist())


def _check_steps(steps: list[int]) -> None:
    for worker, count in enumerate(steps):
        if not 0 <= count <= MOST_STEPS:
            wanted = f"0 to {MOST_STEPS} steps for each worker"
            raise _Unusable(f"it plans {count} steps for worker {worker}", wanted)


def _check_state(state: Any) -> None:
    if not is_dataclass(state) or isinstance(state, type):
        kind = "None" if state is None else f"a {type(state).__name__}"
        raise _Unusable(f"its state is {kind}", "a dataclass of numpy arrays, numbers and strings")
    try:
        pack("state", state)
    except RunError as error:
        raise _Unusable(error.problem, error.allowed) from error
