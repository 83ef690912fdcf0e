"""What the planners of rounds and of turns have in common: the start, tests, packing."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedhp.cluster.coordinator.planning.link_estimates import LinkEstimates
from fedhp.cluster.coordinator.planning.outliers import set_aside_odd_metrics
from fedhp.learn.attack import attackers_of
from fedhp.record.tensors import Arrays, read_buffer, tensor_parts
from fedhp.rounds.context import PlanningContext
from fedhp.rounds.planner import Planner
from fedhp.types import Evaluation, FloatArray


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
