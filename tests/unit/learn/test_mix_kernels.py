"""The kernels of mixing against each other, against a plain loop, and in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from typing import TypeVar

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import Tensor

from fedhp.graph import directed_weights, link_weights, mixing_weights, topology_from
from fedhp.learn import mix as module
from fedhp.learn.mix import (
    choose,
    distance,
    distances,
    mix,
    mix_ordered,
)
from fedhp.types import IntArray

S = TypeVar("S")
T = TypeVar("T")
CPU = torch.device("cpu")
KERNELS = ("dense", "sparse", "ordered", "auto")
# Widths that no block divides, and one that a block does.
CASES = [(5, 1), (5, 70_001), (70, 9_001), (70, 4096), (200, 5_003)]
SIZES = pytest.mark.parametrize(("workers", "width"), CASES)


def models(workers: int, width: int, seed: int = 1) -> Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_normal((workers, width)).astype(np.float32))


def links(workers: int, share: float, seed: int = 2) -> IntArray:
    """A random graph; the last worker is alone."""
    every = np.array(list(combinations(range(workers - 1), 2)), dtype=np.int64)
    chosen: IntArray = every[np.random.default_rng(seed).random(len(every)) < share]
    return chosen


def weights_of(workers: int, kind: str, share: float) -> csr_array:
    if kind != "directed":
        return mixing_weights(topology_from(workers, links(workers, share)), kind)
    rng = np.random.default_rng(3)
    sources = np.full((workers, 3), -1)
    for worker in range(workers - 1):
        others = np.delete(np.arange(workers), worker)
        count = int(rng.integers(4))
        sources[worker, :count] = rng.choice(others, size=count, replace=False)
    return directed_weights(sources)


def mixed(after: Tensor, weights: csr_array, kernel: str, columns: int) -> Tensor:
    out = torch.full_like(after, 99.0)
    mix(after, weights, mixed=columns, out=out, kernel=kernel)
    return out


@SIZES
@pytest.mark.parametrize("share", [0.03, 0.6])
@pytest.mark.parametrize("kind", ["metropolis", "directed"])
def test_all_kernels_agree(workers: int, width: int, share: float, kind: str) -> None:
    after, weights = models(workers, width), weights_of(workers, kind, share)
    exact = weights.toarray() @ after.numpy().astype(np.float64)
    columns = width - width // 7
    alone = np.flatnonzero(np.diff(weights.indptr) == 1)
    assert workers - 1 in alone
    for kernel in KERNELS:
        result = mixed(after, weights, kernel, columns)
        np.testing.assert_allclose(result[:, :columns], exact[:, :columns], rtol=0, atol=1e-6)
        assert torch.equal(result[:, columns:], after[:, columns:])  # these do not travel
        assert torch.equal(result[alone], after[alone])  # no neighbor: not a bit changes


def test_one_that_only_sends_keeps_its_share() -> None:
    """Push-sum: what a sender gives away must be missing in its own row, or mass is created."""
    own, sent = np.array([0.5, 1.0, 0.5, 1.0]), np.array([[1, 0], [3, 2]])
    weights = link_weights(sent, np.full(2, 0.5), own)
    after = models(4, 33)
    for kernel in KERNELS:
        result = mixed(after, weights, kernel, 30)[:, :30]
        np.testing.assert_allclose(result, (weights.toarray() @ after.numpy())[:, :30], atol=1e-6)
        np.testing.assert_allclose(result.sum(dim=0), after.sum(dim=0)[:30], atol=1e-5)
        assert torch.equal(result[0], 0.5 * after[0, :30])


def test_one_that_takes_a_whole_model_has_it() -> None:
    """A single weight that is not the worker's own."""
    weights = csr_array((np.ones(3), ([0, 1, 2], [1, 1, 0])), shape=(3, 3))
    after = models(3, 20)
    for kernel in KERNELS:
        assert torch.equal(mixed(after, weights, kernel, 20), after[[1, 1, 0]])


def test_nothing_travels() -> None:
    after, weights = models(5, 40), weights_of(5, "metropolis", 0.9)
    for kernel in KERNELS:
        assert torch.equal(mixed(after, weights, kernel, 0), after)


def plain(after: Tensor, weights: csr_array) -> Tensor:
    """One worker and one neighbor at a time, by rising number."""
    rows = []
    for worker in range(weights.shape[0]):
        own = slice(weights.indptr[worker], weights.indptr[worker + 1])
        pairs = sorted(zip(weights.indices[own].tolist(), weights.data[own].tolist(), strict=True))
        (first, weight), *others = pairs
        total = after[first] * weight
        for neighbor, share in others:
            total = torch.add(total, after[neighbor], alpha=share)
        rows.append(total)
    return torch.stack(rows)


