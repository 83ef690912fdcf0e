"""The task door: own tasks by dotted path, the trial before a run, the initial model."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from fedhp import config
from fedhp.config import Part
from fedhp.errors import ConfigError, DataError
from fedhp.learn import models
from fedhp.learn.task import (
    Classification,
    Task,
    TaskFacts,
    check_task,
    initial_model,
    load_task,
    make_task,
    task_data,
)
from fedhp.types import Dataset

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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
    """Not a task: no loss, a metric that cannot be called, a name that is no text."""

    metric_name = 3
    metric = 0.5

    def data(self) -> Dataset:
        return numbers()

    def model(self) -> nn.Module:
        return nn.Linear(1, 1)


class Positional(Doubling):
    def __init__(self, depth: int) -> None:
        super().__init__()


def part(name: str, **settings: Any) -> Part:
    return Part.model_validate({"name": name, **settings})


def own(name: str, **settings: Any) -> Part:
    return part(f"{__name__}:{name}", **settings)


def classify(factory: Callable[[], Any], dataset: Dataset | None = None) -> Classification:
    return Classification(images() if dataset is None else dataset, factory)


def refusal(task: Any, *, batch_size: int = 32) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        check_task(task, batch_size=batch_size, source="e.toml")
    assert str(caught.value).startswith(f"e.toml: {caught.value.key}: ")
    assert caught.value.fix
    assert "Traceback" not in str(caught.value)
    return caught.value


class TestClassification:
    def test_is_a_task(self) -> None:
        assert isinstance(classify(lambda: nn.Flatten()), Task)

    def test_loss_is_the_mean_cross_entropy(self) -> None:
        task = classify(lambda: nn.Flatten())
        loss = task.loss(torch.zeros(3, 4), torch.tensor([0, 1, 2]))
        assert float(loss) == pytest.approx(np.log(4))

    def test_metric_is_the_accuracy_of_the_whole_set(self) -> None:
        task = classify(lambda: nn.Flatten())
        outputs = torch.eye(4)[[0, 1, 2, 3, 3]]
        assert task.metric(outputs, torch.tensor([0, 1, 2, 3, 0])) == 0.8
        assert task.metric_name == "accuracy"


class TestMakeTask:
    def test_classification_of_the_data_with_the_model(self) -> None:
        task = make_task(part("classification"), part("mlp", hidden=[3]), images)
        assert isinstance(task, Classification)
        facts = check_task(task, batch_size=32)
        assert facts == TaskFacts(parameters=64 * 3 + 3 + 3 * 10 + 10, stochastic=False, buffers=0)

    def test_own_task_does_not_load_the_experiments_data(self) -> None:
        def never() -> Dataset:
            raise AssertionError("the task brings its own data")

        assert isinstance(make_task(own("Doubling"), part("mlp"), never), Doubling)

    def test_numbers_cannot_be_classified(self) -> None:
        with pytest.raises(ConfigError, match="needs classes") as caught:
            make_task(part("classification"), part("mlp"), numbers, source="e.toml")
        assert caught.value.key == "task.name"
        assert "own-parts.md" in caught.value.fix

    @pytest.mark.parametrize(
        ("task", "key", "words"),
        [
            (part("clasification"), "task.name", "did you mean 'classification'"),
            (part("classification", top=5), "task.top", "takes no settings"),
        ],
    )
    def test_names_a_wrong_key(self, task: Part, key: str, words: str) -> None:
        with pytest.raises(ConfigError) as caught:
            make_task(task, part("mlp"), images)
        assert caught.value.key == key
        assert words in str(caught.value)

    def test_a_model_that_does_not_fit_the_shape_is_named(self) -> None:
        task = make_task(part("classification"), part("alexnet"), images)
        with pytest.raises(ConfigError, match="1x8x8") as caught:
            check_task(task, batch_size=32)
        assert caught.value.key == "model.name"
        assert "1x15x15" in caught.value.allowed


class TestLoadTask:
    def test_builds_with_settings(self) -> None:
        task = load_task(own("Doubling", hidden=7))
        assert isinstance(task, Doubling)
        assert task.hidden == 7
        facts = check_task(task, batch_size=8)
        assert facts == TaskFacts(parameters=22, stochastic=False, buffers=0)

    @pytest.mark.parametrize(
        ("settings", "key", "words"),
        [
            ({"hidden": 0}, "task.hidden", "from 1 to"),
            ({"hidden": "many"}, "task.hidden", "whole number"),
            ({"hiden": 3}, "task.hiden", "did you mean 'hidden'"),
            ({"activation": "sin"}, "task.name", "ValueError: no activation sin"),
        ],
    )
    def test_names_a_wrong_setting(self, settings: dict[str, Any], key: str, words: str) -> None:
        with pytest.raises(ConfigError) as caught:
            load_task(own("Doubling", **settings), source="e.toml")
        assert caught.value.key == key
        assert caught.value.source == "e.toml"
        assert words in str(caught.value)

    def test_lists_everything_that_is_missing(self) -> None:
        with pytest.raises(ConfigError, match="is not a task") as caught:
            load_task(own("HalfTask"))
        text = str(caught.value)
        assert caught.value.key == "task.name"
        assert "loss is missing" in text
        assert "metric is not a method" in text
        assert "metric_name is 3, not text" in text
        assert "diabetes.py" in caught.value.fix

    def test_explains_parameters_that_are_no_settings(self) -> None:
        with pytest.raises(ConfigError, match="cannot give: depth") as caught:
            load_task(own("Positional"))
        assert "*, depth" in caught.value.fix

    @pytest.mark.parametrize("name", ["no_such_module:Task", f"{__name__}:NoSuchTask"])
    def test_explains_what_cannot_be_imported(self, name: str) -> None:
        with pytest.raises(ConfigError, match="cannot import") as caught:
            load_task(Part(name=name))
        assert caught.value.key == "task.name"


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
        assert check_task(task, batch_size=2).buffers == 20
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


class TestFacts:
    def test_dropout_is_stochastic(self) -> None:
        def noisy() -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))

        assert check_task(classify(noisy), batch_size=8).stochastic
        calm = classify(lambda: models.logistic((1, 8, 8), 10))
        assert not check_task(calm, batch_size=8).stochastic

    def test_a_random_loss_is_stochastic(self) -> None:
        class Noisy(Doubling):
            def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
                return functional.mse_loss(outputs, targets + torch.randn_like(targets))

        assert check_task(Noisy(), batch_size=8).stochastic

    def test_buffers_are_the_float_ones(self) -> None:
        task = classify(
            lambda: models.vgg16((3, 32, 32), 10, width=0.1), images((3, 32, 32), samples=16)
        )
        facts = check_task(task, batch_size=8)
        assert not facts.stochastic
        norms = [m for m in task.model().modules() if isinstance(m, nn.BatchNorm2d)]
        assert facts.buffers == sum(2 * norm.num_features for norm in norms) > 0

    def test_the_check_leaves_the_random_state_alone(self) -> None:
        task = classify(lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10)))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(11)
            before = torch.default_generator.get_state()
            check_task(task, batch_size=8)
            assert torch.equal(before, torch.default_generator.get_state())
            with pytest.raises(ConfigError):
                check_task(classify(lambda: nn.Linear(3, 3)), batch_size=8)
            assert torch.equal(before, torch.default_generator.get_state())


class TestInitialModel:
    def test_depends_on_the_seed_alone(self) -> None:
        task = classify(lambda: models.small_cnn((1, 8, 8), 10))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(1)
            first = initial_model(task, 3).state_dict()
            torch.default_generator.manual_seed(2)
            second = initial_model(task, 3).state_dict()
            other = initial_model(task, 4).state_dict()
        assert all(torch.equal(first[name], second[name]) for name in first)
        assert not torch.equal(first["conv1.weight"], other["conv1.weight"])

    def test_leaves_the_random_state_alone(self) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(11)
            before = torch.default_generator.get_state()
            initial_model(Doubling(), 3)
            assert torch.equal(before, torch.default_generator.get_state())


class TestExamples:
    @pytest.fixture(autouse=True)
    def _importable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(EXAMPLES)

    def test_own_model(self) -> None:
        experiment = config.load(EXAMPLES / "own_model.toml")
        task = make_task(experiment.task, experiment.model, images)
        facts = check_task(task, batch_size=experiment.training.batch_size)
        assert facts == TaskFacts(parameters=5498, stochastic=False, buffers=96)

    def test_diabetes_learns(self) -> None:
        experiment = config.load(EXAMPLES / "diabetes.toml")
        task = load_task(experiment.task)
        assert check_task(task, batch_size=16).parameters == 193
        data, module = task.data(), initial_model(task, experiment.seed)
        inputs, targets, test_inputs, test_targets = (
            torch.from_numpy(array)
            for array in (
                data.train_inputs,
                data.train_targets,
                data.test_inputs,
                data.test_targets,
            )
        )
        assert (len(inputs), len(test_inputs)) == (353, 89)
        rng = torch.Generator().manual_seed(0)
        for _ in range(100):
            batch = torch.randint(len(inputs), (16,), generator=rng)
            loss = task.loss(module(inputs[batch]), targets[batch])
            gradients = torch.autograd.grad(loss, list(module.parameters()))
            with torch.no_grad():
                for tensor, gradient in zip(module.parameters(), gradients, strict=True):
                    tensor.sub_(gradient, alpha=experiment.training.learning_rate)
        with torch.inference_mode():
            assert task.metric(module(test_inputs), test_targets) > 0.4


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
