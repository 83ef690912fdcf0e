"""What a round costs a coordinator of many scripted workers: CPU seconds, bytes, memory.

python -m bench.coordinator [--workers 100,300,1000] [--rounds 6]

The workers speak the protocol over mutual TLS from one process and train nothing. FedHP plans, on
a random base topology of degree 6. CPU seconds are the coordinator's, by the kernel's count.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sqlite3
import sys
import tempfile
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.venvs import ROOT

# The scripted workers are those of the tests.
sys.path.append(str(ROOT / "tests"))

from faults.offline import sparse_experiment
from faults.scripted import ScriptedWorker
from fedhp.cluster.coordinator.process.leadership import CoordinatorProcessSettings
from fedhp.cluster.ops import processes
from fedhp.cluster.ops.processes import ProcessEnvironment
from fedhp.record.reader import RunReader
from net.identities import make_certificates
from waiting import wait_until_async

SIZES = (100, 300, 1000)
ROUNDS = 6
PATIENCE = 800.0  # s for a whole run
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Sample:
    """A process at one moment."""

    cpu: float  # s
    written: int  # bytes into files
    beats: int  # heartbeats that it got

    @classmethod
    def of(cls, process: int, *, beats: int) -> Sample:
        """What the kernel says about it."""
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        lines = Path(f"/proc/{process}/io").read_text().splitlines()
        counts = dict(line.split(": ") for line in lines)
        return cls((int(fields[11]) + int(fields[12])) / TICKS, int(counts["wchar"]), beats)


@dataclass
class Watch:
    """The coordinator's process, looked at when the first order of a round arrives."""

    process: int
    beats: int = 0
    samples: dict[int, Sample] = field(default_factory=dict)  # by round

    def round_begins(self, round_index: int) -> None:
        """Somebody has its order."""
        if round_index not in self.samples:
            self.samples[round_index] = Sample.of(self.process, beats=self.beats)


class WatchedWorker(ScriptedWorker):
    """One that counts its heartbeats and says when a round begins."""

    watch: Watch

    async def call(self, method: str, request: Any, *, seconds: float) -> Any:
        """A call."""
        self.watch.beats += method == "Beat"
        return await super().call(method, request, seconds=seconds)

    async def _obey(self, order: Any) -> bool:
        if order.WhichOneof("what") == "work":
            self.watch.round_begins(order.work.round)
        return await super()._obey(order)


def measure(workers: int, *, rounds: int = ROUNDS) -> dict[str, float]:
    """A run of so many workers; the median round counts, without the first and the last one."""
    with tempfile.TemporaryDirectory(prefix="fedhp-coordinator-") as name:
        folder = Path(name)
        certificates = make_certificates(folder / "certs", workers)
        experiment = sparse_experiment(workers, rounds)
        settings = CoordinatorProcessSettings(
            experiment, certificates, folder / "run", name="boss", listen="127.0.0.1:0"
        )
        log = ProcessEnvironment(folder / "boss.log")
        coordinator = processes.start(processes.run_coordinator, settings, log)
        started = time.monotonic()
        try:
            assert coordinator.pid is not None
            watch = Watch(coordinator.pid)
            running = _everyone(workers, certificates, folder / "run", watch)
            asyncio.run(asyncio.wait_for(running, PATIENCE))
            coordinator.join(60)
        finally:
            if coordinator.is_alive():
                coordinator.kill()
            coordinator.join()
        seconds = time.monotonic() - started
        with RunReader(folder / "run") as run:
            megabytes = run.meta("peak_memory") / 2**20
        stored = _stored_state(folder / "run" / "ledger" / "ledger.sqlite")
    pairs = [(watch.samples[index], watch.samples[index + 1]) for index in range(2, rounds)]
    return {
        "cpu_seconds": median(after.cpu - before.cpu for before, after in pairs),
        "written_bytes": median(after.written - before.written for before, after in pairs),
        "heartbeats": median(after.beats - before.beats for before, after in pairs),
        "state_bytes": len(zlib.decompress(stored)),
        "stored_bytes": len(stored),
        "megabytes": megabytes,
        "links": 3 * workers,
        "run_seconds": seconds,
    }


async def _everyone(workers: int, certificates: Path, folder: Path, watch: Watch) -> None:
    announced = folder / "coordinator.json"
    await wait_until_async(announced.exists, "the coordinator's address")
    address = json.loads(announced.read_bytes())["address"]

    def worker(name: str) -> WatchedWorker:
        made = WatchedWorker.named(certificates, name, folder / "workers" / name, lambda: address)
        assert isinstance(made, WatchedWorker)
        made.watch = watch
        return made

    await asyncio.gather(*(worker(f"w{index}").live() for index in range(workers)))


def _stored_state(ledger: Path) -> bytes:
    with contextlib.closing(sqlite3.connect(f"{ledger.as_uri()}?mode=ro", uri=True)) as connection:
        content: bytes = connection.execute("SELECT content FROM ledger").fetchone()[0]
        return content


def main() -> int:
    """Measure each size once, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.coordinator")
    parser.add_argument("--workers", default=",".join(map(str, SIZES)))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    columns = (
        *("workers", "CPU s", "per worker", "heartbeats"),
        *("kB written", "kB state", "B per link", "MB"),
    )
    print(" ".join(f"{column:>11}" for column in columns), "  load")
    first: dict[str, float] = {}
    for size in (int(part) for part in arguments.workers.split(",")):
        cost = measure(size, rounds=arguments.rounds)
        share = {"cpu": cost["cpu_seconds"] / size, "state": cost["state_bytes"] / cost["links"]}
        first = first or share
        cells = (
            f"{size}",
            f"{cost['cpu_seconds']:.2f}",
            f"{share['cpu'] / first['cpu']:.2f} x",
            f"{cost['heartbeats']:.0f}",
            f"{cost['written_bytes'] / 1e3:.0f}",
            f"{cost['state_bytes'] / 1e3:.0f}",
            f"{share['state']:.0f}",
            f"{cost['megabytes']:.0f}",
        )
        print(" ".join(f"{cell:>11}" for cell in cells), f"  {os.getloadavg()[0]:.1f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
