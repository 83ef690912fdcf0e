"""Files and folders: whole or absent, with the right permissions, and one clear error."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from disks import mounted
from fedhp.errors import DataError, RunError, StorageFull
from fedhp.files import (
    PRIVATE_FILE,
    UNFINISHED,
    check_free_space,
    make_folder,
    new_folder,
    storage_errors,
    write_file,
    write_parts,
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("shared", [False, True])
def test_a_file_is_replaced_or_not(tmp_path: Path, shared: bool) -> None:
    path = tmp_path / "x"
    write_file(path, b"one", shared=shared)
    write_file(path, b"two", shared=shared)
    with pytest.raises(FileExistsError):
        write_file(path, b"three", replace=False, shared=shared)
    write_file(tmp_path / "y", b"new", replace=False, shared=shared)
    write_parts(tmp_path / "z", [b"a", memoryview(b"bc")])
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {
        "x": b"two",
        "y": b"new",
        "z": b"abc",
    }


@pytest.mark.parametrize("shared", [False, True])
def test_permissions(tmp_path: Path, shared: bool) -> None:
    mask = os.umask(0o022)
    try:
        write_file(tmp_path / "plain", b"", shared=shared)
        write_file(tmp_path / "secret", b"", mode=0o600, shared=shared)
        with new_folder(tmp_path / "folder"):
            pass
    finally:
        os.umask(mask)
    assert mode(tmp_path / "plain") == 0o644
    assert mode(tmp_path / "secret") == 0o600
    assert mode(tmp_path / "folder") == 0o755


def test_a_private_folder_and_one_that_is_the_users_own(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        make_folder(tmp_path / "runs" / "new", option="--out", private=True)
        empty, own = tmp_path / "empty", tmp_path / "own"
        for folder in (empty, own):
            folder.mkdir()
        (own / "notes").touch()
        (own / "x.new").touch()  # as an earlier process was killed
        for folder in (empty, own):
            make_folder(folder, option="--out", private=True)
        write_file(own / "x", b"", mode=PRIVATE_FILE)
    finally:
        os.umask(mask)
    assert mode(tmp_path / "runs" / "new") == mode(empty) == 0o700
    assert mode(tmp_path / "runs") == mode(own) == 0o755
    assert mode(own / "notes") == 0o644
    assert mode(own / "x") == 0o600


def test_all_is_synced_before_it_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, str]] = []

    def fsync(handle: int) -> None:
        calls.append(("sync", os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))))

    def replace(source: Path, target: Path) -> None:
        calls.append(("rename", target.name))
        os.rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write_file(tmp_path / "x", b"one")
    with new_folder(tmp_path / "folder"):
        calls.append(("fill", "folder"))
    parent = ("sync", tmp_path.name)
    assert calls == [
        *(("sync", "x.new"), ("rename", "x"), parent),
        *(("fill", "folder"), ("sync", UNFINISHED), ("rename", "folder"), parent),
    ]


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "folder"

    def fill(folder: Path) -> None:
        (folder / "x").write_bytes(b"x")
        assert not target.exists()
        raise KeyError

    with pytest.raises(KeyError), new_folder(target) as folder:
        fill(folder)
    assert list(target.parent.iterdir()) == []
    target.mkdir()
    with new_folder(target) as folder:
        (folder / "x").write_bytes(b"x")
    assert [path.name for path in target.parent.iterdir()] == ["folder"]
    assert (target / "x").read_bytes() == b"x"
    with pytest.raises(OSError, match="not empty"), new_folder(target):
        pass
    assert (target / "x").read_bytes() == b"x"
    assert [path.name for path in target.parent.iterdir()] == ["folder"]


def test_a_folder_that_a_kill_left_is_marked_as_unfinished(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from fedhp.files import new_folder\n"
        "with new_folder(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'x').write_bytes(b'x'); os._exit(9)"
    )
    child = subprocess.run([sys.executable, "-c", program, str(tmp_path / "f")], check=False)
    assert child.returncode == 9
    assert not (tmp_path / "f").exists()
    (left,) = tmp_path.rglob("x")
    assert UNFINISHED in left.parts


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_named(code: int) -> None:
    with pytest.raises(StorageFull) as caught, storage_errors("--out r", recovery="try again"):
        raise OSError(code, os.strerror(code))
    assert str(caught.value).startswith("--out r: cannot be written: the disk is full")
    assert os.strerror(code) in caught.value.problem
    assert caught.value.fix == "free some space and try again"


def test_other_errors_name_the_path_the_cause_and_the_option() -> None:
    with (
        pytest.raises(DataError, match=r"f: the data cannot be written: Permission denied") as no,
        storage_errors("f", what="the data", option="--to", kind=DataError),
    ):
        raise PermissionError(errno.EACCES, "Permission denied")
    assert no.value.fix == "choose another --to, or change its permissions"
    with pytest.raises(RunError, match="Read-only") as read_only, storage_errors("f"):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    assert read_only.value.fix == "choose another folder, or mount it writable"


def test_a_folder_that_cannot_be_made_is_an_error_with_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"--state .*/file/x: cannot be written") as caught:
        make_folder(tmp_path / "file" / "x", option="--state")
    assert "choose another --state" in caught.value.fix
    make_folder(tmp_path / "a" / "b", option="--state")
    make_folder(tmp_path / "a" / "b", option="--state")
    assert (tmp_path / "a" / "b").is_dir()


def test_a_disk_that_fills_up_keeps_the_old_file(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "64k") as disk:
        write_file(disk / "x", b"old")
        with pytest.raises(StorageFull), storage_errors(disk / "x"):
            write_parts(disk / "x", (b"x" * 10_000 for _ in range(20)))
        assert [path.name for path in disk.iterdir()] == ["x"]
        assert (disk / "x").read_bytes() == b"old"


def test_free_space_is_checked_with_some_to_spare() -> None:
    check_free_space("d", 5_000_000, free=5_000_000, what="the run", option="--out")
    with pytest.raises(StorageFull, match="the run needs about 5 MB, 6 MB are free") as caught:
        check_free_space(
            "d", 5_000_000, free=6_000_000, what="the run", option="--out", spare=2_000_000
        )
    assert "2 MB to spare" in caught.value.allowed
    assert "--out" in caught.value.fix
