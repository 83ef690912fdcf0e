"""The kinds of questions that claims ask of the runs, each answered by a Finding.

`fedhp` among the names stands for FedHP's variant in question; rivals go by their labels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fedhp.record.statistics import interval
from fedhp.report.claims.paired import (
    FINE_PERCENT,
    LESS_SECONDS,
    PERCENT,
    POINTS,
    SHARE,
    TIMES,
    Combine,
    Number,
    Pairs,
    Place,
    Sample,
    Scale,
    Settled,
    compare_numbers,
    compare_times,
    final,
    less,
    minus,
    more,
    must_have_learned,
    own_time,
    pair,
    share,
    times,
    waiting,
)
from fedhp.report.claims.verdicts import (
    FAILS,
    FILL,
    HOLDS,
    INTERVAL_SEEDS,
    REPORTED,
    UNKNOWN,
    Ask,
    Finding,
    Measure,
    ask_each,
    attempt,
    joined,
    judge,
    merge,
)
from fedhp.report.formatting import label_name
from fedhp.report.groups import RunCurves

FEDHP = "fedhp"
RIVALS = ("pens", "ldsgd", "adpsgd", "dpsgd")
FIVE = (FEDHP, *RIVALS)
HIGH_SKEW = 0.8
NEAR = 0.1  # an absolute number agrees within so much of the paper's
SIMILAR = 0.02  # accuracies within so much count as similar


@dataclass(frozen=True, slots=True)
class Contest:
    """How two algorithms are compared: a sample of each pair's numbers, and its scale."""

    scale: Scale
    sample: Callable[[Ask, Pairs], Sample]


def _of(number: Number, combine: Combine) -> Callable[[Ask, Pairs], Sample]:
    def sample(ask: Ask, pairs: Pairs) -> Sample:
        if number in (final, own_time):
            must_have_learned(itertools.chain(*pairs.values()), ask.here.targets)
        return compare_numbers(pairs, number, combine=combine)

    return sample


def _of_times(combine: Combine) -> Callable[[Ask, Pairs], Sample]:
    return lambda ask, pairs: compare_times(pairs, ask.here.targets, combine=combine)


LESS_TIME = Contest(PERCENT, _of_times(less))
FASTER = Contest(TIMES, _of_times(times))
TIME_SHARE = Contest(SHARE, _of_times(share))
LESS_OWN_TIME = Contest(PERCENT, _of(own_time, less))
MORE_ACCURATE = Contest(FINE_PERCENT, _of(final, more))
AHEAD = Contest(POINTS, _of(final, minus))
LESS_WAITING = Contest(PERCENT, _of(waiting, less))
WAITING_SHARE = Contest(SHARE, _of(waiting, share))
WAITS_LESS = Contest(LESS_SECONDS, _of(waiting, minus))


def name_of(label: str) -> str:
    """An algorithm in words; FedHP without its variant."""
    return "FedHP" if label == FILL else label_name(label)


def against(
    contest: Contest,
    bars: Mapping[str, float | None],
    *,
    skew: float | None = None,
    clear: bool = False,
    need: int = 1,
) -> Measure:
    """FedHP against each rival, by at least its bar (by anything, where it has none)."""

    def measure(ask: Ask) -> Finding:
        parts = ask_each(bars, partial(contested, ask), name=name_of)
        return parts[0][1] if len(parts) == 1 else merge(parts)

    def contested(ask: Ask, rival: str) -> Finding:
        pairs = pair(ask.pool, ask.place(skew), ours=ask.fedhp, theirs=rival)
        return judge(
            contest.sample(ask, pairs), contest.scale, bar=bars[rival], clear=clear, need=need
        )

    return measure


