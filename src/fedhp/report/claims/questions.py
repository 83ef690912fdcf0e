"""The kinds of questions that claims ask: FedHP against rivals, orders, falls with the skew, and
where accuracy and time turn with the number of local steps (figure 1).

The name `fedhp` stands for the variant of FedHP that is judged; rivals go by their labels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeAlias

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
    Direction,
    Measure,
    Verdict,
    attempt,
    is_papers_own,
    judge,
    measure_each,
    merge,
    seeds_needed,
    with_interval,
)
from fedhp.report.claims.runs import (
    AHEAD,
    FEDHP,
    LESS_POINTS,
    PERCENT,
    POINTS,
    Evidence,
    NoSample,
    Number,
    PairedMetric,
    Pairs,
    Sample,
    Scale,
    final_accuracy,
    known_numbers,
    number_pairs,
    require_learning,
    time_to,
)
from fedhp.report.formatting import count, label_name, listed, score, seconds, target_name
from fedhp.report.groups import RunCurves

if TYPE_CHECKING:
    from fedhp.engine.runs.suite import PaperSet

P = ParamSpec("P")
RIVALS = ("pens", "ldsgd", "adpsgd", "dpsgd")
FIVE = (FEDHP, *RIVALS)
HIGH_SKEW = 0.8
NEAR = 0.1  # an absolute number agrees within this share of the paper's
SIMILAR = 0.02  # accuracies within this difference count as similar
STEPS_FIGURE = "fig1"
FEWEST_STEP_COUNTS = 3  # that make a curve
# Runs by number of local steps, rising, then by seed; all have the same seeds.
StepRuns: TypeAlias = Mapping[int, Mapping[int, RunCurves]]


def question(ask: Callable[Concatenate[Evidence, P], Verdict]) -> Callable[P, Measure]:
    """A question whose parts are given first, and the runs when it is asked."""

    def fixed(*parts: P.args, **named: P.kwargs) -> Measure:
        return lambda evidence: ask(evidence, *parts, **named)

    return fixed


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
) -> Verdict:
    """FedHP against each rival, by at least its bar (by anything, where it has none)."""

    def one(rival: str) -> Verdict:
        sample = metric.sample(evidence, FEDHP, rival, skew)
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
) -> Verdict:
    """The first of each pair is better than its second."""

    def one(names: tuple[str, str]) -> Verdict:
        return judge(metric.sample(evidence, *names, skew), metric.scale)

    def words_of(names: tuple[str, str]) -> str:
        return f"{label_name(names[0])} {words} {label_name(names[1])}"

    return merge(measure_each(pairs, one, name=words_of))


@question
def closest(evidence: Evidence, measures: Sequence[tuple[str, Measure]], scale: Scale) -> Verdict:
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
) -> Verdict:
    """Is an algorithm's number about the paper's? Only with its data, models and rounds."""
    runs = evidence.by_seed(label, skew)
    spread = interval(known_numbers(runs.values(), number))
    if spread is None:
        return Verdict(UNKNOWN, reasons=("never reached here",))
    text = with_interval(spread, scale)
    if spread.count < len(runs):
        text += f" (reached in {spread.count} of {len(runs)})"
    answer = Verdict(UNKNOWN, (text,), spread.count, interval=spread)
    if evidence.suite.profile != "paper" or not is_papers_own(evidence.data_set):
        other = "other data" if evidence.suite.profile == "paper" else "smaller models and data"
        reason = f"{other}: absolute numbers cannot be compared, ratios are judged separately"
        return replace(answer, reasons=(reason,))
    low, high = spread.low, spread.high
    inside = low is not None and high is not None and low <= value <= high
    if inside or abs(spread.mean / value - 1) <= NEAR:
        return replace(answer, status=HOLDS)
    reason = f"{spread.mean / value:.2f} times the paper's"
    return replace(answer, status=FAILS, reasons=(reason,))


@question
def highest_everywhere(evidence: Evidence, rivals: Sequence[str]) -> Verdict:
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
def similar_accuracy(evidence: Evidence, rivals: Sequence[str]) -> Verdict:
    """No rival's final accuracy is far from FedHP's."""

    def one(rival: str) -> Verdict:
        answer = judge(AHEAD.sample(evidence, FEDHP, rival), AHEAD.scale)
        spread = answer.interval
        assert spread is not None
        far = max(abs(spread.mean if v is None else v) for v in (spread.low, spread.high))
        if far <= SIMILAR:
            return replace(answer, status=HOLDS, reasons=(), direction="same")
        reason = f"up to {100 * far:.1f} points apart, more than {100 * SIMILAR:.0f}"
        return replace(answer, status=FAILS, reasons=(reason,), direction="")

    return merge(measure_each(rivals, one, name=lambda rival: f"FedHP - {name_of(rival)}"))


@question
def falls_with_skew(evidence: Evidence, labels: Sequence[str], *, need: int = 1) -> Verdict:
    """Each one's accuracy is lower at p = 0.8 than on IID data, and rises nowhere between."""

    def falls(name: str) -> Verdict:
        drops = _drops(evidence, name)
        answer = judge(Sample(tuple(-drop for drop in drops.values())), LESS_POINTS, need=need)
        levels = evidence.runs.levels(evidence.data_set.key, evidence.label(name))
        runs = {p: evidence.by_seed(name, p) for p in levels if evidence.level() <= p <= HIGH_SKEW}
        return _unbroken(answer, "p", runs, final_accuracy)

    return merge(measure_each(labels, falls, name=label_name))


