"""Local SGD on one worker: x <- x - eta * grad F(x), Eq. (3), and its two estimators.

Algorithm 1, lines 3-5: the local steps, the smoothness L_i and the gradient variance. Steps of
another kind are in optimizer.py; the estimators are those of the plain loss with all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhp.errors import Interrupted
from fedhp.learn.optimizer import PLAIN_SGD, LocalSteps, Optimizer
from fedhp.learn.params import Replica
from fedhp.learn.task import Task, smoothed_loss

VARIANCE_BATCHES = 3
Steer: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # gradients [n, D], rows [n, width] -> [n, D]


def check(stop: Callable[[], bool]) -> None:
    """Give up the round if the user wants to stop; called so often that Ctrl-C acts at once."""
    if stop():
        raise Interrupted("stopped by the user")


@dataclass(frozen=True, slots=True)
class Samples:
    """Inputs and targets on the device."""

    inputs: Tensor
    targets: Tensor

    @classmethod
    def on(
        cls,
        inputs: NDArray[np.float32] | NDArray[np.int64],
        targets: NDArray[np.int64] | NDArray[np.float32],
        device: torch.device,
    ) -> Samples:
        """Copies on a device: the arrays are read-only and shared between runs."""
        return cls(
            torch.from_numpy(np.array(inputs)).to(device),
            torch.from_numpy(np.array(targets)).to(device),
        )

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """These samples, [b, ...] each."""
        return self.inputs.index_select(0, indices), self.targets.index_select(0, indices)


def train(
    replica: Replica,
    task: Task,
    samples: Samples,
    *,
    batches: Iterable[Tensor],
    learning_rate: float,
    stop: Callable[[], bool],
    optimizer: Optimizer = PLAIN_SGD,
    augment: Callable[[Tensor], Tensor] | None = None,
    label_smoothing: float = 0.0,
    steer: Steer | None = None,
) -> float:
    """One step per batch, in place; the mean loss (NaN if there is none). batches may be a
    tensor [steps, batch], or draw them one by one. What the optimizer keeps is in the row.

    augment changes the inputs of a step; label_smoothing is that of cross-entropy; steer gives
    another gradient.
    """
    replica.module.train()
    loss_of = smoothed_loss(label_smoothing) if label_smoothing else task.loss
    weights = [tensor.data for tensor in replica.trained]
    moving = None if optimizer.is_plain else LocalSteps(optimizer, replica, learning_rate)
    total, steps = torch.zeros((), device=samples.inputs.device), 0
    for batch in batches:
        check(stop)
        inputs, targets = samples.take(batch)
        if augment is not None:
            inputs = augment(inputs)
        loss = loss_of(replica.forward(inputs), targets)
        torch.autograd.backward(loss)
        total += loss.detach()
        if steer is not None:
            steered = steer(replica.gradient()[None], replica.row[None])[0]
            for tensor, view in zip(replica.trained, replica.views(steered), strict=True):
                tensor.grad = view
        gradients = [tensor.grad for tensor in replica.trained]
        if moving is not None:
            moving.take()
        elif any(gradient is None for gradient in gradients):  # a parameter the loss does not reach
            used = [(w, g) for w, g in zip(weights, gradients, strict=True) if g is not None]
            torch._foreach_add_([w for w, _ in used], [g for _, g in used], alpha=-learning_rate)
        else:
            torch._foreach_add_(weights, gradients, alpha=-learning_rate)  # type: ignore[arg-type]
        replica.clear()
        steps += 1
    return float(total) / steps if steps else float("nan")


class Estimate(NamedTuple):
    """What one worker measured of its objective."""

    smoothness: float
    gradient_variance: float
    start_loss: float


def estimate(
    replica: Replica,
    task: Task,
    samples: Samples,
    *,
    before: tuple[Tensor, Tensor],
    after: tuple[Tensor, Tensor],
    probe: Tensor,
    stop: Callable[[], bool],
) -> Estimate:
    """Smoothness between the two points on one probe batch, and gradient variance at `before`.

    before and after are (row, counters); they are copied, so that running statistics do
    not change. probe is [timing.PROBE_BATCHES, batch]; its first minibatches give the variance as
    well, so that the whole costs twice the probe and no more.
    """
    trainable = replica.layout.trainable

    def gradient(point: tuple[Tensor, Tensor], indices: Tensor) -> tuple[Tensor, float]:
        check(stop)
        replica.bind(point[0].clone(), point[1].clone())
        replica.module.train()
        inputs, targets = samples.take(indices)
        loss = task.loss(replica.forward(inputs), targets)
        torch.autograd.backward(loss)
        vector = replica.gradient()
        replica.clear()
        return vector, float(loss.detach())

    share = len(probe) - VARIANCE_BATCHES
    pieces = [*probe[:VARIANCE_BATCHES], probe[VARIANCE_BATCHES:].reshape(-1)]

    def whole(point: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, float]:
        """Gradients of the small pieces, of the whole probe, and its loss."""
        *minis, (rest, rest_loss) = [gradient(point, piece) for piece in pieces]
        small = torch.stack([vector for vector, _ in minis])
        loss = (sum(mini_loss for _, mini_loss in minis) + share * rest_loss) / len(probe)
        return small, (small.sum(dim=0) + share * rest) / len(probe), loss

    gradients, at_start, start_loss = whole(before)
    _, at_end, _ = whole(after)  # by the same pieces: BatchNorm looks at a piece at a time
    moved = torch.linalg.vector_norm(after[0][:trainable] - before[0][:trainable])
    bent = torch.linalg.vector_norm(at_end - at_start)
    return Estimate(
        smoothness=float(bent) / max(float(moved), 1e-8),
        gradient_variance=sample_variance(gradients),
        start_loss=start_loss,
    )


def sample_variance(gradients: Tensor) -> float:
    """Unbiased estimate of E||g - E g||^2 from gradients [k, d], k >= 2."""
    spread = gradients - gradients.mean(dim=0)
    return float(spread.double().pow(2).sum() / (len(gradients) - 1))
