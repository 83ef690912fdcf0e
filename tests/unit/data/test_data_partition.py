"""Refused and special cases of the partition; its rules are in tests/paper and tests/property."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from fedhp.config import DataConfig
from fedhp.data import class_counts, partition
from fedhp.errors import ConfigError
from fedhp.types import IntArray


def split(targets: Any, classes: int | None, workers: int, **settings: Any) -> list[IntArray]:
    seed = settings.pop("seed", 0)
    config = DataConfig(**settings)
    return partition(
        np.asarray(targets), classes=classes, workers=workers, config=config, seed=seed
    )


def refused(targets: Any, classes: int | None, workers: int, **settings: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        split(targets, classes, workers, **settings)
    return caught.value


@pytest.mark.parametrize("kind", ["skew", "dirichlet", "shards", "quantity", "iid"])
def test_more_workers_than_samples(kind: str) -> None:
    error = refused(np.arange(5), 5, 6, partition=kind)
    assert error.key == "workers"
    assert "6 workers cannot share 5 training samples" in str(error)


@pytest.mark.parametrize("kind", ["skew", "dirichlet", "quantity", "iid"])
def test_as_many_workers_as_samples(kind: str) -> None:
    parts = split(np.arange(40) % 4, 4, 40, partition=kind)
    assert [len(part) for part in parts] == [1] * 40


def test_skew_with_too_few_classes() -> None:
    targets = np.arange(100) % 2
    error = refused(targets, 2, 10, skew=1.0)
    assert error.key == "data.skew"
    for words in ("too few classes", "leaves 4 of 10 workers", "worker 6", "2 classes reach 6"):
        assert words in str(error)
    assert all(len(part) for part in split(targets, 2, 10, skew=0.8))


def test_skew_zero_that_leaves_workers_without_samples() -> None:
    # homes 0,1,2 and 3,0,1 of 4 workers: at p = 0 workers 0 and 1 would get nothing
    error = refused(np.arange(100) % 2, 2, 4, skew=0.0)
    assert error.key == "data.skew"
    assert "leaves 2 of 4 workers" in str(error)


def test_a_home_worker_left_empty_by_rounding_is_filled() -> None:
    targets = np.repeat([0, 1, 2, 3], [40, 2, 2, 2])
    parts = split(targets, 4, 12, skew=1.0)
    assert min(map(len, parts)) == 1
    assert sum(map(len, parts)) == 46


@pytest.mark.parametrize("classes", [None, 1])
def test_skew_without_classes(classes: int | None) -> None:
    targets = np.zeros(50) if classes is None else np.zeros(50, dtype=np.int64)
    error = refused(targets, classes, 10, skew=0.8)
    assert error.key == "data.skew"
    assert "needs classes" in str(error)
    for settings in ({}, {"skew": 0.3} if classes else {}):
        assert [len(part) for part in split(targets, classes, 10, **settings)] == [5] * 10


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("skew", [None, 0.0, 0.5, 1.0])
def test_three_or_fewer_workers_are_home_to_every_class(workers: int, skew: float | None) -> None:
    targets = np.arange(90) % 5
    counts = class_counts(split(targets, 5, workers, skew=skew), targets, 5)
    assert counts.max() - counts.min() <= 1


def test_shards() -> None:
    targets = np.repeat(np.arange(10), 100)
    counts = class_counts(split(targets, 10, 20, partition="shards"), targets, 10)
    assert (counts.sum(axis=1) == 50).all()
    assert ((counts > 0).sum(axis=1) <= 2).all()
    error = refused(targets, 10, 20, partition="shards", shards_per_worker=51)
    assert error.key == "data.shards_per_worker"
    assert "need 1020 samples, but there are 1000" in str(error)
    assert "1 to 50" in str(error)


def test_shards_of_values_to_predict() -> None:
    values = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)
    parts = split(values, None, 10, partition="shards", shards_per_worker=1)
    spans = sorted((values[part, 0].min(), values[part, 0].max()) for part in parts)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_dirichlet_needs_classes() -> None:
    error = refused(np.zeros((50, 1)), None, 10, partition="dirichlet")
    assert error.key == "data.partition"


@pytest.mark.parametrize("alpha", [1e-300, 1e-5, 0.1, 1.0, 1e6, 1e300])
@pytest.mark.parametrize("kind", ["dirichlet", "quantity"])
def test_any_alpha_gives_every_worker_a_sample(alpha: float, kind: str) -> None:
    targets = np.arange(600) % 3
    parts = split(targets, 3, 100, partition=kind, alpha=alpha)
    assert min(map(len, parts)) >= 1
    assert sorted(np.concatenate(parts).tolist()) == list(range(600))


def test_alpha_sets_how_unequal() -> None:
    targets = np.arange(10_000) % 10
    spread = []
    for alpha in (0.05, 0.5, 100.0):
        counts = class_counts(
            split(targets, 10, 20, partition="dirichlet", alpha=alpha), targets, 10
        )
        spread.append(float(counts.std()))
    assert spread[0] > 1.5 * spread[1] > 3 * spread[2]
    sizes = [len(part) for part in split(targets, 10, 20, partition="quantity", alpha=0.5)]
    assert max(sizes) > 3 * min(sizes)


def test_the_seed_decides() -> None:
    targets = np.arange(300) % 10
    for kind in ("skew", "dirichlet", "shards", "quantity", "iid"):
        first, again, other = (
            split(targets, 10, 6, partition=kind, seed=seed) for seed in (1, 1, 2)
        )
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
        assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_the_numbers_are_stable() -> None:
    # a change here changes every result ever measured
    targets = np.arange(24) % 4
    start = {
        kind: [int(part[0]) for part in split(targets, 4, 5, partition=kind, seed=7)]
        for kind in ("skew", "dirichlet", "shards", "quantity", "iid")
    }
    assert start == {
        "skew": [6, 0, 7, 5, 3],
        "dirichlet": [0, 7, 1, 5, 10],
        "shards": [0, 2, 1, 3, 4],
        "quantity": [0, 4, 11, 3, 5],
        "iid": [2, 1, 0, 8, 3],
    }


def test_many_workers_are_quick() -> None:
    targets = np.arange(100_000) % 200
    parts = split(targets, 200, 30_000, partition="dirichlet", alpha=0.01)
    assert min(map(len, parts)) == 1
