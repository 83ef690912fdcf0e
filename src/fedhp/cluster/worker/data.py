"""What a worker trains: its part of the experiment that the coordinator sent.

Without a file it takes its part of the experiment's data, the same as in a simulation. With
--data it trains on all samples of that file alone, which never leave the machine; they are scaled
as the experiment's data is. The coordinator's experiment is not this operator's: it chooses no
code and no path (LocalMeans).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedhp.config import DataConfig, Experiment, check_trusted, parse
from fedhp.config.origins import UNKNOWN, Origins
from fedhp.data.load import read
from fedhp.data.prepare import prepare as prepare_arrays
from fedhp.data.prepare import scale
from fedhp.data.raw import RawData, is_whole
from fedhp.engine.prepare import Prepared, ShardSpec, prepare, shard_spec_of
from fedhp.errors import ConfigError, DataError
from fedhp.learn.attack import flipped_labels
from fedhp.learn.task import Classification
from fedhp.tables import PATHS
from fedhp.trust import NO_TRUST, Trust, limited_to

SOURCE = "the coordinator's experiment"


@dataclass(frozen=True, slots=True)
class PrivateData:
    """The samples of --data as they were read, and the file."""

    path: Path
    raw: RawData  # only its training part is used
    unused: int = 0  # samples of its test part


def read_private_data(path: Path) -> PrivateData:
    """Read an .npz file: all of x and y, or x_train and y_train where it is split."""
    with Origins("--data").named():
        raw = read(DataConfig(name="npz", path=str(path)))
    with np.load(path, allow_pickle=False) as archive:
        is_split = "x_train" in archive.files
    if not is_split:
        raw = replace(
            raw,
            train_inputs=np.concatenate([raw.train_inputs, raw.test_inputs]),
            train_targets=np.concatenate([raw.train_targets, raw.test_targets]),
            groups=None,  # all samples are this worker's
        )
    return PrivateData(path, raw, unused=len(raw.test_inputs) if is_split else 0)


@dataclass(frozen=True, slots=True)
class LocalMeans:
    """The code and files that the operator of this machine gave the worker."""

    trust: Trust = NO_TRUST
    data_path: Path | None = None  # in place of the experiment's data.path
    trace: Path | None = None  # in place of the experiment's world.trace


def received_experiment(text: str, means: LocalMeans) -> Experiment:
    """The coordinator's experiment with this machine's paths; untrusted parts are refused."""
    tables = _tables(text)
    given = {"data.path": means.data_path, "world.trace": means.trace}
    for section, key in PATHS:
        table = tables.setdefault(section, {})
        if not isinstance(table, dict):
            continue  # which parse refuses
        named, own = table.pop(key, None), given.get(f"{section}.{key}")
        if own is not None:
            table[key] = str(own)
        elif named is not None and key == "trace" and _emulates(tables):
            raise ConfigError(
                "is set, and a worker takes no path from the coordinator",
                key=f"{section}.{key}",
                source=SOURCE,
                allowed="the file of this machine, given with --trace",
                fix="start this worker with --trace FILE",
            )
    experiment = parse(tables, origins=Origins(SOURCE), stored=True)
    check_trusted(experiment, means.trust)
    return _as_worker(experiment)


def _emulates(tables: dict[str, Any]) -> bool:
    cluster = tables.get("cluster")
    return bool(isinstance(cluster, dict) and cluster.get("emulate"))


def worker_experiment(text: str) -> Experiment:
    """The experiment as one worker carries it out, for the operator who wrote it."""
    return _as_worker(parse(_tables(text), origins=Origins(SOURCE), stored=True))


def _tables(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"it is not valid TOML: {error}",
            key="",
            source=SOURCE,
            fix="ask the operator of the coordinator",
        ) from None


def _as_worker(experiment: Experiment) -> Experiment:
    """One model, mixed in a fixed order."""
    training = experiment.training.model_copy(update={"kernel": "worker", "mixing": "ordered"})
    changes: dict[str, object] = {"training": training, "executors": 1, "engine": "local"}
    if not experiment.cluster.emulate:
        # The recorded world is a file on the coordinator's machine, and is not needed here.
        changes["world"] = experiment.world.without_files()
    # Its paths are those of this machine, so that not all of it is from SOURCE.
    return experiment.model_copy(update=changes).with_origins(UNKNOWN)


def prepare_worker(
    experiment: Experiment,
    worker: int,
    *,
    private: PrivateData | None = None,
    trust: Trust = NO_TRUST,
) -> tuple[Prepared, ShardSpec]:
    """Everything that one worker needs; data that does not fit is an error here."""
    if worker >= experiment.workers:
        raise ConfigError(
            f"the experiment has {experiment.workers} workers, but this one got number {worker}",
            key="workers",
            source=SOURCE,
            allowed=f"0 to {experiment.workers - 1}",
            fix="ask the operator of the coordinator",
        )
    with limited_to(trust), _own_path_needed():
        prepared = prepare(experiment)
    shard_spec = shard_spec_of(prepared, np.array([worker]))
    if private is not None:
        shard_spec = with_private_data(prepared, shard_spec, private)
    # Models are compressed as they are sent, and arrive here as they were received.
    as_it_is = experiment.exchange.model_copy(update={"compression": "none"})
    return prepared, replace(shard_spec, exchange=as_it_is)


@contextmanager
def _own_path_needed() -> Iterator[None]:
    """Say which option gives the path that the data needs: the experiment's is not used."""
    try:
        yield
    except ConfigError as error:
        if error.key != "data.path":
            raise
        raise ConfigError(
            f"{error.detail}; a worker takes no path from the coordinator",
            key=error.key,
            source=SOURCE,
            allowed=error.allowed,
            fix="start this worker with --data-path PATH: where this machine has the data",
        ) from None


