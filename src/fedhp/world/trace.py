"""A recorded world, read from CSV.

Columns: time (s), worker, and bandwidth (in the unit of world.bandwidth) and/or step_time
(s); with a column `peer`, bandwidth belongs to the link. A value holds until the next row
of the same worker (or link); before the first row, the first value holds.
"""

from __future__ import annotations

import csv
from bisect import bisect_right
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import numpy as np

from fedhp.errors import ConfigError, DataError
from fedhp.types import FloatArray

TRACE_COLUMNS = ("time", "worker", "peer", "bandwidth", "step_time")


@dataclass(slots=True)
class _Series:
    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def at(self, time: float) -> float:
        return self.values[max(0, bisect_right(self.times, time) - 1)]


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded world, looked up by virtual time."""

    workers: int
    bandwidth: dict[tuple[int, int], _Series]  # (worker, worker) for a worker's own
    step_time: dict[int, _Series]

    @property
    def per_link(self) -> bool:
        """Whether bandwidth is recorded per link."""
        return any(a != b for a, b in self.bandwidth)

    def bandwidth_at(self, time: float, unit_bits: float) -> FloatArray:
        """Bits per second, [N] or [N, N]."""
        if not self.per_link:
            return np.array(
                [self.bandwidth[i, i].at(time) * unit_bits for i in range(self.workers)]
            )
        matrix = np.full((self.workers, self.workers), np.inf)
        for (a, b), series in self.bandwidth.items():
            matrix[a, b] = matrix[b, a] = series.at(time) * unit_bits
        return matrix

    def next_change(self, time: float) -> float:
        """When the next bandwidth is recorded; infinity after the last."""
        following = [
            series.times[index]
            for series in self.bandwidth.values()
            if (index := bisect_right(series.times, time)) < len(series.times)
        ]
        return min(following, default=inf)

    def step_time_at(self, worker: int, time: float) -> float:
        """Seconds per step."""
        return self.step_time[worker].at(time)


def read_trace(path: str | Path, *, workers: int, source: str = "") -> Trace:
    """Read and check a trace."""
    file = Path(path)
    try:
        with file.open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"world.trace = {path}: cannot be read: {error}",
            allowed="a CSV file with the columns time, worker, bandwidth and/or step_time",
            fix="check the path, or remove world.trace",
        ) from None
    trace = Trace(workers, {}, {})
    for number, row in enumerate(rows, start=2):
        _add(trace, row, f"world.trace = {path}, line {number}")
    _check_one_kind(trace, path)
    _check_complete(trace, path, source)
    return trace


def _add(trace: Trace, row: dict[str, str], where: str) -> None:
    unknown = [name for name in row if name not in TRACE_COLUMNS]
    if unknown or "time" not in row or "worker" not in row:
        raise DataError(
            f"{where}: the columns are {', '.join(str(name) for name in row)}",
            allowed="time, worker, optionally peer, and bandwidth and/or step_time",
            fix="correct the header line",
        )
    time = _number(row["time"], "time", where, least=0.0, most=1e12)
    worker = _index(row["worker"], "worker", trace.workers, where)
    peer = _index(row["peer"], "peer", trace.workers, where) if row.get("peer") else worker
    if row.get("bandwidth"):
        key = (min(worker, peer), max(worker, peer))
        series = trace.bandwidth.setdefault(key, _Series())
        value = _number(row["bandwidth"], "bandwidth", where, least=1e-6, most=1e9)
        _append(series, time, value, where)
    if row.get("step_time"):
        steps = trace.step_time.setdefault(worker, _Series())
        value = _number(row["step_time"], "step_time", where, least=1e-6, most=1e4)
        _append(steps, time, value, where)


def _append(series: _Series, time: float, value: float, where: str) -> None:
    if series.times and time < series.times[-1]:
        raise DataError(
            f"{where}: time {time:g} comes after {series.times[-1]:g}",
            allowed="times that rise for each worker",
            fix="sort the file by time",
        )
    series.times.append(time)
    series.values.append(value)


def _number(text: str, column: str, where: str, *, least: float, most: float) -> float:
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = float("nan")
    if not least <= value <= most:
        raise DataError(
            f"{where}: {column} is {text!r}",
            allowed=f"a number from {least:g} to {most:g}",
            fix="correct that line",
        )
    return value


def _index(text: str, column: str, workers: int, where: str) -> int:
    digits = (text or "").strip()
    if not digits.isdecimal() or len(digits) > 9 or int(digits) >= workers:
        raise DataError(
            f"{where}: {column} is {text!r}",
            allowed=f"a worker from 0 to {workers - 1}",
            fix="correct that line, or set workers to the number in the trace",
        )
    return int(digits)


def _check_one_kind(trace: Trace, path: str | Path) -> None:
    kinds = {a == b for a, b in trace.bandwidth}
    if len(kinds) > 1:
        raise DataError(
            f"world.trace = {path}: some bandwidths belong to workers, some to links",
            allowed="the column peer filled in every row with a bandwidth, or in none",
            fix="give all bandwidths per worker, or all per link",
        )


def _check_complete(trace: Trace, path: str | Path, source: str) -> None:
    if not trace.bandwidth and not trace.step_time:
        raise DataError(
            f"world.trace = {path}: the file has no values",
            allowed="rows with bandwidth and/or step_time",
            fix="record a trace with `fedhp export RUN --trace FILE`, or remove world.trace",
        )
    if trace.per_link:
        needed = {(a, b) for a in range(trace.workers) for b in range(a + 1, trace.workers)}
    else:
        needed = {(i, i) for i in range(trace.workers)}
    missing = sorted(needed - trace.bandwidth.keys()) if trace.bandwidth else []
    missing_steps = sorted(set(range(trace.workers)) - trace.step_time.keys())
    if missing or (trace.step_time and missing_steps):
        if missing and trace.per_link:
            what = f"link {missing[0]}"
        else:
            what = f"worker {missing[0][0] if missing else missing_steps[0]}"
        raise ConfigError(
            f"{path} has no values for {what}, but workers = {trace.workers}",
            key="world.trace",
            source=source,
            allowed="a trace that covers every worker",
            fix="set workers to the number in the trace, or record a new trace",
        )
