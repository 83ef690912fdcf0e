"""What a claim is, and how it is judged from a sample over seeds.

From three seeds on the 95 % interval decides, below that every single seed has to agree. The
verdict is on FedHP with the deadline rule `fill`, the paper's; `opt` is told beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from fedhp.record.statistics import Interval, interval
from fedhp.report.claims.paired import Place, Sample, Scale, Settled
from fedhp.report.claims.pool import Pool
from fedhp.report.formatting import MISSING, count

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
BETWEEN = "; "  # values of one claim
INTERVAL_SEEDS = 3  # fewer give an interval too wide to say anything


@dataclass(frozen=True, slots=True)
class Verdict:
    """What our runs say of a claim."""

    status: Status
    ours: str = ""  # our value with its interval and number of seeds
    why: str = ""
    direction: Direction = ""  # whether the difference goes the claimed way
    opt: str = ""  # the same for FedHP's other deadline rule
    where: str = ""  # the data set it was tested on
    interval: Interval | None = None  # of `ours`, where it is one number


Check: TypeAlias = Callable[[Pool, "Suite"], Verdict]
Choose: TypeAlias = Callable[["Suite"], "PaperSet"]


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence that runs can support or not."""

    id: str
    figure: str
    text: str
    paper: str  # the paper's value, or the bar to pass
    check: Check


@dataclass(frozen=True, slots=True)
class Judged:
    """A claim and its verdict."""

    claim: Claim
    verdict: Verdict

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        claim, verdict = self.claim, self.verdict
        return {
            "id": claim.id,
            "figure": claim.figure,
            "text": claim.text,
            "paper": claim.paper,
            "status": verdict.status,
            "direction": verdict.direction,
            "ours": verdict.ours,
            "opt": verdict.opt,
            "why": verdict.why,
            "where": verdict.where,
            "interval": verdict.interval.as_json() if verdict.interval else None,
        }


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer for one variant of FedHP, before it is written out."""

    status: Status
    value: str = ""
    seeds: int = 0
    why: str = ""
    direction: Direction = ""
    interval: Interval | None = None
    rising: bool = False  # of runs that had not converged

    @property
    def ours(self) -> str:
        """Value and seeds; nothing without a value."""
        if not self.value:
            return ""
        return f"{self.value}, {count(self.seeds, 'seed')}" if self.seeds else self.value


@dataclass(frozen=True, slots=True)
class Ask:
    """What a question is put to: the runs, the data set, and FedHP's variant."""

    pool: Pool
    suite: Suite
    here: PaperSet
    fedhp: str = FILL

    def place(self, skew: float | None = None) -> Place:
        """This data set at a level; IID without one."""
        even = round(3 / self.here.experiment.workers, 6)  # every class is spread evenly
        level = even if skew is None else skew
        return Place(self.here.key, level, iid=abs(level - even) < 1e-6)


Measure: TypeAlias = Callable[[Ask], Finding]


def judge(
    sample: Sample, scale: Scale, *, bar: float | None = None, clear: bool = False, need: int = 1
) -> Finding:
    """Does the sample support a difference of at least `bar` (any at all without one)?

    The interval has to reach the bar and be off no difference; if `clear`, lie beyond it whole.
    """
    found = interval(sample.values)
    assert found is not None
    few = found.count < INTERVAL_SEEDS
    ends = [float(v) for v in (sample.values if few else (found.low or 0.0, found.high or 0.0))]
    ends.sort(key=lambda value: scale.better * value)  # the worst for FedHP first
    worst, best = ends[0], ends[-1]
    apart = scale.better * (worst - scale.neutral) > 0
    if bar is None:
        holds = apart
    elif clear or few:
        holds = _passes(worst, bar, scale=scale, exactly=clear)
    else:
        holds = apart and _passes(best, bar, scale=scale, exactly=False)
    lean = scale.better * (found.mean - scale.neutral)
    finding = Finding(
        HOLDS if holds else FAILS,
        _value(sample, scale, found),
        found.count,
        direction="same" if lean > 0 else "opposite" if lean < 0 else "",
        interval=found,
        rising=sample.rising,
    )
    if found.count < need:
        why = f"{count(need, 'seed')} asked for, {found.count} finished"
        return replace(finding, status=UNKNOWN, why=why)
    if sample.bound and not holds:
        return replace(finding, status=UNKNOWN, why=f"{sample.bound}, and is only a bound")
    if holds:
        return replace(finding, why=joined(sample.bound, _few_words(found.count)))
    return replace(finding, why=_shortfall(finding, scale, bar=bar, clear=clear, ends=ends))


def _passes(value: float, bar: float, *, scale: Scale, exactly: bool) -> bool:
    """At the bar or beyond; a printed number only as exactly as it is printed."""
    if exactly:
        return scale.better * (value - bar) >= 0
    return scale.better * (scale.rounded(value) - scale.rounded(bar)) >= 0


def _shortfall(
    finding: Finding, scale: Scale, *, bar: float | None, clear: bool, ends: Sequence[float]
) -> str:
    """Why it does not hold, in words."""
    found = finding.interval
    assert found is not None
    wide = "the interval" if found.count >= INTERVAL_SEEDS else "some seed"
    if finding.direction != "same":
        words = "opposite direction" if finding.direction else "no difference"
        if finding.direction and scale.better * (ends[-1] - scale.neutral) >= 0:
            words += ", if not clearly"
        wanted = f" instead of {scale.text(bar)}" if bar is not None else ""
        return f"{words}: {scale.text(found.mean)}{wanted}"
    enough = bar is None or _passes(found.mean, bar, scale=scale, exactly=clear)
    if bar is not None and not enough:
        return f"same direction, smaller: {scale.text(found.mean)} instead of {scale.text(bar)}"
    if clear and bar is not None:
        return f"the mean passes, but {wide} goes to {scale.text(ends[0])}"
    return f"same direction, but {wide} allows no difference"