@SIZES
@pytest.mark.parametrize("kind", ["max_degree", "directed"])
def test_ordered_is_a_plain_loop(workers: int, width: int, kind: str) -> None:
    after, weights = models(workers, width), weights_of(workers, kind, 0.3)
    assert torch.equal(mixed(after, weights, "ordered", width), plain(after, weights))


@SIZES
def test_ordered_in_parts_gives_the_same_bits(workers: int, width: int) -> None:
    """A shard knows the rows of its workers and of their neighbors only, in a list."""
    after, weights = models(workers, width), weights_of(workers, "metropolis", 0.1)
    whole = mixed(after, weights, "ordered", width)
    for chosen in np.array_split(np.random.default_rng(4).permutation(workers), 3):
        part = weights[np.sort(chosen)]
        needed, places = np.unique(part.indices, return_inverse=True)
        compact = csr_array((part.data, places, part.indptr), shape=(len(chosen), len(needed)))
        out = torch.empty(len(chosen), width)
        mix_ordered([after[i].clone() for i in needed], compact, mixed=width, out=out)
        assert torch.equal(out, whole[np.sort(chosen)])


def test_blocks_in_any_order_and_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors take blocks as they come; the ordered kernel does not feel their size."""

    def backwards(job: Callable[[S], T], items: Iterable[S], /) -> Iterator[T]:
        return map(job, reversed(list(items)))

    after, weights = models(70, 9_001), weights_of(70, "metropolis", 0.3)
    for kernel in ("dense", "sparse", "ordered"):
        out = torch.empty_like(after)
        mix(after, weights, mixed=9_001, out=out, kernel=kernel, run=backwards)
        assert torch.equal(out, mixed(after, weights, kernel, 9_001))
    whole = mixed(after, weights, "ordered", 9_001)
    monkeypatch.setattr(module, "_ORDERED_COLUMNS", 777)
    assert torch.equal(mixed(after, weights, "ordered", 9_001), whole)


def test_sparse_where_few_weights_are_set() -> None:
    ring = [(i, i + 1) for i in range(99)]
    assert choose(mixing_weights(topology_from(100, ring)), CPU) == "sparse"
    assert choose(mixing_weights(topology_from(100, ring)), torch.device("cuda")) == "dense"
    assert choose(mixing_weights(topology_from(40, ring[:39])), CPU) == "dense"
    every = list(combinations(range(100), 2))
    assert choose(mixing_weights(topology_from(100, every)), CPU) == "dense"
    # 100 of the diagonal and two of each link: the border lies between 699 and 700 links.
    assert choose(mixing_weights(topology_from(100, every[:699])), CPU) == "sparse"
    assert choose(mixing_weights(topology_from(100, every[:700])), CPU) == "dense"


def test_auto_is_the_kernel_that_was_chosen() -> None:
    after = models(70, 500)
    for share, kernel in ((0.03, "sparse"), (0.6, "dense")):
        weights = weights_of(70, "metropolis", share)
        assert choose(weights, CPU) == kernel
        assert torch.equal(mixed(after, weights, "auto", 500), mixed(after, weights, kernel, 500))


@pytest.mark.parametrize("closeness", [1.0, 1e-3, 1e-5])
@pytest.mark.parametrize("far", [False, True], ids=["one group", "two groups"])
def test_distances_from_a_gram_matrix_and_direct(closeness: float, far: bool) -> None:
    """Also where models differ by 1e-5 of their norm, around one center or two."""
    center = models(2 if far else 1, 3001, seed=5).repeat_interleave(6 if far else 12, dim=0)
    matrix = center + closeness * models(12, 3001, seed=6)
    every = np.array(list(combinations(range(12), 2)), dtype=np.int64)
    assert 16 * len(every) > 12 * 12 >= 16 * 9  # all are taken from the Gram matrix, 9 are not
    gram = distances(matrix, every)
    blocks = [every[start : start + 9] for start in range(0, len(every), 9)]
    direct = np.concatenate([distances(matrix, block) for block in blocks])
    single = np.array([distance(matrix[a], matrix[b]) for a, b in every.tolist()])
    assert (single > 0).all()
    np.testing.assert_allclose(gram, single, rtol=1e-5)
    np.testing.assert_allclose(direct, single, rtol=1e-9)


@pytest.mark.parametrize(
    ("workers", "width", "few"), [(12, 3001, 10), (40, 500, 9), (64, 9001, 214)]
)
def test_few_links_are_measured_one_by_one(workers: int, width: int, few: int) -> None:
    """So many are the last that cost less than a Gram matrix; they have the bits of `distance`."""
    matrix = models(workers, width, seed=7)
    every = np.array(list(combinations(range(workers), 2)), dtype=np.int64)
    single = [distance(matrix[a], matrix[b]) for a, b in every[: few + 1].tolist()]
    assert distances(matrix, every[:few]).tolist() == single[:few]
    assert distances(matrix, every[: few + 1]).tolist() != single
