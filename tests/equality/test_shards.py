"""Workers in one shard or in several: the same records and the same models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedhp.engine.prepare import Prepared
from fedhp.engine.sharded import LocalExecutor
from fedhp.types import RoundRecord
from unit.engine.runs import (
    ALGORITHMS,
    DROPPING,
    EXACT,
    NORMED,
    bits,
    carry_out,
    prepared_of,
)

SIZE: dict[str, Any] = {
    "workers": 7,
    "rounds": 4,
    "training": {"local_steps": 2, "batch_size": 4},
    "evaluation": {"every": 2, "images": 60},
}
AWAY: dict[str, Any] = {
    "world": {
        "away": [
            {"worker": 1, "first": 2, "last": 3},
            {"worker": 6, "first": 1, "last": 1},
        ]
    }
}
LOCAL: dict[str, Any] = {"training": {"batch_norm": "local"}}
EVERY = pytest.mark.parametrize("algorithm", ALGORITHMS)


def assert_alike(prepared: Prepared) -> None:
    """One shard, two and three: not a bit of difference."""
    records, state = carry_out(LocalExecutor(prepared))
    for shards in (2, 3):
        engine = LocalExecutor(prepared, shards=shards)
        assert len(engine.shards.groups) == shards
        result, end = carry_out(engine)
        assert bits(result) == bits(records)
        assert bits(end) == bits(state)
        assert engine.shards.moved > 0
    assert len(records) == 4
    first = state["models"][0]
    assert np.isfinite(first).all()
    assert records[3].evaluation is not None


@EVERY
def test_several_shards_are_one(algorithm: str) -> None:
    assert_alike(prepared_of(algorithm, SIZE, EXACT))


@EVERY
def test_several_shards_are_one_while_workers_are_away(algorithm: str) -> None:
    assert_alike(prepared_of(algorithm, SIZE, EXACT, AWAY))


@pytest.mark.parametrize("away", [{}, AWAY], ids=["all", "away"])
def test_several_shards_are_one_with_symmetric_peers(away: dict[str, Any]) -> None:
    assert_alike(prepared_of("pens", SIZE, EXACT, away, symmetric=True))


@pytest.mark.parametrize(
    ("algorithm", "policy"),
    [
        ("fedhp", {}),
        ("fedhp_plus", {}),
        ("adpsgd", {}),
        ("free_links", {}),
        *((algorithm, LOCAL) for algorithm in ALGORITHMS),
    ],
)
def test_several_shards_are_one_with_running_statistics(
    algorithm: str, policy: dict[str, Any]
) -> None:
    prepared = prepared_of(algorithm, SIZE, EXACT, NORMED, policy)
    assert prepared.layout.counter_width == 1
    assert (prepared.layout.mixed < prepared.layout.width) == bool(policy)
    assert_alike(prepared)


@EVERY
def test_several_shards_are_one_with_dropout(algorithm: str) -> None:
    prepared = prepared_of(algorithm, SIZE, EXACT, DROPPING)
    assert prepared.facts.stochastic
    assert_alike(prepared)


def test_several_shards_are_one_with_convolutions_and_executors() -> None:
    convolving = {"model": {"name": "small_cnn", "width": 0.25}, "executors": 2}
    assert_alike(prepared_of("dpsgd", SIZE, EXACT, convolving))


def test_a_worker_in_a_shard_of_its_own() -> None:
    prepared = prepared_of("fedhp", SIZE, EXACT)
    records, state = carry_out(LocalExecutor(prepared))
    result, end = carry_out(LocalExecutor(prepared, shards=7))
    assert bits(result) == bits(records)
    assert bits(end) == bits(state)


@EVERY
def test_fast_kernels_give_nearly_the_same_models(algorithm: str) -> None:
    """Stacks and sums in another order: differences of rounding only."""
    prepared = prepared_of(algorithm, SIZE, {"rounds": 3})
    records, state = carry_out(LocalExecutor(prepared))
    for shards in (2, 3):
        result, end = carry_out(LocalExecutor(prepared, shards=shards))
        np.testing.assert_allclose(end["models"], state["models"], rtol=0, atol=1e-5)
        for one, other in zip(records, result, strict=True):
            assert one.local_steps.tolist() == other.local_steps.tolist()
            assert one.links.tolist() == other.links.tolist()
            np.testing.assert_allclose(other.train_loss, one.train_loss, atol=1e-5)


def crossings(record: RoundRecord, home: dict[int, int]) -> int:
    """Pairs of a model and another shard that wants it."""
    both = np.concatenate([record.links, record.links[:, ::-1]]).tolist()
    return len({(a, home[b]) for a, b in both if home[a] != home[b]})


@pytest.mark.parametrize(
    ("shards", "away", "policy"), [(1, {}, {}), (2, {}, LOCAL), (3, AWAY, {}), (3, AWAY, LOCAL)]
)
def test_a_model_goes_once_to_every_shard_that_wants_it(
    shards: int, away: dict[str, Any], policy: dict[str, Any]
) -> None:
    prepared = prepared_of("dpsgd", SIZE, NORMED, away, policy)
    engine = LocalExecutor(prepared, shards=shards)
    records, _ = carry_out(engine)
    groups = [group.tolist() for group in engine.shards.groups]
    home = {worker: index for index, group in enumerate(groups) for worker in group}
    pairs = sum(crossings(record, home) for record in records)
    assert (pairs > 0) == (shards > 1)
    assert engine.shards.moved == 4 * prepared.layout.mixed * pairs


@pytest.mark.parametrize("algorithm", ["fedhp", "dpsgd", "ldsgd", "pens"])
@pytest.mark.parametrize(
    ("exchange", "attack"),
    [
        ({"compression": "int8", "robust": "trimmed_mean"}, {"kind": "sign_flip"}),
        ({"compression": "topk", "topk_share": 0.1}, {"kind": "noise", "scale": 0.01}),
        ({"compression": "fp16", "robust": "krum"}, {"kind": "label_flip"}),
        ({"robust": "clip", "radius": 0.5}, {}),
    ],
    ids=["int8", "topk", "fp16", "clip"],
)
def test_several_shards_are_one_when_models_are_disturbed(
    algorithm: str, exchange: dict[str, Any], attack: dict[str, Any]
) -> None:
    changes: dict[str, Any] = {"exchange": exchange, "attack": attack}
    if algorithm == "pens":
        changes["algorithm"] = {"keep": 4}  # as many as Krum needs
    assert_alike(prepared_of(algorithm, SIZE, EXACT, changes))


def test_several_executors_are_one_when_models_are_disturbed() -> None:
    changes = {"exchange": {"compression": "int8", "robust": "trimmed_mean"}}
    records, state = carry_out(LocalExecutor(prepared_of("fedhp", SIZE, EXACT, changes)))
    both = prepared_of("fedhp", SIZE, EXACT, changes, {"executors": 2})
    result, end = carry_out(LocalExecutor(both))
    assert bits(end) == bits(state)
    assert bits(result) == bits(records)
