"""Ctrl-C saves and exits 130; a killed parent takes its jobs with it; --resume is bit-exact."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from subprocess import TimeoutExpired

import pytest

import fedhp
from cli.support import (
    Command,
    children_of,
    digest_of,
    ended,
    interrupt,
    is_alive,
    rounds_in,
    start,
    write,
)
from subprocesses import ForkedCommand, ended_after
from waiting import wait_until

LONG = {"rounds": 80, "training": {"local_steps": 6}, "checkpoint": {"seconds": 0.1}}
ALGORITHMS = "ldsgd,adpsgd"


def comparison(folder: Path, *more: str) -> tuple[Path, tuple[object, ...], list[Path]]:
    """A long one: its file, its options, and where its runs will be."""
    out = folder / "out"
    options = ("--out", out, "--algorithms", ALGORITHMS, "--json", "--no-figures", *more)
    return write(folder, **LONG), options, [out / name / "seed-0" for name in ALGORITHMS.split(",")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_asked_to_stop(
    number: signal.Signals, command: Command, tmp_path: Path
) -> None:
    file, out = write(tmp_path, **LONG), tmp_path / "run"
    with ForkedCommand("run", file, "--out", out, "--json") as process:
        wait_until(lambda: rounds_in(out) >= 3, "three rounds")
        process.send_signal(number)
        result = ended(process)
    assert result.code == 130
    assert result.out == ""
    assert "stopped after round" in result.err
    assert "--resume" in result.err
    with fedhp.open_run(out) as run:
        assert run.meta("status") == "interrupted"
        assert 3 <= run.rounds_done < 80
        assert f"stopped after round {run.rounds_done} of 80" in result.err
    assert command("run", file, "--out", out, "--resume").code == 0
    assert command("run", file, "--out", tmp_path / "whole").code == 0
    assert digest_of(out) == digest_of(tmp_path / "whole")


def test_stopping_before_there_is_anything_to_save(tmp_path: Path) -> None:
    fifo = tmp_path / "slow.toml"
    os.mkfifo(fifo)
    # Opening the other end returns when the command has opened the file. A signal in the instant
    # before it sleeps in its read is heard when the read ends: after a while, we end it.
    with ended_after(start("run", fifo, "--out", tmp_path / "run")) as process:
        with fifo.open("w"), contextlib.suppress(TimeoutExpired):
            interrupt(process)
            process.wait(timeout=20)
        result = ended(process)
    assert result.code == 130
    assert result.err.startswith("stopped")
    assert not (tmp_path / "run").exists()


def test_a_comparison_that_is_asked_to_stop(command: Command, tmp_path: Path) -> None:
    file, options, places = comparison(tmp_path)
    with ForkedCommand("compare", file, *options) as process:
        wait_until(lambda: min(map(rounds_in, places)) >= 2, "two rounds of each")
        jobs = children_of(process.pid)
        assert jobs
        interrupt(process)
        result = ended(process)
    assert result.code == 130
    assert result.out == ""
    assert "every run is saved" in result.err
    assert not any(map(is_alive, jobs))
    statuses = []
    for place in places:
        with fedhp.open_run(place) as run:
            statuses.append(run.meta("status"))
    assert set(statuses) <= {"interrupted", "finished"}
    assert "interrupted" in statuses
    assert command("compare", file, *options, "--resume").code == 0
    check_digests(tmp_path, file, places)


@pytest.mark.slow
def test_a_comparison_whose_parent_is_killed(command: Command, tmp_path: Path) -> None:
    file, options, places = comparison(tmp_path)
    with ForkedCommand("compare", file, *options) as process:
        wait_until(lambda: min(map(rounds_in, places)) >= 2, "two rounds of each")
        jobs = children_of(process.pid)
        assert len(jobs) == 2
        process.kill()
        wait_until(lambda: not any(map(is_alive, jobs)), "the jobs end by themselves")
    assert command("compare", file, *options, "--resume").code == 0
    check_digests(tmp_path, file, places)


@pytest.mark.slow
def test_a_job_that_is_killed(command: Command, tmp_path: Path) -> None:
    """The run it worked on is reported, the others are carried out by another job."""
    file, options, places = comparison(tmp_path, "--jobs", "1")
    with ForkedCommand("compare", file, *options) as process:
        wait_until(lambda: rounds_in(places[0]) >= 2, "two rounds of the first")
        (job,) = children_of(process.pid)
        os.kill(job, signal.SIGKILL)
        result = ended(process)
    assert result.code == 2
    assert "ldsgd, seed 0: the job process ended unexpectedly" in result.err
    assert "--resume" in result.err
    assert [run["status"] for run in result.json()["runs"]] == ["interrupted", "finished"]
    assert command("compare", file, *options, "--resume").code == 0
    check_digests(tmp_path, file, places)


def check_digests(folder: Path, file: Path, places: list[Path]) -> None:
    """Every run equals one that nobody disturbed."""
    for place in places:
        name = place.parent.name
        experiment = fedhp.load_experiment(file, f"algorithm={{name = '{name}'}}")
        with fedhp.run(experiment, folder / f"whole-{name}") as whole:
            assert whole.digest() == digest_of(place)
