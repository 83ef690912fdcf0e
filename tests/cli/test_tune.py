"""fedhp tune: an equal budget for every algorithm, then held-out seeds; resumable."""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import fedhp
from cli.support import Command, children_of, ended, is_alive, write
from fedhp.cli.parameters import parse_seeds
from fedhp.errors import ConfigError
from subprocesses import ForkedCommand
from waiting import wait_until

SEEDS = ("--tuning-seeds", "0,1", "--seeds", "6,7")


def experiment(folder: Path, **changes: Any) -> Path:
    return write(folder, rounds=2, evaluation={"targets": [0.3]}, **changes)


def tuned(
    command: Command, file: Path, out: Path, *more: object, algorithms: str = "dpsgd,adpsgd"
) -> Any:
    """The JSON of a tuning."""
    options = ("--algorithms", algorithms, *SEEDS, "--out", out, "--json", "--no-figures")
    shown = command("tune", file, *options, *more)
    assert shown.code == 0, shown.err
    return shown.json()


def rows_of(out: Path) -> list[dict[str, str]]:
    with (out / "trials.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_algorithm_gets_the_same_trials_and_both_seeds_are_reported(
    command: Command, tmp_path: Path
) -> None:
    file, out = experiment(tmp_path), tmp_path / "tuned"
    algorithms = "dpsgd,adpsgd:overlap=true,steps=2..9"
    shown = command("tune", file, "--algorithms", algorithms, "--budget", 3, *SEEDS, "--out", out)
    assert shown.code == 0, shown.err
    rows = rows_of(out)
    assert [(row["algorithm"], row["trial"]) for row in rows] == [
        (label, str(number)) for label in ("dpsgd", "adpsgd:overlap=true") for number in (1, 2, 3)
    ]
    assert {row["seeds"] for row in rows} == {"2"}
    assert [row["steps"] for row in rows if row["trial"] == "1"] == ["3", "3"]  # the defaults
    assert all(2 <= int(row["steps"]) <= 9 for row in rows[3:])
    for name in ("tune.md", "tune.json", "figures/pareto.png", "figures/pareto.pdf"):
        assert (out / name).is_file()
    result = json.loads((out / "tune.json").read_text(encoding="utf-8"))
    assert (result["target"], result["budget"]) == (0.3, 3)
    for row in result["rows"]:
        assert row["held_out_seeds"]["final_accuracy"]["count"] == 2
        assert row["tuning_seeds"]["final_accuracy"]["count"] == 2
    assert {run["seed"] for run in result["runs"]} == {6, 7}
    for label in ("dpsgd", "adpsgd:overlap=true"):
        best = [row for row in rows if row["algorithm"] == label and row["best"] == "1"]
        reached = [r for r in rows if r["algorithm"] == label and r["reached"] == "2"]
        if reached:
            assert [float(row["time_to_target"]) for row in best] == [
                min(float(row["time_to_target"]) for row in reached)
            ]
        assert len(best) == 1
    assert "tuned: the best of 3 trials on seeds 0 and 1 by the mean time to 30 %" in shown.out
    assert "held-out" in shown.out
    assert "trial 3 (lr " in shown.err
    assert "the best so far" in shown.err

    # The runs are ordinary ones: other commands read those that are compared.
    listed = command("show", out)
    assert listed.code == 0, listed.err
    assert "seed-6" in listed.out
    assert "seed-0" not in listed.out
    assert command("show", out / "trials").code == 0
    assert f"the settings found, and how: {out / 'tune.md'}" in listed.out
    assert command("export", out, "--latex", out / "table.tex").code == 0


