"""Tables as CSV, and a run's world as a trace that `world.trace` replays.

A synchronous round reads the links at its start, so its trace is exact; step times are each
worker's mean over the round. Asynchronous runs are sampled at the starts of their rounds.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedhp.errors import FedhpError, RunError
from fedhp.files import storage_errors, write_parts
from fedhp.record.reader import RunReader
from fedhp.record.store import ROUND_TABLES
from fedhp.report.rounds import check_round
from fedhp.world.network import BITS
from fedhp.world.trace import read_trace

TRACE_COLUMNS = ("time", "worker", "bandwidth", "step_time")


def table_csv(run: RunReader, table: str) -> Iterator[str]:
    """One table as CSV, piece by piece; missing values are empty, floats keep all digits."""
    return map(csv_text, run.blocks(table))


def save_table(run: RunReader, table: str, path: Path) -> Path:
    """One table as a CSV file, however long it is."""
    return save_parts(path, (part.encode() for part in table_csv(run, table)))


def save_tables(run: RunReader, folder: Path) -> list[Path]:
    """Every table as a CSV file in a folder."""
    return [save_table(run, name, folder / f"{name}.csv") for name in ROUND_TABLES]


def trace_csv(run: RunReader) -> str:
    """The run's bandwidths and step times over virtual time, as a trace."""
    check_round(run, None)
    _refuse_per_link(run)
    unit = BITS[run.meta("experiment")["world"]["bandwidth"]["unit"]]
    workers = run.table("workers")
    starts = dict(
        zip(run.table("rounds")["round"], [0.0, *run.table("rounds")["clock"]], strict=False)
    )
    rows = [
        (starts[h], worker, None if speed is None else 8 * speed / unit, step_time)
        for h, worker, speed, step_time in zip(
            workers["round"],
            workers["worker"],
            workers["bandwidth"],
            workers["step_time"],
            strict=True,
        )
    ]
    _refuse_unknown(run, rows)
    return csv_text([TRACE_COLUMNS, *rows])


def save_text(path: Path, text: str) -> Path:
    """Write a file whole, making its folder if needed."""
    return save_parts(path, [text.encode()])


def save_parts(path: Path, parts: Iterable[bytes]) -> Path:
    """Write a file whole, piece by piece, making its folder if needed."""
    with storage_errors(path, option="path"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_parts(path, parts)
    return path


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV: missing values are empty, floats keep all digits."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _refuse_per_link(run: RunReader) -> None:
    """The record keeps one bandwidth per worker: no way back to one per link."""
    world = run.meta("experiment")["world"]
    per_link = world["bandwidth"]["per"] == "link"
    replayed = world.get("trace")
    if replayed and not per_link:
        try:
            per_link = read_trace(replayed, workers=run.meta("workers")).per_link
        except FedhpError as error:
            raise RunError(
                f"{run.folder}: it replayed {replayed}, which can no longer be read, so it is "
                f"unknown whether its bandwidth is per worker: {error.problem}",
                allowed="a run whose own trace is still there, or one without a trace",
                fix=f"put {replayed} back",
            ) from None
    if per_link:
        raise RunError(
            f"{run.folder}: its bandwidth is per link, and a trace holds one value per worker",
            allowed='a run with world.bandwidth.per = "worker"',
            fix="export its tables instead: links.csv has the times of the links used",
        )


def _refuse_unknown(run: RunReader, rows: Iterable[Sequence[Any]]) -> None:
    """A trace must know every worker's step time."""
    known = {worker for _, worker, _, step_time in rows if step_time is not None}
    missing = sorted(set(range(run.meta("workers"))) - known)
    if missing:
        raise RunError(
            f"{run.folder}: worker {missing[0]} finished no local step in "
            f"{run.rounds_done} rounds, so its step time is unknown",
            allowed="a run in which every worker took part at least once",
            fix="export a run with more rounds or fewer absences",
        )
