"""Record tables as files: CSV, Parquet where pyarrow is installed, and a world as a trace.

A trace replays a run's devices and links (`world.trace`). A synchronous round reads the links at
its start, so its trace is exact; step times are each worker's mean over the round. Asynchronous
runs are sampled at the starts of their rounds. capture.py makes that of a network of machines.
"""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from fedhp.config import parse
from fedhp.errors import FedhpError, RunError, install_extra
from fedhp.files import new_file, storage_errors, write_parts
from fedhp.record.reader import RunReader, RunSummary
from fedhp.record.statistics import summarize_runs
from fedhp.record.store import ROUND_TABLES
from fedhp.report.capture import CAPTURED_COLUMNS, STEP_TIME, captured_rows
from fedhp.report.groups import FINISHED, Batch
from fedhp.report.paired import compare_all
from fedhp.report.rounds import check_round
from fedhp.world.availability import RecordedPresence, build_availability
from fedhp.world.fedscale import read_clients
from fedhp.world.network import BITS, build_lines
from fedhp.world.trace import Trace, read_trace

Rows: TypeAlias = list[tuple[Any, ...]]
Types: TypeAlias = dict[str, str]  # SQLite's type of every column

TRACE_COLUMNS: tuple[str, ...] = ("time", "worker", "bandwidth", "step_time")
LINE_COLUMNS = ("time", "worker", "uplink", "downlink", "step_time")
REPORT_OWNER: Types = {"setting": "TEXT", "label": "TEXT", "seed": "INTEGER"}  # the run of a row
SPREAD: Types = {"mean": "REAL", "low": "REAL", "high": "REAL", "seeds": "INTEGER"}
MEANS: Types = {**dict.fromkeys(("setting", "label", "number"), "TEXT"), **SPREAD}
PAIR = ("first", "second", "number", "measure", "verdict")
PAIRED: Types = {**dict.fromkeys(("setting", *PAIR), "TEXT"), **SPREAD}
SUMMARY_TYPES = {
    **dict.fromkeys(("metric", "status", "digest"), "TEXT"),
    **dict.fromkeys(("rounds", "bytes_sent", "final_tests"), "INTEGER"),
}
PARQUET = ".parquet"
# Endings that promise another format than CSV.
OTHER_FORMATS = (
    *(".xlsx", ".xls", ".ods", ".tsv", ".json", ".jsonl", ".feather", ".arrow", ".orc", ".h5"),
    *(".npy", ".npz", ".pkl", ".sqlite", ".db", ".html", ".md", ".tex", ".gz", ".xz", ".zip"),
)
ROW_GROUP = 100_000  # rows of a Parquet row group


def table_csv(run: RunReader, table: str) -> Iterator[str]:
    """One table as CSV, piece by piece; missing values are empty, floats keep all digits."""
    return map(csv_text, run.blocks(table))


def save_table(run: RunReader, table: str, path: Path) -> Path:
    """One table as a file, however long it is: Parquet if the path ends so, else CSV."""
    if path.suffix.lower() in OTHER_FORMATS:
        raise RunError(
            f"{path}: tables are not written as {path.suffix.lower()} files",
            allowed="a path that ends in .csv or .parquet",
            fix=f"write --out {path.with_suffix('.csv')}",
        )
    if path.suffix.lower() != PARQUET:
        return save_parts(path, table_csv(run, table))
    if not has_parquet():
        raise RunError(
            f"{path}: Parquet files need pyarrow, which is not installed",
            allowed="a path that ends in .csv, or an installed pyarrow",
            fix=f"{install_extra('parquet')}; or write a .csv file",
        )
    types, blocks = run.column_types(table), run.blocks(table)
    next(blocks)  # the header
    return _save_parquet(path, types, blocks)


def save_tables(run: RunReader, folder: Path) -> list[Path]:
    if folder.suffix.lower() == PARQUET:
        raise RunError(
            f"{folder}: a Parquet file holds one table",
            allowed="--out FILE.parquet together with --table NAME, or --out FOLDER",
            fix=f"add --table, for example --table links --out {folder}",
        )
    return [save_table(run, name, folder / f"{name}.csv") for name in ROUND_TABLES]


