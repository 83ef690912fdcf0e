"""One process per run folder."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from fedhp.errors import RunError, StorageFull
from fedhp.record import lock
from fedhp.record.lock import FILE, FolderLock


def test_a_second_holder_is_refused_and_a_later_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "PATIENCE", 0.0)
    with FolderLock(tmp_path), pytest.raises(RunError, match="another process") as caught:
        FolderLock(tmp_path).__enter__()
    assert str(tmp_path) in str(caught.value)
    assert caught.value.fix
    with FolderLock(tmp_path):
        pass


def test_a_lock_left_behind_by_a_dead_process_does_not_count(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("")
    with FolderLock(tmp_path):
        pass


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be locked: No such file"):
        FolderLock(tmp_path / "absent").__enter__()


@pytest.mark.parametrize("call", ["open", "flock"])
def test_a_full_disk_is_told(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os if call == "open" else fcntl, call, fail)
    with pytest.raises(StorageFull, match="the disk is full"):
        FolderLock(tmp_path).__enter__()
