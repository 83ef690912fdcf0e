"""How many local steps: the pace (the bound's optimal tau), deadlines, and the objective J.

Remark 2 of the paper gives sqrt(N f / (L H eta^2 sigma^2)); `fill` and `opt` are the two
deadline rules; `literal` is Algorithm 3 as printed (lines 2-3 and 15-16, Eq. tau_max).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedhp.timing import steps_within, whole_steps
from fedhp.types import FloatArray, IntArray, StepReason, StepRule

DEADLINE_POINTS = 25
PENALTY = 10.0


@dataclass(frozen=True, slots=True)
class Assignment:
    """The steps for a given topology, what they cost, and the rule that set the deadline."""

    local_steps: IntArray  # [N]
    deadline: float
    objective: float
    round_time: float  # planned
    rule: StepReason


def raw_pace(
    *,
    workers: int,
    initial_loss: float,
    smoothness: float,
    rounds: int,
    learning_rate: float,
    gradient_variance: float,
) -> float:
    """sqrt(N f(x1) / (L H eta^2 sigma^2)); gradient_variance is sigma^2 already. NaN if unknown."""
    denominator = smoothness * rounds * learning_rate**2 * gradient_variance
    if not (np.isfinite(denominator) and denominator > 0 and np.isfinite(initial_loss)):
        return float("nan")
    return float(np.sqrt(workers * max(initial_loss, 0.0) / denominator))


def objective(
    local_steps: IntArray | FloatArray, worker_time: FloatArray, waiting_tolerance: float | None
) -> FloatArray:
    """J = R / mean(local_steps) over the last axis, with the soft waiting constraint if set."""
    round_time = worker_time.max(axis=-1)
    cost = round_time / local_steps.mean(axis=-1)
    if waiting_tolerance is not None:
        waiting = (round_time[..., None] - worker_time).mean(axis=-1) / round_time
        cost = cost * (1 + PENALTY * np.maximum(0.0, waiting - waiting_tolerance))
    return np.asarray(cost, dtype=np.float64)


def fill(
    step_time: FloatArray,
    communication_time: FloatArray,
    *,
    pace_steps: float,
    max_steps: int,
    waiting_tolerance: float | None = None,
) -> Assignment:
    """T = max(min_i(pace mu_i + b_i), max_i(b_i + mu_i)): the slowest worker needs time for one
    step anyway, so the others fill it."""
    paced = float((pace_steps * step_time + communication_time).min())
    needed = float((communication_time + step_time).max())
    rule = StepReason(StepRule.FILL_PACE if paced >= needed else StepRule.FILL_ONE_STEP)
    return _assign(
        max(paced, needed), step_time, communication_time, max_steps, waiting_tolerance, rule
    )


def opt(
    step_time: FloatArray,
    communication_time: FloatArray,
    *,
    max_steps: int,
    waiting_tolerance: float | None = None,
) -> Assignment:
    """The deadline with the least J, of 25 between the shortest and the longest useful one."""
    low = float((communication_time + step_time).max())
    high = float((communication_time + max_steps * step_time).max())
    deadlines = np.linspace(low, high, DEADLINE_POINTS)
    steps = whole_steps(deadlines[:, None], step_time, communication_time, max_steps=max_steps)
    worker_time = steps * step_time
    worker_time += communication_time
    cost = objective(steps, worker_time, waiting_tolerance)
    best = float(deadlines[int(np.argmin(cost))])
    rule = StepReason(StepRule.OPT, {"tried": DEADLINE_POINTS})
    return _assign(best, step_time, communication_time, max_steps, waiting_tolerance, rule)


def literal(
    step_time: FloatArray,
    communication_time: FloatArray,
    *,
    pace_steps: float,
    max_steps: int,
) -> Assignment:
    """The paper as printed: with the formula's tau for all, the fastest worker's time T_l is
    minimised, and the others get the steps that fit into T_l."""
    tau = max(1, int(pace_steps))
    fastest = float((tau * step_time + communication_time).min())
    rule = StepReason(StepRule.LITERAL)
    found = _assign(fastest, step_time, communication_time, max_steps, None, rule)
    return replace(found, objective=fastest)


def _assign(
    deadline: float,
    step_time: FloatArray,
    communication_time: FloatArray,
    max_steps: int,
    waiting_tolerance: float | None,
    rule: StepReason,
) -> Assignment:
    steps = steps_within(deadline, step_time, communication_time, max_steps=max_steps)
    worker_time = steps * step_time + communication_time
    return Assignment(
        local_steps=steps,
        deadline=deadline,
        objective=float(objective(steps, worker_time, waiting_tolerance)),
        round_time=float(worker_time.max()),
        rule=rule,
    )


def moving_average(old: FloatArray, new: FloatArray, smoothing: float) -> FloatArray:
    """Element-wise moving average; where one value is missing, the other is taken."""
    blended = np.where(np.isnan(old), new, (1 - smoothing) * old + smoothing * new)
    return np.where(np.isfinite(new), blended, old)
