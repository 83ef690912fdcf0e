"""Methods as one file of a user (examples/): the same bits everywhere, and the numbers of the paper
as a plain loop over the workers computes them."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

import fedhp
from equality.test_kill import kill_and_resume
from fedhp.config import Experiment, parse
from fedhp.config.origins import Origins
from fedhp.engine.executor import LocalTraining
from fedhp.engine.local import LocalExecutor
from fedhp.engine.prepare import Prepared, prepare
from fedhp.engine.runs.run import checkpoint_of, loop_of, restore
from fedhp.tables import merge_tables
from network_bits import check_network_bits
from unit.engine.runs import bits, carry_out

EXAMPLES = Path(__file__).parents[2] / "examples"
SIZE: dict[str, Any] = {
    "workers": 6,
    "rounds": 5,
    "model": {"name": "mlp", "hidden": [6]},
    "training": {
        "local_steps": 3,
        "batch_size": 4,
        "learning_rate": 0.1,
        "decay": 1.0,
        "kernel": "worker",
        "mixing": "ordered",
    },
    "data": {"name": "digits", "skew": 0.8},
    "evaluation": {"every": 2, "images": 60},
}
FULL: dict[str, Any] = {"topology": {"name": "full"}}
TOPK: dict[str, Any] = {"exchange": {"compression": "topk", "topk_share": 0.1}}
LINEAR: dict[str, Any] = {"model": {"name": "logistic"}}
METHODS: dict[str, dict[str, Any]] = {
    "choco:Choco": merge_tables(TOPK, {"algorithm": {"gamma": 0.3}}),
    "scaffold:Scaffold": merge_tables(FULL, {"algorithm": {"server_rate": 0.9}}),
    "k_gt:KGT": {"algorithm": {"outer_rate": 0.9}},
}
ALL = pytest.mark.parametrize("method", METHODS)
Rows: TypeAlias = NDArray[np.float64]


def settings(method: str, *changes: dict[str, Any]) -> Experiment:
    tables = SIZE
    for change in (METHODS[method], {"algorithm": {"name": method}}, *changes):
        tables = merge_tables(tables, change)
        tables["model"] = change.get("model", tables["model"])
    return parse(tables, origins=Origins.of_file(EXAMPLES / "choco.toml"))


@ALL
@pytest.mark.parametrize("kernel", ["worker", "auto"])
def test_three_shards_and_a_resumed_run_are_one(method: str, kernel: str) -> None:
    prepared = prepare(settings(method, {"training": {"kernel": kernel}}))
    records, end = carry_out(LocalExecutor(prepared))
    assert np.isfinite(end["models"]).all()
    result, state = carry_out(LocalExecutor(prepared, shards=3))
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
    assert bits(list(resumed.rounds())) == bits(records[saved.round_index :])
    assert bits(engine.state()) == bits(end)
    engine.close()


@ALL
def test_stacked_models_take_nearly_the_same_steps(method: str) -> None:
    engine = LocalExecutor(prepare(settings(method, {"training": {"kernel": "auto"}})))
    assert engine.shard.rows.stack is not None
    _, stacked = carry_out(engine)
    _, exact = carry_out(LocalExecutor(prepare(settings(method))))
    np.testing.assert_allclose(stacked["models"], exact["models"], rtol=0, atol=1e-5)


@ALL
def test_an_absent_worker_keeps_its_bits(method: str) -> None:
    away = {"world": {"away": [{"worker": 2, "first": 2, "last": 4}]}}
    engine = LocalExecutor(prepare(settings(method, away)))
    states = [engine.state()["models"].copy() for _ in loop_of(engine).rounds()]
    engine.close()
    assert all(np.array_equal(state[2], states[0][2]) for state in states[1:4])
    assert not np.array_equal(states[4][2], states[3][2])


# --- a plain loop over the workers -----------------------------------------------------------


class Naive:
    """Softmax regression in float64: the gradients of every worker on the run's own batches."""

    def __init__(self, prepared: Prepared) -> None:
        self.engine = LocalExecutor(prepared)
        self.workers = prepared.experiment.workers
        self.inputs = prepared.dataset.train_inputs.reshape(len(prepared.dataset.train_inputs), -1)
        self.targets = prepared.dataset.train_targets
        self.x = self.engine.shard.rows.models[:, : prepared.layout.trainable].double().numpy()
        self.steps, self.rate = prepared.experiment.training.local_steps, 0.1
        assert prepared.experiment.training.decay == 1

    def gradient(self, x: Rows, batch: NDArray[np.int64]) -> Rows:
        inputs, classes = self.inputs[batch].astype(np.float64), 10
        weight, bias = x[:-classes].reshape(classes, -1), x[-classes:]
        outputs = inputs @ weight.T + bias
        error = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        error /= error.sum(axis=1, keepdims=True)
        error[np.arange(len(batch)), self.targets[batch]] -= 1
        error /= len(batch)
        return np.concatenate([(error.T @ inputs).ravel(), error.sum(axis=0)])

    def trained(self, round_index: int, correction: Rows) -> Rows:
        """Every worker after its local steps along gradient + correction."""
        after = self.x.copy()
        for worker in range(self.workers):
            training = LocalTraining(round_index, self.steps, self.rate)
            for batch in self.engine.shard.trainer.batches(worker, training).numpy():
                slope = self.gradient(after[worker], batch) + correction[worker]
                after[worker] -= self.rate * slope
        return after


