"""The fast path for dense models against one model at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedhp.errors import Interrupted
from fedhp.learn.local import Samples, estimate, train
from fedhp.learn.models import logistic, mlp, small_cnn
from fedhp.learn.params import Layout, Replica, layout_of, row_of
from fedhp.learn.stacked import DenseStack, dense_stack
from fedhp.learn.task import Classification
from fedhp.timing import PROBE_BATCHES
from fedhp.types import Dataset

SHAPE = (1, 4, 4)
CLASSES = 5
NONE = torch.zeros(0, dtype=torch.int64)
WORKERS = 7


def task() -> Classification:
    inputs = np.zeros((1, *SHAPE), dtype=np.float32)
    labels = np.zeros(1, dtype=np.int64)
    data = Dataset("none", inputs, labels, inputs, labels, CLASSES)
    return Classification(data, lambda: mlp(SHAPE, CLASSES))


def samples() -> Samples:
    rng = torch.Generator().manual_seed(1)
    inputs = torch.randn(200, *SHAPE, generator=rng)
    return Samples(inputs, torch.randint(CLASSES, (200,), generator=rng))


def network(hidden: tuple[int, ...]) -> nn.Module:
    torch.manual_seed(2)
    return mlp(SHAPE, CLASSES, hidden=hidden) if hidden else logistic(SHAPE, CLASSES)


def start(module: nn.Module, layout: Layout) -> Tensor:
    """Different models, one row each."""
    row, _ = row_of(module, layout)
    rng = torch.Generator().manual_seed(3)
    return row.repeat(WORKERS, 1) + 0.1 * torch.randn(WORKERS, layout.width, generator=rng)


def stack_of(module: nn.Module, layout: Layout) -> DenseStack:
    results = dense_stack(task(), module, layout)
    assert results is not None
    return results


def batches_of(steps: list[int], size: int = 8) -> list[Tensor]:
    rng = torch.Generator().manual_seed(4)
    return [torch.randint(200, (count, size), generator=rng) for count in steps]


@pytest.mark.parametrize("hidden", [(), (6,), (9, 7), (5, 5, 5)])
@pytest.mark.parametrize("steps", [[3] * 7, [1, 5, 2, 9, 9, 1, 4], [20, 1, 1, 1, 1, 1, 1], [1] * 7])
def test_training_equals_one_at_a_time(hidden: tuple[int, ...], steps: list[int]) -> None:
    """Ragged steps, a learning rate per worker: models and mean losses agree."""
    module = network(hidden)
    layout = layout_of(module, batch_norm="mixed")
    before = start(module, layout)
    rates = torch.linspace(0.02, 0.3, WORKERS)
    batches = batches_of(steps)
    stacked = before.clone()
    losses = stack_of(module, layout).train(
        stacked, list(range(WORKERS)), samples(), batches=batches, rates=rates, stop=lambda: False
    )
    replica = Replica(network(hidden), layout)
    single = before.clone()
    for worker in range(WORKERS):
        replica.bind(single[worker], NONE)
        loss = train(
            replica,
            task(),
            samples(),
            batches=batches[worker],
            learning_rate=float(rates[worker]),
            stop=lambda: False,
        )
        assert float(losses[worker]) == pytest.approx(loss, rel=1e-5)
    assert float((stacked - single).abs().max() / single.abs().max()) <= 1e-5
    assert float((single - before).abs().max()) > 0.01
    changes = (single - before).norm(dim=1)
    assert float((stacked - single).norm(dim=1).max() / changes.min()) <= 1e-4


@pytest.mark.parametrize("hidden", [(), (6,), (9, 7)])
def test_estimates_equal_one_at_a_time(hidden: tuple[int, ...]) -> None:
    module = network(hidden)
    layout = layout_of(module, batch_norm="mixed")
    before = start(module, layout)
    after = before + 0.05 * torch.randn(before.shape, generator=torch.Generator().manual_seed(5))
    probe = torch.stack(batches_of([PROBE_BATCHES] * WORKERS))
    results = stack_of(module, layout).estimate(before, after, samples(), probe=probe)
    replica = Replica(network(hidden), layout)
    for worker in range(WORKERS):
        single = estimate(
            replica,
            task(),
            samples(),
            before=(before[worker], NONE),
            after=(after[worker], NONE),
            probe=probe[worker],
            stop=lambda: False,
        )
        assert results[worker].smoothness == pytest.approx(single.smoothness, rel=1e-4)
        assert results[worker].gradient_variance == pytest.approx(
            single.gradient_variance, rel=1e-4
        )
        assert results[worker].start_loss == pytest.approx(single.start_loss, rel=1e-5)


@pytest.mark.parametrize("hidden", [(), (6,), (9, 7)])
def test_outputs_equal_one_at_a_time(hidden: tuple[int, ...]) -> None:
    module = network(hidden)
    layout = layout_of(module, batch_norm="mixed")
    rows = start(module, layout)
    outputs = stack_of(module, layout).outputs(rows, samples().inputs)
    replica = Replica(module, layout)
    for worker in range(WORKERS):
        replica.bind(rows[worker], NONE)
        with torch.no_grad():
            single = module(samples().inputs)
        assert torch.allclose(outputs[worker], single, rtol=1e-5, atol=1e-5)


def test_workers_do_not_touch_each_other() -> None:
    """A row trained alone is the row trained among others."""
    module = network((6,))
    layout = layout_of(module, batch_norm="mixed")
    stack, before = stack_of(module, layout), start(module, layout)
    batches, rates = batches_of([2, 6, 3, 1, 5, 4, 6]), torch.full((WORKERS,), 0.1)
    together = before.clone()
    everyone = list(range(WORKERS))
    stack.train(together, everyone, samples(), batches=batches, rates=rates, stop=lambda: False)
    for worker in (0, 1, 6):
        alone = before[worker : worker + 1].clone()
        stack.train(
            alone, [0], samples(), batches=[batches[worker]], rates=rates[:1], stop=lambda: False
        )
        assert torch.allclose(alone[0], together[worker], rtol=1e-5, atol=1e-6)


def test_a_request_to_stop() -> None:
    module = network((6,))
    layout = layout_of(module, batch_norm="mixed")
    with pytest.raises(Interrupted):
        stack_of(module, layout).train(
            start(module, layout),
            list(range(WORKERS)),
            samples(),
            batches=batches_of([3] * WORKERS),
            rates=torch.ones(WORKERS),
            stop=lambda: True,
        )


class Other(Classification):
    """A user's own task may have another loss."""


def refused(module: nn.Module) -> bool:
    return dense_stack(task(), module, layout_of(module, batch_norm="mixed")) is None


def test_where_it_does_not_fit() -> None:
    assert refused(small_cnn(SHAPE, CLASSES))
    assert refused(nn.Sequential(nn.Flatten(), nn.Linear(16, 5, bias=False)))
    assert refused(nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU()))
    assert refused(nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 5)))
    assert refused(nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Dropout(), nn.Linear(8, 5)))
    assert refused(nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Linear(8, 5)))
    assert refused(nn.Linear(16, 5))
    assert refused(nn.Sequential())
    frozen = network((6,))
    next(frozen.parameters()).requires_grad_(False)
    assert refused(frozen)
    shared = nn.Linear(16, 16)
    assert refused(nn.Sequential(nn.Flatten(), shared, nn.ReLU(), shared))
    module = network((6,))
    layout = layout_of(module, batch_norm="mixed")
    other = Other(task().data(), task().model)
    assert dense_stack(other, module, layout) is None
    assert dense_stack(task(), module, layout) is not None
