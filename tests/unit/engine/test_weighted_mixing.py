"""Weighted exchanges: any stochastic weights, push-sum, and side vectors that travel along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedhp
from fedhp.cluster.coordinator.process.network_checks import check_network
from fedhp.config import Experiment, parse
from fedhp.config.origins import Origins
from fedhp.data import load_data
from fedhp.engine.prepare import Prepared, prepare
from fedhp.engine.runs.run import checkpoint_of, loop_of, restore, start_run
from fedhp.engine.sharded import LocalExecutor
from fedhp.errors import ConfigError
from fedhp.exchange import WeightedMixing
from fedhp.graph import link_weights
from fedhp.record.reader import RunReader
from fedhp.tables import merge_tables
from fedhp.types import FloatArray, IntArray
from network_bits import check_network_bits
from unit.engine.runs import NORMED, bits, carry_out

SOURCE = str(Path(__file__).parents[3] / "examples/push_sum.toml")
SIZE: dict[str, Any] = {
    "workers": 7,
    "rounds": 5,
    "model": {"name": "mlp", "hidden": [6]},
    "training": {"local_steps": 2, "batch_size": 4, "kernel": "worker", "mixing": "ordered"},
    "evaluation": {"every": 2, "images": 60},
}
LOCAL: dict[str, Any] = {"training": {"batch_norm": "local"}}
ALGORITHMS = pytest.mark.parametrize("algorithm", ["SGP", "Tracking"])


def settings(algorithm: str, *changes: dict[str, Any]) -> Experiment:
    tables = merge_tables(SIZE, {"algorithm": {"name": f"push_sum:{algorithm}"}})
    for change in changes:
        tables = merge_tables(tables, change)
        tables["model"] = change.get("model", tables["model"])
    return parse(tables, origins=Origins.of_file(SOURCE))


def prepared_of(algorithm: str, *changes: dict[str, Any]) -> Prepared:
    return prepare(settings(algorithm, *changes))


def strongly_connected(workers: int) -> tuple[IntArray, FloatArray, FloatArray]:
    """A ring in one direction and more links; (receiver, sender), weights by sender, own ones."""
    rng = np.random.default_rng(2)
    pairs = {((sender + 1) % workers, sender) for sender in range(workers)}
    pairs |= {(int(a), int(b)) for a, b in rng.integers(workers, size=(workers, 2)) if a != b}
    links = np.array(sorted(pairs), dtype=np.int64)
    shares = rng.uniform(0.2, 1.0, size=len(links))
    sent = np.bincount(links[:, 1], weights=shares, minlength=workers)
    weights = 0.7 * shares / sent[links[:, 1]]
    return links, weights, np.full(workers, 0.3)


def test_push_sum_reaches_the_exact_mean_on_directed_links() -> None:
    engine = LocalExecutor(prepared_of("SGP"))
    shard, layout = engine.shard, engine.prepared.layout
    rng = np.random.default_rng(1)
    start = rng.standard_normal((7, layout.trainable))
    shard.rows.models[:, : layout.trainable] = torch.from_numpy(start.astype(np.float32))
    links, weights, own = strongly_connected(7)
    rows = link_weights(links, weights, own)
    assert np.abs(rows.sum(axis=1) - 1).max() > 0.1, "not row-stochastic: a plain mean would fail"
    exchange = WeightedMixing(links, weights, own, push_sum=True)
    nothing = np.zeros(7, dtype=np.int64)
    for round_index in range(1, 120):
        engine.train(nothing, round_index=round_index, learning_rate=0.1)
        exchange.carry_out(engine, round_index=round_index)
        engine.advance()
    weight = layout.columns("push_weight")
    assert weight is not None
    np.testing.assert_allclose(shard.rows.models[:, weight].sum().item(), 7, rtol=1e-5)
    assert shard.rows.models[:, weight].std().item() > 0.1
    expected = np.broadcast_to(start.mean(axis=0), (7, layout.trainable))
    np.testing.assert_allclose(
        shard.rows.models[:, : layout.trainable].numpy(), expected, atol=2e-6
    )
    engine.close()


def test_any_row_stochastic_weights_are_a_matrix_product() -> None:
    engine = LocalExecutor(prepared_of("Tracking"))
    shard, layout = engine.shard, engine.prepared.layout
    rng = np.random.default_rng(4)
    shard.rows.models[:] = torch.from_numpy(rng.standard_normal(shard.rows.models.shape)).float()
    links, _, _ = strongly_connected(7)
    taken = np.bincount(links[:, 0], minlength=7)
    weights = 0.6 / taken[links[:, 0]]
    exchange = WeightedMixing(links, weights, np.full(7, 0.4))
    engine.train(np.full(7, 2), round_index=1, learning_rate=0.1)
    after = shard.rows.after.double().numpy().copy()
    exchanged = exchange.carry_out(engine, round_index=1)
    matrix = link_weights(links, weights, exchange.own_weights).toarray()
    expected = matrix @ after[:, : layout.mixed]
    np.testing.assert_allclose(shard.rows.mixed[:, : layout.mixed].numpy(), expected, atol=1e-5)
    assert exchanged.directed
    assert exchanged.links.tolist() == links.tolist()
    engine.close()


def test_the_side_vectors_follow_the_mean_change() -> None:
    """Their mean is that of the workers' last changes, however different these are."""
    engine = LocalExecutor(prepared_of("Tracking", {"data": {"skew": 0.9}}))
    layout, shard = engine.prepared.layout, engine.shard
    side, last = layout.columns("side"), layout.columns("last_change")
    assert side is not None
    assert last is not None
    for _ in loop_of(engine).rounds():
        sides, changes = shard.rows.models[:, side].double(), shard.rows.models[:, last].double()
        torch.testing.assert_close(sides.mean(dim=0), changes.mean(dim=0), atol=1e-6, rtol=0)
        assert changes.std(dim=0).max() > 1e-3
    engine.close()


