"""Mixing and distances of rows: precision, what stays at home, directed averages."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from fedhp.graph import directed_weights, mixing_weights, topology_from
from fedhp.learn.mix import distances, mix, update_norms
from fedhp.types import FloatArray, IntArray


def models(workers: int, width: int, seed: int = 1) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_normal((workers, width)).astype(np.float32))


def all_pairs(workers: int) -> IntArray:
    return np.array(list(combinations(range(workers), 2)), dtype=np.int64)


def exact(matrix: torch.Tensor, links: IntArray) -> FloatArray:
    """Plain float64."""
    rows = matrix.numpy().astype(np.float64)
    result: FloatArray = np.linalg.norm(rows[links[:, 0]] - rows[links[:, 1]], axis=1)
    return result


def test_only_the_mixed_columns_travel() -> None:
    after = models(4, 10)
    out = torch.full((4, 10), 99.0)
    weights = mixing_weights(topology_from(4, [(0, 1), (1, 2), (2, 3)]))
    mix(after, weights, mixed=6, out=out)
    np.testing.assert_allclose(out[:, :6].numpy(), weights @ after[:, :6].numpy(), rtol=1e-5)
    assert torch.equal(out[:, 6:], after[:, 6:])


def test_a_worker_that_without_a_neighbor_keeps_its_bits() -> None:
    after = models(5, 1000)
    out = torch.empty_like(after)
    mix(after, mixing_weights(topology_from(5, [(0, 1), (1, 2)])), mixed=1000, out=out)
    assert torch.equal(out[3:], after[3:])
    assert not torch.equal(out[:3], after[:3])
    mix(after, csr_array(np.eye(5)), mixed=1000, out=out)
    assert torch.equal(out, after)


def test_a_worker_that_without_a_neighbor_is_safe_from_a_model_that_is_not_finite() -> None:
    after = models(4, 6)
    after[0, 0] = torch.inf
    after[1, 1] = torch.nan
    out = torch.empty_like(after)
    mix(after, mixing_weights(topology_from(4, [(0, 1)])), mixed=6, out=out)
    assert torch.equal(out[2:], after[2:])


def test_everyone_alike_after_a_full_graph() -> None:
    after = models(6, 50)
    out = torch.empty_like(after)
    mix(after, mixing_weights(topology_from(6, all_pairs(6))), mixed=50, out=out)
    np.testing.assert_allclose(out.numpy(), out[:1].repeat(6, 1).numpy(), atol=1e-6)
    np.testing.assert_allclose(out[0].numpy(), after.mean(dim=0).numpy(), atol=1e-6)


def test_equal_models_stay_equal_and_the_same() -> None:
    after = models(1, 200).repeat(7, 1)
    out = torch.empty_like(after)
    mix(after, mixing_weights(topology_from(7, all_pairs(7)[::2])), mixed=200, out=out)
    np.testing.assert_allclose(out.numpy(), after.numpy(), rtol=1e-6)


@pytest.mark.parametrize("width", [5, 1 << 16, (1 << 16) + 17])
def test_distances_many_and_few_links(width: int) -> None:
    """A Gram matrix or one by one, whole blocks or not: the same as plain float64."""
    matrix = models(8, width)
    every = all_pairs(8)
    assert 8 * len(every) > 64 >= 8 * len(every[:8])
    np.testing.assert_allclose(distances(matrix, every), exact(matrix, every), rtol=1e-9)
    np.testing.assert_allclose(distances(matrix, every[:8]), exact(matrix, every[:8]), rtol=1e-9)


@pytest.mark.parametrize("closeness", [1.0, 1e-2, 1e-5])
def test_distances_of_models_that_nearly_agree(closeness: float) -> None:
    """Models that differ by 1e-5 of their norm: the relative error stays below 1e-5."""
    center = models(1, 5000, seed=2) + 3
    spread = models(12, 5000, seed=3)
    matrix = center + closeness * float(center.norm() / spread.norm(dim=1).mean()) * spread
    for links in (all_pairs(12), all_pairs(12)[:10]):
        expected = exact(matrix, links)
        share = expected.mean() / float(center.norm())
        assert 0.5 * closeness < share < 3 * closeness
        assert np.abs(distances(matrix, links) / expected - 1).max() <= 1e-5


def test_distances_within_two_groups_far_apart() -> None:
    """Close pairs among far ones, the hardest case for a Gram matrix."""
    far = torch.cat([models(1, 4000, seed=4).repeat(6, 1), models(1, 4000, seed=5).repeat(6, 1)])
    matrix = far + 1e-4 * models(12, 4000, seed=6)
    links = all_pairs(12)
    expected = exact(matrix, links)
    close = expected < 1e-2 * expected.max()
    assert close.sum() == 30
    assert np.abs(distances(matrix, links) / expected - 1).max() <= 1e-5


def test_distance_of_equal_models_is_zero() -> None:
    matrix = models(1, 3000).repeat(5, 1)
    assert distances(matrix, all_pairs(5)).tolist() == [0.0] * 10
    assert distances(matrix, all_pairs(5)[:2]).tolist() == [0.0] * 2


def test_no_links_no_distances() -> None:
    assert distances(models(3, 4), np.empty((0, 2), dtype=np.int64)).tolist() == []


def test_measuring_leaves_the_models_alone() -> None:
    matrix = models(5, 100)
    before = matrix.clone()
    distances(matrix, all_pairs(5))
    distances(matrix.double(), all_pairs(5))
    assert torch.equal(matrix, before)


def test_update_norms_count_trainable_columns_only() -> None:
    before, after = models(3, 8, seed=7), models(3, 8, seed=8)
    result = update_norms(before, after, trainable=5)
    expected = np.linalg.norm((after - before).numpy().astype(np.float64)[:, :5], axis=1)
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    assert update_norms(before, before, trainable=8).tolist() == [0.0, 0.0, 0.0]


def test_directed_weights_are_row_stochastic() -> None:
    sources = np.array([[1, 2, 3], [0, -1, -1], [-1, -1, -1], [2, 0, -1]])
    result = directed_weights(sources).toarray()
    np.testing.assert_allclose(result.sum(axis=1), 1.0)
    assert result[0].tolist() == [0.25, 0.25, 0.25, 0.25]
    assert result[1].tolist() == [0.5, 0.5, 0.0, 0.0]
    assert result[2].tolist() == [0.0, 0.0, 1.0, 0.0]
    np.testing.assert_allclose(result[3], [1 / 3, 0, 1 / 3, 1 / 3])


def test_directed_mixing_averages_a_worker_with_its_sources() -> None:
    after = models(4, 30)
    out = torch.empty_like(after)
    sources = np.array([[1, 2], [0, -1], [-1, -1], [0, 1]])
    mix(after, directed_weights(sources), mixed=30, out=out)
    np.testing.assert_allclose(out[0].numpy(), after[[0, 1, 2]].mean(dim=0).numpy(), atol=1e-6)
    np.testing.assert_allclose(out[1].numpy(), after[[0, 1]].mean(dim=0).numpy(), atol=1e-6)
    assert torch.equal(out[2], after[2])
    np.testing.assert_allclose(out[3].numpy(), after[[0, 1, 3]].mean(dim=0).numpy(), atol=1e-6)
