"""Runs that appear, grow, disappear or are damaged while the page is open."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from dash.conftest import FIRST, SECOND
from dash.growing import GrowingRun
from dash.serving import AppClient, client_of
from fedhp.record.store import RECORD_FILE, Store

PATHS = (
    "run",
    "summary",
    "progress",
    "decisions",
    "workers",
    "worker?worker=1",
    "round?round=1",
    "explain?round=1",
    "events",
    "whatif?planner=dpsgd",
)


def entries(client: AppClient) -> dict[str, Any]:
    return {entry["run"]: entry for entry in client.get("/api/runs").json()["runs"]}


def ask(client: AppClient, path: str, run: str) -> int:
    join = "&" if "?" in path else "?"
    return client.get(f"/api/{path}{join}run={run}").status_code


def test_a_run_appears_grows_and_ends(runs: Path) -> None:
    client = client_of(runs)
    assert set(entries(client)) == {FIRST, SECOND}
    growing = GrowingRun(runs / FIRST, runs / "new")
    assert entries(client)["new"]["status"] == "running"
    assert next(iter(entries(client))) == "new"  # live ones first
    for rounds in (1, 2, 3):
        growing.commit()
        entry = entries(client)["new"]
        assert (entry["rounds"], entry["live"]) == (rounds, True)
        progress = client.get(f"/api/progress?run=new&after={rounds - 1}").json()
        assert progress["rounds"]["round"] == [rounds]
        assert [client.get("/api/workers?run=new").json()["round"]] == [rounds]
    growing.end("finished")
    entry = entries(client)["new"]
    assert (entry["status"], entry["live"]) == ("finished", False)
    assert not list((runs / "new").glob(f"{RECORD_FILE}-*"))  # one plain file, as without a page


def test_a_run_whose_process_was_killed_is_interrupted(runs: Path) -> None:
    client = client_of(runs)
    growing = GrowingRun(runs / FIRST, runs / "new")
    growing.commit(2)
    assert entries(client)["new"]["live"]
    growing.end("")
    client = client_of(runs)
    assert entries(client)["new"]["status"] == "interrupted"
    kinds = [event["kind"] for event in client.get("/api/events?run=new").json()["events"]]
    assert kinds[-1] == "interrupted"


def test_a_resumed_run_begins_its_events_again(runs: Path) -> None:
    client = client_of(runs)
    growing = GrowingRun(runs / FIRST, runs / "new")
    growing.commit(5)
    before = client.get("/api/events?run=new").json()
    growing.truncate(1)
    after = client.get("/api/events?run=new").json()
    assert after["log"] != before["log"]
    assert all(event["round"] <= 1 for event in after["events"])
    growing.end("finished")


@pytest.mark.parametrize("path", PATHS)
def test_a_removed_run_is_not_found(runs: Path, path: str) -> None:
    client = client_of(runs)
    assert ask(client, path, FIRST) == 200
    shutil.rmtree(runs / FIRST)
    assert ask(client, path, FIRST) == 404
    assert set(entries(client)) == {SECOND}


def test_the_whole_folder_may_go_and_come_back(runs: Path) -> None:
    client = client_of(runs)
    runs.rename(runs.parent / "elsewhere")
    assert entries(client) == {}
    (runs.parent / "elsewhere").rename(runs)
    assert set(entries(client)) == {FIRST, SECOND}


def damage_header(record: Path) -> None:
    record.write_bytes(b"not a database" + record.read_bytes()[14:])


def cut_in_half(record: Path) -> None:
    record.write_bytes(record.read_bytes()[: record.stat().st_size // 2])


def empty(record: Path) -> None:
    record.write_bytes(b"")


def overwrite_pages(record: Path) -> None:
    content = bytearray(record.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    record.write_bytes(content)


def drop_the_rounds(record: Path) -> None:
    with sqlite3.connect(record) as connection:
        connection.execute("DROP TABLE rounds")


def other_values(record: Path) -> None:
    with sqlite3.connect(record) as connection:
        connection.execute("UPDATE meta SET value = '{}' WHERE key = 'experiment'")
        connection.execute("UPDATE meta SET value = '7' WHERE key = 'devices'")


def another_version(record: Path) -> None:
    with sqlite3.connect(record) as connection:
        connection.execute("UPDATE meta SET value = '1' WHERE key = 'version'")


@pytest.mark.parametrize(
    "damage",
    [damage_header, cut_in_half, empty, overwrite_pages, drop_the_rounds, another_version],
)
def test_a_damaged_run_is_listed_with_its_problem(runs: Path, damage: Any) -> None:
    damage(runs / FIRST / RECORD_FILE)
    client = client_of(runs)
    listed = entries(client)
    assert listed[SECOND]["status"] == "finished"
    assert listed[FIRST]["status"] == "damaged"
    assert listed[FIRST]["problem"]
    assert str(runs) not in listed[FIRST]["problem"]
    for path in PATHS:
        status = ask(client, path, FIRST)
        assert status == 409 or (path, status) == ("events", 200)  # what was read before stays


def test_other_values_in_a_record_are_damage(runs: Path) -> None:
    other_values(runs / FIRST / RECORD_FILE)
    client = client_of(runs)
    assert entries(client)[SECOND]["status"] == "finished"
    for path in PATHS:
        assert ask(client, path, FIRST) in (200, 409)
    assert ask(client, "run", FIRST) == ask(client, "summary", FIRST) == 409


def test_a_record_that_is_being_created_is_no_error(runs: Path) -> None:
    (runs / "new").mkdir()
    client = client_of(runs)
    assert set(entries(client)) == {FIRST, SECOND}
    store = Store.create(runs / "new")
    assert set(entries(client)) == {FIRST, SECOND, "new"}
    for path in PATHS:
        assert ask(client, path, "new") in (200, 409)
    store.close()


def test_a_run_without_a_round_is_shown(runs: Path) -> None:
    growing = GrowingRun(runs / FIRST, runs / "new")
    client = client_of(runs)
    assert client.get("/api/progress?run=new").json()["rounds"]["round"] == []
    assert client.get("/api/workers?run=new").json()["round"] == 0
    assert client.get("/api/run?run=new").status_code == 200
    assert client.get("/api/round?run=new&round=1").status_code == 404
    growing.end("finished")


def test_many_runs_are_listed_from_memory(real_runs: Path, tmp_path: Path) -> None:
    """The second look opens no record that has not changed."""
    for number in range(30):
        shutil.copytree(real_runs / SECOND, tmp_path / "runs" / f"run-{number}")
    client = client_of(tmp_path / "runs")
    assert len(entries(client)) == 30
    for record in (tmp_path / "runs").rglob(RECORD_FILE):
        record.chmod(0o000)
    assert all(entry["problem"] is None for entry in entries(client).values())
