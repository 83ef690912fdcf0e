"""Questions about the number of local steps (figure 1): where accuracy peaks, and time is least.

All runs compared have the same seeds; a number of steps that never reaches the target has no
completion time and is named.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedhp.report.claims.paired import PERCENT, POINTS, Number, Sample, Settled, final, reached
from fedhp.report.claims.questions import rises
from fedhp.report.claims.verdicts import (
    FAILS,
    HOLDS,
    UNKNOWN,
    Ask,
    Direction,
    Finding,
    Measure,
    joined,
    judge,
)
from fedhp.report.formatting import count, listed, score, seconds, target_name
from fedhp.report.groups import RunCurves

if TYPE_CHECKING:
    from fedhp.engine.runs.suite import PaperFigure, PaperSet

FIGURE = "fig1"
LEAST = 3  # numbers of steps that make a curve


@dataclass(frozen=True, slots=True)
class Ladder:
    """Runs by number of local steps, rising, then by seed; all have the same seeds."""

    runs: Mapping[int, Mapping[int, RunCurves]]

    @property
    def taus(self) -> list[int]:
        """The numbers of steps."""
        return list(self.runs)

    @property
    def seeds(self) -> int:
        """How many seeds all have."""
        return min(len(each) for each in self.runs.values())

    def numbers(self, tau: int, number: Number) -> list[float]:
        """The number of every run that has it."""
        found = (number(run) for run in self.runs[tau].values())
        return [value for value in found if value is not None]

    def mean(self, tau: int, number: Number) -> float:
        """The mean over the seeds that have the number."""
        return float(np.mean(self.numbers(tau, number) or [np.nan]))

    def both(self, one: int, other: int) -> list[tuple[RunCurves, RunCurves]]:
        """The runs of two numbers of steps, seed by seed."""
        return [(run, self.runs[other][seed]) for seed, run in self.runs[one].items()]

    def difference(self, one: int, other: int, *, number: Number) -> list[float]:
        """The first's number less the second's, seed by seed."""
        pairs = [(number(a), number(b)) for a, b in self.both(one, other)]
        return [a - b for a, b in pairs if a is not None and b is not None]


def steps_of(label: str, here: PaperSet) -> int:
    """The local steps of a label such as dpsgd:steps=5; the data set's without any."""
    found = re.search(r"[:,]steps=(\d+)", label)
    return int(found[1]) if found else int(here.experiment.training.local_steps)


def ladder(ask: Ask) -> Ladder:
    """The runs of figure 1 on this data set."""
    figure = _figure(ask)
    runs = {
        steps_of(label, ask.here): ask.pool.by_seed(ask.here.key, label, skew=figure.skews[0])
        for label in figure.algorithms
    }
    runs = {tau: runs[tau] for tau in sorted(runs) if runs[tau]}
    if len(runs) < LEAST:
        raise Settled(f"only {count(len(runs), 'number')} of steps finished, {LEAST} needed")
    seeds = set.intersection(*(set(each) for each in runs.values()))
    if not seeds:
        raise Settled("the numbers of steps have no seed in common")
    return Ladder({tau: {seed: runs[tau][seed] for seed in sorted(seeds)} for tau in runs})


def accuracy_falls_beyond(limit: int) -> Measure:
    """Final accuracy is lower with many steps than with `limit`, and rises nowhere after it."""

    def measure(ask: Ask) -> Finding:
        steps = ladder(ask)
        later = [tau for tau in steps.taus if tau > limit]
        start = max((tau for tau in steps.taus if tau <= limit), default=0)
        if not later or not start:
            raise Settled(f"needs runs with at most and with more than {limit} steps")
        falls = judge(Sample(tuple(steps.difference(start, later[-1], number=final))), POINTS)
        shown = listed([_at(steps, tau, final, score) for tau in (start, later[-1])])
        found = replace(falls, value=f"{shown}; {_peak_words(steps)}")
        return _unbroken(found, steps, [start, *later], number=final)

    return measure


def time_falls_until(limit: int) -> Measure:
    """Completion time is less with `limit` steps than with few, and rises nowhere before it."""

    def measure(ask: Ask) -> Finding:
        steps = ladder(ask)
        early = [tau for tau in steps.taus if tau <= limit]
        target, arrived = _target(steps, early, ask.here.targets)
        number = partial(reached, target=target)
        first, last = arrived[0], arrived[-1]
        saved = [1 - b / a for a, b in _times(steps, first, last, number=number)]
        falls = judge(Sample(tuple(saved)), PERCENT)
        shown = listed([_at(steps, tau, number, seconds) for tau in (first, last)])
        found = replace(falls, value=f"{shown} to {target_name(target)}")
        found = _unbroken(found, steps, arrived, number=number)
        return replace(found, why=joined(found.why, _late_words(early, arrived)))

    return measure


