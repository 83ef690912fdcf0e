"""The record of a run in SQLite (WAL): a round ends when it is committed here.

The tables in RESULT_SCHEMA are the result that the digest is made of; METRIC_SCHEMA holds further
numbers of the tests, `phases` when each worker did what without a barrier, and `wall` real seconds,
which do not repeat with the seed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sqlite3
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np

from fedhp import __version__
from fedhp.columns import TIMES, WORKER_COLUMNS, Column, added_columns
from fedhp.config import Experiment, to_tables
from fedhp.errors import RunError, StorageFull
from fedhp.files import RUN_RECORD
from fedhp.learn.attack import attackers_of
from fedhp.record.links import Columns, link_table, to_record
from fedhp.record.tensors import array_blocks
from fedhp.texts import LONGEST_TEXT, check_bounds, printable
from fedhp.types import RoundRecord, TurnPhase

RECORD_FILE = RUN_RECORD
RECORD_VERSION = 2  # 2: counts per verdict, and a selection of very many links


def _declared(column: Column) -> str:
    return f"{column.name} {'INTEGER NOT NULL' if column.whole else 'REAL'}"


def _table(columns: str, *, key: str) -> str:
    """A table with several rows for each round."""
    return f"(\n  round INTEGER NOT NULL, {columns},\n  PRIMARY KEY (round, {key})\n) WITHOUT ROWID"


_EVALUATIONS = """(
  round INTEGER PRIMARY KEY, clock REAL NOT NULL, accuracy REAL NOT NULL,
  mean_model_accuracy REAL, images INTEGER NOT NULL, standard_error REAL
)"""
_WORKER_EVALUATIONS = _table("worker INTEGER NOT NULL, accuracy REAL NOT NULL", key="worker")

# The tables of the result, in the order in which the digest reads them.
RESULT_SCHEMA = {
    "rounds": """(
  round INTEGER PRIMARY KEY, clock REAL NOT NULL, round_time REAL NOT NULL,
  mean_waiting_time REAL NOT NULL, mean_local_steps REAL NOT NULL, learning_rate REAL NOT NULL,
  links INTEGER NOT NULL, bytes_sent INTEGER NOT NULL, train_loss REAL, rule TEXT NOT NULL,
  pace_setter INTEGER, directed INTEGER NOT NULL,
  links_known INTEGER NOT NULL, links_recorded INTEGER NOT NULL
)""",
    "workers": _table(
        "worker INTEGER NOT NULL, " + ", ".join(map(_declared, WORKER_COLUMNS)), key="worker"
    ),
    "links": _table(
        """a INTEGER NOT NULL, b INTEGER NOT NULL, used INTEGER NOT NULL,
  bytes INTEGER NOT NULL, link_time REAL, distance REAL,
  verdict INTEGER, planned_link_time REAL, estimated_distance REAL""",
        key="a, b",
    ),
    "verdicts": _table(
        "verdict INTEGER NOT NULL, links INTEGER NOT NULL, used INTEGER NOT NULL", key="verdict"
    ),
    "facts": _table("name TEXT NOT NULL, value REAL", key="name"),
    "evaluations": _EVALUATIONS,
    "worker_evaluations": _WORKER_EVALUATIONS,
    "final_evaluations": _EVALUATIONS,
    "final_worker_evaluations": _WORKER_EVALUATIONS,
}
# Not in the digest, so that it stays that of the versions without them. `whole` is 1 for the test
# on the whole test set after the last round.
METRIC_SCHEMA = {
    "test_metrics": _table("whole INTEGER NOT NULL, loss REAL, mean_model_loss REAL", key="whole"),
    "worker_test_metrics": _table(
        "whole INTEGER NOT NULL, worker INTEGER NOT NULL, loss REAL", key="whole, worker"
    ),
    "class_test_metrics": _table(
        """whole INTEGER NOT NULL, class INTEGER NOT NULL, accuracy REAL,
  mean_model_accuracy REAL""",
        key="whole, class",
    ),
    "own_test_metrics": _WORKER_EVALUATIONS,
}
# Part of the result where they have rows: who took part in a group average and why (GroupRole);
# left_out counts the averages of the fragment in a row without the worker.
GROUP_SCHEMA = {
    "participation": _table(
        """worker INTEGER NOT NULL, role TEXT NOT NULL, left_out INTEGER NOT NULL,
  returns INTEGER NOT NULL, root INTEGER NOT NULL""",
        key="worker",
    ),
}
# Never part of the digest: what each worker did when, without a barrier. A phase with a partner
# is a transfer, else it is training.
PHASE_SCHEMA = {
    "phases": _table(
        """position INTEGER NOT NULL, worker INTEGER NOT NULL,
  start REAL NOT NULL, finish REAL NOT NULL, partner INTEGER""",
        key="position",
    ),
}
# Added later: a record without them is read as if they were empty, and gets them when written.
ADDED_SCHEMA = {**METRIC_SCHEMA, **GROUP_SCHEMA, **PHASE_SCHEMA}
SCHEMA = {
    "meta": "(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    **RESULT_SCHEMA,
    "wall": _table("phase TEXT NOT NULL, seconds REAL NOT NULL", key="phase"),
    **ADDED_SCHEMA,
}
METRIC_TABLES, GROUP_TABLES, PHASE_TABLES = map(tuple, (METRIC_SCHEMA, GROUP_SCHEMA, PHASE_SCHEMA))
ROUND_TABLES = (*RESULT_SCHEMA, *GROUP_TABLES, *METRIC_TABLES, *PHASE_TABLES, "wall")
# The columns of each table's key: those listed as such, or the first one.
KEYS = {
    table: (re.findall(r"KEY \((.+)\)", columns) or re.findall(r"\w+", columns))[0]
    for table, columns in SCHEMA.items()
}
TEXT_COLUMNS = frozenset({"key", "rule", "name", "phase", "role"})  # in all tables
PHASES_PER_WORKER = 64  # of a round that are recorded, the first ones
# SQLite takes the other columns of a group from the row of its min() or max(). In a directed round
# a worker waits for what it receives: link.a is the receiver.
LAST_WORKERS = """
WITH longest AS (
  SELECT round, max(worker_time) AS time FROM workers
  WHERE round BETWEEN :first AND :last GROUP BY round
), last AS (
  SELECT longest.round, longest.time, min(workers.worker) AS worker, compute_time,
    communication_time
  FROM longest JOIN workers ON workers.round = longest.round AND worker_time = longest.time
  GROUP BY longest.round
), slowest AS (
  SELECT last.round, a, b, max(link_time) AS link_time
  FROM last JOIN rounds ON rounds.round = last.round JOIN links ON links.round = last.round
    AND used AND (a = last.worker OR (b = last.worker AND NOT directed))
  GROUP BY last.round
)
SELECT rounds.round, last.worker, last.time AS worker_time, compute_time, communication_time,
  (SELECT count(*) FROM workers WHERE workers.round = last.round AND worker_time < last.time)
    AS waited,
  pace_setter,
  (SELECT worker_time = last.time FROM workers
   WHERE workers.round = last.round AND workers.worker = pace_setter) AS plan_right,
  a, b, link_time, mean_waiting_time, rounds.round_time, directed
