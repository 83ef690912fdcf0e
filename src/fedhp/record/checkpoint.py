"""Checkpoints: everything needed to resume bit for bit, in one safetensors file with a checksum.

A kill at any instant leaves the old or the new checkpoint whole.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhp.errors import RunError
from fedhp.files import write_parts
from fedhp.record.tensors import Arrays, array_blocks, read_tensors, tensor_parts

CHECKPOINT_FILE = "checkpoint.safetensors"
CHECKPOINT_VERSION = 1
STATE_COLUMNS = "state_columns"  # a scalar: which columns of the models the optimizer keeps
# A scalar: [start, stop] of columns that push-sum and tracking add to the models.
CARRIED_COLUMNS = "carried_columns"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state after a round: named arrays and JSON-ready scalars."""

    round_index: int
    arrays: Arrays
    scalars: dict[str, Any]


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Replace the run's checkpoint; the arrays are written from where they are in memory."""
    index, scalars = str(checkpoint.round_index), json.dumps(checkpoint.scalars)
    metadata = {
        "version": str(CHECKPOINT_VERSION),
        "round": index,
        "crc": str(_crc(checkpoint.arrays, index + scalars)),
        "scalars": scalars,
    }
    write_parts(folder / CHECKPOINT_FILE, tensor_parts(checkpoint.arrays, metadata))


def read_checkpoint(folder: Path, *, mapped: bool = False) -> Checkpoint | None:
    """The run's checkpoint, or None before the first.

    `mapped` arrays are read only and stay in the file: for reading them once.
    """
    path = folder / CHECKPOINT_FILE
    if not path.exists():
        return None
    try:
        arrays, metadata = read_tensors(path, mapped=mapped)
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from None
    if metadata.get("version") != str(CHECKPOINT_VERSION):
        raise _damaged(path, f"its version is {metadata.get('version')}, not {CHECKPOINT_VERSION}")
    index, scalars = metadata.get("round", ""), metadata.get("scalars", "")
    if metadata.get("crc") != str(_crc(arrays, index + scalars)):
        raise _damaged(path, "its checksum does not match")
    return Checkpoint(int(index), arrays, json.loads(scalars))


def _crc(arrays: Arrays, text: str) -> int:
    value = zlib.crc32(text.encode())
    for name in sorted(arrays):
        value = zlib.crc32(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode(), value)
        for block in array_blocks(arrays[name]):
            value = zlib.crc32(block, value)
    return value


def _damaged(path: Path, reason: str) -> RunError:
    return RunError(
        f"{path}: the checkpoint is damaged: {reason}",
        allowed="a checkpoint that fedhp wrote, unchanged",
        fix="delete that file: with --resume the run starts over and gives the same numbers",
    )


def current_models(saved: Checkpoint) -> NDArray[np.float32]:
    """The models that training continues from, [N, D], without the state of the optimizer."""
    models = saved.arrays["models"]
    if STATE_COLUMNS not in saved.scalars:
        return models
    start, stop = saved.scalars[STATE_COLUMNS]
    # At the end they are left out without a copy: the models may be larger than the memory.
    last = stop == models.shape[1]
    return models[:, :start] if last else np.delete(models, slice(start, stop), axis=1)


def served_models(saved: Checkpoint) -> NDArray[np.float32]:
    """The models that are tested and exported, [N, D]: with group averages, the consensus that each
    worker holds, and the worker's own values where nothing is exchanged. Without the state of the
    optimizer."""
    models, consensus = current_models(saved), saved.arrays.get("consensus")
    if consensus is None:  # AD-PSGD may serve another model than its current one
        return saved.arrays.get("served", models)
    return np.concatenate([consensus, models[:, consensus.shape[1] :]], axis=1)


def own_parameters(saved: Checkpoint) -> NDArray[np.float32]:
    """The models that are tested, [N, D], without the weight of push-sum and the side vectors of
    tracking, which are no part of them: a copy. Push-sum's models are divided by the weight
    already when a round ends."""
    models = served_models(saved)
    kept = np.ones(models.shape[1], dtype=np.bool_)
    for start, stop in saved.scalars.get(CARRIED_COLUMNS, ()):
        kept[start:stop] = False
    return np.array(models) if kept.all() else models[:, kept]
