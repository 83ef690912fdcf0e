"""The trial of a task before a run: a few samples through model, loss and metric.

What does not fit is refused with the shapes, the module's own error, what is allowed and the fix,
so that nobody needs a traceback.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedhp.errors import ConfigError, FedhpError, at_user_place
from fedhp.learn.task import Classification, Task
from fedhp.types import Dataset

_TRAIN_SAMPLES = 4
_TEST_SAMPLES = 16


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """Results of the trial of a task."""

    parameters: int  # numbers in all parameters
    stochastic: bool  # training draws from torch's default generator (dropout, say)


def task_data(task: Task) -> Dataset:
    """The data of a task; an error in the user's code is explained, the arrays are checked."""
    trial = _Trial(task)
    return trial.checked(trial.data())


def check_task(task: Task, *, batch_size: int, dataset: Dataset | None = None) -> TaskFacts:
    """Try a task on a few samples: one training step's gradient, one evaluation.

    A ConfigError names what does not fit. Pass the data set if task_data() was called
    already. Torch's random state is as before afterwards.
    """
    return _Trial(task).run(batch_size, dataset)


class _Trial:
    """One walk through a task; every refusal names the key of the part that does not fit."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.built_in = type(task) is Classification  # so that a misfit is the model's
        self.name = type(task).__name__
        self.key = "model.name" if self.built_in else "task.name"

    def run(self, batch_size: int, dataset: Dataset | None) -> TaskFacts:
        dataset = self.checked(self.data()) if dataset is None else dataset
        train = _samples(
            dataset.train_inputs, dataset.train_targets, min(batch_size, _TRAIN_SAMPLES)
        )
        test = _samples(dataset.test_inputs, dataset.test_targets, _TEST_SAMPLES)
        with torch.random.fork_rng(devices=[]):
            module = self.new_module()
            stochastic = self.train(module, *train, dataset=dataset)
            self.evaluate(module, *test, dataset=dataset)
        return TaskFacts(sum(tensor.numel() for tensor in module.parameters()), stochastic)

    def refuse(
        self, problem: str, *, allowed: str = "", fix: str, key: str | None = None
    ) -> ConfigError:
        return ConfigError(problem, key=key or self.key, allowed=allowed, fix=fix)

    @contextmanager
    def explained(self, what: str, fix: str = "", key: str | None = None) -> Iterator[None]:
        """Any error inside, in one sentence that ends with the error's own message."""
        try:
            yield
        except FedhpError:
            raise
        except Exception as error:  # the code of a user may fail in any way
            raise self.refuse(
                f"{what}: {_words(error)}{at_user_place(error)}",
                fix=fix or f"correct {self.name}",
                key=key,
            ) from error

    def data(self) -> Dataset:
        with self.explained("data() of the task fails"):
            return self.task.data()

    def checked(self, dataset: Any) -> Dataset:
        key = "data.name" if self.built_in else "task.name"
        if not isinstance(dataset, Dataset):
            raise self.refuse(
                f"data() of {self.name} returns {_kind(dataset)}",
                key=key,
                allowed="a fedhp.types.Dataset",
                fix="return Dataset(name=..., train_inputs=..., ..., classes=None)",
            )
        problem = _data_problem(dataset)
        if problem:
            raise self.refuse(
                f"the data set {dataset.name!r} cannot be used: {problem[0]}",
                key=key,
                fix=problem[1],
            )
        return dataset

    def new_module(self) -> nn.Module:
        """A module; model() must build a new one each time, the same for the same state."""
        modules = []
        for _ in range(2):
            torch.default_generator.manual_seed(0)
            with self.explained("the model cannot be built"):
                modules.append(self.task.model())
        module, twin = modules
        if not isinstance(module, nn.Module):
            raise self.refuse(
                f"the model is {_kind(module)}",
                allowed="a torch.nn.Module",
                fix="return the module itself",
            )
        if module is twin:
            raise self.refuse(
                "model() returns the same module every time",
                allowed="a new module at each call: workers must not share one",
                fix="build the module inside model()",
            )
        problem = _module_problem(module)
        if problem:
            raise self.refuse(f"the model cannot be trained: {problem[0]}", fix=problem[1])
        other = twin.state_dict()
        if any(not _same(value, other.get(name)) for name, value in module.state_dict().items()):
            raise self.refuse(
                "two models built from the same random state differ",
                allowed="initial values drawn from torch's default generator only",
                fix="use torch.nn.init or torch.randn, not NumPy or the random module",
            )
        return module

    def train(
        self, module: nn.Module, inputs: Tensor, targets: Tensor, *, dataset: Dataset
    ) -> bool:
        """One gradient in train mode; whether it drew random numbers."""
        module.train()
        before = torch.default_generator.get_state()
        outputs = self.forward(module, inputs, dataset)
        pair = f"outputs of {_shape(outputs)} and targets of {_shape(targets)}"
        key = "task.name"
        fix = "let loss(outputs, targets), the model and the data's targets agree on their shapes"
        with self.explained(f"the loss fails for {pair}", fix, key), warnings.catch_warnings():
            # torch only warns here, but [batch] against [batch, 1] learns nonsense
            warnings.filterwarnings("error", message="Using a target size")
            loss = self.task.loss(outputs, targets)
        stochastic = not torch.equal(before, torch.default_generator.get_state())
        if not isinstance(loss, Tensor) or loss.shape != ():
            got = f"a tensor of {_shape(loss)}" if isinstance(loss, Tensor) else _kind(loss)
            raise self.refuse(
                f"the loss is {got} for {pair}",
                key=key,
                allowed="a scalar tensor: the mean over the batch",
                fix="end the loss with .mean()",
            )
        if not math.isfinite(loss.item()):
            raise self.refuse(
                f"the loss of the untrained model is {loss.item()} for {pair}",
                key=key,
                allowed="a finite number",
                fix="check the loss for log(0) and division by zero, and the data's scale",
            )
        if not loss.requires_grad:
            raise self.refuse(
                "the loss has no gradient",
                key=key,
                allowed="a loss computed from the outputs by torch operations",
                fix="leave out .detach(), .item(), torch.no_grad() and NumPy",
            )
        with self.explained("the gradient of the loss cannot be computed"):
            loss.backward()  # type: ignore[no-untyped-call]
        gradients = [tensor.grad for tensor in module.parameters() if tensor.grad is not None]
        if not gradients:
            raise self.refuse(
                "the loss does not depend on any parameter of the model",
                allowed="a gradient for at least one parameter",
                fix="compute the outputs from the parameters, without .detach()",
            )
        if not all(bool(gradient.isfinite().all()) for gradient in gradients):
            raise self.refuse(
                "the gradient of the untrained model is not finite",
                allowed="finite gradients",
                fix="check the loss, the initial values and the data's scale",
            )
        return stochastic

    def evaluate(
        self, module: nn.Module, inputs: Tensor, targets: Tensor, *, dataset: Dataset
    ) -> None:
        module.eval()
        before = torch.default_generator.get_state()
        with torch.inference_mode():
            outputs = self.forward(module, inputs, dataset)
        if not torch.equal(before, torch.default_generator.get_state()):
            raise self.refuse(
                "the model draws random numbers while it is tested",
                allowed="randomness in train mode only, so that a result can be repeated",
                fix="draw only if self.training is true, as torch.nn.Dropout does",
            )
        pair = f"outputs of {_shape(outputs)} and targets of {_shape(targets)}"
        fix = "let metric(outputs, targets) take a whole test set, in the shapes of the loss"
        with self.explained(f"the metric fails for {pair}", fix, "task.name"):
            value = self.task.metric(outputs, targets)
        if not isinstance(value, Real) or not math.isfinite(value):
            got = repr(value) if isinstance(value, Real) else _kind(value)
            raise self.refuse(
                f"the metric is {got} for {pair}",
                key="task.name",
                allowed="a finite float, higher is better",
                fix="return float(...), and a number also where the metric is not defined",
            )

    def forward(self, module: nn.Module, inputs: Tensor, dataset: Dataset) -> Tensor:
        mode = "train" if module.training else "eval"
        shape = "x".join(map(str, dataset.shape)) or "()"
        fix = (
            f"choose a model for inputs of {shape} (mlp takes any), or let your own follow the"
            " shape it is given"
            if self.built_in
            else f"let model() and data() of {self.name} agree on the shape of one input"
        )
        if not inputs.is_floating_point():
            fix = (
                "for tokens, begin the model with torch.nn.Embedding; for numbers, give float32 "
                "inputs (x.astype(np.float32)), which data.standardize then scales"
            )
        if len(inputs) == 1:
            fix += "; a module with BatchNorm may need training.batch_size of 2 or more"
        kind = "" if inputs.is_floating_point() else " whole numbers, which are never scaled,"
        with self.explained(
            f"the model does not accept a batch of {_shape(inputs)}{kind} (one input: {shape})"
            f" in {mode} mode",
            fix,
        ):
            outputs = module(inputs)
        if not isinstance(outputs, Tensor):
            raise self.refuse(
                f"the model returns {_kind(outputs)}",
                allowed="one tensor, a row per sample",
                fix="return the tensor that the loss needs",
            )
        if outputs.ndim == 0 or len(outputs) != len(inputs):
            raise self.refuse(
                f"the model returns {_shape(outputs)} for a batch of {len(inputs)} inputs",
                allowed=f"{len(inputs)} x ...: a row per sample",
                fix="keep the batch as the first dimension (flatten with start_dim=1)",
            )
        if self.built_in and tuple(outputs.shape) != (len(inputs), dataset.classes):
            raise self.refuse(
                f"the model returns {_shape(outputs)} for a batch of {len(inputs)} inputs,"
                f" but {dataset.name} has {dataset.classes} classes",
                allowed=f"{len(inputs)}x{dataset.classes}: one number per class",
                fix="give the last layer as many outputs as the factory's argument `classes`",
            )
        return outputs