FROM rounds LEFT JOIN last ON last.round = rounds.round
  LEFT JOIN slowest ON slowest.round = rounds.round
WHERE rounds.round BETWEEN :first AND :last ORDER BY rounds.round
"""
NUMBERS_DIGEST = "numbers_digest"  # the description's key for the digest without the models
# ... and for the hash of everything else, but for the status and this key itself.
CONTENT_DIGEST = "content_digest"
STATUSES = ("created", "running", "interrupted", "finished", "diverged")
MOST_HASHED_BYTES = 1 << 28
BLOCK_ROWS = 1000  # rows read at a time: few enough for the processor's cache
WAL_PAGES = 250  # 1 MB of log before it is moved into the file: a small run stays small on disk
LEAVE_SECONDS, LEAVE_PAUSE = 1.0, 0.01  # s, for readers to close the record at its end
CACHE_KIB = 65_536  # a round of 10,000 workers fits, and is written once
LARGEST_VALUE = 1 << 24  # bytes of one value: the description of 100,000 workers fits
SIDE_FILES = ("", "-wal", "-shm", "-journal")  # SQLite's, after the name of the record


class Store:
    """An open record."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._execute = connection.execute
        self.path = path
        # Columns that a record lacks which is only read: it has no values there.
        self._missing: tuple[str, ...] = ()

    @classmethod
    def create(cls, folder: Path) -> Store:
        path = folder / RECORD_FILE
        with _clear_errors(path):
            connection = _connect(path, "rwc")
            connection.execute("PRAGMA journal_mode=WAL")
            for table, columns in SCHEMA.items():
                connection.execute(f"CREATE TABLE {table} {columns}")
        store = cls(connection, path)
        store.set_meta("version", RECORD_VERSION)
        return store

    @classmethod
    def open(cls, folder: Path, *, write: bool = False) -> Store:
        path = folder / RECORD_FILE
        if not os.path.lexists(path):
            raise RunError(
                f"{folder} is not a run folder: it has no {RECORD_FILE}",
                allowed="a folder made by `fedhp run`, or one of the runs inside a comparison",
                fix="check the path; list the folder to see the runs in it",
            )
        _check_plain(path)
        with _clear_errors(path):
            connection = _connect(path, "rw" if write else "ro")
            _check_schema(connection, path)
            store = cls(connection, path)
            version = store.meta("version")
            if write:
                connection.execute("PRAGMA journal_mode=WAL")
        if version != RECORD_VERSION:
            raise RunError(
                f"{path}: the record has version {version!r}, but this fedhp reads "
                f"{RECORD_VERSION}",
                fix="read it with the version of fedhp that wrote it",
            )
        with _clear_errors(path):
            store._add_later_parts(write=write)
        return store

    def _add_later_parts(self, *, write: bool) -> None:
        """Add the tables and columns that are missing; in memory where the file is only read."""
        names = self._execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        kind = "TABLE" if write else "TEMP TABLE"
        present = {name for (name,) in names.fetchall()}
        for table in (table for table in ADDED_SCHEMA if table not in present):
            self._execute(f"CREATE {kind} IF NOT EXISTS {table} {ADDED_SCHEMA[table]}")
        names = self._execute("SELECT name FROM pragma_table_info('workers')")
        present = {name for (name,) in names.fetchall()}
        missing = [column for column in added_columns() if column.name not in present]
        if not write:
            self._missing = tuple(column.name for column in missing)
            return
        for column in missing:
            self._execute(f"ALTER TABLE workers ADD COLUMN {_declared(column)}")

    def close(self) -> None:
        self._connection.close()

    def leave_wal_mode(self) -> None:
        """Make it one plain file, readable in a read-only folder, unless someone keeps reading it.

        A page reads for a few milliseconds: then it is tried again.
        """
        deadline = time.monotonic() + LEAVE_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(sqlite3.Error):
                mode = self._execute("PRAGMA journal_mode=DELETE").fetchone()[0]
                if mode == "delete":
                    return
            time.sleep(LEAVE_PAUSE)

    def meta(self, key: str) -> Any:
        """A value of the run's description, None if absent."""
        with _clear_errors(self.path):
            row = self._execute(
                "SELECT CAST(value AS BLOB) FROM meta WHERE key = ?", (key,)
            ).fetchone()
        try:
            value = None if row is None else json.loads(row[0])
            check_bounds(value)
            return value
        except (ValueError, RecursionError) as error:
            raise _damaged(self.path, f"{key}: {error}") from None

    def check(self) -> None:
        """Refuse a record whose bytes were damaged: in its pages, or in a finished run's numbers.

        A very large record is checked by its pages alone, since hashing it takes minutes.
        """
        with _clear_errors(self.path):
            problem = self._execute("PRAGMA quick_check(1)").fetchone()[0]
            if problem != "ok":
                raise _damaged(self.path, problem)
        status = self.meta("status")
        if status not in STATUSES:
            raise _damaged(self.path, f"its status is {status!r}")
        self.check_sealed()
        if status != "finished" or self.path.stat().st_size > MOST_HASHED_BYTES:
            return
        if self.digest() != self.meta(NUMBERS_DIGEST):
            raise _damaged(self.path, "its numbers differ from those that the run recorded")
        if self._content_digest() != self.meta(CONTENT_DIGEST):
            raise _damaged(self.path, "its description or its tests differ from the recorded ones")

    def check_sealed(self) -> None:
        """Refuse a finished record without its hashes: somebody changed it after the run."""
        if self.meta("status") != "finished":
            return
        for key in (NUMBERS_DIGEST, CONTENT_DIGEST):
            if not isinstance(self.meta(key), str):
                raise _damaged(self.path, f"the run is finished, but its {key} is missing")

    def seal(self) -> None:
        """Record the hashes of a run that is about to be finished, for later checks."""
        self.set_meta(NUMBERS_DIGEST, self.digest())
        self.set_meta(CONTENT_DIGEST, self._content_digest())

    def _content_digest(self) -> str:
        """A hash of what the digest leaves out: the description and the tables of the metrics."""
        digest = hashlib.sha256()
        with _clear_errors(self.path):
            description = self._execute(
                "SELECT key, CAST(value AS BLOB) FROM meta "
                "WHERE key NOT IN ('status', ?) ORDER BY key",
                (CONTENT_DIGEST,),
            ).fetchall()
            texts = [(key, value.decode()) for key, value in description]
        digest.update(repr(texts).encode())
        self._hash(digest, *METRIC_TABLES, "wall")
        self._hash(digest, *PHASE_TABLES, filled=True)
        return digest.hexdigest()

    def _hash(self, digest: Any, *tables: str, filled: bool = False) -> None:
        """Add tables to a hash. If filled, only those that have rows: else it is the hash of the
        versions without them."""
        for table in tables:
            names = self._filled_columns() if table == "workers" else ()
            blocks = self.blocks(table, names=names)
            header, first = next(blocks), next(blocks, [])
            if first or not filled:
                digest.update(table.encode())
                for rows in filter(None, chain((header, first), blocks)):
                    hash_rows(digest, rows)

    def set_meta(self, key: str, value: Any) -> None:
        """Set a value, durably. A changed description is not the one that was sealed."""
        with self._transaction():
            self._execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(value)))
            if key not in ("status", CONTENT_DIGEST):
                self._execute("DELETE FROM meta WHERE key = ?", (CONTENT_DIGEST,))

    def commit(self, record: RoundRecord) -> None:
        """Append a round: all of it or nothing."""
        with self._transaction():
            self._delete_from(record.round_index)
            for table, columns in round_columns(record).items():
                marks = ", ?" * len(columns)
                self._connection.executemany(
                    f"INSERT INTO {table} VALUES ({record.round_index:d}{marks})",
                    zip(*columns, strict=True),
                )

    def copy_rounds(self, source: Store, *, first: int, last: int) -> None:
        """Append rounds of another record, in all tables: all of them or nothing."""
        for table in ROUND_TABLES:
            if source.names(table) != self.names(table):
                raise _damaged(source.path, f"its table {table} has other columns")
        with self._transaction():
            self._delete_from(first)
            for table in ROUND_TABLES:
                blocks = source.blocks(table, where="round BETWEEN ? AND ?", values=(first, last))
                marks = ", ".join("?" for _ in next(blocks)[0])  # of the header
                for rows in blocks:
                    self._connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)

    def truncate(self, last_round: int) -> None:
        """Delete the rounds after this one (they will run again, bit for bit)."""
        with self._transaction():
            self._delete_from(last_round + 1)

    def extend(self, meta: Mapping[str, Any], *, irregular: Sequence[int] | None) -> None:
        """Let a run continue under this description.

        Deletes the irregular tests, of rounds that were tested only because the run had ended. With
        None the run has ended under the new settings too, and keeps them.
        """
        with self._transaction():
            if irregular is not None:
                for table in ("final_evaluations", "final_worker_evaluations"):
                    self._execute(f"DELETE FROM {table}")
                for table in ("evaluations", "worker_evaluations", *METRIC_TABLES):
                    self._connection.executemany(
                        f"DELETE FROM {table} WHERE round = ?", [(index,) for index in irregular]
                    )
                    if table in METRIC_TABLES and "whole" in METRIC_SCHEMA[table]:
                        self._execute(f"DELETE FROM {table} WHERE whole = 1")
            self._connection.executemany(
                "INSERT OR REPLACE INTO meta VALUES (?, ?)",
                [(key, json.dumps(value)) for key, value in meta.items()],
            )

    def last_round(self) -> int:
        """The last committed round, 0 if none."""
        with _clear_errors(self.path):
            return int(self._execute("SELECT max(round) FROM rounds").fetchone()[0] or 0)

    def columns(
        self,
        table: str,
        *,
        names: Sequence[str] = (),
        where: str = "",
        values: tuple[Any, ...] = (),
    ) -> dict[str, list[Any]]:
        """A table as columns (all, or those named), ordered by its key: for pandas or numpy."""
        with _clear_errors(self.path):
            return self._columns(self._select(table, names, where, values))

    def last_row(self, table: str) -> dict[str, Any] | None:
        """The last row of a table by its key; None if it has none."""
        self.names(table)  # refuses an unknown table
        order = ", ".join(f"{column} DESC" for column in KEYS[table].split(", "))
        row = self._query(f"SELECT * FROM {table} ORDER BY {order} LIMIT 1")
        return {name: values[0] for name, values in row.items()} if all(row.values()) else None

    def extremes(self, table: str, column: str, *, first_round: int = 1) -> dict[str, list[Any]]:
        """The columns round, lowest and highest: of the values of one column in every round."""
        self.columns(table, names=(column,), where="0")  # refuses unknown names
        return self._query(
            f"SELECT round, min({column}) AS lowest, max({column}) AS highest FROM {table} "
            "WHERE round >= ? GROUP BY round ORDER BY round",
            (first_round,),
        )

    def last_of_workers(self, table: str, column: str, *, last_round: int) -> dict[str, list[Any]]:
        """Each worker's last value of a column up to a round, and its round, by worker."""
        self.columns(table, names=(column,), where="0")  # refuses unknown names
        return self._query(  # SQLite takes the column from the row of the maximum
            f"SELECT worker, {column}, max(round) AS round FROM {table} WHERE round <= ? "
            "GROUP BY worker ORDER BY worker",
            (last_round,),
        )

    def last_workers(self, *, first_round: int, last_round: int) -> dict[str, list[Any]]:
        """Of every round the worker that finished last (of equal ones the first), how many finished
        earlier, and its slowest link in use: its ends a and b, and its time."""
        return self._query(LAST_WORKERS, {"first": first_round, "last": last_round})

    def _query(self, sql: str, values: Any = ()) -> dict[str, list[Any]]:
        with _clear_errors(self.path):
            return self._columns(self._execute(sql, values))

    def _columns(self, cursor: sqlite3.Cursor) -> dict[str, list[Any]]:
        header = [column[0] for column in cursor.description]
        rows = cursor.fetchall()
        self._check_types(header, rows)
        columns = zip(*rows, strict=True) if rows else ((),) * len(header)
        return {name: list(column) for name, column in zip(header, columns, strict=True)}

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Inside, everything that is read is of one moment, whatever is written meanwhile."""
        with _clear_errors(self.path):
            self._execute("BEGIN")
        try:
            yield
        finally:
            with contextlib.suppress(sqlite3.Error):
                self._execute("ROLLBACK")

    def names(self, table: str) -> list[str]:
        return list(self.columns(table, where="0"))

    def types(self, table: str) -> dict[str, str]:
        """The type of every column of a table, as the schema declares it."""
        self.names(table)  # refuses an unknown table
        with _clear_errors(self.path):
            rows = self._execute("SELECT name, type FROM pragma_table_info(?)", (table,))
            return dict(rows.fetchall())

    def blocks(
        self,
        table: str,
        *,
        names: Sequence[str] = (),
        where: str = "",
        values: tuple[Any, ...] = (),
    ) -> Iterator[list[tuple[Any, ...]]]:
        """The rows of a table in the order of its key, many at a time; first its header."""
        with _clear_errors(self.path):
            cursor = self._select(table, names, where, values)
            header = [column[0] for column in cursor.description]
            yield [tuple(header)]
            while rows := cursor.fetchmany(BLOCK_ROWS):
                self._check_types(header, rows)
                yield rows

    def _check_types(self, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Refuse a text where a number belongs, which SQLite would keep."""
        for name, column in zip(header, zip(*rows, strict=True), strict=False):
            allowed = {str, NoneType} if name in TEXT_COLUMNS else {int, float, NoneType}
            if not allowed.issuperset(map(type, column)):
                raise _damaged(self.path, f"the column {name} has values of another type")

    def digest(self, models: np.ndarray[Any, Any] | None = None) -> str:
        """A hash of every number of the result: equal for equal runs, bit for bit."""
        digest = hashlib.sha256()
        if models is not None:
            digest.update(f"{models.dtype.str} {models.shape}".encode())
            for block in array_blocks(models):
                digest.update(block)
        self._hash(digest, *RESULT_SCHEMA)
        self._hash(digest, *GROUP_TABLES, filled=True)
        return digest.hexdigest()

    def _filled_columns(self) -> list[str]:
        """The columns of the workers' table, without the added ones that have no value: else the
        digest is that of the versions without them."""
        with _clear_errors(self.path):
            empty = {
                name
                for name in (column.name for column in added_columns())
                if name in self._missing
                or not self._execute(f"SELECT count({name}) FROM workers").fetchone()[0]
            }
        return [name for name in self.names("workers") if name not in empty]

    def _select(
        self, table: str, names: Sequence[str], where: str, values: tuple[Any, ...]
    ) -> sqlite3.Cursor:
        if table not in KEYS:
            raise RunError(
                f"unknown table {table!r}",
                allowed=", ".join(ROUND_TABLES),
                fix="choose one of these",
            )
        missing = self._missing if table == "workers" else ()
        selected = ", ".join(
            [f"NULL AS {name}" if name in missing else name for name in names]
            or ["*", *(f"NULL AS {name}" for name in missing)]
        )
        condition = f"WHERE {where}" if where else ""
        return self._execute(
            f"SELECT {selected} FROM {table} {condition} ORDER BY {KEYS[table]}", values
        )

    def _delete_from(self, round_index: int) -> None:
        for table in ROUND_TABLES:
            self._execute(f"DELETE FROM {table} WHERE round >= ?", (round_index,))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with _clear_errors(self.path):
            self._execute("BEGIN IMMEDIATE")
            try:
                yield
                self._execute("COMMIT")
            except BaseException:
                # The first error is the one to report; a failed rollback adds nothing.
                with contextlib.suppress(sqlite3.Error):
                    self._execute("ROLLBACK")
                raise


