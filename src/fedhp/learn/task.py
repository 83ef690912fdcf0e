"""A task: data, model, loss and metric, everything that a run needs to know about learning.

Classification is built in; a user's own class is named by its dotted path. trial.py tries a task
once on a few samples before any work starts.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedhp import components
from fedhp.config import ComponentConfig
from fedhp.errors import ConfigError
from fedhp.learn.models import model_factory
from fedhp.learn.names import TASKS
from fedhp.seeds import Purpose, number
from fedhp.types import Dataset


@runtime_checkable
class Task(Protocol):
    """What a run learns. It must not keep state between calls, except in the model's tensors."""

    metric_name: str

    def data(self) -> Dataset:
        """The training and test data; called once per run and process."""

    def model(self) -> nn.Module:
        """A new module, initialised from torch's default generator."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss over a batch, a scalar with a gradient."""

    def metric(self, outputs: Tensor, targets: Tensor) -> float:
        """The quality over the whole evaluated set; higher is better."""


_MEMBERS = ("metric_name", "data", "model", "loss", "metric")


class Classification:
    """One class per sample: cross-entropy and accuracy."""

    metric_name = "accuracy"

    def __init__(self, dataset: Dataset, factory: Callable[[], nn.Module]) -> None:
        self._dataset = dataset
        self._factory = factory

    def data(self) -> Dataset:
        return self._dataset

    def with_data(self, dataset: Dataset) -> Classification:
        return Classification(dataset, self._factory)

    def model(self) -> nn.Module:
        return self._factory()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of outputs [batch, classes] and targets [batch]."""
        return functional.cross_entropy(outputs, targets)

    def metric(self, outputs: Tensor, targets: Tensor) -> float:
        """The share of samples whose largest output is the right class."""
        return int((outputs.argmax(dim=1) == targets).sum()) / len(targets)


def smoothed_loss(label_smoothing: float) -> Callable[[Tensor, Tensor], Tensor]:
    """The training loss of Classification with training.label_smoothing."""
    return functools.partial(functional.cross_entropy, label_smoothing=label_smoothing)


def make_task(task: ComponentConfig, model: ComponentConfig, load: Callable[[], Dataset]) -> Task:
    """The task of an experiment: a user's own, or classification of what `load` returns."""
    if components.is_dotted(task.name):
        return load_task(task)
    kind = components.resolve(task.name, TASKS, key="task.name")
    settings = components.check_settings(kind, task.settings, prefix="task")
    dataset = load()
    if dataset.classes is None:
        raise ConfigError(
            f"{task.name} needs classes, but the targets of {dataset.name} are plain numbers",
            key="task.name",
            allowed="data with one class per sample, or a task of your own",
            fix="write a task with your loss and metric (docs/own-parts.md), or use other data",
        )
    factory = model_factory(model, dataset.shape, dataset.classes)
    built: Task = kind(dataset, factory, **settings)
    return built


def load_task(part: ComponentConfig) -> Task:
    """A user's own task by its dotted path, built with its settings."""
    kind = components.resolve(part.name, TASKS, key="task.name")
    positional = _required_positional(kind)
    if positional:
        raise ConfigError(
            f"{part.name!r} needs arguments that an experiment cannot set: "
            + ", ".join(positional),
            key="task.name",
            allowed="a class or function whose parameters are all settings, after a star",
            fix=f"write def __init__(self, *, {positional[0]}: int = 1) with a type and a default",
        )
    task = components.build(kind, settings=part.settings, prefix="task")
    wrong = [problem for name in _MEMBERS if (problem := _member_problem(task, name))]
    if wrong:
        raise ConfigError(
            f"{part.name!r} is not a task: {', '.join(wrong)}",
            key="task.name",
            allowed="metric_name (text) and the methods data(), model(), loss(outputs, targets)"
            " and metric(outputs, targets)",
            fix="add the missing ones; examples/diabetes.py is a complete task",
        )
    loaded: Task = task
    return loaded


def initial_model(task: Task, seed: int) -> nn.Module:
    """The model all workers start from: a function of the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(number(seed, Purpose.INITIAL_MODEL))
        return task.model()


def _member_problem(task: object, name: str) -> str:
    if not hasattr(task, name):
        return f"{name} is missing"
    member = getattr(task, name)
    if name == "metric_name":
        return "" if isinstance(member, str) and member else f"metric_name is {member!r}, not text"
    return "" if callable(member) else f"{name} is not a method"


def _required_positional(kind: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [
        name
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.kind in kinds and parameter.default is inspect.Parameter.empty
    ]
