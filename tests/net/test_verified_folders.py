"""Folders that cannot be compared with a simulation say why."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedhp.cluster.audit.committed_rounds import read_committed_rounds
from fedhp.cluster.audit.timeline import read_timeline
from fedhp.cluster.audit.verify import _time_errors, verify
from fedhp.errors import RunError
from net.leaders import Leader


def test_a_round_that_no_history_began_is_refused(tmp_path: Path) -> None:
    leader = Leader(tmp_path, "c0").lead(1).rounds(1, 2).end()
    leader.forget(("attempt", 2))
    with pytest.raises(RunError, match="no history says who began it"):
        list(read_committed_rounds(read_timeline(tmp_path)))


def test_a_committed_round_that_is_not_on_record_is_refused(tmp_path: Path) -> None:
    leader = Leader(tmp_path, "c0").lead(1).rounds(1, 2).end()
    leader.file.write_text(
        leader.file.read_text(encoding="utf-8").replace('"round": 2', '"round": 3'),
        encoding="utf-8",
    )
    with pytest.raises(RunError, match="round 3 was committed, but is not on record"):
        list(read_committed_rounds(read_timeline(tmp_path)))


def test_a_history_without_its_record_is_refused(tmp_path: Path) -> None:
    Leader(tmp_path / "run", "c0").lead(1).rounds(1, 2).end()
    for file in (tmp_path / "run").glob("*.db*"):
        file.unlink()
    for file in (tmp_path / "run").iterdir():
        if not file.name.startswith("history-") and file.is_file():
            file.unlink()
    with pytest.raises(RunError, match="next to the history of c0"):
        verify(tmp_path / "run")


def test_the_error_of_a_predicted_time_is_relative_to_the_real_one() -> None:
    """Predicted is the slowest worker; NaN: it was away."""
    rounds: list[Any] = [
        SimpleNamespace(
            compute_time=np.array([1.0, 3.0, np.nan]),
            communication_time=np.array([0.5, 1.0, np.nan]),
            round_time=real,
        )
        for real in (4.0, 5.0, 2.0)
    ]
    assert _time_errors(rounds).tolist() == pytest.approx([0.0, 0.2, 1.0])
