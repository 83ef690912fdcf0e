"""`make accept-plus` end to end, on few samples and seconds: every line, an honest exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def accept_plus(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "experiments/accept_plus.py", "experiments/acceptance_plus.toml",
         *arguments],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_a_tiny_campaign_judges_every_line(tmp_path: Path) -> None:
    """Digits in 3 s instead of MNIST in 400 s: too short for the bars, but every line is there."""
    done = accept_plus(
        "workers=9", "data.name=digits", "data.pool=1", "horizon=3", "evaluation.seconds=1.5",
        "evaluation.images=50", "--seeds", "0", "--targets", "0.3,0.2", "--jobs", "1",
        "--out", str(tmp_path / "campaign"),
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    for line in range(1, 13):
        assert f"P{line} " in done.stdout
    assert "FAIL" in done.stdout
    assert "the limit with free links" in done.stdout
    assert " passed, " in done.stdout
    assert "Traceback" not in done.stderr


def test_bad_targets_are_refused_before_anything_runs(tmp_path: Path) -> None:
    done = accept_plus("--targets", "0.9", "--out", str(tmp_path / "campaign"))
    assert done.returncode != 0
    assert "--targets: is '0.9'" in done.stderr
    assert "Traceback" not in done.stderr