def _value(sample: Sample, scale: Scale, found: Interval) -> str:
    bound = ("at least " if scale.better > 0 else "at most ") if sample.bound else ""
    text = bound + scale.text(found.mean)
    if found.count >= INTERVAL_SEEDS:
        text += f" [{scale.plain(found.low or 0.0)}, {scale.plain(found.high or 0.0)}]"
    elif found.count > 1:
        text += f" ({', '.join(scale.plain(value) for value in sample.values)})"
    return f"{text} {sample.note}" if sample.note else text


def _few_words(seeds: int) -> str:
    if seeds >= INTERVAL_SEEDS:
        return ""
    return "1 seed: no interval" if seeds == 1 else f"{seeds} seeds: each supports it"


def joined(*parts: str) -> str:
    """Reasons one after the other; empty ones left out."""
    return "; ".join(part for part in parts if part)


def settled(error: Settled) -> Finding:
    """The answer where no number could be had."""
    if error.lost:
        return Finding(FAILS, why=error.why, direction="opposite")
    return Finding(UNKNOWN, why=error.why)


def attempt(question: Callable[[], Finding]) -> Finding:
    """Its answer, also where it raises one."""
    try:
        return question()
    except Settled as error:
        return settled(error)


def ask_each(
    items: Iterable[Item], question: Callable[[Item], Finding], *, name: Callable[[Item], str]
) -> list[tuple[str, Finding]]:
    """One question put to each item, with the item's name."""
    return [(name(item), attempt(partial(question, item))) for item in items]


def merge(parts: Sequence[tuple[str, Finding]]) -> Finding:
    """All of them together: the worst decides, and the reasons name what fell short."""
    order = (FAILS, UNKNOWN, HOLDS, REPORTED)
    status = min((part.status for _, part in parts), key=order.index)
    shown = [(name, part) for name, part in parts if part.value]
    seeds = {part.seeds for _, part in shown}
    same = seeds.pop() if len(seeds) == 1 else 0
    value = BETWEEN.join(f"{name} {part.value if same else part.ours}" for name, part in shown)
    because: dict[str, list[str]] = {}
    for name, part in parts:
        if part.why:
            because.setdefault(part.why, []).append(name)
    everyone = len(parts) > 1 and len(because) == 1 and len(parts) == len(*because.values())
    why = "; ".join(
        words if everyone else f"{', '.join(names)}: {words}" for words, names in because.items()
    )
    ways = {part.direction for _, part in parts if part.status != UNKNOWN}
    way: Direction = "opposite" if "opposite" in ways else "same" if ways == {"same"} else ""
    rising = any(part.rising for _, part in parts)
    return Finding(status, value, same, why, way, rising=rising)


def on_set(choose: Choose, measure: Measure, *, beside: bool = True) -> Check:
    """A check on one data set, for FedHP with `fill` and, if `beside`, with `opt`."""

    def check(pool: Pool, suite: Suite) -> Verdict:
        fill = attempt(partial(_put, choose, measure, pool=pool, suite=suite, fedhp=FILL))
        opt = attempt(partial(_put, choose, measure, pool=pool, suite=suite, fedhp=OPT))
        try:
            where = choose(suite).title
        except Settled:
            where = ""
        return _written(fill, opt if beside else None, where=where)

    return check


def on_all(names: Sequence[str], measure: Measure) -> Check:
    """A check on several of the paper's data sets together."""

    def check(pool: Pool, suite: Suite) -> Verdict:
        def put(fedhp: str) -> Finding:
            def one(name: str) -> Finding:
                return _put(paper_set(name), measure, pool=pool, suite=suite, fedhp=fedhp)

            return merge(ask_each(names, one, name=str))

        return _written(put(FILL), put(OPT), where="all")

    return check


def _put(choose: Choose, measure: Measure, *, pool: Pool, suite: Suite, fedhp: str) -> Finding:
    here = choose(suite)
    if here.key in suite.missing:
        raise Settled(f"{here.title} is not here: {suite.missing[here.key]}")
    return measure(Ask(pool, suite, here, fedhp))


def _written(fill: Finding, opt: Finding | None, *, where: str = "") -> Verdict:
    """A verdict for people."""
    beside = ""
    if opt is not None:
        # Of several values only those that differ: FedHP has no part in the others.
        known = fill.value.split(BETWEEN)
        other = [value for value in opt.value.split(BETWEEN) if value not in known]
        ours = replace(opt, value=BETWEEN.join(other)).ours
        mark = f": {opt.status}" if opt.status in (HOLDS, FAILS) else ""
        beside = ours + mark if ours else MISSING
    why = joined(fill.why, UNCONVERGED if fill.rising else "")
    return Verdict(fill.status, fill.ours, why, fill.direction, beside, where, fill.interval)


def paper_set(name: str) -> Choose:
    """The data set that stands for the paper's: that very one if it is here, else another."""

    def choose(suite: Suite) -> PaperSet:
        known = [each for each in suite.sets.values() if each.stands_for == name]
        if not known:
            raise Settled(f"no data set stands for {name} in the profile {suite.profile}")
        return min(known, key=lambda each: (each.key in suite.missing, name not in each.title))

    return choose


def own_set(key: str) -> Choose:
    """A data set of the suite by its key."""
    return lambda suite: suite.sets[key]
