"""The kinds of questions that claims ask: FedHP against rivals, orders, falls with the skew, and
where accuracy and time turn with the number of local steps (figure 1).

The name `fedhp` stands for the variant of FedHP that is judged; rivals go by their labels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import sub, truediv
from typing import TYPE_CHECKING, Concatenate, ParamSpec

import numpy as np

from fedhp.engine.runs.variants import parse_variant
from fedhp.record.statistics import interval
from fedhp.report.claims.judging import (
    FAILS,
    FILL,
    HOLDS,
    INTERVAL_SEEDS,
    REPORTED,
    UNKNOWN,
    ClaimAnswer,
    Direction,
    Evidence,
    Measure,
    attempt,
    is_papers_own,
    judge,
    measure_each,
    merge,
    seeds_needed,
    with_interval,
)
from fedhp.report.claims.runs import (
    FINE_PERCENT,
    LESS_POINTS,
    LESS_SECONDS,
    PERCENT,
    POINTS,
    SHARE,
    TIMES,
    Combine,
    DataLevel,
    NoSample,
    Number,
    Pairs,
    Sample,
    Scale,
    final_accuracy,
    paired_runs,
    require_learning,
    sample_numbers,
    sample_times,
    time_to,
    time_to_own_final,
    waiting_time,
)
from fedhp.report.formatting import count, label_name, listed, score, seconds, target_name
from fedhp.report.groups import RunCurves

if TYPE_CHECKING:
    from fedhp.engine.runs.suite import PaperSet

P = ParamSpec("P")
FEDHP = "fedhp"
RIVALS = ("pens", "ldsgd", "adpsgd", "dpsgd")
FIVE = (FEDHP, *RIVALS)
HIGH_SKEW = 0.8
NEAR = 0.1  # an absolute number agrees within this share of the paper's
SIMILAR = 0.02  # accuracies within this difference count as similar
STEPS_FIGURE = "fig1"
FEWEST_STEP_COUNTS = 3  # that make a curve


@dataclass(frozen=True, slots=True)
class PairedMetric:
    scale: Scale
    sample: Callable[[Evidence, Pairs], Sample]


def question(ask: Callable[Concatenate[Evidence, P], ClaimAnswer]) -> Callable[P, Measure]:
    """A question whose parts are given first, and the runs when it is asked."""

    def fixed(*parts: P.args, **named: P.kwargs) -> Measure:
        return lambda evidence: ask(evidence, *parts, **named)

    return fixed


def _of(number: Number, combine: Combine) -> Callable[[Evidence, Pairs], Sample]:
    def sample(evidence: Evidence, pairs: Pairs) -> Sample:
        if number in (final_accuracy, time_to_own_final):
            require_learning(itertools.chain(*pairs.values()), evidence.data_set.targets)
        return sample_numbers(pairs, number, combine=combine)

    return sample


def _of_times(combine: Combine) -> Callable[[Evidence, Pairs], Sample]:
    return lambda evidence, pairs: sample_times(pairs, evidence.data_set.targets, combine=combine)


# The first's number is a, the second's b.
LESS_TIME = PairedMetric(PERCENT, _of_times(lambda a, b: 1 - a / b))
FASTER = PairedMetric(TIMES, _of_times(lambda a, b: b / a))
TIME_SHARE = PairedMetric(SHARE, _of_times(truediv))
LESS_OWN_TIME = PairedMetric(PERCENT, _of(time_to_own_final, lambda a, b: 1 - a / b))
MORE_ACCURATE = PairedMetric(FINE_PERCENT, _of(final_accuracy, lambda a, b: a / b - 1))
AHEAD = PairedMetric(POINTS, _of(final_accuracy, sub))
LESS_WAITING = PairedMetric(PERCENT, _of(waiting_time, lambda a, b: 1 - a / b))
WAITING_SHARE = PairedMetric(SHARE, _of(waiting_time, truediv))
WAITS_LESS = PairedMetric(LESS_SECONDS, _of(waiting_time, sub))


def name_of(label: str) -> str:
    """An algorithm in words; FedHP without its variant."""
    return "FedHP" if label == FILL else label_name(label)


@question
def against(
    evidence: Evidence,
    metric: PairedMetric,
    bars: Mapping[str, float | None],
    *,
    skew: float | None = None,
    clear: bool = False,
    need: int = 1,
) -> ClaimAnswer:
    """FedHP against each rival, by at least its bar (by anything, where it has none)."""

    def one(rival: str) -> ClaimAnswer:
        pairs = paired_runs(evidence.runs, evidence.level(skew), ours=evidence.fedhp, theirs=rival)
        sample = metric.sample(evidence, pairs)
        return judge(sample, metric.scale, bar=bars[rival], clear=clear, need=need)

    parts = measure_each(bars, one, name=name_of)
    return parts[0][1] if len(parts) == 1 else merge(parts)


@question
def in_order(
    evidence: Evidence,
    metric: PairedMetric,
    pairs: Sequence[tuple[str, str]],
    *,
    skew: float | None = None,
    words: str = "before",
) -> ClaimAnswer:
    """The first of each pair is better than its second."""

    def one(names: tuple[str, str]) -> ClaimAnswer:
        ours, theirs = (_label(evidence, name) for name in names)
        runs = paired_runs(evidence.runs, evidence.level(skew), ours=ours, theirs=theirs)
        return judge(metric.sample(evidence, runs), metric.scale)

    def words_of(names: tuple[str, str]) -> str:
        return f"{label_name(names[0])} {words} {label_name(names[1])}"

    return merge(measure_each(pairs, one, name=words_of))


@question
def closest(
    evidence: Evidence, measures: Sequence[tuple[str, Measure]], scale: Scale
) -> ClaimAnswer:
    """Several questions, of whose numbers the least favourable is shown."""
    parts = [(name, attempt(partial(each, evidence))) for name, each in measures]
    whole = merge(parts)
    known = [
        (scale.better * part.interval.mean, name, part)
        for name, part in parts
        if part.interval is not None
    ]
    if not known:
        return whole
    _, name, least = min(known, key=lambda item: item[0])
    short = [part for _, part in parts if part.status == FAILS]
    unknown = [part for _, part in parts if part.status == UNKNOWN]
    reasons = list(least.reasons) if least.status != UNKNOWN else []
    if len(short) > 1:
        reasons.append(f"{len(short)} of {len(parts)} fall short")
    if unknown:
        reasons.append(f"{len(unknown)} of {len(parts)} not testable: {unknown[0].why}")
    first, *rest = least.values
    return replace(
        whole,
        values=(f"closest {name}: {first}", *rest),
        seeds=least.seeds,
        reasons=tuple(reasons),
        interval=least.interval,
    )


@question
def absolute(
    evidence: Evidence,
    label: str,
    number: Number,
    *,
    value: float,
    scale: Scale,
    skew: float | None = None,
) -> ClaimAnswer:
    """Is an algorithm's number about the paper's? Only with its data, models and rounds."""
    level = evidence.level(skew)
    own = _label(evidence, label)
    runs = evidence.runs.runs(level.data, own, skew=level.skew)
    if not runs:
        raise NoSample(f"no finished run of {label_name(own)} at {level.name}")
    numbers = [known for run in runs if (known := number(run)) is not None]
    spread = interval(numbers)
    if spread is None:
        return ClaimAnswer(UNKNOWN, reasons=("never reached here",))
    text = with_interval(spread, scale)
    if len(numbers) < len(runs):
        text += f" (reached in {len(numbers)} of {len(runs)})"
    answer = ClaimAnswer(UNKNOWN, (text,), spread.count, interval=spread)
    if evidence.suite.profile != "paper" or not is_papers_own(evidence.data_set):
        other = "other data" if evidence.suite.profile == "paper" else "smaller models and data"
        reason = f"{other}: absolute numbers cannot be compared, ratios are judged separately"
        return replace(answer, reasons=(reason,))
    inside = spread.low is not None and spread.high is not None
    inside = inside and (spread.low or 0.0) <= value <= (spread.high or 0.0)
    if inside or abs(spread.mean / value - 1) <= NEAR:
        return replace(answer, status=HOLDS)
    reason = f"{spread.mean / value:.2f} times the paper's"
    return replace(answer, status=FAILS, reasons=(reason,))


@question
def highest_everywhere(evidence: Evidence, rivals: Sequence[str]) -> ClaimAnswer:
    """FedHP is the most accurate at every level that was run; the closest rival is shown."""
    levels = evidence.runs.levels(evidence.data_set.key, evidence.fedhp)
    if not levels:
        raise NoSample(f"no finished run of {label_name(evidence.fedhp)}")
    measures = [
        (f"{name_of(rival)} at p = {p:g}", against(AHEAD, {rival: None}, skew=p))
        for p in levels
        for rival in rivals
    ]
    return closest(measures, AHEAD.scale)(evidence)


@question
def similar_accuracy(evidence: Evidence, rivals: Sequence[str]) -> ClaimAnswer:
    """No rival's final accuracy is far from FedHP's."""

    def one(rival: str) -> ClaimAnswer:
        pairs = paired_runs(evidence.runs, evidence.level(), ours=evidence.fedhp, theirs=rival)
        answer = judge(AHEAD.sample(evidence, pairs), AHEAD.scale)
        spread = answer.interval
        assert spread is not None
        far = max(abs(spread.mean if v is None else v) for v in (spread.low, spread.high))
        if far <= SIMILAR:
            return replace(answer, status=HOLDS, reasons=(), direction="same")
        reason = f"up to {100 * far:.1f} points apart, more than {100 * SIMILAR:.0f}"
        return replace(answer, status=FAILS, reasons=(reason,), direction="")

    return merge(measure_each(rivals, one, name=lambda rival: f"FedHP - {name_of(rival)}"))


@question
def falls_with_skew(evidence: Evidence, labels: Sequence[str], *, need: int = 1) -> ClaimAnswer:
    """Each one's accuracy is lower at p = 0.8 than on IID data, and rises nowhere between."""

    def one(label: str) -> ClaimAnswer:
        return _falls(evidence, _label(evidence, label), need=need)

    return merge(measure_each(labels, one, name=label_name))