def _data_problem(dataset: Dataset) -> tuple[str, str] | None:
    """What is wrong with a data set's arrays, and the fix."""
    types, roles = "np.float32 or np.int64", ("inputs", "targets")
    for part in ("train", "test"):
        arrays = {}
        for role in roles:
            name = f"{part}_{role}"
            array = arrays[role] = getattr(dataset, name)
            if not isinstance(array, np.ndarray):
                return f"{name} is {_kind(array)}, not an array", f"use np.asarray({name})"
            if array.dtype not in (np.float32, np.int64):
                return f"{name} is {array.dtype}, not {types}", f"convert it with .astype({types})"
            if array.ndim == 0 or len(array) == 0:
                return f"{name} is empty", "give it at least one sample"
            if array.dtype == np.float32 and not np.isfinite(array.sum(dtype=np.float64)):
                return f"{name} holds NaN or infinity", "remove or replace these values"
        if len(arrays["inputs"]) != len(arrays["targets"]):
            sizes = f"{len(arrays['inputs'])} inputs but {len(arrays['targets'])} targets"
            return f"{part} has {sizes}", "give each input one target"
    for role in roles:
        both = [getattr(dataset, f"{part}_{role}") for part in ("train", "test")]
        train, test = (array.shape[1:] for array in both)
        if train != test:
            return f"{role} are {train} in train, {test} in test", "give both the same shape"
        if both[0].dtype != both[1].dtype:
            return (
                f"{role} are {both[0].dtype} in train, {both[1].dtype} in test",
                "give both the same type",
            )
    if dataset.classes is not None:
        for name in ("train_targets", "test_targets"):
            targets = getattr(dataset, name)
            if targets.ndim != 1 or targets.dtype != np.int64:
                return f"{name} is not one class per sample", "use int64 of [n], or classes=None"
            if targets.min() < 0 or targets.max() >= dataset.classes:
                span = f"{targets.min()} to {targets.max()}"
                return (
                    f"{name} runs from {span}, but classes = {dataset.classes}",
                    "number the classes from 0 to classes - 1",
                )
    return None


