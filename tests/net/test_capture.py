"""Capture: the trace of a networked run has what was measured, and its replay takes as long."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedhp
from cli.support import Command, caller
from fedhp.cluster.ops.launch import Cluster
from fedhp.config import Experiment, parse, to_tables
from fedhp.errors import ConfigError
from fedhp.record.reader import RunReader
from fedhp.report.capture import CAPTURED_COLUMNS, captured_rows
from fedhp.world.trace import read_trace

WORKERS, ROUNDS = 4, 5


def experiment(algorithm: str = "dpsgd", **changes: Any) -> Experiment:
    tables: dict[str, Any] = {
        "workers": WORKERS,
        "rounds": ROUNDS,
        "seed": 2,
        "algorithm": {"name": algorithm},
        "model": {"name": "mlp", "hidden": [16]},
        "training": {"local_steps": 3, "batch_size": 8},
        "evaluation": {"images": 50, "every": ROUNDS},
        "world": {
            "model_megabits": 12,
            "bandwidth": {"latency": 0.5},
            "device": {"slow": {"step_time": 0.1}, "fast": {"step_time": 0.02}},
            "devices": ["slow", "fast"],
        },
        "cluster": {"emulate": True, "min_workers": WORKERS, "suspect_after": 20.0},
    }
    for key, value in changes.items():
        tables[key] = {**tables.get(key, {}), **value} if isinstance(value, dict) else value
    return parse(tables)


def run_network(settings: Experiment, folder: Path) -> Path:
    with Cluster(settings, folder, restart=False) as cluster:
        cluster.start()
        cluster.wait(120)
    return folder


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """D-PSGD on four processes: two of the six links are never used."""
    return run_network(experiment(), tmp_path_factory.mktemp("capture") / "run")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return caller(capsys)


def replayed(settings: Experiment, trace: Path, out: Path) -> Any:
    tables = to_tables(settings)
    tables["world"]["trace"] = str(trace)
    tables["world"].pop("model_megabits", None)
    tables["world"]["bandwidth"]["latency"] = 0.0
    with fedhp.run(parse(tables), out) as run:
        return run.array("rounds", "clock")


def test_the_command_writes_a_world_and_says_how_to_replay_it(
    command: Command, real: Path, tmp_path: Path
) -> None:
    file = tmp_path / "cluster.csv"
    outcome = command("export", real, "--trace", file)
    assert outcome.code == 0, outcome.err
    line = next(text for text in outcome.out.splitlines() if text.startswith("replay it with: "))
    words = line.removeprefix("replay it with: ").split()
    # What was measured takes the place of the settings of the simulated world.
    assert f"world.trace={file}" in words
    assert {"world.model_megabits=none", "world.bandwidth.latency=0"} < set(words)
    twin = command(
        *("run", real / "experiment.toml", *words, "--out", tmp_path / "twin"),
        *("algorithm.name=fedhp", "rounds=3"),
    )
    assert twin.code == 0, twin.err
    described = " ".join(command("show", tmp_path / "twin").out.split())
    assert "replayed from" in described


def test_a_replay_of_the_same_plans_takes_the_same_time(real: Path, tmp_path: Path) -> None:
    """Round by round: the rows of a round hold when the replay is in that round."""
    (trace,) = fedhp.export(real, trace=tmp_path / "cluster.csv")
    with RunReader(real) as run:
        clock = run.array("rounds", "clock")
    again = replayed(experiment(), trace, tmp_path / "twin")
    assert again.tolist() == pytest.approx(clock.tolist(), rel=0.02)


def test_the_trace_has_what_the_record_measured(real: Path, tmp_path: Path) -> None:
    (path,) = fedhp.export(real, trace=tmp_path / "cluster.csv")
    trace = read_trace(path, workers=WORKERS)
    assert trace.per_link
    with RunReader(real) as run:
        clock = [0.0, *run.array("rounds", "clock").tolist()]
        size = run.meta("model_bytes")
        for number in range(1, ROUNDS + 1):
            start = clock[number - 1]
            rows = run.table("workers", round_index=number)
            assert [trace.step_time_at(i, start) for i in rows["worker"]] == rows["step_time"]
            assert trace.available_at(start).all()
            links = run.table("links", round_index=number)
            for a, b, seconds in zip(links["a"], links["b"], links["link_time"], strict=True):
                speed = trace.bandwidth_at(start, 8e6)[a, b]
                assert speed * seconds / 8 == pytest.approx(size)
        used = {(a, b) for a, b in zip(links["a"], links["b"], strict=True)}
    assert len(used) == 4
    speeds = trace.bandwidth_at(0.0, 8e6)
    assert np.isfinite(speeds[np.triu_indices(WORKERS, 1)]).all()  # the two unused ones as well
    with path.open(encoding="utf-8") as stream:
        other = [float(row["other_time"]) for row in csv.DictReader(stream) if row["other_time"]]
    assert len(other) == WORKERS * ROUNDS
    assert all(0 <= seconds < 5 for seconds in other)


@pytest.mark.parametrize("algorithm", ["fedhp_plus", "adpsgd"])
def test_runs_of_other_algorithms_are_captured_too(algorithm: str, tmp_path: Path) -> None:
    settings = experiment(algorithm, rounds=3 if algorithm != "adpsgd" else 12)
    folder = run_network(settings, tmp_path / "run")
    (path,) = fedhp.export(folder, trace=tmp_path / "cluster.csv")
    trace = read_trace(path, workers=WORKERS)
    assert trace.per_link == (algorithm != "fedhp_plus")  # a tree keeps the pace of its slowest
    assert trace.step_time.keys() == set(range(WORKERS))
    assert bool(trace.presence) == (algorithm != "adpsgd")
    clock = replayed(experiment("dpsgd"), path, tmp_path / "twin")
    assert np.isfinite(clock).all()
    assert 0.15 < clock[-1] / ROUNDS < 3  # three steps of 0.1 s, and the rest


def test_a_shared_connection_is_captured_in_both_directions(tmp_path: Path) -> None:
    settings = experiment("pens", rounds=3, world={"bandwidth": {"sharing": True}})
    folder = run_network(settings, tmp_path / "run")
    (path,) = fedhp.export(folder, trace=tmp_path / "cluster.csv")
    trace = read_trace(path, workers=WORKERS)
    assert trace.uplink.keys() == trace.downlink.keys() == set(range(WORKERS))
    assert not trace.bandwidth
    with RunReader(folder) as run:
        clock = run.array("rounds", "clock")
        for worker in range(WORKERS):  # what was learned in a round is in the plan of the next
            speeds = [run.table("workers", round_index=n)["bandwidth"][worker] for n in (2, 3, 3)]
            known = [trace.uplink[worker].at(time) for time in (0.0, clock[0], clock[1])]
            assert known == pytest.approx([speed / 1e6 for speed in speeds])  # MB/s
    assert len(replayed(settings, path, tmp_path / "twin")) == 3


def test_absent_workers_are_absent_in_the_replay(real: Path, tmp_path: Path) -> None:
    """As after a worker that did not take part in rounds 2 and 3."""
    with RunReader(real) as run:
        rows = captured_rows(run)
        starts = [0.0, *run.array("rounds", "clock").tolist()]
    header = ",".join(CAPTURED_COLUMNS)
    gone = [
        (*row[:-2], 0, None) if row[1] == 1 and row[2] is None and row[0] in starts[1:3] else row
        for row in rows
    ]
    text = "\n".join(",".join("" if v is None else str(v) for v in row) for row in gone)
    file = tmp_path / "cluster.csv"
    file.write_text(f"{header}\n{text}\n", encoding="utf-8")
    replayed(experiment(), file, tmp_path / "twin")
    with RunReader(tmp_path / "twin") as run:
        there = [
            run.table("workers", round_index=number)["worker_time"][1] is not None
            for number in range(1, ROUNDS + 1)
        ]
        clock = [0.0, *run.array("rounds", "clock").tolist()]
    expected = [not starts[1] <= clock[number] < starts[3] for number in range(ROUNDS)]
    assert there == expected
    assert not all(there)


BAD: list[tuple[str, str, str]] = [
    ("bandwidth", "nan", "bandwidth is 'nan'"),
    ("bandwidth", "-3", "bandwidth is '-3'"),
    ("step_time", "fast", "step_time is 'fast'"),
    ("available", "2", "available is '2'"),
    ("other_time", "inf", "other_time is 'inf'"),
    ("worker", "9", "worker is '9'"),
    ("peer", "x", "peer is 'x'"),
    ("time", "", "time is ''"),
]


@pytest.mark.parametrize(("column", "value", "problem"), BAD)
def test_a_spoiled_capture_is_refused_with_its_line(
    command: Command, real: Path, tmp_path: Path, column: str, value: str, problem: str
) -> None:
    (path,) = fedhp.export(real, trace=tmp_path / "cluster.csv")
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    spoiled = next(number for number, row in enumerate(rows) if number > 5 and row[column])
    rows[spoiled][column] = value
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    outcome = command(
        "run", real / "experiment.toml", f"world.trace={path}", "--out", tmp_path / "r"
    )
    assert outcome.code == 2
    assert problem in outcome.err
    assert f"line {spoiled + 2}" in outcome.err
    assert "fix:" in outcome.err
    assert not (tmp_path / "r").exists()


def test_a_trace_of_fewer_workers_is_refused(real: Path, tmp_path: Path) -> None:
    (path,) = fedhp.export(real, trace=tmp_path / "cluster.csv")
    with pytest.raises(ConfigError, match=r"has no values for link .* but workers = 5") as caught:
        replayed(experiment(workers=5), path, tmp_path / "twin")
    assert "set workers to the number in the trace" in caught.value.fix
