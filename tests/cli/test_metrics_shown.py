"""Test loss, classes, worst and best worker, own data: wherever a run is shown."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import fedhp
from cli.support import Command, write
from fedhp.cli import call

COMPARED = ("dpsgd", "ldsgd")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison that records everything; ten tests, so that final is a mean of three."""
    folder = tmp_path_factory.mktemp("metrics")
    file = write(
        folder, rounds=10, evaluation={"per_class": True}, data={"own_test": 0.2, "skew": 0.5}
    )
    for name in COMPARED:
        out = folder / "c" / name / "seed-0"
        assert call(["run", str(file), f"algorithm.name={name}", "--out", str(out)]) == 0
    return folder / "c"


def test_show_names_every_metric(command: Command, runs: Path) -> None:
    shown = command("show", runs / "dpsgd" / "seed-0").out
    for name in ("worst worker", "best worker", "own data", "test loss", "worst class", "by class"):
        assert f"\n{name}" in shown
    assert "mean of the last 3 tests" in shown
    (line,) = [line for line in shown.splitlines() if line.startswith("by class")]
    assert line.count(": ") == 10


def test_show_round_has_every_worker(command: Command, runs: Path) -> None:
    run = runs / "dpsgd" / "seed-0"
    shown = command("show", run, "--round", 4).out
    assert "own: on the samples that the worker held back" in shown
    plain = command("show", run, "--round", 4, "--json").json()
    assert len(plain["own_test_metrics"]) == len(plain["worker_evaluations"]) == 6
    assert len(plain["worker_test_metrics"]) == 6
    assert len(plain["class_test_metrics"]) == 10
    assert plain["test_metrics"][0]["loss"] > 0


def test_json_of_one_and_of_several(command: Command, runs: Path) -> None:
    one = command("show", runs / "dpsgd" / "seed-0", "--json").json()
    assert one["worst_worker_accuracy"] <= one["final_accuracy"] <= one["best_worker_accuracy"]
    assert len(one["class_accuracy"]) == len(one["mean_model_class_accuracy"]) == 10
    assert 0 < one["own_accuracy"] < 1
    assert one["final_loss"] > 0
    assert one["mean_model_loss"] > 0
    both = command("show", runs, "--json").json()["summary"]
    assert both["dpsgd"]["class_accuracy"] == one["class_accuracy"]
    assert both["dpsgd"]["own_accuracy"]["mean"] == one["own_accuracy"]


def test_comparison_tables(command: Command, runs: Path) -> None:
    shown = command("show", runs).out
    for words in ("worst", "class %", "own", "data %", "loss", "worker %"):
        assert words in shown
    assert command("export", runs, "--latex", runs / "t.tex").code == 0
    latex = (runs / "t.tex").read_text()
    for words in (r"worst class \%", r"own data \%", "test loss", r"worst worker \%"):
        assert words in latex


def test_report_and_its_data(command: Command, runs: Path) -> None:
    out = runs.parent / "report"
    assert command("report", runs, "--out", out).code == 0
    page = (out / "report.html").read_text()
    assert "Accuracy of each of 10 classes" in page
    for words in ("own<br>data %", "worst<br>class %", "test<br>loss", "best<br>worker %"):
        assert words in page
    for table, rows in (
        ("own_test_metrics", 2 * 10 * 6),
        ("class_test_metrics", 2 * 11 * 10),  # the last round once more, on the whole test set
        ("worker_test_metrics", 2 * 11 * 6),
        ("test_metrics", 2 * 11),
    ):
        with (out / "data" / f"{table}.csv").open() as lines:
            assert len(list(csv.DictReader(lines))) == rows


def test_python_reads_them(runs: Path) -> None:
    with fedhp.open_run(runs / "dpsgd" / "seed-0") as run:
        tests = run.table("class_test_metrics", round_index=10)
        last = [v for v, whole in zip(tests["accuracy"], tests["whole"], strict=True) if not whole]
        assert len(last) == 10
        assert max(run.table("own_test_metrics")["accuracy"]) <= 1
