"""The trial before a run: models, losses, metrics and data that do not fit are refused."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedhp.errors import ConfigError, DataError
from fedhp.learn import models
from fedhp.learn.trial import check_task, task_data
from fedhp.types import Dataset
from unit.learn.tasks import Doubling, classify, images, numbers, refusal


class TestCheckModel:
    def test_the_modules_own_error_is_shown(self) -> None:
        error = refusal(classify(lambda: nn.Sequential(nn.Flatten(), nn.Linear(49, 10))))
        assert error.key == "model.name"
        assert "4x1x8x8 (one input: 1x8x8)" in str(error)
        assert "mat1 and mat2 shapes cannot be multiplied" in str(error)

    def test_too_many_outputs_are_refused(self) -> None:
        error = refusal(classify(lambda: models.logistic((1, 8, 8), 62)))
        assert error.key == "model.name"
        assert "returns 4x62" in str(error)
        assert "images has 10 classes" in str(error)

    def test_own_tasks_may_have_other_outputs_than_classes(self) -> None:
        class OneLogit(Doubling):
            def data(self) -> Dataset:
                return images(classes=2)

            def model(self) -> nn.Module:
                return models.logistic((1, 8, 8), 1)

            def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
                return functional.binary_cross_entropy_with_logits(outputs[:, 0], targets.float())

        assert check_task(OneLogit(), batch_size=8).parameters == 65

    def test_a_task_of_ones_own_is_named_for_its_model(self) -> None:
        class Wide(Doubling):
            def model(self) -> nn.Module:
                return nn.Linear(2, 1)

        error = refusal(Wide())
        assert error.key == "task.name"
        assert "agree on the shape of one input" in error.fix

    @pytest.mark.parametrize(
        ("factory", "words"),
        [
            (lambda: "cnn", "the model is a str"),
            (lambda: nn.Flatten(), "no parameter that requires a gradient"),
            (lambda: models.logistic((1, 8, 8), 10).double(), "torch.float64, not torch.float32"),
            (lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(10)), "is not known yet"),
            (lambda: Masked(), "buffer mask is torch.bool"),
            (lambda: nn.LSTM(8, 10), "does not accept a batch of 4x1x8x8"),
            (lambda: Lost(), "returns 32 for a batch of 4"),
            (lambda: Two(), "returns a tuple"),
            (lambda: NumpyStart(), "same random state differ"),
            (lambda: NoisyTest(), "random numbers while it is tested"),
            (lambda: Cut(), "has no gradient"),
            (lambda: Steep(), "gradient of the untrained model is not finite"),
        ],
    )
    @pytest.mark.filterwarnings("ignore:Lazy modules")
    def test_refuses(self, factory: Callable[[], Any], words: str) -> None:
        error = refusal(classify(factory))
        assert words in str(error)

    def test_refuses_one_module_for_all(self) -> None:
        module = models.logistic((1, 8, 8), 10)
        assert "the same module every time" in str(refusal(classify(lambda: module)))

    def test_batch_norm_with_a_batch_of_one_names_the_batch_size(self) -> None:
        task = classify(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10)))
        assert check_task(task, batch_size=2).parameters == 670
        error = refusal(task, batch_size=1)
        assert "Expected more than 1 value per channel" in str(error)
        assert "training.batch_size" in error.fix


class TestCheckLossAndMetric:
    @pytest.mark.parametrize(
        ("loss", "words"),
        [
            (lambda o, t: 1.0, "the loss is a float"),
            (lambda o, t: None, "the loss is nothing"),
            (lambda o, t: (o - t).square(), "the loss is a tensor of 4x1"),
            (lambda o, t: (o - t).mean() * float("nan"), "is nan"),
            (lambda o, t: (o - t).detach().mean(), "has no gradient"),
            (lambda o, t: torch.ones((), requires_grad=True) * 2, "does not depend on any"),
            (lambda o, t: functional.mse_loss(o, t[:, 0]), "Using a target size"),
            (lambda o, t: functional.cross_entropy(o, t.long()), "the loss fails for outputs of"),
            (lambda o: o.mean(), "TypeError"),
        ],
    )
    def test_refuses_a_loss(
        self, loss: Callable[..., Any], words: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task = Doubling()
        monkeypatch.setattr(task, "loss", loss, raising=False)
        error = refusal(task)
        assert error.key == "task.name"
        assert words in str(error)

    @pytest.mark.parametrize(
        ("metric", "words"),
        [
            (lambda o, t: (o - t).mean(), "the metric is a Tensor"),
            (lambda o, t: None, "the metric is nothing"),
            (lambda o, t: float("nan"), "the metric is nan"),
            (lambda o, t: o.no_such_thing, "AttributeError"),
        ],
    )
    def test_refuses_a_metric(
        self, metric: Callable[..., Any], words: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task = Doubling()
        monkeypatch.setattr(task, "metric", metric, raising=False)
        error = refusal(task)
        assert error.key == "task.name"
        assert words in str(error)
        assert "outputs of 16x1 and targets of 16x1" in str(error)

    def test_accepts_a_metric_of_numpy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        task = Doubling()
        monkeypatch.setattr(task, "metric", lambda o, t: np.float32(0.5), raising=False)
        check_task(task, batch_size=4)


class TestCheckData:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"train_inputs": [[1.0]]}, "train_inputs is a list"),
            ({"train_inputs": np.zeros((40, 1))}, "float64, not np.float32"),
            ({"test_targets": np.zeros((40, 1), np.int32)}, "np.float32 or np.int64"),
            ({"test_inputs": np.zeros((0, 1), np.float32)}, "test_inputs is empty"),
            ({"test_inputs": np.zeros((39, 1), np.float32)}, "39 inputs but 40 targets"),
            ({"test_inputs": np.zeros((40, 2), np.float32)}, "inputs are (1,) in train, (2,)"),
            ({"train_inputs": np.full((40, 1), np.nan, np.float32)}, "NaN or infinity"),
            ({"classes": 3}, "not one class per sample"),
        ],
    )
    def test_refuses_the_data_of_an_own_task(
        self, change: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task = Doubling()
        wrong = dataclasses.replace(numbers(), **change)
        monkeypatch.setattr(task, "data", lambda: wrong, raising=False)
        error = refusal(task)
        assert error.key == "task.name"
        assert words in str(error)

    def test_refuses_labels_beyond_the_classes(self) -> None:
        wrong = dataclasses.replace(images(), classes=9)
        error = refusal(classify(lambda: models.logistic((1, 8, 8), 9), wrong))
        assert error.key == "data.name"
        assert "0 to 9, but classes = 9" in str(error)

    def test_refuses_what_is_no_data_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        task = Doubling()
        monkeypatch.setattr(task, "data", lambda: (1, 2), raising=False)
        assert "returns a tuple" in str(refusal(task))

    def test_a_missing_file_keeps_its_own_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def absent() -> Dataset:
            raise DataError("no such file")

        task = Doubling()
        monkeypatch.setattr(task, "data", absent, raising=False)
        with pytest.raises(DataError, match="no such file"):
            check_task(task, batch_size=4)

    def test_any_other_error_of_data_is_explained(self, monkeypatch: pytest.MonkeyPatch) -> None:
        task = Doubling()
        monkeypatch.setattr(task, "data", lambda: 1 / 0, raising=False)
        assert "ZeroDivisionError" in str(refusal(task))
        with pytest.raises(ConfigError, match="ZeroDivisionError") as caught:
            task_data(task)
        assert caught.value.key == "task.name"

    def test_task_data_are_checked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        task = Doubling()
        assert task_data(task).name == "numbers"
        monkeypatch.setattr(task, "data", lambda: None, raising=False)
        with pytest.raises(ConfigError, match="returns nothing"):
            task_data(task)

    def test_data_already_loaded_is_not_loaded_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        task = Doubling()
        monkeypatch.setattr(task, "data", lambda: 1 / 0, raising=False)
        assert check_task(task, batch_size=4, dataset=numbers()).parameters == 13

    def test_one_sample_is_enough(self) -> None:
        few = images(samples=1)
        assert check_task(classify(lambda: models.mlp((1, 8, 8), 10), few), batch_size=32)


class Masked(nn.Linear):
    """A buffer of truth values, which a row of numbers cannot hold."""

    def __init__(self) -> None:
        super().__init__(64, 10)
        self.register_buffer("mask", torch.ones(64, dtype=torch.bool))


class Shaped(nn.Module):
    """One linear layer, with a place to go wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, inputs: Tensor) -> Any:
        return self.linear(inputs.flatten(1))


class Lost(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.flatten()[:32] * self.scale


class Two(Shaped):
    def forward(self, inputs: Tensor) -> Any:
        return super().forward(inputs), 0


class NumpyStart(Shaped):
    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.linear.bias.fill_(random.SystemRandom().random())


class NoisyTest(Shaped):
    def forward(self, inputs: Tensor) -> Any:
        return super().forward(inputs + torch.randn_like(inputs))


class Cut(Shaped):
    def forward(self, inputs: Tensor) -> Any:
        return super().forward(inputs).detach()


class Steep(Shaped):
    def forward(self, inputs: Tensor) -> Any:
        return super().forward(inputs) + (self.linear.bias * 0).abs().sqrt()