def round_columns(record: RoundRecord) -> dict[str, Columns]:
    """A round as columns of every table that gets rows, in the order of the schema, without the
    round itself. NaN marks a missing value: SQLite stores it as NULL."""
    timing, decision = record.timing, record.decision
    workers = len(record.local_steps)
    losses = record.train_loss[np.isfinite(record.train_loss)]
    links = link_table(record)
    kept = to_record(links, workers, pace_setter=decision.pace_setter)
    facts, wall = sorted(decision.facts.items()), sorted(record.wall.items())
    whole_round = (
        record.clock,
        timing.round_time,
        timing.mean_waiting_time,
        record.mean_local_steps,
        record.learning_rate,
        len(record.links),
        record.bytes_sent,
        float(losses.mean()) if losses.size else None,
        str(decision.rule),
        decision.pace_setter,
        int(links.directed),
        len(links.a),
        len(kept.a),
    )
    of_workers: Columns = [range(workers)]
    for column in WORKER_COLUMNS:
        if column.added:
            values = record.measures.get(column.name)
            of_workers.append([np.nan] * workers if values is None else values.tolist())
        elif column.name == "links":
            of_workers.append(links.peers(workers).tolist())
        else:
            holder = timing if column.name in TIMES else record
            of_workers.append(getattr(holder, column.name).tolist())
    columns: dict[str, Columns] = {
        "rounds": [[value] for value in whole_round],
        "workers": of_workers,
        "links": kept.columns(),
        "verdicts": links.verdict_columns(),
        "facts": [[name for name, _ in facts], [float(value) for _, value in facts]],
        "wall": [[phase for phase, _ in wall], [seconds for _, seconds in wall]],
    }
    for prefix, tested in (("", record.evaluation), ("final_", record.final_evaluation)):
        if tested is None:
            continue
        known = np.isfinite(tested.accuracy)  # on a real network some workers may be absent
        columns[f"{prefix}evaluations"] = [
            [record.clock],
            [tested.mean_accuracy],
            [tested.mean_model_accuracy],
            [tested.images],
            [float(tested.standard_error)],
        ]
        columns[f"{prefix}worker_evaluations"] = [
            np.flatnonzero(known).tolist(),
            tested.accuracy[known].tolist(),
        ]
    if record.evaluation is not None or record.final_evaluation is not None:
        columns.update(_metric_columns(record))
    if record.phases:
        kept_phases = record.phases[: PHASES_PER_WORKER * workers]
        columns["phases"] = [
            range(len(kept_phases)),
            *([getattr(phase, f.name) for phase in kept_phases] for f in fields(TurnPhase)),
        ]
    group = decision.participation
    if group is not None:
        columns["participation"] = [
            range(workers),
            [str(role) for role in group.roles],
            group.left_out.tolist(),
            group.returning.astype(np.int64).tolist(),
            (np.arange(workers) == group.root).astype(np.int64).tolist(),
        ]
    return columns


