"""The network gives the bits of the simulation: processes, mutual TLS, and the same models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedhp.cluster.audit.invariants import check_invariants
from fedhp.cluster.audit.verify import Verification, verify
from fedhp.cluster.ops.launch import Cluster
from fedhp.cluster.worker.data import worker_experiment
from fedhp.config import Experiment, parse

SYNCHRONOUS = ("fedhp", "dpsgd", "ldsgd", "pens")
pytestmark = pytest.mark.xdist_group("processes")


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


def done_again(settings: Experiment, folder: Path, *, seconds: float) -> Verification:
    with Cluster(settings, folder, restart=False) as cluster:
        cluster.start()
        cluster.wait(seconds)
    assert check_invariants(folder, rounds=settings.rounds) == []
    return verify(folder)


@pytest.mark.parametrize("algorithm", ["fedhp", "pens"])
def test_a_short_run_has_the_bits_of_the_simulation(algorithm: str, tmp_path: Path) -> None:
    settings = experiment(algorithm, workers=3, rounds=3, hidden=[8])
    verified = done_again(settings, tmp_path / "run", seconds=120)
    assert [each.compared for each in verified.rounds] == [3, 3, 3]
    assert verified.equal
    assert verified.whole


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", SYNCHRONOUS)
def test_thirty_rounds_of_eight_workers(
    algorithm: str, tmp_path: Path, record_property: Any
) -> None:
    settings = experiment(algorithm, workers=8, rounds=30, hidden=[32])
    verified = done_again(settings, tmp_path / "run", seconds=600)
    assert sum(each.compared for each in verified.rounds) == 8 * 30
    assert verified.equal
    errors = verified.times.errors
    record_property(
        f"figure: {algorithm}, 8 processes, round times predicted from measured ones",
        f"off by {100 * errors.mean():.0f} % in the mean, {100 * errors.max():.0f} % at worst",
    )


def test_another_seed_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: one number of the experiment is not what was run."""
    import fedhp.cluster.audit.replay as again

    settings = experiment("dpsgd", workers=2, rounds=2, hidden=[4])

    def other(text: str) -> Experiment:
        return worker_experiment(text).model_copy(update={"seed": 6})

    monkeypatch.setattr(again, "worker_experiment", other)
    verified = done_again(settings, tmp_path / "run", seconds=120)
    assert not verified.equal
    assert verified.rounds[0].different == (0, 1)
