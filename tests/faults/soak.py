"""Hours of a federation under random faults: python -m faults.soak --hours 2.

Eight workers, a leader and a standby (etcd), mutual TLS, emulated step times. Samples are written
to OUT/samples.jsonl; at the end the run is verified, and growth is judged (soak_report.py).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from faults.fault_run import FaultRun, experiment, longest_pause
from faults.soak_report import (
    SAMPLES_FILE,
    WRITE_AHEAD_LOGS,
    ProcessSample,
    Sample,
    SoakReport,
    judge,
    lines_of,
    read_samples,
    write_sample,
)
from fedhp.cluster.audit.invariants import check_invariants
from fedhp.cluster.audit.merge import gather
from fedhp.cluster.audit.verify import verify
from fedhp.cluster.coordinator.process.announcements import read_announcement
from fedhp.cluster.history import events_in
from fedhp.cluster.ledger.etcd import LEASE
from fedhp.cluster.ops import operator
from fedhp.config import Experiment
from fedhp.errors import FedhpError
from fedhp.record.store import RECORD_FILE
from fedhp.seeds import Purpose, generator
from net.etcd_support import PROGRAM, Etcd, running_etcd

FIRST, SECOND = "c0", "c1"
SPARED = ("w0", "w1", SECOND)  # stopped at times, but never killed: they live as long as the run
WORKERS = 8
MAX_AWAY = 3  # workers at the same time
FAULT_SECONDS = (10.0, 30.0)  # between two faults
SAMPLE_SECONDS = 10.0
QUIET_SECONDS = 45.0  # without faults at the end
LOOK_SECONDS = 0.5
END_SECONDS = 120.0  # until all have ended after the stop
STUCK_SECONDS = 120.0  # without a commit
TAIL = 1 << 16  # bytes of a history in which a commit is surely found
TICKS = os.sysconf("SC_CLK_TCK")
# As docs/cluster.md recommends: without it etcd keeps the state of every round.
COMPACTION = ("--auto-compaction-retention", "1h")


def settings_of(*, seed: int, hours: float) -> Experiment:
    """Rounds of about two seconds; more of them than fit into the time."""
    return experiment(
        seed=seed,
        workers=WORKERS,
        rounds=1000 + int(3600 * hours),
        algorithm={"name": "fedhp", "max_steps": 5},
        model={"name": "mlp"},
        world={"profile": "uniform", "device": {"xavier_nx": {"step_time": 0.4, "sd": 0.05}}},
        cluster={"beat": 0.5, "suspect_after": 2.0, "dead_after": 6.0},
    )


class Soak:
    """The faults of a run and its samples."""

    def __init__(self, run: FaultRun, etcd: Etcd, *, seed: int, folder: Path) -> None:
        self._run, self._etcd, self._folder = run, etcd, folder.resolve()
        self._random = generator(seed, Purpose.ALGORITHM, 78)
        self._away: dict[str, tuple[float, str]] = {}  # until when, and by which kind of fault
        self._started = time.monotonic()
        self.faults: Counter[str] = Counter()
        self.problems: list[str] = []

    def go_on(self, seconds: float) -> None:
        """Plant faults and take samples for so long; then all processes run again."""
        end = self._now() + seconds
        next_sample, next_fault = self._now(), self._now() + FAULT_SECONDS[1]
        progress, progress_at = 0, self._now()
        while (now := self._now()) < end:
            self._end_faults(now)
            self._check_processes()
            if now >= next_sample:
                next_sample += SAMPLE_SECONDS
                sample = self._sample(now)
                write_sample(sample, self._folder / SAMPLES_FILE)
                if sample.round_index > progress:
                    progress, progress_at = sample.round_index, now
                elif now - progress_at > STUCK_SECONDS:
                    raise TimeoutError(f"no round after {progress} for {now - progress_at:.0f} s")
            if now >= next_fault and now < end - QUIET_SECONDS:
                next_fault = now + self._random.uniform(*FAULT_SECONDS)
                self._begin_fault(now)
            self._run.pass_time(LOOK_SECONDS)
        self._end_faults(float("inf"))

    def _now(self) -> float:
        return time.monotonic() - self._started

    # --- faults ----------------------------------------------------------------------------

    def _begin_fault(self, now: float) -> None:
        kind = str(
            self._random.choice(
                ["kill worker", "stop worker", "kill coordinator", "stop coordinator"],
                p=[0.4, 0.3, 0.15, 0.15],
            )
        )
        names = self._candidates(kind)
        if not names:
            return
        name = str(self._random.choice(names))
        seconds = float(self._random.uniform(1.0, 9.0))
        if kind == "stop coordinator":
            seconds += LEASE  # so that the other one leads
        if kind.startswith("kill"):
            self._run.kill(name)
        else:
            self._run.stop(name)
        self.faults[kind] += 1
        self._away[name] = now + seconds, kind
        _say(f"{now:.0f} s: {kind} {name} for {seconds:.1f} s")

    def _candidates(self, kind: str) -> list[str]:
        names: tuple[str, ...] = ()
        if kind.endswith("coordinator"):
            names = () if self._away.keys() & {FIRST, SECOND} else (FIRST, SECOND)
        else:
            workers = self._run.cluster.workers
            crowded = len(self._away.keys() & set(workers)) >= MAX_AWAY
            names = () if crowded else workers
        if kind == "stop coordinator":
            return [name for name in names if name == SECOND]  # the other one is killed instead
        return [
            name
            for name in names
            if name not in self._away and (kind.startswith("stop") or name not in SPARED)
        ]

    def _end_faults(self, now: float) -> None:
        for name, (until, kind) in list(self._away.items()):
            if now < until:
                continue
            if kind.startswith("kill"):
                self._run.restart(name)
            else:
                self._run.wake(name)
            del self._away[name]

    def _check_processes(self) -> None:
        """A process that ends without a fault is a defect; it is restarted all the same."""
        for name, code in self._run.cluster.exit_codes().items():
            if code is not None and name not in self._away:
                self.problems.append(f"{name} ended by itself at {self._now():.0f} s, code {code}")
                _say(self.problems[-1])
                self._run.note("kill", name)
                self._run.restart(name)

    # --- samples ---------------------------------------------------------------------------

    def _sample(self, now: float) -> Sample:
        cluster = self._run.cluster
        leader = self._leader()
        processes = [("etcd", self._etcd.pid(0), "etcd")]
        for name in (*cluster.coordinators, *cluster.workers):
            role = "worker" if name in cluster.workers else "standby"
            if name not in self._away:
                processes.append((name, cluster.pid(name), "leader" if name == leader else role))
        return Sample(
            at=now,
            round_index=self._committed(),
            processes=tuple(_measure(*process) for process in processes),
            disk=disk_of(self._folder),
            faults=dict(self.faults),
        )

    def _leader(self) -> str:
        latest = []
        for name in self._run.cluster.coordinators:
            with contextlib.suppress(OSError):
                latest.append(read_announcement(self._run.cluster.record_folder(name)))
        return max(latest, key=lambda announced: announced.epoch).name if latest else ""

    def _committed(self) -> int:
        return max(
            last_commit(self._run.cluster.record_folder(name) / f"history-{name}.jsonl")
            for name in self._run.cluster.coordinators
        )


def last_commit(file: Path) -> int:
    """The last committed round of a history that may be long."""
    if not file.exists():
        return 0
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - TAIL))
        events = events_in(stream.read())
    return max((int(event["round"]) for event in events if event["event"] == "commit"), default=0)


def disk_of(folder: Path) -> dict[str, int]:
    """Bytes by kind of file."""
    sizes: Counter[str] = Counter()
    for path, _, files in os.walk(folder):
        parts = Path(path).relative_to(folder).parts
        for name in files:
            with contextlib.suppress(FileNotFoundError):  # a model that was replaced
                sizes[_kind_of(name, parts)] += _size_of(Path(path) / name)
    return dict(sizes)


def _size_of(file: Path) -> int:
    """Of a record with what is still in its write-ahead log, which is written back in bulk."""
    if file.name == RECORD_FILE:
        with (
            contextlib.suppress(sqlite3.Error),
            contextlib.closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as record,
        ):
            (pages,) = record.execute("PRAGMA page_count").fetchone()
            (page_size,) = record.execute("PRAGMA page_size").fetchone()
            return int(pages) * int(page_size)
    return file.stat().st_size


def _kind_of(name: str, parts: tuple[str, ...]) -> str:
    if parts[:1] in (("etcd",), ("logs",)):
        return parts[0]
    if name.startswith("history-"):
        return "histories"
    if name.startswith(RECORD_FILE):
        return "records" if name == RECORD_FILE else WRITE_AHEAD_LOGS
    return "workers" if parts[:1] == ("workers",) else "other"


def _measure(name: str, pid: int, role: str) -> ProcessSample:
    """From /proc."""
    folder = Path("/proc") / str(pid)
    sizes: Counter[str] = Counter()
    for line in (folder / "smaps_rollup").read_text(encoding="ascii").splitlines()[1:]:
        key, value = line.split(":")
        sizes[key] += 1024 * int(value.split()[0])
    # After the name, which may hold spaces: utime and stime are 12th and 13th, threads 18th.
    stat = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return ProcessSample(
        name=name,
        pid=pid,
        role=role,
        rss=sizes["Rss"],
        uss=sizes["Private_Clean"] + sizes["Private_Dirty"],
        fds=len(os.listdir(folder / "fd")),
        threads=int(stat[17]),
        cpu=(int(stat[11]) + int(stat[12])) / TICKS,
    )


# --- a whole run ---------------------------------------------------------------------------


def soak(folder: Path, *, hours: float, seed: int) -> SoakReport:
    """Run, stop by the operator's command, verify and judge."""
    settings = settings_of(seed=seed, hours=hours)
    (folder / "etcd").mkdir(parents=True)
    problems: list[str] = []
    with (
        running_etcd(folder / "etcd", 1, extra=COMPACTION) as etcd,
        FaultRun(settings, folder, coordinators=(FIRST, SECOND), ha=etcd.url) as run,
    ):
        run.start()
        run.until_round(1)
        faults = Soak(run, etcd, seed=seed, folder=folder)
        try:
            faults.go_on(3600 * hours)
            _say(operator.command(operator.target_of(folder), stop=True))
            run.cluster.wait(END_SECONDS)
            missing = set(range(WORKERS)) - run.last_participants()
            if missing:
                problems.append(f"workers {sorted(missing)} took no part in the last round")
        except (TimeoutError, FedhpError) as error:
            problems.append(f"{type(error).__name__}: {error}")
    report = judge(read_samples(folder / SAMPLES_FILE))
    report.problems += [*faults.problems, *problems, *_verify(folder)]
    return report