def _metric_columns(record: RoundRecord) -> dict[str, Columns]:
    columns: dict[str, Columns] = {}
    for whole, tested in ((0, record.evaluation), (1, record.final_evaluation)):
        if tested is None or tested.loss is None:
            continue
        known = np.flatnonzero(np.isfinite(tested.accuracy))
        losses = tested.loss[known]
        rows: dict[str, Columns] = {
            "test_metrics": [[whole], [float(losses.mean())], [tested.mean_model_loss]],
            "worker_test_metrics": [[whole] * len(known), known.tolist(), losses.tolist()],
        }
        if tested.class_accuracy is not None and tested.mean_model_class_accuracy is not None:
            classes = len(tested.class_accuracy)
            rows["class_test_metrics"] = [
                [whole] * classes,
                range(classes),
                tested.class_accuracy.tolist(),
                tested.mean_model_class_accuracy.tolist(),
            ]
        for table, added in rows.items():
            before = columns.get(table, [[] for _ in added])
            columns[table] = [[*old, *new] for old, new in zip(before, added, strict=True)]
    if record.evaluation is not None and record.evaluation.own_accuracy is not None:
        own = record.evaluation.own_accuracy
        known = np.flatnonzero(np.isfinite(own))
        columns["own_test_metrics"] = [known.tolist(), own[known].tolist()]
    return columns


