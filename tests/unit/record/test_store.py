"""The record of a run: all of a round or nothing, and clear errors for damage and full disks."""

from __future__ import annotations

import hashlib
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhp.errors import RunError, StorageFull
from fedhp.record.reader import RunReader, find_runs
from fedhp.record.statistics import interval
from fedhp.record.store import RECORD_FILE, ROUND_TABLES, Store, hash_rows
from fedhp.types import (
    Decision,
    Evaluation,
    GroupRole,
    LinkVerdict,
    Participation,
    RoundRecord,
    Timing,
    TurnPhase,
)


def record(round_index: int, workers: int = 3, *, tested: bool = True) -> RoundRecord:
    """A round with a worker that is away, made of plain numbers."""
    here = np.where(np.arange(workers) == workers - 1, np.nan, 1.0 + round_index)
    links = np.array([[0, 1]])
    return RoundRecord(
        round_index=round_index,
        clock=10.0 * round_index,
        learning_rate=0.1,
        local_steps=np.where(np.isnan(here), 0, 5).astype(np.int64),
        step_time=here,
        timing=Timing(here, here, here, here - here, 1.0 + round_index),
        links=links,
        link_time=np.array([0.5]),
        link_bytes=np.array([100], dtype=np.int64),
        link_distance=np.array([np.nan]),
        decision=Decision(
            links=np.array([[0, 1], [1, 2]]),
            verdicts=np.array([LinkVerdict.KEPT_BRIDGE, LinkVerdict.CUT]),
            link_time=np.array([0.5, 0.7]),
            rule="as told",
            facts={"deadline": 3.0, "bound": float("nan")},
        ),
        train_loss=here,
        update_norm=here,
        smoothness=np.full(workers, np.nan),
        gradient_variance=np.full(workers, np.nan),
        bandwidth=np.ones(workers),
        evaluation=Evaluation(np.full(workers, 0.5), 0.6, 10, 0.1) if tested else None,
        wall={"train": 0.25},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = Store.create(tmp_path)
    for key, value in {"label": "x", "seed": 0, "status": "running", "workers": 3}.items():
        store.set_meta(key, value)
    for round_index in (1, 2, 3):
        store.commit(record(round_index, tested=round_index != 2))
    store.close()
    return tmp_path


def digest_of(folder: Path) -> str:
    with RunReader(folder) as run:
        return run.digest()


def test_rounds_come_back_as_columns(folder: Path) -> None:
    with RunReader(folder) as run:
        assert run.rounds_done == 3
        assert run.table("rounds")["clock"] == [10.0, 20.0, 30.0]
        assert run.table("workers", round_index=2)["worker"] == [0, 1, 2]
        assert run.table("workers", round_index=2)["step_time"] == [3.0, 3.0, None]
        assert run.table("evaluations")["round"] == [1, 3]
        assert run.array("workers", "local_steps").tolist() == [[5, 5, 0]] * 3
        assert np.isnan(run.array("workers", "step_time")[:, 2]).all()
        links = run.table("links", round_index=1)
        assert links["used"] == [1, 0]
        assert links["bytes"] == [100, 0]
        assert run.table("facts", round_index=1) == {
            "round": [1, 1],
            "name": ["bound", "deadline"],
            "value": [None, 3.0],
        }


def test_a_round_that_is_committed_again_replaces_it_and_all_after_it(folder: Path) -> None:
    whole = digest_of(folder)
    store = Store.open(folder, write=True)
    store.commit(record(2, tested=False))
    assert store.last_round() == 2
    store.commit(record(3))
    assert store.digest() == whole
    store.truncate(0)
    assert store.last_round() == 0
    store.close()


def test_every_table_of_a_new_record_is_in_its_file(tmp_path: Path) -> None:
    """Also those that were added later, which a record that is only read has in memory."""
    tested = Evaluation(
        accuracy=np.array([0.5, 0.25, 0.75]),
        mean_model_accuracy=0.6,
        images=10,
        standard_error=0.1,
        loss=np.array([1.0, 2.0, 3.0]),
        mean_model_loss=1.5,
        class_accuracy=np.array([0.1, 0.9]),
        mean_model_class_accuracy=np.array([0.2, 0.8]),
        own_accuracy=np.array([0.3, np.nan, 0.4]),
    )
    first = record(1)
    group = Participation(
        roles=(GroupRole.FAST, GroupRole.ADDED, GroupRole.AWAY),
        left_out=np.array([0, 2, 1]),
        returning=np.array([False, True, False]),
        root=0,
    )
    store = Store.create(tmp_path)
    store.commit(
        replace(
            first,
            decision=replace(first.decision, participation=group),
            evaluation=tested,
            final_evaluation=tested,
            phases=(TurnPhase(0, 1.0, 2.5), TurnPhase(0, 2.5, 3.0, partner=1)),
        )
    )
    written = {table: store.columns(table) for table in ROUND_TABLES}
    store.close()
    store = Store.open(tmp_path)
    assert {table: store.columns(table) for table in ROUND_TABLES} == written
    assert all(rows["round"] for rows in written.values())
    assert written["participation"]["role"] == ["fast", "added", "away"]
    assert written["class_test_metrics"]["accuracy"] == [0.1, 0.9, 0.1, 0.9]
    assert written["own_test_metrics"]["worker"] == [0, 2]
    assert written["phases"]["partner"] == [None, 1]
    store.close()


def test_the_real_seconds_are_no_part_of_the_result(folder: Path) -> None:
    whole = digest_of(folder)
    connection = sqlite3.connect(folder / RECORD_FILE)
    connection.execute("UPDATE wall SET seconds = 99")
    connection.commit()
    assert digest_of(folder) == whole
    connection.execute("UPDATE workers SET step_time = step_time + 1e-15 WHERE worker = 0")
    connection.commit()
    connection.close()
    assert digest_of(folder) != whole


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE links SET distance = 0.0 WHERE round = 1 AND a = 0",
        "UPDATE links SET used = 0 WHERE a = 0 AND round = 2",
        "UPDATE workers SET step_time = NULL WHERE worker = 0 AND round = 3",
        "UPDATE workers SET smoothness = 0.0 WHERE worker = 1 AND round = 1",
        "UPDATE workers SET links = 7 WHERE worker = 1 AND round = 1",
        "UPDATE rounds SET rule = 'other' WHERE round = 3",
        "UPDATE rounds SET pace_setter = 0 WHERE round = 3",
        "UPDATE verdicts SET links = links + 1 WHERE round = 1 AND verdict = 0",
        "UPDATE facts SET value = 0.0 WHERE name = 'bound' AND round = 1",
        "UPDATE evaluations SET accuracy = accuracy + 1e-16 WHERE round = 1",
        "DELETE FROM worker_evaluations WHERE round = 3 AND worker = 2",
        "UPDATE facts SET round = 4 WHERE round = 3",
    ],
)
def test_the_digest_sees_every_change(change: str, folder: Path) -> None:
    whole = digest_of(folder)
    connection = sqlite3.connect(folder / RECORD_FILE)
    changed = connection.execute(change)
    assert changed.rowcount > 0
    connection.commit()
    connection.close()
    assert digest_of(folder) != whole


