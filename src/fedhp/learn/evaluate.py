"""Testing models on a fixed part of the test set: each worker's, and their mean."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedhp.learn.local import Samples, check
from fedhp.learn.params import Replica
from fedhp.learn.task import Task
from fedhp.types import Dataset, IntArray

BATCH = 500


def choose_images(dataset: Dataset, *, images: int | None, choose: str) -> IntArray:
    """Indices of the test images to use; stratified: each class in its share, in order."""
    total = len(dataset.test_inputs)
    if images is None or images >= total:
        return np.arange(total)
    if choose == "first" or dataset.classes is None:
        return np.arange(images)
    targets = dataset.test_targets
    order = np.argsort(targets, kind="stable")
    # The k-th image of a class of n stands at (k + 1/2) / n; the smallest places come first,
    # so that any prefix is balanced.
    counts = np.bincount(targets.astype(np.int64), minlength=dataset.classes)
    rank = np.concatenate([np.arange(n) for n in counts])
    place = (rank + 0.5) / np.repeat(counts, counts)
    return np.sort(order[np.argsort(place, kind="stable")[:images]])


def score(replica: Replica, task: Task, test: Samples, *, stop: Callable[[], bool]) -> float:
    """The task's metric of the bound model."""
    replica.module.eval()
    outputs = []
    with torch.inference_mode():
        for batch in torch.split(test.inputs, BATCH):
            check(stop)
            outputs.append(replica.module(batch))
        return task.metric(torch.cat(outputs), test.targets)


def score_peers(
    replica: Replica,
    task: Task,
    samples: Samples,
    *,
    candidates: IntArray,
    own_samples: list[Tensor],
    bind: Callable[[int], None],
) -> torch.Tensor:
    """The loss of every candidate [N, M] on the scoring worker's own samples; inf where none."""
    losses = torch.full(candidates.shape, float("inf"), dtype=torch.float64)
    replica.module.eval()
    for peer in np.unique(candidates[candidates >= 0]).tolist():
        bind(peer)
        for worker, column in np.argwhere(candidates == peer).tolist():
            indices = own_samples[worker]
            with torch.inference_mode():
                output = replica.module(samples.inputs[indices])
                losses[worker, column] = float(task.loss(output, samples.targets[indices]))
    return losses
