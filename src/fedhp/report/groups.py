"""The runs of a report, sorted: into batches that may be compared, and by label over the seeds.

Runs are compared only if they differ in nothing but algorithm and seed; a label that says more
(dpsgd:training.learning_rate=0.4) may differ in what it says. Only finished runs are averaged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedhp.algorithms.base import about
from fedhp.config import FREE_ON_RESUME
from fedhp.errors import RunError
from fedhp.record.reader import RunReader, RunSummary, interpolates
from fedhp.record.statistics import interval
from fedhp.report.formatting import count, label_base, label_name, listed
from fedhp.report.labels import names_for, stored_names
from fedhp.report.rounds import check_round
from fedhp.tables import flatten
from fedhp.types import FloatArray

FINISHED = "finished"
# What tells the runs of one batch apart, or changes no number that is compared.
FREE = ("algorithm", "seed", "device", "engine", *FREE_ON_RESUME)
SETTINGS_IN_NAME = 3  # of a batch
LONGEST_VALUE = 40  # letters of a setting's value in it


@dataclass(frozen=True, slots=True)
class RunEntry:
    folder: Path
    label: str
    seed: int
    status: str
    rounds: int  # committed
    asynchronous: bool
    metric: str
    algorithm: dict[str, Any]
    settings: dict[str, Any]  # by dotted key
    learning_rate: float  # that counted: the algorithm's own, or that of the experiment
    title: str  # the name of its label in the report

    @property
    def name(self) -> str:
        return f"{self.title}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Batch:
    """Runs that may be compared with each other."""

    name: str  # what sets it apart from the others: data.skew = 0.8; empty if it is the only one
    runs: tuple[RunEntry, ...]

    @property
    def folders(self) -> list[Path]:
        """Where the runs are, label by label in the order of the representative runs."""
        order = [run.label for run in self.representative_runs()]
        return [run.folder for run in sorted(self.runs, key=lambda run: order.index(run.label))]

    @property
    def labels(self) -> list[str]:
        return list(dict.fromkeys(run.label for run in self.runs))

    def representative_runs(self) -> list[RunEntry]:
        """One run per label, of one seed where all have it: FedHP+ or FedHP, a rival, then the
        others."""
        seeds = {
            label: {run.seed for run in self.runs if run.label == label} for label in self.labels
        }
        common = set.intersection(*seeds.values())
        # The best run of a label comes first.
        ranked = sorted(
            self.runs, key=lambda run: (run.status != FINISHED, run.seed not in common, run.seed)
        )
        chosen = [next(run for run in ranked if run.label == label) for label in self.labels]
        # First what the others are compared with.
        chosen.sort(key=lambda run: (-favourite(label_base(run.label)), not favourite(run.label)))
        first, *rest = chosen
        # Next to a round of FedHP, one of another algorithm with a barrier shows the most.
        rivals = sorted(
            rest,
            key=lambda run: (label_base(run.label) == label_base(first.label), run.asynchronous),
        )[:1]
        return [first, *rivals, *(run for run in rest if run not in rivals)]


def favourite(label: str) -> int:
    """How much an algorithm, without settings, is what the others are compared with."""
    known = about(label)
    return 0 if known is None else known.favourite


@dataclass(frozen=True, slots=True)
class SortedRuns:
    batches: tuple[Batch, ...]
    notes: tuple[str, ...]


def sort_runs(folders: Sequence[Path]) -> SortedRuns:
    if not folders:
        raise RunError("there is no run to report on", fix="name at least one run folder")
    by_path: dict[Path, Path] = {}
    for folder in folders:
        by_path.setdefault(folder.resolve(), folder)
    entries = [read_entry(folder) for folder in by_path.values()]
    begun = [entry for entry in entries if entry.rounds]
    if not begun:
        with RunReader(entries[0].folder) as run:
            check_round(run, None)
    batches, repeats = _without_repeats(_batches(begun))
    notes = []
    if len(begun) < len(entries):
        idle = count(len(entries) - len(begun), "run has", "runs have")
        notes.append(f"Left out: {idle} no committed round.")
    if repeats:
        others = listed((str(entry.folder) for entry in repeats), most=SETTINGS_IN_NAME)
        notes.append(f"Left out, because another run has the same settings and seed: {others}.")
    names = _batch_names([batch[0] for batch in batches])
    batches = [with_titles(batch) for batch in batches]
    return SortedRuns(
        tuple(Batch(name, tuple(batch)) for name, batch in zip(names, batches, strict=True)),
        tuple(notes),
    )


def with_titles(batch: Sequence[RunEntry]) -> list[RunEntry]:
    own = stored_names(entry.folder for entry in batch)
    titles = names_for((entry.label for entry in batch), own)
    return [replace(entry, title=titles[entry.label]) for entry in batch]


def read_entry(folder: Path) -> RunEntry:
    with RunReader(folder) as run:
        experiment = run.meta("experiment")
        return RunEntry(
            folder=folder,
            label=run.meta("label"),
            seed=run.meta("seed"),
            status=run.status,
            rounds=run.rounds_done,
            asynchronous=bool(run.meta("asynchronous")),
            metric=run.meta("metric"),
            algorithm=experiment["algorithm"],
            settings={k: v for k, v in flatten(experiment).items() if k.split(".")[0] not in FREE},
            learning_rate=run.meta("learning_rate") or experiment["training"]["learning_rate"],
            title=label_name(run.meta("label")),
        )


def read_summaries(folders: Iterable[Path]) -> list[RunSummary]:
    summaries = []
    for folder in folders:
        with RunReader(folder) as run:
            summaries.append(run.summary())
    return summaries


def _batches(entries: Sequence[RunEntry]) -> list[list[RunEntry]]:
    """Runs of the same settings; a label that means two things begins another batch."""
    parts = (part for entry in entries for part in entry.label.split(":") if "=" in part)
    free = {key for part in parts if "." in (key := part.partition("=")[0].strip())}
    kinds: dict[tuple[str, str], list[str]] = {}
    batches: dict[tuple[str, int], list[RunEntry]] = {}
    for entry in entries:
        table = entry.settings
        shared = setting_text({k: v for k, v in table.items() if k not in free}, entry.metric)
        own = setting_text({k: v for k, v in table.items() if k in free}, entry.algorithm)
        seen = kinds.setdefault((shared, entry.label), [])
        if own not in seen:
            seen.append(own)
        batches.setdefault((shared, seen.index(own)), []).append(entry)
    return list(batches.values())


def setting_text(*parts: Any) -> str:
    """Equal for equal values, to compare settings."""
    return json.dumps(parts, sort_keys=True, default=str)


def _without_repeats(
    batches: Iterable[Sequence[RunEntry]],
) -> tuple[list[list[RunEntry]], list[RunEntry]]:
    """Of runs with one label and seed the one that came furthest: a seed counts once."""
    kept, repeats = [], []
    for batch in batches:
        best: dict[tuple[str, int], RunEntry] = {}
        # Of equals the first counts.
        furthest = sorted(batch, key=lambda r: (r.status == FINISHED, r.rounds), reverse=True)
        for entry in furthest:
            best.setdefault((entry.label, entry.seed), entry)
        unique = [entry for entry in batch if best[entry.label, entry.seed] is entry]
        repeats += [entry for entry in batch if entry not in unique]
        kept.append(unique)
    return kept, repeats


def _batch_names(firsts: Sequence[RunEntry]) -> list[str]:
    """What sets every batch apart: the settings in which the batches differ."""
    if len(firsts) == 1:
        return [""]
    tables = [
        {**first.settings, **{f"algorithm.{k}": v for k, v in first.algorithm.items()}}
        for first in firsts
    ]
    keys = dict.fromkeys(key for table in tables for key in table)
    different = [key for key in keys if len({setting_text(table.get(key)) for table in tables}) > 1]
    names = []
    for table in tables:
        parts = [f"{k} = {short_value(table[k])}" if k in table else f"no {k}" for k in different]
        names.append(listed(parts, most=SETTINGS_IN_NAME) or "group")
    return [
        name if names.count(name) == 1 else f"{name} ({names[: index + 1].count(name)})"
        for index, name in enumerate(names)
    ]


def short_value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


@dataclass(frozen=True, slots=True)
class RunCurves:
    folder: Path
    summary: RunSummary
    metric: str
    rounds: FloatArray  # [K] evaluated rounds
    clock: FloatArray  # [K] virtual time of each evaluation, s
    values: FloatArray  # [K] mean of the workers' test results
    steps: dict[str, float]  # mean local steps per round, by device kind
    step_time: dict[str, float]  # mean seconds per step, by device kind
    interpolated: bool = False  # whether times to a target lie between evaluations

    @property
    def finished(self) -> bool:
        return self.summary.status == FINISHED


@dataclass(frozen=True, slots=True)
class Group:
    label: str
    runs: tuple[RunCurves, ...]
    title: str = ""  # its name in this comparison; by default the label in words

    @property
    def finished(self) -> list[RunCurves]:
        """The runs that may be averaged."""
        return [run for run in self.runs if run.finished]

    @property
    def unfinished(self) -> list[RunCurves]:
        return [run for run in self.runs if not run.finished]

    @property
    def name(self) -> str:
        """The label in words, with what did not finish."""
        name, runs = self.title or label_name(self.label), len(self.runs)
        statuses = [run.summary.status for run in self.unfinished]
        if not statuses:
            return name
        what = "/".join(dict.fromkeys("unfinished" if s != "diverged" else s for s in statuses))
        return f"{name} [{what}]" if runs == 1 else f"{name} [{len(statuses)}/{runs} {what}]"

    def numbers(self, value: Callable[[RunSummary], float | None]) -> list[float]:
        values = (value(run.summary) for run in self.finished)
        return [number for number in values if number is not None]


@dataclass(frozen=True, slots=True)
class Curve:
    """A mean over seeds with its 95 % band (NaN where there is only one seed)."""

    x: FloatArray
    mean: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True, slots=True)
class Comparison:
    """Groups in the order they were given, and what they share."""

    groups: tuple[Group, ...]
    metric: str
    targets: tuple[str, ...]
    kinds: tuple[str, ...]  # device kinds, fastest first


def read_comparison(
    folders: Sequence[Path], *, names: Mapping[str, str] | None = None
) -> Comparison:
    """Read the runs and group them by label.

    `names` are the user's own, by label; by default those of `fedhp compare --label`.
    """
    runs = [read_curves(folder) for folder in folders]
    if not runs:
        raise RunError("there is no run to draw", fix="name at least one run folder")
    metrics = {run.metric for run in runs}
    if len(metrics) > 1:
        raise RunError(
            f"the runs measure different things: {', '.join(sorted(metrics))}",
            allowed="runs of one task in one figure",
            fix="draw the runs of each task separately",
        )
    labels = list(dict.fromkeys(run.summary.algorithm for run in runs))
    titles = names_for(labels, stored_names(folders) if names is None else names)
    targets = dict.fromkeys(target for run in runs for target in run.summary.time_to_target)
    groups = [
        Group(label, tuple(run for run in runs if run.summary.algorithm == label), titles[label])
        for label in labels
    ]
    times: dict[str, list[float]] = {}  # of a step, by device kind
    for run in runs:
        for kind, time in run.step_time.items():
            times.setdefault(kind, []).append(time)
    means = {kind: float(np.mean(values)) for kind, values in times.items()}
    goals, kinds = sorted(targets, key=float), device_order(means, means)
    return Comparison(tuple(groups), runs[0].metric, tuple(goals), tuple(kinds))


def read_curves(folder: Path) -> RunCurves:
    with RunReader(folder) as run:
        tests = run.table("evaluations")
        devices = run.meta("devices")
        steps = run.array("workers", "local_steps")
        present = ~np.isnan(run.array("workers", "worker_time"))
        return RunCurves(
            folder=folder,
            summary=run.summary(),
            metric=run.meta("metric"),
            rounds=np.array(tests["round"], dtype=np.float64),
            clock=np.array(tests["clock"], dtype=np.float64),
            values=np.array(tests["accuracy"], dtype=np.float64),
            steps=kind_means(np.where(present, steps, np.nan), devices),
            step_time=kind_means(run.array("workers", "step_time"), devices),
            interpolated=interpolates(run),
        )


def mean_curve(runs: Sequence[RunCurves], x: Callable[[RunCurves], FloatArray]) -> Curve | None:
    """The mean over runs, each held from one evaluation to the next, where all have data."""
    runs = [run for run in runs if run.values.size]
    if not runs:
        return None
    start, end = max(x(run)[0] for run in runs), min(x(run)[-1] for run in runs)
    points = np.unique(np.concatenate([x(run) for run in runs]))
    points = points[(points >= start) & (points <= end)]
    if not points.size:  # one run ended before another was first evaluated
        return None
    held = np.stack([run.values[np.searchsorted(x(run), points, side="right") - 1] for run in runs])
    bands = [interval(column.tolist()) for column in held.T]
    # None, where there is only one seed, becomes NaN.
    low, high = (np.array([getattr(b, end) for b in bands], np.float64) for end in ("low", "high"))
    return Curve(points, held.mean(axis=0), low, high)


def kind_means(values: FloatArray, devices: Sequence[str]) -> dict[str, float]:
    """The mean of values [rounds, N] over the workers of each device kind, without NaN."""
    means: dict[str, float] = {}
    for kind in dict.fromkeys(devices):
        of_kind = values[:, [device == kind for device in devices]]
        of_kind = of_kind[np.isfinite(of_kind)]
        if of_kind.size:
            means[kind] = float(of_kind.mean())
    return means


def device_order(step_time: dict[str, float], devices: Iterable[str]) -> list[str]:
    """Device kinds from the fastest to the slowest; unmeasured ones last."""
    return sorted(dict.fromkeys(devices), key=lambda kind: (step_time.get(kind, np.inf), kind))
