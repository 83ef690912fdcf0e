"""Bytes of arrays and of table rows, for checksums and digests, without a second copy of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

STRIDE = 1 << 24  # bytes of a block, about, where an array has to be copied piece by piece


class Hash(Protocol):
    """What hashlib makes."""

    def update(self, data: Any, /) -> None:
        """Take in more bytes."""


def array_blocks(array: NDArray[Any]) -> Iterator[memoryview]:
    """The bytes of an array in C order: a view, or block by block where it has gaps."""
    if not array.size:
        return
    if array.flags.c_contiguous:
        yield array.reshape(-1).view(np.uint8).data
        return
    step = max(1, STRIDE // (array.nbytes // len(array) or 1))
    for start in range(0, len(array), step):
        piece = np.ascontiguousarray(array[start : start + step])
        yield piece.reshape(-1).view(np.uint8).data


def hash_rows(digest: Hash, rows: Sequence[Sequence[Any]]) -> None:
    """Take in a block of rows column by column, kinds and bits of all values."""
    digest.update(f"{len(rows)} rows ".encode())
    for column in zip(*rows, strict=True):
        kinds = set(map(type, column))
        if kinds <= {float, type(None)}:
            numbers = np.array(column, dtype="<f8")  # NULL becomes NaN, which SQLite cannot hold
            digest.update(b"float" if float in kinds else b"null")
            digest.update(numbers)
        elif kinds == {int}:
            digest.update(b"int")
            digest.update(np.array(column, dtype="<i8"))
        else:
            # repr tells 1 from 1.0, 0.0 from -0.0 and None from all of them, and keeps all bits.
            digest.update(b"any")
            digest.update("\0".join(map(repr, column)).encode())
