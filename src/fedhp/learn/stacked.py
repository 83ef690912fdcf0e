"""The fast path for small dense models: one batched SGD step for all workers at once.

Workers are sorted by their steps; the active prefix shrinks as they finish. The step is
written out by hand (softmax cross-entropy through ReLU layers), so that a round of 30 small
models costs a few large products instead of thousands of small ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedhp.learn.local import VARIANCE_BATCHES, Estimate, Samples, check, sample_variance
from fedhp.learn.params import Layout, Slot
from fedhp.learn.task import Classification, Task


@dataclass(frozen=True, slots=True)
class DenseStack:
    """Where the weights and biases of a dense ReLU network live in a row, layer by layer."""

    layers: tuple[tuple[Slot, Slot], ...]

    def train(
        self,
        rows: Tensor,
        samples: Samples,
        *,
        batches: list[Tensor],
        rates: Tensor,
        stop: Callable[[], bool],
    ) -> Tensor:
        """SGD in place on rows [A, D]: batches[i] is [steps_i, batch], rates [A]. Mean losses."""
        steps = torch.tensor([len(each) for each in batches])
        order = torch.argsort(steps, descending=True, stable=True)
        steps = steps[order]
        weights = [_take(rows, order, slot) for slot, _ in self.layers]
        biases = [_take(rows, order, slot).unsqueeze(1) for _, slot in self.layers]
        picks = nn.utils.rnn.pad_sequence([batches[i] for i in order.tolist()])
        images = samples.inputs.flatten(1)
        total = torch.zeros(len(rows), device=rows.device)
        scale = (-rates[order] / picks.shape[2]).view(-1, 1, 1).to(rows)
        active = torch.searchsorted(-steps, -torch.arange(len(picks))).tolist()
        for step, count in enumerate(active):
            check(stop)
            batch = picks[step, :count]
            # index_select copies whole rows: twice as fast as indexing with a matrix.
            flat = batch.reshape(-1)
            inputs = images.index_select(0, flat).view(count, batch.shape[1], -1)
            targets = samples.targets.index_select(0, flat).view(count, batch.shape[1], 1)
            layers = [(w[:count], b[:count]) for w, b in zip(weights, biases, strict=True)]
            total[:count] += _step(inputs, targets, layers, scale[:count])
        for slots, *tensors in zip(self.layers, weights, biases, strict=True):
            for slot, tensor in zip(slots, tensors, strict=True):
                rows[order, slot.start : slot.stop] = tensor.reshape(len(rows), -1)
        losses = torch.empty_like(total)
        losses[order] = total / steps.to(total)
        return losses

    def estimate(
        self, before: Tensor, after: Tensor, samples: Samples, *, probe: Tensor
    ) -> list[Estimate]:
        """The estimators of learn/local.estimate for all workers; probe is [A, batches, batch]."""
        at_start, start_loss = self._gradients(before, samples, probe.flatten(1))
        at_end, _ = self._gradients(after, samples, probe.flatten(1))
        moved = torch.linalg.vector_norm(after - before, dim=1).clamp(min=1e-8)
        bent = torch.linalg.vector_norm(at_end - at_start, dim=1)
        minis = torch.stack(
            [self._gradients(before, samples, probe[:, k])[0] for k in range(VARIANCE_BATCHES)],
            dim=1,
        )
        return [
            Estimate(float(bend) / float(move), sample_variance(mini), float(loss))
            for bend, move, mini, loss in zip(bent, moved, minis, start_loss, strict=True)
        ]

    def _gradients(self, rows: Tensor, samples: Samples, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients [A, D] and mean losses [A] of all models on their batches [A, b]."""
        everyone = torch.arange(len(rows))
        layers = [
            (_take(rows, everyone, weight), _take(rows, everyone, bias).unsqueeze(1))
            for weight, bias in self.layers
        ]
        inputs = samples.inputs[batch].flatten(2)
        targets = samples.targets[batch].unsqueeze(2)
        activations, loss, error = _forward(inputs, targets, layers)
        found = torch.empty_like(rows)
        for index, part, below in _backward(error / batch.shape[1], activations, layers):
            weight, bias = self.layers[index]
            found[:, weight.start : weight.stop] = torch.bmm(part.transpose(1, 2), below).flatten(1)
            found[:, bias.start : bias.stop] = part.sum(dim=1)
        return found, loss

    def outputs(self, rows: Tensor, inputs: Tensor) -> Tensor:
        """The outputs of all models [A, D] on the same inputs, [A, n, classes]."""
        everyone = torch.arange(len(rows))
        hidden = inputs.flatten(1).expand(len(rows), -1, -1)
        for index, (weight_slot, bias_slot) in enumerate(self.layers):
            weight, bias = _take(rows, everyone, weight_slot), _take(rows, everyone, bias_slot)
            hidden = torch.baddbmm(bias.unsqueeze(1), hidden, weight.transpose(1, 2))
            if index + 1 < len(self.layers):
                hidden = hidden.relu_()
        return hidden


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


def _take(rows: Tensor, order: Tensor, slot: Slot) -> Tensor:
    return rows[order, slot.start : slot.stop].view(len(order), *slot.shape)


def _step(
    inputs: Tensor, targets: Tensor, layers: list[tuple[Tensor, Tensor]], scale: Tensor
) -> Tensor:
    """One SGD step of every model, in place; scale is -learning rate / batch. Mean losses."""
    activations, loss, error = _forward(inputs, targets, layers)
    for index, part, below in _backward(error * scale, activations, layers):
        weight, bias = layers[index]
        weight.baddbmm_(part.transpose(1, 2), below)
        bias += part.sum(dim=1, keepdim=True)
    return loss


def _forward(
    inputs: Tensor, targets: Tensor, layers: list[tuple[Tensor, Tensor]]
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Inputs of every layer, mean losses [A], and the gradient at the outputs times batch."""
    activations = [inputs]
    for index, (weight, bias) in enumerate(layers):
        output = torch.baddbmm(bias, activations[-1], weight.transpose(1, 2))
        activations.append(output.relu_() if index + 1 < len(layers) else output)
    logs = torch.log_softmax(activations.pop(), dim=2)
    loss = -logs.gather(2, targets).mean(dim=1).squeeze(1)
    error = logs.exp_()
    error.scatter_add_(2, targets, error.new_full((), -1.0).expand_as(targets))
    return activations, loss, error


def _backward(
    error: Tensor, activations: list[Tensor], layers: list[tuple[Tensor, Tensor]]
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Per layer, from the top: (index, error at its output, its input).

    The error below is computed first, so the caller may change the weights in place.
    """
    for index in reversed(range(len(layers))):
        below = activations[index]
        passed = torch.bmm(error, layers[index][0]) * (below > 0) if index else error
        yield index, error, below
        error = passed
