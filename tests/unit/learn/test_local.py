"""Local SGD on one worker: batches, losses, modules with corners, a request to stop."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedhp.errors import Interrupted
from fedhp.learn.local import Samples, estimate, sample_variance, train
from fedhp.learn.params import Replica, layout_of, row_of
from fedhp.learn.task import Classification
from fedhp.timing import PROBE_BATCHES
from fedhp.types import Dataset

NONE = torch.zeros(0, dtype=torch.int64)


def classification(factory: Callable[[], nn.Module]) -> Classification:
    nothing = np.zeros((1, 4), dtype=np.float32)
    labels = np.zeros(1, dtype=np.int64)
    return Classification(Dataset("none", nothing, labels, nothing, labels, 3), factory)


def samples(count: int = 30) -> Samples:
    rng = torch.Generator().manual_seed(5)
    return Samples(torch.randn(count, 4, generator=rng), torch.arange(count) % 3)


def network() -> nn.Module:
    torch.manual_seed(6)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def run(module: nn.Module, batches: Tensor, rate: float = 0.1) -> tuple[Tensor, Tensor, float]:
    """The row and counters after training, and the mean loss."""
    layout = layout_of(module, batch_norm="mixed")
    row, counters = row_of(module, layout)
    replica = Replica(module, layout)
    replica.bind(row, counters)
    loss = train(
        replica,
        classification(lambda: module),
        samples(),
        batches=batches,
        learning_rate=rate,
        stop=lambda: False,
    )
    return row, counters, loss


def test_one_step_per_batch_and_the_mean_loss() -> None:
    batches = torch.arange(24).reshape(4, 6)
    row, _, mean = run(network(), batches)
    plain = network()
    data = samples()
    losses = []
    for batch in batches:
        loss = functional.cross_entropy(plain(data.inputs[batch]), data.targets[batch])
        slopes = torch.autograd.grad(loss, list(plain.parameters()))
        with torch.no_grad():
            for weight, slope in zip(plain.parameters(), slopes, strict=True):
                weight.sub_(0.1 * slope)
        losses.append(float(loss.detach()))
    expected, _ = row_of(plain, layout_of(plain, batch_norm="mixed"))
    assert torch.allclose(row, expected, rtol=1e-6, atol=1e-7)
    assert mean == pytest.approx(sum(losses) / 4, rel=1e-6)


def test_more_steps_continue_the_same_path() -> None:
    """Two calls of two steps are one call of four."""
    module = network()
    layout = layout_of(module, batch_norm="mixed")
    batches = torch.arange(24).reshape(4, 6)
    whole, _, _ = run(network(), batches)
    row, _ = row_of(module, layout)
    replica = Replica(module, layout)
    for part in (batches[:2], batches[2:]):
        replica.bind(row, NONE)
        train(
            replica,
            classification(lambda: module),
            samples(),
            batches=part,
            learning_rate=0.1,
            stop=lambda: False,
        )
    assert torch.equal(row, whole)


def test_no_steps() -> None:
    row, _, loss = run(network(), torch.empty((0, 6), dtype=torch.int64))
    before, _ = row_of(network(), layout_of(network(), batch_norm="mixed"))
    assert torch.equal(row, before)
    assert math.isnan(loss)


def test_frozen_parameters_stay() -> None:
    module = network()
    assert isinstance(module, nn.Sequential)
    module[0].requires_grad_(False)
    row, _, _ = run(module, torch.arange(12).reshape(2, 6))
    layout = layout_of(module, batch_norm="mixed")
    assert layout.trainable == 18
    fresh = network()
    assert isinstance(fresh, nn.Sequential)
    first = fresh[0]
    assert isinstance(first, nn.Linear)
    kept = torch.cat([first.weight.flatten(), first.bias]).detach()
    assert torch.equal(row[18:], kept)


class Unreached(nn.Module):
    """A parameter that the loss does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(4, 3)
        self.spare = nn.Parameter(torch.ones(2))

    def forward(self, inputs: Tensor) -> Tensor:
        """The linear layer only."""
        outputs: Tensor = self.used(inputs)
        return outputs


def test_a_parameter_without_a_gradient_stays() -> None:
    module = Unreached()
    row, _, _ = run(module, torch.arange(12).reshape(2, 6))
    assert row[layout_of(module, batch_norm="mixed").slots[0].start].item() == 1.0
    assert module.spare.tolist() == [1.0, 1.0]


def test_batch_norm_counts_and_moves() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    row, counters, _ = run(module, torch.arange(18).reshape(3, 6))
    layout = layout_of(module, batch_norm="mixed")
    assert counters.tolist() == [3]
    assert row[layout.trainable :].tolist() != [0, 0, 0, 1, 1, 1]


def test_a_request_to_stop_gives_the_round_up() -> None:
    module = network()
    layout = layout_of(module, batch_norm="mixed")
    replica = Replica(module, layout)
    replica.bind(*row_of(module, layout))
    asked = iter([False, False, True])
    with pytest.raises(Interrupted):
        train(
            replica,
            classification(lambda: module),
            samples(),
            batches=torch.arange(24).reshape(4, 6),
            learning_rate=0.1,
            stop=lambda: next(asked),
        )
    with pytest.raises(Interrupted):
        estimate(
            replica,
            classification(lambda: module),
            samples(),
            before=row_of(module, layout),
            after=row_of(module, layout),
            probe=torch.arange(24).reshape(PROBE_BATCHES, 3),
            stop=lambda: True,
        )


@pytest.mark.parametrize("count", [2, 3, 8])
def test_sample_variance(count: int) -> None:
    gradients = np.random.default_rng(count).standard_normal((count, 50)) + 100
    variance = sample_variance(torch.from_numpy(gradients))
    assert variance == pytest.approx(gradients.var(axis=0, ddof=1).sum(), rel=1e-9)
    equal = torch.ones(count, 4)
    assert sample_variance(equal) == 0.0