def export_run(
    folder: str | Path,
    out: str | Path | None = None,
    *,
    table: str | None = None,
    trace: str | Path | None = None,
    models: str | Path | None = None,
    trust: Sequence[str] = (),
) -> list[Path]:
    """One table as a file, or all tables in a folder (default: RUN/tables); a trace; models."""
    paths: list[Path] = []
    with RunReader(folder, trust=trust) as run:
        if models is not None:
            paths += run.run_models().save(Path(models))
        if trace is not None:
            paths.append(save_text(Path(trace), trace_csv(run)))
        if table is not None:
            default = run.folder / "tables" / f"{table}.csv"
            paths.append(save_table(run, table, default if out is None else Path(out)))
        elif (trace is None and models is None) or out is not None:
            paths += save_tables(run, run.folder / "tables" if out is None else Path(out))
    return paths


def save_text(path: Path, text: str) -> Path:
    return save_parts(path, [text])


def save_parts(path: Path, parts: Iterable[str]) -> Path:
    """Write a whole file piece by piece, and its folder if needed."""
    with storage_errors(path, option="path"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_parts(path, (part.encode() for part in parts))
    return path


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV: missing values are empty, floats keep all digits."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


@dataclass(frozen=True, slots=True)
class ExportedRun:
    """A run that goes into common tables; `owner` fills the first columns of its rows."""

    owner: tuple[Any, ...]
    folder: Path
    summary: RunSummary


def has_parquet() -> bool:
    return importlib.util.find_spec("pyarrow") is not None


def save_report_data(
    batches: Sequence[Batch], summaries: Mapping[Path, RunSummary], folder: Path
) -> list[Path]:
    runs = [
        ExportedRun((batch.name, run.label, run.seed), run.folder, summaries[run.folder])
        for batch in batches
        for run in batch.runs
    ]
    with_folder = [replace(run, owner=(*run.owner, str(run.folder))) for run in runs]
    types = {**REPORT_OWNER, "run": "TEXT"}
    return [
        *save_summaries(with_folder, folder / "summary", owner=types),
        *save_frame(folder / "means", MEANS, lambda: iter([_means(batches, summaries)])),
        *save_frame(folder / "paired", PAIRED, lambda: iter([_paired(batches, summaries)])),
        *save_record_tables(runs, folder, owner=REPORT_OWNER, tables=ROUND_TABLES),
    ]


def save_summaries(runs: Sequence[ExportedRun], path: Path, *, owner: Types) -> list[Path]:
    """One row per run; targets (time, bytes) and times have columns. `path` has no suffix."""
    targets = sorted({t for run in runs for t in run.summary.time_to_target}, key=float)
    times = sorted({t for run in runs for t in run.summary.accuracy_at_time}, key=float)
    lists = ("class_accuracy", "mean_model_class_accuracy")  # the table class_test_metrics has them
    by_target = ("time_to_target", "bytes_to_target")
    left_out = ("algorithm", "seed", *by_target, "accuracy_at_time", *lists)
    names = [name for name in RunSummary.__slots__ if name not in left_out]
    types = {**owner, **{name: SUMMARY_TYPES.get(name, "REAL") for name in names}}
    types |= {f"time_to_{target}": "REAL" for target in targets}
    types |= {f"bytes_to_{target}": "INTEGER" for target in targets}
    types |= {f"accuracy_at_{time}": "REAL" for time in times}
    rows: Rows = []
    for run in runs:
        plain = run.summary.as_json()
        reached = [plain[name].get(target) for name in by_target for target in targets]
        results = [plain["accuracy_at_time"].get(time) for time in times]
        rows.append((*run.owner, *(plain[name] for name in names), *reached, *results))
    return save_frame(path, types, lambda: iter([rows]))


def save_record_tables(
    runs: Sequence[ExportedRun], folder: Path, *, owner: Types, tables: Iterable[str]
) -> list[Path]:
    with RunReader(runs[0].folder) as first:
        types = {table: {**owner, **first.column_types(table)} for table in tables}
    return [
        path
        for table in types
        for path in save_frame(folder / table, types[table], partial(_record_rows, runs, table))
    ]


def _record_rows(runs: Sequence[ExportedRun], table: str) -> Iterator[Rows]:
    for exported in runs:
        with RunReader(exported.folder) as run:
            blocks = run.blocks(table)
            next(blocks)  # its header
            for rows in blocks:
                yield [(*exported.owner, *row) for row in rows]


def _means(batches: Sequence[Batch], summaries: Mapping[Path, RunSummary]) -> Rows:
    """Mean and 95 % interval of every number over the finished seeds of a label."""
    rows: Rows = []
    for batch in batches:
        finished = [summaries[run.folder] for run in batch.runs if run.status == FINISHED]
        for label, summary in summarize_runs(finished).items():
            numbers = {name: value for name, value in summary.items() if isinstance(value, dict)}
            for name in ("time_to_target", "bytes_to_target", "accuracy_at_time"):
                start = name.rpartition("_")[0]
                numbers |= {f"{start}_{key}": v for key, v in numbers.pop(name).items()}
            for name, value in numbers.items():
                values = (value[end] for end in ("mean", "low", "high", "count"))
                rows.append((batch.name, label, name, *values))
    return rows


def _paired(batches: Sequence[Batch], summaries: Mapping[Path, RunSummary]) -> Rows:
    rows: Rows = []
    for batch in batches:
        for paired in compare_all([summaries[run.folder] for run in batch.runs]):
            plain = paired.as_json()
            spread = plain["interval"] or {}
            ends = (spread.get(end) for end in ("mean", "low", "high"))
            rows.append((batch.name, *(plain[name] for name in PAIR), *ends, paired.seeds))
    return rows


def save_frame(path: Path, types: Types, rows: Callable[[], Iterator[Rows]]) -> list[Path]:
    """Rows, a block at a time, as CSV and, where possible, Parquet; `path` has no suffix."""
    header: Rows = [tuple(types)]
    parts = map(csv_text, chain([header], rows()))
    paths = [save_parts(path.with_name(f"{path.name}.csv"), parts)]
    if has_parquet():
        paths.append(_save_parquet(path.with_name(f"{path.name}.parquet"), types, rows()))
    return paths


def _save_parquet(path: Path, types: Types, blocks: Iterable[Rows]) -> Path:
    import pyarrow
    import pyarrow.parquet

    kinds = {"INTEGER": pyarrow.int64(), "REAL": pyarrow.float64(), "TEXT": pyarrow.string()}
    schema = pyarrow.schema([(name, kinds[kind]) for name, kind in types.items()])
    with storage_errors(path, option="--out"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            new_file(path) as temporary,
            pyarrow.parquet.ParquetWriter(temporary, schema, compression="zstd") as writer,
        ):
            for rows in _row_groups(blocks):
                columns = zip(schema.types, zip(*rows, strict=True), strict=True)
                arrays = [pyarrow.array(column, type=kind) for kind, column in columns]
                writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))
    return path


