"""evaluation.times: the result that a run had at a virtual time, in every table."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import fedhp
from cli.support import Command, digest_of, write
from fedhp.record.reader import accuracy_at, time_key
from fedhp.record.statistics import summarize_runs
from fedhp.report.export import save_report_data
from fedhp.report.groups import sort_runs

TESTS = {"clock": [10.0, 20.0, 30.0], "accuracy": [0.1, 0.2, 0.3]}


@pytest.mark.parametrize(
    ("time", "result"),
    [(9.9, None), (10.0, 0.1), (29.0, 0.2), (30.0, 0.3), (35.0, 0.3), (40.0, 0.3), (40.1, None)],
)
def test_the_last_test_up_to_then(time: float, result: float | None) -> None:
    """The last round ended at 40 s without a test."""
    assert accuracy_at(time, TESTS, end=[40.0]) == result
    assert accuracy_at(time, {"clock": [], "accuracy": []}, end=[]) is None


def test_times_have_the_names_that_were_given() -> None:
    assert [time_key(time) for time in (60, 62.5, 1e9, 0.1)] == ["60", "62.5", "1000000000", "0.1"]


@pytest.fixture(scope="module")
def clocks(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The clock after every round of the tiny experiment."""
    folder = tmp_path_factory.mktemp("clocks")
    run = fedhp.run(fedhp.load_experiment(write(folder)), folder / "run")
    return list(run.table("rounds")["clock"])


def test_show_and_json(command: Command, tmp_path: Path, clocks: list[float]) -> None:
    middle, late = (clocks[0] + clocks[1]) / 2, clocks[-1] + 1
    file, out = write(tmp_path, evaluation={"times": [middle, late]}), tmp_path / "run"
    assert command("run", file, "--out", out).code == 0
    shown = command("show", out)
    assert f"at {middle:.6f}".rstrip("0") in shown.out
    assert f"no result: the run ended after {clocks[-1]:.1f} s" in shown.out
    with fedhp.open_run(out) as run:
        first = run.table("evaluations")["accuracy"][0]
        means = summarize_runs([run.summary()])["dpsgd"]["accuracy_at_time"]
    summary = command("show", out, "--json").json()
    keys = time_key(middle), time_key(late)
    assert summary["accuracy_at_time"] == {keys[0]: first, keys[1]: None}
    assert means[keys[0]]["mean"] == first
    assert means[keys[1]] == {"mean": None, "low": None, "high": None, "count": 0}


def test_compare_and_files(command: Command, tmp_path: Path, clocks: list[float]) -> None:
    out, time = tmp_path / "c", clocks[-1]
    file = write(tmp_path, evaluation={"times": [time, 1e6]})
    arguments = ("--algorithms", "dpsgd", "--seeds", "0-1", "--no-figures", "--out", out)
    shown = command("compare", file, *arguments)
    assert shown.code == 0, shown.err
    header = f"at {round(time, 6):.15g} s"
    for text in (shown.out, (out / "comparison.md").read_text()):
        assert header in text
        assert "at a time: the last test up to then" in text
    assert f"{header} \\%" in (out / "comparison.tex").read_text()
    summaries = {}
    for folder in (out / "dpsgd").iterdir():
        with fedhp.open_run(folder) as run:
            summaries[folder] = run.summary()
    save_report_data(sort_runs(list(summaries)).batches, summaries, tmp_path / "data")
    with (tmp_path / "data" / "summary.csv").open() as lines:
        rows = {row["seed"]: row for row in csv.DictReader(lines)}
    for summary in summaries.values():
        value = summary.accuracy_at_time[time_key(time)]
        assert rows[str(summary.seed)][f"accuracy_at_{time_key(time)}"] == str(value or "")
        assert rows[str(summary.seed)]["accuracy_at_1000000"] == ""
    with (tmp_path / "data" / "means.csv").open() as lines:
        numbers = {row["number"] for row in csv.DictReader(lines)}
    assert f"accuracy_at_{time_key(time)}" in numbers


def test_sweep_has_the_columns(command: Command, tmp_path: Path, clocks: list[float]) -> None:
    file = write(tmp_path, evaluation={"times": [1, 1e6]}, rounds=1)
    out = tmp_path / "sweep"
    shown = command("sweep", file, "data.skew=0.5,0.8", "--no-figures", "--out", out)
    assert shown.code == 0, shown.err
    assert "at 1000000 s" in shown.out
    assert "at 1 s %" in (out / "sweep.md").read_text()


def test_a_finished_run_gets_other_times(
    command: Command, tmp_path: Path, clocks: list[float]
) -> None:
    """Times, targets and final_mean are only reported: the numbers of the run stay."""
    file, out = write(tmp_path), tmp_path / "run"
    assert command("run", file, "--out", out).code == 0
    before = digest_of(out)
    changes = (f"evaluation.times=[{clocks[1]!r}]", "evaluation.targets=[0.05]")
    again = command("run", file, *changes, "--out", out, "--resume", "--json")
    assert again.code == 0, again.err
    (summary,) = again.json()["runs"]
    assert summary["accuracy_at_time"][time_key(clocks[1])] is not None
    assert summary["time_to_target"] == {"0.05": clocks[0]}
    assert digest_of(out) == before
    assert command("run", file, *changes, "--out", out, "--resume").code == 0
    assert digest_of(out) == before


@pytest.mark.parametrize("value", ["[0]", "[-5]", "60", "['a']", "[inf]", "[2e9]"])
def test_bad_times_are_refused(command: Command, tmp_path: Path, value: str) -> None:
    refused = command("run", write(tmp_path), f"evaluation.times={value}", "--out", tmp_path / "r")
    assert refused.code == 2
    assert "evaluation.times" in refused.err
    assert not (tmp_path / "r").exists()
