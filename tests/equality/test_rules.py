"""Methods as one file of a user (examples/): the same bits everywhere, and the numbers of the paper
as a plain loop over the workers computes them."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

import fedhp
from equality.test_kill import kill_and_resume
from fedhp.cluster.audit.invariants import check_invariants
from fedhp.cluster.audit.verify import verify
from fedhp.cluster.ops.launch import Cluster
from fedhp.config import Experiment, parse
from fedhp.config.origins import Origins
from fedhp.engine.executor import LocalTraining
from fedhp.engine.prepare import Prepared, prepare
from fedhp.engine.runs.run import checkpoint_of, loop_of, restore
from fedhp.engine.sharded import LocalExecutor
from fedhp.tables import merge_tables
from net.clusters import round_of, until
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
SERVER: dict[str, Any] = {"world": {"server": {"uplink": 20, "downlink": 10}}}
TOPK: dict[str, Any] = {"exchange": {"compression": "topk", "topk_share": 0.1}}
LINEAR: dict[str, Any] = {"model": {"name": "logistic"}}
METHODS: dict[str, dict[str, Any]] = {
    "choco:Choco": merge_tables(TOPK, {"algorithm": {"gamma": 0.3}}),
    "scaffold:Scaffold": merge_tables(SERVER, {"algorithm": {"share": 0.5, "server_rate": 0.9}}),
    "fedavg:FedAvg": merge_tables(
        SERVER, {"algorithm": {"share": 0.5, "rate": 0.7, "momentum": 0.5}}
    ),
    "k_gt:KGT": {"algorithm": {"outer_rate": 0.9}},
    "relaysgd:RelaySGD": {
        "topology": {"name": "links", "pairs": [[0, 1], [0, 2], [1, 3], [1, 4], [2, 5]]}
    },
}
OVER_SERVER = ("scaffold:Scaffold", "fedavg:FedAvg")
ALL = pytest.mark.parametrize("method", METHODS)
SLOW = pytest.mark.slow
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


@pytest.mark.parametrize("method", ["choco:Choco", "k_gt:KGT"])
def test_an_absent_worker_keeps_its_bits(method: str) -> None:
    away = {"world": {"away": [{"worker": 2, "first": 2, "last": 4}]}}
    engine = LocalExecutor(prepare(settings(method, away)))
    states = [engine.state()["models"].copy() for _ in loop_of(engine).rounds()]
    engine.close()
    assert all(np.array_equal(state[2], states[0][2]) for state in states[1:4])
    assert not np.array_equal(states[4][2], states[3][2])


@pytest.mark.parametrize("method", OVER_SERVER)
def test_only_the_model_of_the_server_reaches_those_that_take_no_part(method: str) -> None:
    away = {"world": {"away": [{"worker": 2, "first": 2, "last": 4}]}}
    prepared = prepare(settings(method, away, {"algorithm": {"share": 0.5}}))
    engine = LocalExecutor(prepared)
    states = [engine.state()["models"].copy() for _ in loop_of(engine).rounds()]
    engine.close()
    width = prepared.layout.mixed
    assert all((state[:, :width] == state[0, :width]).all() for state in states)
    own = prepared.layout.columns("own")
    if own is not None:
        stays = [state[2, own] for state in states[:4]]
        assert all(np.array_equal(vector, stays[0]) for vector in stays)
        drawn = [(a[:, own] != b[:, own]).any(axis=1).sum() for a, b in pairwise(states)]
        assert drawn == [3, 3, 3, 3]


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
    for number, matrix in enumerate(weights, start=1):
        drawn = np.flatnonzero(matrix[0])
        assert len(drawn) == 3
        after = naive.trained(number, mean - own)[drawn]
        new = own[drawn] - mean + (naive.x[drawn] - after) / (naive.steps * naive.rate)
        mean = mean + (new - own[drawn]).sum(axis=0) / naive.workers
        own[drawn] = new
        np.testing.assert_allclose(own.mean(axis=0), mean, atol=1e-12)
        naive.x = naive.x + 0.9 * (after - naive.x[drawn]).mean(axis=0)
    return naive.x


def fedavg(naive: Naive, weights: list[Rows]) -> Rows:
    momentum = np.zeros(naive.x.shape[1])
    for number, matrix in enumerate(weights, start=1):
        drawn = np.flatnonzero(matrix[0])
        after = naive.trained(number, np.zeros_like(naive.x))[drawn]
        change = after.mean(axis=0) - naive.x[0]
        momentum = 0.5 * momentum + change
        naive.x = naive.x + 0.7 * (change + 0.5 * momentum)
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


def relaysgd(naive: Naive, weights: list[Rows]) -> Rows:
    start, workers = naive.x[0].copy(), naive.workers
    heard: dict[tuple[int, int], tuple[Rows, int]] = {}  # by receiver and sender
    for number, matrix in enumerate(weights, start=1):
        after = naive.trained(number, np.zeros_like(naive.x))
        links = [(int(a), int(b)) for a, b in zip(*np.nonzero(matrix), strict=True) if a != b]
        assert len(links) == 2 * (workers - 1)
        sent = {}
        for receiver, sender in links:
            total, count = after[sender].copy(), 1
            for (reader, other), (rows, models) in heard.items():
                if reader == sender and other != receiver:
                    total, count = total + rows, count + models
            sent[receiver, sender] = total, count
        heard = sent
        for worker in range(workers):
            came = [message for (reader, _), message in heard.items() if reader == worker]
            missing = workers - 1 - sum(count for _, count in came)
            total = after[worker] + sum(rows for rows, _ in came) + missing * start
            naive.x[worker] = total / workers
    return naive.x


@pytest.mark.parametrize(
    ("method", "loop"),
    [
        ("choco:Choco", choco),
        ("scaffold:Scaffold", scaffold),
        ("fedavg:FedAvg", fedavg),
        ("k_gt:KGT", k_gt),
        ("relaysgd:RelaySGD", relaysgd),
    ],
)
def test_the_numbers_are_those_of_a_plain_loop(
    method: str, loop: Callable[[Naive, list[Rows]], Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare(settings(method, LINEAR, {"rounds": 8}))
    naive = Naive(prepared)
    engine = LocalExecutor(prepared)
    weights: list[Rows] = []
    for name in ("mix", "average_over_server"):
        carried_out = getattr(engine, name)

        def noted(planned: Any, *, _then: Any = carried_out, **arguments: Any) -> Any:
            weights.append(planned.matrix().toarray())
            return _then(planned, **arguments)

        monkeypatch.setattr(engine, name, noted)
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
        whole = {"fedavg:FedAvg": 1.0, "relaysgd:RelaySGD": 1 + 4 / size}  # it sends a count along
        assert sent == pytest.approx([whole.get(method, 2.0)] * 5, rel=1e-9)


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=() if name in ("choco:Choco", "scaffold:Scaffold") else SLOW)
        for name in METHODS
    ],
)
def test_killed_and_resumed(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    server = "[world.server]\nuplink = 20\ndownlink = 10\n"
    more = {
        "choco:Choco": '[exchange]\ncompression = "topk"\n',
        **dict.fromkeys(OVER_SERVER, server),
        "relaysgd:RelaySGD": '[topology]\nname = "star"\n',
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
    "method",
    [
        "scaffold:Scaffold",
        *(
            pytest.param(m, marks=pytest.mark.slow)
            for m in ("choco:Choco", "fedavg:FedAvg", "k_gt:KGT")
        ),
    ],
)
def test_the_network_has_the_bits_of_the_simulation(method: str, tmp_path: Path) -> None:
    experiment = settings(method, {"workers": 4, "cluster": {"min_workers": 4}})
    check_network_bits(experiment, tmp_path / "run", module=method.partition(":")[0])


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["w1", "coordinator"])
@pytest.mark.parametrize("method", OVER_SERVER)
def test_rounds_over_a_server_survive_a_kill(method: str, killed: str, tmp_path: Path) -> None:
    times = {"min_workers": 3, "suspect_after": 3.0, "dead_after": 6.0, "beat": 0.3}
    experiment = settings(method, {"workers": 4, "rounds": 60, "cluster": times})
    prepare(experiment)  # which makes the example importable
    with Cluster(experiment, tmp_path / "run") as cluster:
        cluster.start()
        until(cluster, lambda: round_of(cluster) >= 5, "some rounds")
        cluster.kill(killed)
        cluster.wait(250)
        assert f"{killed} is restarted" in cluster.notes
    assert check_invariants(tmp_path / "run", rounds=60) == []
    verification = verify(tmp_path / "run", trust=[method.partition(":")[0]])
    assert verification.equal
    assert len(verification.rounds) == 60
