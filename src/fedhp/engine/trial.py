"""The trial of an algorithm before a run: what it would do in round 1, on the true world.

Built-in or one's own: a plan that cannot be carried out, or a state that no checkpoint can
hold, is refused before a folder is made.
"""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any

import numpy as np

from fedhp.algorithms import Algorithm, AsyncAlgorithm, Observation
from fedhp.engine.account import calibration, rate_at
from fedhp.engine.prepare import Prepared
from fedhp.errors import ConfigError, FedhpError, RunError
from fedhp.record.packing import pack
from fedhp.types import Action, Plan

MOST_STEPS = 1_000_000  # of one worker in one round


def try_algorithm(prepared: Prepared, *, source: str = "") -> None:
    """Ask for the first plan and look at it; algorithms are pure, so nothing is changed."""
    try:
        state, problem = _first(prepared)
        problem = problem or _state_problem(state)
    except FedhpError:
        raise
    except Exception as error:  # the code of a user may fail in any way
        words = " ".join(str(error).split())
        problem = f"the first round cannot be planned: {type(error).__name__}: {words}"
    if problem:
        own = ":" in prepared.experiment.algorithm.name
        raise ConfigError(
            f"{prepared.experiment.algorithm.name!r}: {problem}",
            key="algorithm.name",
            source=source,
            allowed="start(federation) -> state, and plan(...) -> (state, Plan) or act(...) -> "
            f"(state, Action), with 0 to {MOST_STEPS} steps for each worker",
            fix="mend the algorithm; see docs/own-parts.md"
            if own
            else "change the settings in [algorithm]",
        )


def _first(prepared: Prepared) -> tuple[Any, str]:
    """The state before round 1, and what is wrong with the first decision."""
    algorithm, world = prepared.algorithm, prepared.world
    observation = Observation(
        round_index=1,
        clock=0.0,
        learning_rate=rate_at(prepared.experiment, 1, 0.0),
        available=world.available(1),
        network=world.network(0.0),
    )
    state = algorithm.start(prepared.federation)
    if isinstance(algorithm, Algorithm):
        answer: Any = algorithm.plan(state, observation, calibration(world))
        return state, _pair_problem(answer, Plan) or _plan_problem(answer[1], world.workers)
    assert isinstance(algorithm, AsyncAlgorithm)
    answer = algorithm.act(state, 0, observation, turn=0)
    return state, _pair_problem(answer, Action) or _steps_problem([answer[1].local_steps])


def _pair_problem(answer: Any, kind: type[Plan] | type[Action]) -> str:
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], kind):
        return ""
    got = type(answer).__name__
    if isinstance(answer, tuple):
        got = f"({', '.join(type(item).__name__ for item in answer)})"
    return f"it returned {got}, not (state, {kind.__name__})"


def _plan_problem(plan: Plan, workers: int) -> str:
    if plan.local_steps is None:
        if plan.deadline is None or not 0 < plan.deadline < np.inf:
            return f"its plan has neither local_steps nor a deadline above 0 ({plan.deadline})"
        return ""
    steps = np.asarray(plan.local_steps)
    if steps.shape != (workers,) or steps.dtype.kind not in "iu":
        return (
            f"local_steps is {steps.dtype} of shape {steps.shape}, not whole numbers, [{workers}]"
        )
    return _steps_problem(steps.tolist())


def _steps_problem(steps: list[int]) -> str:
    bad = [(worker, count) for worker, count in enumerate(steps) if not 0 <= count <= MOST_STEPS]
    return f"it plans {bad[0][1]} steps for worker {bad[0][0]}" if bad else ""


def _state_problem(state: Any) -> str:
    if not is_dataclass(state) or isinstance(state, type):
        return f"its state is a {type(state).__name__}, not a dataclass of arrays and numbers"
    try:
        pack("state", state)
    except RunError as error:
        return f"{error.problem} ({error.allowed})"
    return ""
