"""Eq. (3) and (4), local updating, against reference.py and a gradient written out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from fedhp.learn.local import Samples, train
from fedhp.learn.mix import update_norms
from fedhp.learn.params import Replica, layout_of
from fedhp.learn.task import Classification
from fedhp.types import Dataset
from paper import reference


class Softmax:
    """Softmax regression written out in numpy: the oracle of one SGD step."""

    def __init__(self, rng: np.random.Generator, features: int = 6, classes: int = 3) -> None:
        self.features, self.classes = features, classes
        self.inputs = rng.standard_normal((40, features)).astype(np.float32)
        self.targets = rng.integers(classes, size=40)
        self.batches = rng.integers(40, size=(7, 5))

    def gradient(self, x: list[float], step: int) -> list[float]:
        """The gradient of the mean cross-entropy of batch `step` at x (weights, then biases)."""
        size = self.classes * self.features
        weights = np.array(x[:size]).reshape(self.classes, self.features)
        bias = np.array(x[size:])
        batch = self.batches[step]
        inputs = self.inputs[batch].astype(np.float64)
        scores = inputs @ weights.T + bias
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        shares[np.arange(len(batch)), self.targets[batch]] -= 1.0
        shares /= len(batch)
        return [*(shares.T @ inputs).ravel().tolist(), *shares.sum(axis=0).tolist()]

    def trained(self, steps: int, rate: float) -> tuple[torch.Tensor, torch.Tensor]:
        """The same by fedhp: the row before and after."""
        module = nn.Sequential(nn.Flatten(), nn.Linear(self.features, self.classes))
        layout = layout_of(module, batch_norm="mixed")
        rng = np.random.default_rng(3)
        before = torch.from_numpy(rng.standard_normal(layout.width).astype(np.float32))
        after = before.clone()
        replica = Replica(module, layout)
        replica.bind(after, torch.zeros(0, dtype=torch.int64))
        empty: NDArray[np.float32] = np.zeros((1, self.features), dtype=np.float32)
        labels = np.zeros(1, dtype=np.int64)
        data = Dataset("softmax", empty, labels, empty, labels, self.classes)
        train(
            replica,
            Classification(data, lambda: module),
            Samples(torch.from_numpy(self.inputs), torch.from_numpy(self.targets)),
            batches=torch.from_numpy(self.batches[:steps]),
            learning_rate=rate,
            stop=lambda: False,
        )
        return before, after


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_eq3_local_sgd(steps: int) -> None:
    problem = Softmax(np.random.default_rng(4))
    before, after = problem.trained(steps, 0.1)
    expected, _ = reference.local_updating(
        before.tolist(), problem.gradient, steps=steps, learning_rate=0.1
    )
    np.testing.assert_allclose(after.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rate", [0.05, 0.3])
def test_eq4_the_update_is_the_learning_rate_times_g(rate: float) -> None:
    problem = Softmax(np.random.default_rng(5))
    before, after = problem.trained(7, rate)
    _, g = reference.local_updating(before.tolist(), problem.gradient, steps=7, learning_rate=rate)
    change = (after - before).numpy()
    np.testing.assert_allclose(change, -rate * np.array(g), rtol=1e-4, atol=1e-6)
    found = update_norms(before[None], after[None], trainable=len(before))
    assert found[0] == pytest.approx(rate * reference.norm(g), rel=1e-5)
