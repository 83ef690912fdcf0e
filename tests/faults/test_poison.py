"""Two of ten workers send their models with all signs flipped: which mixing withstands it?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faults.custom_cluster import CustomCluster
from fedhp.cluster.audit.invariants import check_invariants
from fedhp.config import Experiment, parse
from fedhp.record.reader import RunReader

POISONED = frozenset({2, 7})
CLOSE = 0.03
pytestmark = pytest.mark.slow


def settings(robust: str) -> Experiment:
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
            "cluster": {"robust": robust, "min_workers": 10, "suspect_after": 20.0},
        }
    )


def accuracy(folder: Path, robust: str, poisoned: frozenset[int]) -> float:
    """Of the honest workers, after the last round."""
    experiment = settings(robust)
    with CustomCluster(experiment, folder, poisoned=poisoned) as cluster:
        cluster.start()
        cluster.wait(600)
    assert check_invariants(folder, rounds=experiment.rounds) == []
    with RunReader(folder) as reader:
        table = reader.table("worker_evaluations", round_index=experiment.rounds)
    honest = [
        share
        for worker, share in zip(table["worker"], table["accuracy"], strict=True)
        if worker not in POISONED
    ]
    assert len(honest) == 8
    return float(np.mean(honest))


def test_the_trimmed_mean_withstands_turned_signs(tmp_path: Path, record_property: Any) -> None:
    clean = accuracy(tmp_path / "clean", "none", frozenset())
    hurt = accuracy(tmp_path / "hurt", "none", POISONED)
    guarded = accuracy(tmp_path / "guarded", "trimmed_mean", POISONED)
    record_property(
        "figure: accuracy with 2 of 10 workers turning signs",
        f"clean {clean:.3f}, trimmed mean {guarded:.3f}, no defence {hurt:.3f}",
    )
    assert guarded >= clean - CLOSE
    assert hurt < clean - CLOSE, "the attack does nothing: this test shows nothing"
