"""Every table and picture with a final result says which tests it is the mean of."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.support import Command, write


@pytest.mark.parametrize(
    ("rounds", "meaning"),
    [(3, "the last test"), pytest.param(10, "mean of the last 3 tests", marks=pytest.mark.slow)],
)
def test_every_table_says_what_final_is(
    command: Command, tmp_path: Path, rounds: int, meaning: str
) -> None:
    file = write(tmp_path, rounds=rounds)
    run, sweep = tmp_path / "c" / "one", tmp_path / "sweep"
    shown = command("run", file, "--out", run)
    assert f"final: {meaning}" in shown.out
    assert f"(mean of the workers; {meaning})" in command("show", run).out
    assert command("run", file, "algorithm.name=ldsgd", "--out", tmp_path / "c" / "two").code == 0
    assert f"final: {meaning}" in command("show", tmp_path / "c").out
    latex = tmp_path / "table.tex"
    assert command("export", tmp_path / "c", "--latex", latex).code == 0
    assert f"Final: {meaning}" in latex.read_text()
    swept = command("sweep", file, "data.skew=0.5,0.8", "--out", sweep)
    assert f"final: {meaning}" in swept.out
    assert f"final: {meaning}" in (sweep / "sweep.md").read_text()
    assert f"({meaning})" in (sweep / "figures" / "sweep.svg").read_text()
    assert command("report", tmp_path / "c").code == 0
    page = (tmp_path / "c" / "report" / "report.html").read_text()
    assert page.count(f"final: {meaning}") >= 2  # of the comparison, and of the runs
