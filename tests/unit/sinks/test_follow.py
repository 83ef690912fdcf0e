"""Logs that follow records: changed pasts, unfinished records, names of scalars."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhp.config import Experiment
from fedhp.errors import ConfigError, RunError
from fedhp.record.reader import RunReader
from fedhp.record.store import RECORD_FILE, Store, description
from fedhp.sinks.follow import LogFollower, _TargetLogs, write_logs
from fedhp.sinks.points import RoundPoints, metric_word, read_description, read_points
from fedhp.sinks.targets import LogTarget
from fedhp.types import RoundRecord
from log_readers import history, read_log, read_mlflow, require
from unit.record.rounds import mesh, planned_round
from waiting import wait_until

# The libraries use what is deprecated in the libraries that they use.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

WORKERS = 5


def new_record(folder: Path, *, rounds: int, metric: str = "accuracy") -> Path:
    """A record as a coordinator begins one."""
    folder.mkdir()
    experiment = Experiment(workers=WORKERS)
    with contextlib.closing(Store.create(folder)) as store:
        for key, value in description(experiment, label="fedhp", asynchronous=False).items():
            store.set_meta(key, value)
        store.set_meta("metric", metric)
        store.set_meta("status", "running")
    add_rounds(folder, 1, rounds)
    return folder


def made_round(index: int, *, clock: float | None = None) -> RoundRecord:
    record = planned_round(WORKERS, mesh(WORKERS), round_index=index)
    return record if clock is None else replace(record, clock=clock)


def add_rounds(folder: Path, first: int, last: int, *, late: float = 0.0) -> None:
    with contextlib.closing(Store.open(folder, write=True)) as store:
        for index in range(first, last + 1):
            store.commit(made_round(index, clock=10.0 * index + late))


def cut(folder: Path, last: int) -> None:
    """As a coordinator removes rounds that were not committed."""
    with contextlib.closing(Store.open(folder, write=True)) as store:
        store.truncate(last)


def points_of(folder: Path) -> list[RoundPoints]:
    with RunReader(folder) as run:
        about = read_description(run, folder=folder, top=folder, per_worker=False)
        assert about is not None
        return list(read_points(run, about))


@pytest.mark.parametrize(
    "sink",
    [
        "tensorboard",
        pytest.param("mlflow", marks=pytest.mark.slow),
        pytest.param("wandb", marks=pytest.mark.slow),
    ],
)
def test_rounds_that_are_repeated_with_other_numbers(sink: str, tmp_path: Path) -> None:
    """A coordinator that is killed repeats the rounds that it had not committed, otherwise."""
    require(sink)
    folder = new_record(tmp_path / "run", rounds=6)
    logs = _TargetLogs(folder, LogTarget(sink), per_worker=False)
    logs.update(folder, last=False)
    cut(folder, 4)
    add_rounds(folder, 5, 8, late=0.5)
    logs.update(folder, last=True)
    log = read_log(sink, folder)
    assert log.repeated == 0
    assert log.scalars["time/clock"] == {
        **{index: 10.0 * index for index in range(1, 5)},
        **{index: 10.0 * index + 0.5 for index in range(5, 9)},
    }
    expected: dict[str, dict[int, Any]] = {}
    for points in points_of(folder):
        for name, value in points.values.items():
            expected.setdefault(name, {})[points.round_index] = pytest.approx(value, rel=1e-6)
    assert history(log) == expected


def test_another_process_finds_that_the_past_has_changed(tmp_path: Path) -> None:
    """In MLflow, where points cannot be removed: another MLflow run takes its place."""
    require("mlflow")
    folder = new_record(tmp_path / "five o'clock", rounds=3)
    write_logs(folder, [LogTarget("mlflow")], per_worker=False)
    add_rounds(folder, 4, 5)
    write_logs(folder, [LogTarget("mlflow")], per_worker=False)
    assert len(read_mlflow(folder / "mlflow.db")["."].scalars["time/clock"]) == 5
    cut(folder, 1)
    add_rounds(folder, 2, 3, late=1.0)
    write_logs(folder, [LogTarget("mlflow")], per_worker=False)
    (log,) = read_mlflow(folder / "mlflow.db").values()
    assert log.scalars["time/clock"] == {1: 10.0, 2: 21.0, 3: 31.0}
    assert log.status == "KILLED"


@pytest.mark.parametrize("sink", ["tensorboard", pytest.param("wandb", marks=pytest.mark.slow)])
def test_runs_of_the_same_name_in_one_place(sink: str, tmp_path: Path) -> None:
    """A log for the runs of another folder is never replaced; one's own is continued."""
    require(sink)
    for parent in ("a", "b"):
        (tmp_path / parent).mkdir()
        new_record(tmp_path / parent / "run", rounds=2 if parent == "a" else 3)
    target = LogTarget(sink, tmp_path / "logs")
    for parent in ("a", "b", "a"):
        write_logs(tmp_path / parent / "run", [target], per_worker=False)
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["run", "run-2"]
    below = "." if sink == "tensorboard" else "wandb"
    assert [
        len(list((tmp_path / "logs" / name / below).glob(pattern)))
        for name in ("run", "run-2")
        for pattern in (("events*",) if sink == "tensorboard" else ("offline-run-*",))
    ] == [1, 1]


