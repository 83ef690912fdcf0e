"""A worker's share of the experiment that the coordinator sent: settings, samples, model.

Without a file of its own it takes its part of the experiment's data, the same as in a
simulation; with one (--data) it trains on that file alone, which never leaves the machine.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedhp.config import DataConfig, Experiment, parse
from fedhp.data.load import read
from fedhp.data.prepare import prepare as prepare_arrays
from fedhp.data.raw import Raw
from fedhp.engine.prepare import Prepared, prepare
from fedhp.engine.shard_spec import ShardSpec, shard_spec_of
from fedhp.errors import ConfigError, DataError
from fedhp.learn.task import Classification

SOURCE = "the coordinator's experiment"


@dataclass(frozen=True, slots=True)
class OwnData:
    """A worker's private samples as read, and where they are from."""

    path: Path
    raw: Raw  # the training part is what counts


def read_own(path: Path) -> OwnData:
    """Read an .npz file of one's own; of x and y all is used, of x_train and x_test the first."""
    raw = read(DataConfig(name="npz", path=str(path)), source="--data")
    with np.load(path, allow_pickle=False) as archive:
        divided = "x_train" in archive.files
    if not divided:
        raw = replace(
            raw,
            train_inputs=np.concatenate([raw.train_inputs, raw.test_inputs]),
            train_targets=np.concatenate([raw.train_targets, raw.test_targets]),
        )
    return OwnData(path, raw)


def experiment_of(text: str) -> Experiment:
    """The experiment as one worker carries it out: its model alone, mixed in a fixed order."""
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"it is not valid TOML: {error}", key="", source=SOURCE, fix="ask who coordinates"
        ) from None
    experiment = parse(tables, source=SOURCE)
    training = experiment.training.model_copy(update={"kernel": "worker", "mixing": "ordered"})
    changes: dict[str, object] = {"training": training, "executors": 1, "engine": "local"}
    if not experiment.cluster.emulate:
        # The recorded world is a file of the coordinator's machine, and not needed here.
        changes["world"] = experiment.world.model_copy(update={"trace": None})
    return experiment.model_copy(update=changes)


def share_of(
    experiment: Experiment, worker: int, *, own: OwnData | None = None
) -> tuple[Prepared, ShardSpec]:
    """All that one worker needs; every misfit is named here."""
    if worker >= experiment.workers:
        raise ConfigError(
            f"there are {experiment.workers} workers, but this one got the number {worker}",
            key="workers",
            source=SOURCE,
            allowed=f"0 to {experiment.workers - 1}",
            fix="ask who coordinates",
        )
    prepared = prepare(experiment)
    holding = shard_spec_of(prepared, np.array([worker]))
    return prepared, holding if own is None else _with_own(prepared, holding, own)


def _with_own(prepared: Prepared, holding: ShardSpec, own: OwnData) -> ShardSpec:
    config = prepared.experiment.data
    settings = DataConfig(
        name="npz", path=str(own.path), pool=config.pool, standardize=config.standardize
    )
    found = prepare_arrays(own.raw, settings, source="--data")
    theirs = holding.dataset
    if found.shape != theirs.shape:
        raise DataError(
            f"{own.path}: samples have the shape {found.shape}, those of the experiment "
            f"{theirs.shape}",
            allowed=f"samples of the shape {theirs.shape}",
            fix="bring them to that shape",
        )
    if (found.classes is None) != (theirs.classes is None):
        kinds = ("numbers to predict", "classes")
        raise DataError(
            f"{own.path}: the targets are {kinds[found.classes is not None]}, those of the "
            f"experiment {kinds[theirs.classes is not None]}",
            allowed=kinds[theirs.classes is not None],
            fix="save the targets as whole numbers for classes, as floats for numbers",
        )
    if found.classes is not None and theirs.classes is not None:
        largest = int(found.train_targets.max())
        if largest >= theirs.classes:
            raise DataError(
                f"{own.path}: there is a class {largest}, but the experiment has "
                f"{theirs.classes} classes",
                allowed=f"0 to {theirs.classes - 1}",
                fix="number the classes as the experiment does",
            )
    elif found.train_targets.shape[1:] != theirs.train_targets.shape[1:]:
        raise DataError(
            f"{own.path}: a target has the shape {found.train_targets.shape[1:]}, in the "
            f"experiment {theirs.train_targets.shape[1:]}",
            allowed=f"targets of the shape {theirs.train_targets.shape[1:]}",
            fix="bring them to that shape",
        )
    dataset = replace(theirs, train_inputs=found.train_inputs, train_targets=found.train_targets)
    task = holding.task
    if type(task) is Classification:
        task = task.with_data(dataset)
    return replace(holding, dataset=dataset, task=task, parts=[np.arange(len(found.train_inputs))])
