"""The finished runs of the paper's suite, and samples of two algorithms compared seed by seed.

Runs are found by data set, non-IID level and label, for whichever figure they were run. Equal
seeds mean equal worlds, so numbers are paired by seed. Times are to a common target: the highest
that both algorithms reached in every common seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from fedhp.record.reader import time_to as first_time
from fedhp.report.formatting import label_name, target_name
from fedhp.report.groups import RunCurves, read_curves

if TYPE_CHECKING:
    from fedhp.engine.runs.suite import PaperCell, Suite

Key: TypeAlias = tuple[str, float, str]  # data set, non-IID level, label
Number: TypeAlias = Callable[[RunCurves], float | None]
Combine: TypeAlias = Callable[[float, float], float]  # of the first's and the second's number
Pairs: TypeAlias = Mapping[int, tuple[RunCurves, RunCurves]]  # by seed

RISING = 0.05  # of its accuracy gained in the last quarter: a run has not converged


@dataclass(frozen=True, slots=True)
class SuiteRuns:
    """Finished runs by data set, level and label; `unfinished` are the cells without one."""

    by_key: Mapping[Key, tuple[RunCurves, ...]]  # in the order of their seeds
    unfinished: tuple[PaperCell, ...] = ()

    def runs(self, data: str, label: str, *, skew: float) -> list[RunCurves]:
        return list(self.by_key.get(_key(data, skew, label), ()))

    def by_seed(self, data: str, label: str, *, skew: float) -> dict[int, RunCurves]:
        return {run.summary.seed: run for run in self.runs(data, label, skew=skew)}

    def levels(self, data: str, label: str | None = None) -> list[float]:
        """The non-IID levels at which there are runs, ascending."""
        return sorted(
            {skew for name, skew, own in self.by_key if name == data and label in (None, own)}
        )


def group_runs(
    runs: Iterable[tuple[str, float, RunCurves]], unfinished: Iterable[PaperCell] = ()
) -> SuiteRuns:
    """Group (data set, level, run) by key; of two runs with one seed the first is used."""
    by_key: dict[Key, dict[int, RunCurves]] = {}
    for data, skew, run in runs:
        key = _key(data, skew, run.summary.algorithm)
        by_key.setdefault(key, {}).setdefault(run.summary.seed, run)
    return SuiteRuns(
        {key: tuple(seeds[seed] for seed in sorted(seeds)) for key, seeds in by_key.items()},
        tuple(unfinished),
    )


def read_suite_runs(suite: Suite) -> SuiteRuns:
    """Read every finished cell of the suite; the other cells are listed as unfinished."""
    from fedhp.engine.runs.suite import finished_cells

    cells = suite.cells()
    finished = finished_cells(cells)
    folders = {each.cell.folder for each in finished}
    return group_runs(
        ((each.data, each.skew, read_curves(each.cell.folder)) for each in finished),
        (each for each in cells if each.cell.folder not in folders),
    )


def _key(data: str, skew: float, label: str) -> Key:
    return data, round(skew, 6), label


class NoSample(Exception):
    """There is no number to judge: runs are missing, or FedHP `lost` before there was one."""

    def __init__(self, why: str, *, lost: bool = False) -> None:
        super().__init__(why)
        self.why, self.lost = why, lost


@dataclass(frozen=True, slots=True)
class DataLevel:
    """A data set at a non-IID level; `iid` if every class is spread evenly."""

    data: str
    skew: float
    iid: bool = False

    @property
    def name(self) -> str:
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
        """The value as it is written, in its unit."""
        return round(self.factor * value, self.decimals)

    def plain(self, value: float) -> str:
        return f"{self.factor * value:{'+' if self.signed else ''}.{self.decimals}f}"

    def text(self, value: float) -> str:
        return self.plain(value) + self.unit


PERCENT = Scale(" %", 100.0)
FINE_PERCENT = Scale(" %", 100.0, 2)
TIMES = Scale("x", decimals=2, neutral=1.0)
POINTS = Scale(" points", 100.0, 2, signed=True)
LESS_POINTS = Scale(" points", 100.0, 2, better=-1, signed=True)
SHARE = Scale("", decimals=2, neutral=1.0, better=-1)  # the first's number / the second's
LESS_SECONDS = Scale(" s", decimals=2, better=-1, signed=True)


@dataclass(frozen=True, slots=True)
class Sample:
    """A number per common seed, and what must be said with it."""

    values: tuple[float, ...]
    note: str = ""  # "to 92 %"
    bound: str = ""  # why the truth may be better for the first than these values
    rising: bool = False  # accuracies of runs that had not converged


def final_accuracy(run: RunCurves) -> float | None:
    return run.summary.final_accuracy


def waiting_time(run: RunCurves) -> float | None:
    return run.summary.mean_waiting_time


def time_to(run: RunCurves, target: float) -> float | None:
    """Virtual time at which the run reaches the target, as in its summary."""
    return first_time(
        target, run.clock.tolist(), run.values.tolist(), interpolated=run.interpolated
    )


def time_to_own_final(run: RunCurves) -> float | None:
    """Virtual time at which a run first has the accuracy it ends with."""
    end = final_accuracy(run)
    return None if end is None else time_to(run, end)


def still_rising(run: RunCurves) -> bool:
    """Whether the last quarter of the evaluations still added a good part of the accuracy."""
    late = 3 * run.values.size // 4
    if not late:
        return False
    before = float(run.values[late - min(3, late) : late].mean())
    return float(run.values[-1]) - before > RISING * float(run.values[-1])


def require_learning(runs: Iterable[RunCurves], targets: Sequence[float]) -> None:
    """NoSample where no run ever reached the lowest target: such accuracies mean nothing."""
    lowest = min(targets, default=0.0)
    if all(time_to(run, lowest) is None for run in runs):
        raise NoSample(f"no run reached even {target_name(lowest)}: too little was learned")


def paired_runs(runs: SuiteRuns, level: DataLevel, *, ours: str, theirs: str) -> Pairs:
    first = runs.by_seed(level.data, ours, skew=level.skew)
    second = runs.by_seed(level.data, theirs, skew=level.skew)
    for label, by_seed in ((ours, first), (theirs, second)):
        if not by_seed:
            raise NoSample(f"no finished run of {label_name(label)} at {level.name}")
    pairs = {seed: (first[seed], second[seed]) for seed in first if seed in second}
    if not pairs:
        raise NoSample(f"{label_name(ours)} and {label_name(theirs)} have no seed in common")
    return pairs


def sample_numbers(pairs: Pairs, number: Number, *, combine: Combine) -> Sample:
    """A number of each pair of runs, combined."""
    values = []
    for first, second in pairs.values():
        ours, theirs = number(first), number(second)
        if ours is not None and theirs is not None:
            values.append(_combined(combine, ours, theirs, name=second.summary.algorithm))
    if not values:
        raise NoSample("the runs do not have this number")
    rising = number is final_accuracy and any(map(still_rising, itertools.chain(*pairs.values())))
    return Sample(tuple(values), rising=rising)


def sample_times(pairs: Pairs, targets: Sequence[float], *, combine: Combine) -> Sample:
    """The times to a common target, combined.

    A second run that reaches no target counts with its whole time, which is a bound.
    """
    runs = list(pairs.values())
    target, late = _common_target(runs, targets)
    values = []
    for first, second in runs:
        ours, theirs = time_to(first, target), time_to(second, target)
        assert ours is not None  # by the choice of the target
        theirs = second.summary.completion_time if theirs is None else theirs
        values.append(_combined(combine, ours, theirs, name=second.summary.algorithm))
    bound = ""
    if late:
        rival = label_name(runs[0][1].summary.algorithm)
        seeds = "" if late == len(runs) else f" in {late} of {len(runs)} seeds"
        bound = f"{rival} never reached {target_name(target)}{seeds}; its whole time counts"
    return Sample(tuple(values), f"to {target_name(target)}", bound)


def _common_target(
    runs: Sequence[tuple[RunCurves, RunCurves]], targets: Sequence[float]
) -> tuple[float, int]:
    """A target that the first runs reached in every seed, and how many second runs did not."""
    names = [label_name(run.summary.algorithm) for run in runs[0]]

    def arrivals(which: int, target: float) -> int:
        return sum(time_to(pair[which], target) is not None for pair in runs)

    reached = [target for target in targets if arrivals(0, target) == len(runs)]
    if not reached:
        if any(arrivals(1, target) == len(runs) for target in targets):
            raise NoSample(f"{names[0]} did not reach in every seed what {names[1]} did", lost=True)
        raise NoSample(f"neither {names[0]} nor {names[1]} reached a target in every seed")
    chosen = max(reached, key=lambda target: (arrivals(1, target), target))
    return chosen, len(runs) - arrivals(1, chosen)


def _combined(combine: Combine, first: float, second: float, *, name: str) -> float:
    try:
        return combine(first, second)
    except ZeroDivisionError:
        raise NoSample(f"a number of {label_name(name)} or its rival is 0: no ratio") from None
