"""The task door: own tasks by dotted path, the facts of the trial, the initial model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedhp import config
from fedhp.config import ComponentConfig
from fedhp.errors import ConfigError
from fedhp.learn import models
from fedhp.learn.task import Classification, Task, initial_model, load_task, make_task
from fedhp.learn.trial import TaskFacts, check_task
from fedhp.types import Dataset
from unit.learn.tasks import Doubling, classify, images, numbers, own, part

EXAMPLES = Path(__file__).parents[3] / "examples"


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
        assert facts == TaskFacts(parameters=64 * 3 + 3 + 3 * 10 + 10, stochastic=False)

    def test_own_task_does_not_load_the_experiments_data(self) -> None:
        def never() -> Dataset:
            raise AssertionError("the task brings its own data")

        assert isinstance(make_task(own("Doubling"), part("mlp"), never), Doubling)

    def test_numbers_cannot_be_classified(self) -> None:
        with pytest.raises(ConfigError, match="needs classes") as caught:
            make_task(part("classification"), part("mlp"), numbers)
        assert caught.value.key == "task.name"
        assert "own-parts.md" in caught.value.fix

    @pytest.mark.parametrize(
        ("task", "key", "words"),
        [
            (part("clasification"), "task.name", "did you mean 'classification'"),
            (part("classification", top=5), "task.top", "takes no settings"),
        ],
    )
    def test_names_a_wrong_key(self, task: ComponentConfig, key: str, words: str) -> None:
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
        assert facts == TaskFacts(parameters=22, stochastic=False)

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
            load_task(own("Doubling", **settings))
        assert caught.value.key == key
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
        with pytest.raises(ConfigError, match="cannot set: depth") as caught:
            load_task(own("Positional"))
        assert "*, depth" in caught.value.fix

    @pytest.mark.parametrize("name", ["no_such_module:Task", f"{__name__}:NoSuchTask"])
    def test_explains_what_cannot_be_imported(self, name: str) -> None:
        with pytest.raises(ConfigError, match="cannot import") as caught:
            load_task(ComponentConfig(name=name))
        assert caught.value.key == "task.name"


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
        assert facts == TaskFacts(parameters=5498, stochastic=False)

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
