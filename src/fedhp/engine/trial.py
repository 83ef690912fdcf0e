"""The trial of an algorithm before a run: its plan for round 1, in the true world.

A plan that cannot be carried out, or a state that a checkpoint cannot hold, is refused before a
folder is made.
"""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any

from fedhp.algorithms.base import is_synchronous
from fedhp.engine.accounting import calibration
from fedhp.errors import (
    BadPlan,
    ConfigError,
    FedhpError,
    RunError,
    at_user_place,
    definition_place,
)
from fedhp.record.tensors import pack
from fedhp.rounds.context import PlanningContext
from fedhp.rounds.planner import Planner, observe


def try_algorithm(context: PlanningContext) -> None:
    """Ask for the first plan and check it; algorithms are pure, so nothing is changed."""
    with context.experiment.origins.named():
        _try_algorithm(context)


def _try_algorithm(context: PlanningContext) -> None:
    name = context.experiment.algorithm.name
    try:
        for state, method in _first_states(context):
            _check_state(state, getattr(type(context.algorithm), method), method)
        return
    except BadPlan as error:
        problem, allowed = error.problem, error.allowed
    except FedhpError:
        raise
    except _BadState as unusable:
        problem, allowed = unusable.args
    except Exception as error:  # the code of a user may fail in any way
        words = " ".join(str(error).split())
        problem = (
            f"the first round cannot be planned: {type(error).__name__}: {words}"
            f"{at_user_place(error)}"
        )
        allowed = "start(), and plan() or act(), as in docs/own-parts.md"
    raise ConfigError(
        f"{name!r}: {problem}",
        key="algorithm.name",
        allowed=allowed,
        fix="change the settings in [algorithm]" + (", or correct its code" if ":" in name else ""),
    )


class _BadState(Exception):
    """A problem, and what is allowed."""


def _first_states(context: PlanningContext) -> list[tuple[Any, str]]:
    """The states before and after the first decision, which is checked, and who returned them."""
    algorithm, world = context.algorithm, context.world
    observed = observe(
        context,
        1,
        0.0,
        available=world.available(1),
        network=world.network(0.0),
        epoch_steps=context.epoch_steps,
    )
    planner = Planner(context)
    state = planner.state
    if is_synchronous(algorithm):
        return [(state, "start"), (planner.plan(observed, calibration(world)).state, "plan")]
    planner.act(0, observed, turn=0)
    return [(state, "start"), (planner.state, "act")]


def _check_state(state: Any, function: object, method: str) -> None:
    place = definition_place(function)
    where = f" ({method}() is at {place})" if place else ""
    if not is_dataclass(state) or isinstance(state, type):
        kind = "None" if state is None else f"a {type(state).__name__}"
        raise _BadState(
            f"its state is {kind}{where}", "a dataclass of numpy arrays, numbers and strings"
        )
    try:
        pack("state", state)
    except RunError as error:
        raise _BadState(f"{error.problem}{where}", error.allowed) from error
