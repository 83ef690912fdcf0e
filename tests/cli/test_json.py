"""--json: exactly one strict JSON object, the fields of the issue, the same world for all."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

import fedhp
from cli.support import Command, CommandResult, caller, write
from fedhp.cli import call
from subprocesses import forked_jobs

BY_TARGET = {"time_to_target", "bytes_to_target"}
FIELDS = {
    "algorithm",
    "seed",
    "rounds",
    "final_accuracy",
    "best_accuracy",
    "mean_model_accuracy",
    "worst_worker_accuracy",
    "best_worker_accuracy",
    "completion_time",
    "round_time",
    "mean_waiting_time",
    "mean_local_steps",
    "bytes_sent",
    "time_to_target",
    "bytes_to_target",
}
VARIANTS = ["fedhp", "fedhp:deadline=fill", "adpsgd:steps=4", "dpsgd:training.learning_rate=1e6"]
SEEDS = [0, 3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compared")


@pytest.fixture(scope="module")
def outcome(folder: Path) -> CommandResult:
    """One comparison for the whole module: two seeds, four variants, one of which diverges."""
    file = write(folder, rounds=4, evaluation={"targets": [0.8, 0.0]}, model={"hidden": [16, 16]})
    out, err = io.StringIO(), io.StringIO()
    with forked_jobs(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = call(
            [
                *("compare", str(file), "--out", str(folder / "out"), "--json", "--jobs", "1"),
                *("--algorithms", ",".join(VARIANTS), "--seeds", "0,3", "--no-figures"),
            ]
        )
    return CommandResult(code, out.getvalue(), err.getvalue())


def cell(folder: Path, label: str, seed: int) -> Path:
    return folder / "out" / label.replace(":", ",") / f"seed-{seed}"


def test_run_prints_one_object(command: Command, tmp_path: Path) -> None:
    said = command("run", write(tmp_path), "--out", tmp_path / "r", "--json")
    assert said.code == 0
    assert said.out.count("\n") == 1
    result = said.json()
    assert set(result) == {"runs", "summary"}
    (run,) = result["runs"]
    assert set(run) >= FIELDS
    assert (run["algorithm"], run["seed"], run["rounds"]) == ("dpsgd", 0, 3)
    assert list(run["time_to_target"]) == ["0.80"]
    assert run["bytes_sent"] > 0
    assert result["summary"]["dpsgd"]["final_accuracy"]["mean"] == run["final_accuracy"]


def test_no_rounds_are_an_object_too(command: Command, tmp_path: Path) -> None:
    said = command("run", write(tmp_path, rounds=0), "--out", tmp_path / "r", "--json")
    assert said.code == 0
    (run,) = said.json()["runs"]
    assert (run["rounds"], run["final_accuracy"], run["completion_time"]) == (0, None, 0.0)
    assert run["round_time"] is None


def test_compare_prints_one_object_with_every_variant(outcome: CommandResult) -> None:
    assert outcome.out.count("\n") == 1
    runs = outcome.json()["runs"]
    assert [(run["algorithm"], run["seed"]) for run in runs] == [
        (label, seed) for label in VARIANTS for seed in SEEDS
    ]
    assert all(set(run) >= FIELDS for run in runs)
    for run in runs[:6]:
        assert run["rounds"] == 4
        assert run["status"] == "finished"
        assert run["time_to_target"]["0.00"] > 0
        assert 0 <= run["final_accuracy"] <= run["best_accuracy"] <= 1
    assert runs[4]["mean_waiting_time"] == 0


def test_the_summary_has_means_and_intervals(outcome: CommandResult) -> None:
    result = outcome.json()
    assert list(result["summary"]) == VARIANTS
    for label in VARIANTS[:3]:
        mine = [run for run in result["runs"] if run["algorithm"] == label]
        for field in sorted(FIELDS - {"algorithm", "seed", "rounds", *BY_TARGET}):
            interval = result["summary"][label][field]
            mean = sum(run[field] for run in mine) / 2
            assert interval["count"] == 2
            assert interval["mean"] == pytest.approx(mean)
            assert interval["low"] <= interval["mean"] <= interval["high"]
        assert result["summary"][label]["time_to_target"]["0.00"]["reached"] == "2/2"
        assert result["summary"][label]["bytes_to_target"]["0.00"]["reached"] == "2/2"


def test_a_variant_that_diverges_is_marked_and_the_others_finish(
    outcome: CommandResult, folder: Path
) -> None:
    assert outcome.code == 3
    assert outcome.err.count("diverged") >= 2
    assert "2 runs failed" in outcome.err
    bad = VARIANTS[3]
    for seed in SEEDS:
        assert f"{bad}, seed {seed}: round" in outcome.err
        with fedhp.open_run(cell(folder, bad, seed)) as run:
            assert run.meta("status") == "diverged"
    runs = outcome.json()["runs"]
    assert [run["status"] for run in runs] == ["finished"] * 6 + ["diverged"] * 2
    assert "lower the learning rate" in outcome.err
    markdown = (folder / "out" / "comparison.md").read_text()
    assert "diverged" in markdown
    assert json.loads((folder / "out" / "comparison.json").read_text()) == outcome.json()


def test_one_seed_is_one_world(outcome: CommandResult, folder: Path) -> None:
    assert outcome.code == 3

    def world(label: str, seed: int) -> dict[str, Any]:
        with fedhp.open_run(cell(folder, label, seed)) as run:
            return {
                "devices": run.meta("devices"),
                "samples": run.meta("samples"),
                "bandwidth": run.table("workers", round_index=1)["bandwidth"],
            }

    for seed in SEEDS:
        first = world(VARIANTS[0], seed)
        assert len(first["bandwidth"]) == 6
        assert world(VARIANTS[1], seed) == first
        assert world(VARIANTS[2], seed) == first
    assert world(VARIANTS[0], 0) != world(VARIANTS[0], 3)


def test_a_run_of_a_comparison_equals_the_run_alone(outcome: CommandResult, folder: Path) -> None:
    assert outcome.code == 3
    experiment = fedhp.load_experiment(
        folder / "tiny.toml", "algorithm={name = 'fedhp', deadline = 'fill'}", seed=3
    )
    with fedhp.run(experiment, folder / "alone") as alone:
        runs = outcome.json()["runs"]
        assert alone.digest() == runs[3]["digest"]


def test_a_finished_comparison_is_reported_again(
    outcome: CommandResult, folder: Path, capsys: Any
) -> None:
    options = ["--algorithms", ",".join(VARIANTS[:3]), "--seeds", "0,3", "--no-figures"]
    again = caller(capsys)(
        "compare", folder / "tiny.toml", "--out", folder / "out", "--resume", "--json", *options
    )
    assert again.code == 0
    assert again.json()["runs"] == outcome.json()["runs"][:6]
