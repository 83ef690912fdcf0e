"""For any data and rule, a partition is complete, disjoint, fair and repeatable."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedhp.config import DataConfig
from fedhp.data import class_counts, partition
from fedhp.data.partition import apportion, skew_shares
from fedhp.data.raw import holdout
from fedhp.errors import ConfigError
from fedhp.seeds import Purpose, generator
from fedhp.types import IntArray

KINDS = st.sampled_from(["skew", "dirichlet", "shards", "quantity", "iid"])


@st.composite
def labelled(draw: st.DrawFn, *, smallest: int = 1) -> tuple[IntArray, int]:
    classes = draw(st.integers(1, 12))
    size = draw(st.integers(smallest, 200))
    elements = st.integers(0, classes - 1)
    return draw(arrays.arrays(np.int64, size, elements=elements)), classes


@settings(deadline=None)
@given(
    data=labelled(),
    workers=st.integers(1, 40),
    kind=KINDS,
    skew=st.none() | st.floats(0, 1),
    alpha=st.floats(1e-4, 1e4),
    shards=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_sample_has_one_owner_and_every_worker_some(
    data: tuple[IntArray, int],
    workers: int,
    kind: Any,
    skew: float | None,
    alpha: float,
    shards: int,
    seed: int,
) -> None:
    targets, classes = data
    config = DataConfig(
        partition=kind,
        skew=skew if kind == "skew" else None,
        alpha=alpha if kind in ("dirichlet", "quantity") else 0.5,
        shards_per_worker=shards if kind == "shards" else 2,
    )

    def split() -> list[IntArray]:
        return partition(targets, classes=classes, workers=workers, config=config, seed=seed)

    refused = ""
    try:
        parts = split()
    except ConfigError as error:
        refused = error.key
    if refused:
        reasons = {"workers": workers > len(targets), "data.skew": skew is not None}
        reasons["data.shards_per_worker"] = workers * shards > len(targets)
        assert reasons[refused], f"refused without need: {refused}"
        return
    assert len(parts) == workers
    assert all(part.dtype == np.int64 and len(part) for part in parts)
    assert all((np.diff(part) > 0).all() for part in parts)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(targets)))
    again = split()
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    counts = class_counts(parts, targets, classes)
    assert counts.sum(axis=1).tolist() == [len(part) for part in parts]
    assert counts.sum(axis=0).tolist() == np.bincount(targets, minlength=classes).tolist()


@settings(deadline=None)
@given(data=labelled(smallest=40), workers=st.integers(4, 40), skew=st.floats(0, 1))
def test_skew_stays_within_one_of_the_rule(
    data: tuple[IntArray, int], workers: int, skew: float
) -> None:
    targets, classes = data
    config = DataConfig(skew=skew)
    try:
        parts = partition(targets, classes=classes, workers=workers, config=config, seed=1)
    except ConfigError:
        assume(False)
    counts = class_counts(parts, targets, classes)
    sizes = np.bincount(targets, minlength=classes)
    due = np.stack([sizes[k] * skew_shares(k, workers, skew=skew) for k in range(classes)], axis=1)
    assert (counts - due).max() < 1 + 1e-5
    # Less only where a worker gave samples to others that were filled up: these have one sample,
    # and who gave had most.
    owned = counts.sum(axis=1)
    short = due - counts - (1 + 1e-5)
    assert short[short > 0].sum() <= (owned == 1).sum()
    assert (owned[(short > 0).any(axis=1)] >= owned.max() - 1).all()


@settings(deadline=None)
@given(
    total=st.integers(0, 10_000),
    weights=st.lists(st.floats(0, 1e6), min_size=1, max_size=50),
    seed=st.integers(0, 1000),
)
def test_apportion_keeps_the_total_and_the_quota(
    total: int, weights: list[float], seed: int
) -> None:
    assume(sum(weights) > 1e-3)
    shares = np.array(weights) / sum(weights)
    prior = np.zeros(len(shares), dtype=np.int64)
    counts = apportion(total, shares, prior=prior, rng=generator(seed, Purpose.PARTITION))
    assert counts.sum() == total
    assert (counts >= 0).all()
    assert np.abs(counts - total * shares).max() < 1 + 1e-5


@settings(deadline=None)
@given(data=labelled(smallest=2))
def test_the_holdout_is_complete_and_stratified(data: tuple[IntArray, int]) -> None:
    targets, classes = data
    train, test = holdout(targets, classes=classes)
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(len(targets)))
    assert len(train) > 0
    assert len(test) > 0
    sizes = np.bincount(targets, minlength=classes)
    held = np.bincount(targets[test], minlength=classes)
    if (sizes > 1).any():
        assert (held[sizes == 1] == 0).all()
        assert (held[sizes > 1] >= 1).all()
        assert np.abs(held - 0.2 * sizes)[sizes > 1].max() <= 0.8