@question
def falls_least(evidence: Evidence, rivals: Sequence[str], *, need: int = 1) -> ClaimAnswer:
    """FedHP loses less from IID data to p = 0.8 than each rival."""

    def one(rival: str) -> ClaimAnswer:
        ours, theirs = _drops(evidence, evidence.fedhp), _drops(evidence, rival)
        values = tuple(theirs[seed] - ours[seed] for seed in ours if seed in theirs)
        if not values:
            raise NoSample(f"FedHP and {name_of(rival)} have no seed in common")
        return judge(Sample(values), POINTS, need=need)

    return merge(measure_each(rivals, one, name=name_of))


@question
def reported(evidence: Evidence, measure: Measure) -> ClaimAnswer:
    """The same numbers without a bar to pass."""
    answer = measure(evidence)
    return answer if answer.status == UNKNOWN else replace(answer, status=REPORTED)


def _number_pairs(
    runs: Iterable[tuple[RunCurves, RunCurves]], number: Number
) -> list[tuple[float, float]]:
    """The numbers of the pairs that have both."""
    values = [(number(a), number(b)) for a, b in runs]
    return [(a, b) for a, b in values if a is not None and b is not None]


def _rises(runs: Sequence[tuple[RunCurves, RunCurves]], number: Number) -> bool:
    """Whether the number is clearly larger in the second run of the pairs."""
    values = [b - a for a, b in _number_pairs(runs, number)]
    spread = interval(values)
    if spread is None:
        return False
    if spread.count < INTERVAL_SEEDS:
        return min(values) > 0
    return (spread.low or 0.0) > 0


