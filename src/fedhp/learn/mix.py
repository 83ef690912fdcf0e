"""Mixing and distances: x_i <- x_i + sum_j w_ij (x_j - x_i), Eq. (5), and ||x_i - x_j||.

Three kernels: a dense matrix product for many weights, a sparse one for few, and `ordered`, which
adds neighbors by rising number, one row at a time, so that every executor and every machine that
holds a part of the models gets the same bits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from fedhp.types import FloatArray, IntArray

# The sparse product costs about seven times as much per weight as the dense one (measured
# at 30 to 4,000 workers: it wins below a density of 0.13 to 0.2); at few workers both cost
# a pass over the memory.
SPARSE_DENSITY = 0.15
SPARSE_WORKERS = 64
# Columns at a time: the rows of a block stay near the core.
_DENSE_BYTES, _SPARSE_BYTES, _ORDERED_COLUMNS = 2 << 20, 1 << 20, 1 << 16
_GRAM_COLUMNS = 1 << 16  # in float64
_LINKS = 16  # that one thread measures at a time
CLOSE = 1e-8  # share of the squared distances to the center

S = TypeVar("S")
T = TypeVar("T")


class Map(Protocol):
    """Calls a job for every item, as the builtin `map` does; a shard's threads do it at once."""

    def __call__(self, job: Callable[[S], T], items: Iterable[S], /) -> Iterator[T]: ...


def choose(weights: csr_array, device: torch.device) -> str:
    """The faster product for these weights."""
    workers = weights.shape[0]
    few = weights.nnz < SPARSE_DENSITY * workers * workers and workers >= SPARSE_WORKERS
    return "sparse" if few and device.type == "cpu" else "dense"


def mix(
    after: Tensor,
    weights: csr_array,
    *,
    mixed: int,
    out: Tensor,
    kernel: str = "auto",
    run: Map = map,
) -> None:
    """out = W @ after in the first `mixed` columns; the others are copied."""
    kernel = choose(weights, after.device) if kernel == "auto" else kernel
    if kernel == "ordered":
        mix_ordered(list(after), weights, mixed=mixed, out=out, run=run)
    else:
        sparse, cpu = kernel == "sparse", after.device.type == "cpu"
        if sparse:
            matrix = _sparse_matrix(weights).to(after.device)
            block = max(256, min(8192, _SPARSE_BYTES // (4 * len(after))))
        else:
            matrix = torch.from_numpy(weights.toarray()).to(after)
            block = max(1024, _DENSE_BYTES // (4 * len(after))) if cpu else max(1, mixed)

        def job(start: int) -> None:
            stop = min(start + block, mixed)
            torch.mm(matrix, after[:, start:stop], out=out[:, start:stop])

        list(run(job, range(0, mixed, block)))
        # A worker without a neighbor keeps its bits. With push-sum one that only sends keeps a part
        # of its model: that is a product like any other.
        if not sparse:
            own = weights.diagonal() == 1.0
            alone = np.flatnonzero(own & (np.diff(weights.indptr) == 1))
            if len(alone):
                out[alone] = after[alone]
    if mixed < after.shape[1]:
        out[:, mixed:] = after[:, mixed:]


def mix_ordered(
    rows: Sequence[Tensor], weights: csr_array, *, mixed: int, out: Tensor, run: Map = map
) -> None:
    """out[i] = sum of w_ij rows[j], j rising; weights [n, len(rows)] with sorted columns."""
    starts, columns = weights.indptr.tolist(), weights.indices.tolist()
    values = weights.data.tolist()

    def job(start: int) -> None:
        stop = min(start + _ORDERED_COLUMNS, mixed)
        parts = [row[start:stop] for row in rows]
        for index in range(len(starts) - 1):
            first, last = starts[index], starts[index + 1]
            target = out[index, start:stop]
            torch.mul(parts[columns[first]], values[first], out=target)
            for entry in range(first + 1, last):
                target.add_(parts[columns[entry]], alpha=values[entry])

    list(run(job, range(0, mixed, _ORDERED_COLUMNS)))


def _sparse_matrix(weights: csr_array) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
        return torch.sparse_csr_tensor(
            torch.from_numpy(weights.indptr.astype(np.int32)),
            torch.from_numpy(weights.indices.astype(np.int32)),
            torch.from_numpy(weights.data.astype(np.float32)),
            size=weights.shape,
            check_invariants=True,  # cheap, once per round
        )


def distance(left: Tensor, right: Tensor) -> float:
    """||x_a - x_b|| of two rows, accumulated in float64.

    The difference of near numbers is exact in float32, so nothing is lost before the sum.
    """
    return float(torch.linalg.vector_norm(left - right, dtype=torch.float64))


def distances(matrix: Tensor, links: IntArray, *, run: Map = map) -> FloatArray:
    """||x_a - x_b|| for each link (a, b), [E], accumulated in float64.

    Many links: from a Gram matrix of the centred models, which keeps its precision when
    models nearly agree. Few links: one by one.
    """
    if not len(links):
        return np.empty(0)
    workers, width = matrix.shape
    # Nanoseconds, measured at 30 to 1,000 workers and 7,850 to 1,690,046 parameters.
    one_by_one_cost = len(links) * (0.8 * width + 10_000)
    if one_by_one_cost > width * (3 * workers + 0.053 * workers**2):
        return _from_gram(matrix, links)
    measured = np.empty(len(links))
    pairs, rows = links.tolist(), list(matrix)

    def job(start: int) -> None:
        for index in range(start, min(start + _LINKS, len(pairs))):
            a, b = pairs[index]
            measured[index] = distance(rows[a], rows[b])

    list(run(job, range(0, len(pairs), _LINKS)))
    return measured


def _from_gram(matrix: Tensor, links: IntArray) -> FloatArray:
    workers = len(matrix)
    left, right = torch.from_numpy(links[:, 0]), torch.from_numpy(links[:, 1])
    gram = torch.zeros((workers, workers), dtype=torch.float64)
    columns = max(1, min(_GRAM_COLUMNS, (1 << 22) // workers))
    for start in range(0, matrix.shape[1], columns):
        block = matrix[:, start : start + columns].double().cpu()
        block -= block.mean(dim=0)
        gram.addmm_(block, block.T)
    size = gram.diagonal()[left] + gram.diagonal()[right]
    squared = size - 2 * gram[left, right]
    # Where two models nearly agree but are far from the center, this difference loses most
    # digits: such pairs are measured one by one.
    for index in torch.nonzero(squared < CLOSE * size).ravel().tolist():
        a, b = links[index].tolist()
        squared[index] = distance(matrix[a], matrix[b]) ** 2
    return np.asarray(squared.clamp(min=0).sqrt().numpy(), dtype=np.float64)


def update_norms(before: Tensor, after: Tensor, trainable: int) -> FloatArray:
    """||x after - x before|| of every worker, [N]."""
    norms = [
        float(torch.linalg.vector_norm(a[:trainable] - b[:trainable]))
        for a, b in zip(after, before, strict=True)
    ]
    return np.array(norms)


def add_rows(total: Tensor, rows: Tensor) -> Any:
    """Add rows [n, D] to a float64 total [D], one after the other: shards continue the sum."""
    for row in rows:
        total += row
    return total
