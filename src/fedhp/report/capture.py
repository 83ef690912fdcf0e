"""Capture: a run on a network of machines as a world, to replay any algorithm on their speeds.

Every round gives the step times of its workers, the speed of its links, who took part, and what
the round took besides: mixing, testing, writing, calls. A replay of the same plans then takes the
same time; one of other plans takes what the simulator makes of these speeds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any, TypeAlias

from fedhp.record.reader import RunReader
from fedhp.report.rounds import round_rows
from fedhp.types import LinkVerdict
from fedhp.world.network import BITS

CAPTURED_COLUMNS = (
    *("time", "worker", "peer", "bandwidth", "uplink", "downlink"),
    *("step_time", "available", "other_time"),
)
STEP_TIME = CAPTURED_COLUMNS.index("step_time")
LEAST_SECONDS = 1e-6  # of a transfer: a shorter one says nothing about the link
Row: TypeAlias = tuple[Any, ...]  # of CAPTURED_COLUMNS
Rates: TypeAlias = dict[tuple[int, int], float]  # bits per second by link, smaller worker first


@dataclass(frozen=True, slots=True)
class _Round:
    number: int
    start: float  # s
    seconds: float
    directed: bool
    workers: list[dict[str, Any]]  # rows of the record
    links: list[dict[str, Any]]
    facts: Mapping[str, float | None]


def captured_rows(run: RunReader) -> list[Row]:
    """The rows of a trace of a networked run, in the order of time."""
    bandwidths = run.meta("experiment")["world"]["bandwidth"]
    unit, sharing = BITS[bandwidths["unit"]], bool(bandwidths["sharing"])
    asynchronous, rounds = bool(run.meta("asynchronous")), list(_rounds(run))
    per_worker = sharing or any(
        row["verdict"] == LinkVerdict.TREE.word for done in rounds for row in done.links
    )
    rates = {} if per_worker else {done.number: _rates(run, done) for done in rounds}
    rows = [] if per_worker else _unmeasured(rates, run.meta("workers"), unit)
    speeds = _learned_bandwidth(rounds) if per_worker else {}
    for done in rounds:
        other = {} if asynchronous else _other_times(done)
        for row in done.workers:
            worker, speed = row["worker"], speeds.get((done.number, row["worker"]))
            here = None if asynchronous else int(row["worker_time"] is not None)
            bandwidth = None if speed is None else 8 * speed / unit
            # A shared connection does as much in each direction, and one does not slow the other.
            links = (None, bandwidth, bandwidth) if sharing else (bandwidth, None, None)
            rows.append(
                (done.start, worker, None, *links, row["step_time"], here, other.get(worker))
            )
        for (a, b), rate in sorted(rates.get(done.number, {}).items()):
            rows.append(_link_row(done.start, a, b, rate / unit))
    return rows


def _link_row(time: float, a: int, b: int, bandwidth: float) -> Row:
    return (time, a, b, bandwidth, None, None, None, None, None)


def _rounds(run: RunReader) -> Iterator[_Round]:
    table, start = run.table("rounds"), 0.0
    for place, number in enumerate(table["round"]):
        yield _Round(
            number=number,
            start=start,
            seconds=table["round_time"][place],
            directed=bool(table["directed"][place]),
            workers=round_rows(run, number, "workers"),
            links=[row for row in round_rows(run, number, "links") if row["used"]],
            facts={row["name"]: row["value"] for row in round_rows(run, number, "facts")},
        )
        start = table["clock"][place]


def _rates(run: RunReader, done: _Round) -> Rates:
    """The speed of every link over which models went, in its slower direction.

    Bits of the model count, not those of its frames: a replay divides the former by the speed.
    Compressed models count as they were sent.
    """
    rates: Rates = {}
    # At its defaults it is not in the tables.
    exchange = run.meta("experiment").get("exchange", {})
    compressed = exchange.get("compression", "none") != "none"
    for row in done.links:
        if not row["bytes"] or row["link_time"] is None or row["link_time"] < LEAST_SECONDS:
            continue
        sent = run.meta("model_bytes")
        if compressed:
            sent = row["bytes"] / (1 if done.directed else 2)
        link, rate = (min(row["a"], row["b"]), max(row["a"], row["b"])), 8 * sent / row["link_time"]
        rates[link] = min(rate, rates.get(link, rate))
    return rates


def _unmeasured(rates: Mapping[int, Rates], workers: int, unit: float) -> list[Row]:
    """Rows for links that were never used: each counts as the usual speed of its slower end."""
    by_worker: dict[int, list[float]] = defaultdict(list)
    measured: set[tuple[int, int]] = set()
    for done in rates.values():
        measured |= done.keys()
        for link, rate in done.items():
            for end in link:
                by_worker[end].append(rate)
    if not measured:
        return []
    usual = median(rate for some in by_worker.values() for rate in some)
    speed = {
        worker: median(by_worker[worker]) if by_worker[worker] else usual
        for worker in range(workers)
    }
    return [
        _link_row(0.0, a, b, min(speed[a], speed[b]) / unit)
        for a, b in combinations(range(workers), 2)
        if (a, b) not in measured
    ]


def _learned_bandwidth(rounds: list[_Round]) -> dict[tuple[int, int], float]:
    """Bytes per second of each worker in each round, as the coordinator knew it afterwards: the
    plan of the next round has it."""
    known = {
        (done.number, row["worker"]): row["bandwidth"]
        for done in rounds
        for row in done.workers
        if row["bandwidth"] is not None
    }
    return {
        (number, worker): known.get((number + 1, worker), speed)
        for (number, worker), speed in known.items()
    }


def _other_times(done: _Round) -> dict[int, float]:
    """Seconds of the round besides steps and transfers, by worker: its own, and those after the
    last worker was ready."""
    present = [row for row in done.workers if row["worker_time"] is not None]
    deadline, transfer = done.facts.get("deadline"), done.facts.get("transfer_time")
    verdicts = {row["verdict"] for row in done.links}
    if LinkVerdict.SCORED.word in verdicts or not present:
        return {}  # scoring is part of it, and a replay charges that itself
    if LinkVerdict.TREE.word in verdicts:
        rest = max(0.0, done.seconds - (deadline or 0.0) - (transfer or 0.0))
        return {row["worker"]: rest for row in present}
    own = {
        row["worker"]: max(
            0.0, row["worker_time"] - (row["compute_time"] or 0) - (row["communication_time"] or 0)
        )
        for row in present
    }
    after = max(0.0, done.seconds - max(row["worker_time"] for row in present))
    return {worker: seconds + after for worker, seconds in own.items()}


def replay_settings(run: RunReader, path: str) -> list[str]:
    """The settings with which an experiment is replayed on its trace: its own lines, absences and
    recordings would be added to those in the trace; of a network also its delays."""
    world = run.meta("experiment")["world"]
    links = world["bandwidth"]
    settings = [f"world.trace={path}", f"world.bandwidth.unit={links['unit']}"]
    in_trace: dict[str, float] = {"uplink": 1.0, "downlink": 1.0}
    if run.meta("network"):
        settings += ["world.model_megabits=none"] if world.get("model_megabits") else []
        in_trace = {"latency": 0, "jitter": 0, **in_trace}
    settings += [
        f"world.bandwidth.{name}={neutral}"
        for name, neutral in in_trace.items()
        if links.get(name, neutral) != neutral
    ]
    settings += ["world.away=[]"] if world["away"] else []
    settings += ["world.away_probability=0"] if world["away_probability"] else []
    recordings = ("device_trace", "availability_trace", "availability_speed", "trace_clients")
    settings += [f"world.{name}=none" for name in recordings if name in world]
    return settings + (["world.trace_repeat=false"] if world.get("trace_repeat") else [])
