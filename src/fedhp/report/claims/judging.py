"""What a claim is, how it is judged from a sample over seeds, and how verdicts are written.

With three seeds or more the 95 % interval decides; with fewer, every single seed has to agree.
The verdict is on FedHP with the deadline rule `fill`, the paper's; `opt` is reported with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from fedhp.record.statistics import Interval, interval
from fedhp.report.claims.runs import Evidence, NoSample, Sample, Scale, SuiteRuns
from fedhp.report.formatting import MISSING, count, markdown_row

if TYPE_CHECKING:
    from fedhp.engine.runs.suite import PaperSet, Suite

Status: TypeAlias = Literal["holds", "does not hold", "not testable here", "reported"]
Direction: TypeAlias = Literal["same", "opposite", ""]
Item = TypeVar("Item")

FILL, OPT = "fedhp:deadline=fill", "fedhp:deadline=opt"
HOLDS: Status = "holds"
FAILS: Status = "does not hold"
UNKNOWN: Status = "not testable here"
REPORTED: Status = "reported"  # shown for comparison, without a bar to pass
UNCONVERGED = "accuracies were still rising when the runs ended"
INTERVAL_SEEDS = 3  # fewer give an interval too wide to say anything
# The data source of the paper's data sets; IMAGE-100 has none here.
PAPER_DATA = {"EMNIST": "emnist", "CIFAR-10": "cifar10"}
HEADER = ["figure", "claim", "claimed", "verdict", "ours (FedHP: fill)", "opt", "why", "on"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What our runs say about a claim, with one variant of FedHP."""

    status: Status
    values: tuple[str, ...] = ()
    seeds: int = 0
    reasons: tuple[str, ...] = ()
    direction: Direction = ""  # whether the difference goes the claimed way
    interval: Interval | None = None  # of our value, where it is one number
    rising: bool = False  # of runs that had not converged
    opt_lines: tuple[str, ...] = ()  # as ours_lines, for FedHP's other deadline rule
    where: str = ""  # the data set it was tested on

    @property
    def ours_lines(self) -> tuple[str, ...]:
        """The values, the number of seeds after the last one."""
        if not self.values or not self.seeds:
            return self.values
        return (*self.values[:-1], f"{self.values[-1]}, {count(self.seeds, 'seed')}")

    @property
    def ours(self) -> str:
        return "; ".join(self.ours_lines)

    @property
    def opt(self) -> str:
        return "; ".join(self.opt_lines)

    @property
    def why(self) -> str:
        return "; ".join(self.reasons)


