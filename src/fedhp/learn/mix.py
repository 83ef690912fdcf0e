"""Mixing and distances: x_i <- x_i + sum_j w_ij (x_j - x_i), Eq. (5), and ||x_i - x_j||."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedhp.types import FloatArray, IntArray

_BLOCK = 1 << 16  # columns at a time in float64
CLOSE = 1e-8  # of the squared distances to the center


def mix(after: Tensor, weights: FloatArray, *, mixed: int, out: Tensor) -> None:
    """out = W @ after in the first `mixed` columns; the others stay at home."""
    matrix = torch.from_numpy(weights).to(after)
    torch.matmul(matrix, after[:, :mixed], out=out[:, :mixed])
    # A worker that hears nobody keeps its bits.
    alone = np.flatnonzero((weights != 0).sum(axis=1) <= 1)
    if len(alone):
        out[alone] = after[alone]
    if mixed < after.shape[1]:
        out[:, mixed:] = after[:, mixed:]


def directed_weights(sources: IntArray) -> FloatArray:
    """Row-stochastic weights [N, N]: a worker and its sources [N, M] in equal parts."""
    weights = np.eye(len(sources))
    receivers, columns = np.nonzero(sources >= 0)
    weights[receivers, sources[receivers, columns]] = 1.0
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def distances(matrix: Tensor, links: IntArray) -> FloatArray:
    """||x_a - x_b|| for each link (a, b), [E], accumulated in float64.

    Many links: from a Gram matrix of the centred models, which keeps its precision when
    models nearly agree. Few links: one by one.
    """
    if not len(links):
        return np.empty(0)
    workers = len(matrix)
    left, right = torch.from_numpy(links[:, 0]), torch.from_numpy(links[:, 1])
    dense = 8 * len(links) > workers * workers
    squared = torch.zeros(len(links), dtype=torch.float64)
    gram = torch.zeros((workers, workers), dtype=torch.float64)
    for start in range(0, matrix.shape[1], _BLOCK):
        block = matrix[:, start : start + _BLOCK].double().cpu()
        if dense:
            block -= block.mean(dim=0)
            gram += block @ block.T
        else:
            for index, (a, b) in enumerate(links.tolist()):
                squared[index] += (block[a] - block[b]).pow(2).sum()
    if dense:
        size = gram.diagonal()[left] + gram.diagonal()[right]
        squared = size - 2 * gram[left, right]
        # Where two models nearly agree, but lie far from the center, little is left of the
        # digits after this difference: such pairs are measured one by one.
        for index in torch.nonzero(squared < CLOSE * size).ravel().tolist():
            a, b = links[index].tolist()
            squared[index] = (matrix[a].double() - matrix[b].double()).pow(2).sum()
    return np.asarray(squared.clamp(min=0).sqrt().numpy(), dtype=np.float64)


def update_norms(before: Tensor, after: Tensor, trainable: int) -> FloatArray:
    """||x after - x before|| of every worker, [N]."""
    norms = [
        float(torch.linalg.vector_norm(a[:trainable] - b[:trainable]))
        for a, b in zip(after, before, strict=True)
    ]
    return np.array(norms)
