"""Pairs that nearly agree are measured well, however far the other models are."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import torch

from fedhp.learn.mix import distances


def models(workers: int, seed: int) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_normal((workers, 4000)).astype(np.float32))


def test_close_pairs_among_far_ones() -> None:
    far = torch.cat([models(1, 4).repeat(6, 1), models(1, 5).repeat(6, 1)])
    matrix = far + 1e-5 * models(12, 6)
    links = np.array(list(combinations(range(12), 2)))
    rows = matrix.numpy().astype(np.float64)
    expected = np.linalg.norm(rows[links[:, 0]] - rows[links[:, 1]], axis=1)
    assert np.abs(distances(matrix, links) / expected - 1).max() <= 1e-5