Measure: TypeAlias = Callable[[Evidence], Verdict]
JudgeClaim: TypeAlias = Callable[[SuiteRuns, "Suite"], Verdict]
ChooseSet: TypeAlias = Callable[["Suite"], "PaperSet"]


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence that runs can support or not."""

    id: str
    figure: str
    text: str
    paper: str  # the paper's value, or the bar to pass
    judge: JudgeClaim
    data: str = ""  # the data set that the text names


@dataclass(frozen=True, slots=True)
class JudgedClaim:
    claim: Claim
    verdict: Verdict

    def as_json(self) -> dict[str, Any]:
        claim, verdict = self.claim, self.verdict
        said = {name: getattr(claim, name) for name in ("id", "figure", "text", "paper")}
        found = ("status", "direction", "ours", "opt", "why", "where")
        numbers = verdict.interval.as_json() if verdict.interval else None
        return said | {name: getattr(verdict, name) for name in found} | {"interval": numbers}


def judge(
    sample: Sample, scale: Scale, *, bar: float | None = None, clear: bool = False, need: int = 1
) -> Verdict:
    """Does the sample support a difference of at least `bar` (any at all without one)?

    The interval has to reach the bar and exclude no difference; if `clear`, all of it has to pass.
    """
    spread = interval(sample.values)
    assert spread is not None
    few = spread.count < INTERVAL_SEEDS
    ends = [float(v) for v in (sample.values if few else (spread.low or 0.0, spread.high or 0.0))]
    ends.sort(key=lambda value: scale.better * value)  # the worst for FedHP first
    worst, best = ends[0], ends[-1]
    apart = scale.better * (worst - scale.neutral) > 0
    if bar is None:
        holds = apart
    elif clear or few:
        holds = passes(worst, bar, scale=scale, exactly=clear)
    else:
        holds = apart and passes(best, bar, scale=scale, exactly=False)
    lean = scale.better * (spread.mean - scale.neutral)
    answer = Verdict(
        HOLDS if holds else FAILS,
        (_value(sample, scale, spread),),
        spread.count,
        direction="same" if lean > 0 else "opposite" if lean < 0 else "",
        interval=spread,
        rising=sample.rising,
    )
    if spread.count < need:
        return replace(answer, status=UNKNOWN, reasons=(seeds_needed(need, spread.count),))
    if sample.bound and not holds:
        reason = f"{sample.bound}, and this is only a bound"
        return replace(answer, status=UNKNOWN, reasons=(reason,))
    if holds:
        seeds = f"{spread.count} seeds: each supports it"
        seeds = "1 seed: no interval" if spread.count == 1 else seeds
        return replace(answer, reasons=tuple(filter(None, (sample.bound, seeds if few else ""))))
    return replace(answer, reasons=(_shortfall(answer, scale, bar=bar, clear=clear, ends=ends),))


def passes(value: float, bar: float, *, scale: Scale, exactly: bool = True) -> bool:
    """At the bar or beyond; a number printed in the paper only as exactly as it is printed."""
    if exactly:
        return scale.better * (value - bar) >= 0
    return scale.better * (scale.rounded(value) - scale.rounded(bar)) >= 0


def _shortfall(
    answer: Verdict, scale: Scale, *, bar: float | None, clear: bool, ends: Sequence[float]
) -> str:
    spread = answer.interval
    assert spread is not None
    mean = scale.text(spread.mean)
    wanted = f" instead of {scale.text(bar)}" if bar is not None else ""
    if answer.direction != "same":
        words = "opposite direction" if answer.direction else "no difference"
        if answer.direction and scale.better * (ends[-1] - scale.neutral) >= 0:
            words += ", but not clearly"
        return f"{words}: {mean}{wanted}"
    if bar is not None and not passes(spread.mean, bar, scale=scale, exactly=clear):
        return f"same direction, smaller: {mean}{wanted}"
    source = "the interval" if spread.count >= INTERVAL_SEEDS else "some seed"
    if clear and bar is not None:
        return f"the mean passes, but {source} goes to {scale.text(ends[0])}"
    return f"same direction, but {source} includes zero difference"


def _value(sample: Sample, scale: Scale, spread: Interval) -> str:
    bound = ("at least " if scale.better > 0 else "at most ") if sample.bound else ""
    text = bound + with_interval(spread, scale)
    if 1 < spread.count < INTERVAL_SEEDS:
        text += f" ({', '.join(scale.plain(value) for value in sample.values)})"
    return f"{text} {sample.note}" if sample.note else text


def with_interval(spread: Interval, scale: Scale) -> str:
    """The mean, with its interval where there are enough seeds for one."""
    text = scale.text(spread.mean)
    if spread.count < INTERVAL_SEEDS:
        return text
    return f"{text} [{scale.plain(spread.low or 0.0)}, {scale.plain(spread.high or 0.0)}]"


def seeds_needed(need: int, finished: int) -> str:
    return f"needs {count(need, 'seed')}, {finished} finished"


def attempt(measure: Callable[[], Verdict]) -> Verdict:
    """Its answer, also where there is no number to judge."""
    try:
        return measure()
    except NoSample as error:
        if error.lost:
            return Verdict(FAILS, reasons=(error.why,), direction="opposite")
        return Verdict(UNKNOWN, reasons=(error.why,))


def measure_each(
    items: Iterable[Item], measure: Callable[[Item], Verdict], *, name: Callable[[Item], str]
) -> list[tuple[str, Verdict]]:
    return [(name(item), attempt(partial(measure, item))) for item in items]


def merge(parts: Sequence[tuple[str, Verdict]]) -> Verdict:
    """All of them together: the worst decides, and the reasons name what fell short."""
    order = (FAILS, UNKNOWN, HOLDS, REPORTED)
    status = min((part.status for _, part in parts), key=order.index)
    shown = [(name, part) for name, part in parts if part.values]
    seed_counts = {part.seeds for _, part in shown}
    seeds = seed_counts.pop() if len(seed_counts) == 1 else 0
    values: list[str] = []
    for name, part in shown:
        first, *rest = part.values if seeds else part.ours_lines
        values += [f"{name} {first}", *rest]
    names_by_reason: dict[str, list[str]] = {}
    for name, part in parts:
        names_by_reason.setdefault(part.why, []).append(name)
    common = len(parts) > 1 and len(names_by_reason) == 1
    reasons = tuple(
        reason if common else f"{', '.join(names)}: {reason}"
        for reason, names in names_by_reason.items()
        if reason
    )
    ways = {part.direction for _, part in parts if part.status != UNKNOWN}
    way: Direction = "opposite" if "opposite" in ways else "same" if ways == {"same"} else ""
    rising = any(part.rising for _, part in parts)
    return Verdict(status, tuple(values), seeds, reasons, way, rising=rising)


def on_set(choose: ChooseSet, measure: Measure, *, both_variants: bool = True) -> JudgeClaim:
    """Judge on one data set, for FedHP with `fill` and, if both_variants, with `opt`."""

    def judge_claim(runs: SuiteRuns, suite: Suite) -> Verdict:
        fill, opt = (_measure_on(choose, measure, runs, suite, fedhp) for fedhp in (FILL, OPT))
        try:
            where = choose(suite).title
        except NoSample:
            where = ""
        return _with_opt(fill, opt if both_variants else None, where=where)

    return judge_claim


def on_all(names: Sequence[str], measure: Measure) -> JudgeClaim:
    def judge_claim(runs: SuiteRuns, suite: Suite) -> Verdict:
        fill, opt = (
            merge([(n, _measure_on(set_for(n), measure, runs, suite, fedhp)) for n in names])
            for fedhp in (FILL, OPT)
        )
        return _with_opt(fill, opt, where="all")

    return judge_claim


def _measure_on(
    choose: ChooseSet, measure: Measure, runs: SuiteRuns, suite: Suite, fedhp: str
) -> Verdict:
    def measured() -> Verdict:
        data_set = choose(suite)
        if data_set.key in suite.missing:
            raise NoSample(f"{data_set.title} is not available: {suite.missing[data_set.key]}")
        return measure(Evidence(runs, suite, data_set, fedhp))

    return attempt(measured)


def _with_opt(fill: Verdict, opt: Verdict | None, *, where: str) -> Verdict:
    lines: tuple[str, ...] = ()
    if opt is not None:
        # Of several values only those that differ: FedHP has no part in the others.
        own = tuple(value for value in opt.values if value not in fill.values)
        lines = replace(opt, values=own).ours_lines or (MISSING,)
        if own and opt.status in (HOLDS, FAILS):
            lines = (*lines[:-1], f"{lines[-1]}: {opt.status}")
    reasons = (*fill.reasons, UNCONVERGED) if fill.rising else fill.reasons
    return replace(fill, reasons=reasons, opt_lines=lines, where=where)


def is_papers_own(data_set: PaperSet) -> bool:
    """Whether this is the paper's data set itself, not one that stands for it."""
    source = data_set.experiment.data.name
    return source == PAPER_DATA.get(data_set.stands_for) or data_set.title == data_set.stands_for


