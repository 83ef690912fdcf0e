"""The models a worker has on disk: the last two stands of a run, and the final model.

A stand is the attempt that made a model: (epoch, round, number), all 0 for the initial one. A
file is written beside, synced and renamed, so that it is whole or not there; its checksum tells
what a failing disk did to it.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedhp.cluster.protocol.attempt import Attempt
from fedhp.files import make_folder, storage_errors, write_parts
from fedhp.record.hashing import array_blocks
from fedhp.record.packing import Arrays
from fedhp.record.tensors import read_tensors, tensor_file

log = logging.getLogger("fedhp.worker")

FINAL = "model.safetensors"
KEPT = 2  # stands: the committed one, and the one that may be committed next
VERSION = "1"
_NAME = re.compile(r"^round-(\d{1,10})-epoch-(\d{1,20})-attempt-(\d{1,10})\.safetensors$")
_RUN = re.compile(r"^[0-9a-f]{32}$")


@dataclass(frozen=True, slots=True)
class Kept:
    """One model: all its columns, and its counters, which never travel."""

    row: NDArray[np.float32]  # [D]
    counters: NDArray[np.int64]  # [C]


class ModelStore:
    """The kept models of one run, in memory and on disk."""

    def __init__(self, folder: Path, run: str) -> None:
        self.run = run
        self.folder = folder
        self._place = folder / run
        self._models: dict[Attempt, Kept] = {}
        make_folder(self._place, option="--state")

    def load(self, *, width: int, counters: int) -> None:
        """Read what an earlier process left; what is damaged or does not fit is left alone."""
        for stand, file in _files(self._place):
            try:
                self._models[stand] = _read(file, self.run, width=width, counters=counters)
            except (OSError, ValueError, RecursionError) as error:
                log.warning("kept model not usable", extra={"file": file.name, "why": str(error)})

    def stands(self) -> list[Attempt]:
        """The models that are there, the oldest first."""
        there = list(self._models)  # at once: the learner's thread may write meanwhile
        return sorted(there)

    def get(self, stand: Attempt) -> Kept | None:
        """The model of a stand."""
        return self._models.get(stand)

    def hold(self, stand: Attempt, model: Kept) -> None:
        """Keep a model in memory only: the initial one, which every process can make anew."""
        self._models[stand] = model

    def write(self, stand: Attempt, model: Kept, *, beside: Attempt) -> None:
        """Keep a model durably, and of all others only that of the stand `beside`."""
        metadata = {
            "version": VERSION,
            "run": self.run,
            "digest": _digest(model),
            **_facts(stand),
        }
        arrays: Arrays = {"model": model.row, "counters": model.counters}
        _write(self._place / _name(stand), arrays, metadata)
        self._models[stand] = model
        self.prune({stand, beside})

    def prune(self, wanted: set[Attempt]) -> None:
        """Drop all models but these."""
        for stand in set(self._models) - wanted:
            del self._models[stand]
        for stand, file in _files(self._place):
            if stand not in wanted:
                file.unlink(missing_ok=True)

    def finish(self, stand: Attempt, tensors: Mapping[str, NDArray[np.generic]]) -> Path:
        """Write the final model, tensor by tensor under the names of the module."""
        path = self.folder / FINAL
        metadata = {"version": VERSION, "run": self.run, **_facts(stand)}
        _write(path, dict(tensors), metadata)
        return path


def last_stands(folder: Path) -> tuple[str, list[Attempt]]:
    """The run this folder was used for last and the stands of its files; before any, "" and none.

    For Join, which comes before the worker knows the run it joins.
    """
    runs = [place for place in folder.glob("*") if _RUN.match(place.name) and place.is_dir()]
    if not runs:
        return "", []
    newest = max(runs, key=lambda place: (place.stat().st_mtime_ns, place.name))
    return newest.name, sorted(stand for stand, _ in _files(newest))


def _facts(stand: Attempt) -> dict[str, str]:
    return {key: str(number) for key, number in stand.to_facts().items()}


def _name(stand: Attempt) -> str:
    return f"round-{stand.round_index}-epoch-{stand.epoch}-attempt-{stand.number}.safetensors"


def _files(place: Path) -> Iterator[tuple[Attempt, Path]]:
    for file in sorted(place.iterdir()):
        if match := _NAME.match(file.name):
            round_index, epoch, number = map(int, match.groups())
            yield Attempt(epoch, round_index, number), file


def _read(file: Path, run: str, *, width: int, counters: int) -> Kept:
    with file.open("rb", buffering=0) as stream:
        arrays, metadata = read_tensors(stream)
    if metadata.get("version") != VERSION or metadata.get("run") != run:
        raise ValueError("it is of another version or run")
    row, counted = arrays.get("model"), arrays.get("counters")
    if row is None or row.dtype != np.float32 or row.shape != (width,):
        raise ValueError("its model does not fit the experiment")
    if counted is None or counted.dtype != np.int64 or counted.shape != (counters,):
        raise ValueError("its counters do not fit the experiment")
    model = Kept(row, counted)
    if metadata.get("digest") != _digest(model):
        raise ValueError("its checksum does not match")
    return model


def _write(path: Path, arrays: Arrays, metadata: dict[str, str]) -> None:
    with storage_errors(
        path, what="the model", option="--state", recovery="start this worker again"
    ):
        write_parts(path, tensor_file(arrays, metadata))


def _digest(model: Kept) -> str:
    digest = hashlib.sha256()
    for array in (model.row, model.counters):
        for block in array_blocks(array):
            digest.update(block)
    return digest.hexdigest()
