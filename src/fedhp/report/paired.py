"""Two algorithms compared seed by seed: equal seeds mean equal worlds, so their runs are pairs.

The verdict is plain: better (for times: faster), worse (slower), or cannot tell. It needs three
common seeds and a 95 % interval of the paired numbers that excludes "no difference".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, TypeAlias

from fedhp.record.reader import RunSummary
from fedhp.record.statistics import Interval, interval
from fedhp.report.claims.judging import INTERVAL_SEEDS
from fedhp.report.formatting import ACCURACY, count, is_limit, number, sentence, target_name
from fedhp.report.groups import FINISHED, favourite

Value: TypeAlias = Callable[[RunSummary], float | None]
PairedVerdict: TypeAlias = Literal["faster", "slower", "better", "worse", "cannot tell"]

CANNOT_TELL: PairedVerdict = "cannot tell"
FINAL, TIME_TO = "final_accuracy", "time_to_"


@dataclass(frozen=True, slots=True)
class PairedNumber:
    """A number of two labels, paired by seed: first / second for times, else first - second."""

    first: str
    second: str
    number: str  # final_accuracy, time_to_0.90
    verdict: PairedVerdict  # on the first
    spread: Interval | None  # None: no common seed has the number
    seeds: int  # common ones
    missed: tuple[int, int] = (0, 0)  # in how many of them each did not reach the target

    @property
    def is_time(self) -> bool:
        return self.number.startswith(TIME_TO)

    def as_json(self) -> dict[str, Any]:
        return {
            "first": self.first,
            "second": self.second,
            "number": self.number,
            "measure": "first / second" if self.is_time else "first - second",
            "verdict": self.verdict,
            "interval": self.spread.as_json() if self.spread else None,
            "seeds": self.seeds,
            "missed": list(self.missed),
        }


def compare_all(summaries: Sequence[RunSummary]) -> list[PairedNumber]:
    """Every two labels: each time to a target, and the final result."""
    targets = dict.fromkeys(target for run in summaries for target in run.time_to_target)
    return [
        paired
        for first, second in combinations(finished_by_label(summaries).items(), 2)
        for paired in (
            *(compare_times(first, second, target) for target in sorted(targets, key=float)),
            compare_finals(first, second),
        )
    ]


def comparison_pairs(summaries: Sequence[RunSummary]) -> list[PairedNumber]:
    """The reference against every other label: time to the telling target, then final results."""
    summaries = competitors(summaries)
    by_label = finished_by_label(summaries)
    if len(by_label) < 2:
        return []
    reference = max(by_label, key=favourite)  # FedHP+, FedHP, or the first
    first = (reference, by_label.pop(reference))
    target = telling_target(summaries)
    pairs = [] if target is None else [compare_times(first, b, target) for b in by_label.items()]
    pairs = [paired for paired in pairs if paired.spread is not None]  # somebody reached it
    return [*pairs, *(compare_finals(first, second) for second in by_label.items())]


def competitors(summaries: Iterable[RunSummary]) -> list[RunSummary]:
    """The runs without those of the limit, which nobody can beat; all if there are no others."""
    runs = list(summaries)
    return [run for run in runs if not is_limit(run.algorithm)] or runs


Labelled: TypeAlias = tuple[str, Sequence[RunSummary]]  # a label and its finished runs


def finished_by_label(summaries: Iterable[RunSummary]) -> dict[str, list[RunSummary]]:
    by_label: dict[str, list[RunSummary]] = {}
    for run in summaries:
        if run.status == FINISHED:
            by_label.setdefault(run.algorithm, []).append(run)
    return by_label


def compare_finals(first: Labelled, second: Labelled) -> PairedNumber:
    values = _differences(first, second, lambda run: run.final_accuracy)
    verdict, seeds = _verdict(values, above="better", below="worse"), len(_pairs(first, second))
    return PairedNumber(first[0], second[0], FINAL, verdict, interval(values), seeds)


def compare_times(first: Labelled, second: Labelled, target: str) -> PairedNumber:
    """The ratio of the times to a target, as the geometric mean over the seeds.

    A run that did not reach the target counts with its whole time, a bound in favour of the other;
    a seed in which neither did does not count.
    """
    pairs = _pairs(first, second)
    times = [[run.time_to_target.get(target) for run in pair] for pair in pairs]
    missed = sum(ours is None for ours, _ in times), sum(theirs is None for _, theirs in times)
    logs = []
    for pair, reached in zip(pairs, times, strict=True):
        ours, theirs = (
            run.completion_time if time is None else time
            for run, time in zip(pair, reached, strict=True)
        )
        if reached != [None, None] and min(ours, theirs) > 0:
            logs.append(math.log(ours / theirs))
    verdict = _verdict(logs, above="slower", below="faster")
    if any(missed) and (all(missed) or verdict != ("slower" if missed[0] else "faster")):
        verdict = CANNOT_TELL
    spread = interval(logs)
    if spread is not None:
        low, high = (None if end is None else math.exp(end) for end in (spread.low, spread.high))
        spread = Interval(math.exp(spread.mean), low, high, spread.count)
    number_name = f"{TIME_TO}{target}"
    return PairedNumber(first[0], second[0], number_name, verdict, spread, len(pairs), missed)


def is_lower(first: Labelled, second: Labelled, value: Value) -> bool:
    """Whether the first has less of this number, for certain."""
    values = _differences(first, second, value)
    complete = len(values) == len(_pairs(first, second))
    return complete and _verdict(values, above="worse", below="better") == "better"


def telling_target(summaries: Iterable[RunSummary]) -> str | None:
    """The target that most labels reached in a finished run, of these the highest."""
    runs = competitors(summaries)
    targets = dict.fromkeys(target for run in runs for target in run.time_to_target)
    by_label = finished_by_label(runs)

    def rank(target: str) -> tuple[int, float]:
        reached = [
            any(r.time_to_target.get(target) is not None for r in g) for g in by_label.values()
        ]
        return sum(reached), float(target)

    return max(targets, key=rank, default=None)


def paired_words(paired: PairedNumber, metric: str, names: Mapping[str, str]) -> str:
    """To 90 %, a is faster than b (0.61 times the time, 95 % interval 0.55 to 0.68, 10 seeds)."""
    first, second = names[paired.first], names[paired.second]
    start = sentence(f"{number_words(paired, metric)}, {first}")[:-1]
    text = f"{start} is {paired.verdict} than {second}"
    if paired.verdict == CANNOT_TELL:
        text = f"{start} against {second}: cannot tell"
    details = [measure_words(paired, metric)]
    if paired.seeds < INTERVAL_SEEDS:
        details.append(f"a verdict needs at least {INTERVAL_SEEDS} common seeds")
    details += [
        f"{label} did not reach it in {missed} of {count(paired.seeds, 'seed')}"
        for label, missed in zip((first, second), paired.missed, strict=True)
        if missed
    ]
    return f"{text} ({'; '.join(filter(None, details))})"


def number_words(paired: PairedNumber, metric: str) -> str:
    """Which number is compared: to 90 %, or final."""
    if paired.is_time:
        return f"to {target_name(paired.number.removeprefix(TIME_TO), metric)}"
    return "at the end"


def measure_words(paired: PairedNumber, metric: str) -> str:
    """The paired number with its interval: 0.61 times the time, 95 % interval 0.55 to 0.68."""
    spread = paired.spread
    if spread is None:
        return ""
    points = not paired.is_time and metric == ACCURACY

    def text(value: float) -> str:
        if paired.is_time:
            return f"{value:.2f}" if 0.1 <= value < 100 else number(value)
        return f"{100 * value:+.1f}" if points else f"{'+' if value > 0 else ''}{number(value)}"

    unit = " times the time" if paired.is_time else " points" if points else ""
    ends = (spread.low, spread.high)
    between = f", 95 % interval {' to '.join(text(end) for end in ends if end is not None)}"
    return f"{text(spread.mean)}{unit}{between if None not in ends else ''}, " + count(
        spread.count, "seed"
    )


def pair_cells(paired: PairedNumber, metric: str, names: Mapping[str, str]) -> list[str]:
    """A pair as a row of a table: the pair, the number, its measure and the verdict."""
    pair = f"{names[paired.first]} against {names[paired.second]}"
    words = (number_words(paired, metric), measure_words(paired, metric))
    return [pair, *words, paired.verdict]


def _pairs(first: Labelled, second: Labelled) -> list[tuple[RunSummary, RunSummary]]:
    others = {run.seed: run for run in second[1]}
    return [(run, others[run.seed]) for run in first[1] if run.seed in others]


def _differences(first: Labelled, second: Labelled, value: Value) -> list[float]:
    """First - second in every common seed in which both have the number."""
    pairs = ((value(ours), value(theirs)) for ours, theirs in _pairs(first, second))
    values = (a - b for a, b in pairs if a is not None and b is not None)
    return list(filter(math.isfinite, values))


def _verdict(
    values: Sequence[float], *, above: PairedVerdict, below: PairedVerdict
) -> PairedVerdict:
    """One word if the mean is above 0 for certain, the other if below."""
    spread = interval(values)
    if spread is None or len(values) < INTERVAL_SEEDS:
        return CANNOT_TELL
    if spread.low is not None and spread.low > 0:
        return above
    return below if spread.high is not None and spread.high < 0 else CANNOT_TELL