def test_a_store_that_cannot_be_opened_is_reported_at_once(tmp_path: Path) -> None:
    require("mlflow")
    folder = new_record(tmp_path / "run", rounds=1)
    (tmp_path / "notes.db").write_text("these are no tables " * 50)
    with pytest.raises(RunError, match="could not be written: DatabaseError: file is not a data"):
        write_logs(folder, [LogTarget("mlflow", tmp_path / "notes.db")], per_worker=False)
    (tmp_path / "folder.db" / "mlflow.db").mkdir(parents=True)
    with pytest.raises(RunError, match="OperationalError: unable to open"):
        write_logs(folder, [LogTarget("mlflow", tmp_path / "folder.db")], per_worker=False)


def damage(folder: Path) -> None:
    """Zeros in the middle of a record."""
    record = folder / RECORD_FILE
    content = bytearray(record.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 8192] = bytes(8192)
    record.write_bytes(content)


def test_a_damaged_record_does_not_stop_the_logs_of_the_others(tmp_path: Path) -> None:
    require("tensorboard")
    for name in ("a", "b", "c", "d"):
        new_record(tmp_path / name, rounds=30)
    damage(tmp_path / "a")
    (tmp_path / "c" / RECORD_FILE).write_bytes(b"no record at all")
    logged, errors = write_logs(tmp_path, [LogTarget("tensorboard")], per_worker=False)
    assert logged == 2
    assert [error.problem.partition(": ")[0] for error in errors] == [
        str(tmp_path / name / RECORD_FILE) for name in ("a", "c")
    ]
    assert all("the record is damaged: " in error.problem for error in errors)
    for name in ("b", "d"):
        assert len(read_log("tensorboard", tmp_path / name).scalars["time/clock"]) == 30
    assert sorted(path.parent.name for path in tmp_path.glob("*/tensorboard")) == ["b", "d"]


def test_a_live_log_of_several_runs_survives_a_damaged_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    require("tensorboard")
    for name in ("a", "b"):
        new_record(tmp_path / name, rounds=30)
    (tmp_path / "a" / RECORD_FILE).write_bytes(b"no record at all")
    logs = _TargetLogs(tmp_path, LogTarget("tensorboard"), per_worker=False)
    logs.look(last=True)
    assert not logs.failed
    (message,) = [record.getMessage() for record in caplog.records]
    assert f"the log of {tmp_path / 'a'} for tensorboard is not complete: " in message
    assert "the record is damaged" in message
    assert len(read_log("tensorboard", tmp_path / "b").scalars["time/clock"]) == 30


