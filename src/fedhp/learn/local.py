"""Local SGD on one worker: x <- x - eta * grad F(x), Eq. (3), and its two estimators.

Algorithm 1, lines 3-5: the local steps, the smoothness L_i and the gradient variance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedhp.errors import Interrupted
from fedhp.learn.params import Replica
from fedhp.learn.task import Task

PROBE_BATCHES = 8
VARIANCE_BATCHES = 3


def check(stop: Callable[[], bool]) -> None:
    """Give the round up if asked to; called often enough for Ctrl-C to take a moment only."""
    if stop():
        raise Interrupted("asked to stop")


@dataclass(frozen=True, slots=True)
class Samples:
    """All training data on the device."""

    inputs: Tensor
    targets: Tensor


def train(
    replica: Replica,
    task: Task,
    samples: Samples,
    *,
    batches: Tensor,
    learning_rate: float,
    stop: Callable[[], bool],
) -> float:
    """One SGD step per row of batches [steps, batch], in place; the mean loss (NaN if none)."""
    module = replica.module
    module.train()
    weights = [tensor.data for tensor in replica.trained]
    total = torch.zeros((), device=samples.inputs.device)
    for batch in batches:
        check(stop)
        loss = task.loss(module(samples.inputs[batch]), samples.targets[batch])
        torch.autograd.backward(loss)
        total += loss.detach()
        gradients = [tensor.grad for tensor in replica.trained]
        if any(gradient is None for gradient in gradients):  # a parameter the loss does not reach
            used = [(w, g) for w, g in zip(weights, gradients, strict=True) if g is not None]
            torch._foreach_add_([w for w, _ in used], [g for _, g in used], alpha=-learning_rate)
        else:
            torch._foreach_add_(weights, gradients, alpha=-learning_rate)  # type: ignore[arg-type]
        replica.clear()
    return float(total) / len(batches) if len(batches) else float("nan")


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one worker found out about its objective."""

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

    before and after are (row, counters); they are copied, so running statistics stay as
    they were. probe is [PROBE_BATCHES, batch].
    """
    trainable = replica.layout.trainable

    def gradient(point: tuple[Tensor, Tensor], indices: Tensor) -> tuple[Tensor, float]:
        check(stop)
        replica.bind(point[0].clone(), point[1].clone())
        replica.module.train()
        loss = task.loss(replica.module(samples.inputs[indices]), samples.targets[indices])
        torch.autograd.backward(loss)
        found = replica.gradient()
        replica.clear()
        return found, float(loss.detach())

    whole = probe.reshape(-1)
    at_start, start_loss = gradient(before, whole)
    at_end, _ = gradient(after, whole)
    moved = torch.linalg.vector_norm(after[0][:trainable] - before[0][:trainable])
    bent = torch.linalg.vector_norm(at_end - at_start)
    minis = torch.stack([gradient(before, batch)[0] for batch in probe[:VARIANCE_BATCHES]])
    return Estimate(
        smoothness=float(bent) / max(float(moved), 1e-8),
        gradient_variance=sample_variance(minis),
        start_loss=start_loss,
    )


def sample_variance(gradients: Tensor) -> float:
    """Unbiased estimate of E||g - E g||^2 from gradients [k, d], k >= 2."""
    spread = gradients - gradients.mean(dim=0)
    return float(spread.double().pow(2).sum() / (len(gradients) - 1))