def _row_groups(blocks: Iterable[Rows]) -> Iterator[Rows]:
    """Few large groups instead of many small ones, as the format prefers."""
    rows: Rows = []
    for block in blocks:
        rows += block
        if len(rows) >= ROW_GROUP:
            yield rows
            rows = []
    if rows:
        yield rows


def trace_csv(run: RunReader) -> str:
    """The run's bandwidths and step times over virtual time, as a trace, with who was away and the
    other times of a trace that it replayed; of a network of machines all that was measured."""
    check_round(run, None)
    if run.meta("network"):
        captured = captured_rows(run)
        _refuse_unknown(run, {row[1] for row in captured if row[STEP_TIME] is not None})
        return csv_text([CAPTURED_COLUMNS, *captured])
    replayed = _replayed_trace(run)
    _refuse_per_link(run, replayed)
    unit = BITS[run.meta("experiment")["world"]["bandwidth"]["unit"]]
    workers, rounds = run.table("workers"), run.table("rounds")
    starts = dict(zip(rounds["round"], [0.0, *rounds["clock"]], strict=False))
    columns_read = [workers[name] for name in ("round", "worker", "bandwidth", "step_time")]
    rows: Rows = [
        (starts[h], worker, None if speed is None else 8 * speed / unit, step_time)
        for h, worker, speed, step_time in zip(*columns_read, strict=True)
    ]
    _refuse_unknown(run, {worker for _, worker, _, step in rows if step is not None})
    lines, columns = _lines(run, replayed), TRACE_COLUMNS
    if lines is not None:
        columns = LINE_COLUMNS
        rows = [
            (at, worker, *(speed and speed * share for share in lines(at, worker)), step)
            for at, worker, speed, step in rows
        ]
    presence = _presence(run, replayed)
    if presence is not None:
        columns = (*columns, "available")
        rows = [(*row, here) for row, here in zip(rows, presence, strict=True)]
    if replayed is not None and replayed.other_time:
        columns = (*columns, "other_time")
        rows = [(*row, replayed.other_time_at(row[1], row[0])) for row in rows]
    return csv_text([columns, *rows])