def _falls(evidence: Evidence, label: str, *, need: int) -> ClaimAnswer:
    drops = _drops(evidence, label)
    answer = judge(Sample(tuple(-drop for drop in drops.values())), LESS_POINTS, need=need)
    even, data = evidence.level().skew, evidence.data_set.key
    levels = [p for p in evidence.runs.levels(data, label) if even <= p <= HIGH_SKEW]
    for low, high in itertools.pairwise(levels):
        before, after = (evidence.runs.by_seed(data, label, skew=p) for p in (low, high))
        runs = [(before[seed], after[seed]) for seed in before if seed in after]
        if answer.status == HOLDS and _rises(runs, final_accuracy):
            reason = f"rises from p = {low:g} to {high:g}"
            return replace(answer, status=FAILS, reasons=(reason,))
    return answer


def _drops(evidence: Evidence, label: str) -> dict[int, float]:
    """By how much final accuracy falls from IID data to p = 0.8, by seed."""
    even, skewed = evidence.level(), evidence.level(HIGH_SKEW)
    before, after = (_finals(evidence, label, level) for level in (even, skewed))
    runs = evidence.runs.runs(even.data, label, skew=even.skew)
    require_learning(runs, evidence.data_set.targets)
    drops = {seed: before[seed] - after[seed] for seed in before if seed in after}
    if not drops:
        raise NoSample(
            f"{label_name(label)} has no seed in common at {even.name} and {skewed.name}"
        )
    return drops


