"""The network gives the bits of the simulation: processes, mutual TLS, and the same models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faults import fault_run
from fedhp.cluster.audit.committed_rounds import read_committed_rounds
from fedhp.cluster.audit.invariants import check_invariants
from fedhp.cluster.audit.timeline import read_timeline
from fedhp.cluster.audit.verify import Verification, verify
from fedhp.cluster.history import read_history
from fedhp.cluster.ops.launch import Cluster
from fedhp.cluster.worker.data import worker_experiment
from fedhp.config import AttackConfig, Experiment, parse, to_tables
from fedhp.config.origins import Origins
from fedhp.record.reader import RunReader

SYNCHRONOUS = ("fedhp", "dpsgd", "ldsgd", "pens", "fedhp_plus")


def experiment(algorithm: str, *, workers: int, rounds: int, **model: Any) -> Experiment:
    return parse(
        {
            "workers": workers,
            "rounds": rounds,
            "seed": 5,
            "algorithm": {"name": algorithm},
            "model": {"name": "mlp", **model},
            "data": {"skew": 0.6},
            "training": {"local_steps": 3, "batch_size": 8},
            "evaluation": {"images": 50, "every": 10},
            "cluster": {"min_workers": workers, "suspect_after": 20.0, "dead_after": 60.0},
        }
    )


def run_and_verify(settings: Experiment, folder: Path, *, seconds: float) -> Verification:
    with Cluster(settings, folder, restart=False) as cluster:
        cluster.start()
        cluster.wait(seconds)
    assert check_invariants(folder, rounds=settings.rounds) == []
    return verify(folder)


@pytest.mark.parametrize("algorithm", ["fedhp", "pens", "fedhp_plus"])
def test_a_short_run_has_the_bits_of_the_simulation(algorithm: str, tmp_path: Path) -> None:
    settings = experiment(algorithm, workers=3, rounds=3, hidden=[8])
    verification = run_and_verify(settings, tmp_path / "run", seconds=120)
    assert [verdict.compared for verdict in verification.rounds] == [3, 3, 3]
    assert verification.equal
    assert verification.whole


TWO_GROUPS = """
from dataclasses import dataclass

import numpy as np

from fedhp import Decision, DisjointGroups, GroupAverage, Plan
from fedhp.algorithms import Traits

@dataclass(frozen=True)
class Nothing:
    pass

def pair(root, other, **settings):
    members = sorted((root, other))
    parents = [-1 if worker == root else root for worker in members]
    returning = np.zeros(2, dtype=np.bool_)
    return GroupAverage(np.array(members), np.array(parents), returning, **settings)

class TwoGroups:
    traits = Traits(group_average=True)

    def start(self, federation):
        return Nothing()

    def restart(self, state, workers):
        return state

    def plan(self, state, observation, reports):
        groups = (
            pair(2, 0, rate=0.7, momentum=0.5),
            pair(1, 3, rate=1.5, momentum=0.0, compression="none"),
        )
        exchange = DisjointGroups(groups)
        decision = Decision.without_links("two groups")
        return state, Plan(exchange, decision, deadline=0.1, overlap=True)
"""


def test_two_groups_with_their_rates_have_the_bits_of_the_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "twogroups.py").write_text(TWO_GROUPS)
    monkeypatch.syspath_prepend(tmp_path)
    tables = to_tables(experiment("dpsgd", workers=5, rounds=3, hidden=[8]))
    tables["algorithm"] = {"name": "twogroups:TwoGroups"}
    settings = parse(tables, origins=Origins.of_file(tmp_path / "run.toml"))
    folder = tmp_path / "run"
    with Cluster(settings, folder, restart=False) as cluster:
        cluster.start()
        cluster.wait(120)
    assert check_invariants(folder, rounds=3) == []
    verification = verify(folder, trust=["twogroups"])
    assert [verdict.compared for verdict in verification.rounds] == [5, 5, 5]
    assert verification.equal
    last = list(read_committed_rounds(read_timeline(folder)))[-1]
    assert last.averaged is not None
    assert [group.rate for group in last.averaged.groups] == [0.7, 1.5]
    held = last.consensus
    assert held[0] == held[2]
    assert held[1] == held[3]
    assert len({held[0], held[1], held[4]}) == 3


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", SYNCHRONOUS)
def test_thirty_rounds_of_eight_workers(
    algorithm: str, tmp_path: Path, record_property: Any
) -> None:
    settings = experiment(algorithm, workers=8, rounds=30, hidden=[32])
    verification = run_and_verify(settings, tmp_path / "run", seconds=600)
    assert sum(verdict.compared for verdict in verification.rounds) == 8 * 30
    assert verification.equal
    errors = verification.time_errors
    record_property(
        f"figure: {algorithm}, 8 processes, round times predicted from measured ones",
        f"error of {100 * errors.mean():.0f} % on average, {100 * errors.max():.0f} % at most",
    )


def test_another_seed_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: one number of the experiment is not what was run."""
    from fedhp.cluster.audit import replay

    settings = experiment("dpsgd", workers=2, rounds=2, hidden=[4])

    def other(text: str) -> Experiment:
        return worker_experiment(text).model_copy(update={"seed": 6})

    monkeypatch.setattr(replay, "worker_experiment", other)
    verification = run_and_verify(settings, tmp_path / "run", seconds=120)
    assert not verification.equal
    assert verification.rounds[0].different == (0, 1)


