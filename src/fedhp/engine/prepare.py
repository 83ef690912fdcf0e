"""Everything an experiment needs, built and checked before work starts; a shard's part of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from fedhp import components
from fedhp.algorithms import load_algorithm
from fedhp.algorithms.base import is_asynchronous, rule_of, traits_of
from fedhp.algorithms.topology_checks import check_topology
from fedhp.config import (
    ExchangeConfig,
    Experiment,
    check_origin,
    own_parts,
)
from fedhp.data import load_data, partition
from fedhp.data.fingerprint import fingerprint
from fedhp.engine.memory import Memory, plan_memory
from fedhp.errors import ConfigError
from fedhp.learn.attack import attackers_of, flipped_labels
from fedhp.learn.augment import augmented_bytes, check_augmentation
from fedhp.learn.evaluate import choose_images, hold_back
from fedhp.learn.names import TASKS
from fedhp.learn.optimizer import PLAIN_SGD, Optimizer
from fedhp.learn.params import PER_PARAMETER, Layout, layout_of, row_of
from fedhp.learn.quantize import received_share
from fedhp.learn.stacked import dense_stack
from fedhp.learn.task import (
    Classification,
    Task,
    initial_model,
    make_task,
)
from fedhp.learn.topk import delta_share, topk_count
from fedhp.learn.trial import TaskFacts, check_task, task_data
from fedhp.learn.vectors import try_rule
from fedhp.rounds.context import (
    MOST_EPOCH_STEPS,
    PlanningContext,
    check_exchange,
    check_local_epochs,
    check_optimizer,
    epoch_steps_of,
    extra_state,
    federation_of,
    momentum_of,
    serving_of,
    world_of,
)
from fedhp.rule import Rule
from fedhp.types import Dataset, IntArray

# A step of a smaller model is mostly Python: without the stack a second thread only waits.
PARALLEL_PARAMETERS = 100_000


@dataclass(frozen=True, slots=True)
class Prepared(PlanningContext):
    """An experiment ready to run."""

    task: Task
    facts: TaskFacts
    dataset: Dataset
    parts: list[IntArray]  # training samples of each worker
    held_back: list[IntArray]  # of each worker's samples those it is tested on; empty: none
    layout: Layout
    optimizer: Optimizer
    device: torch.device
    executors: int
    overlap: bool  # tests run while the next round trains
    memory: Memory
    folders: tuple[str, ...]  # where the user's own parts are looked for
    attackers: tuple[int, ...] = ()  # for studies of attacks, rising

    @property
    def test_images(self) -> int:
        total, wanted = len(self.dataset.test_inputs), self.experiment.evaluation.images
        return total if wanted is None else min(wanted, total)

    @property
    def whole_at_end(self) -> bool:
        """Whether the last models are tested on the whole test set as well."""
        part = self.test_images < len(self.dataset.test_inputs)
        return part and self.experiment.evaluation.whole_at_end


def prepare(experiment: Experiment) -> Prepared:
    """Build and check all parts; every mistake is found here, with its key."""
    with experiment.origins.named():
        return _prepare(experiment)


def _prepare(experiment: Experiment) -> Prepared:
    check_origin(experiment)
    folders = experiment.origins.folders if own_parts(experiment) else ()
    components.make_importable(*folders)
    device = choose_device(experiment.device)
    algorithm = load_algorithm(experiment.algorithm.name, experiment.algorithm.settings)
    check_exchange(experiment, algorithm)
    check_local_epochs(experiment, algorithm)
    check_optimizer(experiment, algorithm)
    task = build_task(experiment)
    if experiment.evaluation.per_class and type(task) is not Classification:
        raise ConfigError(
            f"the accuracy by class is unknown for the task {experiment.task.name!r}",
            key="evaluation.per_class",
            allowed="evaluation.per_class = true with task.name = 'classification'",
            fix="remove evaluation.per_class",
        )
    if experiment.training.label_smoothing and type(task) is not Classification:
        raise ConfigError(
            f"is {experiment.training.label_smoothing:g}, but the task {experiment.task.name!r} "
            "has a loss of its own",
            key="training.label_smoothing",
            allowed="0, or task.name = 'classification'",
            fix="remove training.label_smoothing, or smooth the labels in the loss of the task",
        )
    dataset = experiment_data(task)
    check_augmentation(experiment.augmentation, dataset.shape)
    parts = partition(
        dataset.train_targets,
        classes=dataset.classes,
        workers=experiment.workers,
        config=experiment.data,
        seed=experiment.seed,
        groups=dataset.groups,
    )
    parts, held_back = hold_back(parts, share=experiment.data.own_test or 0.0, seed=experiment.seed)
    _check_epoch_steps(experiment, parts)
    attackers = attackers_of(experiment.attack, workers=experiment.workers, seed=experiment.seed)
    if experiment.attack.kind == "label_flip":
        dataset, parts = with_flipped_labels(dataset, parts, attackers)
        if type(task) is Classification:
            task = task.with_data(dataset)
    size, traits, rule = _model_size(task), traits_of(algorithm), rule_of(algorithm)
    optimizer = Optimizer.of(experiment.training, momentum_of(experiment, algorithm))
    memory = plan_memory(
        experiment,
        model_size=size * (1 + sum(not vector.scalar for vector in rule.vectors)),
        state_size=len(set(optimizer.state) & set(PER_PARAMETER)) * size,
        data_bytes=sum(
            getattr(dataset, f"{part}_{role}").nbytes
            for part in ("train", "test")
            for role in ("inputs", "targets")
        ),
        asynchronous=is_asynchronous(algorithm),
        extra_state=len(extra_state(experiment, algorithm)),
        traits=traits,
        per_link=rule.per_link(),
        executors=_executors(experiment, device),
        batch_bytes=augmented_bytes(
            experiment.augmentation, dataset.shape, batch_size=experiment.training.batch_size
        ),
    )
    facts = check_task(task, batch_size=experiment.training.batch_size, dataset=dataset)
    initial = initial_model(task, experiment.seed)
    _check_batch_norm(experiment, initial, rule)
    layout = layout_of(
        initial,
        batch_norm=experiment.training.batch_norm,
        vectors=(*rule.vectors, *optimizer.vectors),
        epochs=experiment.training.batches == "epochs",
    )
    try_rule(rule, layout, row_of(initial, layout)[0], rate=experiment.training.learning_rate)
    _check_fragments(traits.fragments, layout)
    stacks = kernel_of(experiment) == "auto" and stacks_by(optimizer, rule)
    stacked = stacks and dense_stack(task, initial, layout)
    alone = facts.stochastic or not (stacked or facts.parameters >= PARALLEL_PARAMETERS)
    federation = federation_of(experiment)
    world = world_of(experiment, model_bits=32.0 * layout.module_columns)
    check_topology(algorithm, federation, experiment, recorded_away=world.recorded_away)
    return Prepared(
        experiment=experiment,
        algorithm=algorithm,
        federation=federation,
        task=task,
        facts=facts,
        dataset=dataset,
        parts=parts,
        held_back=held_back,
        layout=layout,
        optimizer=optimizer,
        world=world,
        transfer_share=transfer_share(experiment.exchange, layout),
        epoch_steps=epoch_steps_of(experiment, [len(part) for part in parts]),
        device=device,
        executors=_executors(experiment, device, alone=alone, stochastic=facts.stochastic),
        overlap=_overlap(experiment, facts),
        memory=memory,
        folders=folders,
        attackers=attackers,
    )


def _check_epoch_steps(experiment: Experiment, parts: list[IntArray]) -> None:
    training = experiment.training
    most = max(len(part) for part in parts)
    if training.local_epochs is not None and (
        training.local_epochs * most > MOST_EPOCH_STEPS * training.batch_size
    ):
        raise ConfigError(
            f"{training.local_epochs:g} epochs of {most:,} samples in batches of "
            f"{training.batch_size} are too many steps in a round",
            key="training.local_epochs",
            allowed=f"at most {MOST_EPOCH_STEPS:,} steps of every worker",
            fix="lower training.local_epochs, or raise training.batch_size",
        )


def kernel_of(experiment: Experiment) -> str:
    """training.kernel; augmented images go through one model at a time."""
    return "worker" if experiment.augmentation.active else experiment.training.kernel


def stacks_by(optimizer: Optimizer, rule: Rule) -> bool:
    """Whether many small models can be trained at once, with these steps."""
    return optimizer.stacks and not (optimizer.momentum and rule.steers())


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """What a shard gets of an experiment; it can be sent to another process."""

    experiment: Experiment
    workers: IntArray  # [n] numbers of the shard's workers, rising
    parts: list[IntArray]  # [n] of them: indices into the data set's training samples
    dataset: Dataset  # training samples of these workers, all test samples
    test: IntArray  # which of the test samples are used during the run
    task: Task
    layout: Layout
    stochastic: bool
    device: torch.device
    executors: int
    overlap: bool  # tests have a thread to run on while the next round trains
    scratch: Path | None  # models are memory-mapped in this folder
    exchange: ExchangeConfig  # of the experiment, or another one on a network
    rule: Rule  # of the method
    topk: int  # values of a row that topk lets through; 0: all
    attackers: tuple[int, ...]  # of all workers
    held_back: tuple[IntArray, ...] = ()  # [n] of them, like parts, or none
    optimizer: Optimizer = PLAIN_SGD
    group_average: bool = False  # workers keep what group averages need
    asynchronous: bool = False  # workers have turns
    mailbox: str = "meet"  # of asynchronous workers (Traits.mailbox)
    serves: bool = False  # workers keep the models that are tested apart from the current ones


def shard_spec_of(
    prepared: Prepared, workers: IntArray | None = None, *, scratch: Path | None = None
) -> ShardSpec:
    experiment, dataset = prepared.experiment, prepared.dataset
    chosen = choose_images(
        dataset, images=experiment.evaluation.images, choose=experiment.evaluation.choose
    )
    parts, held_back, task = prepared.parts, prepared.held_back, prepared.task
    if workers is None:
        workers = np.arange(experiment.workers)
    else:
        own = [parts[worker] for worker in workers.tolist()]
        held = [held_back[worker] for worker in workers.tolist()] if held_back else []
        both, dataset = _own(dataset, [*own, *held])
        parts, held_back = both[: len(own)], both[len(own) :]
        if type(task) is Classification:
            task = task.with_data(dataset)
    return ShardSpec(
        experiment=experiment,
        workers=workers,
        parts=parts,
        dataset=dataset,
        test=chosen,
        task=task,
        layout=prepared.layout,
        stochastic=prepared.facts.stochastic,
        device=prepared.device,
        executors=prepared.executors,
        overlap=prepared.overlap,
        scratch=scratch,
        held_back=tuple(held_back),
        optimizer=prepared.optimizer,
        group_average=traits_of(prepared.algorithm).group_average,
        asynchronous=is_asynchronous(prepared.algorithm),
        mailbox=traits_of(prepared.algorithm).mailbox,
        serves=serving_of(experiment, prepared.algorithm) != "",
        exchange=experiment.exchange,
        rule=rule_of(prepared.algorithm),
        topk=_topk_values(experiment.exchange, prepared.layout),
        attackers=prepared.attackers,
    )


def with_flipped_labels(
    dataset: Dataset, parts: list[IntArray], attackers: Sequence[int]
) -> tuple[Dataset, list[IntArray]]:
    """The data with copies of the attackers' samples, under other classes, which replace theirs."""
    if dataset.classes is None:
        raise ConfigError(
            "is 'label_flip', but the data has numbers to predict, not classes",
            key="attack.kind",
            allowed="none, sign_flip or noise",
            fix="choose another attack.kind",
        )
    used = np.unique(np.concatenate([parts[worker] for worker in attackers]))
    flipped = flipped_labels(dataset.train_targets[used], dataset.classes)
    groups = dataset.groups
    changed = replace(
        dataset,
        train_inputs=np.concatenate([dataset.train_inputs, dataset.train_inputs[used]]),
        train_targets=np.concatenate([dataset.train_targets, flipped]),
        groups=None if groups is None else np.concatenate([groups, np.asarray(groups)[used]]),
    )
    first = len(dataset.train_inputs)
    parts = list(parts)
    for worker in attackers:
        parts[worker] = (first + np.searchsorted(used, parts[worker])).astype(np.int64)
    return changed, parts