def in_order(
    contest: Contest,
    pairs: Sequence[tuple[str, str]],
    *,
    skew: float | None = None,
    words: str = "before",
) -> Measure:
    """The first of each pair is better than its second."""

    def measure(ask: Ask) -> Finding:
        def one(names: tuple[str, str]) -> Finding:
            ours, theirs = (_label(ask, name) for name in names)
            found = pair(ask.pool, ask.place(skew), ours=ours, theirs=theirs)
            return judge(contest.sample(ask, found), contest.scale)

        def words_of(names: tuple[str, str]) -> str:
            return f"{label_name(names[0])} {words} {label_name(names[1])}"

        return merge(ask_each(pairs, one, name=words_of))

    return measure


def closest(measure_each: Sequence[tuple[str, Measure]], scale: Scale) -> Measure:
    """Several questions, of whose numbers the least favourable is shown."""

    def measure(ask: Ask) -> Finding:
        parts = [(name, attempt(partial(each, ask))) for name, each in measure_each]
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
        why = joined(
            least.why if least.status != UNKNOWN else "",
            f"{len(short)} of {len(parts)} fall short" if len(short) > 1 else "",
            f"{len(unknown)} of {len(parts)} not testable: {unknown[0].why}" if unknown else "",
        )
        value = f"closest {name}: {least.value}"
        return replace(whole, value=value, seeds=least.seeds, why=why, interval=least.interval)

    return measure


def absolute(
    label: str, number: Number, *, value: float, scale: Scale, skew: float | None = None
) -> Measure:
    """Is an algorithm's number about the paper's? Only with its data, models and rounds."""

    def measure(ask: Ask) -> Finding:
        place = ask.place(skew)
        runs = ask.pool.runs(place.data, _label(ask, label), skew=place.skew)
        if not runs:
            raise Settled(f"no finished run of {label_name(_label(ask, label))} at {place.name}")
        numbers = [found for run in runs if (found := number(run)) is not None]
        shown = interval(numbers)
        if shown is None:
            return Finding(UNKNOWN, why="never reached here")
        text = scale.text(shown.mean)
        if shown.count >= INTERVAL_SEEDS:
            text += f" [{scale.plain(shown.low or 0.0)}, {scale.plain(shown.high or 0.0)}]"
        if len(numbers) < len(runs):
            text += f" (reached in {len(numbers)} of {len(runs)})"
        here = Finding(UNKNOWN, text, shown.count, interval=shown)
        if ask.suite.profile != "paper" or ask.here.stands_for not in ask.here.title:
            other = "other data" if ask.suite.profile == "paper" else "smaller models and data"
            return replace(here, why=f"{other}: absolute numbers say nothing, ratios are apart")
        inside = shown.low is not None and shown.high is not None
        inside = inside and (shown.low or 0.0) <= value <= (shown.high or 0.0)
        if inside or abs(shown.mean / value - 1) <= NEAR:
            return replace(here, status=HOLDS)
        return replace(here, status=FAILS, why=f"{shown.mean / value:.2f} times the paper's")

    return measure


def highest_everywhere(rivals: Sequence[str]) -> Measure:
    """FedHP is the most accurate at every level that was run; the closest rival is shown."""

    def measure(ask: Ask) -> Finding:
        levels = ask.pool.levels(ask.here.key, ask.fedhp)
        if not levels:
            raise Settled(f"no finished run of {label_name(ask.fedhp)}")
        each = [
            (f"{name_of(rival)} at p = {p:g}", against(AHEAD, {rival: None}, skew=p))
            for p in levels
            for rival in rivals
        ]
        return closest(each, AHEAD.scale)(ask)

    return measure


def similar_accuracy(rivals: Sequence[str]) -> Measure:
    """Nobody's final accuracy is far from FedHP's."""

    def measure(ask: Ask) -> Finding:
        def one(rival: str) -> Finding:
            pairs = pair(ask.pool, ask.place(), ours=ask.fedhp, theirs=rival)
            found = judge(AHEAD.sample(ask, pairs), AHEAD.scale)
            shown = found.interval
            assert shown is not None
            far = max(abs(shown.mean if v is None else v) for v in (shown.low, shown.high))
            if far <= SIMILAR:
                return replace(found, status=HOLDS, why="", direction="same")
            why = f"up to {100 * far:.1f} points apart, more than {100 * SIMILAR:.0f}"
            return replace(found, status=FAILS, why=why, direction="")

        return merge(ask_each(rivals, one, name=lambda rival: f"FedHP - {name_of(rival)}"))

    return measure


