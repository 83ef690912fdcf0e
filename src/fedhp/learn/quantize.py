"""Numbers in fewer bytes: half precision, and 8-bit integers with one scale per tensor or block.

Pure functions on rows of float32. The same bits on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhp.timing import INT8_BLOCK

Row = NDArray[np.float32]

INT8_LEVELS = 127  # on either side of zero
LARGEST_FLOAT = float(np.finfo(np.float32).max)
LARGEST_HALF = float(np.finfo(np.float16).max)
_SLICE_VALUES = 1 << 18  # worked on at a time: temporary arrays stay small and in the cache


def to_half(row: Row) -> NDArray[np.float16]:
    """Half precision; values beyond its range become its largest number, never infinite."""
    half = np.empty(len(row), dtype="<f2")
    for part in slices(len(row)):
        half[part] = np.clip(row[part], -LARGEST_HALF, LARGEST_HALF)
    return half


def to_int8(row: Row, ends: Sequence[int]) -> tuple[NDArray[np.int8], Row]:
    """Codes [D] and one scale per tensor; `ends` says where the tensors end in the row."""
    codes = np.zeros(len(row), dtype=np.int8)
    scales = np.zeros(len(ends), dtype="<f4")
    start = 0
    for index, end in enumerate(ends):
        tensor, target = row[start:end], codes[start:end]
        tops = [float(np.abs(tensor[part]).max()) for part in slices(len(tensor))]
        scale = scales[index] = scales_for(np.array([max(tops, default=0.0)]))[0]
        start = end
        if not scale:  # the tensor is zero, or so small that its scale is
            continue
        for part in slices(len(tensor)):
            np.clip(
                np.rint(tensor[part] / np.float64(scale)),
                -INT8_LEVELS,
                INT8_LEVELS,
                out=target[part],
                casting="unsafe",
            )
    return codes, scales


def from_int8(codes: NDArray[np.int8], scales: Row, ends: Sequence[int]) -> Row:
    """The row that was encoded; a scale that is too large gives infinite values."""
    row = np.empty(len(codes), dtype=np.float32)
    start = 0
    with np.errstate(over="ignore"):
        for scale, end in zip(scales, ends, strict=True):
            np.multiply(codes[start:end], scale, out=row[start:end])
            start = end
    return row


def to_int8_blocks(row: Row) -> tuple[NDArray[np.int8], Row]:
    """Codes [D] and one scale per block of INT8_BLOCK values; the last block may be shorter."""
    blocks = -(-len(row) // INT8_BLOCK)
    codes = np.zeros(len(row), dtype=np.int8)
    scales = np.zeros(blocks, dtype="<f4")
    for part in slices(len(row)):  # whole blocks: _SLICE_VALUES is a multiple of INT8_BLOCK
        values = _by_block(row[part])
        scale = scales_for(np.abs(values).max(axis=1).astype(np.float64))
        first = part.start // INT8_BLOCK
        scales[first : first + len(scale)] = scale
        steps = np.where(scale > 0, scale, 1).astype(np.float64)
        coded = np.clip(np.rint(values / steps[:, None]), -INT8_LEVELS, INT8_LEVELS)
        coded[scale == 0] = 0
        target = codes[part]
        target[:] = coded.reshape(-1)[: len(target)]
    return codes, scales


def from_int8_blocks(codes: NDArray[np.int8], scales: Row) -> Row:
    row = np.empty(len(codes), dtype=np.float32)
    with np.errstate(over="ignore"):
        for part in slices(len(codes)):
            values = _by_block(codes[part].astype(np.float32))
            first = part.start // INT8_BLOCK
            values = values * scales[first : first + len(values), None]
            target = row[part]
            target[:] = values.reshape(-1)[: len(target)]
    return row


def as_received(row: Row, compression: str, ends: Sequence[int]) -> Row:
    """A row after it has travelled as fp16 or int8, or as it is; `ends`: of its tensors."""
    if compression == "fp16":
        return to_half(row).astype(np.float32)
    if compression == "int8":
        return from_int8(*to_int8(row, ends), ends)
    return row


def received_share(compression: str, ends: Sequence[int]) -> float:
    """Bytes of a row that travels as fp16 or int8, as a share of its own."""
    width = ends[-1] if ends else 0
    if compression == "fp16" or not width:
        return 0.5 if width else 1.0
    return (width + 4 * len(ends)) / (4 * width) if compression == "int8" else 1.0


def scales_for(tops: NDArray[np.float64]) -> Row:
    """The scale for each largest magnitude, so that no code means more than float32 can hold."""
    scales = (tops / INT8_LEVELS).astype("<f4")
    # Rounded up, the largest code could mean more than float32 can hold.
    above = scales.astype(np.float64) * INT8_LEVELS > LARGEST_FLOAT
    return np.where(above, np.nextafter(scales, np.float32(0)), scales)


def all_finite(values: NDArray[Any]) -> bool:
    return all(bool(np.isfinite(values[part]).all()) for part in slices(len(values)))


def slices(length: int) -> Iterator[slice]:
    """A long row in parts that fit the cache."""
    return (slice(start, start + _SLICE_VALUES) for start in range(0, length, _SLICE_VALUES))


def _by_block(values: Row) -> Row:
    """The values as rows of INT8_BLOCK, zeros behind the last."""
    missing = -len(values) % INT8_BLOCK
    if missing:
        values = np.concatenate([values, np.zeros(missing, dtype=values.dtype)])
    return values.reshape(-1, INT8_BLOCK)
