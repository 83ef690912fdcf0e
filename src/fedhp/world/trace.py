"""A recorded world, read from CSV.

Columns: time (s), worker, and bandwidth (in the unit of world.bandwidth) and/or step_time
(s); with a column `peer`, bandwidth belongs to the link. Instead of bandwidth, uplink and
downlink of each worker; available (1 or 0); other_time (s per round besides steps and transfers).
A value holds until the next row of the same worker (or link); before the first row, the first
value holds.
"""

from __future__ import annotations

import csv
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from math import inf, nextafter
from pathlib import Path
from typing import Any

import numpy as np

from fedhp.errors import ConfigError, DataError
from fedhp.types import BoolArray, FloatArray

TRACE_COLUMNS = (
    *("time", "worker", "peer", "bandwidth", "step_time"),
    *("uplink", "downlink", "available", "other_time"),
)
MOST_TIME = 1e12
# A clock that repeats the recording adds up other roundings: it may be this early, relatively.
ROUNDING = 1e-9


@dataclass(slots=True)
class _Series:
    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def at(self, time: float) -> float:
        return self.values[max(0, bisect_right(self.times, time * (1 + ROUNDING)) - 1)]


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded world, looked up by virtual time."""

    workers: int
    bandwidth: dict[tuple[int, int], _Series]  # (worker, worker) for a worker's own
    step_time: dict[int, _Series]
    uplink: dict[int, _Series] = field(default_factory=dict)  # instead of bandwidth
    downlink: dict[int, _Series] = field(default_factory=dict)
    presence: dict[int, _Series] = field(default_factory=dict)  # 1: available; none: always
    other_time: dict[int, _Series] = field(default_factory=dict)  # none: 0
    length: float = inf  # s after which it begins again; infinity: the last values hold

    def within(self, time: float) -> float:
        """A virtual time as one of the recording."""
        if self.length == inf:
            return time
        position = time % self.length
        return 0.0 if self.length - position <= ROUNDING * time else position

    @property
    def has_links(self) -> bool:
        return bool(self.bandwidth or self.uplink)

    @property
    def per_link(self) -> bool:
        return any(a != b for a, b in self.bandwidth)

    def bandwidth_at(self, time: float, unit_bits: float) -> FloatArray:
        """Bits per second, [N] or [N, N]."""
        time = self.within(time)
        if not self.per_link:
            return np.array(
                [self.bandwidth[i, i].at(time) * unit_bits for i in range(self.workers)]
            )
        matrix = np.full((self.workers, self.workers), np.inf)
        for (a, b), series in self.bandwidth.items():
            matrix[a, b] = matrix[b, a] = series.at(time) * unit_bits
        return matrix

    def lines_at(self, time: float, unit_bits: float) -> tuple[FloatArray, FloatArray]:
        """Bits per second that every worker sends and receives at, [N] each."""
        time = self.within(time)
        up, down = (
            np.array([series[i].at(time) * unit_bits for i in range(self.workers)])
            for series in (self.uplink, self.downlink)
        )
        return up, down

    def available_at(self, time: float) -> BoolArray:
        here, time = np.ones(self.workers, dtype=np.bool_), self.within(time)
        for worker, series in self.presence.items():
            here[worker] = series.at(time) > 0
        return here

    def seconds_away(self, time: float) -> FloatArray:
        """How long until each worker is available again, [N]; infinity for never."""
        seconds = np.where(self.available_at(time), 0.0, inf)
        now = self.within(time)
        for worker in np.flatnonzero(seconds).tolist():
            series = self.presence[worker]
            back = [at for at, here in zip(series.times, series.values, strict=True) if here]
            later = [at for at in back if at > now]
            if later:
                seconds[worker] = later[0] - now
            elif back:  # in the next repetition, whose first value holds from its start
                first = 0.0 if series.values[0] else back[0]
                seconds[worker] = self.length + first - now
        return seconds

    def other_time_at(self, worker: int, time: float) -> float:
        recorded = self.other_time.get(worker)
        return 0.0 if recorded is None else recorded.at(self.within(time))

    def next_change(self, time: float) -> float:
        """When the next bandwidth is recorded; infinity after the last."""
        links, now = (self.bandwidth, self.uplink, self.downlink), self.within(time)
        following = [
            series.times[index]
            for series in chain.from_iterable(recorded.values() for recorded in links)
            if (index := bisect_right(series.times, now)) < len(series.times)
        ]
        change = time - now + min(min(following, default=inf), self.length)
        return max(change, nextafter(time, inf))  # the sum may round down

    def step_time_at(self, worker: int, time: float) -> float:
        return self.step_time[worker].at(self.within(time))


def read_trace(path: str | Path, *, workers: int, repeat: bool = False) -> Trace:
    """Read and check a trace; repeat: after its end it begins again."""
    file = Path(path)
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
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
    _check(trace, path)
    return replace(trace, length=_length(rows, path)) if repeat else trace


def _length(rows: list[dict[str, str]], path: str | Path) -> float:
    """The last row holds for as long as rows are apart on average."""
    times = sorted({float(row["time"]) for row in rows})
    if times[-1] == 0:
        raise DataError(
            f"world.trace = {path}: all rows have the time 0, so there is nothing to repeat",
            allowed="a trace with rows of several times",
            fix="remove world.trace_repeat: the values hold for ever",
        )
    return times[-1] + (times[-1] - times[0]) / max(1, len(times) - 1)


def _add(trace: Trace, row: dict[str, str], where: str) -> None:
    if None in row:  # where the reader puts cells without a column
        raise DataError(
            f"{where}: it has more cells than the header line has columns",
            allowed="one cell for each column",
            fix="remove the extra cells of that line, or add the column to the header line",
        )
    unknown = [name for name in row if name not in TRACE_COLUMNS]
    if unknown or "time" not in row or "worker" not in row:
        raise DataError(
            f"{where}: the columns are {', '.join(str(name) for name in row)}",
            allowed="time, worker, optionally peer, and bandwidth (or uplink and downlink), "
            "step_time, available and/or other_time",
            fix="correct the header line",
        )
    time = _number(row["time"], "time", where, least=0.0, most=MOST_TIME)
    worker = _index(row["worker"], "worker", trace.workers, where)
    peer = _index(row["peer"], "peer", trace.workers, where) if row.get("peer") else worker
    link = (min(worker, peer), max(worker, peer))
    recorded: tuple[tuple[str, dict[Any, _Series], Any, float, float], ...] = (
        ("bandwidth", trace.bandwidth, link, 1e-6, 1e9),
        ("step_time", trace.step_time, worker, 1e-6, 1e4),
        ("uplink", trace.uplink, worker, 1e-6, 1e9),
        ("downlink", trace.downlink, worker, 1e-6, 1e9),
        ("other_time", trace.other_time, worker, 0.0, 1e4),
        ("available", trace.presence, worker, 0.0, 1.0),
    )
    for column, by_key, key, least, most in recorded:
        if not row.get(column):
            continue
        value = _number(row[column], column, where, least=least, most=most)
        if column == "available" and row[column].strip() not in ("0", "1"):
            raise DataError(
                f"{where}: available is {row['available']!r}",
                allowed="1 (the worker is there) or 0 (it is away)",
                fix="correct that line",
            )
        series = by_key.setdefault(key, _Series())
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


def _check(trace: Trace, path: str | Path) -> None:
    if len({a == b for a, b in trace.bandwidth}) > 1:
        raise DataError(
            f"world.trace = {path}: some bandwidths belong to workers, some to links",
            allowed="the column peer filled in every row with a bandwidth, or in none",
            fix="give all bandwidths per worker, or all per link",
        )
    if trace.uplink.keys() != trace.downlink.keys() or (trace.uplink and trace.bandwidth):
        raise DataError(
            f"world.trace = {path}: uplink and downlink do not belong to the same workers"
            if not trace.bandwidth
            else f"world.trace = {path}: some rows have bandwidth, some uplink or downlink",
            allowed="uplink and downlink for every worker, or bandwidth alone",
            fix="fill in both columns, or remove them",
        )
    if not (trace.has_links or trace.step_time or trace.presence or trace.other_time):
        raise DataError(
            f"world.trace = {path}: the file has no values",
            allowed="rows with bandwidth, step_time, available or other_time",
            fix="record a trace with `fedhp export RUN --trace FILE`, or remove world.trace",
        )
    workers = range(trace.workers)
    needed = set(combinations(workers, 2)) if trace.per_link else {(i, i) for i in workers}
    missing = sorted(needed - trace.bandwidth.keys()) if trace.bandwidth else []
    by_worker = [recorded for recorded in (trace.step_time, trace.uplink) if recorded]
    unknown = sorted({worker for known in by_worker for worker in set(workers) - known.keys()})
    if missing or unknown:
        what = f"worker {missing[0][0] if missing else unknown[0]}"
        if missing and trace.per_link:
            what = f"link {missing[0]}"
        raise ConfigError(
            f"{path} has no values for {what}, but workers = {trace.workers}",
            key="world.trace",
            allowed="a trace that covers every worker",
            fix="set workers to the number in the trace, or record a new trace",
            others=("workers",),
        )