def set_for(name: str) -> ChooseSet:
    """The data set that stands for the paper's: that very one if it is there, else another."""

    def choose(suite: Suite) -> PaperSet:
        candidates = [each for each in suite.sets.values() if each.stands_for == name]
        if not candidates:
            raise NoSample(f"{name} is not among the data sets that were run")
        return min(
            candidates, key=lambda each: (each.key in suite.missing, not is_papers_own(each))
        )

    return choose


def own_set(key: str) -> ChooseSet:
    return lambda suite: suite.sets[key]


def judge_claims(claims: Iterable[Claim], suite: Suite, runs: SuiteRuns) -> list[JudgedClaim]:
    return [JudgedClaim(claim, claim.judge(runs, suite)) for claim in claims]


def count_words(judged_claims: Sequence[JudgedClaim]) -> str:
    """How many hold, do not hold, and cannot be tested here."""
    verdicts = [judged.verdict for judged in judged_claims]
    counts = Counter(verdict.status for verdict in verdicts)
    same = sum(verdict.status == FAILS and verdict.direction == "same" for verdict in verdicts)
    words = {
        FAILS: f"do not ({same} of these in the same direction)",
        UNKNOWN: "cannot be tested here",
        REPORTED: "only reported",
    }
    parts = [f"{counts[status]} {text}" for status, text in words.items() if counts[status]]
    return "; ".join([f"{counts[HOLDS]} of {len(verdicts)} hold", *parts]) + "."


def verdict_rows(judged_claims: Sequence[JudgedClaim]) -> tuple[list[str], list[list[str]]]:
    columns = ("figure", "text", "paper", "status", "ours", "opt", "why", "where")
    objects = claims_json(judged_claims)
    return list(HEADER), [[row[name] or MISSING for name in columns] for row in objects]


def claims_markdown(judged_claims: Sequence[JudgedClaim]) -> str:
    header, rows = verdict_rows(judged_claims)
    marked = [[f"**{c}**" if c in (HOLDS, FAILS) else c for c in row] for row in rows]
    first, *lines = map(markdown_row, (header, *marked))
    ruler = "|" + "---|" * len(header)
    return "\n".join([count_words(judged_claims), "", first, ruler, *lines]) + "\n"


def claims_json(judged_claims: Sequence[JudgedClaim]) -> list[dict[str, Any]]:
    return [judged.as_json() for judged in judged_claims]
