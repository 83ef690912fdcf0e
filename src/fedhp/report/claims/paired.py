"""Two algorithms compared seed by seed: equal seeds met the same world, so numbers pair up.

A sample has one number per common seed; which way is better, and where neither is, is its
scale's. Times are to a common target: the highest that both reached in every common seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from fedhp.report.claims.pool import Pool
from fedhp.report.formatting import label_name, target_name
from fedhp.report.groups import RunCurves

Number: TypeAlias = Callable[[RunCurves], float | None]
Combine: TypeAlias = Callable[[float, float], float]  # of the first's and the second's number
Pairs: TypeAlias = Mapping[int, tuple[RunCurves, RunCurves]]  # by seed


RISING = 0.05  # of its accuracy in the last quarter: a run is not near its end


class Settled(Exception):
    """An answer before any number: there is nothing to compare, or the first has lost."""

    def __init__(self, why: str, *, lost: bool = False) -> None:
        super().__init__(why)
        self.why, self.lost = why, lost


@dataclass(frozen=True, slots=True)
class Place:
    """Where runs are compared: a data set at a non-IID level; `iid` is its evenest one."""

    data: str
    skew: float
    iid: bool = False

    @property
    def name(self) -> str:
        """In words."""
        return f"p = {self.skew:g}" + (" (IID)" if self.iid else "")


@dataclass(frozen=True, slots=True)
class Scale:
    """How a number is written, which value means no difference, and which way is better."""

    unit: str
    factor: float = 1.0
    decimals: int = 0
    neutral: float = 0.0
    better: int = 1  # -1: less is better
    signed: bool = False

    def rounded(self, value: float) -> float:
        """As it is written, in its unit."""
        return round(self.factor * value, self.decimals)

    def plain(self, value: float) -> str:
        """Without the unit."""
        return f"{self.factor * value:{'+' if self.signed else ''}.{self.decimals}f}"

    def text(self, value: float) -> str:
        """With the unit."""
        return self.plain(value) + self.unit


PERCENT = Scale(" %", 100.0)
FINE_PERCENT = Scale(" %", 100.0, 2)
TIMES = Scale("x", decimals=2, neutral=1.0)
POINTS = Scale(" points", 100.0, 2, signed=True)
SHARE = Scale("", decimals=2, neutral=1.0, better=-1)  # the first's number / the second's
LESS_SECONDS = Scale(" s", decimals=2, better=-1, signed=True)


@dataclass(frozen=True, slots=True)
class Sample:
    """A number per common seed, and what has to be said of it."""

    values: tuple[float, ...]
    note: str = ""  # "to 92 %"
    bound: str = ""  # why the truth may be better for the first than these values
    rising: bool = False  # accuracies of runs that were still rising


def less(first: float, second: float) -> float:
    """By which share the first is below the second."""
    return 1 - first / second


def more(first: float, second: float) -> float:
    """By which share the first is above the second."""
    return first / second - 1


def times(first: float, second: float) -> float:
    """How many times the second is the first."""
    return second / first


def share(first: float, second: float) -> float:
    """Which share of the second the first is."""
    return first / second


def minus(first: float, second: float) -> float:
    """The difference."""
    return first - second


def final(run: RunCurves) -> float | None:
    """Test accuracy at the end (mean of the last evaluations)."""
    return run.summary.final_accuracy


def still_rising(run: RunCurves) -> bool:
    """Whether the last quarter of the evaluations still added a good part of the accuracy."""
    late = 3 * run.values.size // 4
    if not late:
        return False
    before = float(run.values[late - min(3, late) : late].mean())
    return float(run.values[-1]) - before > RISING * float(run.values[-1])


def waiting(run: RunCurves) -> float | None:
    """Mean waiting time per round, s."""
    return run.summary.mean_waiting_time


def reached(run: RunCurves, target: float) -> float | None:
    """Virtual time of the first evaluation that reaches the target."""
    there = np.flatnonzero(run.values >= target)
    return float(run.clock[there[0]]) if there.size else None


def must_have_learned(runs: Iterable[RunCurves], targets: Sequence[float]) -> None:
    """Settled where not one run ever reached the lowest target: such accuracies say nothing."""
    lowest = min(targets, default=0.0)
    if all(reached(run, lowest) is None for run in runs):
        raise Settled(f"nobody reached even {target_name(lowest)}: too little was learned")


def own_time(run: RunCurves) -> float | None:
    """Virtual time at which a run first has the accuracy it ends with."""
    end = final(run)
    return None if end is None else reached(run, end)


def pair(pool: Pool, place: Place, *, ours: str, theirs: str) -> Pairs:
    """The runs of two labels by common seed."""
    mine = pool.by_seed(place.data, ours, skew=place.skew)
    other = pool.by_seed(place.data, theirs, skew=place.skew)
    for label, found in ((ours, mine), (theirs, other)):
        if not found:
            raise Settled(f"no finished run of {label_name(label)} at {place.name}")
    both = {seed: (mine[seed], other[seed]) for seed in mine if seed in other}
    if not both:
        raise Settled(f"{label_name(ours)} and {label_name(theirs)} have no seed in common")
    return both


def compare_numbers(pairs: Pairs, number: Number, *, combine: Combine) -> Sample:
    """A number of each pair of runs, combined."""
    values = []
    for first, second in pairs.values():
        one, other = number(first), number(second)
        if one is not None and other is not None:
            values.append(_combined(combine, one, other, name=second.summary.algorithm))
    if not values:
        raise Settled("the runs have no such number")
    rising = number is final and any(map(still_rising, itertools.chain(*pairs.values())))
    return Sample(tuple(values), rising=rising)


def compare_times(pairs: Pairs, targets: Sequence[float], *, combine: Combine) -> Sample:
    """The times to a common target, combined.

    A second that reaches no target counts with its whole time, which is a bound.
    """
    runs = list(pairs.values())
    target, late = _common_target(runs, targets)
    values = []
    for first, second in runs:
        mine, other = reached(first, target), reached(second, target)
        assert mine is not None  # by the choice of the target
        other = second.summary.completion_time if other is None else other
        values.append(_combined(combine, mine, other, name=second.summary.algorithm))
    bound = ""
    if late:
        whose = label_name(runs[0][1].summary.algorithm)
        seeds = "" if late == len(runs) else f" in {late} of {len(runs)} seeds"
        bound = f"{whose} never reached {target_name(target)}{seeds}; its whole time counts"
    return Sample(tuple(values), f"to {target_name(target)}", bound)


def _common_target(
    runs: Sequence[tuple[RunCurves, RunCurves]], targets: Sequence[float]
) -> tuple[float, int]:
    """A target that the firsts reached in every seed, and how many seconds did not."""
    names = [label_name(run.summary.algorithm) for run in runs[0]]

    def arrived(which: int, target: float) -> int:
        return sum(reached(each[which], target) is not None for each in runs)

    mine = [target for target in targets if arrived(0, target) == len(runs)]
    if not mine:
        if any(arrived(1, target) == len(runs) for target in targets):
            raise Settled(f"{names[0]} did not reach in every seed what {names[1]} did", lost=True)
        raise Settled(f"neither {names[0]} nor {names[1]} reached a target in every seed")
    chosen = max(mine, key=lambda target: (arrived(1, target), target))
    return chosen, len(runs) - arrived(1, chosen)


def _combined(combine: Combine, first: float, second: float, *, name: str) -> float:
    try:
        return combine(first, second)
    except ZeroDivisionError:
        raise Settled(f"a number of {label_name(name)} or its rival is 0: no ratio") from None