def _topk_values(exchange: ExchangeConfig, layout: Layout) -> int:
    """How many values of a row topk sends; 0: all, or it is not used."""
    return topk_count(exchange.topk_share, layout.mixed) if exchange.compression == "topk" else 0


def transfer_share(exchange: ExchangeConfig, layout: Layout) -> float:
    """Bytes of a transfer as a share of those of the model; with topk, of one that is not a
    reader's first."""
    if exchange.compression == "topk":
        count = _topk_values(exchange, layout)
        return delta_share(count, layout.mixed) if count else 1.0
    share = received_share(exchange.compression, layout.mixed_ends)
    # What travels along counts in addition to the model.
    own = layout.module_columns
    return share if layout.mixed == own else share * layout.mixed / own


def _check_batch_norm(experiment: Experiment, module: nn.Module, rule: Rule) -> None:
    statistics = any(buffer.is_floating_point() for buffer in module.buffers())
    if experiment.training.batch_norm == "local" and not statistics:
        raise ConfigError(
            "is 'local', but has no effect: the model keeps no running statistics (BatchNorm)",
            key="training.batch_norm",
            allowed="'mixed', or a model with running statistics",
            fix="remove training.batch_norm, or choose a model with BatchNorm, such as "
            "model.name = 'resnet20' with model.norm = 'batch'",
        )
    cut = rule.public and experiment.exchange.compression == "topk"
    if cut and statistics and experiment.training.batch_norm == "mixed":
        raise ConfigError(
            "is 'mixed', but running statistics would take the place of parameters in what topk "
            f"sends of the public copies of {experiment.algorithm.name!r}",
            key="training.batch_norm",
            allowed="'local' with topk and this algorithm, or a model without running statistics",
            fix="set training.batch_norm = 'local'",
        )