@question
def falls_least(evidence: Evidence, rivals: Sequence[str], *, need: int = 1) -> Verdict:
    def one(rival: str) -> Verdict:
        ours, theirs = _drops(evidence, FEDHP), _drops(evidence, rival)
        values = tuple(theirs[seed] - ours[seed] for seed in ours if seed in theirs)
        if not values:
            raise NoSample(f"FedHP and {name_of(rival)} have no seed in common")
        return judge(Sample(values), POINTS, need=need)

    return merge(measure_each(rivals, one, name=name_of))


@question
def reported(evidence: Evidence, measure: Measure) -> Verdict:
    """The same numbers without a bar to pass."""
    answer = measure(evidence)
    return answer if answer.status == UNKNOWN else replace(answer, status=REPORTED)


def _rises(pairs: Pairs, number: Number) -> bool:
    """Whether the number is clearly larger in the second run of the pairs."""
    values = [b - a for a, b in number_pairs(pairs, number)]
    spread = interval(values)
    if spread is None:
        return False
    if spread.count < INTERVAL_SEEDS:
        return min(values) > 0
    return (spread.low or 0.0) > 0


def _unbroken(
    answer: Verdict,
    symbol: str,
    runs: Mapping[float, Mapping[int, RunCurves]] | StepRuns,
    number: Number,
) -> Verdict:
    """The same, unless the number clearly rises from one of these groups of runs to the next."""
    for (one, before), (other, after) in itertools.pairwise(runs.items()):
        if answer.status == HOLDS and _rises(_common(before, after), number):
            reason = f"rises from {symbol} = {one:g} to {other:g}"
            return replace(answer, status=FAILS, reasons=(reason,))
    return answer


def _common(before: Mapping[int, RunCurves], after: Mapping[int, RunCurves]) -> Pairs:
    return [(run, after[seed]) for seed, run in before.items() if seed in after]


def _drops(evidence: Evidence, name: str) -> dict[int, float]:
    """By how much final accuracy falls from IID data to p = 0.8, by seed."""
    before, after = evidence.by_seed(name), evidence.by_seed(name, HIGH_SKEW)
    require_learning(before.values(), evidence.data_set.targets)
    finals = {
        seed: (final_accuracy(run), final_accuracy(after[seed]))
        for seed, run in before.items()
        if seed in after
    }
    drops = {s: a - b for s, (a, b) in finals.items() if a is not None and b is not None}
    if not drops:
        levels = f"{evidence.level_name()} and {evidence.level_name(HIGH_SKEW)}"
        raise NoSample(f"{label_name(evidence.label(name))} has no seed in common at {levels}")
    return drops


def steps_of(label: str, data_set: PaperSet) -> int:
    """The local steps of a label such as dpsgd:steps=5; the data set's if it names none."""
    default = data_set.experiment.training.local_steps
    return int(parse_variant(label).settings.get("steps", default))


def _step_runs(evidence: Evidence) -> StepRuns:
    """The runs of figure 1 on this data set."""
    data_set = evidence.data_set
    figures = [f for f in evidence.suite.figures if f.name == STEPS_FIGURE]
    figures = [figure for figure in figures if data_set.key in figure.sets]
    if not figures:
        raise NoSample(f"{STEPS_FIGURE} was not asked for on {data_set.title}")
    [skew, *_], labels = figures[0].skews, figures[0].algorithms
    runs = {
        steps_of(label, data_set): evidence.runs.by_seed(data_set.key, label, skew=skew)
        for label in labels
    }
    runs = {tau: runs[tau] for tau in sorted(runs) if runs[tau]}
    if len(runs) < FEWEST_STEP_COUNTS:
        raise NoSample(
            f"only {count(len(runs), 'number')} of steps finished, {FEWEST_STEP_COUNTS} needed"
        )
    seeds = set.intersection(*(set(by_seed) for by_seed in runs.values()))
    if not seeds:
        raise NoSample("the numbers of steps have no seed in common")
    return {tau: {seed: runs[tau][seed] for seed in sorted(seeds)} for tau in runs}


