"""The numbers of a test in addition to the mean accuracy, against a naive evaluation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedhp.config import parse
from fedhp.engine.runs.run import start_run
from fedhp.record.reader import RunReader
from fedhp.tables import merge_tables
from paper.tiny import BASE


def test_worst_and_best_worker_come_from_the_tests_of_the_final_accuracy(tmp_path: Path) -> None:
    tables = merge_tables(BASE, {"rounds": 4, "algorithm": {"name": "dpsgd"}})
    list(start_run(parse(tables), tmp_path / "run").rounds())
    with RunReader(tmp_path / "run") as run:
        summary = run.summary()
        last = run.meta("experiment")["evaluation"]["final_mean"]
        finals = run.array("worker_evaluations", "accuracy")[-last:].mean(axis=0)
    assert summary.worst_worker_accuracy == pytest.approx(finals.min())
    assert summary.best_worker_accuracy == pytest.approx(finals.max())
    assert np.ptp(finals) > 0
