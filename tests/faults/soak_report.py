"""Samples of a long run with faults: memory, file descriptors and disk at its start and its end.

The start is the time after the warm-up. A process that lives through both is judged by itself;
processes that were killed and restarted are compared by role.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

WARM_UP = 0.05  # of the run, before the start is measured
WINDOW = 0.10  # of the run: the start and the end
LEAST_SAMPLES = 5  # in a window
LEAST_HOURS = 0.5  # that a process must have lived to extrapolate its growth
MAX_FD_CHANGE = 3.0
MAX_GROWTH = 5.0  # % of RSS per hour
MAX_DISK_CHANGE = 10.0  # % of the bytes per round
ETCD = "etcd"  # grows until it compacts its revisions: shown, not judged
WRITE_AHEAD_LOGS = "SQLite logs"
# Of bounded size, and not the run's own; left out of the growth per round.
NOT_GROWING = (ETCD, WRITE_AHEAD_LOGS)
SAMPLES_FILE = "samples.jsonl"


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One process at one moment."""

    name: str
    pid: int
    role: str  # worker, leader, standby or etcd
    rss: int  # bytes
    uss: int  # bytes that no other process shares
    fds: int
    threads: int
    cpu: float  # s since it was started


@dataclass(frozen=True, slots=True)
class Sample:
    """All processes and the disk at one moment."""

    at: float  # s since the start
    round_index: int
    processes: tuple[ProcessSample, ...]
    disk: dict[str, int]  # bytes by kind of file
    faults: dict[str, int]  # so far, by kind


@dataclass(frozen=True, slots=True)
class Change:
    """A measured value at the start and at the end."""

    start: float
    end: float

    @property
    def percent(self) -> float:
        """Of the value at the start."""
        return 100 * (self.end - self.start) / self.start if self.start else 0.0


@dataclass(frozen=True, slots=True)
class LifetimeReport:
    """A process that was there at the start and at the end."""

    name: str
    hours: float
    rss: Change
    uss: Change
    rss_growth: float | None  # % per hour; None: too short to say
    rss_per_round: float  # bytes
    fds: dict[str, Change]  # by role


@dataclass(frozen=True, slots=True)
class RoleReport:
    """All processes of one role, also those that were restarted."""

    role: str
    processes: int
    rss: Change
    uss: Change
    fds: Change
    threads: Change
    most_fds: int


@dataclass(slots=True)
class SoakReport:
    """The figures of a run, and what is wrong with them."""

    hours: float
    rounds: int
    cores: float  # on average, all processes
    faults: dict[str, int]
    lifetimes: list[LifetimeReport] = field(default_factory=list)
    roles: list[RoleReport] = field(default_factory=list)
    disk: dict[str, Change] = field(default_factory=dict)  # bytes per round
    disk_total: int = 0
    problems: list[str] = field(default_factory=list)


def write_sample(sample: Sample, file: Path) -> None:
    """Append a sample."""
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(asdict(sample)) + "\n")


def read_samples(file: Path) -> list[Sample]:
    """All samples of a run, which may still be in progress."""
    samples = []
    for line in file.read_text(encoding="utf-8").splitlines():
        facts = json.loads(line)
        processes = tuple(ProcessSample(**process) for process in facts.pop("processes"))
        samples.append(Sample(**facts, processes=processes))
    return samples


def judge(samples: Sequence[Sample]) -> SoakReport:
    """The figures at the start and the end, compared with the bounds."""
    first, last = samples[0].at, samples[-1].at
    length = last - first
    warm = first + WARM_UP * length
    start = [sample for sample in samples if warm <= sample.at <= warm + WINDOW * length]
    end = [sample for sample in samples if sample.at >= last - WINDOW * length]
    report = SoakReport(
        hours=length / 3600,
        rounds=samples[-1].round_index - samples[0].round_index,
        cores=_cpu_seconds(samples) / max(length, 1e-9),
        faults=samples[-1].faults,
        disk_total=_run_folder(samples[-1]),
    )
    if min(len(start), len(end)) < LEAST_SAMPLES:
        report.problems.append(f"only {len(samples)} samples: the run was too short to judge")
        return report
    report.lifetimes = list(_lifetimes(samples, start, end))
    report.roles = list(_roles(samples, start, end))
    report.disk = _disk(start, end)
    report.problems = list(_problems(report))
    return report


