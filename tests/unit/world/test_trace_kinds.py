"""Traces with odd workers, or with bandwidths of two kinds, are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedhp.errors import DataError
from fedhp.world.trace import read_trace


def test_superscript_worker(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time,worker,bandwidth\n0,²,1\n", encoding="utf-8")
    with pytest.raises(DataError, match="worker is"):
        read_trace(path, workers=5)


def test_mixed_per_link_and_per_worker_rows(tmp_path: Path) -> None:
    """Rows of workers next to rows of links: refused, since the former would be ignored."""
    path = tmp_path / "trace.csv"
    path.write_text("time,worker,peer,bandwidth\n0,0,1,5\n0,0,,1\n0,1,,1\n", encoding="utf-8")
    with pytest.raises(DataError):
        read_trace(path, workers=2)