def _check_fragments(fragments: int, layout: Layout) -> None:
    if fragments > layout.mixed:
        raise ConfigError(
            f"{fragments} fragments, but only {layout.mixed} numbers of the model are exchanged",
            key="algorithm.fragments",
            allowed=f"1 to {layout.mixed}",
            fix="lower algorithm.fragments",
        )


def _own(dataset: Dataset, parts: list[IntArray]) -> tuple[list[IntArray], Dataset]:
    """Only the samples of these parts, and the parts as indices into them."""
    used = np.unique(np.concatenate(parts))
    reduced = replace(
        dataset,
        train_inputs=dataset.train_inputs[used],
        train_targets=dataset.train_targets[used],
        groups=None if dataset.groups is None else np.asarray(dataset.groups)[used],
    )
    return [np.searchsorted(used, part).astype(np.int64) for part in parts], reduced


def choose_device(name: str) -> torch.device:
    """The device to train on; auto chooses a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    number = int(name.partition(":")[2] or 0)
    if name.startswith("cuda") and number >= torch.cuda.device_count():
        raise ConfigError(
            f"{name!r} is set, but this machine has {torch.cuda.device_count()} GPUs",
            key="device",
            allowed="auto, cpu, or cuda:N with the number of a GPU",
            fix="set device = 'auto'",
        )
    return torch.device(name)


def experiment_data(task: Task) -> Dataset:
    """The checked data of a task, with its fingerprint."""
    dataset = task_data(task)
    return replace(dataset, fingerprint=fingerprint(dataset))


def build_task(experiment: Experiment) -> Task:
    components.resolve(experiment.task.name, TASKS, key="task.name")
    return make_task(
        experiment.task,
        experiment.model,
        lambda: load_data(experiment.data),
    )


class _Undrawn(TorchFunctionMode):
    """Initial values are not drawn: on the meta device torch would import its compiler for that."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in ("normal_", "uniform_", "zero_", "fill_"):
            return args[0] if args else (kwargs or {}).get("tensor")
        return func(*args, **(kwargs or {}))


def _model_size(task: Task) -> int:
    """Numbers in a model, counted without allocating them; 0 if it cannot be built that way."""
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"), _Undrawn():
            module = task.model()
        return sum(t.numel() for t in (*module.parameters(), *module.buffers()))
    except Exception:  # the user's own model may need real numbers; its trial says the rest
        return 0


def _executors(
    experiment: Experiment, device: torch.device, *, alone: bool = False, stochastic: bool = False
) -> int:
    """Threads that train workers side by side. Results do not depend on their number."""
    if device.type != "cpu" or stochastic:
        return 1
    if experiment.executors != "auto":
        return min(experiment.executors, experiment.workers)
    if alone or experiment.engine == "ray":  # Ray's actors run side by side already
        return 1
    return min(cores(), experiment.workers)


def _overlap(experiment: Experiment, facts: TaskFacts) -> bool:
    """Whether tests have a thread of their own: not with one thread or core, nor on Ray."""
    if facts.stochastic or experiment.engine == "ray" or cores() == 1:
        return False
    return experiment.executors == "auto" or experiment.executors > 1


def cores() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
