"""The fast path for small dense models: one batched SGD step for many workers at once.

Workers are sorted by their steps; the active prefix shrinks as they finish. The step is
written out by hand (softmax cross-entropy through ReLU layers). Activations are feature-major
[A, features, batch]: with few classes these products are twice as fast as the usual order.
The loop over steps runs outside the interpreter, so that threads do not wait for its lock.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from fedhp.learn.local import (
    VARIANCE_BATCHES,
    Estimate,
    Samples,
    Steer,
    check,
    sample_variance,
)
from fedhp.learn.optimizer import PLAIN_SGD, Optimizer
from fedhp.learn.params import Layout, Slot
from fedhp.learn.task import Classification, Task

# A chunk's weights should stay near the core: measured, up to 6 MB of them cost the same per
# worker, 12 MB half as much again. 16 workers, so that the paper's 30 keep two threads busy.
CHUNK_BYTES = 6 << 20
MOVING_CHUNK_BYTES = 13 << 19  # of weights and velocities: 8 workers with 784-128-10 weights
CHUNK_WORKERS = 16
GPU_CHUNK_WORKERS = 4096


@dataclass(frozen=True, slots=True)
class DenseStack:
    """Where the weights and biases of a dense ReLU network live in a row, layer by layer."""

    layers: tuple[tuple[Slot, Slot], ...]

    def chunk(self, device: torch.device, *, velocities: bool = False) -> int:
        """How many workers to stack, with velocities or without; a function of the model only, so
        that results are too."""
        if device.type != "cpu":
            return GPU_CHUNK_WORKERS
        row = 4 * self.layers[-1][1].stop
        fitting = MOVING_CHUNK_BYTES // (2 * row) if velocities else CHUNK_BYTES // row
        return max(4, min(CHUNK_WORKERS, fitting))

    def train(
        self,
        rows: Tensor,
        chosen: list[int],
        samples: Samples,
        *,
        batches: list[Tensor],
        rates: Tensor,
        stop: Callable[[], bool],
        optimizer: Optimizer = PLAIN_SGD,
        velocity: int = 0,
        label_smoothing: float = 0.0,
        steer: Steer | None = None,
    ) -> Tensor:
        """SGD in place on rows[chosen]: batches[i] is [steps_i, batch], rates [A]. Mean losses.

        With momentum the columns from `velocity` on are the velocities, which change as in
        learn/optimizer. steer gives other gradients of the chosen rows, most steps first.
        """
        check(stop)
        lengths = np.array([len(batch) for batch in batches])
        order = np.argsort(-lengths, kind="stable").tolist()
        steps = lengths[order].tolist()
        picks = nn.utils.rnn.pad_sequence([batches[index] for index in order])
        active = np.searchsorted(-lengths[order], -np.arange(len(picks))).tolist()
        slots = [slot for layer in self.layers for slot in layer]
        ordered = torch.tensor([chosen[index] for index in order], device=rows.device)
        arguments = (
            ordered,
            [(slot.start, slot.stop) for slot in slots],
            [slot.shape if len(slot.shape) == 2 else (*slot.shape, 1) for slot in slots],
            samples.inputs.flatten(1),
            samples.targets,
            picks,
            rates[order].to(rows),
            active,
            label_smoothing,
        )
        decay = optimizer.weight_decay
        if steer is not None:
            taken = rows.index_select(0, ordered)
            total = picks.shape[2] * self._steered(taken, samples, *arguments[5:], decay, steer)
            rows.index_copy_(0, ordered, taken)
        elif not optimizer.momentum:
            total = _compiled(_train)(rows, decay, *arguments)
        else:
            kind = (velocity, optimizer.momentum, optimizer.nesterov, decay)
            total = _compiled(_train_with_momentum)(rows, *kind, *arguments)
        losses = torch.empty_like(total)
        losses[order] = total / (torch.tensor(steps) * picks.shape[2]).to(total)
        return losses

    def _steered(
        self,
        rows: Tensor,
        samples: Samples,
        picks: Tensor,
        rates: Tensor,
        active: list[int],
        smoothing: float,
        decay: float,
        steer: Steer,
    ) -> Tensor:
        """Plain steps in place, step k of the first active[k] rows, with the gradients that `steer`
        makes of the true ones. Returns the sums of mean losses."""
        total = torch.zeros(len(rows), device=rows.device)
        for picked, count in zip(picks, active, strict=True):
            now = rows[:count]
            weights = now[:, : self.layers[-1][1].stop]
            gradients, losses = self._gradients(weights, samples, picked[:count], smoothing)
            total[:count] += losses
            gradients = steer(gradients, now)
            if decay > 0:
                gradients = gradients + decay * weights
            weights -= rates[:count, None] * gradients
        return total

    def estimate(
        self, before: Tensor, after: Tensor, samples: Samples, *, probe: Tensor
    ) -> list[Estimate]:
        """The estimators of learn/local.estimate for all workers; probe is [A, batches, batch].
        before and after are the trained columns alone."""
        share = probe.shape[1] - VARIANCE_BATCHES
        minis, losses = zip(
            *(self._gradients(before, samples, probe[:, k]) for k in range(VARIANCE_BATCHES)),
            strict=True,
        )
        rest, rest_loss = self._gradients(before, samples, probe[:, VARIANCE_BATCHES:].flatten(1))
        at_start = (sum(minis) + share * rest) / probe.shape[1]
        start_loss = (sum(losses) + share * rest_loss) / probe.shape[1]
        at_end, _ = self._gradients(after, samples, probe.flatten(1))
        moved = torch.linalg.vector_norm(after - before, dim=1).clamp(min=1e-8)
        bent = torch.linalg.vector_norm(at_end - at_start, dim=1)
        return [
            Estimate(float(bend) / float(move), sample_variance(mini), float(loss))
            for bend, move, mini, loss in zip(
                bent, moved, torch.stack(minis, dim=1), start_loss, strict=True
            )
        ]

    def _gradients(
        self, rows: Tensor, samples: Samples, batch: Tensor, smoothing: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Gradients [A, D] and mean losses [A] of all models on their batches [A, b]."""
        layers = self._layers(rows)
        inputs = samples.inputs[batch].flatten(2)
        targets = samples.targets[batch].unsqueeze(1)
        weights, biases = [w for w, _ in layers], [b for _, b in layers]
        activations, logs, error = _forward(
            inputs.transpose(1, 2), targets, weights, biases, smoothing
        )
        error /= batch.shape[1]
        gradients = torch.empty_like(rows)
        for index in reversed(range(len(layers))):
            weight, bias = self.layers[index]
            below = activations[index]
            product = torch.bmm(error, below.transpose(1, 2))
            gradients[:, weight.start : weight.stop] = product.flatten(1)
            gradients[:, bias.start : bias.stop] = error.sum(dim=2)
            if index:
                error = _below(weights[index], error, below)
        return gradients, -logs.mean(dim=(1, 2))

    def outputs(self, rows: Tensor, inputs: Tensor) -> Tensor:
        """The outputs of all models [A, D] on the same inputs, [A, n, classes]."""
        hidden = inputs.flatten(1).t().expand(len(rows), -1, -1)
        for index, (weight, bias) in enumerate(self._layers(rows)):
            hidden = torch.baddbmm(bias, weight, hidden)
            if index + 1 < len(self.layers):
                hidden = hidden.relu_()
        return hidden.transpose(1, 2)

    def _layers(self, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
        everyone = torch.arange(len(rows), device=rows.device)
        return [
            (_take(rows, everyone, weight), _take(rows, everyone, bias).unsqueeze(2))
            for weight, bias in self.layers
        ]


def dense_stack(task: Task, module: nn.Module, layout: Layout) -> DenseStack | None:
    """The fast path, where it fits: classification by a Sequential of Flatten, Linear, ReLU."""
    if type(task) is not Classification or type(module) is not nn.Sequential:
        return None
    names, expected = [], [nn.Flatten, nn.Linear]
    for name, child in module.named_children():
        if type(child) not in expected:
            return None
        if isinstance(child, nn.Linear):
            if child.bias is None:
                return None
            names.append(name)
        expected = [nn.ReLU] if isinstance(child, nn.Linear) else [nn.Linear]
    if expected != [nn.ReLU]:  # ends in something other than a Linear
        return None
    slots = {slot.name: slot for slot in layout.slots}
    carried = sum(slot.stop - slot.start for slot in layout.carried)
    if len(slots) != 2 * len(names) or layout.trainable + carried != layout.width:
        return None
    return DenseStack(tuple((slots[f"{n}.weight"], slots[f"{n}.bias"]) for n in names))


def _take(rows: Tensor, chosen: Tensor, slot: Slot) -> Tensor:
    return rows[chosen, slot.start : slot.stop].view(len(chosen), *slot.shape)


def _train(
    rows: Tensor,
    decay: float,
    chosen: Tensor,
    spans: list[tuple[int, int]],
    shapes: list[tuple[int, int]],
    images: Tensor,
    labels: Tensor,
    picks: Tensor,
    rates: Tensor,
    active: list[int],
    smoothing: float,
) -> Tensor:
    """DenseStack.train: step k for the first active[k] workers. Returns the sums of losses."""
    layers: list[Tensor] = []
    for span, shape in zip(spans, shapes):  # noqa: B905 - the compiler knows no `strict`
        layers.append(rows[:, span[0] : span[1]].index_select(0, chosen).view(-1, *shape))
    weights, biases = layers[0::2], layers[1::2]
    targets = labels[picks].unsqueeze(2)
    total = torch.zeros([len(chosen), 1], device=rows.device)
    scale = (-rates / picks.shape[2]).view(-1, 1, 1)
    kept = (1 - decay * rates).view(-1, 1, 1)
    size = picks.shape[2]
    # One buffer for all batches: new memory of this size costs more than filling it.
    buffer = torch.empty([weights[0].shape[0] * size, images.shape[1]], device=images.device)
    for step, count in enumerate(active):
        # index_select copies whole rows: twice as fast as indexing with a matrix.
        flat = buffer[: count * size]
        torch.index_select(images, 0, picks[step, :count].reshape(-1), out=flat)
        now = [weight[:count] for weight in weights]
        shift = [bias[:count] for bias in biases]
        inputs = flat.view(count, size, -1).transpose(1, 2)
        activations, logs, error = _forward(inputs, targets[step, :count], now, shift, smoothing)
        total[:count] -= logs.sum(dim=2)
        error *= scale[:count]
        for above in range(len(now)):
            index = len(now) - 1 - above
            below = activations[index]
            # The error below is computed before the weights change.
            passed = _below(now[index], error, below) if index > 0 else error
            if decay > 0:
                now[index] *= kept[:count]
                shift[index] *= kept[:count]
            now[index].baddbmm_(error, below.transpose(1, 2))
            shift[index] += error.sum(dim=2, keepdim=True)
            error = passed
    for span, layer in zip(spans, layers):  # noqa: B905
        rows[:, span[0] : span[1]].index_copy_(0, chosen, layer.flatten(1))
    return total.squeeze(1)


def _train_with_momentum(
    rows: Tensor,
    velocity: int,
    momentum: float,
    nesterov: bool,
    decay: float,
    chosen: Tensor,
    spans: list[tuple[int, int]],
    shapes: list[tuple[int, int]],
    images: Tensor,
    labels: Tensor,
    picks: Tensor,
    rates: Tensor,
    active: list[int],
    smoothing: float,
) -> Tensor:
    """`_train` with v = momentum v + gradient, x -= rate v; the gradient has the decay in it, and
    Nesterov's x -= rate (gradient + momentum v)."""
    layers: list[Tensor] = []
    moving: list[Tensor] = []
    for span, shape in zip(spans, shapes):  # noqa: B905 - the compiler knows no `strict`
        layers.append(rows[:, span[0] : span[1]].index_select(0, chosen).view(-1, *shape))
        speeds = rows[:, velocity + span[0] : velocity + span[1]]
        moving.append(speeds.index_select(0, chosen).view(-1, *shape))
    targets = labels[picks].unsqueeze(2)
    total = torch.zeros([len(chosen), 1], device=rows.device)
    size = picks.shape[2]
    factors = (-rates).view(-1, 1, 1)
    buffer = torch.empty([layers[0].shape[0] * size, images.shape[1]], device=images.device)
    for step, count in enumerate(active):
        flat = buffer[: count * size]
        torch.index_select(images, 0, picks[step, :count].reshape(-1), out=flat)
        now = [layer[:count] for layer in layers]
        weights, biases = now[0::2], now[1::2]
        inputs = flat.view(count, size, -1).transpose(1, 2)
        activations, logs, error = _forward(
            inputs, targets[step, :count], weights, biases, smoothing
        )
        total[:count] -= logs.sum(dim=2)
        error /= size
        for above in range(len(weights)):
            index = len(weights) - 1 - above
            below = activations[index]
            # The error below is computed before the weights change.
            passed = _below(weights[index], error, below) if index > 0 else error
            layer, bias = now[2 * index], now[2 * index + 1]
            speed, bias_speed = moving[2 * index][:count], moving[2 * index + 1][:count]
            slope = error.sum(dim=2, keepdim=True)
            if decay > 0:
                slope.add_(bias, alpha=decay)
            bias_speed.mul_(momentum).add_(slope)
            if nesterov:
                bias.addcmul_(slope.add_(bias_speed, alpha=momentum), factors[:count])
                slope = torch.bmm(error, below.transpose(1, 2)).add_(layer, alpha=decay)
                speed.mul_(momentum).add_(slope)
                layer.addcmul_(slope.add_(speed, alpha=momentum), factors[:count])
            else:
                bias.addcmul_(bias_speed, factors[:count])
                speed.baddbmm_(error, below.transpose(1, 2), beta=momentum)
                if decay > 0:
                    speed.add_(layer, alpha=decay)
                layer.addcmul_(speed, factors[:count])
            error = passed
    for span, layer, part in zip(spans, layers, moving):  # noqa: B905
        rows[:, span[0] : span[1]].index_copy_(0, chosen, layer.flatten(1))
        rows[:, velocity + span[0] : velocity + span[1]].index_copy_(0, chosen, part.flatten(1))
    return total.squeeze(1)


def _forward(
    inputs: Tensor,
    targets: Tensor,
    weights: list[Tensor],
    biases: list[Tensor],
    smoothing: float = 0.0,
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Inputs of every layer, log-likelihoods [A, 1, batch], and batch times the gradient at the
    outputs. inputs are [A, features, batch], targets [A, 1, batch]. With smoothing, this share of
    a target is spread over all classes."""
    activations = [inputs]
    for index in range(len(weights)):
        output = torch.baddbmm(biases[index], weights[index], activations[-1])
        activations.append(output.relu_() if index + 1 < len(weights) else output)
    logs = torch.log_softmax(activations.pop(), dim=1)
    likelihood = logs.gather(1, targets)
    if smoothing > 0:
        spread = logs.mean(dim=1, keepdim=True)
        likelihood = (1.0 - smoothing) * likelihood + smoothing * spread
    error = logs.exp_()
    error.scatter_add_(1, targets, torch.full_like(likelihood, smoothing - 1.0))
    if smoothing > 0:
        error -= smoothing / error.shape[1]
    return activations, likelihood, error


def _below(weight: Tensor, error: Tensor, activation: Tensor) -> Tensor:
    """The error at a layer's inputs, which came out of a ReLU."""
    return torch.bmm(weight.transpose(1, 2), error).mul_(activation > 0)


@functools.cache
def _compiled(train: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A training loop, compiled if this torch can: the same kernels in the same order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is an old part of torch
        try:
            script = torch.jit.script(train)
        except (RuntimeError, AttributeError, OSError):  # OSError: the source is missing
            return train

    def run(*arguments: object) -> Tensor:
        # Its optimizer gains nothing here, and would cost the first rounds a tenth of a second.
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            return cast(Tensor, script(*arguments))

    return run
