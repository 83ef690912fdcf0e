"""Named arrays on disk: safetensors files, and the dataclasses that are kept in them.

Files are read with the safetensors library. They are written by hand: the library orders the
metadata at random, so that equal models would give unequal files, and trusts that arrays have
no gaps.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize, safe_open

from fedhp.errors import RunError
from fedhp.files import open_plain

T = TypeVar("T")
Arrays = dict[str, NDArray[Any]]

DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|b1",
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
METADATA = "__metadata__"
BLOCK_BYTES = 1 << 24  # of an array with gaps, about, that are copied at a time


def tensor_parts(arrays: Arrays, metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """A file piece by piece: the header, then each array from where it is in memory."""
    # The widest numbers first keeps every array aligned.
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header: dict[str, Any] = {METADATA: dict(metadata)}
    offset = 0
    for name in order:
        if arrays[name].dtype.str not in DTYPE_NAMES:
            raise RunError(
                f"the array {name} holds {arrays[name].dtype}, which a checkpoint cannot hold",
                allowed="booleans, and integers and floats of up to 64 bits",
                fix="keep only these in the algorithm's state dataclass",
            )
        end = offset + arrays[name].nbytes
        header[name] = {
            "dtype": DTYPE_NAMES[arrays[name].dtype.str],
            "shape": list(arrays[name].shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return _parts(text, [arrays[name] for name in order])


def _parts(header: bytes, arrays: list[NDArray[Any]]) -> Iterator[bytes | memoryview]:
    yield len(header).to_bytes(8, "little") + header
    for array in arrays:
        yield from array_blocks(array)


def array_blocks(array: NDArray[Any]) -> Iterator[memoryview]:
    """The bytes of an array in C order: a view, or block by block where it has gaps."""
    if not array.size:
        return
    if array.flags.c_contiguous:
        yield array.reshape(-1).view(np.uint8).data
        return
    step = max(1, BLOCK_BYTES // (array.nbytes // len(array) or 1))
    for start in range(0, len(array), step):
        block = np.ascontiguousarray(array[start : start + step])
        yield block.reshape(-1).view(np.uint8).data


def read_tensors(path: Path, *, mapped: bool = False) -> tuple[Arrays, dict[str, str]]:
    """Arrays and metadata of a file; ValueError if it is damaged.

    `mapped` arrays are read only and stay in the file.
    """
    os.close(open_plain(path))
    try:
        with safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118 (it is not a dict)
                _check_dtype(name, file.get_slice(name).get_dtype())
            if mapped:
                arrays = _mapped(path, file)
            else:
                arrays = {name: file.get_tensor(name) for name in file.offset_keys()}
            return arrays, file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(str(error)) from None


def _mapped(path: Path, file: Any) -> Arrays:
    """Views into the file. The library made sure that the arrays follow each other closely."""
    content = np.memmap(path, dtype=np.uint8, mode="r")
    start, arrays = 8 + int.from_bytes(content[:8].tobytes(), "little"), Arrays()
    for name in file.offset_keys():
        entry = file.get_slice(name)
        dtype, shape = np.dtype(DTYPES[entry.get_dtype()]), entry.get_shape()
        end = start + math.prod(shape) * dtype.itemsize
        arrays[name] = content[start:end].view(dtype).reshape(shape)
        start = end
    return arrays


def read_buffer(content: bytes) -> tuple[Arrays, dict[str, str]]:
    """The same for a file that is in memory."""
    try:
        entries = deserialize(content)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    arrays = Arrays()
    for name, entry in entries:
        _check_dtype(name, entry["dtype"])
        values = np.frombuffer(entry["data"], dtype=DTYPES[entry["dtype"]])
        arrays[name] = values.reshape(entry["shape"])
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return arrays, header.get(METADATA, {})


def _check_dtype(name: str, dtype_name: str) -> None:
    if dtype_name not in DTYPES:
        raise ValueError(f"the array {name} holds {dtype_name}, not one of {', '.join(DTYPES)}")


def pack(prefix: str, value: Any) -> tuple[Arrays, dict[str, Any]]:
    """A flat dataclass as arrays and JSON-ready scalars, keys prefixed.

    The one form a state may take on disk: nothing in it can execute, and floats keep their bits.
    """
    arrays: Arrays = {}
    scalars: dict[str, Any] = {}
    for field in fields(value):
        item = getattr(value, field.name)
        key = f"{prefix}.{field.name}"
        if isinstance(item, np.ndarray):
            arrays[key] = np.ascontiguousarray(item)
        elif item is None or isinstance(item, bool | int | float | str):
            scalars[key] = item
        elif isinstance(item, np.generic):
            scalars[key] = item.item()
        else:
            raise RunError(
                f"{type(value).__name__}.{field.name} is a {type(item).__name__}, "
                "which a checkpoint cannot hold",
                allowed="numpy arrays, numbers, strings, booleans and None",
                fix="keep only these in the algorithm's state dataclass",
            )
    return arrays, scalars


def unpack(prefix: str, kind: type[T], arrays: Arrays, scalars: dict[str, Any]) -> T:
    """The dataclass that was packed."""
    values: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        key = f"{prefix}.{field.name}"
        if key in arrays:
            values[field.name] = arrays[key]
        elif key in scalars:
            values[field.name] = scalars[key]
        elif field.default is not MISSING:  # added after the checkpoint was written
            values[field.name] = field.default
        else:
            raise RunError(
                f"the checkpoint lacks {key}",
                fix="it was written by another version; start the run again in another folder",
            )
    return kind(**values)
