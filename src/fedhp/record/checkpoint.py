"""Checkpoints: everything needed to go on bit-exactly, in one safetensors file.

Written beside the old one, synced, checksummed and renamed into place, so that a kill at any
instant leaves either the old or the new checkpoint whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fedhp.errors import RunError
from fedhp.record.packing import Arrays

FILE = "checkpoint.safetensors"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state after a round: named arrays and JSON-ready scalars."""

    round_index: int
    arrays: Arrays
    scalars: dict[str, Any]


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Replace the run's checkpoint."""
    metadata = {
        "version": str(VERSION),
        "round": str(checkpoint.round_index),
        "crc": str(_crc(checkpoint.arrays)),
        "scalars": json.dumps(checkpoint.scalars),
    }
    write_atomically(folder / FILE, save(checkpoint.arrays, metadata=metadata))


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """The run's checkpoint, or None before the first."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(path, str(error)) from None
    if metadata.get("version") != str(VERSION) or metadata.get("crc") != str(_crc(arrays)):
        raise _damaged(path, "its checksum or version does not match")
    return Checkpoint(int(metadata["round"]), arrays, json.loads(metadata["scalars"]))


def write_atomically(path: Path, content: bytes) -> None:
    """Write, sync, rename: the file is whole or not there."""
    temporary = path.with_name(path.name + ".new")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make a rename in this folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _crc(arrays: Arrays) -> int:
    value = 0
    for name in sorted(arrays):
        value = zlib.crc32(name.encode(), value)
        value = (
            zlib.crc32(np.ascontiguousarray(arrays[name]).data.cast("B"), value)
            if (arrays[name].size)
            else value
        )
    return value


def _damaged(path: Path, why: str) -> RunError:
    return RunError(
        f"{path}: the checkpoint is damaged: {why}",
        allowed="a checkpoint this program wrote, unchanged",
        fix="delete the run folder and start the run anew",
    )