def _verify(folder: Path) -> Iterator[str]:
    """Every promise kept, every compared model bit-equal, and the record complete."""
    yield from (str(violation) for violation in check_invariants(folder))
    verification = verify(folder)
    compared = sum(verdict.compared for verdict in verification.rounds)
    _say(
        f"verify: {compared} models of {len(verification.rounds)} rounds compared; "
        f"the longest pause was {longest_pause(folder):.1f} s"
    )
    for verdict in verification.rounds:
        if verdict.different:
            yield f"round {verdict.round_index}: models {verdict.different} are not bit-equal"
    if not verification.whole:
        reasons = {verdict.why_not for verdict in verification.rounds if verdict.why_not}
        yield f"not all rounds could be repeated: {'; '.join(sorted(reasons))}"
    gathered = gather([folder / FIRST, folder / SECOND], folder / "gathered")
    _say(f"gather: {gathered.rounds} rounds, led in {len(gathered.pieces)} pieces")


def _say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    """Run it, or report on one that is in progress; returns the exit code."""
    parser = argparse.ArgumentParser(prog="faults.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/soak"), help="a new folder")
    parser.add_argument(
        "--report", action="store_true", help="only judge the samples in --out so far"
    )
    options = parser.parse_args()
    if options.report:
        report = judge(read_samples(options.out / SAMPLES_FILE))
    elif PROGRAM is None:
        parser.error("etcd is not installed; to install it: apt-get install etcd-server")
    elif options.out.exists():
        parser.error(f"--out {options.out} exists; choose another folder, or delete it")
    elif not 0 < options.hours <= 1000:
        parser.error(f"--hours {options.hours} is not allowed; choose a number above 0, up to 1000")
    else:
        report = soak(options.out, hours=options.hours, seed=options.seed)
        content = json.dumps(asdict(report), indent=1) + "\n"
        (options.out / "soak.json").write_text(content, encoding="utf-8")
    for line in lines_of(report):
        _say(line)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