def falls_with_skew(labels: Sequence[str], *, need: int = 1) -> Measure:
    """Each one's accuracy is lower at p = 0.8 than on IID data, and rises nowhere between."""

    def measure(ask: Ask) -> Finding:
        def one(label: str) -> Finding:
            return _falls(ask, _label(ask, label), need=need)

        return merge(ask_each(labels, one, name=label_name))

    return measure


def falls_least(rivals: Sequence[str], *, need: int = 1) -> Measure:
    """FedHP loses less from IID data to p = 0.8 than each rival."""

    def measure(ask: Ask) -> Finding:
        def one(rival: str) -> Finding:
            mine, other = _drops(ask, ask.fedhp), _drops(ask, rival)
            values = tuple(other[seed] - mine[seed] for seed in mine if seed in other)
            if not values:
                raise Settled(f"FedHP and {name_of(rival)} have no seed in common")
            return judge(Sample(values), POINTS, need=need)

        return merge(ask_each(rivals, one, name=name_of))

    return measure


def reported(measure: Measure) -> Measure:
    """The same numbers without a bar to pass."""

    def told(ask: Ask) -> Finding:
        found = measure(ask)
        return found if found.status == UNKNOWN else replace(found, status=REPORTED)

    return told


def rises(runs: Sequence[tuple[RunCurves, RunCurves]], number: Number) -> bool:
    """Whether the number is clearly larger in the second run of the pairs."""
    values = [
        b - a for x, y in runs if (a := number(x)) is not None and (b := number(y)) is not None
    ]
    found = interval(values)
    if found is None:
        return False
    if found.count < INTERVAL_SEEDS:
        return min(values) > 0
    return (found.low or 0.0) > 0


def _falls(ask: Ask, label: str, *, need: int) -> Finding:
    drops = _drops(ask, label)
    found = judge(Sample(tuple(-drop for drop in drops.values())), _FALL, need=need)
    even = ask.place().skew
    levels = [p for p in ask.pool.levels(ask.here.key, label) if even <= p <= HIGH_SKEW]
    for low, high in itertools.pairwise(levels):
        at = [ask.pool.by_seed(ask.here.key, label, skew=p) for p in (low, high)]
        runs = [(at[0][seed], at[1][seed]) for seed in at[0] if seed in at[1]]
        if found.status == HOLDS and rises(runs, final):
            why = f"rises from p = {low:g} to {high:g}"
            return replace(found, status=FAILS, why=why)
    return found


_FALL = Scale(" points", 100.0, 2, better=-1, signed=True)


def _drops(ask: Ask, label: str) -> dict[int, float]:
    """By how much final accuracy falls from IID data to p = 0.8, by seed."""
    even, skewed = ask.place(), ask.place(HIGH_SKEW)
    at = [_finals(ask, label, place) for place in (even, skewed)]
    must_have_learned(ask.pool.runs(even.data, label, skew=even.skew), ask.here.targets)
    drops = {seed: at[0][seed] - at[1][seed] for seed in at[0] if seed in at[1]}
    if not drops:
        raise Settled(f"{label_name(label)} has no seed in common at {even.name} and {skewed.name}")
    return drops


def _finals(ask: Ask, label: str, place: Place) -> dict[int, float]:
    runs = ask.pool.by_seed(place.data, label, skew=place.skew)
    if not runs:
        raise Settled(f"no finished run of {label_name(label)} at {place.name}")
    return {seed: found for seed, run in runs.items() if (found := final(run)) is not None}


def _label(ask: Ask, name: str) -> str:
    return ask.fedhp if name == FEDHP else name
