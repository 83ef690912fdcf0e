"""The smallest and strangest experiments that must work: few workers, one class, one step."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedhp
from fedhp.config import Experiment
from fedhp.engine.accounting import check_evaluation
from fedhp.engine.prepare import prepare
from fedhp.errors import Diverged, RunError
from fedhp.record.reader import RunReader
from fedhp.texts import printable
from fedhp.types import Evaluation
from unit.record.rounds import mesh, planned_round

ALGORITHMS: dict[str, dict[str, Any]] = {
    "fedhp": {"name": "fedhp"},
    "fill": {"name": "fedhp", "deadline": "fill"},
    "literal": {"name": "fedhp", "planner": "literal"},
    "plus": {"name": "fedhp_plus"},
    "plus-plain": {"name": "fedhp_plus", "fragments": 1, "compression": "none", "overlap": False},
    "dpsgd": {"name": "dpsgd"},
    "adpsgd": {"name": "adpsgd"},
    "adpsgd-ring": {"name": "adpsgd", "neighbors": "ring"},
    "ldsgd": {"name": "ldsgd"},
    "pens": {"name": "pens", "stage_share": 0.5},
    "pens-symmetric": {"name": "pens", "stage_share": 0.5, "symmetric": True},
}
EVERY = pytest.mark.parametrize("algorithm", ALGORITHMS)

OWN = '''
"""Small modules: one with BatchNorm, one with dropout, one task whose test goes wrong."""
import numpy as np
import torch
from torch import nn
from fedhp.types import Dataset

def normed(shape, classes, *, width: int = 8):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(int(np.prod(shape)), width), nn.BatchNorm1d(width), nn.ReLU(),
        nn.Linear(width, classes),
    )

def dropping(shape, classes, *, width: int = 16):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(int(np.prod(shape)), width), nn.Dropout(0.5), nn.ReLU(),
        nn.Linear(width, classes),
    )

class Line:
    metric_name = "R2"
    def __init__(self, *, limit: float = 1e9): self.limit = limit
    def data(self):
        x = np.random.default_rng(0).normal(size=(60, 3)).astype("float32")
        return Dataset("line", x[:50], x[:50, :1].copy(), x[50:], x[50:, :1].copy(), None)
    def model(self): return nn.Linear(3, 1)
    def loss(self, outputs, targets): return ((outputs - targets) ** 2).mean()
    def metric(self, outputs, targets):
        value = -float(((outputs - targets) ** 2).mean())
        return value if value < self.limit else float("inf")
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "edge_parts.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))


def tiny(**changes: Any) -> dict[str, Any]:
    """Six workers, two rounds, three steps; sections given are laid over these."""
    tables: dict[str, Any] = {
        "workers": 6,
        "rounds": 2,
        "training": {"local_steps": 3},
        "evaluation": {"images": 50},
    }
    for key, value in changes.items():
        tables[key] = {**tables.get(key, {}), **value} if isinstance(value, dict) else value
    return tables


def run(folder: Path, **changes: Any) -> RunReader:
    """Run to the end and look at what every run must have."""
    experiment = fedhp.make_experiment(tiny(**changes))
    reader = fedhp.run(experiment, folder)
    assert reader.meta("status") == "finished"
    assert reader.rounds_done == experiment.rounds
    clock = reader.array("rounds", "clock")
    assert np.isfinite(clock).all()
    assert (np.diff(clock) > 0).all()
    steps = reader.array("workers", "local_steps")
    assert steps.shape == (experiment.rounds, experiment.workers)
    assert (steps >= 0).all()
    summary = reader.summary()
    assert (summary.final_accuracy is None) == (experiment.rounds == 0)
    return reader


@EVERY
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_few_workers(algorithm: str, workers: int, tmp_path: Path) -> None:
    with run(tmp_path / "r", workers=workers, algorithm=ALGORITHMS[algorithm]) as reader:
        links = reader.table("links")
        assert set(links["a"]) | set(links["b"]) <= set(range(workers))
        if workers == 1:
            assert reader.summary().bytes_sent == 0
            assert reader.summary().mean_waiting_time == 0.0


@EVERY
@pytest.mark.parametrize("rounds", [0, 1])
def test_few_rounds(algorithm: str, rounds: int, tmp_path: Path) -> None:
    with run(tmp_path / "r", rounds=rounds, algorithm=ALGORITHMS[algorithm]) as reader:
        models = reader.models()
        assert models is not None
        assert np.isfinite(models).all()


@EVERY
def test_one_step(algorithm: str, tmp_path: Path) -> None:
    settings = ALGORITHMS[algorithm]
    if settings["name"] == "fedhp":
        settings = {**settings, "max_steps": 1}
    with run(tmp_path / "r", algorithm=settings, training={"local_steps": 1}) as reader:
        most = 2 if algorithm == "ldsgd" else 1
        steps = reader.array("workers", "local_steps")
        # A fast worker has several turns; with FedHP+ everyone trains until the deadline.
        if algorithm.startswith(("adpsgd", "plus")):
            assert steps.sum() >= steps.shape[0]
        else:
            assert (steps >= 1).all()
            assert (steps <= most).all()


@EVERY
def test_workers_that_are_away(algorithm: str, tmp_path: Path) -> None:
    away = [{"worker": 0, "first": 1, "last": 2}, {"worker": 3, "first": 2, "last": 9}]
    world = {"away": away, "away_probability": 0.4}
    with run(tmp_path / "r", rounds=4, algorithm=ALGORITHMS[algorithm], world=world) as reader:
        steps = reader.array("workers", "local_steps")
        if not algorithm.startswith("adpsgd"):  # there a turn that has begun is ended
            assert (steps[:2, 0] == 0).all()
            assert (steps[1:, 3] == 0).all()
        assert (steps.sum(axis=1) > 0).all()


@EVERY
def test_everyone_but_one_is_away(algorithm: str, tmp_path: Path) -> None:
    away = [{"worker": i, "first": 1, "last": 3} for i in range(1, 4)]
    with run(
        tmp_path / "r", workers=4, rounds=4, algorithm=ALGORITHMS[algorithm], world={"away": away}
    ) as reader:
        assert reader.array("rounds", "bytes_sent")[0] == 0


@pytest.mark.parametrize("algorithm", ["fedhp", "fedhp_plus", "adpsgd", "pens"])
@pytest.mark.parametrize(
    "world",
    [
        {"bandwidth": {"sharing": True}},
        {"bandwidth": {"per": "link", "latency": 0.5}},
        {"bandwidth": {"per": "link", "sharing": True, "correlation": 1.0}},
        {"monitor_delay": 1, "bandwidth": {"correlation": 0.0, "interval": 0.5}},
        {"charge_estimators": True, "drift": 0.5},
        {"device": {"mine": {"step_time": 0.5, "sd": 1.0}}, "devices": ["mine", "laptop"]},
        {"devices": {"laptop": 1, "jetson_tx2": 5}, "shuffle_devices": False},
        {"profile": "uniform", "model_megabits": 0.001},
    ],
    ids=lambda world: ",".join(world),
)
def test_worlds(algorithm: str, world: dict[str, Any], tmp_path: Path) -> None:
    run(tmp_path / "r", algorithm={"name": algorithm}, world=world).close()


@pytest.mark.parametrize("algorithm", ["fedhp", "adpsgd", "pens"])
@pytest.mark.parametrize(
    "topology",
    [
        {"name": "full"},
        {"name": "ring"},
        {"name": "star", "center": 5},
        {"name": "grid"},
        {"name": "random_regular", "degree": 3},
        {"name": "random", "probability": 0.5},
        {"name": "links", "pairs": [[i, i + 1] for i in range(5)]},
    ],
    ids=lambda topology: str(topology["name"]),
)
def test_topologies(algorithm: str, topology: dict[str, Any], tmp_path: Path) -> None:
    run(tmp_path / "r", algorithm={"name": algorithm}, topology=topology).close()


@pytest.mark.parametrize("name", ["ring", "star", "grid", "random"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_topologies_of_few_workers(name: str, workers: int) -> None:
    prepared = prepare(fedhp.make_experiment(tiny(workers=workers, topology={"name": name})))
    degrees = prepared.federation.base_topology.degrees
    assert (degrees >= min(1, workers - 1)).all()


def test_links_of_a_single_worker() -> None:
    topology = {"name": "links", "pairs": []}
    prepared = prepare(fedhp.make_experiment(tiny(workers=1, topology=topology)))
    assert len(prepared.federation.base_topology.links) == 0


@pytest.mark.parametrize("partition", ["skew", "dirichlet", "shards", "quantity", "iid"])
def test_one_class_only(partition: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "one.npz", x=rng.normal(size=(80, 4)), y=np.zeros(80, dtype=np.int64))
    data = {"name": "npz", "path": str(tmp_path / "one.npz"), "partition": partition}
    with run(tmp_path / "r", data=data) as reader:
        assert reader.summary().final_accuracy == 1.0


@pytest.mark.parametrize("algorithm", ["fedhp", "adpsgd"])
def test_batches_larger_than_the_data_and_rare_tests(algorithm: str, tmp_path: Path) -> None:
    with run(
        tmp_path / "r",
        algorithm={"name": algorithm},
        data={"train_images": 12, "test_images": 3},
        training={"batch_size": 500},
        evaluation={"every": 1000, "images": 10_000, "final_mean": 50},
    ) as reader:
        assert reader.table("evaluations")["round"] == [2]
        assert reader.table("evaluations")["images"] == [3]


def test_one_sample_per_worker(tmp_path: Path) -> None:
    data = {"train_images": 6, "partition": "iid"}
    with run(tmp_path / "r", data=data) as reader:
        assert reader.meta("samples") == [1] * 6


@pytest.mark.parametrize("algorithm", ["fedhp", "dpsgd", "adpsgd"])
def test_a_rate_that_falls_with_virtual_time(algorithm: str, tmp_path: Path) -> None:
    training = {"decay_by": "time", "decay_seconds": 0.01, "decay": 0.5}
    with run(tmp_path / "r", rounds=3, algorithm={"name": algorithm}, training=training) as reader:
        rates = reader.array("rounds", "learning_rate")
        assert (np.diff(rates) < 0).all()


def test_no_targets_and_a_target_out_of_reach(tmp_path: Path) -> None:
    with run(tmp_path / "none", evaluation={"targets": []}) as reader:
        assert reader.summary().time_to_target == {}
    with run(tmp_path / "far", evaluation={"targets": [1.0, 0.0]}) as reader:
        assert reader.summary().time_to_target["1.00"] is None
        assert reader.summary().time_to_target["0.00"] is not None


@pytest.mark.parametrize("policy", ["mixed", "local"])
@pytest.mark.parametrize("algorithm", ["fedhp", "adpsgd", "pens"])
def test_batch_norm(own: None, policy: str, algorithm: str, tmp_path: Path) -> None:
    model, training = {"name": "edge_parts:normed"}, {"batch_norm": policy}
    with run(
        tmp_path / "r", algorithm={"name": algorithm}, model=model, training=training
    ) as reader:
        models = reader.models()
        assert models is not None
        statistics = models[:, -16:]  # running mean and variance of eight units
        assert np.ptp(statistics, axis=0).max() > 0
        assert reader.meta("model_bytes") == 4 * (
            reader.meta("parameters") + 16 * (policy == "mixed")
        )


@pytest.mark.parametrize("algorithm", ["fedhp", "adpsgd"])
def test_dropout_repeats_with_the_seed_whatever_the_executors(
    own: None, algorithm: str, tmp_path: Path
) -> None:
    digests = []
    for name, executors, seed in (("a", 1, 0), ("b", 2, 0), ("c", 1, 1)):
        with run(
            tmp_path / name,
            algorithm={"name": algorithm},
            model={"name": "edge_parts:dropping"},
            executors=executors,
            seed=seed,
        ) as reader:
            digests.append(reader.digest())
    assert digests[0] == digests[1] != digests[2]


def diverging(algorithm: str) -> Experiment:
    """Nothing moves at first, then everything does: earlier rounds stand before the end."""
    return fedhp.make_experiment(
        tiny(
            rounds=6,
            algorithm={**ALGORITHMS[algorithm], "learning_rate": 1e6},
            training={"local_steps": 2},
            model={"name": "mlp", "hidden": [16, 16]},
        )
    )


@pytest.mark.parametrize(
    ("algorithm", "training", "words"),
    [
        ("dpsgd", {"proximal": 1e30}, "in this round), or training.proximal (1e+30)"),
        ("adpsgd", {"weight_decay": 1e30}, "in this round), or training.weight_decay (1e+30)"),
    ],
)
def test_the_fix_of_a_model_that_diverges_names_what_pulls_at_it(
    algorithm: str, training: dict[str, float], words: str, tmp_path: Path
) -> None:
    tables = {
        "workers": 3,
        "rounds": 3,
        "algorithm": {"name": algorithm},
        "training": {"local_steps": 4, **training},
    }
    with pytest.raises(Diverged) as caught:
        fedhp.run(fedhp.make_experiment(tables), tmp_path / "r")
    assert caught.value.fix.endswith(words)


@EVERY
def test_a_model_that_diverges_ends_the_run_and_keeps_earlier_rounds(
    algorithm: str, tmp_path: Path
) -> None:
    with pytest.raises(Diverged) as caught:
        fedhp.run(diverging(algorithm), tmp_path / "r")
    text = str(caught.value)
    assert caught.value.exit_code == 3
    assert "diverged" in text
    assert "worker" in text
    assert "lower the learning rate" in text
    assert re.search(r"it was (1e\+06|9\d{5}) in this round", text)
    with fedhp.open_run(tmp_path / "r") as reader:
        assert f"round {reader.rounds_done + 1}:" in text
        assert reader.meta("status") == "diverged"
        assert reader.meta("message") == printable(text)
        assert len(reader.table("workers")["round"]) == 6 * reader.rounds_done
        before = reader.digest()
    # Going on meets the same end, and loses nothing.
    with pytest.raises(Diverged):
        fedhp.run(diverging(algorithm), tmp_path / "r", resume=True)
    with fedhp.open_run(tmp_path / "r") as reader:
        assert reader.digest() == before


def test_rounds_before_a_slow_divergence_are_all_there(own: None, tmp_path: Path) -> None:
    experiment = fedhp.make_experiment(
        tiny(
            rounds=60,
            task={"name": "edge_parts:Line"},
            data={"partition": "iid"},
            algorithm={"name": "dpsgd"},
            training={"learning_rate": 1.5, "decay": 1.0},
        )
    )
    with pytest.raises(Diverged):
        fedhp.run(experiment, tmp_path / "r")
    with fedhp.open_run(tmp_path / "r") as reader:
        assert reader.rounds_done > 3
        assert reader.table("rounds")["round"] == list(range(1, reader.rounds_done + 1))
        assert np.isfinite(reader.array("evaluations", "accuracy")).all()
        assert json.loads(json.dumps(reader.summary().as_json(), allow_nan=False))


def test_a_test_that_gives_no_number_ends_the_run(own: None, tmp_path: Path) -> None:
    experiment = fedhp.make_experiment(
        tiny(
            rounds=40,
            task={"name": "edge_parts:Line", "limit": -0.02},
            data={"partition": "iid"},
            evaluation={"images": 10},
        )
    )
    for attempt in (False, True):
        with pytest.raises(Diverged, match="gave no finite number") as caught:
            fedhp.run(experiment, tmp_path / "r", resume=attempt)
        with fedhp.open_run(tmp_path / "r") as reader:
            assert 0 < reader.rounds_done < 40
            assert f"round {reader.rounds_done + 1}:" in str(caught.value)
            assert np.isfinite(reader.array("evaluations", "accuracy")).all()


@pytest.mark.parametrize(
    ("accuracy", "mean_model", "honest", "whose"),
    [
        ([0.5, np.nan, 0.7], 0.6, None, "worker 1"),
        ([0.5, 0.6, 0.7], np.nan, None, "the mean model"),
        ([0.5, np.inf, np.nan], -np.inf, None, "worker 1"),
        ([np.nan, 0.6, np.nan], 0.6, [False, True, True], "worker 2"),
        ([np.nan, 0.6, 0.7], 0.6, [False, True, True], ""),
        ([0.5, 0.6, 0.7], 0.6, None, ""),
    ],
)
def test_one_test_without_a_number_is_enough(
    accuracy: list[float], mean_model: float, honest: list[bool] | None, whose: str
) -> None:
    tested = replace(
        planned_round(3, mesh(3)),
        evaluation=Evaluation(
            np.array(accuracy),
            mean_model,
            10,
            0.1,
            honest=None if honest is None else np.array(honest),
        ),
    )
    check_evaluation(replace(tested, evaluation=None))  # a round without a test
    if not whose:
        check_evaluation(tested)
        return
    with pytest.raises(Diverged, match=f"{whose} gave no finite number"):
        check_evaluation(tested)


def test_a_clock_that_runs_away_is_refused_and_not_recorded(tmp_path: Path) -> None:
    experiment = fedhp.make_experiment(
        tiny(algorithm={"name": "pens", "stage_share": 1.0, "score_cost": 1e300})
    )
    with pytest.raises(RunError, match="round 1: the virtual clock"):
        fedhp.run(experiment, tmp_path / "r")
    with fedhp.open_run(tmp_path / "r") as reader:
        assert reader.rounds_done == 0


def test_a_part_that_changed_since_the_checkpoint_is_refused(own: None, tmp_path: Path) -> None:
    model = {"name": "edge_parts:normed"}
    run(tmp_path / "r", model=model).close()
    import edge_parts  # type: ignore[import-not-found]

    edge_parts.normed.__kwdefaults__["width"] = 4
    with pytest.raises(RunError, match="does not belong to this experiment") as caught:
        fedhp.run(fedhp.make_experiment(tiny(model=model)), tmp_path / "r", resume=True)
    assert "your own part" in caught.value.fix