def _finals(evidence: Evidence, label: str, level: DataLevel) -> dict[int, float]:
    runs = evidence.runs.by_seed(level.data, label, skew=level.skew)
    if not runs:
        raise NoSample(f"no finished run of {label_name(label)} at {level.name}")
    return {seed: value for seed, run in runs.items() if (value := final_accuracy(run)) is not None}


def _label(evidence: Evidence, name: str) -> str:
    return evidence.fedhp if name == FEDHP else name


@dataclass(frozen=True, slots=True)
class StepSweep:
    """Runs by number of local steps, ascending, then by seed; all have the same seeds."""

    runs: Mapping[int, Mapping[int, RunCurves]]

    @property
    def taus(self) -> list[int]:
        return list(self.runs)

    @property
    def seeds(self) -> int:
        """How many seeds all have."""
        return min(len(by_seed) for by_seed in self.runs.values())

    def numbers(self, tau: int, number: Number) -> list[float]:
        return [v for run in self.runs[tau].values() if (v := number(run)) is not None]

    def mean(self, tau: int, number: Number) -> float:
        return float(np.mean(self.numbers(tau, number) or [np.nan]))

    def pairs(self, one: int, other: int) -> list[tuple[RunCurves, RunCurves]]:
        """The runs of two numbers of steps, seed by seed."""
        return [(run, self.runs[other][seed]) for seed, run in self.runs[one].items()]

    def number_pairs(self, one: int, other: int, number: Number) -> list[tuple[float, float]]:
        return _number_pairs(self.pairs(one, other), number)


def steps_of(label: str, data_set: PaperSet) -> int:
    """The local steps of a label such as dpsgd:steps=5; the data set's if it names none."""
    default = data_set.experiment.training.local_steps
    return int(parse_variant(label).settings.get("steps", default))


def step_sweep(evidence: Evidence) -> StepSweep:
    """The runs of figure 1 on this data set."""
    data_set = evidence.data_set
    figures = [f for f in evidence.suite.figures if f.name == STEPS_FIGURE]
    figure = next((figure for figure in figures if data_set.key in figure.sets), None)
    if figure is None:
        raise NoSample(f"{STEPS_FIGURE} was not asked for on {data_set.title}")
    runs = {
        steps_of(label, data_set): evidence.runs.by_seed(data_set.key, label, skew=figure.skews[0])
        for label in figure.algorithms
    }
    runs = {tau: runs[tau] for tau in sorted(runs) if runs[tau]}
    if len(runs) < FEWEST_STEP_COUNTS:
        raise NoSample(
            f"only {count(len(runs), 'number')} of steps finished, {FEWEST_STEP_COUNTS} needed"
        )
    seeds = set.intersection(*(set(by_seed) for by_seed in runs.values()))
    if not seeds:
        raise NoSample("the numbers of steps have no seed in common")
    return StepSweep({tau: {seed: runs[tau][seed] for seed in sorted(seeds)} for tau in runs})


@question
def accuracy_falls_beyond(evidence: Evidence, limit: int) -> ClaimAnswer:
    """Final accuracy is lower with many steps than with `limit`, and rises nowhere after it."""
    sweep = step_sweep(evidence)
    later = [tau for tau in sweep.taus if tau > limit]
    start = max((tau for tau in sweep.taus if tau <= limit), default=0)
    if not later or not start:
        raise NoSample(f"needs runs with at most and with more than {limit} steps")
    pairs = sweep.number_pairs(start, later[-1], final_accuracy)
    answer = judge(Sample(tuple(a - b for a, b in pairs)), POINTS)
    ends = listed([_at(sweep, tau, final_accuracy, score) for tau in (start, later[-1])])
    answer = replace(answer, values=(ends, _peak(sweep)[1]))
    return _unbroken(answer, sweep, [start, *later], number=final_accuracy)


@question
def time_falls_until(evidence: Evidence, limit: int) -> ClaimAnswer:
    """Completion time is less with `limit` steps than with few, and rises nowhere before it."""
    sweep = step_sweep(evidence)
    early = [tau for tau in sweep.taus if tau <= limit]
    target, arrived = _sweep_target(sweep, early, evidence.data_set.targets)
    number = partial(time_to, target=target)
    first, last = arrived[0], arrived[-1]
    saved = [1 - b / a for a, b in sweep.number_pairs(first, last, number)]
    answer = judge(Sample(tuple(saved)), PERCENT)
    ends = listed([_at(sweep, tau, number, seconds) for tau in (first, last)])
    answer = replace(answer, values=(f"{ends} to {target_name(target)}",))
    answer = _unbroken(answer, sweep, arrived, number=number)
    return replace(answer, reasons=(*answer.reasons, *_late_words(early, arrived)))