@pytest.mark.slow
def test_resume_repeats_nothing_and_a_larger_budget_continues(
    command: Command, tmp_path: Path
) -> None:
    file, out = experiment(tmp_path), tmp_path / "tuned"
    first = tuned(command, file, out, "--budget", 2)
    csv_before = (out / "trials.csv").read_bytes()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("record.sqlite")}
    refused = command("tune", file, "--out", out)
    assert refused.code == 2
    assert "already holds a tuning" in refused.err
    assert tuned(command, file, out, "--budget", 2, "--resume") == first
    assert (out / "trials.csv").read_bytes() == csv_before
    assert {path: path.stat().st_mtime_ns for path in out.rglob("record.sqlite")} == before

    longer = tuned(command, file, out, "--budget", 5, "--resume")
    whole = tuned(command, file, tmp_path / "whole", "--budget", 5)
    assert longer == whole
    assert {path: path.stat().st_mtime_ns for path in before} == before
    labels = [trial["label"] for trial in whole["trials"]]
    assert [t["label"] for t in first["trials"]] == [*labels[:2], *labels[5:7]]

    changed = ("--algorithms", "dpsgd,adpsgd", "--out", out, "--resume", *SEEDS)
    for more, words in (
        (["--target", "0.4"], "target of dpsgd is 0.4"),
        (["training.batch_size=16"], "training.batch_size is 16"),
        (["--tuning-seeds", "0,2"], "tuning seeds of dpsgd is [0, 2]"),
    ):
        refused = command("tune", file, *changed, *more)
        assert refused.code == 2
        assert words in refused.err
    search = json.loads((out / "search.json").read_text(encoding="utf-8"))
    search["algorithms"]["dpsgd"]["trials"][1] = "dpsgd:learning_rate=0.5:steps=7"
    search["algorithms"]["dpsgd"]["optuna"] = "0.1"
    (out / "search.json").write_text(json.dumps(search), encoding="utf-8")
    refused = command("tune", file, *changed, "--budget", 5)
    assert refused.code == 2
    assert "trial 2 would be dpsgd:" in refused.err
    assert "Optuna 0.1 then" in refused.err


def test_a_killed_tuning_continues_with_the_same_trials(command: Command, tmp_path: Path) -> None:
    file, out = experiment(tmp_path), tmp_path / "killed"
    options = ("--budget", 3, "--jobs", 1)
    whole = tuned(command, file, tmp_path / "whole", *options, algorithms="dpsgd")
    line = ["tune", file, "--algorithms", "dpsgd", *SEEDS, *options, "--no-figures", "--json"]
    line += ["--out", out, "--resume"]

    def begun() -> int:
        # Unlike rglob, it does not mind folders that disappear meanwhile.
        return sum("record.sqlite" in files for _, _, files in os.walk(out))

    with ForkedCommand(*line) as process:
        wait_until(lambda: begun() >= 3 or process.poll() is not None, "3 of 10 runs at most")
        assert process.poll() is None, process.communicate(1)
        jobs = children_of(process.pid)
        process.kill()
        wait_until(lambda: not any(map(is_alive, jobs)), "the jobs end by themselves")
    assert not (out / "tune.json").exists()
    early = command("show", out)
    assert early.code == 2
    assert "has not reached its comparison yet" in early.err
    with ForkedCommand(*line) as process:
        assert ended(process).json() == whole
    assert (out / "trials.csv").read_bytes() == (tmp_path / "whole" / "trials.csv").read_bytes()