def test_the_digest_does_not_depend_on_the_order_of_writing(folder: Path) -> None:
    whole = digest_of(folder)
    connection = sqlite3.connect(folder / RECORD_FILE)
    for table in ("rounds", "evaluations"):
        rows = connection.execute(f"SELECT * FROM {table}").fetchall()
        connection.execute(f"DELETE FROM {table}")
        marks = ", ".join("?" * len(rows[0]))
        connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows[::-1])
    connection.commit()
    connection.execute("VACUUM")
    connection.close()
    assert digest_of(folder) == whole


def hashed(*columns: tuple[Any, ...]) -> str:
    digest = hashlib.sha256()
    hash_rows(digest, list(zip(*columns, strict=True)))
    return digest.hexdigest()


def test_values_of_another_kind_hash_differently() -> None:
    kinds: list[Any] = [0, 0.0, -0.0, None, "", "0", "None", 1, 1.0, True, b"", 2**62, 5e-324]
    for others in ((), (1.5,), (None,), (3,), ("x",), (2.5, None)):
        found = {hashed((value, *others)) for value in kinds}
        assert len(found) == len(kinds)
    assert hashed((1, 2), (3, 4)) != hashed((1, 3), (2, 4))
    assert hashed(("a", "b")) != hashed(("a\0b",)) != hashed(("a', 'b",))
    assert hashed((1.0, None)) == hashed((1.0, None)) != hashed((None, 1.0))


def test_models_are_part_of_the_digest(folder: Path) -> None:
    store = Store.open(folder)
    models = np.arange(12, dtype=np.float32).reshape(3, 4)
    whole = store.digest(models)
    assert whole == store.digest(np.asfortranarray(models))
    assert whole != store.digest()
    assert whole != store.digest(models.reshape(4, 3))
    assert whole != store.digest(models + np.float32(1e-6) * (models == 11))
    zero = np.zeros((3, 4), dtype=np.float32)
    assert store.digest(zero) != store.digest(-zero)
    store.close()


def test_wrong_questions_are_answered_with_what_there_is(folder: Path) -> None:
    with RunReader(folder) as run:
        with pytest.raises(RunError, match="unknown table 'round'") as caught:
            run.table("round")
        assert "rounds" in caught.value.allowed
        with pytest.raises(RunError, match="no column 'speed'") as caught:
            run.array("workers", "speed")
        assert "step_time" in caught.value.allowed


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "absent"):
        with pytest.raises(RunError, match="is not a run folder"):
            RunReader(place)
        with pytest.raises(RunError, match="holds no run"):
            find_runs(place)


