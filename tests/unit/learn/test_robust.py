"""Robust mixing against plain references, and against peers that lie."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedhp.learn import robust
from fedhp.learn.robust import ROBUST_RULES, combine
from fedhp.types import FloatArray


def models(count: int, width: int, seed: int = 1) -> Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_normal((count, width)).astype(np.float32))


def combined(
    rows: Tensor,
    rule: str,
    *,
    weight: float = 0.1,
    poisoned: int = 2,
    clip: float = 2.0,
    radius: float | None = None,
) -> Tensor:
    """The first row is the own one; all peers have the same weight."""
    weights = [weight] * (len(rows) - 1)
    own_weight = 1 - sum(weights)
    return combine(
        rows[0],
        list(rows[1:]),
        weights,
        own_weight,
        rule=rule,
        poisoned=poisoned,
        clip=clip,
        radius=radius,
    )


def naive_trimmed(rows: FloatArray, poisoned: int) -> FloatArray:
    count = len(rows)
    cut = poisoned
    while count - 2 * cut < 1:
        cut -= 1
    result = [sorted(column)[cut : count - cut] for column in rows.T.tolist()]
    return np.array([sum(column) / len(column) for column in result])


def naive_clipped(rows: FloatArray, weights: list[float], clip: float) -> FloatArray:
    own = rows[0]
    lengths = [float(np.linalg.norm(row - own)) for row in rows[1:]]
    middle = sorted(lengths)[(len(lengths) - 1) // 2]
    result: FloatArray = own.copy()
    for row, weight, length in zip(rows[1:], weights, lengths, strict=True):
        factor = min(1.0, clip * middle / length) if length else 1.0
        result += weight * factor * (row - own)
    return result


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robust, "_SORTED_BYTES", 1 << 12)
    monkeypatch.setattr(robust, "_PAIR_COLUMNS", 100)


# Several blocks with a rest, so few models that none are cut, and one more than a power of 2.
SIZES = pytest.mark.parametrize(
    ("count", "width"), [(2, 5), (3, 1001), (4, 300), (9, 701), (17, 512), (40, 601)]
)


@SIZES
@pytest.mark.parametrize("poisoned", [1, 2, 4, 8])
def test_trimmed_mean_is_that_of_the_sorted_columns(count: int, width: int, poisoned: int) -> None:
    rows = models(count, width)
    expected = naive_trimmed(rows.numpy().astype(np.float64), poisoned)
    result = combined(rows, "trimmed_mean", poisoned=poisoned)
    np.testing.assert_allclose(result, expected, atol=1e-6)


@SIZES
def test_median_is_numpys(count: int, width: int) -> None:
    rows = models(count, width)
    expected = np.median(rows.numpy().astype(np.float64), axis=0)
    np.testing.assert_allclose(combined(rows, "median"), expected, atol=1e-6)


@SIZES
@pytest.mark.parametrize("clip", [0.3, 1.0, 2.0])
def test_clip_shortens_long_differences(count: int, width: int, clip: float) -> None:
    rows = models(count, width) * torch.linspace(0.1, 9, count)[:, None]
    weights = [0.5 / count + 0.001 * index for index in range(count - 1)]
    result = combine(
        rows[0], list(rows[1:]), weights, 1 - sum(weights), rule="clip", poisoned=2, clip=clip
    )
    expected = naive_clipped(rows.numpy().astype(np.float64), weights, clip)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_without_a_reason_to_clip_it_is_the_weighted_mean() -> None:
    rows = models(4, 1000)
    weights = [0.3, 0.2, 0.1]
    result = combine(rows[0], list(rows[1:]), weights, 0.4, rule="clip", poisoned=2, clip=100)
    expected = torch.tensor([0.4, *weights], dtype=torch.float64) @ rows.double()
    np.testing.assert_allclose(result, expected, atol=1e-6)
    doubled = [2 * weight for weight in weights]
    same = combine(rows[0], list(rows[1:]), doubled, 0.8, rule="clip", poisoned=2, clip=100)
    np.testing.assert_allclose(same, result, atol=1e-6)


def test_of_two_peers_the_nearer_one_says_how_far_is_too_far() -> None:
    rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1e6]])
    result = combined(rows, "clip", weight=0.25, clip=2.0)
    np.testing.assert_allclose(result, [0.25, 0.5])


@pytest.mark.parametrize("count", range(1, 13))
def test_the_network_sorts_everything(count: int) -> None:
    """What sorts all zeros and ones sorts all numbers."""
    columns = torch.tensor(list(product([0.0, 1.0], repeat=count))).T.contiguous()
    rows = list(columns)
    for low, high in robust._network(count):
        assert low < high < count
        rows[low], rows[high] = (
            torch.minimum(rows[low], rows[high]),
            torch.maximum(rows[low], rows[high]),
        )
    assert torch.equal(torch.stack(rows), columns.sort(dim=0).values)


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(0, 40), st.sampled_from(ROBUST_RULES), st.integers(0, 99))
def test_nothing_given_is_changed_and_equal_models_stay(
    count: int, width: int, rule: str, seed: int
) -> None:
    rows = models(count, width, seed)
    before = rows.clone()
    result = combined(rows, rule)
    assert torch.equal(rows, before)
    assert result.shape == (width,)
    if width:  # within the range of what came in
        assert (result <= rows.amax(0) + 1e-6).all()
        assert (result >= rows.amin(0) - 1e-6).all()
    same = rows[:1].expand(count, width)
    np.testing.assert_allclose(combined(same, rule), rows[0], rtol=1e-6)


@pytest.mark.parametrize("rule", ROBUST_RULES)
def test_a_worker_without_peers_keeps_its_model(rule: str) -> None:
    row = models(1, 10)[0]
    result = combine(row, [], [], 1.0, rule=rule, poisoned=2, clip=2.0)
    assert torch.equal(result, row)
    assert result.data_ptr() != row.data_ptr()


@pytest.mark.parametrize("rule", ROBUST_RULES)
def test_huge_values_stay_finite(rule: str) -> None:
    top = torch.finfo(torch.float32).max
    rows = torch.full((6, 8), top)
    rows[1::2] = -top
    assert combined(rows, rule).isfinite().all()
    assert combined(rows.abs(), rule).isfinite().all()


def test_wrong_calls_are_refused() -> None:
    row = models(1, 10)[0]
    with pytest.raises(ValueError, match="unknown rule 'mean'"):
        combine(row, [row], [0.5], 0.5, rule="mean", poisoned=2, clip=2.0)
    with pytest.raises(ValueError, match="1 peers have 2 weights"):
        combine(row, [row], [0.5, 0.1], 0.4, rule="clip", poisoned=2, clip=2.0)


@pytest.mark.parametrize("rule", ROBUST_RULES)
@pytest.mark.parametrize("strength", [1.0, 100.0])
def test_a_fifth_of_the_peers_flipping_signs_moves_little(rule: str, strength: float) -> None:
    rng = np.random.default_rng(4)
    center = rng.standard_normal(5000)
    rows = (center + 0.1 * rng.standard_normal((11, 5000))).astype(np.float32)
    rows[[3, 8]] *= -strength
    honest = np.delete(rows, [3, 8], axis=0).astype(np.float64).mean(axis=0)
    size = float(np.linalg.norm(honest))
    result = combined(torch.from_numpy(rows), rule, weight=1 / 11, poisoned=2).numpy()
    plain = rows.astype(np.float64).mean(axis=0)
    assert np.linalg.norm(result - honest) < 0.1 * size
    assert np.linalg.norm(plain - honest) > 0.3 * size


def naive_krum(rows: FloatArray, poisoned: int) -> FloatArray:
    scores = []
    for row in rows:
        squares = sorted(float(((row - other) ** 2).sum()) for other in rows)
        scores.append(sum(squares[1 : 1 + max(1, len(rows) - poisoned - 2)]))
    return np.asarray(rows[scores.index(min(scores))])


@pytest.mark.parametrize("count", [2, 3, 6, 9])
@pytest.mark.parametrize("poisoned", [1, 2, 4])
def test_krum_takes_one_of_the_models(count: int, poisoned: int) -> None:
    for seed in range(5):
        rows = models(count, 300, seed)
        expected = naive_krum(rows.double().numpy(), poisoned)
        assert np.array_equal(combined(rows, "krum", poisoned=poisoned).numpy(), expected)


@pytest.mark.parametrize("radius", [0.1, 20.0, 1e6])
def test_a_fixed_radius_shortens_every_difference(radius: float) -> None:
    rows = models(5, 300)
    rows[3] *= 50
    own, expected = rows[0].double(), rows[0].double().clone()
    for row in rows[1:]:
        difference = row.double() - own
        expected += 0.1 * difference * min(1.0, radius / float(difference.norm()))
    result = combined(rows, "clip", radius=radius)
    torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-5)
