"""Paired comparisons: a verdict only where the seeds agree beyond chance."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.support import caller
from fedhp.record.reader import RunSummary
from fedhp.report.latex import comparison_latex, latex_text
from fedhp.report.paired import compare_all, compare_times
from fedhp.report.tables import comparison_grid, comparison_markdown, paired_lines
from unit.report.conftest import Runs
from unit.report.test_tables import summary


def timed(label: str, times: list[float | None], **changes: object) -> list[RunSummary]:
    return [
        summary(label, seed, time_to_target={"0.90": time}, **changes)
        for seed, time in enumerate(times)
    ]


def verdict(first: list[float | None], second: list[float | None]) -> str:
    a, b = timed("a", first), timed("b", second)
    return compare_times(("a", a), ("b", b), "0.90").verdict


def test_the_difference_within_seeds_decides_not_the_spread_of_the_worlds() -> None:
    worlds: list[float | None] = [40.0, 60.0, 80.0]
    assert verdict(worlds, [44.0, 66.0, 88.1]) == "faster"
    assert verdict([44.0, 66.0, 88.1], worlds) == "slower"
    assert verdict(worlds, [50.0, 52.0, 85.0]) == "cannot tell"
    assert verdict(worlds, worlds) == "cannot tell"
    assert verdict(worlds[:2], [80.0, 120.0]) == "cannot tell", "two seeds are too few"


def test_the_ratio_is_a_geometric_mean_and_does_not_depend_on_the_order() -> None:
    a, b = ("a", timed("a", [1.0, 2.0, 4.0])), ("b", timed("b", [2.0, 2.0, 2.0]))
    ratio, inverse = (compare_times(*pair, "0.90").spread for pair in ((a, b), (b, a)))
    assert ratio is not None
    assert inverse is not None
    assert ratio.mean == pytest.approx(1.0)
    assert inverse.mean == pytest.approx(1.0)
    assert (ratio.high or 0) == pytest.approx(1 / (inverse.low or 1))


def test_a_missed_target_is_a_bound_in_favour_of_the_other() -> None:
    assert verdict([20.0, 21.0, 22.0], [None, None, None]) == "faster"  # 100 s and more
    assert verdict([None, 21.0, 22.0], [40.0, 42.0, 44.0]) == "cannot tell"
    # The others ended after 100 s; the times to the target could still be longer than 150 s.
    assert verdict([150.0, 151.0, 152.0], [None, None, None]) == "cannot tell"
    assert verdict([None, 1.0, 1.0], [1.0, None, 1.0]) == "cannot tell"


def test_the_issue_s_example_is_not_ranked_and_not_bold() -> None:
    fedhp = timed("fedhp", [62.0, 66.0, 71.8])
    rival = timed("adpsgd", [80.0, 64.0, 74.7])
    cells = [cell for row in comparison_grid([*fedhp, *rival]).rows for cell in row]
    assert not any(cell.best for cell in cells)
    text = comparison_markdown([*fedhp, *rival])
    assert "To 90 %, FedHP against AD-PSGD: cannot tell (0.9" in text
    assert "95 % interval" in text
    sure = paired_lines([*fedhp, *timed("dpsgd", [124.0, 131.0, 144.0])])
    assert sure[0].startswith("To 90 %, FedHP is faster than D-PSGD (0.50 times the time")


def test_numbers_are_plain_json() -> None:
    pairs = compare_all([*timed("a", [1.0, 2.0]), *timed("b", [2.0, 2.0]), *timed("c", [3.0])])
    plain = json.loads(json.dumps([paired.as_json() for paired in pairs]))
    assert [(p["first"], p["second"]) for p in plain[::2]] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert {p["number"] for p in plain} == {"time_to_0.90", "final_accuracy"}
    assert plain[0]["measure"] == "first / second"
    assert plain[2]["interval"]["low"] is None, "one common seed has no interval"


def test_latex_has_the_table_s_cells_and_escapes_what_latex_reads() -> None:
    runs = [*timed("fedhp", [60.0, 61.0, 62.0]), *timed("dpsgd", [90.0, 91.0, 92.0])]
    text = comparison_latex(runs)
    assert r"\textbf{61.00 $\pm$ 2.48}" in text
    assert r"final \% &" in text
    assert r"FedHP against D-PSGD & to 90 \% & 0.67 times the time" in text
    assert text.count(r"\begin{tabular}") == text.count(r"\bottomrule") == 2
    assert latex_text(r"a_b{c}\ & 5 %") == r"a\_b\{c\}\textbackslash{} \& 5 \%"


def test_export_writes_the_comparison_of_a_folder_as_latex(
    runs: Runs, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    said = caller(capsys)("export", runs.fedhp[0], "--latex", tmp_path / "t.tex")
    assert said.code == 0
    text = (tmp_path / "t.tex").read_text()
    assert r"\begin{tabular}" in text
    assert "FedHP" in text
    assert not (runs.fedhp[0] / "tables").exists()
