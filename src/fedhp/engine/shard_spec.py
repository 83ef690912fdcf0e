"""What a shard is given: its workers, their samples, and how to train them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from fedhp.engine.prepare import Prepared
from fedhp.learn.evaluate import choose_images
from fedhp.learn.params import Layout
from fedhp.learn.task import Classification, Task
from fedhp.types import Dataset, IntArray


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """A share of an experiment; it can be sent to another process."""

    seed: int
    workers: IntArray  # [n] numbers of the shard's workers, rising
    parts: list[IntArray]  # [n] of them, indices into the data set's training samples
    dataset: Dataset  # training samples of these workers, all test samples
    test: IntArray  # which of the test samples are used during the run
    task: Task
    layout: Layout
    stochastic: bool
    batch_size: int
    kernel: str  # training.kernel
    device: torch.device
    executors: int
    overlap: bool  # tests may run on a thread of their own beside the next round
    scratch: Path | None  # models are memory-mapped in this folder


def shard_spec_of(
    prepared: Prepared, workers: IntArray | None = None, *, scratch: Path | None = None
) -> ShardSpec:
    """The share of these workers, or the whole."""
    experiment, dataset = prepared.experiment, prepared.dataset
    chosen = choose_images(
        dataset, images=experiment.evaluation.images, choose=experiment.evaluation.choose
    )
    parts, task = prepared.parts, prepared.task
    if workers is None:
        workers = np.arange(experiment.workers)
    else:
        parts, dataset = _own(dataset, [parts[worker] for worker in workers.tolist()])
        if type(task) is Classification:
            task = task.with_data(dataset)
    return ShardSpec(
        seed=experiment.seed,
        workers=workers,
        parts=parts,
        dataset=dataset,
        test=chosen,
        task=task,
        layout=prepared.layout,
        stochastic=prepared.facts.stochastic,
        batch_size=experiment.training.batch_size,
        kernel=experiment.training.kernel,
        device=prepared.device,
        executors=prepared.executors,
        overlap=prepared.overlap,
        scratch=scratch,
    )


def _own(dataset: Dataset, parts: list[IntArray]) -> tuple[list[IntArray], Dataset]:
    """Only the samples of these parts, and the parts as indices into them."""
    used = np.unique(np.concatenate(parts))
    reduced = replace(
        dataset, train_inputs=dataset.train_inputs[used], train_targets=dataset.train_targets[used]
    )
    return [np.searchsorted(used, part).astype(np.int64) for part in parts], reduced
