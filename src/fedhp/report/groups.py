"""Runs read for a comparison: grouped by label over the seeds, finished ones apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedhp.errors import RunError
from fedhp.record.reader import RunReader, RunSummary
from fedhp.record.statistics import interval
from fedhp.report.formatting import label_name
from fedhp.types import FloatArray

FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class RunCurves:
    """What a figure needs of one run."""

    folder: Path
    summary: RunSummary
    metric: str
    rounds: FloatArray  # [K] evaluated rounds
    clock: FloatArray  # [K] virtual time of each evaluation, s
    values: FloatArray  # [K] mean of the workers' test results
    steps: dict[str, float]  # mean local steps per round, by device kind
    step_time: dict[str, float]  # mean seconds per step, by device kind

    @property
    def finished(self) -> bool:
        """Whether all of its rounds are there."""
        return self.summary.status == FINISHED


@dataclass(frozen=True, slots=True)
class Group:
    """The runs of one label."""

    label: str
    runs: tuple[RunCurves, ...]

    @property
    def finished(self) -> list[RunCurves]:
        """The runs that may be averaged."""
        return [run for run in self.runs if run.finished]

    @property
    def unfinished(self) -> list[RunCurves]:
        """The runs that are drawn alone and marked."""
        return [run for run in self.runs if not run.finished]

    @property
    def name(self) -> str:
        """The label in words, with what did not finish."""
        return label_name(self.label) + _mark([run.summary for run in self.runs])

    def numbers(self, value: Callable[[RunSummary], float | None]) -> list[float]:
        """A number of every finished run that has it."""
        found = (value(run.summary) for run in self.finished)
        return [number for number in found if number is not None]


@dataclass(frozen=True, slots=True)
class Curve:
    """A mean over seeds with its 95 % band (NaN where one seed is all there is)."""

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


def read_comparison(folders: Sequence[Path]) -> Comparison:
    """Read the runs and group them by label."""
    runs = [read_curves(folder) for folder in folders]
    if not runs:
        raise RunError("there is no run to draw", fix="name at least one run folder")
    metrics = {run.metric for run in runs}
    if len(metrics) > 1:
        raise RunError(
            f"the runs measure different things: {', '.join(sorted(metrics))}",
            allowed="runs of one task in one figure",
            fix="draw the runs of each task by themselves",
        )
    labels = dict.fromkeys(run.summary.algorithm for run in runs)
    targets = dict.fromkeys(target for run in runs for target in run.summary.time_to_target)
    return Comparison(
        groups=tuple(
            Group(label, tuple(run for run in runs if run.summary.algorithm == label))
            for label in labels
        ),
        metric=runs[0].metric,
        targets=tuple(sorted(targets, key=float)),
        kinds=_kinds(runs),
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
    low = [np.nan if band is None or band.low is None else band.low for band in bands]
    high = [np.nan if band is None or band.high is None else band.high for band in bands]
    return Curve(points, held.mean(axis=0), np.array(low), np.array(high))


def kind_means(values: FloatArray, devices: Sequence[str]) -> dict[str, float]:
    """The mean of values [rounds, N] over the workers of each device kind, NaN left out."""
    means: dict[str, float] = {}
    for kind in dict.fromkeys(devices):
        mine = values[:, [device == kind for device in devices]]
        mine = mine[np.isfinite(mine)]
        if mine.size:
            means[kind] = float(mine.mean())
    return means


def device_order(step_time: dict[str, float], devices: Iterable[str]) -> list[str]:
    """Device kinds from the fastest to the slowest; unmeasured ones last."""
    return sorted(dict.fromkeys(devices), key=lambda kind: (step_time.get(kind, np.inf), kind))


def read_curves(folder: Path) -> RunCurves:
    """What figures need of the run in this folder."""
    with RunReader(folder) as run:
        tests = run.table("evaluations")
        devices = run.meta("devices")
        steps = run.array("workers", "local_steps")
        there = ~np.isnan(run.array("workers", "worker_time"))
        return RunCurves(
            folder=folder,
            summary=run.summary(),
            metric=run.meta("metric"),
            rounds=np.array(tests["round"], dtype=np.float64),
            clock=np.array(tests["clock"], dtype=np.float64),
            values=np.array(tests["accuracy"], dtype=np.float64),
            steps=kind_means(np.where(there, steps, np.nan), devices),
            step_time=kind_means(run.array("workers", "step_time"), devices),
        )


def _kinds(runs: Sequence[RunCurves]) -> tuple[str, ...]:
    times: dict[str, list[float]] = {}
    for run in runs:
        for kind, time in run.step_time.items():
            times.setdefault(kind, []).append(time)
    means = {kind: float(np.mean(each)) for kind, each in times.items()}
    return tuple(device_order(means, means))


def _mark(summaries: Sequence[RunSummary]) -> str:
    """What to add to a name whose runs did not all finish."""
    statuses = [run.status for run in summaries if run.status != FINISHED]
    if not statuses:
        return ""
    what = "/".join(dict.fromkeys("unfinished" if s != "diverged" else s for s in statuses))
    return f" [{what}]" if len(summaries) == 1 else f" [{len(statuses)}/{len(summaries)} {what}]"
