"""CSV holds what the record holds; an exported trace replays the same world."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from fedhp.config import parse
from fedhp.engine.runs.run import start_run
from fedhp.errors import RunError
from fedhp.record.reader import RunReader
from fedhp.report.capture import replay_settings
from fedhp.report.export import save_tables, save_text, table_csv, trace_csv
from fedhp.types import LinkVerdict
from fedhp.world.trace import read_trace
from unit.report.conftest import Runs
from unit.report.runs import WORLD, make_run, query

TABLES = [
    "rounds",
    "workers",
    "links",
    "verdicts",
    "facts",
    "evaluations",
    "worker_evaluations",
    "final_evaluations",
    "final_worker_evaluations",
    "participation",
    "test_metrics",
    "worker_test_metrics",
    "class_test_metrics",
    "own_test_metrics",
    "phases",
    "wall",
]


def test_every_table_comes_back_bit_for_bit(runs: Runs, tmp_path: Path) -> None:
    folder = runs.away
    with RunReader(folder) as run:
        paths = save_tables(run, tmp_path / "new" / "folder")
    assert [path.stem for path in paths] == TABLES
    for path in paths:
        with path.open(newline="") as stream:
            header, *rows = csv.reader(stream)
        expected = query(folder, f"SELECT {', '.join(header)} FROM {path.stem} ORDER BY 1, 2")
        assert len(rows) == len(expected)
        for row, values in zip(rows, expected, strict=True):
            for name, text, value in zip(header, row, values, strict=True):
                if name == "verdict" and value is not None:
                    assert text == LinkVerdict(value).word
                    continue
                assert text == ("" if value is None else str(value))
                if isinstance(value, float):
                    assert float(text) == value


def test_an_unknown_table_is_refused(runs: Runs) -> None:
    with (
        RunReader(runs.away) as run,
        pytest.raises(RunError, match="unknown table 'round'") as caught,
    ):
        list(table_csv(run, "round"))
    assert "rounds, workers" in caught.value.allowed


@pytest.mark.parametrize("profile", ["slow_links", "paper"])
def test_a_replayed_trace_gives_the_same_round_times(
    runs: Runs, tmp_path: Path, profile: str
) -> None:
    world = {**WORLD, "profile": profile, "model_megabits": 100}
    folder = make_run(tmp_path / "first", "dpsgd", world=world, rounds=4)
    trace = tmp_path / "world.csv"
    with RunReader(folder) as run:
        save_text(trace, trace_csv(run))
    again = make_run(tmp_path / "again", "dpsgd", world={**world, "trace": str(trace)}, rounds=4)
    columns = "worker, compute_time, communication_time, worker_time, bandwidth"
    old, new = (query(place, f"SELECT {columns} FROM workers") for place in (folder, again))
    for before, after in zip(old, new, strict=True):
        assert after == pytest.approx(before, rel=1e-9)


def test_the_trace_starts_each_round_at_its_clock(runs: Runs, tmp_path: Path) -> None:
    path = tmp_path / "world.csv"
    with RunReader(runs.away) as run:
        save_text(path, trace_csv(run))
    trace = read_trace(path, workers=6)
    clocks = [0.0, *(clock for (clock,) in query(runs.away, "SELECT clock FROM rounds"))]
    for index, worker, speed, step_time in query(
        runs.away, "SELECT round, worker, bandwidth, step_time FROM workers"
    ):
        start = clocks[index - 1]
        assert trace.bandwidth_at(start, 1e6)[worker] == pytest.approx(8 * speed)
        if step_time is not None:  # not away
            assert trace.step_time_at(worker, start) == step_time


def replayed_on_its_own_trace(folder: Path, tmp_path: Path) -> Path:
    """With the settings that the command prints, on the experiment of the run itself."""
    file = tmp_path / "exported.csv"
    with RunReader(folder) as run:
        save_text(file, trace_csv(run))
        experiment = parse(run.meta("experiment"), replay_settings(run, str(file)))
    for _ in start_run(experiment, tmp_path / "twin").rounds():
        pass
    return tmp_path / "twin"


RECORDED = "time,worker,bandwidth,step_time,available,other_time"
COLUMNS = "worker, compute_time, communication_time, worker_time, bandwidth"


def same_times(folder: Path, again: Path) -> None:
    old, new = (
        np.array(query(place, f"SELECT {COLUMNS} FROM workers"), dtype=np.float64)
        for place in (folder, again)
    )
    assert np.isnan(old).any()  # somebody was away
    np.testing.assert_allclose(new, old, rtol=1e-9)


@pytest.mark.parametrize("repeat", [False, True])
def test_presence_and_other_times_of_a_replayed_trace_are_exported(
    tmp_path: Path, repeat: bool
) -> None:
    rows = [f"0,{i},1,0.1,{int(i > 0)},{3 + i}" for i in range(6)]
    recording = tmp_path / "recorded.csv"
    recording.write_text("\n".join([RECORDED, *rows, "2,0,1,0.1,1,3", "12,1,1,0.1,0,3"]))
    world = {**WORLD, "trace": str(recording), "trace_repeat": repeat}
    folder = make_run(tmp_path / "run", "dpsgd", world=world, rounds=3)
    again = replayed_on_its_own_trace(folder, tmp_path)
    same_times(folder, again)


@pytest.mark.parametrize("algorithm", ["dpsgd", "adpsgd"])
def test_the_printed_settings_replay_a_simulation(tmp_path: Path, algorithm: str) -> None:
    """Lines and absences are in the trace, so the settings for them must go."""
    world = {
        **WORLD,
        "bandwidth": {"uplink": 0.5, "downlink": {"low": 0.3, "high": 0.9}},
        "away": [{"worker": 2, "first": 2, "last": 3}],
        "away_probability": 0.2,
    }
    folder = make_run(tmp_path / "run", algorithm, world=world, rounds=4)
    again = replayed_on_its_own_trace(folder, tmp_path)
    trace = read_trace(tmp_path / "exported.csv", workers=6)
    assert trace.presence
    if algorithm == "dpsgd":
        same_times(folder, again)


def test_a_replay_is_not_a_round_behind(tmp_path: Path) -> None:
    """Its clock adds up other roundings than the recorded one, and would be just too early."""
    for seed in range(4):
        folder = make_run(tmp_path / f"{seed}", "dpsgd", world={"profile": "paper"}, seed=seed)
        (tmp_path / f"again-{seed}").mkdir()
        again = replayed_on_its_own_trace(folder, tmp_path / f"again-{seed}")
        old, new = (query(place, "SELECT clock FROM rounds") for place in (folder, again))
        np.testing.assert_allclose(new, old, rtol=1e-9)


@pytest.mark.parametrize("algorithm", ["dpsgd", "adpsgd"])
def test_the_printed_settings_replay_fedscale_clients(tmp_path: Path, algorithm: str) -> None:
    devices = {str(i): {"computation": 10.0 + i, "communication": 900.0} for i in range(8)}
    times = {
        str(i): {"active": [float(i == 2)], "inactive": [900.0], "finish_time": 1000}
        for i in range(8)
    }
    files = {}
    for name, content in {"device_trace": devices, "availability_trace": times}.items():
        files[name] = str(tmp_path / f"{name}.json")
        Path(files[name]).write_text(json.dumps(content))
    clients = {"trace_clients": "first", "availability_speed": 2.0}
    world = {"model_megabits": 12, **files, **clients}
    folder = make_run(tmp_path / "run", algorithm, world=world, rounds=4)
    again = replayed_on_its_own_trace(folder, tmp_path)
    if algorithm == "dpsgd":
        same_times(folder, again)


def test_asynchronous_runs_export_too(runs: Runs, tmp_path: Path) -> None:
    path = tmp_path / "world.csv"
    with RunReader(runs.adpsgd) as run:
        save_text(path, trace_csv(run))
    assert len(read_trace(path, workers=6).step_time) == 6


def test_per_link_runs_are_refused(runs: Runs, tmp_path: Path) -> None:
    with RunReader(runs.per_link) as run, pytest.raises(RunError, match="per link") as caught:
        trace_csv(run)
    assert "links.csv" in caught.value.fix
    rows = [f"0,{a},{b},5" for a in range(6) for b in range(a + 1, 6)]
    trace = tmp_path / "links.csv"
    trace.write_text("\n".join(["time,worker,peer,bandwidth", *rows]))
    world = {**WORLD, "trace": str(trace)}
    folder = make_run(tmp_path / "run", "dpsgd", world=world, rounds=1)
    with RunReader(folder) as run:
        with pytest.raises(RunError, match="per link"):
            trace_csv(run)
        trace.unlink()
        with pytest.raises(RunError, match="can no longer be read"):
            trace_csv(run)


def test_a_worker_without_a_step_is_refused(tmp_path: Path) -> None:
    away = {**WORLD, "away": [{"worker": 4, "first": 1, "last": 9}]}
    folder = make_run(tmp_path / "run", "dpsgd", world=away, rounds=2)
    with RunReader(folder) as run, pytest.raises(RunError, match="worker 4 finished no local"):
        trace_csv(run)


def test_nothing_to_export_and_nowhere_to_write(runs: Runs, tmp_path: Path) -> None:
    with RunReader(runs.empty) as run, pytest.raises(RunError, match="no round is committed"):
        trace_csv(run)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        save_text(tmp_path / "file" / "x.csv", "")
