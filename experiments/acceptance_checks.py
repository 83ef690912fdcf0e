"""The bars of `make accept`, and how its runs are judged: means over the seeds and single seeds
of one fixed setting (acceptance.toml) have to pass."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from fedhp.report.claims.acceptance import SKEWED, TUNED
from fedhp.report.claims.judging import FILL, passes
from fedhp.report.claims.questions import RIVALS
from fedhp.report.claims.runs import (
    FEDHP,
    SHARE,
    TIMES,
    SuiteRuns,
    final_accuracy,
    time_to,
    waiting_time,
)
from fedhp.report.groups import RunCurves

# The bars in the acceptance setting, on means over the seeds; accuracies in points.
Deadline: TypeAlias = Literal["opt", "fill"]
VARIANTS: dict[Deadline, str] = {"opt": FEDHP, "fill": FILL}
ACCEPTANCE_DATA = "mnist"
TARGET = 0.92
IID = 0.1
MEAN_TIME_SHARE = {"dpsgd": 0.55, "pens": 0.6, "adpsgd": 1.05}
SEED_TIME_SHARE = 0.7  # of D-PSGD's, in every seed
ROUND_TIME_SHARE: dict[Deadline, float] = {"opt": 0.85, "fill": 0.7}
MEAN_AHEAD = {"dpsgd": 1.5, "adpsgd": 1.8, "ldsgd": 2.5, "pens": 1.2}  # at p = 0.8
SEED_AHEAD = 0.5  # of every rival, in every seed
DROP_SHARE = 0.85  # of D-PSGD's loss of accuracy from IID to p = 0.8
WAITING_RATIO: dict[Deadline, float] = {"opt": 3.5, "fill": 5.0}  # the rival's / FedHP's
LITERAL_AHEAD = 5.0  # of the paper's planner as printed
LITERAL = "fedhp:planner=literal"


@dataclass(frozen=True, slots=True)
class AcceptanceCheck:
    """A figure of an acceptance setting against its bar: one line of `make accept`."""

    name: str
    figure: str
    bar: str
    passed: bool


Value: TypeAlias = Callable[[RunCurves], float]


def acceptance_checks(runs: SuiteRuns) -> dict[Deadline, list[AcceptanceCheck]]:
    """All checks in the acceptance setting, for FedHP with each deadline rule."""
    return {deadline: _checks(runs, deadline) for deadline in VARIANTS}


def _checks(runs: SuiteRuns, deadline: Deadline) -> list[AcceptanceCheck]:
    fedhp = VARIANTS[deadline]
    mean, paired = partial(_mean, runs), partial(_paired, runs)
    times = {rival: mean(rival, _time_or_end) for rival in MEAN_TIME_SHARE}
    seed_time_shares = [
        ours / theirs
        for ours, theirs in zip(
            _values(runs, fedhp, _time), _values(runs, "dpsgd", _time_or_end), strict=True
        )
    ]
    final_iid = {label: mean(label, _points) for label in (fedhp, "dpsgd")}
    final = {label: mean(label, _points, skew=SKEWED) for label in (fedhp, *RIVALS, LITERAL)}
    drop = {label: final_iid[label] - final[label] for label in (fedhp, "dpsgd")}
    waits = [mean(label, _waiting) for label in ("adpsgd", fedhp, "ldsgd", "dpsgd")]

    def time_share(rival: str) -> float:
        return mean(fedhp, _time) / times[rival]

    round_time = mean(fedhp, _round_time) / mean("dpsgd", _round_time)
    ahead_iid = final_iid[fedhp] - final_iid["dpsgd"]
    earlier = mean("ldsgd", _time) / mean(fedhp, _time)
    checks = [
        at_most(
            "A1 IID, time to 92 %: FedHP / D-PSGD", time_share("dpsgd"), MEAN_TIME_SHARE["dpsgd"]
        ),
        at_most("A1 the same, worst seed", max(seed_time_shares), SEED_TIME_SHARE),
        at_most("A2 time to 92 %: FedHP / PENS", time_share("pens"), MEAN_TIME_SHARE["pens"]),
        at_least("A2 LD-SGD is not earlier: LD-SGD / FedHP", earlier, 1.0),
        at_most(
            "A3 time to 92 %: FedHP / AD-PSGD 30", time_share("adpsgd"), MEAN_TIME_SHARE["adpsgd"]
        ),
        at_most("A4 round time: FedHP / D-PSGD", round_time, ROUND_TIME_SHARE[deadline]),
        at_least("A5 IID final: FedHP - D-PSGD (points)", ahead_iid, 0.0),
    ]
    for rival, bar in MEAN_AHEAD.items():
        worst = min(
            ours - theirs for ours, theirs in paired(fedhp, rival, _points, skews=(SKEWED,))
        )
        name = f"B1 p=0.8 final: FedHP - {rival} (points)"
        checks.append(at_least(name, final[fedhp] - final[rival], bar))
        checks.append(at_least("B1 the same, worst seed", worst, SEED_AHEAD))
    name = "B2 drop from IID to p=0.8: FedHP / D-PSGD"
    checks.append(at_most(name, drop[fedhp] / drop["dpsgd"], DROP_SHARE))
    for rival in ("dpsgd", "pens"):
        pairs = paired(fedhp, rival, _waiting, skews=(IID, SKEWED))
        worst = min(theirs / ours for ours, theirs in pairs)
        name = f"C1 waiting, worst seed: {rival} / FedHP"
        checks.append(at_least(name, worst, WAITING_RATIO[deadline]))
    checks.append(
        AcceptanceCheck(
            "C2 waiting: AD-PSGD < FedHP < LD-SGD < D-PSGD",
            " < ".join(f"{value:.2f}" for value in waits),
            "in this order",
            all(a < b for a, b in itertools.pairwise(waits)),
        )
    )
    name = "D p=0.8: FedHP - literal reading (points)"
    return [*checks, at_least(name, final[fedhp] - final[LITERAL], LITERAL_AHEAD)]


def tuned_note(runs: SuiteRuns) -> str:
    """E, without a bar: how AD-PSGD does with its steps tuned."""
    return (
        f"E for comparison, AD-PSGD with 100 steps: IID final {_mean(runs, TUNED, _points):.1f} %, "
        f"to 92 % in {_mean(runs, TUNED, _time):.0f} s; "
        f"p=0.8 final {_mean(runs, TUNED, _points, skew=SKEWED):.1f} %"
    )


def at_most(name: str, value: float, bar: float) -> AcceptanceCheck:
    """The value must not be above the bar."""
    return AcceptanceCheck(name, f"{value:.3f}", f"<= {bar}", passes(value, bar, scale=SHARE))


def at_least(name: str, value: float, bar: float) -> AcceptanceCheck:
    """The value must not be below the bar."""
    return AcceptanceCheck(name, f"{value:.3f}", f">= {bar}", passes(value, bar, scale=TIMES))


def _values(runs: SuiteRuns, label: str, value: Value, *, skew: float = IID) -> list[float]:
    return [value(run) for run in runs.runs(ACCEPTANCE_DATA, label, skew=skew)]


def _paired(
    runs: SuiteRuns, ours: str, theirs: str, value: Value, *, skews: Sequence[float]
) -> list[tuple[float, float]]:
    """The numbers of two labels, seed by seed."""
    return [
        pair
        for skew in skews
        for pair in zip(
            _values(runs, ours, value, skew=skew),
            _values(runs, theirs, value, skew=skew),
            strict=True,
        )
    ]


def _mean(runs: SuiteRuns, label: str, value: Value, *, skew: float = IID) -> float:
    return float(np.mean(_values(runs, label, value, skew=skew)))


def _points(run: RunCurves) -> float:
    final = final_accuracy(run)
    return math.nan if final is None else 100 * final


def _waiting(run: RunCurves) -> float:
    return waiting_time(run) or 0.0


def _round_time(run: RunCurves) -> float:
    return run.summary.round_time or math.nan


def _time(run: RunCurves) -> float:
    time = time_to(run, TARGET)
    return math.inf if time is None else time


def _time_or_end(run: RunCurves) -> float:
    """A rival that never reaches the target counts with the time it ran."""
    time = time_to(run, TARGET)
    return run.summary.completion_time if time is None else time