@question
def accuracy_peaks_inside(evidence: Evidence, need: int) -> ClaimAnswer:
    """The best number of steps is neither the least nor the most that were run."""
    sweep = step_sweep(evidence)
    taus, (peak, words) = sweep.taus, _peak(sweep)
    ends = [tau for tau in (taus[0], taus[-1]) if tau != peak]
    shown = ", ".join(_at(sweep, tau, final_accuracy, score) for tau in ends)
    values = (words, shown)
    if len(ends) < 2:
        where = "least" if peak == taus[0] else "most"
        reasons: tuple[str, ...] = (f"the peak is at the {where} steps run",)
        answer = ClaimAnswer(FAILS, values, sweep.seeds, reasons)
    else:
        flat = [tau for tau in ends if not _rises(sweep.pairs(tau, peak), final_accuracy)]
        reasons = (f"not clearly above tau = {listed(map(str, flat))}",) if flat else ()
        answer = ClaimAnswer(FAILS if flat else HOLDS, values, sweep.seeds, reasons, "same")
    return _enough(answer, need)


@question
def time_falls_first(evidence: Evidence, need: int) -> ClaimAnswer:
    """From the fewest steps on, completion time falls until some number of steps."""
    sweep = step_sweep(evidence)
    target, arrived = _sweep_target(sweep, sweep.taus, evidence.data_set.targets)
    number = partial(time_to, target=target)
    least = min(arrived, key=lambda tau: sweep.mean(tau, number))
    ends = listed([_at(sweep, tau, number, seconds) for tau in (arrived[0], arrived[-1])])
    values = (
        f"least {_at(sweep, least, number, seconds)}",
        ends,
        f"to {target_name(target)}",
    )
    falls = least != arrived[0] and _rises(sweep.pairs(least, arrived[0]), number)
    reasons = [] if falls else [f"not clearly less than at tau = {arrived[0]}"]
    if falls and least == arrived[-1]:
        reasons.append("it falls to the end of what was run")
    reasons += _late_words(sweep.taus, arrived)
    way: Direction = "same" if falls else ""
    status = HOLDS if falls else FAILS
    return _enough(ClaimAnswer(status, values, sweep.seeds, tuple(reasons), way), need)


def _unbroken(
    answer: ClaimAnswer, sweep: StepSweep, taus: Sequence[int], *, number: Number
) -> ClaimAnswer:
    """The same, unless the number clearly rises somewhere along these numbers of steps."""
    for one, other in itertools.pairwise(taus):
        if answer.status == HOLDS and _rises(sweep.pairs(one, other), number):
            reason = f"rises from tau = {one} to {other}"
            return replace(answer, status=FAILS, reasons=(reason,))
    return answer


def _sweep_target(
    sweep: StepSweep, taus: Sequence[int], targets: Sequence[float]
) -> tuple[float, list[int]]:
    """The target that most numbers of steps reach in every seed, of these the highest."""

    def arrived(target: float) -> list[int]:
        number = partial(time_to, target=target)
        return [tau for tau in taus if len(sweep.numbers(tau, number)) == sweep.seeds]

    chosen = max(targets, key=lambda target: (len(arrived(target)), target), default=None)
    if chosen is None or len(arrived(chosen)) < 2:
        raise NoSample("no target was reached with two numbers of steps")
    return chosen, arrived(chosen)


def _peak(sweep: StepSweep) -> tuple[int, str]:
    peak = max(sweep.taus, key=lambda tau: sweep.mean(tau, final_accuracy))
    return peak, f"peak {_at(sweep, peak, final_accuracy, score)}"


def _late_words(taus: Sequence[int], arrived: Sequence[int]) -> list[str]:
    late = [str(tau) for tau in taus if tau not in arrived]
    return [f"tau = {listed(late)} never reached it in every seed"] if late else []


def _at(sweep: StepSweep, tau: int, number: Number, write: Callable[[float], str]) -> str:
    return f"{write(sweep.mean(tau, number))} at tau = {tau}"


def _enough(answer: ClaimAnswer, need: int) -> ClaimAnswer:
    if answer.seeds >= need:
        return answer
    return replace(answer, status=UNKNOWN, reasons=(seeds_needed(need, answer.seeds),))
