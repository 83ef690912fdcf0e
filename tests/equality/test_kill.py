"""kill -9 at random instants, then --resume: the same bits as an undisturbed run."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import fedhp
from cli.support import ended, rounds_in
from subprocesses import ForkedCommand
from waiting import let_fault_last, wait_until

EXPERIMENT = """
workers = 8
rounds = {rounds}
[algorithm]
name = "{algorithm}"
[data]
skew = 0.8
[training]
local_steps = 20
{training}
[evaluation]
every = 2
[world]
profile = "slow_links"
model_megabits = 12
[checkpoint]
seconds = 0.1
"""


DISTURBED = """
[exchange]
compression = "topk"
topk_share = 0.05
[attack]
kind = "noise"
scale = 0.01
"""


def kill_and_resume(
    folder: Path,
    algorithm: str,
    *,
    rounds: int,
    kills: int,
    seed: int,
    more: str = "",
    training: str = "",
) -> int:
    """Kill a run `kills` times, let it end, compare; how many kills hit it while it ran."""
    file, out = folder / "experiment.toml", folder / "killed"
    text = EXPERIMENT.format(algorithm=algorithm, rounds=rounds, training=training)
    file.write_text(text + more)
    with fedhp.run(file, folder / "whole") as whole:
        expected = whole.digest()
    command = ("run", file, "--resume", "--json", "--out", out)
    rng = random.Random(seed)
    hits = 0
    for _ in range(kills):
        with ForkedCommand(*command) as process:
            if rng.random() < 0.25:
                let_fault_last(rng.uniform(0.0, 0.5))  # in its first moments
            else:
                _wait_for_a_round(process, out)
                let_fault_last(rng.uniform(0.0, 0.05))
            hits += process.poll() is None
            process.kill()
    with ForkedCommand(*command) as process:
        assert ended(process).code == 0
    with fedhp.open_run(out) as killed:
        assert killed.meta("status") == "finished"
        assert killed.digest() == expected
    return hits


def _wait_for_a_round(process: ForkedCommand, out: Path) -> None:
    """One more than there were, unless the run ends before."""
    before = rounds_in(out)
    wait_until(lambda: process.poll() is not None or rounds_in(out) > before, "a round")


def test_killed_three_times(tmp_path: Path) -> None:
    assert kill_and_resume(tmp_path, "fedhp", rounds=40, kills=3, seed=1) > 0


def test_killed_with_copies_and_attackers(tmp_path: Path) -> None:
    """What readers have of other models is part of a checkpoint."""
    hits = kill_and_resume(tmp_path, "fedhp", rounds=40, kills=3, seed=3, more=DISTURBED)
    assert hits > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("dpsgd", 'momentum = 0.9\noptimizer_state = "mix"'),
        ("adpsgd", 'optimizer = "adamw"\nlearning_rate = 0.003\noptimizer_state = "reset"'),
    ],
)
def test_killed_with_an_optimizer_that_keeps_state(
    algorithm: str, settings: str, tmp_path: Path
) -> None:
    assert kill_and_resume(tmp_path, algorithm, rounds=40, kills=5, seed=4, training=settings) > 0


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedhp", "adpsgd", "pens"])
def test_killed_at_twenty_random_instants(algorithm: str, tmp_path: Path) -> None:
    assert kill_and_resume(tmp_path, algorithm, rounds=300, kills=20, seed=2) > 10