MOMENTUM = {"momentum": 0.9, "learning_rate": 0.02}
ADAMW = {"optimizer": "adamw", "learning_rate": 0.003, "weight_decay": 0.01}


def with_state(
    algorithm: str, training: dict[str, Any], *, workers: int, rounds: int
) -> Experiment:
    tables = to_tables(experiment(algorithm, workers=workers, rounds=rounds, hidden=[16]))
    tables["training"] |= training
    return parse(tables)


@pytest.mark.parametrize(
    ("algorithm", "training"),
    [
        ("dpsgd", {**ADAMW, "optimizer_state": "mix"}),
        pytest.param("fedhp", {**MOMENTUM, "nesterov": True}, marks=pytest.mark.slow),
        pytest.param("pens", {**MOMENTUM, "optimizer_state": "reset"}, marks=pytest.mark.slow),
        pytest.param("fedhp_plus", {**ADAMW, "clip_norm": 1.0}, marks=pytest.mark.slow),
        pytest.param("ldsgd", {"weight_decay": 0.1, "proximal": 0.1}, marks=pytest.mark.slow),
    ],
)
def test_a_run_with_an_optimizer_has_the_bits_of_the_simulation(
    algorithm: str, training: dict[str, Any], tmp_path: Path
) -> None:
    settings = with_state(algorithm, training, workers=3, rounds=4)
    verification = run_and_verify(settings, tmp_path / "run", seconds=120)
    assert [verdict.compared for verdict in verification.rounds] == [3] * 4
    assert verification.equal
    assert verification.whole


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", SYNCHRONOUS)
def test_momentum_over_eight_processes(algorithm: str, tmp_path: Path) -> None:
    settings = with_state(algorithm, MOMENTUM, workers=8, rounds=12)
    verification = run_and_verify(settings, tmp_path / "run", seconds=400)
    assert [verdict.compared for verdict in verification.rounds] == [8] * 12
    assert verification.equal
    assert verification.whole


@pytest.mark.slow
@pytest.mark.parametrize("state", ["keep", "mix"])
def test_momentum_of_a_worker_that_was_away(state: str, tmp_path: Path) -> None:
    """It catches up with the model of another, and the rounds after it can be repeated."""
    settings = fault_run.experiment(
        rounds=14, training={**MOMENTUM, "optimizer_state": state}, algorithm={"name": "dpsgd"}
    )
    with fault_run.FaultRun(settings, tmp_path / "run") as run:
        run.start()
        run.until_round(3)
        run.kill("w1")
        run.until_round(run.committed() + 3)
        run.restart("w1")
        run.finish()
        assert 1 in run.last_participants()
    [history] = (tmp_path / "run").rglob("history-w1.jsonl")
    events = read_history(history)
    assert "caught_up" in [event["event"] for event in events]
    verification = verify(tmp_path / "run")
    assert verification.equal
    assert verification.rounds[-1].compared == 4


@pytest.mark.slow
def test_adpsgd_with_momentum_of_its_own(tmp_path: Path) -> None:
    """Turns have no order that could be repeated; the workers keep their state and learn."""
    tables = to_tables(with_state("adpsgd", {"learning_rate": 0.02}, workers=3, rounds=12))
    tables["algorithm"]["momentum"] = 0.9
    settings = parse(tables)
    with Cluster(settings, tmp_path / "run", restart=False) as cluster:
        cluster.start()
        cluster.wait(120)
    assert check_invariants(tmp_path / "run", rounds=settings.rounds) == []
    with RunReader(tmp_path / "run") as reader:
        accuracies = reader.table("worker_evaluations", round_index=12)["accuracy"]
    assert min(accuracies) > 0.3


