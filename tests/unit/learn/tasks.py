"""Small tasks, their data, and how the trial of a task refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import pytest
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from fedhp.config import ComponentConfig
from fedhp.errors import ConfigError
from fedhp.learn.task import Classification
from fedhp.learn.trial import check_task
from fedhp.types import Dataset


def images(shape: tuple[int, ...] = (1, 8, 8), *, classes: int = 10, samples: int = 40) -> Dataset:
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((2 * samples, *shape)).astype(np.float32)
    targets = (np.arange(2 * samples) % classes).astype(np.int64)
    inputs.setflags(write=False)  # as the data room hands them out
    return Dataset(
        name="images",
        train_inputs=inputs[:samples],
        train_targets=targets[:samples],
        test_inputs=inputs[samples:],
        test_targets=targets[samples:],
        classes=classes,
    )


def numbers() -> Dataset:
    values = np.linspace(-1, 1, 40, dtype=np.float32)[:, None]
    return Dataset("numbers", values, 2 * values, values, 2 * values, classes=None)


class Doubling:
    """A small regression: the target is twice the input."""

    metric_name = "closeness"

    def __init__(
        self, *, hidden: Annotated[int, Field(ge=1, le=64)] = 4, activation: str = "tanh"
    ) -> None:
        if activation not in ("tanh", "relu"):
            raise ValueError(f"no activation {activation}")
        self.hidden = hidden

    def data(self) -> Dataset:
        return numbers()

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(1, self.hidden), nn.Tanh(), nn.Linear(self.hidden, 1))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.mse_loss(outputs, targets)

    def metric(self, outputs: Tensor, targets: Tensor) -> float:
        return -float((outputs - targets).abs().mean())


class HalfTask:
    """Not a task: no loss, a metric that cannot be called, a name that is not text."""

    metric_name = 3
    metric = 0.5

    def data(self) -> Dataset:
        return numbers()

    def model(self) -> nn.Module:
        return nn.Linear(1, 1)


class Positional(Doubling):
    def __init__(self, depth: int) -> None:
        super().__init__()


def part(name: str, **settings: Any) -> ComponentConfig:
    return ComponentConfig.model_validate({"name": name, **settings})


def own(name: str, **settings: Any) -> ComponentConfig:
    return part(f"{__name__}:{name}", **settings)


def classify(factory: Callable[[], Any], dataset: Dataset | None = None) -> Classification:
    return Classification(images() if dataset is None else dataset, factory)


def refusal(task: Any, *, batch_size: int = 32) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        check_task(task, batch_size=batch_size)
    assert str(caught.value).startswith(f"{caught.value.key}: ")
    assert caught.value.fix
    assert "Traceback" not in str(caught.value)
    return caught.value
