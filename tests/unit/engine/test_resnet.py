"""ResNet-20 in a run: what BatchNorm's statistics do, and the same bits on any executors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedhp
from fedhp.errors import ConfigError


def digest(folder: Path, *, executors: int = 1, norm: str, batch_norm: str) -> str:
    tables: dict[str, Any] = {
        "workers": 3,
        "rounds": 2,
        "executors": executors,
        "algorithm": {"name": "dpsgd"},
        "model": {"name": "resnet20", "width": 0.25, "norm": norm},
        "training": {"local_steps": 1, "batch_size": 8, "batch_norm": batch_norm},
        "evaluation": {"images": 30},
    }
    with fedhp.run(fedhp.make_experiment(tables), folder) as run:
        return run.digest()


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_statistics_travel_or_stay(tmp_path: Path, norm: str) -> None:
    mixed = digest(tmp_path / "mixed", norm=norm, batch_norm="mixed")
    again = digest(tmp_path / "again", norm=norm, batch_norm="mixed", executors=2)
    assert mixed == again
    if norm == "batch":
        assert mixed != digest(tmp_path / "local", norm=norm, batch_norm="local")
        return
    with pytest.raises(ConfigError, match="no running statistics"):
        digest(tmp_path / "local", norm=norm, batch_norm="local")