def with_private_data(prepared: Prepared, spec: ShardSpec, private: PrivateData) -> ShardSpec:
    """A worker's part of the experiment with its private samples in place of its own share."""
    pool = prepared.experiment.data.pool
    settings = DataConfig(name="npz", path=str(private.path), pool=pool, standardize=False)
    theirs = spec.dataset
    tokens = is_whole(theirs.train_inputs) and is_whole(private.raw.train_inputs)
    with Origins("--data").named():
        own = prepare_arrays(replace(private.raw, tokens=tokens), settings)
    if own.shape != theirs.shape:
        raise DataError(
            f"{private.path}: samples have the shape {own.shape}, but {theirs.shape} in the "
            "experiment",
            allowed=f"samples of the shape {theirs.shape}",
            fix="convert them to that shape",
        )
    if own.train_inputs.dtype != theirs.train_inputs.dtype:
        kind = theirs.train_inputs.dtype
        raise DataError(
            f"{private.path}: samples are {own.train_inputs.dtype}, but {kind} in the experiment",
            allowed="whole numbers (tokens) if the experiment has them, else floats",
            fix=f"save them with x.astype(np.{kind})",
        )
    if (own.classes is None) != (theirs.classes is None):
        kinds = ("numbers to predict", "classes")
        raise DataError(
            f"{private.path}: the targets are {kinds[own.classes is not None]}, but "
            f"{kinds[theirs.classes is not None]} in the experiment",
            allowed=kinds[theirs.classes is not None],
            fix="save the targets as integers for classes, as floats for numbers",
        )
    if own.classes is not None and theirs.classes is not None:
        largest = int(own.train_targets.max())
        if largest >= theirs.classes:
            raise DataError(
                f"{private.path}: it has a class {largest}, but the experiment has only "
                f"{theirs.classes} classes",
                allowed=f"0 to {theirs.classes - 1}",
                fix="number the classes as the experiment does",
            )
    elif own.train_targets.shape[1:] != theirs.train_targets.shape[1:]:
        raise DataError(
            f"{private.path}: a target has the shape {own.train_targets.shape[1:]}, but "
            f"{theirs.train_targets.shape[1:]} in the experiment",
            allowed=f"targets of the shape {theirs.train_targets.shape[1:]}",
            fix="convert them to that shape",
        )
    targets = own.train_targets
    attacks = int(spec.workers[0]) in spec.attackers and spec.experiment.attack.kind == "label_flip"
    if attacks and theirs.classes is not None:
        targets = flipped_labels(targets, theirs.classes)
    inputs = own.train_inputs
    if theirs.scaling is not None:
        inputs = inputs.astype(np.float32)  # a copy
        scale(inputs, theirs.scaling)
    dataset = replace(theirs, train_inputs=inputs, train_targets=targets, groups=None)
    task = spec.task
    if type(task) is Classification:
        task = task.with_data(dataset)
    parts = [np.arange(len(own.train_inputs))]
    return replace(spec, dataset=dataset, task=task, parts=parts, held_back=())
