"""`fedhp reproduce`: runs once, goes on after a kill, reruns what changed, says what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.support import Command
from subprocesses import ForkedCommand
from unit.engine.small_suite import FIGURE, write_small_suite
from unit.report.markup import check_page
from waiting import wait_until


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = write_small_suite(tmp_path / "files", fig2="accuracy", fig7="waiting")
    monkeypatch.setenv("FEDHP_DATA", str(tmp_path / "nothing"))
    monkeypatch.setenv("FEDHP_CACHE", str(tmp_path / "nothing"))
    return folder


def runs(out: Path) -> dict[str, int]:
    """When each run's record was last written, by its name."""
    return {p.parent.name: p.stat().st_mtime_ns for p in out.glob("cells/*/*/record.sqlite")}


def test_runs_judges_and_never_runs_twice(command: Command, files: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcome = command("reproduce", "all", "--files", files, "--out", out)
    assert outcome.code == 0, outcome.err
    assert "4 runs for fig2, fig7, 0 of them finished" in outcome.err
    assert "Digits: skipped." in outcome.err
    assert "train-images" in outcome.err
    page = (out / "report.html").read_text(encoding="utf-8")
    check_page(page)
    assert "Figure 2: A title" in page
    assert "Does it hold?" in page
    for text in (outcome.out, page):
        assert "Final accuracy is the mean of the last tests" in " ".join(text.split())
    for name in ("verdicts.md", "verdicts.json", "data/runs.csv", "data/evaluations.csv"):
        assert (out / name).is_file()
    assert list(out.glob("figures/fig2*.pdf"))
    assert list(out.glob("figures/fig7*.svg"))
    before = runs(out)

    again = command("reproduce", "fig7", "--files", files, "--out", out, "--json")
    assert "4 of them finished" in again.err
    assert runs(out) == before
    verdicts = again.json()
    assert {"report", "paper", "acceptance"} == set(verdicts)
    assert verdicts == {
        **json.loads((out / "verdicts.json").read_text()),
        "report": verdicts["report"],
    }
    assert {check["status"] for check in verdicts["acceptance"]} <= {
        "holds",
        "does not hold",
        "not testable here",
        "reported",
    }


@pytest.mark.slow
def test_the_same_numbers_in_another_place(command: Command, files: Path, tmp_path: Path) -> None:
    """Digests included."""
    tables = []
    for out in (tmp_path / "one", tmp_path / "other"):
        assert command("reproduce", "all", "--files", files, "--out", out).code == 0
        tables.append((out / "data" / "runs.csv").read_text())
    assert tables[0] == tables[1]


@pytest.mark.slow
def test_a_changed_setting_runs_only_its_own_cells(
    command: Command, files: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert command("reproduce", "fig2", "--files", files, "--out", out).code == 0
    before = runs(out)
    text = (files / "fig2.toml").read_text()
    (files / "fig2.toml").write_text(text.replace('"dpsgd"', '"dpsgd:steps=1"'))
    outcome = command("reproduce", "fig2", "--files", files, "--out", out)
    assert "4 runs for fig2, 2 of them finished" in outcome.err
    after = runs(out)
    assert {name: after[name] for name in before} == before
    assert len(after) == len(before) + 2


@pytest.mark.slow
def test_goes_on_after_kill_9(files: Path, tmp_path: Path, command: Command) -> None:
    text = (files / "sets" / "emnist.toml").read_text()
    (files / "sets" / "emnist.toml").write_text(text.replace("rounds = 3", "rounds = 12"))
    whole, out = tmp_path / "whole", tmp_path / "out"
    words = ["reproduce", "fig2", "--files", str(files), "--jobs", "1", "--out"]
    assert command(*words, whole).code == 0
    with ForkedCommand(*words, out):  # killed at the end
        wait_until(lambda: len(runs(out)) >= 2, "two runs have begun")
    outcome = command(*words, out)
    assert outcome.code == 0, outcome.err
    assert (out / "data" / "runs.csv").read_text() == (whole / "data" / "runs.csv").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fig9"], "'fig9' is not a figure of the paper"),
        (["fig1", "--profile", "fast"], "unknown profile 'fast'"),
        (["fig1", "--set", "rounds=-1"], "rounds"),
        (["all", "--files", "nowhere"], "nowhere has no file of a figure"),
    ],
)
def test_bad_input_is_refused(command: Command, words: list[str], said: str) -> None:
    outcome = command("reproduce", *words)
    assert outcome.code == 2
    assert said in outcome.err
    assert "fix:" in outcome.err


def test_nothing_to_report_is_said(command: Command, files: Path, tmp_path: Path) -> None:
    (files / "fig2.toml").write_text(
        FIGURE.replace("emnist = [0, 1], ", "").replace("DRAW", "accuracy")
    )
    outcome = command("reproduce", "fig2", "--files", files, "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "no run has finished" in outcome.err
