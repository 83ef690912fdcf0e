"""The bars of FedHP+ and how runs are judged against them (`make accept-plus`).

Every algorithm gets the same virtual time in the same worlds (experiments/acceptance_plus.toml).
Times and bytes are to a target; a check that has no number says why and fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from acceptance_checks import IID, AcceptanceCheck, at_least, at_most

from fedhp.record.reader import RunReader, target_key
from fedhp.report.claims.acceptance import SKEWED
from fedhp.report.claims.runs import SuiteRuns, final_accuracy
from fedhp.report.formatting import data_size, number, score
from fedhp.report.groups import RunCurves
from fedhp.types import GroupRole

OURS = "fedhp_plus"
PLAIN = "fedhp_plus:fragments=1:compression=none"
AIDS = "overlap=true:serve=average:compression=int8"
RIVAL = "adpsgd:steps=100:learning_rate=0.4"
AIDED = tuple(f"adpsgd:steps=10:learning_rate={rate}:{AIDS}" for rate in (0.4, 0.6))
STRONGEST = f"adpsgd:steps=5:learning_rate=0.06:momentum=0.9:{AIDS}"
DPSGD = "dpsgd:steps=100:learning_rate=0.2"
LIMITS = ("free_links", *(f"free_links:learning_rate={rate}" for rate in (0.03, 0.07)))

WORKER, SHARED, LINK, FREE = "per worker", "shared", "per link", "free"
# The settings of each world, and which algorithms run there.
WORLDS: dict[str, tuple[str, ...]] = {
    WORKER: (),
    SHARED: ("world.bandwidth.sharing=true",),
    LINK: ("world.bandwidth.per=link",),
}
ALL = (OURS, PLAIN, RIVAL, *AIDED, STRONGEST, DPSGD)
ALGORITHMS: dict[str, tuple[str, ...]] = {WORKER: ALL, SHARED: ALL, LINK: (PLAIN, RIVAL)}
# With links that cost nothing: the limit, tested often because it is fast, until its target; and
# FedHP+ itself with an average after every step of the slowest worker.
FREE_LINKS = ("horizon=60", "evaluation.seconds=0.5")
FREE_PLUS = (
    f"{PLAIN}:world.bandwidth.low=1000000:world.bandwidth.high=1000000:world.bandwidth.unit=MB/s"
)

TARGETS = {IID: 0.94, SKEWED: 0.90}
LEVEL_NAMES = {IID: "IID", SKEWED: "p=0.8"}
RIVAL_TIME_SHARE = 0.35
AIDED_TIME_SHARE = {
    WORKER: {IID: 0.90, SKEWED: 0.80},
    SHARED: {IID: 0.70, SKEWED: 0.60},
}
RIVAL_BYTES_SHARE, AIDED_BYTES_SHARE = 0.4, 0.7
AHEAD = {IID: 0.3, SKEWED: 0.8}  # of AD-PSGD, points
PLAIN_TIME_SHARE = {
    WORKER: {IID: 0.70, SKEWED: 0.65},
    SHARED: {IID: 0.65, SKEWED: 0.60},
    LINK: {IID: 0.45, SKEWED: 0.45},
}
DPSGD_AHEAD = {IID: 2.0, SKEWED: 5.0}
MEAN_MODEL_APART = 0.4
MOST_LEFT_OUT = 3
BELOW_BEST = 1.0

Quantity: TypeAlias = Callable[[RunCurves, float], float | None]


@dataclass(frozen=True, slots=True)
class GroupPromises:
    """What the record says about the groups of one run."""

    longest_left_out: int  # averages of a fragment in a row
    outdated_roots: int  # rounds whose root had missed the fragment's last average


@dataclass(frozen=True, slots=True)
class Level:
    """A world at a non-IID level, with its target."""

    world: str
    skew: float
    target: float

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.world}, {LEVEL_NAMES[self.skew]}"


def plus_checks(
    runs: SuiteRuns, promises: Iterable[GroupPromises], *, targets: Mapping[float, float] = TARGETS
) -> list[AcceptanceCheck]:
    """All lines with a bar, in order."""
    worlds = {world: [Level(world, skew, targets[skew]) for skew in targets] for world in WORLDS}
    both = [*worlds[WORKER], *worlds[SHARED]]
    checks = []
    for line, world in (("P1", WORKER), ("P2", SHARED)):
        for level in worlds[world]:
            name = f"{line} time: FedHP+ / AD-PSGD, {level.name}"
            checks.append(_share(runs, name, level, RIVAL, TIME, RIVAL_TIME_SHARE))
    for line, world in (("P3", WORKER), ("P4", SHARED)):
        for level in worlds[world]:
            name = f"{line} time: FedHP+ / aided AD-PSGD, {level.name}"
            bar = AIDED_TIME_SHARE[world][level.skew]
            checks.append(_share(runs, name, level, best_of(runs, AIDED, level), TIME, bar))
    for level in both:
        name = f"P5 bytes: FedHP+ / AD-PSGD, {level.name}"
        checks.append(_share(runs, name, level, RIVAL, BYTES, RIVAL_BYTES_SHARE))
        name = f"P5 bytes: FedHP+ / aided AD-PSGD, {level.name}"
        rival = best_of(runs, AIDED, level)
        checks.append(_share(runs, name, level, rival, BYTES, AIDED_BYTES_SHARE))
    for level in both:
        name = f"P6 final: FedHP+ - AD-PSGD (points), {level.name}"
        checks.append(_ahead(runs, name, level, RIVAL, AHEAD[level.skew]))
    for world, bars in PLAIN_TIME_SHARE.items():
        for level in worlds[world]:
            name = f"P7 time: plain form / AD-PSGD, {level.name}"
            checks.append(_share(runs, name, level, RIVAL, TIME, bars[level.skew], ours=PLAIN))
    for level in both:
        name = f"P8 final: FedHP+ - D-PSGD (points), {level.name}"
        checks.append(_ahead(runs, name, level, DPSGD, DPSGD_AHEAD[level.skew]))
    for level in (level for level in both if level.skew == SKEWED):
        checks.append(_apart(runs, level))
    checks += _promises(list(promises))
    return [*checks, _below_best([run for level in both for run in _runs(runs, OURS, level)])]


def plus_notes(runs: SuiteRuns, *, targets: Mapping[float, float] = TARGETS) -> list[str]:
    """P12, without a bar: the strongest AD-PSGD, and the limit with FedHP+'s share of it."""
    notes = []
    for level in (Level(world, *each) for world in (WORKER, SHARED) for each in targets.items()):
        free = replace(level, world=FREE)
        own, strongest = _runs(runs, OURS, level), _runs(runs, STRONGEST, level)
        parts = [
            f"P12 {level.name}: FedHP+ {_both_written(own, level)}",
            f"the strongest AD-PSGD {_both_written(strongest, level)}",
        ]
        ours, theirs = _mean_time(own, level), _mean_time(strongest, level)
        if ours and theirs:
            parts.append(f"FedHP+ takes {ours / theirs:.2f} of its time")
        for what, label in (
            ("the limit with free links", best_of(runs, LIMITS, free)),
            ("FedHP+ with free links", FREE_PLUS),
        ):
            limit = _runs(runs, label, free)
            parts.append(f"{what} {_written(limit, free, TIME)}")
            time = _mean_time(limit, free)
            if ours and time:
                parts[-1] += f", of which FedHP+ reaches {100 * time / ours:.0f} %"
        notes.append("; ".join(parts))
    return notes


