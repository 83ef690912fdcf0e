"""`fedhp compare --label`: the names are in every table and figure, and in later reports."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cli.support import Command, write
from fedhp.report.groups import read_comparison
from fedhp.report.labels import read_names, stored_names

VARIANTS = "dpsgd:steps=3,dpsgd:steps=3:training.learning_rate=0.2"
SLOW, FAST = VARIANTS.split(",")


@pytest.fixture
def compared(command: Command, tmp_path: Path) -> Path:
    out = tmp_path / "out"
    result = command(
        *("compare", write(tmp_path, rounds=1), "--algorithms", VARIANTS, "--out", out),
        *("--label", f"{FAST}=tuned D-PSGD, lr=0.2"),
    )
    assert result.code == 0, result.err
    rows = [line for line in result.out.splitlines() if "D-PSGD" in line]
    assert rows[0].startswith("D-PSGD  ")
    assert rows[1].startswith("tuned D-PSGD, lr=0.2  ")
    assert SLOW not in result.out
    return out


def test_a_name_is_in_every_table_and_in_later_reports(
    command: Command, compared: Path, tmp_path: Path
) -> None:
    name = "tuned D-PSGD, lr=0.2"
    assert json.loads((compared / "comparison.json").read_text())["labels"] == {FAST: name}
    for file in ("comparison.md", "comparison.tex", "figures/overview.svg"):
        assert "tuned D-PSGD" in (compared / file).read_text()
    assert command("report", compared).code == 0
    page = (compared / "report" / "report.html").read_text()
    assert page.count(name) >= 4
    assert f"The settings of {name}" in page or "The settings of D-PSGD." in page
    assert name in command("show", compared).out
    assert command("export", compared, "--latex", tmp_path / "t.tex").code == 0
    assert name in (tmp_path / "t.tex").read_text()
    folders = sorted(compared.glob("*/seed-0"))
    assert {group.title for group in read_comparison(folders).groups} == {"D-PSGD", name}


def test_resuming_keeps_the_names_and_may_change_them(command: Command, compared: Path) -> None:
    again = ["compare", compared.parent / "tiny.toml", "--algorithms", VARIANTS, "--out", compared]
    assert "tuned D-PSGD, lr=0.2" in command(*again, "--resume", "--no-figures").out
    other = command(*again, "--resume", "--no-figures", "--label", f"{FAST}=faster")
    assert "\nfaster" in other.out
    assert read_names(compared) == {FAST: "faster"}


def test_names_that_disagree_or_cannot_be_read_are_not_used(compared: Path, tmp_path: Path) -> None:
    runs = sorted(compared.glob("*/seed-0"))
    assert stored_names(runs) == {FAST: "tuned D-PSGD, lr=0.2"}
    other = tmp_path / "other"
    shutil.copytree(compared, other)
    (other / "comparison.json").write_text(json.dumps({"labels": {FAST: "another"}}))
    assert stored_names([*runs, *other.glob("*/seed-0")]) == {}
    for text in ("", "[]", '{"labels": 3}', '{"labels": {"a": 1, "b": "", "c": "x\\ny"}}'):
        (other / "comparison.json").write_text(text)
        assert read_names(other) == {}
