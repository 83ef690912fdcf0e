"""Your own task: regression on the diabetes data set.

442 patients from a data set of scikit-learn; ten measurements predict the progression of
the disease one year later. The loss is the squared error, the metric is R^2.

    fedhp run examples/diabetes.toml
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from sklearn.datasets import load_diabetes
from torch import Tensor, nn
from torch.nn import functional

from fedhp.types import Dataset


class Diabetes:
    """Predicts a number; every parameter after the star is a setting of [task]."""

    metric_name = "R2"

    def __init__(
        self,
        *,
        hidden: Annotated[int, Field(ge=1, le=1024)] = 16,
        test_every: Annotated[int, Field(ge=2, le=20)] = 5,
    ) -> None:
        self.hidden = hidden
        self.test_every = test_every  # one of so many samples is for the test

    def data(self) -> Dataset:
        """Inputs and target with mean 0 and deviation 1 on the training part."""
        inputs, target = load_diabetes(return_X_y=True, scaled=False)
        test = np.arange(len(inputs)) % self.test_every == 0
        inputs = standardized(inputs, train=~test)
        target = standardized(target[:, None], train=~test)
        return Dataset(
            name="diabetes",
            train_inputs=inputs[~test],
            train_targets=target[~test],
            test_inputs=inputs[test],
            test_targets=target[test],
            classes=None,
        )

    def model(self) -> nn.Module:
        """One hidden layer."""
        return nn.Sequential(nn.Linear(10, self.hidden), nn.Tanh(), nn.Linear(self.hidden, 1))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error of [batch, 1] and [batch, 1]."""
        return functional.mse_loss(outputs, targets)

    def metric(self, outputs: Tensor, targets: Tensor) -> float:
        """The share of the variance that is explained: 1 is perfect, 0 is as good as the mean."""
        outputs, targets = outputs.double(), targets.double()
        residual = (targets - outputs).square().sum()
        total = (targets - targets.mean()).square().sum()
        return float(1 - residual / total)


def standardized(values: NDArray[np.float64], *, train: NDArray[np.bool_]) -> NDArray[np.float32]:
    """The columns with mean 0 and deviation 1 on their training part."""
    mean, deviation = values[train].mean(axis=0), values[train].std(axis=0)
    scaled: NDArray[np.float64] = (values - mean) / deviation
    return scaled.astype(np.float32)
