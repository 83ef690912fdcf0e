"""Every number of a report as files: the tables of all its runs in one CSV each, and Parquet.

Parquet is written where pyarrow is installed (pip install 'fedhp[parquet]').
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedhp.files import storage_error
from fedhp.record.reader import RunReader, RunSummary
from fedhp.record.statistics import summarize_runs
from fedhp.record.store import ROUND_TABLES
from fedhp.report.batches import Batch, Entry
from fedhp.report.export import csv_text, save_parts
from fedhp.report.groups import FINISHED

Rows = list[tuple[Any, ...]]
Types = dict[str, str]

OWN: Types = {"setting": "TEXT", "label": "TEXT", "seed": "INTEGER"}  # of every row: its run
MEANS: Types = {
    "setting": "TEXT",
    "label": "TEXT",
    "number": "TEXT",
    "mean": "REAL",
    "low": "REAL",
    "high": "REAL",
    "seeds": "INTEGER",
}
GROUP = 100_000  # rows of a Parquet row group


def has_parquet() -> bool:
    """Whether Parquet files can be written here."""
    return importlib.util.find_spec("pyarrow") is not None


def save_data(
    batches: Sequence[Batch], summaries: Mapping[Path, RunSummary], folder: Path
) -> list[Path]:
    """Write summary, means and all tables of all runs; returns the files."""
    runs = [(batch.name, entry) for batch in batches for entry in batch.runs]
    paths = save_frame(folder, "summary", *_summary(runs, summaries))
    paths += save_frame(folder, "means", MEANS, lambda: iter([_means(batches, summaries)]))
    with RunReader(runs[0][1].folder) as first:
        types = {table: {**OWN, **first.column_types(table)} for table in ROUND_TABLES}
    for table in ROUND_TABLES:
        paths += save_frame(folder, table, types[table], partial(_table, runs, table))
    return paths


def _summary(
    runs: Sequence[tuple[str, Entry]], summaries: Mapping[Path, RunSummary]
) -> tuple[Types, Callable[[], Iterator[Rows]]]:
    """One row per run; times to targets have a column each."""
    fields = [name for name in RunSummary.__slots__ if name not in ("algorithm", "seed")]
    fields.remove("time_to_target")
    targets = dict.fromkeys(
        target for _, entry in runs for target in summaries[entry.folder].time_to_target
    )
    texts, integers = ("metric", "status", "digest"), ("rounds", "bytes_sent")
    types = {**OWN, "run": "TEXT"}
    for name in fields:
        types[name] = "TEXT" if name in texts else "INTEGER" if name in integers else "REAL"
    types |= {f"time_to_{target}": "REAL" for target in targets}
    rows = []
    for setting, entry in runs:
        summary = summaries[entry.folder]
        plain = summary.as_json()
        times = [summary.time_to_target.get(target) for target in targets]
        own = (*_owner(setting, entry), str(entry.folder))
        rows.append((*own, *(plain[name] for name in fields), *times))
    return types, lambda: iter([rows])


def _means(batches: Sequence[Batch], summaries: Mapping[Path, RunSummary]) -> Rows:
    """Mean and 95 % interval of every number over the finished seeds of a label."""
    rows: Rows = []
    for batch in batches:
        done = [summaries[entry.folder] for entry in batch.runs if entry.status == FINISHED]
        for label, numbers in summarize_runs(done).items():
            found = {name: each for name, each in numbers.items() if isinstance(each, dict)}
            times = found.pop("time_to_target")
            found |= {f"time_to_{target}": each for target, each in times.items()}
            for name, each in found.items():
                values = (each["mean"], each["low"], each["high"], each["count"])
                rows.append((batch.name, label, name, *values))
    return rows


def _table(runs: Sequence[tuple[str, Entry]], table: str) -> Iterator[Rows]:
    for setting, entry in runs:
        owner = _owner(setting, entry)
        with RunReader(entry.folder) as run:
            blocks = run.blocks(table)
            next(blocks)  # its header
            for rows in blocks:
                yield [(*owner, *row) for row in rows]


def _owner(setting: str, entry: Entry) -> tuple[Any, ...]:
    return setting, entry.label, entry.seed


def save_frame(
    folder: Path, name: str, types: Types, rows: Callable[[], Iterator[Rows]]
) -> list[Path]:
    """Rows, a block at a time, as CSV and, where it can be, Parquet."""

    def parts() -> Iterator[bytes]:
        yield csv_text([list(types)]).encode()
        for block in rows():
            yield csv_text(block).encode()

    paths = [save_parts(folder / f"{name}.csv", parts())]
    if has_parquet():
        paths.append(_save_parquet(folder / f"{name}.parquet", types, rows()))
    return paths


def _save_parquet(path: Path, types: Types, blocks: Iterable[Rows]) -> Path:
    import pyarrow
    import pyarrow.parquet

    kinds = {"INTEGER": pyarrow.int64(), "REAL": pyarrow.float64(), "TEXT": pyarrow.string()}
    schema = pyarrow.schema([(name, kinds[kind]) for name, kind in types.items()])
    temporary = path.with_name(path.name + ".new")
    try:
        with pyarrow.parquet.ParquetWriter(temporary, schema, compression="zstd") as writer:
            for rows in _gathered(blocks):
                columns = zip(*rows, strict=True)
                arrays = [
                    pyarrow.array(column, type=field.type)
                    for column, field in zip(columns, schema, strict=True)
                ]
                writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise storage_error(error, path, option="--out") from None
    return path


def _gathered(blocks: Iterable[Rows]) -> Iterator[Rows]:
    """Few large parts instead of many small ones, as the format likes it."""
    rows: Rows = []
    for block in blocks:
        rows += block
        if len(rows) >= GROUP:
            yield rows
            rows = []
    if rows:
        yield rows