def hash_rows(digest: Any, rows: Sequence[Sequence[Any]]) -> None:
    """Add a block of rows to a hash, column by column: types and bits of all values."""
    digest.update(f"{len(rows)} rows ".encode())
    for column in zip(*rows, strict=True):
        types = set(map(type, column))
        if types <= {float, type(None)}:
            numbers = np.array(column, dtype="<f8")  # NULL becomes NaN, which SQLite cannot hold
            digest.update(b"float" if float in types else b"null")
            digest.update(numbers)
        elif types == {int}:
            digest.update(b"int")
            digest.update(np.array(column, dtype="<i8"))
        else:
            # repr distinguishes 1, 1.0, 0.0, -0.0 and None, and keeps all bits.
            digest.update(b"any")
            digest.update("\0".join(map(repr, column)).encode())


def description(experiment: Experiment, *, label: str, asynchronous: bool) -> dict[str, Any]:
    """The description that the record of any run begins with."""
    attackers = list(
        attackers_of(experiment.attack, workers=experiment.workers, seed=experiment.seed)
    )
    return {
        "status": "created",
        "label": label,
        "fedhp": __version__,
        "experiment": to_tables(experiment),
        "algorithm": experiment.algorithm.name,
        "seed": experiment.seed,
        "rounds": None if experiment.horizon else experiment.rounds,
        "workers": experiment.workers,
        "asynchronous": asynchronous,
        **({"attackers": attackers} if attackers else {}),
    }


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=30
    )
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_VALUE)
    connection.text_factory = _text
    connection.execute("PRAGMA trusted_schema=OFF")
    # FULL: a round that was reported as done survives a power cut.
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA temp_store=MEMORY")
    connection.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
    connection.execute(f"PRAGMA wal_autocheckpoint={WAL_PAGES}")
    return connection