def accuracy_peaks_inside(need: int) -> Measure:
    """The best number of steps is neither the least nor the most that were run."""

    def measure(ask: Ask) -> Finding:
        steps = ladder(ask)
        taus = steps.taus
        peak = _peak(steps)
        ends = [tau for tau in (taus[0], taus[-1]) if tau != peak]
        shown = ", ".join(_at(steps, tau, final, score) for tau in ends)
        value = f"{_peak_words(steps)}; {shown}"
        if len(ends) < 2:
            where = "least" if peak == taus[0] else "most"
            found = Finding(FAILS, value, steps.seeds, f"the peak is at the {where} steps run")
        else:
            flat = [tau for tau in ends if not rises(steps.both(tau, peak), final)]
            why = f"not clearly above tau = {listed(map(str, flat))}" if flat else ""
            found = Finding(FAILS if flat else HOLDS, value, steps.seeds, why, "same")
        return _enough(found, need)

    return measure


def time_falls_first(need: int) -> Measure:
    """From the fewest steps on, completion time falls until some number of steps."""

    def measure(ask: Ask) -> Finding:
        steps = ladder(ask)
        target, arrived = _target(steps, steps.taus, ask.here.targets)
        number = partial(reached, target=target)
        least = min(arrived, key=lambda tau: steps.mean(tau, number))
        shown = listed([_at(steps, tau, number, seconds) for tau in (arrived[0], arrived[-1])])
        value = f"least {_at(steps, least, number, seconds)}; {shown}; to {target_name(target)}"
        falls = least != arrived[0] and rises(steps.both(least, arrived[0]), number)
        why = "" if falls else f"not clearly less than at tau = {arrived[0]}"
        if falls and least == arrived[-1]:
            why = "it falls to the end of what was run"
        why = joined(why, _late_words(steps.taus, arrived))
        way: Direction = "same" if falls else ""
        return _enough(Finding(HOLDS if falls else FAILS, value, steps.seeds, why, way), need)

    return measure


def _unbroken(found: Finding, steps: Ladder, taus: Sequence[int], *, number: Number) -> Finding:
    """The same, unless the number clearly rises somewhere along these numbers of steps."""
    for one, other in itertools.pairwise(taus):
        if found.status == HOLDS and rises(steps.both(one, other), number):
            return replace(found, status=FAILS, why=f"rises from tau = {one} to {other}")
    return found


def _target(
    steps: Ladder, taus: Sequence[int], targets: Sequence[float]
) -> tuple[float, list[int]]:
    """The target that most numbers of steps reach in every seed, of these the highest."""

    def arrived(target: float) -> list[int]:
        number = partial(reached, target=target)
        return [tau for tau in taus if len(steps.numbers(tau, number)) == steps.seeds]

    chosen = max(targets, key=lambda target: (len(arrived(target)), target), default=None)
    if chosen is None or len(arrived(chosen)) < 2:
        raise Settled("no target was reached with two numbers of steps")
    return chosen, arrived(chosen)


def _times(steps: Ladder, one: int, other: int, *, number: Number) -> list[tuple[float, float]]:
    pairs = [(number(a), number(b)) for a, b in steps.both(one, other)]
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def _peak(steps: Ladder) -> int:
    return max(steps.taus, key=lambda tau: steps.mean(tau, final))


def _peak_words(steps: Ladder) -> str:
    return f"peak {_at(steps, _peak(steps), final, score)}"


def _late_words(asked: Sequence[int], arrived: Sequence[int]) -> str:
    late = [str(tau) for tau in asked if tau not in arrived]
    return f"tau = {listed(late)} never reached it in every seed" if late else ""


def _at(steps: Ladder, tau: int, number: Number, write: Callable[[float], str]) -> str:
    return f"{write(steps.mean(tau, number))} at tau = {tau}"


def _enough(found: Finding, need: int) -> Finding:
    if found.seeds >= need:
        return found
    why = f"{count(need, 'seed')} asked for, {found.seeds} finished"
    return replace(found, status=UNKNOWN, why=why)


def _figure(ask: Ask) -> PaperFigure:
    for figure in ask.suite.figures:
        if figure.name == FIGURE and ask.here.key in figure.sets:
            return figure
    raise Settled(f"{FIGURE} was not asked for on {ask.here.title}")