def _presence(run: RunReader, replayed: Trace | None) -> list[int] | None:
    """Who took part, row by row of the workers' table; None where nobody can be away. Turns of an
    asynchronous algorithm have no rounds of their own: the starts of the rounds count."""
    experiment = parse(run.meta("experiment"), stored=True)
    world, workers = experiment.world, experiment.workers
    recorded: RecordedPresence | None = replayed if replayed and replayed.presence else None
    if not (world.away or world.away_probability or world.availability_trace or recorded):
        return None
    if not run.meta("asynchronous"):
        return [int(seconds is not None) for seconds in run.table("workers")["worker_time"]]
    seed, batch_size = experiment.seed, experiment.training.batch_size
    if world.availability_trace:
        _, recorded = read_clients(world, workers=workers, seed=seed, batch_size=batch_size)
    availability = build_availability(
        world, workers=workers, rounds=experiment.rounds, seed=seed, recorded=recorded
    )
    rounds = run.table("rounds")
    starts = zip(rounds["round"], [0.0, *rounds["clock"]], strict=False)
    return [int(here) for number, start in starts for here in availability.at(number, start)]


def _lines(
    run: RunReader, replayed: Trace | None
) -> Callable[[float, int], tuple[float, float]] | None:
    """Uplink and downlink of a worker in multiples of the recorded bandwidth, which is that of
    its slower direction; None where they are equal."""
    if replayed is not None and replayed.uplink:
        recorded = replayed

        def of_trace(time: float, worker: int) -> tuple[float, float]:
            up, down = (float(line[worker]) for line in recorded.lines_at(time, 1.0))
            return up / min(up, down), down / min(up, down)

        return of_trace
    experiment = parse(run.meta("experiment"), stored=True)
    workers, seed = experiment.workers, experiment.seed
    built = build_lines(experiment.world.bandwidth, workers=workers, seed=seed)
    if built is None:
        return None
    up, down = built.up / built.both, built.down / built.both
    return lambda time, worker: (float(up[worker]), float(down[worker]))


def _replayed_trace(run: RunReader) -> Trace | None:
    world = run.meta("experiment")["world"]
    replayed, repeat = world.get("trace"), bool(world.get("trace_repeat"))
    if not replayed:
        return None
    try:
        return read_trace(replayed, workers=run.meta("workers"), repeat=repeat)
    except FedhpError as error:
        raise RunError(
            f"{run.folder}: it replayed {replayed}, which can no longer be read, so it is "
            f"unknown whether its bandwidth is per worker: {error.problem}",
            allowed="a run whose own trace is still there, or one without a trace",
            fix=f"put {replayed} back",
        ) from None


def _refuse_per_link(run: RunReader, replayed: Trace | None) -> None:
    """The record keeps one bandwidth per worker: no way back to one per link."""
    per_link = run.meta("experiment")["world"]["bandwidth"]["per"] == "link"
    if per_link or (replayed is not None and replayed.per_link):
        raise RunError(
            f"{run.folder}: its bandwidth is per link, and a trace holds one value per worker",
            allowed='a run with world.bandwidth.per = "worker"',
            fix="export its tables instead: links.csv has the times of the links used",
        )


def _refuse_unknown(run: RunReader, known: set[int]) -> None:
    missing = sorted(set(range(run.meta("workers"))) - known)
    if missing:
        raise RunError(
            f"{run.folder}: worker {missing[0]} finished no local step in "
            f"{run.rounds_done} rounds, so its step time is unknown",
            allowed="a run in which every worker took part at least once",
            fix="export a run with more rounds or fewer absences",
        )
