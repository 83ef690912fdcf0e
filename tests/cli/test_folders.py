"""The default folder: every command gets its own, and leaves none behind when it is refused."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import fedhp
from cli.support import Command, ended, start, write
from fedhp.cli.parameters import choose_folder, remove_unused_folders
from fedhp.config import load
from fedhp.engine.prepare import prepare
from fedhp.engine.runs import run as runs
from fedhp.errors import RunError

RACERS = 8


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_racing_commands_choose_different_folders() -> None:
    together = threading.Barrier(RACERS)

    def choose(_: int) -> Path:
        together.wait(timeout=30)
        return choose_folder(None, Path("x.toml"), resume=False)

    with ThreadPoolExecutor(RACERS) as pool:
        chosen = list(pool.map(choose, range(RACERS)))
    assert sorted(chosen) == [Path(f"runs/x-{number}") for number in range(1, RACERS + 1)]
    remove_unused_folders()
    assert not Path("runs").exists()


def test_two_runs_at_once_both_finish(tmp_path: Path) -> None:
    file = write(tmp_path, rounds=1)
    said = [ended(process) for process in [start("run", file), start("run", file)]]
    assert [outcome.code for outcome in said] == [0, 0], [outcome.err for outcome in said]
    folders = [Path(f"runs/tiny-{number}") for number in (1, 2)]
    for number in folders:
        assert sum(f"run: {number}\n" in outcome.out for outcome in said) == 1
    assert len({fedhp.open_run(folder).digest() for folder in folders}) == 1


def test_a_refused_command_leaves_no_folder(command: Command, tmp_path: Path) -> None:
    file = write(tmp_path)
    assert command("run", file, "roundz=3").code == 2
    assert not Path("runs").exists()
    Path("runs").mkdir()
    assert command("run", file, "data.name=nothing").code == 2
    assert list(Path("runs").iterdir()) == []


def test_resume_takes_the_last_folder_that_has_files(command: Command, tmp_path: Path) -> None:
    file = write(tmp_path, rounds=1)
    assert command("run", file).code == 0
    Path("runs/tiny-2").mkdir()  # of a command that was killed before its run began
    said = command("run", file, "--resume")
    assert said.code == 0
    assert "run: runs/tiny-1\n" in said.out


def test_the_same_out_at_the_same_time_is_refused_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = load(write(tmp_path, rounds=1))

    def prepare_while_another_starts(*arguments: object, **options: object) -> object:
        monkeypatch.setattr(runs, "prepare", prepare)
        runs.start_run(experiment, "same")
        return prepare(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(runs, "prepare", prepare_while_another_starts)
    with pytest.raises(RunError, match="already holds a run"):
        runs.start_run(experiment, "same")