def _module_problem(module: nn.Module) -> tuple[str, str] | None:
    """What keeps a module's tensors from being laid out as a row of numbers, and the fix."""
    for name, tensor in module.named_parameters():
        if isinstance(tensor, nn.parameter.UninitializedParameter):
            return f"the size of {name} is not known yet", "use Linear, not LazyLinear"
        if tensor.dtype != torch.float32:
            return f"{name} is {tensor.dtype}, not torch.float32", "end with module.float()"
    for name, buffer in module.named_buffers():
        if buffer.dtype not in (torch.float32, torch.int64):
            return (
                f"the buffer {name} is {buffer.dtype}, not torch.float32 or torch.int64",
                "convert it with .float() or .long(), or keep it as a plain attribute",
            )
    if not any(tensor.requires_grad for tensor in module.parameters()):
        return "it has no parameter that requires a gradient", "add a layer with parameters"
    return None


def _samples(inputs: Any, targets: Any, count: int) -> tuple[Tensor, Tensor]:
    """A few samples spread over the set, which may be sorted by class."""
    chosen = np.unique(np.linspace(0, len(inputs) - 1, count).astype(np.int64))
    return torch.from_numpy(inputs[chosen]), torch.from_numpy(targets[chosen])


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return type(one) is type(other)
    return one.shape == other.shape and torch.equal(one, other)


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "()"


def _kind(value: object) -> str:
    return "nothing (None)" if value is None else f"a {type(value).__name__}"


def _words(error: Exception) -> str:
    """The kind of an error and the first line of its message."""
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else ""
    short = text if len(text) <= 300 else text[:297] + "..."
    return f"{type(error).__name__}: {short}" if short else type(error).__name__
