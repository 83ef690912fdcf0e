"""fedhp sweep: a grid of settings as one resumable campaign; ranges of seeds."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from cli.support import Command, digest_of, write
from fedhp.cli.parameters import parse_seeds
from fedhp.engine.runs.sweep import split_values
from fedhp.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("0-9", list(range(10))),
        ("0-2,7", [0, 1, 2, 7]),
        ("5, 1-2", [5, 1, 2]),
        ("3-3", [3]),
        ("0,1,2", [0, 1, 2]),
    ],
)
def test_seeds_may_be_ranges(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    "text",
    ["", "0-", "-3", "9-0", "1.5", "a-b", "0-4294967296", "0-4000000000", "0--2", "9" * 5000],
)
def test_bad_seeds_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--seeds 0-9"):
        parse_seeds(text)


def test_compare_accepts_a_range_of_seeds(command: Command, tmp_path: Path) -> None:
    file = write(tmp_path, rounds=1)
    out = command(
        "compare", file, "--algorithms", "dpsgd", "--seeds", "0-1,4", "--json", "--no-figures",
        "--out", tmp_path / "c",
    )  # fmt: skip
    assert [run["seed"] for run in out.json()["runs"]] == [0, 1, 4]


def test_values_are_split_outside_brackets_and_quotes() -> None:
    assert split_values("[0.5,0.6],[0.9]") == ["[0.5,0.6]", "[0.9]"]
    assert split_values("'a,b',c") == ["'a,b'", "c"]


def test_a_grid_with_table_picture_and_numbers(command: Command, tmp_path: Path) -> None:
    file, out = write(tmp_path, rounds=2), tmp_path / "sweep"
    grid = ("training.learning_rate=0.05,0.2", "algorithm.name=dpsgd,adpsgd", "data.skew=0.5")
    shown = command("sweep", file, *grid, "--seeds", "0-1", "--out", out)
    assert shown.code == 0, shown.err
    rows = [line for line in shown.out.splitlines() if "dpsgd" in line]
    assert len(rows) == 4
    assert "data.skew" not in shown.out.split("runs, table")[0]  # it does not vary
    assert (out / "figures" / "sweep.png").stat().st_size > 1000
    assert (out / "sweep.md").read_text().count("dpsgd") == 4

    again = command("sweep", file, *grid, "--seeds", "0-1", "--out", out, "--resume", "--json")
    result = again.json()
    assert result["keys"] == ["training.learning_rate", "algorithm.name"]
    first = result["combinations"][0]
    assert first["settings"] == {"training.learning_rate": 0.05, "algorithm.name": "dpsgd"}
    assert first["summary"]["seeds"] == [0, 1]
    assert first["summary"]["final_accuracy"]["count"] == 2
    assert len(result["combinations"]) == 4

    alone = command(
        "run", file, "training.learning_rate=0.05", "data.skew=0.5", "seed=1",
        "--out", tmp_path / "alone",
    )  # fmt: skip
    assert alone.code == 0, alone.err
    assert first["runs"][1]["digest"] == digest_of(tmp_path / "alone")


def test_resume_runs_only_what_is_missing(command: Command, tmp_path: Path) -> None:
    file, out = write(tmp_path, rounds=1), tmp_path / "sweep"
    command("sweep", file, "data.skew=0.5,0.8", "--out", out, "--no-figures")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("record.sqlite")}
    assert len(before) == 2
    more = command("sweep", file, "data.skew=0.5,0.8,1.0", "--out", out, "--resume", "--json")
    assert more.code == 0, more.err
    assert len(more.json()["combinations"]) == 3
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_finished_sweep_gets_more_rounds_and_other_columns(
    command: Command, tmp_path: Path
) -> None:
    """Settings that may change with --resume are not part of a folder's name."""
    file, out = write(tmp_path, rounds=1), tmp_path / "sweep"
    options = ("data.skew=0.5,0.8", "--no-figures", "--out", out)
    assert command("sweep", file, *options, "executors=1").code == 0
    folders = sorted(path.parent for path in out.rglob("record.sqlite"))
    changes = ("rounds=2", "evaluation.times=[1000]")
    more = command("sweep", file, *options, *changes, "--resume", "--json")
    assert more.code == 0, more.err
    runs = [run for each in more.json()["combinations"] for run in each["runs"]]
    assert [run["rounds"] for run in runs] == [2, 2]
    assert [run["accuracy_at_time"] for run in runs] == [{"1000": None}] * 2
    assert sorted(path.parent for path in out.rglob("record.sqlite")) == folders
    alone = tmp_path / "alone"
    assert command("run", file, "data.skew=0.5", *changes, "--out", alone).code == 0
    assert runs[0]["digest"] == digest_of(alone)


def test_settings_without_numbers_are_drawn_as_bars(command: Command, tmp_path: Path) -> None:
    file, out = write(tmp_path, rounds=1), tmp_path / "sweep"
    shown = command("sweep", file, "topology.name=ring,full", "--out", out)
    assert shown.code == 0, shown.err
    assert "ring" in (out / "figures" / "sweep.svg").read_text()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["data.skew=0.5"], "no setting has more than one value"),
        (["data.skew=0.5,"], "has an empty value"),
        (["data.skew=0.5,0.50"], "the value 0.50 is given twice"),
        (["data.skew=0.5,0.8", "data.skew=1.0"], "data.skew is given twice"),
        (["seed=0,1"], "write --seeds"),
        (["data.skew"], "is not of the form key=value"),
        (["data.skew=0.5,7"], "data.skew"),
        (["nothing=1,2"], "nothing"),
    ],
)
def test_a_bad_grid_is_refused_before_any_run(
    command: Command, tmp_path: Path, settings: list[str], words: str
) -> None:
    out = tmp_path / "sweep"
    shown = command("sweep", write(tmp_path), *settings, "--out", out)
    assert shown.code == 2
    assert words in shown.err
    assert not out.exists()


@pytest.mark.parametrize("grid", ["data.skew=0.5,0.8", "topology.name=ring,full"])
def test_no_axis_goes_above_one_hundred_percent(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grid: str
) -> None:
    """The interval of two different seeds is very wide."""
    limits: list[float] = []

    def keep(figure: Figure, folder: Path, name: str) -> list[Path]:
        axes = figure.axes[0]
        limits.append(axes.get_ylim()[1] if "skew" in grid else axes.get_xlim()[1])
        return [folder]

    monkeypatch.setattr("fedhp.report.figures.sweep.save_figure", keep)
    file = write(tmp_path, rounds=1, evaluation={"images": 30})
    assert command("sweep", file, grid, "--seeds", "0-1", "--out", tmp_path / "s").code == 0
    assert len(limits) == 1
    assert limits[0] <= 100
