"""kill -9 at random instants, then --resume: the same bits as an undisturbed run."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

import fedhp

EXPERIMENT = """
workers = 8
rounds = 60
[algorithm]
name = "{algorithm}"
[data]
skew = 0.8
[training]
local_steps = 20
[evaluation]
every = 2
[world]
profile = "slow_links"
model_megabits = 12
[checkpoint]
seconds = 0.1
"""


def kill_and_resume(folder: Path, algorithm: str, *, kills: int, seed: int) -> int:
    """Kill a run `kills` times, let it end, compare; how many kills hit it while it ran."""
    file = folder / "experiment.toml"
    file.write_text(EXPERIMENT.format(algorithm=algorithm))
    with fedhp.run(file, folder / "whole") as whole:
        expected = whole.digest()
    command = [sys.executable, "-m", "fedhp", "run", str(file), "--resume", "--json"]
    command += ["--out", str(folder / "killed")]
    rng = random.Random(seed)
    hits = 0
    for _ in range(kills):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(timeout=rng.uniform(0.5, 6.0))
        except subprocess.TimeoutExpired:
            hits += 1
        process.kill()
        process.wait()
    subprocess.run(command, check=True, capture_output=True)
    with fedhp.open_run(folder / "killed") as killed:
        assert killed.meta("status") == "finished"
        assert killed.digest() == expected
    return hits


def test_killed_three_times(tmp_path: Path) -> None:
    assert kill_and_resume(tmp_path, "fedhp", kills=3, seed=1) > 0


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedhp", "adpsgd", "pens"])
def test_killed_at_twenty_random_instants(algorithm: str, tmp_path: Path) -> None:
    assert kill_and_resume(tmp_path, algorithm, kills=20, seed=2) > 10
