"""Testing models on a fixed part of the test set, and scoring peers' models."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedhp.learn.local import Samples, check
from fedhp.learn.params import Replica
from fedhp.learn.task import Classification, Task
from fedhp.seeds import Purpose, generator
from fedhp.types import Dataset, FloatArray, IntArray

BATCH = 128  # measured: the best per image for the paper's CNN in the blocked layout


@dataclass(frozen=True, slots=True)
class ModelScore:
    """What one model's test gave."""

    metric: float
    loss: float  # NaN where the task's loss does not apply to test outputs
    by_class: FloatArray | None = None  # [classes] accuracy; NaN: no test sample of the class
    own_metric: float = math.nan  # on the samples that the worker held back


def choose_images(dataset: Dataset, *, images: int | None, choose: str) -> IntArray:
    """Indices of the test images to use; stratified: each class in its share, in order."""
    total = len(dataset.test_inputs)
    if images is None or images >= total:
        return np.arange(total)
    if choose == "first" or dataset.classes is None:
        return np.arange(images)
    targets = dataset.test_targets
    order = np.argsort(targets, kind="stable")
    # The k-th image of a class of n has the order key (k + 1/2) / n, so that any prefix is
    # balanced.
    counts = np.bincount(targets.astype(np.int64), minlength=dataset.classes)
    rank = np.concatenate([np.arange(n) for n in counts])
    key = (rank + 0.5) / np.repeat(counts, counts)
    return np.sort(order[np.argsort(key, kind="stable")[:images]])


def hold_back(
    parts: list[IntArray], *, share: float, seed: int
) -> tuple[list[IntArray], list[IntArray]]:
    """Split every worker's samples into those it trains on and those it is tested on.

    A worker with a single sample holds back none; without a share nothing is held back.
    """
    if not share:
        return parts, []
    trained, held_back = [], []
    for worker, part in enumerate(parts):
        count = min(max(1, round(share * len(part))), len(part) - 1)
        order = generator(seed, Purpose.OWN_TEST, worker).permutation(len(part))
        held_back.append(np.sort(part[order[:count]]))
        trained.append(np.sort(part[order[count:]]))
    return trained, held_back


def score_outputs(
    task: Task, outputs: Tensor, targets: Tensor, *, per_class: bool = False
) -> ModelScore:
    """Metric and loss of a model's outputs on all test samples; the accuracy by class if asked."""
    by_class = class_accuracy(outputs, targets) if per_class else None
    return ModelScore(task.metric(outputs, targets), _test_loss(task, outputs, targets), by_class)


def class_accuracy(outputs: Tensor, targets: Tensor) -> FloatArray:
    """The share of right answers among the samples of every class; NaN without samples."""
    classes = outputs.shape[1]
    right = targets[outputs.argmax(dim=1) == targets]
    hits = torch.bincount(right, minlength=classes).double()
    return np.asarray((hits / torch.bincount(targets, minlength=classes)).cpu().numpy())


def _test_loss(task: Task, outputs: Tensor, targets: Tensor) -> float:
    if type(task) is Classification:
        # Cross-entropy at a fifth of the cost of torch's own on this many samples.
        right = outputs.gather(1, targets.unsqueeze(1)).squeeze(1)
        return float((outputs.logsumexp(dim=1) - right).mean())
    try:
        return float(task.loss(outputs, targets))
    except Exception:  # a user's loss may only be meant for what the model returns in training
        return math.nan


def score(
    replica: Replica,
    task: Task,
    test: Samples,
    *,
    stop: Callable[[], bool],
    per_class: bool = False,
) -> ModelScore:
    """Metric and loss of the bound model."""
    replica.module.eval()
    outputs = []
    with torch.inference_mode():
        for batch in torch.split(test.inputs, BATCH):
            check(stop)
            outputs.append(replica.forward(batch))
        return score_outputs(task, torch.cat(outputs), test.targets, per_class=per_class)


def score_peers(
    replica: Replica,
    task: Task,
    samples: Samples,
    *,
    candidates: IntArray,
    own_samples: Sequence[Tensor],
    bind: Callable[[int, int], None],
    stop: Callable[[], bool],
) -> FloatArray:
    """The loss of every candidate [n, M] on the scoring worker's own samples; inf where none.

    bind(peer, row) points the replica at a peer's model as the worker of that row sees it.
    """
    losses = np.full(candidates.shape, np.inf)
    flat, columns = candidates.ravel(), candidates.shape[1]
    order = np.argsort(flat, kind="stable")
    for entry in order[np.searchsorted(flat[order], 0) :].tolist():
        check(stop)
        row, column = divmod(entry, columns)
        bind(int(flat[entry]), row)
        replica.module.eval()
        inputs, targets = samples.take(own_samples[row])
        with torch.inference_mode():
            loss = task.loss(replica.forward(inputs), targets)
        losses[row, column] = float(loss)
    return losses