def choco(naive: Naive, weights: list[Rows]) -> Rows:
    copies = np.zeros_like(naive.x)
    count = int(np.ceil(0.1 * naive.x.shape[1]))
    for number, matrix in enumerate(weights, start=1):
        after = naive.trained(number, np.zeros_like(naive.x))
        for worker in range(naive.workers):
            difference = after[worker] - copies[worker]
            largest = np.argsort(-np.abs(difference), kind="stable")[:count]
            copies[worker, largest] += difference[largest]
        before = after.mean(axis=0)
        naive.x = after + 0.3 * (matrix @ copies - copies)
        np.testing.assert_allclose(naive.x.mean(axis=0), before, atol=1e-12)
    return naive.x


def scaffold(naive: Naive, weights: list[Rows]) -> Rows:
    own, mean = np.zeros_like(naive.x), np.zeros(naive.x.shape[1])
    for number, _ in enumerate(weights, start=1):
        after = naive.trained(number, mean - own)
        new = own - mean + (naive.x - after) / (naive.steps * naive.rate)
        mean = mean + (new - own).mean(axis=0)
        own = new
        np.testing.assert_allclose(own.mean(axis=0), mean, atol=1e-12)
        naive.x = naive.x + 0.9 * (after - naive.x).mean(axis=0)
    return naive.x


def k_gt(naive: Naive, weights: list[Rows]) -> Rows:
    correction = np.zeros_like(naive.x)
    for number, matrix in enumerate(weights, start=1):
        after = naive.trained(number, correction)
        slope = (naive.x - after) / (naive.steps * naive.rate)
        correction = correction - slope + matrix @ slope
        np.testing.assert_allclose(correction.sum(axis=0), 0, atol=1e-12)
        naive.x = matrix @ (naive.x + 0.9 * (after - naive.x))
    return naive.x


@pytest.mark.parametrize(
    ("method", "loop"),
    [("choco:Choco", choco), ("scaffold:Scaffold", scaffold), ("k_gt:KGT", k_gt)],
)
def test_the_numbers_are_those_of_a_plain_loop(
    method: str, loop: Callable[[Naive, list[Rows]], Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare(settings(method, LINEAR, {"rounds": 8}))
    naive = Naive(prepared)
    engine = LocalExecutor(prepared)
    weights: list[Rows] = []
    exchange = engine.exchange

    def noted(planned: Any, **arguments: Any) -> Any:
        weights.append(planned.matrix().toarray())
        return exchange(planned, **arguments)

    monkeypatch.setattr(engine, "exchange", noted)
    _, end = carry_out(engine)
    found = end["models"][:, : prepared.layout.trainable]
    assert np.abs(found - naive.x).max() > 0.01
    np.testing.assert_allclose(found, loop(naive, weights), rtol=0, atol=1e-5)
    naive.engine.close()


def test_choco_with_all_values_is_dpsgd() -> None:
    tables = {**SIZE, "algorithm": {"name": "choco:Choco", "gamma": 1.0}}
    experiment = parse(tables, origins=Origins.of_file(EXAMPLES / "choco.toml"))
    _, end = carry_out(LocalExecutor(prepare(experiment)))
    plain = merge_tables(SIZE, {"algorithm": {"name": "dpsgd"}})
    _, expected = carry_out(LocalExecutor(prepare(parse(plain))))
    width = expected["models"].shape[1]
    np.testing.assert_allclose(end["models"][:, :width], expected["models"], atol=1e-6)


# --- on the clock, after kill -9, on Ray and on a network ------------------------------------


@ALL
def test_what_travels_is_on_the_clock(method: str) -> None:
    prepared = prepare(settings(method))
    records, _ = carry_out(LocalExecutor(prepared))
    size = prepared.model_bytes
    sent = [record.link_bytes.mean() / (2 * size) for record in records]
    if method == "choco:Choco":
        assert sent[0] == pytest.approx(1.0)
        assert sent[1:] == pytest.approx([0.2] * 4, rel=0.05)  # a value, and where it belongs
    else:
        assert sent == pytest.approx([2.0] * 5)


@ALL
def test_killed_and_resumed(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    more = {
        "choco:Choco": '[exchange]\ncompression = "topk"\n',
        "scaffold:Scaffold": '[topology]\nname = "full"\n',
    }
    hits = kill_and_resume(tmp_path, method, rounds=40, kills=2, seed=5, more=more.get(method, ""))
    assert hits > 0


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
@ALL
def test_ray_has_the_same_bits(method: str, tmp_path: Path) -> None:
    digests = set()
    for engine in ("local", "ray"):
        with fedhp.run(settings(method, {"engine": engine}), tmp_path / engine) as run:
            digests.add(run.digest())
    assert len(digests) == 1


@pytest.mark.parametrize(
    "method", ["k_gt:KGT", *(pytest.param(m, marks=pytest.mark.slow) for m in list(METHODS)[:2])]
)
def test_the_network_has_the_bits_of_the_simulation(method: str, tmp_path: Path) -> None:
    experiment = settings(method, {"workers": 4, "cluster": {"min_workers": 4}})
    check_network_bits(experiment, tmp_path / "run", module=method.partition(":")[0])
