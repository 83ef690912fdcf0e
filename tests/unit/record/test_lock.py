"""One process per run folder."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fedhp.errors import RunError, StorageFull
from fedhp.record import lock
from fedhp.record.lock import LOCK_FILE, FolderLock
from subprocesses import ended_after


def assert_held(folder: Path) -> None:
    """Nobody else can lock this folder now."""
    with (folder / LOCK_FILE).open("r+") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_second_holder_is_refused_and_a_later_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "LOCK_PATIENCE", 0.0)
    with FolderLock(tmp_path), pytest.raises(RunError, match="another process") as caught:
        FolderLock(tmp_path).__enter__()
    assert str(tmp_path) in str(caught.value)
    assert caught.value.fix
    with FolderLock(tmp_path):
        assert_held(tmp_path)


def test_a_lock_left_behind_by_a_dead_process_does_not_count(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).write_text("")
    with FolderLock(tmp_path):
        assert_held(tmp_path)


HOLDER = """
import sys
from pathlib import Path
from fedhp.record.lock import FolderLock
with FolderLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_process_is_refused_until_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with ended_after(child):
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with monkeypatch.context() as hurry:
            hurry.setattr(lock, "LOCK_PATIENCE", 0.0)
            with pytest.raises(RunError, match="another process"):
                FolderLock(tmp_path).__enter__()
        child.kill()
        with FolderLock(tmp_path):
            assert_held(tmp_path)


def test_another_thread_may_release_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "LOCK_PATIENCE", 0.0)
    held = FolderLock(tmp_path).__enter__()
    assert_held(tmp_path)
    thread = threading.Thread(target=held.__exit__)
    thread.start()
    thread.join()
    with FolderLock(tmp_path):
        assert_held(tmp_path)


def test_a_folder_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="the lock cannot be written: No such file"):
        FolderLock(tmp_path / "absent").__enter__()
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("call", ["open", "flock"])
def test_a_full_disk_is_an_error(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os if call == "open" else fcntl, call, fail)
    with pytest.raises(StorageFull, match="the disk is full"):
        FolderLock(tmp_path).__enter__()
