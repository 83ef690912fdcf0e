"""Same seed, same bits: twice, with one executor or two, interrupted or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedhp
from fedhp.config import Experiment
from fedhp.engine.runs.run import start_run
from fedhp.errors import Interrupted

ALGORITHMS = ["fedhp", "fedhp_plus", "dpsgd", "ldsgd", "adpsgd", "pens", "free_links"]


def experiment(algorithm: str = "fedhp", **changes: Any) -> Experiment:
    """A tiny but complete experiment: six unequal workers on the digits."""
    tables: dict[str, Any] = {
        "workers": 6,
        "rounds": 8,
        "algorithm": {"name": algorithm},
        "data": {"skew": 0.8},
        "training": {"local_steps": 5},
        "evaluation": {"every": 3, "images": 100},
        "world": {"profile": "slow_links", "model_megabits": 12},
    }
    for key, value in changes.items():
        tables[key] = {**tables.get(key, {}), **value} if isinstance(value, dict) else value
    return fedhp.make_experiment(tables)


def digest(settings: Experiment, folder: Path) -> str:
    with fedhp.run(settings, folder) as run:
        return run.digest()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_same_seed_gives_the_same_bits(algorithm: str, tmp_path: Path) -> None:
    first = digest(experiment(algorithm), tmp_path / "a")
    assert digest(experiment(algorithm), tmp_path / "b") == first
    assert digest(experiment(algorithm, seed=1), tmp_path / "c") != first


@pytest.mark.parametrize("algorithm", ["fedhp", "fedhp_plus", "adpsgd", "pens"])
def test_one_executor_or_two_gives_the_same_bits(algorithm: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"model": {"name": "small_cnn", "width": 0.25}, "rounds": 4}
    one = experiment(algorithm, executors=1, **changes)
    two = experiment(algorithm, executors=2, **changes)
    assert digest(one, tmp_path / "one") == digest(two, tmp_path / "two")


@pytest.mark.parametrize("kernel", ["auto", "worker"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_run_stopped_anywhere_goes_on_bit_for_bit(
    algorithm: str, kernel: str, tmp_path: Path
) -> None:
    settings = experiment(algorithm, training={"kernel": kernel})
    whole = digest(settings, tmp_path / "whole")
    asked = 0

    def stop() -> bool:
        """Says yes at the asked-for question only: between steps, rounds or evaluations."""
        nonlocal asked
        asked += 1
        return asked > patience

    patience, restarts, done = 1, 0, False
    while not done:
        asked = 0
        run = start_run(settings, tmp_path / "broken", resume=True, stop=stop)
        try:
            for _ in run.rounds():
                pass
            done = True
        except Interrupted:
            restarts += 1
            # Grows, so that every place of a round is hit and the run still ends.
            patience = patience * 2 + 1
    assert restarts >= 2
    with fedhp.open_run(tmp_path / "broken") as broken:
        assert broken.digest() == whole
        assert broken.meta("status") == "finished"


def test_a_lost_checkpoint_interval_is_repeated_bit_for_bit(tmp_path: Path) -> None:
    """As after kill -9: rounds committed after the checkpoint run again."""
    settings = experiment(checkpoint={"seconds": 1e6})
    whole = digest(settings, tmp_path / "whole")
    for record in start_run(settings, tmp_path / "killed").rounds():
        if record.round_index == 5:
            break
    with fedhp.open_run(tmp_path / "killed") as killed:
        assert killed.rounds_done == 5
        assert killed.models() is None
    with fedhp.run(settings, tmp_path / "killed", resume=True) as resumed:
        assert resumed.digest() == whole