def _problems(report: SoakReport) -> Iterator[str]:
    for process in report.lifetimes:
        growth = process.rss_growth
        if process.name != ETCD and growth is not None and growth > MAX_GROWTH:
            yield (
                f"{process.name}: RSS grows by {growth:.1f} % per hour; "
                f"at most {MAX_GROWTH:g} % is allowed"
            )
        for role, fds in process.fds.items():
            yield from _fd_problem(f"{process.name} as {role}", fds)
    for group in report.roles:
        yield from _fd_problem(f"all processes that are {group.role}", group.fds)
    disk = report.disk["run folder"]
    if abs(disk.percent) > MAX_DISK_CHANGE:
        yield (
            f"disk: {disk.start:.0f} bytes per round at the start, {disk.end:.0f} at the end; "
            f"at most {MAX_DISK_CHANGE:g} % of change is allowed"
        )


def _fd_problem(who: str, fds: Change) -> Iterator[str]:
    if abs(fds.end - fds.start) > MAX_FD_CHANGE:
        yield (
            f"{who}: {fds.start:.0f} file descriptors at the start, {fds.end:.0f} at the end; "
            f"a change of at most {MAX_FD_CHANGE:g} is allowed"
        )


# --- processes -----------------------------------------------------------------------------


def _of(samples: Iterable[Sample], pid: int) -> list[ProcessSample]:
    return [process for sample in samples for process in sample.processes if process.pid == pid]


def _change(start: Sequence[ProcessSample], end: Sequence[ProcessSample], key: str) -> Change:
    return Change(
        *(float(median(getattr(process, key) for process in side)) for side in (start, end))
    )


def _lifetimes(
    samples: Sequence[Sample], start: Sequence[Sample], end: Sequence[Sample]
) -> Iterator[LifetimeReport]:
    """The processes that lived from the start to the end, or at least through half of both."""
    warm = start[0].at
    names = {process.pid: process.name for process in end[-1].processes}
    for pid, name in names.items():
        early, late = _of(start, pid), _of(end, pid)
        if 2 * len(early) < len(start) or 2 * len(late) < len(end):
            continue
        points = [
            (sample.at, sample.round_index, process.rss)
            for sample in samples
            for process in sample.processes
            if process.pid == pid and sample.at >= warm
        ]
        times, rounds, sizes = (
            np.array(column, dtype=float) for column in zip(*points, strict=True)
        )
        hours = (times[-1] - times[0]) / 3600
        rss = _change(early, late, "rss")
        growth = 100 * 3600 * _slope(times, sizes) / rss.start
        fds = {}
        for role in sorted({process.role for process in early}):
            before = [process for process in early if process.role == role]
            after = [process for process in late if process.role == role]
            if min(len(before), len(after)) >= LEAST_SAMPLES:
                fds[role] = _change(before, after, "fds")
        yield LifetimeReport(
            name=name,
            hours=hours,
            rss=rss,
            uss=_change(early, late, "uss"),
            rss_growth=growth if hours >= LEAST_HOURS else None,
            rss_per_round=_slope(rounds, sizes),
            fds=fds,
        )


def _roles(
    samples: Sequence[Sample], start: Sequence[Sample], end: Sequence[Sample]
) -> Iterator[RoleReport]:
    def by_role(window: Sequence[Sample]) -> dict[str, list[ProcessSample]]:
        groups: dict[str, list[ProcessSample]] = defaultdict(list)
        for sample in window:
            for process in sample.processes:
                groups[process.role].append(process)
        return groups

    early, late, everything = by_role(start), by_role(end), by_role(samples)
    for role, processes in everything.items():
        if min(len(early[role]), len(late[role])) < LEAST_SAMPLES:
            continue
        yield RoleReport(
            role=role,
            processes=len({process.pid for process in processes}),
            rss=_change(early[role], late[role], "rss"),
            uss=_change(early[role], late[role], "uss"),
            fds=_change(early[role], late[role], "fds"),
            threads=_change(early[role], late[role], "threads"),
            most_fds=max(process.fds for process in processes),
        )


