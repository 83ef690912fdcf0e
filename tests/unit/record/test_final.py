"""What "final" is: the mean of the last tests, or the last test where there are few."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedhp.record.reader import RunReader
from fedhp.report.formatting import score
from fedhp.report.show import Fact, show_parts
from unit.report.runs import make_run


@pytest.mark.parametrize(("rounds", "averaged"), [(9, 1), (10, 3)])
def test_final_is_the_last_test_unless_there_are_ten(
    tmp_path: Path, rounds: int, averaged: int
) -> None:
    folder = make_run(tmp_path / "run", "dpsgd", rounds=rounds, evaluation={"every": 1})
    with RunReader(folder) as run:
        summary, tests = run.summary(), run.table("evaluations")
    assert summary.final_tests == averaged
    assert summary.final_accuracy == pytest.approx(np.mean(tests["accuracy"][-averaged:]))
    mean_model = tests["mean_model_accuracy"][-averaged:]
    assert summary.mean_model_accuracy == pytest.approx(np.mean(mean_model))
    assert summary.as_json()["final_tests"] == averaged
    assert summary.last_accuracy == tests["accuracy"][-1]
    facts = {part.name: part.value for part in show_parts(folder) if isinstance(part, Fact)}
    if averaged == 1:
        assert "; the last test)" in facts["final"]
        assert "last test" not in facts
    else:
        assert "; mean of the last 3 tests)" in facts["final"]
        assert facts["last test"] == score(tests["accuracy"][-1])


def test_final_mean_larger_than_the_number_of_tests_is_reported_truly(tmp_path: Path) -> None:
    evaluation = {"every": 1, "final_mean": 50}
    folder = make_run(tmp_path / "run", "dpsgd", rounds=11, evaluation=evaluation)
    with RunReader(folder) as run:
        assert run.summary().final_tests == 11