@pytest.mark.parametrize(
    "content",
    [b"", b"x", b"not a database at all" * 300, b"SQLite format 3\0" + b"\0" * 2000],
    ids=["empty", "short", "text", "header only"],
)
@pytest.mark.parametrize("write", [False, True])
def test_another_file_is_a_damaged_record(content: bytes, write: bool, tmp_path: Path) -> None:
    (tmp_path / RECORD_FILE).write_bytes(content)
    with pytest.raises(RunError, match="the record is damaged") as caught:
        Store.open(tmp_path, write=write)
    assert str(tmp_path / RECORD_FILE) in str(caught.value)
    assert caught.value.fix


def test_a_cut_record_is_damaged_and_not_a_traceback(folder: Path) -> None:
    content = (folder / RECORD_FILE).read_bytes()
    assert len(content) > 8192
    for size in (4096, 8192, len(content) // 2):
        (folder / RECORD_FILE).write_bytes(content[:size])
        with pytest.raises(RunError, match=r"damaged|cannot be used"):
            digest_of(folder)


def test_strange_values_in_the_description_are_damage(folder: Path) -> None:
    connection = sqlite3.connect(folder / RECORD_FILE)
    connection.execute("UPDATE meta SET value = '{' WHERE key = 'seed'")
    connection.commit()
    with RunReader(folder) as run, pytest.raises(RunError, match="the record is damaged: seed"):
        run.meta("seed")
    connection.execute("UPDATE meta SET value = '99' WHERE key = 'version'")
    connection.commit()
    connection.close()
    with pytest.raises(RunError, match="version 99, but this fedhp reads 2"):
        RunReader(folder)


class FullDisk:
    """A connection whose nth write fails, as sqlite does on a full disk."""

    def __init__(self, inner: sqlite3.Connection, after: int) -> None:
        self.inner, self.left = inner, after

    def executemany(self, text: str, rows: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise sqlite3.OperationalError("database or disk is full")
        return self.inner.executemany(text, rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.mark.parametrize("after", range(8))
def test_a_full_disk_keeps_the_rounds_before_whole(after: int, folder: Path) -> None:
    whole = digest_of(folder)
    store = Store.open(folder, write=True)
    store._connection = FullDisk(store._connection, after)  # type: ignore[assignment]
    with pytest.raises(StorageFull, match="database or disk is full") as caught:
        store.commit(record(4))
    assert caught.value.exit_code == 2
    assert "--resume" in caught.value.fix
    store.close()
    with RunReader(folder) as run:
        assert run.rounds_done == 3
        assert run.digest() == whole


def test_rounds_are_copied_with_all_their_tables(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    target.mkdir()
    source, store = Store.open(folder), Store.create(target)
    store.commit(record(1))
    store.copy_rounds(source, first=2, last=2)
    assert store.last_round() == 2
    store.copy_rounds(source, first=2, last=3)  # again: what is there is replaced
    store.set_meta("workers", 3)
    assert store.digest() == source.digest()
    assert store.columns("wall") == source.columns("wall")
    store.copy_rounds(source, first=1, last=1)
    assert store.last_round() == 1  # rounds only ever come at the end
    store.close()
    source.close()


@pytest.mark.parametrize("after", range(6))
def test_rounds_are_copied_whole_or_not_at_all(after: int, folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    target.mkdir()
    source, store = Store.open(folder), Store.create(target)
    store.commit(record(1))
    before = store.digest()
    connection = store._connection
    store._connection = FullDisk(connection, after)  # type: ignore[assignment]
    with pytest.raises(StorageFull, match="copy"):
        store.copy_rounds(source, first=1, last=3)
    store._connection = connection
    assert store.digest() == before
    store.close()
    source.close()


def test_rounds_of_other_columns_are_not_copied(folder: Path, tmp_path: Path) -> None:
    connection = sqlite3.connect(folder / RECORD_FILE)
    connection.execute("ALTER TABLE facts ADD COLUMN more REAL")
    connection.close()
    target = tmp_path / "copy"
    target.mkdir()
    source, store = Store.open(folder), Store.create(target)
    with pytest.raises(RunError, match=r"record.sqlite: the record is damaged: its table facts"):
        store.copy_rounds(source, first=1, last=3)
    assert store.last_round() == 0
    store.close()
    source.close()


def test_intervals_of_few_values() -> None:
    assert interval([]) is None
    one = interval([2.0])
    assert one is not None
    assert (one.mean, one.low, one.high, one.count) == (2.0, None, None, 1)
    two = interval([1.0, 3.0])
    assert two is not None
    assert two.low is not None
    assert two.low < 1.0 < 3.0 < (two.high or 0)


def test_the_last_row_of_a_table_or_none(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    assert store.last_row("rounds") is None
    for index in (1, 2, 3):
        store.commit(record(index))
    last = store.last_row("rounds")
    assert last is not None
    assert (last["round"], last["clock"]) == (3, 30.0)
    with pytest.raises(RunError):
        store.last_row("nothing")
    store.close()
