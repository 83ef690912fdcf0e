"""The fingerprint of a data set, by which machines notice that theirs differ.

The arrays are hashed as they were read, before anything is computed with them: processors round
differently, and equal files must have equal fingerprints everywhere.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from fedhp.data.raw import AnyArray, RawData
from fedhp.types import DataFingerprint, Dataset

_CHUNK_BYTES = 1 << 22


def fingerprint_of(
    raw: RawData | Dataset, *, pool: int = 1, scaled: bool = False
) -> DataFingerprint:
    """Of the samples that are used. A scaling is what the training inputs make it, so these are
    part of it."""
    inputs = _digest(raw.train_inputs)
    groups = None if raw.groups is None else _digest(np.asarray(raw.groups))
    targets = raw.test_targets.shape[1:]
    shape = [list(raw.train_inputs.shape[1:]), raw.classes, list(targets), list(raw.class_names)]
    test = [_digest(raw.test_inputs), _digest(raw.test_targets)]
    return DataFingerprint(
        train=_together([inputs, _digest(raw.train_targets), groups, pool]),
        test=_together([shape, test, pool, inputs if scaled else None]),
    )


def fingerprint(dataset: Dataset) -> DataFingerprint:
    """Of a prepared data set; that of a user's task has none before."""
    if dataset.fingerprint is not None:
        return dataset.fingerprint
    return fingerprint_of(dataset)


def _digest(array: AnyArray) -> str:
    digest = hashlib.sha256(json.dumps([array.dtype.str, list(array.shape)]).encode())
    rows = max(1, _CHUNK_BYTES // max(1, array[:1].nbytes))
    for start in range(0, len(array), rows):
        digest.update(np.ascontiguousarray(array[start : start + rows]).data)
    return digest.hexdigest()


def _together(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
