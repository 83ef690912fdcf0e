"""Positions in shuffled samples survive kill -9 and catching up: the simulation has the bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.cases import at, more_rounds, verified
from faults.fault_run import FaultRun, experiment
from fedhp.cluster.history import read_history
from fedhp.config import Experiment, parse, to_tables

pytestmark = pytest.mark.slow


def settings(seed: int) -> Experiment:
    """Two steps for everyone in a round: 3 % of about 480 samples."""
    plain = experiment(
        seed=seed,
        workers=3,
        rounds=14,
        algorithm={"name": "dpsgd"},
        training={"batches": "epochs"},
        augmentation={"crop": 1, "flip": True},
    )
    return parse(to_tables(plain), ["training.local_epochs=0.03"])


@pytest.mark.parametrize(("phase", "rounds"), [("training", 2), ("mixing", 2), ("reporting", 3)])
def test_a_worker_that_is_killed_continues_its_epoch(
    phase: str, rounds: int, tmp_path: Path
) -> None:
    """In round 3: it continues after the last round whose model it has stored."""
    with FaultRun(settings(0), tmp_path / "run") as run:
        run.start(w1=at("worker", phase, "kill", seed=0))
        run.until_dead("w1")
        more_rounds(run)
        run.restart("w1")
        run.finish()
        assert 1 in run.last_participants()
    verified(run)
    events = [
        event
        for file in (tmp_path / "run").rglob("history-w1.jsonl")
        for event in read_history(file)
        if event["event"] == "caught_up"
    ]
    assert events, "it was away for whole rounds"
    assert events[0]["position"] == rounds * 2 * 8  # batches of eight


def test_another_coordinator_continues_the_epochs(tmp_path: Path) -> None:
    with FaultRun(settings(0), tmp_path / "run") as run:
        run.start(coordinator=at("coordinator", "ordering", "kill", seed=0))
        run.until_dead("coordinator")
        run.restart("coordinator")
        run.finish()
    verified(run)
