"""Your own partition: each worker holds a few labels, and its neighbor the next ones.

    fedhp data split examples/own_partition.toml
    fedhp run examples/own_partition.toml

A partition is a function (labels, workers, seed, *, settings...). It returns one array of sample
indices per worker, or one array with the worker of each sample (-1: not used). The same seed must
give the same division: draw random numbers from np.random.default_rng(seed) only.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field


def sliding_labels(
    labels: NDArray[np.int64],
    workers: int,
    seed: int,
    *,
    labels_per_worker: Annotated[int, Field(ge=1)] = 3,
) -> list[NDArray[np.int64]]:
    """Worker w holds the labels w, w+1, ..., and shares each with the others that hold it."""
    rng = np.random.default_rng(seed)
    classes = int(labels.max()) + 1
    parts: list[list[NDArray[np.int64]]] = [[] for _ in range(workers)]
    for label in range(classes):
        holders = [
            worker
            for worker in range(workers)
            if (label - worker) % classes < min(labels_per_worker, classes)
        ]
        if not holders:
            continue  # the samples of a label that nobody holds are not used
        samples = rng.permutation(np.flatnonzero(labels == label))
        for worker, share in zip(holders, np.array_split(samples, len(holders)), strict=True):
            parts[worker].append(share)
    return [np.concatenate(shares) for shares in parts]
