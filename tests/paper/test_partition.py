"""The paper's skew p (section VI): a class's home group of three workers shares p of it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from fedhp.config import DataConfig
from fedhp.data import class_counts, partition
from fedhp.types import IntArray


def counts_of(
    targets: IntArray, *, classes: int, workers: int, skew: float | None, seed: int = 0
) -> IntArray:
    config = DataConfig(skew=skew)
    parts = partition(targets, classes=classes, workers=workers, config=config, seed=seed)
    return class_counts(parts, targets, classes)


def reference(size: int, group: list[int], *, workers: int, p: Fraction) -> tuple[list[int], ...]:
    """Counts of one class in exact arithmetic: those of the home group, those of the others.

    Everyone gets the whole part of the share; what is left goes one by one to the
    largest remainders. Inside each of the two groups all shares are equal, so only
    how many got one more is determined, and the sorted counts say that.
    """
    shares = {
        worker: p / 3 if worker in group else (1 - p) / (workers - 3) for worker in range(workers)
    }
    counts = {worker: int(size * share) for worker, share in shares.items()}
    rest = size - sum(counts.values())
    neediest = sorted(shares, key=lambda worker: counts[worker] - size * shares[worker])
    for worker in neediest[:rest]:
        counts[worker] += 1
    home = sorted(counts[worker] for worker in group)
    return home, sorted(counts[worker] for worker in shares if worker not in group)


# p = 0 with two classes would leave workers empty and is refused: see the unit tests
CASES = [
    (workers, classes, tenths)
    for workers in (6, 15, 30, 36)
    for classes in (2, 10, 62, 100)
    for tenths in (0, 1, 3, 5, 6, 8, 9)
    if (classes, tenths) != (2, 0)
]


@pytest.mark.parametrize(("workers", "classes", "tenths"), CASES)
def test_the_rule_equals_exact_arithmetic(workers: int, classes: int, tenths: int) -> None:
    rng = np.random.default_rng(workers * classes + tenths)
    targets = rng.integers(0, classes, 5000)
    p, groups = Fraction(tenths, 10), workers // 3
    counts = counts_of(targets, classes=classes, workers=workers, skew=tenths / 10)
    for label in range(classes):
        home = label % groups
        group = [3 * home, 3 * home + 1, 3 * home + 2]
        size = int((targets == label).sum())
        expected_home, expected_rest = reference(size, group, workers=workers, p=p)
        others = [worker for worker in range(workers) if worker not in group]
        column = counts[:, label]
        # where both groups have one remainder, which of them gets the odd samples is open
        if Fraction(size) * p / 3 % 1 == Fraction(size) * (1 - p) / (workers - 3) % 1:
            assert column.sum() == size
            assert abs(int(column[group].sum()) - size * p) <= 3
        else:
            assert sorted(column[group].tolist()) == expected_home
            assert sorted(column[others].tolist()) == expected_rest


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 7, 10, 29, 30, 31, 36, 100])
@pytest.mark.parametrize("classes", [1, 2, 10, 62])
@pytest.mark.parametrize("given", [False, True])
def test_three_nths_is_exactly_iid(workers: int, classes: int, given: bool) -> None:
    targets = np.random.default_rng(workers).integers(0, classes, 3000)
    skew = min(1.0, 3 / workers) if given else None
    counts = counts_of(targets, classes=classes, workers=workers, skew=skew)
    spread = counts.max(axis=0) - counts.min(axis=0)
    assert spread.max() <= 1, "of every class all workers have the same, give or take one"
    sizes = counts.sum(axis=1)
    assert sizes.max() - sizes.min() <= 1


def test_the_paper_setting() -> None:
    """30 workers, 10 classes of 5000 (CIFAR-10), p = 0.8: 4000 at home, 1000 elsewhere."""
    targets = np.arange(50_000) % 10
    counts = counts_of(targets, classes=10, workers=30, skew=0.8)
    for label in range(10):
        home = counts[3 * label : 3 * label + 3, label]
        assert abs(home.sum() - 4000) <= 1, "4000 / 3 is no whole number"
        assert home.max() - home.min() <= 1
        rest = np.delete(counts[:, label], range(3 * label, 3 * label + 3))
        assert rest.max() - rest.min() <= 1


@pytest.mark.parametrize("workers", [4, 5, 7, 11, 31, 50])
def test_any_number_of_workers_has_three_at_home(workers: int) -> None:
    classes = workers  # so that everyone is at home somewhere
    targets = np.repeat(np.arange(classes), 40 * (workers - 3) * 3)
    counts = counts_of(targets, classes=classes, workers=workers, skew=1.0)
    for label in range(classes):
        expected = sorted((3 * label + k) % workers for k in range(3))
        assert np.flatnonzero(counts[:, label]).tolist() == expected
