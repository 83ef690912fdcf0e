"""The safetensors file format, written and read without a second copy of the arrays.

8 bytes of header size (little endian), a JSON header padded with blanks, then the arrays. The
library's own functions build the whole file in memory first.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from io import BytesIO, FileIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhp.errors import RunError
from fedhp.record.hashing import array_blocks
from fedhp.record.packing import Arrays

KINDS = {
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
NAMES = {kind: name for name, kind in KINDS.items()}
METADATA = "__metadata__"
LARGEST_HEADER = 100_000_000  # bytes, as in the library


def tensor_file(arrays: Arrays, metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """The file piece by piece: header first, then each array as it lies in memory."""
    # The widest numbers first keeps every array aligned.
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header: dict[str, Any] = {METADATA: dict(metadata)}
    place = 0
    for name in order:
        end = place + arrays[name].nbytes
        header[name] = {
            "dtype": _kind(name, arrays[name]),
            "shape": list(arrays[name].shape),
            "data_offsets": [place, end],
        }
        place = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return _pieces(text, [arrays[name] for name in order])


def read_buffer(content: bytes) -> tuple[Arrays, dict[str, str]]:
    """The same for a file that is in memory."""
    return _read(BytesIO(content), len(content), None)


def read_tensors(stream: FileIO, *, mapped: bool = False) -> tuple[Arrays, dict[str, str]]:
    """Arrays and metadata of a file; ValueError where it is none. Mapped ones stay in the file."""
    whole = np.memmap(stream, dtype=np.uint8, mode="r") if mapped else None
    stream.seek(0)
    return _read(stream, os.fstat(stream.fileno()).st_size, whole)


def _read(
    stream: FileIO | BytesIO, size: int, whole: NDArray[np.uint8] | None
) -> tuple[Arrays, dict[str, str]]:
    length = int.from_bytes(stream.read(8), "little")
    if size < 8 or length > min(size - 8, LARGEST_HEADER):
        raise ValueError(f"its header of {length} bytes does not fit into {size} bytes")
    header = json.loads(stream.read(length))
    if not isinstance(header, dict) or not isinstance(metadata := header.pop(METADATA, {}), dict):
        raise ValueError("its header is no table")
    start, arrays, place = 8 + length, Arrays(), 0
    for name, entry in sorted(header.items(), key=lambda item: _offsets(item[1])):
        kind, shape, (begin, end) = _entry(entry)
        if begin != place or start + end > size:
            raise ValueError(f"the array {name} is not in its place")
        place = end
        if whole is not None:
            arrays[name] = whole[start + begin : start + end].view(kind).reshape(shape)
            continue
        arrays[name] = np.empty(shape, dtype=kind)
        for block in array_blocks(arrays[name]):
            _fill(stream, block)
    if start + place != size:
        raise ValueError(f"it has {size} bytes, not {start + place}")
    return arrays, metadata


def _fill(stream: FileIO | BytesIO, block: memoryview) -> None:
    """Unbuffered, for a system call reads straight into the array, at most 2 GB at once."""
    while len(block):
        done = stream.readinto(block)
        if not done:
            raise ValueError("the file ends within an array")
        block = block[done:]


def _pieces(header: bytes, arrays: list[NDArray[Any]]) -> Iterator[bytes | memoryview]:
    yield len(header).to_bytes(8, "little") + header
    for array in arrays:
        yield from array_blocks(array)


def _kind(name: str, array: NDArray[Any]) -> str:
    kind = NAMES.get(array.dtype.str)
    if kind is None:
        raise RunError(
            f"the array {name} holds {array.dtype}, which a checkpoint cannot hold",
            allowed="booleans, and integers and floats of up to 64 bits",
            fix="keep only these in the algorithm's state dataclass",
        )
    return kind


def _offsets(entry: Any) -> tuple[int, int]:
    offsets = _sizes(entry.get("data_offsets")) if isinstance(entry, dict) else []
    if len(offsets) != 2:
        raise ValueError("an entry of its header names no place")
    return offsets[0], offsets[1]


def _entry(entry: dict[str, Any]) -> tuple[np.dtype[Any], tuple[int, ...], tuple[int, int]]:
    begin, end = _offsets(entry)
    shape = _sizes(entry.get("shape"))
    if entry.get("dtype") not in NAMES.values():
        raise ValueError(f"an array holds {entry.get('dtype')}")
    kind = np.dtype(KINDS[entry["dtype"]])
    if math.prod(shape) * kind.itemsize != end - begin:
        raise ValueError("an array's shape does not fit its size")
    return kind, tuple(shape), (begin, end)


def _sizes(value: Any) -> list[int]:
    if not isinstance(value, list) or not all(type(each) is int and each >= 0 for each in value):
        raise ValueError("an entry of its header is no list of sizes")
    return value
