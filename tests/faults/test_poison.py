"""Two of ten workers send their models with all signs flipped: which mixing withstands it?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhp.cluster.audit.invariants import check_invariants
from fedhp.cluster.ops.launch import Cluster
from fedhp.config import Experiment, parse
from fedhp.record.reader import RunReader

CLOSE = 0.03
pytestmark = pytest.mark.slow


def settings(robust: str, attack: str) -> Experiment:
    return parse(
        {
            "workers": 10,
            "rounds": 25,
            "seed": 1,
            "algorithm": {"name": "fedhp", "bound": "none"},
            "model": {"name": "mlp", "hidden": [32]},
            "data": {"partition": "iid"},
            "training": {"local_steps": 10, "batch_size": 16},
            "evaluation": {"every": 25},
            "world": {"profile": "uniform"},
            "exchange": {"robust": robust},
            "attack": {} if attack == "none" else {"kind": attack, "share": 0.2, "scale": 3.0},
            "cluster": {"min_workers": 10, "suspect_after": 20.0},
        }
    )


def accuracy(folder: Path, robust: str, attack: str = "sign_flip") -> float:
    """Of the honest workers, after the last round."""
    experiment = settings(robust, attack)
    with Cluster(experiment, folder, restart=False) as cluster:
        cluster.start()
        cluster.wait(600)
    assert check_invariants(folder, rounds=experiment.rounds) == []
    with RunReader(folder) as reader:
        table = reader.table("worker_evaluations", round_index=experiment.rounds)
        attackers = reader.meta("attackers") or []
    assert set(table["worker"]) == set(range(10)) - set(attackers)
    assert len(attackers) == (0 if attack == "none" else 2)
    return float(np.mean(table["accuracy"]))


def test_the_trimmed_mean_withstands_turned_signs(tmp_path: Path, record_property: Any) -> None:
    clean = accuracy(tmp_path / "clean", "none", attack="none")
    hurt = accuracy(tmp_path / "hurt", "none")
    guarded = accuracy(tmp_path / "guarded", "trimmed_mean")
    record_property(
        "figure: accuracy with 2 of 10 workers turning signs",
        f"clean {clean:.3f}, trimmed mean {guarded:.3f}, no defence {hurt:.3f}",
    )
    assert guarded >= clean - CLOSE
    assert hurt < clean - CLOSE, "the attack does nothing: this test shows nothing"
