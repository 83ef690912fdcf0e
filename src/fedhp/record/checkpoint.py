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
    index, scalars = str(checkpoint.round_index), json.dumps(checkpoint.scalars)
    metadata = {
        "version": str(VERSION),
        "round": index,
        "crc": str(_crc(checkpoint.arrays, index + scalars)),
        "scalars": scalars,
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
    if metadata.get("version") != str(VERSION):
        raise _damaged(path, f"its version is {metadata.get('version')}, not {VERSION}")
    index, scalars = metadata.get("round", ""), metadata.get("scalars", "")
    if metadata.get("crc") != str(_crc(arrays, index + scalars)):
        raise _damaged(path, "its checksum does not match")
    return Checkpoint(int(index), arrays, json.loads(scalars))


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


def _crc(arrays: Arrays, text: str) -> int:
    value = zlib.crc32(text.encode())
    for name in sorted(arrays):
        value = zlib.crc32(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode(), value)
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
        fix="delete that file: with --resume the run begins anew and gives the same numbers",
    )
