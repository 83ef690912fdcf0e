"""Gathering records: what is missing is named, what is wrong refused, and it is all or nothing."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedhp.cluster.audit import merge as module
from fedhp.cluster.audit.merge import gather
from fedhp.cluster.history import History
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.errors import FedhpError, RunError, StorageFull
from fedhp.record.reader import find_runs
from fedhp.record.store import RECORD_FILE
from net.clusters import tiny
from net.leaders import ROUNDS, Leader, files_below, two_leaders

# --- what is missing -----------------------------------------------------------------------


def test_missing_rounds_are_named_with_who_led_then(tmp_path: Path) -> None:
    first = Leader(tmp_path / "c0", "c0").lead(3).rounds(1, 2).end()
    second = Leader(tmp_path / "c1", "c1").lead(5, first.at(2)).rounds(3, 4).end()
    third = Leader(tmp_path / "c2", "c2").lead(9, second.at(4)).rounds(5, 6).finish()
    out = tmp_path / "whole"
    with pytest.raises(RunError) as caught:
        gather([first.folder, third.folder], out)
    assert caught.value.problem == (
        "the folders do not have all rounds: rounds 3 to 4, led by a coordinator whose folder is "
        "not given (after c0 (epoch 3), before c2 (epoch 9), the last of them in epoch 5)"
    )
    with pytest.raises(RunError, match=r"rounds 1 to 2, .* not given \(before c1 \(epoch 5\)"):
        gather([second.folder, third.folder], out)
    with pytest.raises(RunError, match=r"rounds 1 to 4, .*before c2 \(epoch 9\)"):
        gather([third.folder], out)
    (second.folder / RECORD_FILE).unlink()
    with pytest.raises(RunError) as caught:
        gather([first.folder, second.folder, third.folder], out)
    assert caught.value.problem == (
        "the folders do not have all rounds: rounds 3 to 4, led by c1 (epoch 5), "
        f"not in {second.folder / RECORD_FILE}"
    )
    assert not out.exists()


def test_a_record_that_lost_rounds_is_not_filled_with_anothers(tmp_path: Path) -> None:
    first, second = two_leaders(tmp_path)
    with sqlite3.connect(second.folder / RECORD_FILE) as connection:
        connection.execute("DELETE FROM rounds WHERE round IN (4, 6)")
    connection.close()
    with pytest.raises(RunError, match=r"round 4, led by c1 .*; round 6, led by c1"):
        gather([first.folder, second.folder], tmp_path / "whole")


def test_a_finished_run_has_all_its_rounds(tmp_path: Path) -> None:
    first, second = two_leaders(tmp_path)
    second.forget(("commit", 6))  # and no later coordinator says so
    with pytest.raises(RunError, match=r"round 6, led by .* \(after c1 \(epoch 8\)\)"):
        gather([first.folder, second.folder], tmp_path / "whole")


# --- what is refused -----------------------------------------------------------------------

Case = Callable[[Path], list[Path]]  # from a folder with c0 and c1: the folders to give


def another_run(folder: Path) -> list[Path]:
    Leader(folder / "x", "x").lead(3, run="b" * 32).rounds(1, 2).end()
    return [folder / "c0", folder / "c1", folder / "x"]


def a_worker_of_another_run(folder: Path) -> list[Path]:
    (folder / "w").mkdir()
    history = History(folder / "w", "w1")
    history.append("join", {"run": "b" * 32, "epoch": 3, "worker": 1})
    history.close()
    return [folder / "c0", folder / "c1", folder / "w"]


def another_experiment(folder: Path) -> list[Path]:
    shutil.rmtree(folder / "c1")
    other = tiny(workers=3, rounds=ROUNDS, training={"local_steps": 4})
    Leader(folder / "c1", "c1", experiment=other).lead(8, Attempt(3, 3, 1)).rounds(4, 6).end()
    return [folder / "c0", folder / "c1"]


def another_record(folder: Path) -> list[Path]:
    Leader(folder / "x", "x").lead(3, run="b" * 32).end()
    shutil.copy(folder / "x" / RECORD_FILE, folder / "c1" / RECORD_FILE)
    return [folder / "c0", folder / "c1"]


def the_same_folder_twice(folder: Path) -> list[Path]:
    (folder / "link").symlink_to(folder / "c1")
    return [folder / "c0", folder / "c1", folder / "link"]


def a_folder_and_one_inside(folder: Path) -> list[Path]:
    return [folder, folder / "c0"]


def a_copy(folder: Path) -> list[Path]:
    shutil.copytree(folder / "c0", folder / "copy")
    return [folder / "c0", folder / "c1", folder / "copy"]


def no_folder(folder: Path) -> list[Path]:
    return [folder / "c0", folder / "nowhere"]


def a_file(folder: Path) -> list[Path]:
    return [folder / "c0", folder / "c1" / RECORD_FILE]


def no_history(folder: Path) -> list[Path]:
    (folder / "c1" / "history-c1.jsonl").unlink()
    return [folder / "c0", folder / "c1"]


def nobody_led(folder: Path) -> list[Path]:
    (folder / "c1" / "history-c1.jsonl").write_bytes(b"")
    return [folder / "c1"]


def no_record(folder: Path) -> list[Path]:
    (folder / "c0" / RECORD_FILE).unlink()
    return [folder / "c0"]


def no_record_of_one_without_rounds(folder: Path) -> list[Path]:
    Leader(folder / "c2", "c2").lead(11, Attempt(8, 6, 1)).end()
    (folder / "c2" / RECORD_FILE).unlink()
    return [folder / "c0", folder / "c1", folder / "c2"]


def strange_lines(folder: Path) -> list[Path]:
    with (folder / "c1" / "history-c1.jsonl").open("ab") as stream:
        stream.write(b'{"a": 1}\n')
    return [folder / "c0", folder / "c1"]


def a_round_beyond_the_end(folder: Path) -> list[Path]:
    file = folder / "c1" / "history-c1.jsonl"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('"round": 6,', f'"round": {10**15},'), encoding="utf-8")
    return [folder / "c0", folder / "c1"]


def a_damaged_record(folder: Path) -> list[Path]:
    content = (folder / "c1" / RECORD_FILE).read_bytes()
    (folder / "c1" / RECORD_FILE).write_bytes(content[:5000])
    return [folder / "c0", folder / "c1"]


def no_experiment(folder: Path) -> list[Path]:
    with sqlite3.connect(folder / "c1" / RECORD_FILE) as connection:
        connection.execute("UPDATE meta SET value = '7' WHERE key = 'experiment'")
    connection.close()
    return [folder / "c0", folder / "c1"]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (another_run, r"x belongs to another run \(b+\) than .*c0 \(a+\)"),
        (a_worker_of_another_run, r"history-w1.jsonl belongs to another run"),
        (another_experiment, r"c1: training.local_steps is 4, but 3 in .*c0"),
        (another_record, r"record.sqlite belongs to another run \(b+\) than the history"),
        (the_same_folder_twice, r"link is given twice"),
        (a_folder_and_one_inside, r"history-c0.jsonl is also in "),
        (a_copy, r"c0 and .*copy both have epoch 3"),
        (no_folder, r"nowhere does not exist"),
        (a_file, r"record.sqlite is not a folder"),
        (no_history, r"c1 has no history-NAME.jsonl"),
        (nobody_led, r"no history of a coordinator that led"),
        (no_record, r"there is no record.sqlite"),
        (no_record_of_one_without_rounds, r"has the history of c2, but no record.sqlite"),
        (strange_lines, r"history-c1.jsonl: has a line that no coordinator or worker writes"),
        (a_round_beyond_the_end, r"has a round 10{15}, but the experiment has only 6"),
        (a_damaged_record, r"damaged|cannot be used"),
        (no_experiment, r"damaged: it has no experiment"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_bad_folders_are_refused_before_anything_is_written(
    case: Case, message: str, tmp_path: Path
) -> None:
    two_leaders(tmp_path / "in")
    folders = case(tmp_path / "in")
    out = tmp_path / "new" / "whole"
    with pytest.raises(FedhpError, match=message) as caught:
        gather(folders, out)
    assert caught.value.allowed
    assert caught.value.fix
    assert not out.parent.exists()


def test_only_a_new_folder_is_written(tmp_path: Path) -> None:
    first, second = two_leaders(tmp_path / "in")
    out = tmp_path / "whole"
    out.mkdir()
    with pytest.raises(RunError, match="exists already"):
        gather([first.folder, second.folder], out)
    assert list(out.iterdir()) == []
    with pytest.raises(RunError, match=r"is inside .*, which is read"):
        gather([tmp_path / "in"], tmp_path / "in" / "whole")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        gather([tmp_path / "in"], tmp_path / "file" / "whole")


# --- all or nothing ------------------------------------------------------------------------


def test_until_the_last_step_there_is_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_leaders(tmp_path / "in")
    out, seen = tmp_path / "new" / "whole", []

    def rename(source: Path, target: Path) -> None:
        """What a kill would leave at this moment."""
        if target != out:
            os.rename(source, target)
            return
        assert not out.exists()
        with pytest.raises(RunError, match="holds no run"):
            find_runs(out.parent)
        seen.append(sorted(files_below(source)))
        os.rename(source, target)

    monkeypatch.setattr(os, "replace", rename)
    gather([tmp_path / "in"], out)
    assert seen == [sorted(files_below(out))]
    assert find_runs(out.parent) == [out]
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        ("write_file", OSError(errno.ENOSPC, "No space left"), "the disk is full"),
        ("_copy_histories", StorageFull("record.sqlite: full"), "the disk is full"),
        ("_copy_histories", KeyboardInterrupt("stopped"), "stopped"),
    ],
)
def test_what_fails_leaves_nothing_behind(
    function: str,
    error: BaseException,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two_leaders(tmp_path / "in")

    def fail(*arguments: Any) -> None:
        raise error

    monkeypatch.setattr(module, function, fail)
    with pytest.raises((StorageFull, KeyboardInterrupt), match=message) as caught:
        gather([tmp_path / "in"], tmp_path / "new" / "whole")
    assert "--resume" not in str(caught.value)
    assert list((tmp_path / "new").iterdir()) == []
