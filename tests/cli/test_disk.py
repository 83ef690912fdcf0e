"""A full disk: one message, exit code 2, earlier rounds readable, and --resume works."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedhp
from cli.support import Command, digest_of, write
from disks import mounted
from fedhp.engine.runs import run as engine_run
from fedhp.engine.runs.run import start_run
from fedhp.errors import StorageFull
from fedhp.record.checkpoint import write_checkpoint
from fedhp.record.store import Store
from fedhp.types import RoundRecord


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A separate file system with little space."""
    with mounted(tmp_path / "disk", "1500k") as place:
        yield place


def fill(place: Path) -> Path:
    """Use up all space."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as stream:
        for size in (65536, 4096, 512, 1):
            try:
                while True:
                    stream.write(b"\0" * size)
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017
    return filler


@pytest.mark.parametrize("seconds", [0, 1000])
def test_a_disk_that_fills_up(seconds: int, small_disk: Path, tmp_path: Path) -> None:
    """With checkpoints all the time it is one of them that fails, else a record."""
    experiment = fedhp.load_experiment(write(tmp_path, rounds=40, checkpoint={"seconds": seconds}))
    whole = digest_of(fedhp.run(experiment, tmp_path / "whole").folder)
    place = small_disk / "run"
    rounds = start_run(experiment, place).rounds()
    done = [next(rounds).round_index for _ in range(5)]
    filler = fill(small_disk)
    with pytest.raises(StorageFull) as caught:
        done.extend(record.round_index for record in rounds)
    assert "full" in str(caught.value)
    assert str(place) in str(caught.value)
    assert "--resume" in caught.value.fix
    with fedhp.open_run(place) as run:
        assert run.rounds_done == done[-1] >= 5
        assert len(run.table("workers")["round"]) == 6 * run.rounds_done
    filler.unlink()
    with fedhp.run(experiment, place, resume=True) as run:
        assert run.digest() == whole


def test_a_disk_that_is_full_from_the_start(
    command: Command, small_disk: Path, tmp_path: Path
) -> None:
    fill(small_disk)
    for what in ("run", "compare"):
        file = write(tmp_path, compare={"algorithms": ["dpsgd"]})
        result = command(what, file, "--out", small_disk / "run")
        assert result.code == 2
        assert "full" in result.err or "MB are free" in result.err
        assert "fix: free some space" in result.err
        assert [path.name for path in small_disk.iterdir()] == ["filler"]


def test_a_run_that_cannot_fit_is_refused(
    command: Command, small_disk: Path, tmp_path: Path
) -> None:
    result = command("run", write(tmp_path), "rounds=1000000", "--out", small_disk / "run")
    assert result.code == 2
    assert "the run needs about" in result.err
    assert list(small_disk.iterdir()) == []


def test_a_record_that_cannot_be_written(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, checkpoint={"seconds": 0})
    assert command("run", file, "--out", tmp_path / "whole").code == 0
    commit = Store.commit

    def full(self: Store, record: RoundRecord) -> None:
        if record.round_index == 3:
            inner = self._connection
            self._connection = FullDisk(inner)  # type: ignore[assignment]
            try:
                commit(self, record)
            finally:
                self._connection = inner
        commit(self, record)

    monkeypatch.setattr(Store, "commit", full)
    result = command("run", file, "--out", tmp_path / "r")
    assert result.code == 2
    assert "database or disk is full" in result.err
    assert "fix: free some space and resume the run with --resume" in result.err
    monkeypatch.undo()
    with fedhp.open_run(tmp_path / "r") as run:
        assert run.rounds_done == 2
    assert command("run", file, "--out", tmp_path / "r", "--resume").code == 0
    assert digest_of(tmp_path / "r") == digest_of(tmp_path / "whole")


class FullDisk:
    """A connection that cannot insert."""

    def __init__(self, inner: sqlite3.Connection) -> None:
        self.inner = inner

    def executemany(self, text: str, rows: Any) -> Any:
        raise sqlite3.OperationalError("database or disk is full")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, 2), (errno.EDQUOT, 2), (errno.EIO, 2)])
def test_a_checkpoint_that_cannot_be_written(
    number: int, code: int, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, rounds=5, checkpoint={"seconds": 0})
    assert command("run", file, "--out", tmp_path / "whole").code == 0
    real, calls = write_checkpoint, []

    def fail(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 3:
            raise OSError(number, os.strerror(number))
        real(*arguments)

    monkeypatch.setattr(engine_run, "write_checkpoint", fail)
    monkeypatch.setattr(engine_run, "CHECKPOINT_SHARE", 1e9)
    result = command("run", file, "--out", tmp_path / "r")
    assert result.code == code
    assert os.strerror(number) in result.err
    assert "fix:" in result.err
    monkeypatch.undo()
    with fedhp.open_run(tmp_path / "r") as run:
        assert run.rounds_done == 3
    assert command("run", file, "--out", tmp_path / "r", "--resume").code == 0
    assert digest_of(tmp_path / "r") == digest_of(tmp_path / "whole")