def test_trials_that_diverge_are_shown_and_ranked_last(command: Command, tmp_path: Path) -> None:
    file, out = experiment(tmp_path, model={"name": "logistic"}), tmp_path / "tuned"
    diverging = "dpsgd:learning_rate=1e38..3e38"
    shown = command(
        "tune", file, "--algorithms", f"ldsgd,{diverging}", "--budget", 2, *SEEDS, "--out", out
    )
    assert shown.code == 0, shown.err
    assert "diverged" in shown.err
    assert "every trial failed" in " ".join(shown.out.split())
    failed = [row for row in rows_of(out) if row["algorithm"] == "dpsgd"]
    assert {row["status"] for row in failed} == {"diverged"}
    assert len(failed) == 2
    assert {row["best"] for row in failed} == {"0"}
    again = tuned(command, file, out, "--budget", 2, "--resume", algorithms=f"ldsgd,{diverging}")
    assert again["settings"]["dpsgd"] == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--algorithms", "dpsgd,nothing"], "unknown algorithm 'nothing'"),
        (["--algorithms", "dpsgd:stps=1..5"], "algorithm.stps: unknown key"),
        (["--algorithms", "dpsgd:steps=9..5"], "from a smaller to a larger number"),
        (["--algorithms", "dpsgd,dpsgd:steps=2..5"], "'dpsgd' is given twice"),
        (["--budget", "0"], "--budget: invalid value 0"),
        (["--budget", "x"], "--budget"),
        (["--seeds", "2,3", "--tuning-seeds", "0-2"], "the seed 2 is also one of --tuning-seeds"),
        (["--seeds", "3,3"], "--seeds: the seed 3 is given twice"),
        (["--tuning-seeds", "a"], "--tuning-seeds: 'a' is not a list of seeds"),
        (["--target", "90"], "--target: invalid value 90"),
        (["--target", "-0.1"], "--target: invalid value -0.1"),
        (["seed=3"], "write --tuning-seeds and --seeds instead"),
        (["roundz=3"], "roundz"),
        (["data.name=npz", "data.path=nothing.npz"], "nothing.npz"),
    ],
)
def test_bad_input_is_refused_before_any_run(
    command: Command, tmp_path: Path, arguments: list[str], words: str
) -> None:
    file, out = experiment(tmp_path), tmp_path / "tuned"
    more = [] if "--algorithms" in arguments else ["--algorithms", "dpsgd"]
    shown = command("tune", file, *arguments, *more, "--out", out)
    assert shown.code == 2
    assert words in " ".join(shown.err.split())
    assert not out.exists()


def test_the_range_of_bad_tuning_seeds_names_the_option() -> None:
    with pytest.raises(ConfigError, match="write --tuning-seeds 0,1,2"):
        parse_seeds("1-", option="--tuning-seeds")


def test_a_folder_with_other_things_is_not_used(command: Command, tmp_path: Path) -> None:
    file, out = experiment(tmp_path), tmp_path / "tuned"
    out.mkdir()
    (out / "notes.txt").touch()
    shown = command("tune", file, "--algorithms", "dpsgd", "--out", out, "--resume")
    assert shown.code == 2
    assert "is not the folder of a tuning" in shown.err


def test_without_optuna_the_error_says_how_to_install_it(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    shown = command("tune", experiment(tmp_path), "--out", tmp_path / "tuned")
    assert shown.code == 2
    assert "pip install '.[tune]'" in shown.err
    assert not (tmp_path / "tuned").exists()


def test_an_algorithm_of_a_user_is_tuned_by_what_it_declares(
    command: Command, tmp_path: Path
) -> None:
    """Its module is in the folder of the experiment, not in the current one."""
    file = Path(__file__).parents[2] / "examples" / "own_algorithm.toml"
    out, seeds = tmp_path / "tuned", ("--tuning-seeds", 0, "--seeds", 6)
    options = ("--algorithms", "own_algorithm:Pairs", "--budget", 2, *seeds, "--no-figures")
    shown = command("tune", file, "rounds=1", *options, "--out", out)
    assert shown.code == 0, shown.err
    first, second = rows_of(out)
    assert (first["training.learning_rate"], first["max_steps"]) == ("0.1", "60")
    assert 20 <= int(second["max_steps"]) <= 500
    label = f"training.learning_rate={second['training.learning_rate']}"
    (folder,) = (path for path in (out / "trials").iterdir() if label in path.name)
    with fedhp.open_run(folder / "seed-0") as run:
        settings = run.meta("experiment")
    assert settings["algorithm"]["max_steps"] == int(second["max_steps"])
    assert settings["training"]["learning_rate"] == float(second["training.learning_rate"])


@pytest.mark.slow
def test_without_a_target_the_final_accuracy_decides(command: Command, tmp_path: Path) -> None:
    file, out = experiment(tmp_path), tmp_path / "tuned"
    shown = command(
        "tune", file, "evaluation.targets=[]", "--algorithms", "dpsgd", "--budget", 2, *SEEDS,
        "--out", out,
    )  # fmt: skip
    assert shown.code == 0, shown.err
    assert "by the mean final result" in shown.out
    rows = rows_of(out)
    best = max(rows, key=lambda row: float(row["final_accuracy"]))
    assert best["best"] == "1"
    assert (out / "figures" / "pareto.png").is_file()