def _text(content: bytes) -> str:
    """A text of a table: one harmless line."""
    if len(content) > LONGEST_TEXT:
        raise sqlite3.DataError(f"a text has {len(content)} bytes, at most {LONGEST_TEXT} are read")
    return printable(content.decode())


def _check_plain(path: Path) -> None:
    """Refuse a link, a pipe or a device in the place of one of the record's files."""
    for end in SIDE_FILES:
        file = Path(f"{path}{end}")
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(os.lstat(file).st_mode):
                raise RunError(
                    f"{file} is not a plain file",
                    allowed="a run folder as fedhp wrote it: no links, pipes or devices in it",
                    fix="copy the file itself to its place",
                )


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse views, triggers, and columns or tables that are computed: a record has none."""
    rows = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    for kind, name, sql in rows:
        computed = re.search(r"\b(virtual|generated|as)\b", sql or "", re.IGNORECASE)
        if kind not in ("table", "index") or computed:
            raise _damaged(path, f"{name!r} is not a table of a record")


@contextlib.contextmanager
def _clear_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        if "full" in str(error) or "disk I/O" in str(error):
            raise StorageFull(
                f"{path}: the record cannot be written: {error}",
                allowed="enough space for the record, on a disk that works",
                fix="free some space and resume the run with --resume; earlier rounds are kept",
            ) from None
        if "no such" in str(error):
            raise _damaged(path, str(error)) from None
        raise RunError(
            f"{path}: the record cannot be used: {error}",
            allowed="a record that this user can read and write, used by one run at a time",
            fix="check the permissions of the folder, and that no other run uses it",
        ) from None
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter: of damaged text
        raise _damaged(path, str(error)) from None


def _damaged(path: Path, reason: str) -> RunError:
    return RunError(
        f"{path}: the record is damaged: {reason}",
        allowed="a record that fedhp wrote, unchanged",
        fix="start the run again in another folder",
    )