def _cpu_seconds(samples: Sequence[Sample]) -> float:
    """Of all processes while they were sampled."""
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    for sample in samples:
        for process in sample.processes:
            # What a process used before its first sample counts, if it was started in between.
            first.setdefault(process.pid, process.cpu if sample is samples[0] else 0.0)
            last[process.pid] = process.cpu
    return sum(last[pid] - first[pid] for pid in last)


# --- disk ----------------------------------------------------------------------------------


def _run_folder(sample: Sample) -> int:
    return sum(size for kind, size in sample.disk.items() if kind not in NOT_GROWING)


def _disk(start: Sequence[Sample], end: Sequence[Sample]) -> dict[str, Change]:
    """Bytes per round: of the whole run folder, and of every kind of file."""

    def growth(window: Sequence[Sample], sizes: Sequence[int]) -> float:
        return _slope(
            np.array([sample.round_index for sample in window], dtype=float),
            np.array(sizes, dtype=float),
        )

    changes = {
        "run folder": Change(
            *(growth(window, [_run_folder(sample) for sample in window]) for window in (start, end))
        )
    }
    for kind in sorted(end[-1].disk):
        changes[kind] = Change(
            *(
                growth(window, [sample.disk.get(kind, 0) for sample in window])
                for window in (start, end)
            )
        )
    return changes


def _slope(xs: np.ndarray, ys: np.ndarray) -> float:
    """Of the least-squares line."""
    centred = xs - xs.mean()
    spread = float(centred @ centred)
    return float(centred @ ys) / spread if spread else 0.0


# --- the table -----------------------------------------------------------------------------


def lines_of(report: SoakReport) -> Iterator[str]:
    """The report as text."""
    faults = ", ".join(f"{count} x {kind}" for kind, count in sorted(report.faults.items()))
    yield (
        f"{report.hours:.2f} h, {report.rounds} rounds, {sum(report.faults.values())} faults "
        f"({faults}), {report.cores:.2f} cores on average"
    )
    yield (
        f"start: {100 * WINDOW:.0f} % of the run after a warm-up of {100 * WARM_UP:.0f} %; "
        f"end: the last {100 * WINDOW:.0f} %; medians"
    )
    yield ""
    yield "processes that were never killed"
    yield _row("name", "hours", "RSS start", "RSS end", "USS start", "USS end", "%/hour", "B/round")
    for process in report.lifetimes:
        growth = "" if process.rss_growth is None else f"{process.rss_growth:+.2f}"
        cells = [_mb(process.rss.start), _mb(process.rss.end)]
        cells += [_mb(process.uss.start), _mb(process.uss.end)]
        yield _row(
            process.name, f"{process.hours:.2f}", *cells, growth, f"{process.rss_per_round:+.0f}"
        )
        for role, fds in process.fds.items():
            yield f"  file descriptors as {role}: {fds.start:.0f} -> {fds.end:.0f}"
    yield ""
    yield "all processes by role"
    yield _row(
        "role", "processes", "RSS start", "RSS end", "USS start", "USS end", "fds", "threads"
    )
    for group in report.roles:
        yield _row(
            group.role,
            str(group.processes),
            *(_mb(size) for size in (group.rss.start, group.rss.end)),
            *(_mb(size) for size in (group.uss.start, group.uss.end)),
            f"{group.fds.start:.0f}->{group.fds.end:.0f}",
            f"{group.threads.start:.0f}->{group.threads.end:.0f}",
        )
        yield f"  most file descriptors of one process: {group.most_fds}"
    yield ""
    left_out = " and ".join(NOT_GROWING)
    yield f"disk (run folder at the end: {_mb(report.disk_total)}, without {left_out})"
    yield _row("files", "B/round", "B/round", "change")
    for kind, change in report.disk.items():
        yield _row(kind, f"{change.start:.0f}", f"{change.end:.0f}", f"{change.percent:+.1f} %")
    yield ""
    yield from (f"PROBLEM {problem}" for problem in report.problems)
    yield "failed" if report.problems else "passed"


def _row(first: str, *cells: str) -> str:
    return f"{first:12}" + "".join(f"{cell:>12}" for cell in cells)


def _mb(size: float) -> str:
    return f"{size / 1e6:.1f} MB"
