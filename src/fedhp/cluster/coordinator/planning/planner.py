"""What the planners of rounds and of turns have in common: the start, tests, packing, and which
reported numbers are believed."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedhp.cluster.coordinator.planning.link_estimates import LinkEstimates
from fedhp.learn.attack import attackers_of
from fedhp.record.tensors import Arrays, read_buffer, tensor_parts
from fedhp.rounds.context import PlanningContext
from fedhp.rounds.planner import Planner
from fedhp.types import Evaluation, FloatArray

STEP_TIME_FACTOR = 30.0  # how far honest machines are apart at most, from the median
ESTIMATE_FACTOR = 10.0  # the same for what is measured on models
METRIC_SPREAD = 1.0  # how far results of tests may always be apart: accuracies never are further
LEAST_VALUES = 3


class NetworkPlanner(ABC):
    """Drives an algorithm; all it knows can be handed to another coordinator as bytes."""

    def __init__(self, stage: PlanningContext, planner: Planner) -> None:
        self.stage = stage
        self.planner = planner
        self.algorithm = stage.algorithm
        self.workers = stage.experiment.workers
        self.attackers = attackers_of(
            stage.experiment.attack, workers=self.workers, seed=stage.experiment.seed
        )
        self.clock = 0.0
        self.links = LinkEstimates(self.workers)

    @abstractmethod
    def pack(self) -> bytes:
        """Everything that the next coordinator needs."""

    @abstractmethod
    def unpack(self, content: bytes) -> None:
        """Continue from what another planner packed."""


def evaluation_of(
    accuracy: FloatArray, images: int, attackers: Sequence[int] = ()
) -> Evaluation | None:
    """The workers' tests, [N], NaN where none; no process sees all models, so there is no mean
    model. Attackers of a study do not count."""
    honest = ~np.isin(np.arange(len(accuracy)), attackers)
    accuracy = set_aside_odd_metrics(np.where(honest, accuracy, np.nan))
    tested = accuracy[np.isfinite(accuracy)]
    if not tested.size:
        return None
    mean = float(tested.mean())
    is_share = images > 0 and 0 <= mean <= 1
    error = float(np.sqrt(mean * (1 - mean) / images)) if is_share else float("nan")
    counted = honest if len(attackers) else None
    return Evaluation(accuracy, float("nan"), images, error, honest=counted)


def to_bytes(arrays: Arrays, scalars: dict[str, Any]) -> bytes:
    """Arrays and scalars as one safetensors file."""
    parts = tensor_parts(arrays, {"scalars": json.dumps(scalars)})
    return b"".join(bytes(part) for part in parts)


def from_bytes(content: bytes) -> tuple[Arrays, dict[str, Any]]:
    """The arrays and scalars of to_bytes()."""
    arrays, metadata = read_buffer(content)
    return arrays, json.loads(metadata["scalars"])


# --- numbers that one member reports and that plans for everybody depend on ---------------------
# Values far from the median of all members are limited, or replaced by it. With fewer than three
# there is no majority, and nothing is changed.


def limit_to_median(values: FloatArray, factor: float) -> FloatArray:
    """The values, none further from the median than this factor; NaN stays."""
    finite = values[np.isfinite(values)]
    if finite.size < LEAST_VALUES:
        return values
    middle = float(np.median(finite))
    return np.clip(values, middle / factor, middle * factor)


def set_aside_large(values: FloatArray) -> FloatArray:
    """The values, with the median in place of those far above it. Small ones stay: they do not
    dominate a mean."""
    finite = values[np.isfinite(values)]
    middle = float(np.median(finite)) if finite.size >= LEAST_VALUES else 0.0
    if middle <= 0:
        return values
    return np.where(values > ESTIMATE_FACTOR * middle, middle, values)


def set_aside_odd_metrics(values: FloatArray) -> FloatArray:
    """Results of tests, with NaN (not tested) in place of those that no honest worker has: one
    of them would decide the mean, and with it when a run ends (`until.accuracy`)."""
    finite = values[np.isfinite(values)]
    if finite.size < LEAST_VALUES:
        return values
    middle = float(np.median(finite))
    spread = float(np.median(np.abs(finite - middle)))
    odd = np.abs(values - middle) > max(METRIC_SPREAD, ESTIMATE_FACTOR * spread)
    return np.where(odd, np.nan, values)


def usual_count(counts: Iterable[int]) -> int:
    """What most members say; of equally frequent counts the smaller; 0 if nobody says anything."""
    frequency = Counter(counts)
    return min(frequency, key=lambda count: (-frequency[count], count), default=0)
