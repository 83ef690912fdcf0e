"""The fast path for small dense models: one batched SGD step for many workers at once.

Workers are sorted by their steps; the active prefix shrinks as they finish. The step is
written out by hand (softmax cross-entropy through ReLU layers). Activations are feature-major
[A, features, batch]: with few classes these products are twice as fast as the usual order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedhp.learn.local import (
    VARIANCE_BATCHES,
    Estimate,
    Samples,
    check,
    sample_variance,
)
from fedhp.learn.params import Layout, Slot
from fedhp.learn.task import Classification, Task

# A chunk's weights should stay near the core: measured, up to 6 MB of them cost the same per
# worker, 12 MB half as much again; beyond 32 workers there is nothing left to win against Python.
CHUNK_BYTES = 6 << 20
CHUNK_WORKERS = 32
GPU_CHUNK_WORKERS = 4096


@dataclass(frozen=True, slots=True)
class DenseStack:
    """Where the weights and biases of a dense ReLU network live in a row, layer by layer."""

    layers: tuple[tuple[Slot, Slot], ...]

    def chunk(self, device: torch.device) -> int:
        """How many workers to stack; a function of the model only, so that results are too."""
        if device.type != "cpu":
            return GPU_CHUNK_WORKERS
        width = self.layers[-1][1].stop
        return max(4, min(CHUNK_WORKERS, CHUNK_BYTES // (4 * width)))

    def train(
        self,
        rows: Tensor,
        places: list[int],
        samples: Samples,
        *,
        batches: list[Tensor],
        rates: Tensor,
        stop: Callable[[], bool],
    ) -> Tensor:
        """SGD in place on rows[places]: batches[i] is [steps_i, batch], rates [A]. Mean losses."""
        steps = torch.tensor([len(each) for each in batches])
        order = torch.argsort(steps, descending=True, stable=True)
        steps = steps[order]
        chosen = torch.tensor(places)[order].to(rows.device)
        weights = [_take(rows, chosen, slot) for slot, _ in self.layers]
        biases = [_take(rows, chosen, slot).unsqueeze(2) for _, slot in self.layers]
        picks = nn.utils.rnn.pad_sequence([batches[i] for i in order.tolist()])
        targets = samples.targets[picks].unsqueeze(2)
        images = samples.inputs.flatten(1)
        total = torch.zeros(len(places), 1, device=rows.device)
        scale = (-rates[order] / picks.shape[2]).view(-1, 1, 1).to(rows)
        active = torch.searchsorted(-steps, -torch.arange(len(picks))).tolist()
        size = picks.shape[2]
        # One place for all batches: fresh memory of this size costs more than filling it.
        room = torch.empty(len(places) * size, images.shape[1], device=images.device)
        for step, count in enumerate(active):
            check(stop)
            # index_select copies whole rows: twice as fast as indexing with a matrix.
            flat = torch.index_select(
                images, 0, picks[step, :count].reshape(-1), out=room[: count * size]
            )
            inputs = flat.view(count, size, -1)
            layers = [(w[:count], b[:count]) for w, b in zip(weights, biases, strict=True)]
            activations, logs, error = _forward(inputs, targets[step, :count], layers)
            total[:count] -= logs.sum(dim=2)
            error *= scale[:count]
            for index, part, below in _backward(error, activations, layers):
                weight, bias = layers[index]
                weight.baddbmm_(part, below)
                bias += part.sum(dim=2, keepdim=True)
        for slots, *tensors in zip(self.layers, weights, biases, strict=True):
            for slot, tensor in zip(slots, tensors, strict=True):
                rows[chosen, slot.start : slot.stop] = tensor.reshape(len(places), -1)
        losses = torch.empty(len(places), device=rows.device)
        losses[order] = total.squeeze(1) / (steps * picks.shape[2]).to(total)
        return losses

    def estimate(
        self, before: Tensor, after: Tensor, samples: Samples, *, probe: Tensor
    ) -> list[Estimate]:
        """The estimators of learn/local.estimate for all workers; probe is [A, batches, batch]."""
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

    def _gradients(self, rows: Tensor, samples: Samples, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients [A, D] and mean losses [A] of all models on their batches [A, b]."""
        layers = self._layers(rows)
        inputs = samples.inputs[batch].flatten(2)
        targets = samples.targets[batch].unsqueeze(1)
        activations, logs, error = _forward(inputs, targets, layers)
        found = torch.empty_like(rows)
        for index, part, below in _backward(error / batch.shape[1], activations, layers):
            weight, bias = self.layers[index]
            found[:, weight.start : weight.stop] = torch.bmm(part, below).flatten(1)
            found[:, bias.start : bias.stop] = part.sum(dim=2)
        return found, -logs.mean(dim=(1, 2))

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
    if len(slots) != 2 * len(names) or layout.trainable != layout.width:
        return None
    return DenseStack(tuple((slots[f"{n}.weight"], slots[f"{n}.bias"]) for n in names))


def _take(rows: Tensor, chosen: Tensor, slot: Slot) -> Tensor:
    return rows[chosen, slot.start : slot.stop].view(len(chosen), *slot.shape)


def _forward(
    inputs: Tensor, targets: Tensor, layers: list[tuple[Tensor, Tensor]]
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Inputs of every layer, log-likelihoods [A, 1, batch], and batch times the gradient at the
    outputs. inputs are [A, batch, features], targets [A, 1, batch]."""
    activations = [inputs.transpose(1, 2)]
    for index, (weight, bias) in enumerate(layers):
        output = torch.baddbmm(bias, weight, activations[-1])
        activations.append(output.relu_() if index + 1 < len(layers) else output)
    logs = torch.log_softmax(activations.pop(), dim=1)
    likelihood = logs.gather(1, targets)
    error = logs.exp_()
    error.scatter_add_(1, targets, error.new_full((), -1.0).expand_as(targets))
    return activations, likelihood, error


def _backward(
    error: Tensor, activations: list[Tensor], layers: list[tuple[Tensor, Tensor]]
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Per layer, from the top: (index, error at its output, its input, batch-major).

    The error below is computed first, so the caller may change the weights in place.
    """
    for index in reversed(range(len(layers))):
        below = activations[index]
        passed = error
        if index:
            passed = torch.bmm(layers[index][0].transpose(1, 2), error)
            passed *= below > 0
        yield index, error, below.transpose(1, 2)
        error = passed