def disturbed(
    algorithm: str, *, workers: int, rounds: int, exchange: dict[str, Any], attack: dict[str, Any]
) -> Experiment:
    plain = experiment(algorithm, workers=workers, rounds=rounds, hidden=[16])
    return parse({**to_tables(plain), "exchange": exchange, "attack": attack})


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedhp", "dpsgd", "ldsgd", "pens"])
def test_int8_trimmed_mean_and_sign_flips_have_the_bits_of_the_simulation(
    algorithm: str, tmp_path: Path
) -> None:
    settings = disturbed(
        algorithm,
        workers=10,
        rounds=12,
        exchange={"compression": "int8", "robust": "trimmed_mean", "trim": 0.2},
        attack={"kind": "sign_flip", "share": 0.2},
    )
    verification = run_and_verify(settings, tmp_path / "run", seconds=400)
    assert [verdict.compared for verdict in verification.rounds] == [10] * 12
    assert verification.equal
    assert verification.whole
    with RunReader(tmp_path / "run") as reader:
        attackers = reader.meta("attackers")
        tested = set(reader.table("worker_evaluations", round_index=10)["worker"])
    assert len(attackers) == 2
    assert tested == set(range(10)) - set(attackers)
    logs = {file.stem: file.read_text() for file in (tmp_path / "run/logs").glob("*.log")}
    warned = {name for name, text in logs.items() if "ATTACK STUDY" in text}
    assert len(warned) == 3, "the coordinator and the two attackers say so"
    assert "coordinator" in warned


@pytest.mark.parametrize(
    ("exchange", "attack"),
    [
        ({"compression": "int8", "robust": "trimmed_mean"}, {"kind": "sign_flip"}),
        ({"compression": "topk", "topk_share": 0.2}, {"kind": "noise", "scale": 0.1}),
        pytest.param(
            {"compression": "fp16", "robust": "krum"},
            {"kind": "label_flip"},
            marks=pytest.mark.slow,
        ),
        pytest.param({"robust": "clip", "radius": 0.5}, {}, marks=pytest.mark.slow),
    ],
    ids=["int8", "topk", "fp16", "clip"],
)
def test_a_disturbed_run_has_the_bits_of_the_simulation(
    exchange: dict[str, Any], attack: dict[str, Any], tmp_path: Path
) -> None:
    settings = disturbed("dpsgd", workers=4, rounds=4, exchange=exchange, attack=attack)
    verification = run_and_verify(settings, tmp_path / "run", seconds=120)
    assert [verdict.compared for verdict in verification.rounds] == [4] * 4
    assert verification.equal
    assert verification.whole


def test_another_attacker_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedhp.cluster.audit import replay

    settings = disturbed("dpsgd", workers=3, rounds=2, exchange={}, attack={"kind": "sign_flip"})

    def honest(text: str) -> Experiment:
        return worker_experiment(text).model_copy(update={"attack": AttackConfig()})

    monkeypatch.setattr(replay, "worker_experiment", honest)
    verification = run_and_verify(settings, tmp_path / "run", seconds=120)
    assert not verification.equal


@pytest.mark.parametrize(
    ("algorithm", "training"),
    [
        ("dpsgd", {"local_epochs": 0.05}),
        pytest.param("ldsgd", {"local_epochs": 0.03}, marks=pytest.mark.slow),
        pytest.param("fedhp", {"local_epochs": 0.05}, marks=pytest.mark.slow),
        pytest.param("fedhp_plus", {}, marks=pytest.mark.slow),
    ],
)
def test_epochs_and_augmented_images_have_the_bits_of_the_simulation(
    algorithm: str, training: dict[str, Any], tmp_path: Path
) -> None:
    """The same positions in the shuffled samples, and the steps of each worker's own epochs."""
    plain = to_tables(experiment(algorithm, workers=3, rounds=4, hidden=[8]))
    samples = {"batches": "epochs", "label_smoothing": 0.1, "batch_size": 8, **training}
    settings = parse(
        {
            **plain,
            "data": {"partition": "quantity", "alpha": 1.0},
            "training": samples,
            "augmentation": {"crop": 1, "flip": True},
        }
    )
    verification = run_and_verify(settings, tmp_path / "run", seconds=120)
    assert [verdict.compared for verdict in verification.rounds] == [3] * 4
    assert verification.equal
    assert verification.whole
    if algorithm == "dpsgd":
        with RunReader(tmp_path / "run") as reader:
            steps = reader.array("workers", "local_steps").tolist()
            expected = [-(-count // 160) for count in reader.meta("samples")]
        assert steps == [expected] * 4
        assert len(set(expected)) > 1


@pytest.mark.slow
def test_turns_walk_through_epochs(tmp_path: Path) -> None:
    """AD-PSGD over the network: every turn has the epochs of its worker."""
    plain = to_tables(experiment("adpsgd", workers=3, rounds=4, hidden=[8]))
    training = {"batches": "epochs", "local_epochs": 0.05, "batch_size": 8}
    settings = parse({**plain, "training": training, "augmentation": {"flip": True}})
    with Cluster(settings, tmp_path / "run", restart=False) as cluster:
        cluster.start()
        cluster.wait(120)
    assert check_invariants(tmp_path / "run", rounds=4) == []
    with RunReader(tmp_path / "run") as reader:
        steps = reader.array("workers", "local_steps")
        expected = np.array([-(-count // 160) for count in reader.meta("samples")])
    assert (steps % expected == 0).all()
    assert steps.sum() > 0