@question
def accuracy_falls_beyond(evidence: Evidence, limit: int) -> Verdict:
    """Final accuracy is lower with many steps than with `limit`, and rises nowhere after it."""
    runs = _step_runs(evidence)
    later = [tau for tau in runs if tau > limit]
    start = max((tau for tau in runs if tau <= limit), default=0)
    if not later or not start:
        raise NoSample(f"needs runs with at most and with more than {limit} steps")
    pairs = number_pairs(_common(runs[start], runs[later[-1]]), final_accuracy)
    answer = judge(Sample(tuple(a - b for a, b in pairs)), POINTS)
    ends = listed([_at(runs, tau, final_accuracy, score) for tau in (start, later[-1])])
    answer = replace(answer, values=(ends, _peak(runs)[1]))
    return _unbroken(answer, "tau", {t: runs[t] for t in (start, *later)}, final_accuracy)


@question
def time_falls_until(evidence: Evidence, limit: int) -> Verdict:
    """Completion time is less with `limit` steps than with few, and rises nowhere before it."""
    runs = _step_runs(evidence)
    early = [tau for tau in runs if tau <= limit]
    target, arrived = _sweep_target(runs, early, evidence.data_set.targets)
    number = partial(time_to, target=target)
    first, last = arrived[0], arrived[-1]
    pairs = number_pairs(_common(runs[first], runs[last]), number)
    answer = judge(Sample(tuple(1 - b / a for a, b in pairs)), PERCENT)
    ends = listed([_at(runs, tau, number, seconds) for tau in (first, last)])
    answer = replace(answer, values=(f"{ends} to {target_name(target)}",))
    answer = _unbroken(answer, "tau", {tau: runs[tau] for tau in arrived}, number)
    return replace(answer, reasons=(*answer.reasons, *_late_words(early, arrived)))


@question
def accuracy_peaks_inside(evidence: Evidence, need: int) -> Verdict:
    """The best number of steps is neither the least nor the most that were run."""
    runs = _step_runs(evidence)
    (peak, words), (first, *_, last) = _peak(runs), runs
    ends = [tau for tau in (first, last) if tau != peak]
    values = (words, ", ".join(_at(runs, tau, final_accuracy, score) for tau in ends))
    if len(ends) < 2:
        reason = f"the peak is at the {'least' if peak == first else 'most'} steps run"
        return _enough(Verdict(FAILS, values, len(runs[peak]), (reason,)), need)
    flat = [tau for tau in ends if not _rises(_common(runs[tau], runs[peak]), final_accuracy)]
    reasons = (f"not clearly above tau = {listed(map(str, flat))}",) if flat else ()
    status = FAILS if flat else HOLDS
    return _enough(Verdict(status, values, len(runs[peak]), reasons, "same"), need)


@question
def time_falls_first(evidence: Evidence, need: int) -> Verdict:
    """From the fewest steps on, completion time falls until some number of steps."""
    runs = _step_runs(evidence)
    target, arrived = _sweep_target(runs, list(runs), evidence.data_set.targets)
    number = partial(time_to, target=target)
    first, last = arrived[0], arrived[-1]
    least = min(arrived, key=lambda tau: _mean(runs[tau], number))
    ends = listed([_at(runs, tau, number, seconds) for tau in (first, last)])
    values = (f"least {_at(runs, least, number, seconds)}", ends, f"to {target_name(target)}")
    falls = least != first and _rises(_common(runs[least], runs[first]), number)
    reasons = [] if falls else [f"not clearly less than at tau = {first}"]
    if falls and least == last:
        reasons.append("it falls to the end of what was run")
    reasons += _late_words(runs, arrived)
    way: Direction = "same" if falls else ""
    status = HOLDS if falls else FAILS
    return _enough(Verdict(status, values, len(runs[first]), tuple(reasons), way), need)


def _sweep_target(
    runs: StepRuns, taus: Sequence[int], targets: Sequence[float]
) -> tuple[float, list[int]]:
    """The target that most numbers of steps reach in every seed, of these the highest."""

    def arrived(target: float) -> list[int]:
        return [t for t in taus if all(time_to(r, target) is not None for r in runs[t].values())]

    chosen = max(targets, key=lambda target: (len(arrived(target)), target), default=None)
    if chosen is None or len(arrived(chosen)) < 2:
        raise NoSample("no target was reached with two numbers of steps")
    return chosen, arrived(chosen)


def _mean(runs: Mapping[int, RunCurves], number: Number) -> float:
    return float(np.mean(known_numbers(runs.values(), number) or [np.nan]))


def _peak(runs: StepRuns) -> tuple[int, str]:
    peak = max(runs, key=lambda tau: _mean(runs[tau], final_accuracy))
    return peak, f"peak {_at(runs, peak, final_accuracy, score)}"


def _late_words(taus: Iterable[int], arrived: Sequence[int]) -> list[str]:
    late = [str(tau) for tau in taus if tau not in arrived]
    return [f"tau = {listed(late)} never reached it in every seed"] if late else []


def _at(runs: StepRuns, tau: int, number: Number, write: Callable[[float], str]) -> str:
    return f"{write(_mean(runs[tau], number))} at tau = {tau}"


def _enough(answer: Verdict, need: int) -> Verdict:
    if answer.seeds >= need:
        return answer
    return replace(answer, status=UNKNOWN, reasons=(seeds_needed(need, answer.seeds),))
