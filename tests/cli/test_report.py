"""`fedhp report`: where it writes, what it prints, what it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cli.support import Command
from fedhp.report.pages.run_report import report_folder
from unit.report.markup import check_page
from unit.report.runs import make_run


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "fedhp" / "seed-0", "fedhp", rounds=3)
    make_run(folder / "dpsgd" / "seed-0", "dpsgd", rounds=3)
    return folder


def test_a_folder_of_runs(command: Command, top: Path, tmp_path: Path) -> None:
    outcome = command("report", top)
    assert outcome.code == 0, outcome.err
    # Only progress, which a slow machine prints every few seconds.
    assert all(line.startswith(("starting", "drawing")) for line in outcome.err.splitlines())
    page = top / "report" / "report.html"
    assert f"report: {page} (" in outcome.out
    assert "2 runs" in outcome.out
    assert f"figures: {top / 'report' / 'figures'} (" in outcome.out
    check_page(page.read_text(encoding="utf-8"))
    check_json_names_every_file(command, top, tmp_path)  # a report inside the folder is no run


@pytest.mark.slow
def test_a_report_can_be_repeated(command: Command, tmp_path: Path) -> None:
    make_run(tmp_path / "fedhp", "fedhp", rounds=2)
    first, second = (command("report", tmp_path) for _ in range(2))
    assert first.code == 0, first.err
    assert second.out == first.out


def test_one_run_gets_its_report_inside(command: Command, top: Path) -> None:
    folder = top / "fedhp" / "seed-0"
    assert command("report", folder).code == 0
    assert (folder / "report" / "report.html").is_file()
    assert (folder / "report" / "data" / "rounds.csv").is_file()
    assert (folder / "report" / "figures" / "world.pdf").is_file()


def check_json_names_every_file(command: Command, top: Path, tmp_path: Path) -> None:
    outcome = command(
        "report", top / "fedhp", top / "dpsgd", top, "--out", tmp_path / "new" / "one", "--json"
    )
    assert outcome.code == 0, outcome.err
    paths = outcome.json()
    assert set(paths) == {"report", "figures", "data"}
    assert paths["report"] == str(tmp_path / "new" / "one" / "report.html")
    every = [paths["report"], *paths["figures"], *paths["data"]]
    assert all(os.path.getsize(path) for path in every)
    written = [path for path in (tmp_path / "new").rglob("*") if path.is_file()]
    assert sorted(every) == sorted(map(str, written))
    page = Path(paths["report"]).read_text(encoding="utf-8")
    assert "2 runs: 2 algorithms, 1 seed, 6 workers, 3 rounds." in page, "given twice counts once"
    assert json.loads(outcome.out) == paths


def test_the_default_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert report_folder([Path("runs/a")]) == Path("runs/a/report")
    assert report_folder([Path("runs/a/x"), Path("runs/a/y")]) == Path("runs/a/report")
    assert report_folder([Path("a"), Path("b")]) == Path("report")
    assert report_folder([Path("a"), Path("/b/c")]) == Path("/report")
    assert report_folder([Path("/b/c"), Path("/b/d")]) == Path("/b/report")


@pytest.mark.parametrize(
    ("path", "words"),
    [("nothing", "holds no run"), ("file", "holds no run"), ("broken", "record is damaged")],
)
def test_what_is_no_run(command: Command, tmp_path: Path, path: str, words: str) -> None:
    (tmp_path / "file").write_text("no run")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "record.sqlite").write_text("not a database, but long enough " * 10)
    outcome = command("report", tmp_path / path)
    assert outcome.code == 2
    assert words in outcome.err
    assert "fix:" in outcome.err
    assert outcome.out == ""
    assert not (tmp_path / path / "report").exists()


def test_a_run_without_rounds(command: Command, tmp_path: Path) -> None:
    outcome = command("report", make_run(tmp_path / "run", "dpsgd", rounds=0))
    assert outcome.code == 2
    assert "no round is committed yet" in outcome.err
    assert not (tmp_path / "run" / "report").exists()


def test_a_place_that_is_taken(command: Command, top: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    outcome = command("report", top, "--out", tmp_path / "file")
    assert outcome.code == 2
    assert "cannot be written" in outcome.err
    assert "fix:" in outcome.err
    assert (tmp_path / "file").read_text() == "in the way"


def test_no_run_named(command: Command) -> None:
    outcome = command("report")
    assert outcome.code == 2
    assert "RUN" in outcome.err
