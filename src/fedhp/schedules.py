"""Schedules of the learning rate, by rounds or by virtual time."""

from __future__ import annotations

import math
from bisect import bisect_right

from fedhp.config import Experiment

FIRST_SHARE = 0.01  # of the rate, at the start of a warm-up by time
LEAST_SHARE = 1e-6  # where a cosine would round to 0: plans divide by the rate


def learning_rate(start: float, experiment: Experiment, *, round_index: int, clock: float) -> float:
    """The learning rate of a round (from 1) that begins at this virtual time: start * w(t) * f(t).

    t is the rounds done (round - 1), or with decay_by = "time" the seconds passed; W the warm-up,
    s = max(t - W, 0) what passed since it, and T the run's number of rounds, or its horizon:

        w(t) = min(1, (t + 1) / W)                        warm-up by round
             = min(1, 0.01 + 0.99 t / W)                  by time: above 0 from the start
        f(t) = decay^s, by time decay^(s / decay_seconds)                    exponential
             = 1                                                             constant
             = factor^(number of milestones <= t)                            step
             = c + (1 - c) (1 + cos(pi s / (T - W))) / 2, c = final_share    cosine
    """
    training = experiment.training
    by_time = training.decay_by == "time"
    passed = clock if by_time else round_index - 1.0
    rising, warmup = 1.0, training.warmup
    if warmup and by_time:
        rising = min(1.0, FIRST_SHARE + (1 - FIRST_SHARE) * passed / warmup)
    elif warmup:
        rising = min(1.0, (passed + 1) / warmup)
    return float(start * rising * _shape(passed, experiment))


def _shape(passed: float, experiment: Experiment) -> float:
    training = experiment.training
    since = max(passed - training.warmup, 0.0)
    match training.schedule:
        case "exponential":
            period = training.decay_seconds if training.decay_by == "time" else 1.0
            return float(training.decay ** (since / period))
        case "step":
            return float(training.factor ** bisect_right(training.milestones or (), passed))
        case "cosine":
            final = training.final_share
            end = experiment.horizon if training.decay_by == "time" else experiment.rounds
            length = float(end or math.inf) - training.warmup
            wave = (1 + math.cos(math.pi * min(1.0, since / length))) / 2
            return max(LEAST_SHARE, final + (1 - final) * wave)
        case _:
            return 1.0