@ALGORITHMS
@pytest.mark.parametrize(
    "changes",
    [{}, NORMED, {**NORMED, **LOCAL}, {"world": {"away": [{"worker": 2, "first": 2, "last": 3}]}}],
    ids=["plain", "normed", "normed-local", "away"],
)
def test_several_shards_and_a_resumed_run_are_one(algorithm: str, changes: dict[str, Any]) -> None:
    prepared = prepared_of(algorithm, changes)
    records, end = carry_out(LocalExecutor(prepared))
    assert np.isfinite(end["models"]).all()
    for shards in (2, 3):
        result, state = carry_out(LocalExecutor(prepared, shards=shards))
        assert bits(result) == bits(records)
        assert bits(state) == bits(end)
    first = LocalExecutor(prepared)
    loop = loop_of(first)
    rounds = loop.rounds()
    for _ in range(3):
        next(rounds)
    saved = checkpoint_of(loop, first)
    first.close()
    engine = LocalExecutor(prepared)
    resumed = loop_of(engine)
    restore(resumed, engine, saved)
    rest = list(resumed.rounds())
    assert bits(rest) == bits(records[saved.round_index :])
    assert bits(engine.state()) == bits(end)
    engine.close()


@ALGORITHMS
@pytest.mark.parametrize("mixing", ["auto", "ordered"])
def test_an_absent_worker_keeps_its_bits(algorithm: str, mixing: str) -> None:
    """Also what travels with its model; a present one without a step takes part."""
    away = {"world": {"away": [{"worker": 2, "first": 2, "last": 4}]}}
    engine = LocalExecutor(prepared_of(algorithm, away, {"training": {"mixing": mixing}}))
    states = [engine.state()["models"].copy() for _ in loop_of(engine).rounds()]
    engine.close()
    assert all(np.array_equal(state[2], states[0][2]) for state in states[1:4])
    assert not np.array_equal(states[4][2], states[3][2])
    assert not np.array_equal(states[2][3], states[1][3])


@ALGORITHMS
def test_the_fast_kernels_give_nearly_the_same_models(algorithm: str) -> None:
    fast = {"training": {"kernel": "auto", "mixing": "auto"}}
    engine = LocalExecutor(prepared_of(algorithm, fast))
    assert engine.shard.rows.stack is not None
    _, state = carry_out(engine)
    _, exact = carry_out(LocalExecutor(prepared_of(algorithm)))
    np.testing.assert_allclose(state["models"], exact["models"], rtol=0, atol=1e-5)


