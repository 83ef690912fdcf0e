"""The models that a worker keeps on disk: the last two of a run, those to which the coordinator may
go back, and the final one.

A stored model is named by the attempt that made it; INITIAL is the initial model. A file is
written under a temporary name, synced and renamed, so it is complete or missing. Its checksum
detects what a failing disk did to it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhp.cluster.protocol.attempt import Attempt
from fedhp.files import PRIVATE_FILE, make_folder, storage_errors, write_parts
from fedhp.record.tensors import Arrays, array_blocks, read_tensors, tensor_parts
from fedhp.types import Scaling

log = logging.getLogger("fedhp.worker")

FINAL_MODEL = "model.safetensors"
FILE_VERSION = "1"
_FILE_NAME = re.compile(r"^round-(\d{1,10})-epoch-(\d{1,20})-attempt-(\d{1,10})\.safetensors$")
_RUN_NAME = re.compile(r"^[0-9a-f]{32}$")


@dataclass(frozen=True, slots=True)
class StoredModel:
    """One model: all its columns, and its counters, which are never sent. With group averages
    also what the worker keeps for them, by name."""

    row: NDArray[np.float32]  # [D]
    counters: NDArray[np.int64]  # [C]
    group: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)


class ModelStore:
    """The models of one run, in memory and on disk."""

    def __init__(self, folder: Path, run: str, *, scaling: Scaling | None = None) -> None:
        self.run = run
        self._scaling = scaling  # of the inputs, written with the final model
        self.folder = folder
        self._run_folder = folder / run
        self._models: dict[Attempt, StoredModel] = {}
        self._files: set[Attempt] = set()  # of models that are on the disk alone
        self._like: StoredModel | None = None
        make_folder(self._run_folder, option="--state", private=True)

    def load(self, like: StoredModel) -> None:
        """Read the files of an earlier process; damaged ones, and those with other shapes than
        `like`, are left alone."""
        self._like = like
        for attempt, file in _files(self._run_folder):
            try:
                self._models[attempt] = _read(file, self.run, like)
            except (OSError, ValueError) as error:
                log.warning("stored model ignored", extra={"file": file.name, "why": str(error)})

    def attempts(self) -> list[Attempt]:
        """The attempts whose models are stored, oldest first."""
        # Copied at once: the learner's thread may write meanwhile.
        return sorted({*list(self._models), *self._files.copy()})

    def get(self, attempt: Attempt) -> StoredModel | None:
        """The model that an attempt made."""
        if attempt in self._files and self._like is not None:
            try:
                return _read(self._run_folder / _file_name(attempt), self.run, self._like)
            except (OSError, ValueError) as error:
                log.warning("stored model ignored", extra={"why": str(error)})
                self._files.discard(attempt)
        return self._models.get(attempt)

    def hold(self, attempt: Attempt, model: StoredModel) -> None:
        """Keep a model in memory only: the initial one, which every process can make again."""
        self._models[attempt] = model

    def write(
        self,
        attempt: Attempt,
        model: StoredModel,
        *,
        keeping: Attempt,
        on_disk: Collection[Attempt] = (),
    ) -> None:
        """Store a model durably; of all others only that of the attempt `keeping` stays, and the
        files of those in `on_disk`."""
        metadata = {
            "version": FILE_VERSION,
            "run": self.run,
            "digest": _digest(model),
            **{key: str(number) for key, number in attempt.to_facts().items()},
        }
        arrays: Arrays = {"model": model.row, "counters": model.counters, **model.group}
        _write(self._run_folder / _file_name(attempt), arrays, metadata)
        self._models[attempt] = model
        wanted = {attempt, keeping}
        for other in self._models.keys() - wanted:
            del self._models[other]
        files = dict(_files(self._run_folder))
        for other in files.keys() - wanted - set(on_disk):
            files[other].unlink(missing_ok=True)
        self._files = (files.keys() & set(on_disk)) - wanted

    def write_final(self, attempt: Attempt, tensors: Mapping[str, NDArray[np.generic]]) -> Path:
        """Write the final model, tensor by tensor under the names of the module."""
        path = self.folder / FINAL_MODEL
        numbers = {key: str(number) for key, number in attempt.to_facts().items()}
        metadata = {"version": FILE_VERSION, "run": self.run, **numbers}
        if self._scaling is not None:
            metadata["mean"] = json.dumps(self._scaling.mean.ravel().tolist())
            metadata["deviation"] = json.dumps(self._scaling.deviation.ravel().tolist())
        _write(path, dict(tensors), metadata)
        return path


def stored_attempts(folder: Path) -> list[Attempt]:
    """The attempts whose models are stored for the last run that used this folder.

    For Join, which comes before the worker knows the run it joins.
    """
    runs = [path for path in folder.glob("*") if _RUN_NAME.match(path.name) and path.is_dir()]
    if not runs:
        return []
    newest = max(runs, key=lambda path: (path.stat().st_mtime_ns, path.name))
    return sorted(attempt for attempt, _ in _files(newest))


def _file_name(attempt: Attempt) -> str:
    return f"round-{attempt.round_index}-epoch-{attempt.epoch}-attempt-{attempt.number}.safetensors"


def _files(folder: Path) -> Iterator[tuple[Attempt, Path]]:
    for file in sorted(folder.iterdir()):
        if match := _FILE_NAME.match(file.name):
            round_index, epoch, number = map(int, match.groups())
            yield Attempt(epoch, round_index, number), file


def _read(file: Path, run: str, like: StoredModel) -> StoredModel:
    arrays, metadata = read_tensors(file)
    if metadata.get("version") != FILE_VERSION or metadata.get("run") != run:
        raise ValueError("it belongs to another version or run")
    expected: Arrays = {"model": like.row, "counters": like.counters, **like.group}
    for name, wanted in expected.items():
        values = arrays.get(name)
        if values is None or values.dtype != wanted.dtype or values.shape != wanted.shape:
            raise ValueError(f"the experiment has another form of {name}")
    group = {name: arrays[name] for name in like.group}
    model = StoredModel(arrays["model"], arrays["counters"], group)
    if metadata.get("digest") != _digest(model):
        raise ValueError("its checksum does not match")
    return model


def _write(path: Path, arrays: Arrays, metadata: dict[str, str]) -> None:
    with storage_errors(
        path, what="the model", option="--state", recovery="start this worker again"
    ):
        write_parts(path, tensor_parts(arrays, metadata), mode=PRIVATE_FILE)


def _digest(model: StoredModel) -> str:
    digest = hashlib.sha256()
    arrays: list[NDArray[Any]] = [model.row, model.counters]
    arrays += [model.group[name] for name in sorted(model.group)]
    for array in arrays:
        for block in array_blocks(array):
            digest.update(block)
    return digest.hexdigest()
