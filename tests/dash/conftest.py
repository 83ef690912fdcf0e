"""Two small real runs, and a folder that a test may change."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cli.support import Command, caller, write
from dash.serving import AppClient, client_of
from fedhp.cli import call

FIRST = "first/fedhp"
SECOND = "second"


@pytest.fixture(scope="session")
def real_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A FedHP run in which workers are away, and one of AD-PSGD."""
    place = tmp_path_factory.mktemp("dash")
    runs = place / "runs"
    (runs / "first").mkdir(parents=True)
    file = write(
        place, rounds=5, algorithm={"name": "fedhp"}, world={"away_probability": 0.2}, seed=3
    )
    assert call(["run", str(file), "--out", str(runs / FIRST), "--json"]) == 0
    file = write(place, rounds=4, algorithm={"name": "adpsgd"})
    assert call(["run", str(file), "--out", str(runs / SECOND), "--json"]) == 0
    return runs


@pytest.fixture
def runs(real_runs: Path, tmp_path: Path) -> Path:
    """A copy of them."""
    return Path(shutil.copytree(real_runs, tmp_path / "runs"))


@pytest.fixture
def client(real_runs: Path) -> AppClient:
    return client_of(real_runs)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return caller(capsys)
