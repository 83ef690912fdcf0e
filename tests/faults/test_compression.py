"""What compression on the wire costs in accuracy and saves in bytes: real processes, digits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedhp.cluster.audit.invariants import check_invariants
from fedhp.cluster.ops.launch import Cluster
from fedhp.config import parse
from fedhp.record.reader import RunReader, summarize

ROUNDS = 40
LEAST_SAVED = {"fp16": 1.9, "int8": 3.6, "topk": 4.0}  # times fewer bytes than without
CLOSE = 0.05
pytestmark = pytest.mark.slow


def ran(folder: Path, compression: str) -> tuple[float, int]:
    """Final accuracy, and bytes of models sent."""
    settings = parse(
        {
            "workers": 8,
            "rounds": ROUNDS,
            "seed": 2,
            "algorithm": {"name": "dpsgd"},
            "model": {"name": "mlp", "hidden": [64]},
            "data": {"skew": 0.6},
            "training": {"local_steps": 5, "batch_size": 16},
            "evaluation": {"every": ROUNDS},
            "exchange": {"compression": compression},
            "cluster": {"min_workers": 8, "suspect_after": 20.0},
        }
    )
    with Cluster(settings, folder, restart=False) as cluster:
        cluster.start()
        cluster.wait(300)
    assert check_invariants(folder, rounds=ROUNDS) == []
    with RunReader(folder) as reader:
        summary = summarize(reader)
    assert summary.final_accuracy is not None
    return summary.final_accuracy, summary.bytes_sent


def test_compression_saves_bytes_and_keeps_the_accuracy(
    tmp_path: Path, record_property: Any
) -> None:
    accuracy, sent = ran(tmp_path / "none", "none")
    record_property("figure: no compression", f"accuracy {accuracy:.3f}, {sent / 1e6:.1f} MB")
    for name, least in LEAST_SAVED.items():
        compressed, fewer = ran(tmp_path / name, name)
        record_property(
            f"figure: {name}",
            f"accuracy {compressed:.3f}, {fewer / 1e6:.1f} MB, {sent / fewer:.1f} times fewer",
        )
        assert sent / fewer >= least
        assert abs(compressed - accuracy) <= CLOSE
