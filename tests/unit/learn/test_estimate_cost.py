"""The estimators look at twice the probe and no more, and the fast path finds the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedhp.engine.sharded import LocalExecutor
from fedhp.learn.local import Samples, estimate
from fedhp.learn.params import Replica, layout_of, row_of
from fedhp.learn.stacked import DenseStack
from fedhp.learn.task import Classification
from fedhp.timing import PROBE_BATCHES
from fedhp.types import Dataset
from unit.engine.runs import EXACT, prepared_of

BATCH, COUNT = 6, 40


class Counting(nn.Module):
    """A linear model that counts the samples it is asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.seen = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen += len(inputs)
        result: Tensor = self.layer(inputs)
        return result


def task() -> Classification:
    nothing, labels = np.zeros((1, 4), dtype=np.float32), np.zeros(1, dtype=np.int64)
    return Classification(Dataset("none", nothing, labels, nothing, labels, 3), Counting)


def test_an_estimate_costs_twice_the_probe() -> None:
    rng = torch.Generator().manual_seed(1)
    module = Counting()
    layout = layout_of(module, batch_norm="mixed")
    row, counters = row_of(module, layout)
    samples = Samples(torch.randn(COUNT, 4, generator=rng), torch.arange(COUNT) % 3)
    probe = torch.randint(COUNT, (PROBE_BATCHES, BATCH), generator=rng)
    result = estimate(
        Replica(module, layout),
        task(),
        samples,
        before=(row, counters),
        after=(row + 0.1, counters),
        probe=probe,
        stop=lambda: False,
    )
    assert module.seen == 2 * probe.numel()
    with torch.no_grad():
        outputs = samples.inputs[probe.ravel()] @ row[:12].view(3, 4).T + row[12:]
    loss = nn.functional.cross_entropy(outputs, samples.targets[probe.ravel()])
    assert result.start_loss == pytest.approx(float(loss), rel=1e-5)


def estimates(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> tuple[Any, int]:
    """What workers 0, 2 and 4 measure after a round's training; samples the stack looked at."""
    seen = 0
    gradients = DenseStack._gradients

    def counting(self: DenseStack, rows: Tensor, samples: Samples, batch: Tensor) -> Any:
        nonlocal seen
        seen += batch.numel()
        return gradients(self, rows, samples, batch)

    monkeypatch.setattr(DenseStack, "_gradients", counting)
    engine = LocalExecutor(prepared_of("fedhp", changes))
    try:
        engine.train(np.array([3, 1, 5, 2, 4]), round_index=1, learning_rate=0.1)
        return engine.estimate(np.arange(5) % 2 == 0, round_index=1), seen
    finally:
        engine.close()


def test_stacked_and_single_estimates_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    stacked, seen = estimates(monkeypatch, {})
    single, none = estimates(monkeypatch, EXACT)
    assert (seen, none) == (3 * 2 * PROBE_BATCHES * 8, 0)
    for name in ("smoothness", "gradient_variance", "start_loss"):
        one, other = getattr(stacked, name), getattr(single, name)
        assert np.isnan(one[[1, 3]]).all()
        assert (one[[0, 2, 4]] > 0).all()
        np.testing.assert_allclose(one, other, rtol=1e-4)