def best_of(runs: SuiteRuns, labels: Sequence[str], level: Level) -> str:
    """The label with the least mean time to the target."""

    def mean_time(label: str) -> float:
        own = _runs(runs, label, level)
        return float(np.mean([_or_end(run, level, TIME) for run in own])) if own else np.inf

    return min(labels, key=mean_time)


def read_promises(folder: Path) -> GroupPromises:
    """Follow the groups of a run, fragment by fragment, from its record."""
    with RunReader(folder) as run:
        table, facts = run.table("participation"), run.table("facts")
        workers = int(run.meta("workers"))
    fragment_of = {
        round_index: int(value)
        for round_index, name, value in zip(
            facts["round"], facts["name"], facts["value"], strict=True
        )
        if name == "fragment"
    }
    streaks: dict[int, list[int]] = {}
    current: dict[int, set[int]] = {}  # who has the newest consensus of each fragment
    longest = outdated = 0
    for start in range(0, len(table["round"]), workers):
        fragment = fragment_of.get(table["round"][start])
        if fragment is None:  # the first round averages nothing
            continue
        rows = range(start, start + workers)
        streak = streaks.setdefault(fragment, [0] * workers)
        taking_part: set[int] = set()
        for row in rows:
            worker, role = table["worker"][row], GroupRole(table["role"][row])
            if role in (GroupRole.LEFT_OUT, GroupRole.AWAY):
                streak[worker] = streak[worker] + 1 if role == GroupRole.LEFT_OUT else 0
            else:
                streak[worker] = 0
                taking_part.add(worker)
            if table["root"][row] and worker not in current.get(fragment, {worker}):
                outdated += 1
        longest = max(longest, *streak)
        current[fragment] = taking_part
    return GroupPromises(longest, outdated)


def _time(run: RunCurves, target: float) -> float | None:
    return run.summary.time_to_target.get(target_key(target))


def _bytes(run: RunCurves, target: float) -> float | None:
    return run.summary.bytes_to_target.get(target_key(target))


TIME: Quantity = _time
BYTES: Quantity = _bytes


def _runs(runs: SuiteRuns, label: str, level: Level) -> list[RunCurves]:
    return runs.runs(level.world, label, skew=level.skew)


def _numbers(own: Sequence[RunCurves], level: Level, quantity: Quantity) -> list[float | None]:
    return [quantity(run, level.target) for run in own]


def _or_end(run: RunCurves, level: Level, quantity: Quantity) -> float:
    """A rival that does not reach the target counts with its whole run; one that diverged is
    never the best."""
    value = quantity(run, level.target)
    if value is not None:
        return value
    if not run.finished:
        return np.inf
    return run.summary.completion_time if quantity is TIME else run.summary.bytes_sent


