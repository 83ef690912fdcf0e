"""Sweeps and comparisons that are killed, and whole runs as Ray tasks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.support import Command, digest_of, is_alive, rounds_in, start, write
from fedhp.engine.runs import ray_job
from fedhp.engine.runs.ray_job import MAX_LOSSES, RayJob, run_task
from subprocesses import ForkedCommand, ended_after
from waiting import wait_until

GRID = ("training.learning_rate=0.05,0.2", "--seeds", "0-1", "--no-figures")


def sweep_folders(out: Path) -> list[Path]:
    return [
        out / f"training.learning_rate={rate}" / f"seed-{seed}"
        for rate in ("0.05", "0.2")
        for seed in (0, 1)
    ]


def check_runs(command: Command, file: Path, out: Path) -> None:
    """Every run equals one of `fedhp run`."""
    for folder in sweep_folders(out):
        rate, seed = folder.parent.name, folder.name.removeprefix("seed-")
        alone = out.parent / f"{rate}-{seed}"
        assert command("run", file, rate, f"seed={seed}", "--out", alone).code == 0
        assert digest_of(folder) == digest_of(alone)


@pytest.mark.slow
def test_a_sweep_that_is_killed_is_resumed(command: Command, tmp_path: Path) -> None:
    file, out = write(tmp_path, rounds=60, checkpoint={"seconds": 0.0}), tmp_path / "sweep"
    with ForkedCommand("sweep", file, *GRID, "--out", out, "--jobs", "1") as process:
        wait_until(lambda: rounds_in(sweep_folders(out)[1]) >= 2, "the second run")
        process.kill()
    assert rounds_in(sweep_folders(out)[0]) == 60
    first = (sweep_folders(out)[0] / "record.sqlite").stat().st_mtime_ns
    again = command("sweep", file, *GRID, "--out", out, "--resume")
    assert again.code == 0, again.err
    assert (sweep_folders(out)[0] / "record.sqlite").stat().st_mtime_ns == first
    check_runs(command, file, out)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_sweep_on_ray_is_killed_and_resumed(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
    file, out = write(tmp_path, rounds=60, checkpoint={"seconds": 0.0}), tmp_path / "sweep"
    options = (*GRID, "--out", out, "--ray", "local")
    with ended_after(start("sweep", file, *options, "--jobs", "1")) as process:
        wait_until(lambda: rounds_in(sweep_folders(out)[1]) >= 2, "the second run", seconds=900)
        process.kill()
        process.wait()
        assert not is_alive(process.pid)
    again = command("sweep", file, *options, "--resume", "--json")
    assert again.code == 0, again.err
    finished = [run["status"] for each in again.json()["combinations"] for run in each["runs"]]
    assert finished == ["finished"] * 4
    check_runs(command, file, out)


def test_ray_that_is_not_installed(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    out = tmp_path / "out"
    refused = command("sweep", write(tmp_path), *GRID, "--ray", "local", "--out", out)
    assert refused.code == 2
    assert "or remove --ray" in refused.err
    assert not out.exists()


class FakeRay:
    """Tasks that yield what a script says, here and now."""

    class exceptions:
        class RayError(Exception):
            pass

        class RayTaskError(RayError):
            cause = None

    def __init__(self, *scripts: list[Any]) -> None:
        self.scripts, self.started = list(scripts), 0

    def remote(self, **settings: Any) -> Any:
        assert settings["max_retries"] == 0
        return lambda function: SimpleNamespace(remote=self._start)

    def _start(self, *arguments: Any) -> Iterator[Any]:
        self.started += 1
        return iter(self.scripts.pop(0))

    def get(self, reference: Any) -> Any:
        if isinstance(reference, Exception):
            raise reference
        return reference

    def cancel(self, task: Any, *, force: bool) -> None:
        assert force


def message(folder: Path) -> dict[str, Any]:
    tables = {"executors": "auto", "device": "cpu"}
    return {"experiment": tables, "folder": str(folder), "label": "x", "file": "", "executors": 1}


def test_a_task_that_is_lost_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_job, "is_run", lambda folder: True)
    lost = FakeRay.exceptions.RayError("its machine is gone")
    ray = FakeRay([{"event": "round"}, lost], [{"event": "round"}, {"event": "finished"}])
    events = list(RayJob(ray).run(message(tmp_path / "run")))
    assert [event["event"] for event in events] == ["round", "round", "finished"]
    # Without end it is not tried: then there is no last event, which the campaign reports.
    ray = FakeRay(*[[lost] for _ in range(2 * MAX_LOSSES)])
    assert list(RayJob(ray).run(message(tmp_path / "run"))) == []
    assert ray.started == MAX_LOSSES


def test_a_stopped_job_starts_nothing_more(tmp_path: Path) -> None:
    job = RayJob(ray := FakeRay([{"event": "finished"}]))
    job.stop()
    assert list(job.run(message(tmp_path / "run"))) == []
    assert ray.started == 0


def test_a_disk_that_is_not_shared_is_noticed(tmp_path: Path) -> None:
    (event,) = run_task(message(tmp_path / "elsewhere" / "run"), [], None)
    assert event["event"] == "failed"
    assert "all machines share" in event["message"]
    (event,) = RayJob(FakeRay([{"event": "finished"}])).run(message(tmp_path / "run"))
    assert "not there on this machine" in event["message"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--ray", "127.0.0.1:1"), "nothing answers at '127.0.0.1:1'"),
        (("--ray", "nowhere"), "it is not HOST:PORT"),
        (("engine=ray", "--ray", "local"), "spreads the workers of one run"),
    ],
)
@pytest.mark.parametrize("name", ["sweep", "compare"])
def test_bad_addresses_are_refused_before_any_run(
    command: Command, tmp_path: Path, name: str, arguments: tuple[str, ...], words: str
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
    grid = ("data.skew=0.5,0.8",) if name == "sweep" else ("--algorithms", "dpsgd")
    out = tmp_path / "out"
    refused = command(name, write(tmp_path), *grid, *arguments, "--out", out)
    assert refused.code == 2
    assert words in refused.err
    assert "command line: --ray: " in refused.err
    assert not out.exists()
