"""Digests that name copies of models.

The compressions themselves are in learn/quantize.py and learn/topk.py: a simulation uses them, too.
"""

from __future__ import annotations

import hashlib

import numpy as np

from fedhp.learn.quantize import Row


def row_digest(row: Row) -> bytes:
    """SHA-256 of the values: names a copy of a model."""
    return hashlib.sha256(np.ascontiguousarray(row, dtype="<f4").data).digest()