def _share(
    runs: SuiteRuns,
    name: str,
    level: Level,
    rival: str,
    quantity: Quantity,
    bar: float,
    *,
    ours: str = OURS,
) -> AcceptanceCheck:
    """Our mean over the seeds as a share of the rival's."""
    own, theirs = _runs(runs, ours, level), _runs(runs, rival, level)
    missing = _missing(own, theirs)
    for run in own:
        if not missing and quantity(run, level.target) is None:
            best = score(run.summary.best_accuracy, run.summary.metric)
            goal = score(level.target, run.summary.metric)
            missing = f"{goal} not reached in seed {run.summary.seed} (best {best})"
    if missing:
        return AcceptanceCheck(name, missing, f"<= {bar}", False)
    mean = float(np.mean([_or_end(run, level, quantity) for run in own]))
    other = float(np.mean([_or_end(run, level, quantity) for run in theirs]))
    # A target that is reached before anything was sent takes no bytes.
    check = at_most(name, mean / other if other else (np.inf if mean else 1.0), bar)
    bound = ", the rival's whole run" if None in _numbers(theirs, level, quantity) else ""
    write = _write(quantity)
    return replace(check, figure=f"{check.figure} ({write(mean)} / {write(other)}{bound})")


def _ahead(runs: SuiteRuns, name: str, level: Level, rival: str, bar: float) -> AcceptanceCheck:
    """Our final accuracy above the rival's, in points, means over the seeds."""
    own, theirs = _runs(runs, OURS, level), _runs(runs, rival, level)
    missing = _missing(own, theirs)
    if missing:
        return AcceptanceCheck(name, missing, f">= {bar}", False)
    mean, other = (100 * float(np.mean([_final(run) for run in each])) for each in (own, theirs))
    check = at_least(name, mean - other, bar)
    return replace(check, figure=f"{check.figure} ({mean:.2f} - {other:.2f} %)")


def _apart(runs: SuiteRuns, level: Level) -> AcceptanceCheck:
    name = f"P9 final: workers against the mean model (points), {level.name}"
    own = _runs(runs, OURS, level)
    if missing := _missing(own):
        return AcceptanceCheck(name, missing, f"<= {MEAN_MODEL_APART}", False)
    apart = [_final(run) - (run.summary.mean_model_accuracy or 0.0) for run in own]
    return at_most(name, 100 * abs(float(np.mean(apart))), MEAN_MODEL_APART)


def _promises(promises: Sequence[GroupPromises]) -> list[AcceptanceCheck]:
    left_out = max((each.longest_left_out for each in promises), default=0)
    outdated = sum(each.outdated_roots for each in promises)
    known = bool(promises)
    return [
        AcceptanceCheck(
            "P10 longest time left out (averages of a fragment in a row)",
            str(left_out) if known else "no run",
            f"<= {MOST_LEFT_OUT}",
            known and left_out <= MOST_LEFT_OUT,
        ),
        AcceptanceCheck(
            "P10 rounds whose root does not know the current consensus",
            str(outdated) if known else "no run",
            "0",
            known and outdated == 0,
        ),
    ]


def _below_best(own: Sequence[RunCurves]) -> AcceptanceCheck:
    name = "P11 final below the best test (points), worst run"
    if missing := _missing(own):
        return AcceptanceCheck(name, missing, f"<= {BELOW_BEST}", False)
    below = max((run.summary.best_accuracy or 1.0) - _final(run) for run in own)
    return at_most(name, 100 * below, BELOW_BEST)


def _missing(*groups: Sequence[RunCurves]) -> str:
    """Why there is no number."""
    for group in groups:
        if not group:
            return "no run"
        for run in group:
            if final_accuracy(run) is None or not run.finished:
                return f"{run.summary.algorithm}, seed {run.summary.seed}: {run.summary.status}"
    return ""


def _final(run: RunCurves) -> float:
    final = final_accuracy(run)
    return np.nan if final is None else final


def _write(quantity: Quantity) -> Callable[[float], str]:
    return (lambda value: f"{number(value)} s") if quantity is TIME else data_size


def _written(own: Sequence[RunCurves], level: Level, quantity: Quantity) -> str:
    values = _numbers(own, level, quantity)
    reached = [value for value in values if value is not None]
    if not reached:
        return "not reached" if own else "no run"
    some = f" ({len(reached)}/{len(values)} reached)" if len(reached) < len(values) else ""
    return _write(quantity)(float(np.mean(reached))) + some


def _both_written(own: Sequence[RunCurves], level: Level) -> str:
    return f"{_written(own, level, TIME)} and {_written(own, level, BYTES)}"


def _mean_time(own: Sequence[RunCurves], level: Level) -> float | None:
    """None unless every seed reached the target."""
    times = [time for run in own if (time := TIME(run, level.target)) is not None]
    return float(np.mean(times)) if times and len(times) == len(own) else None
