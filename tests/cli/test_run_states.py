"""What `show` and `explain` say about a run whose process is gone, or whose record is damaged."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import fedhp
from cli.support import Command
from fedhp.record.lock import FolderLock, is_held
from fedhp.record.store import RECORD_FILE
from unit.report.runs import make_run, set_status


def test_running_only_while_a_process_holds_the_folder(command: Command, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", "dpsgd", rounds=3, stop_after=2)
    set_status(folder, "running")
    text = command("show", folder).out
    assert "interrupted, 2 of 3 rounds (its process is gone)" in text
    assert f"--out {folder} --resume" in text
    assert json.loads(command("show", folder, "--json").out)["status"] == "interrupted"
    with FolderLock(folder):
        assert is_held(folder)
        assert "running, 2 of 3 rounds\n" in command("show", folder).out
        assert fedhp.open_run(folder).summary().status == "running"
    assert is_held(folder) is False
    assert is_held(tmp_path / "nothing") is False


@pytest.mark.parametrize("name", ["show", "explain"])
def test_a_changed_number_is_noticed(command: Command, tmp_path: Path, name: str) -> None:
    folder = make_run(tmp_path / "run", "fedhp", rounds=2)
    assert command(name, folder).code == 0
    with closing(sqlite3.connect(folder / RECORD_FILE)) as connection, connection:
        connection.execute("UPDATE workers SET waiting_time = 7.5 WHERE round = 1 AND worker = 2")
    said = command(name, folder)
    assert said.code == 2
    assert "the record is damaged" in said.err
    assert "fix:" in said.err
    assert said.out == ""


@pytest.mark.parametrize("name", ["show", "explain"])
@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE meta SET value = replace(value, 'dpsgd', 'dpsgc') WHERE key = 'experiment'",
        "UPDATE meta SET key = 'seee' WHERE key = 'seed'",
        "UPDATE meta SET value = '\"finishfd\"' WHERE key = 'status'",
        "UPDATE test_metrics SET loss = loss + 1e-9 WHERE round = 1",
        "UPDATE wall SET seconds = seconds + 1 WHERE round = 1",
    ],
)
def test_damage_outside_the_numbers_is_noticed(
    command: Command, tmp_path: Path, name: str, damage: str
) -> None:
    folder = make_run(tmp_path / "run", "dpsgd", rounds=1)
    with closing(sqlite3.connect(folder / RECORD_FILE)) as connection, connection:
        assert connection.execute(damage).rowcount >= 1
    said = command(name, folder)
    assert said.code == 2
    assert "the record is damaged" in said.err


@pytest.mark.parametrize("name", ["show", "explain"])
def test_damaged_pages_are_noticed(command: Command, tmp_path: Path, name: str) -> None:
    folder = make_run(tmp_path / "run", "dpsgd", rounds=3, stop_after=2)
    record = folder / RECORD_FILE
    with closing(sqlite3.connect(record)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'final_worker_evaluations'"
        ).fetchone()
    content = bytearray(record.read_bytes())
    size = int.from_bytes(content[16:18], "big")
    content[(root - 1) * size : (root - 1) * size + 8] = b"damaged!"
    record.write_bytes(content)
    said = command(name, folder)
    assert said.code == 2
    assert "the record is damaged" in said.err


@pytest.mark.parametrize("key", ["numbers_digest", "content_digest"])
def test_a_finished_record_without_a_hash_is_named(
    command: Command, tmp_path: Path, key: str
) -> None:
    folder = make_run(tmp_path / "run", "dpsgd", rounds=1)
    with closing(sqlite3.connect(folder / RECORD_FILE)) as connection, connection:
        connection.execute("DELETE FROM meta WHERE key = ?", (key,))
    said = command("show", folder)
    assert said.code == 2
    assert f"the run is finished, but its {key} is missing" in said.err
