"""What the live page costs: how old an event is when viewers get it, and what a run pays for them.

python -m bench.dash [--viewers 20] [--rate 100] [--seconds 10] [--repeats 5]

Age: a history grows by so many events a second; every viewer compares the time in an event with its
own clock. Cost: the same run with the page and its viewers, and without, in turns; the ratio is
that of neighbours. Bars: a median age of 100 ms, and 2 % more time for the run.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import multiprocessing
import os
import resource
import selectors
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from bench.venvs import ROOT

sys.path.append(str(ROOT / "tests"))

from dash.growing import GrowingRun
from fedhp.dash.child import DashChild
from fedhp.record.reader import RunReader

AGE_BAR = 0.100  # s
COST_BAR = 0.02
RUN_SETTINGS = """
workers = 10
rounds = {rounds}
[data]
name = "digits"
skew = 0.6
[model]
name = "mlp"
hidden = [64]
[training]
local_steps = 40
[algorithm]
name = "fedhp"
"""


def main() -> int:
    """Measure and print; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--rate", type=float, default=100.0, help="events per second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=300, help="of the run whose cost is measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedhp-bench-") as name:
        folder = Path(name)
        experiment = folder / "run.toml"
        experiment.write_text(RUN_SETTINGS.format(rounds=20))
        _run(experiment, folder / "source")
        ages = event_ages(
            folder, viewers=options.viewers, rate=options.rate, seconds=options.seconds
        )
        expected = int(options.rate * options.seconds) * options.viewers
        middle, late = median(ages), sorted(ages)[int(0.99 * len(ages))]
        print(
            f"{options.viewers} viewers, {options.rate:g} events/s: {len(ages)} of {expected} "
            f"events arrived, median age {1000 * middle:.0f} ms, 99 % below {1000 * late:.0f} ms"
        )
        experiment.write_text(RUN_SETTINGS.format(rounds=options.rounds))
        ratios, cpu_ratios, shares = [], [], []
        for repeat in range(options.repeats):
            costs = {}
            for watched in (False, True) if repeat % 2 else (True, False):
                viewers = options.viewers if watched else 0
                costs[watched] = timed_run(experiment, folder / f"{repeat}-{watched}", viewers)
            alone, seen = costs[False], costs[True]
            ratios.append(seen.seconds / alone.seconds)
            cpu_ratios.append(seen.cpu / alone.cpu)
            shares.append(seen.page_cpu / seen.seconds)
            print(
                f"alone {alone.seconds:.2f} s ({alone.cpu:.2f} s CPU), "
                f"watched {seen.seconds:.2f} s ({seen.cpu:.2f} s CPU), "
                f"page {seen.page_cpu:.2f} s CPU",
                flush=True,
            )
    cost = median(ratios) - 1
    print(
        f"a run with {options.viewers} viewers takes {100 * cost:+.1f} % (median of "
        f"{len(ratios)}, {100 * (min(ratios) - 1):+.1f} to {100 * (max(ratios) - 1):+.1f} %), "
        f"its CPU time {100 * (median(cpu_ratios) - 1):+.1f} %; "
        f"the page uses {100 * median(shares):.1f} % of a core, with its start"
    )
    good = middle < AGE_BAR and len(ages) == expected and cost < COST_BAR
    return 0 if good else 1


def event_ages(folder: Path, *, viewers: int, rate: float, seconds: float) -> list[float]:
    """The ages of all events at all viewers, s."""
    growing = GrowingRun(folder / "source", folder / "live", network=True)
    growing.commit(3)
    total = int(rate * seconds)
    with DashChild(folder / "live") as child, _viewers(child.url, ".", viewers, total) as arrivals:
        began = time.monotonic()
        for number in range(total):
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
            growing.note(time.time(), "join", worker=number % 10, name=f"w{number % 10}")
        ages = arrivals()
    growing.end("finished")
    return ages


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run took, and the page next to it."""

    seconds: float  # of the rounds, by the run's own record
    cpu: float  # s, of the run
    page_cpu: float  # s, of the page's process


def timed_run(experiment: Path, out: Path, viewers: int) -> Cost:
    """A run with so many viewers; without any also without the page."""
    with contextlib.ExitStack() as stack:
        ended = threading.Event()
        child = None
        if viewers:
            child = stack.enter_context(DashChild(out))
            watching = threading.Thread(target=_watch, args=(child.url, viewers, ended))
            watching.start()
            stack.callback(watching.join)
            stack.callback(ended.set)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        _run(experiment, out)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        page_cpu = 0.0 if child is None else _cpu_of(child.pid)
        with RunReader(out) as run:
            seconds = float(run.meta("seconds"))
    shutil.rmtree(out)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Cost(seconds, cpu, page_cpu)


def _watch(url: str, viewers: int, ended: threading.Event) -> None:
    """Viewers that take what comes, as machines elsewhere would: nothing is parsed here."""
    connections: list[http.client.HTTPConnection] = []
    with selectors.DefaultSelector() as selector:
        while not ended.is_set():
            if len(connections) < viewers:
                with contextlib.suppress(OSError):
                    connection = _connect(url, ".")
                    response = connection.getresponse()
                    if response.status == 200:
                        connections.append(connection)
                        selector.register(response.fileno(), selectors.EVENT_READ)
                        continue
                    connection.close()  # the run has no record yet
                ended.wait(0.1)
                continue
            for key, _ in selector.select(0.5):
                if not os.read(key.fd, 1 << 16):
                    selector.unregister(key.fd)
    for connection in connections:
        connection.close()


def _cpu_of(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _run(experiment: Path, out: Path) -> None:
    command = [sys.executable, "-m", "fedhp", "run", str(experiment), "--out", str(out), "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _connect(url: str, run: str) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request("GET", f"/api/stream?run={run}")
    return connection


@contextlib.contextmanager
def _viewers(url: str, run: str, viewers: int, events: int) -> Iterator[Callable[[], list[float]]]:
    """Viewers in a process of their own; call the result for the ages that they saw."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_view, args=(url, run, viewers, events, there), daemon=True)
    process.start()
    here.recv()  # all are connected
    try:
        yield here.recv
    finally:
        process.kill()
        process.join()


def _view(url: str, run: str, viewers: int, events: int, pipe: Connection) -> None:
    ages: list[float] = []
    connected = threading.Barrier(viewers + 1)

    def watch() -> None:
        response = _connect(url, run).getresponse()
        for line in response:
            if line.startswith(b"event: round"):
                connected.wait()
                break
        seen = 0
        for line in response:
            now = time.time()
            if line.startswith(b"data: ") and b'"number"' in line:
                ages.append(now - json.loads(line[6:])["at"])
                seen += 1
            if events and seen == events:
                return

    threads = [threading.Thread(target=watch, daemon=True) for _ in range(viewers)]
    for thread in threads:
        thread.start()
    connected.wait()
    pipe.send("connected")
    deadline = time.monotonic() + 120.0
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    pipe.send(ages)


if __name__ == "__main__":
    sys.exit(main())