@pytest.mark.parametrize("name", ["what?", "a%20b"])
def test_a_folder_that_the_address_of_a_store_cannot_have(name: str, tmp_path: Path) -> None:
    folder = new_record(tmp_path / name, rounds=1)
    with pytest.raises(ConfigError, match="the address of an MLflow store"):
        write_logs(folder, [LogTarget("mlflow")], per_worker=False)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["50 % of it", "a#1", "ü & b=c", "x+y"])
def test_a_folder_with_other_special_characters(name: str, tmp_path: Path) -> None:
    require("mlflow")
    folder = new_record(tmp_path / name, rounds=2)
    write_logs(folder, [LogTarget("mlflow")], per_worker=False)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert len(read_mlflow(folder / "mlflow.db")["."].scalars["time/clock"]) == 2


def test_a_failure_says_how_to_log_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    require("mlflow")
    folder = new_record(tmp_path / "my run", rounds=1)
    (tmp_path / "notes.db").write_text("these are no tables " * 50)
    logs = _TargetLogs(folder, LogTarget("mlflow", tmp_path / "notes.db"), per_worker=True)
    logs.look(last=True)
    place = f"'{folder}' --to mlflow:{tmp_path / 'notes.db'} --per-worker"
    assert caplog.messages[-1].endswith(f"write it later with: fedhp export {place}")


def test_a_live_log_grows_with_the_record(tmp_path: Path) -> None:
    require("tensorboard")
    with LogFollower(tmp_path, [LogTarget("tensorboard")], per_worker=False) as follower:
        folder = new_record(tmp_path / "run", rounds=2)
        for last in (2, 4):
            add_rounds(folder, last - 1, last)
            wait_until(lambda last=last: _rounds(folder) == last, "the rounds")  # type: ignore[misc]
        assert follower.working == [LogTarget("tensorboard")]
    assert _rounds(folder) == 4


def _rounds(folder: Path) -> int:
    if not any(folder.glob("tensorboard/events*")):
        return 0
    try:
        log = read_log("tensorboard", folder)
    except ValueError:  # the file is there, its first event not yet
        return 0
    return len(log.scalars.get("time/clock", ()))


def test_a_record_that_is_not_described_yet_is_left_alone(tmp_path: Path) -> None:
    require("tensorboard")
    folder = tmp_path / "run"
    folder.mkdir()
    Store.create(folder).close()
    logs = _TargetLogs(folder, LogTarget("tensorboard"), per_worker=False)
    logs.look(last=False)
    (folder / "record.sqlite").write_bytes(b"")  # not even a record
    logs.look(last=False)
    assert not logs.failed
    assert not (folder / "tensorboard").exists()


def test_totals_go_on_after_a_round(tmp_path: Path) -> None:
    folder = new_record(tmp_path / "run", rounds=5)
    whole = points_of(folder)
    with RunReader(folder) as run:
        about = read_description(run, folder=folder, top=folder, per_worker=False)
        assert about is not None
        assert list(read_points(run, about, after=whole[2])) == whole[3:]
    total = sum(points.values["network/bytes"] for points in whole)
    assert whole[-1].values["network/bytes_total"] == total


def test_values_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    folder = new_record(tmp_path / "run", rounds=0)
    record = replace(made_round(1), learning_rate=float("inf"), train_loss=np.full(WORKERS, np.nan))
    with contextlib.closing(Store.open(folder, write=True)) as store:
        store.commit(record)
    (points,) = points_of(folder)
    assert "train/learning_rate" not in points.values
    assert "train/loss" not in points.values
    assert points.values["time/clock"] == 10.0


@pytest.mark.parametrize(
    ("metric", "word"),
    [("accuracy", "accuracy"), ("loss", "metric"), ("R² (test)", "R_test"), ("µ", "metric")],
)
def test_the_name_of_a_metric_of_your_own(metric: str, word: str) -> None:
    assert metric_word(metric) == word
