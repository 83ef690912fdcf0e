"""Means and 95 % intervals over seeds, for tables, plots and --json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from scipy.special import stdtrit

from fedhp.record.reader import RunSummary, mean

FIELDS = (
    "final_accuracy",
    "best_accuracy",
    "mean_model_accuracy",
    "worst_worker_accuracy",
    "best_worker_accuracy",
    "final_loss",
    "mean_model_loss",
    "own_accuracy",
    "completion_time",
    "round_time",
    "mean_waiting_time",
    "mean_local_steps",
    "bytes_sent",
)


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its 95 % interval (Student's t over the seeds); a single value has none."""

    mean: float
    low: float | None
    high: float | None
    count: int

    def as_json(self) -> dict[str, Any]:
        return {"mean": self.mean, "low": self.low, "high": self.high, "count": self.count}


def interval(values: Sequence[float]) -> Interval | None:
    """The mean of the values with its interval; None without values."""
    if not values:
        return None
    center = float(np.mean(values))
    if len(values) == 1:
        return Interval(center, None, None, 1)
    error = float(np.std(values, ddof=1) / np.sqrt(len(values)))
    reach = float(stdtrit(len(values) - 1, 0.975)) * error
    return Interval(center, center - reach, center + reach, len(values))


def summarize_runs(runs: Sequence[RunSummary]) -> dict[str, dict[str, Any]]:
    """Per algorithm: an interval for every number, and for each target how many reached it.

    Time and bytes to a target are averaged over the seeds that reached it.
    """
    summary: dict[str, dict[str, Any]] = {}
    for label in dict.fromkeys(run.algorithm for run in runs):
        group = [run for run in runs if run.algorithm == label]
        entry: dict[str, Any] = {"seeds": [run.seed for run in group]}
        for field in FIELDS:
            values = [value for run in group if (value := getattr(run, field)) is not None]
            spread = interval(values)
            entry[field] = spread.as_json() if spread else None
        for field, spread_of in (
            ("time_to_target", _target),
            ("bytes_to_target", _target),
            ("accuracy_at_time", _spread),
        ):
            tables = [getattr(run, field) for run in group]
            entry[field] = {key: spread_of([t.get(key) for t in tables]) for key in tables[0]}
        by_class = [run.class_accuracy for run in group if run.class_accuracy]
        entry["class_accuracy"] = class_means(by_class) if by_class else None
        summary[label] = entry
    return summary


def class_means(by_class: Sequence[Sequence[float | None]]) -> list[float | None]:
    """The mean over the runs for every class; None for a class without test samples."""
    return [mean(values) for values in zip_longest(*by_class)]


def _spread(values: Sequence[float | None]) -> dict[str, Any]:
    """Over the seeds that have a value: that reached the target, or whose run lasted so long."""
    spread = interval([value for value in values if value is not None])
    return spread.as_json() if spread else {"mean": None, "low": None, "high": None, "count": 0}


def _target(values: Sequence[float | None]) -> dict[str, Any]:
    spread = _spread(values)
    return {**spread, "reached": f"{spread['count']}/{len(values)}"}
