"""The finished runs of the paper's suite, and samples of two algorithms compared seed by seed.

Runs are found by data set, non-IID level and label, for whichever figure they were run. Equal
seeds mean equal worlds, so numbers are paired by seed. Times are to a common target: the highest
that both algorithms reached in every common seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import sub, truediv
from typing import TYPE_CHECKING, TypeAlias

from fedhp.record.reader import time_to as first_time
from fedhp.report.formatting import label_name, target_name
from fedhp.report.groups import RunCurves, read_curves

if TYPE_CHECKING:
    from fedhp.engine.runs.suite import PaperCell, PaperSet, Suite

Key: TypeAlias = tuple[str, float, str]  # data set, non-IID level, label
Number: TypeAlias = Callable[[RunCurves], float | None]
Combine: TypeAlias = Callable[[float, float], float]  # of the first's and the second's number
Pairs: TypeAlias = Sequence[tuple[RunCurves, RunCurves]]  # of equal seeds

FEDHP = "fedhp"  # stands for the variant of FedHP that is judged
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
class Evidence:
    """What a claim is judged on: the runs, the data set, and FedHP's variant."""

    runs: SuiteRuns
    suite: Suite
    data_set: PaperSet
    fedhp: str

    def label(self, name: str) -> str:
        return self.fedhp if name == FEDHP else name

    def level(self, skew: float | None = None) -> float:
        """A non-IID level; without one that of IID data, where every class is spread evenly."""
        return round(3 / self.data_set.experiment.workers, 6) if skew is None else skew

    def level_name(self, skew: float | None = None) -> str:
        level = self.level(skew)
        return f"p = {level:g}" + (" (IID)" if abs(level - self.level()) < 1e-6 else "")

    def by_seed(self, name: str, skew: float | None = None) -> dict[int, RunCurves]:
        label = self.label(name)
        runs = self.runs.by_seed(self.data_set.key, label, skew=self.level(skew))
        if not runs:
            raise NoSample(f"no finished run of {label_name(label)} at {self.level_name(skew)}")
        return runs

    def pairs(self, ours: str, theirs: str, skew: float | None = None) -> Pairs:
        first, second = self.by_seed(ours, skew), self.by_seed(theirs, skew)
        pairs = [(run, second[seed]) for seed, run in first.items() if seed in second]
        if not pairs:
            names = [label_name(self.label(name)) for name in (ours, theirs)]
            raise NoSample(f"{' and '.join(names)} have no seed in common")
        return pairs


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


def known_numbers(runs: Iterable[RunCurves], number: Number) -> list[float]:
    return [value for run in runs if (value := number(run)) is not None]


def number_pairs(pairs: Pairs, number: Number) -> list[tuple[float, float]]:
    """The numbers of the pairs that have both."""
    values = [(number(first), number(second)) for first, second in pairs]
    return [(a, b) for a, b in values if a is not None and b is not None]


@dataclass(frozen=True, slots=True)
class PairedMetric:
    """How two runs of one seed are compared."""

    scale: Scale
    combine: Combine
    number: Number | None = None  # None: the time to a common target

    def sample(
        self, evidence: Evidence, ours: str, theirs: str, skew: float | None = None
    ) -> Sample:
        pairs, targets = evidence.pairs(ours, theirs, skew), evidence.data_set.targets
        try:
            if self.number is None:
                return self._times(pairs, targets)
            if self.number is not waiting_time:
                require_learning(chain(*pairs), targets)
            values = tuple(self.combine(a, b) for a, b in number_pairs(pairs, self.number))
        except ZeroDivisionError:
            name = label_name(evidence.label(theirs))
            raise NoSample(f"a number of {name} or its rival is 0: no ratio") from None
        if not values:
            raise NoSample("the runs do not have this number")
        rising = self.number is final_accuracy and any(map(still_rising, chain(*pairs)))
        return Sample(values, rising=rising)

    def _times(self, pairs: Pairs, targets: Sequence[float]) -> Sample:
        """A second run that does not reach the target counts with its whole time: a bound."""
        target, late = _common_target(pairs, targets)
        values = []
        for first, second in pairs:
            ours, theirs = time_to(first, target), time_to(second, target)
            assert ours is not None  # by the choice of the target
            theirs = second.summary.completion_time if theirs is None else theirs
            values.append(self.combine(ours, theirs))
        bound = ""
        if late:
            rival = label_name(pairs[0][1].summary.algorithm)
            seeds = "" if late == len(pairs) else f" in {late} of {len(pairs)} seeds"
            bound = f"{rival} never reached {target_name(target)}{seeds}; its whole time counts"
        return Sample(tuple(values), f"to {target_name(target)}", bound)


def _less(first: float, second: float) -> float:
    return 1 - first / second


LESS_TIME = PairedMetric(PERCENT, _less)
FASTER = PairedMetric(TIMES, lambda a, b: b / a)
TIME_SHARE = PairedMetric(SHARE, truediv)
LESS_OWN_TIME = PairedMetric(PERCENT, _less, time_to_own_final)
MORE_ACCURATE = PairedMetric(FINE_PERCENT, lambda a, b: a / b - 1, final_accuracy)
AHEAD = PairedMetric(POINTS, sub, final_accuracy)
LESS_WAITING = PairedMetric(PERCENT, _less, waiting_time)
WAITING_SHARE = PairedMetric(SHARE, truediv, waiting_time)
WAITS_LESS = PairedMetric(LESS_SECONDS, sub, waiting_time)


def _common_target(pairs: Pairs, targets: Sequence[float]) -> tuple[float, int]:
    """A target that the first runs reached in every seed, and how many second runs did not."""
    names = [label_name(run.summary.algorithm) for run in pairs[0]]

    def arrivals(which: int, target: float) -> int:
        return sum(time_to(pair[which], target) is not None for pair in pairs)

    reached = [target for target in targets if arrivals(0, target) == len(pairs)]
    if not reached:
        if any(arrivals(1, target) == len(pairs) for target in targets):
            raise NoSample(f"{names[0]} did not reach in every seed what {names[1]} did", lost=True)
        raise NoSample(f"neither {names[0]} nor {names[1]} reached a target in every seed")
    chosen = max(reached, key=lambda target: (arrivals(1, target), target))
    return chosen, len(pairs) - arrivals(1, chosen)