@ALGORITHMS
def test_what_travels_along_is_on_the_clock(algorithm: str) -> None:
    for world in ({}, {"world": {"model_megabits": 12.0}}):
        prepared = prepared_of(algorithm, world)
        records, _ = carry_out(LocalExecutor(prepared))
        columns = prepared.layout.module_columns
        carried = 1 if algorithm == "SGP" else prepared.layout.trainable
        share = (columns + carried) / columns
        expected = np.full(len(records[0].links), share * prepared.model_bytes)
        np.testing.assert_allclose(records[0].link_bytes, expected, atol=1)
        # The planner knows it: its times are those of the whole message.
        alone = prepared.world.monitored(0.0, 1).link_time(records[0].links)
        np.testing.assert_allclose(records[0].decision.link_time, share * alone)


@ALGORITHMS
@pytest.mark.parametrize(
    "changes", [{}, NORMED, {"training": {"momentum": 0.9}}], ids=["plain", "normed", "momentum"]
)
def test_rows_of_models_are_their_own_values_alone(
    algorithm: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """Neither the weight of push-sum nor side vectors nor the optimizer's state: the tensors of
    the model that was tested."""
    experiment = settings(algorithm, changes, {"evaluation": {"images": None}})
    for _ in start_run(experiment, tmp_path / "run").rounds():
        pass
    layout = prepare(experiment).layout
    with RunReader(tmp_path / "run", trust=["push_sum", "unit.engine.runs"]) as run:
        models = run.models()
        assert models is not None
        assert models.shape == (7, layout.width - sum(s.stop - s.start for s in layout.carried))
        for worker in range(7):
            module = run.model(worker)
            tensors = dict(module.named_parameters()) | dict(module.named_buffers())
            values = [tensors[slot.name].detach().numpy().ravel() for slot in layout.slots]
            assert np.array_equal(models[worker], np.concatenate(values))
        dataset = load_data(experiment.data)
        with torch.no_grad():
            outputs = run.model(3)(torch.tensor(dataset.test_inputs))
        accuracy = float((outputs.argmax(1).numpy() == dataset.test_targets).mean())
        tested = run.table("worker_evaluations", round_index=5)["accuracy"]
        assert accuracy == pytest.approx(tested[3])


def test_the_models_of_a_run_can_be_read(tmp_path: Path) -> None:
    for _ in start_run(settings("Tracking"), tmp_path / "run").rounds():
        pass
    with RunReader(tmp_path / "run") as run:
        assert run.meta("status") == "finished"
        assert run.meta("transfer_share") == pytest.approx(2.0)
        parameters = run.meta("parameters")
    with fedhp.open_run(tmp_path / "run", trust=["push_sum"]) as opened:
        assert sum(p.numel() for p in opened.model(0).parameters()) == parameters


@pytest.mark.parametrize(
    ("algorithm", "exchange", "key"),
    [
        ("SGP", {"robust": "median"}, "exchange.robust"),
        ("Tracking", {"robust": "clip"}, "exchange.robust"),
        ("SGP", {"compression": "fp16"}, "exchange.compression"),
        ("Tracking", {"compression": "topk"}, "exchange.compression"),
    ],
)
def test_what_breaks_the_sums_is_refused(
    algorithm: str, exchange: dict[str, Any], key: str
) -> None:
    for refuse in (prepared_of, lambda *args: check_network(settings(*args))):
        with pytest.raises(ConfigError) as caught:
            refuse(algorithm, {"exchange": exchange})
        assert caught.value.key == key


@pytest.mark.parametrize("algorithm", ["SGP", pytest.param("Tracking", marks=pytest.mark.slow)])
def test_the_network_has_the_bits_of_the_simulation(algorithm: str, tmp_path: Path) -> None:
    experiment = settings(algorithm, {"workers": 4, "cluster": {"min_workers": 4}})
    check_network_bits(experiment, tmp_path / "run", module="push_sum")
