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
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
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
        ratios = []
        for repeat in range(options.repeats):
            seconds = {}
            for watched in (False, True) if repeat % 2 else (True, False):
                seconds[watched] = timed_run(
                    experiment, folder / f"{repeat}-{watched}", options.viewers if watched else 0
                )
            ratios.append(seconds[True] / seconds[False])
            print(f"run alone {seconds[False]:.2f} s, watched {seconds[True]:.2f} s")
    cost = median(ratios) - 1
    print(f"a run with {options.viewers} viewers takes {100 * cost:+.1f} % (median of {ratios})")
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


def timed_run(experiment: Path, out: Path, viewers: int) -> float:
    """How long the rounds of a run take by its own record, s, with so many viewers."""
    with contextlib.ExitStack() as stack:
        if viewers:
            child = stack.enter_context(DashChild(out))
            ready = threading.Event()
            watching = threading.Thread(target=_watch_when_there, args=(child.url, viewers, ready))
            watching.start()
            stack.callback(watching.join)
            stack.callback(ready.set)
        _run(experiment, out)
        with RunReader(out) as run:
            took = float(run.meta("seconds"))
    shutil.rmtree(out)
    return took


def _watch_when_there(url: str, viewers: int, ended: threading.Event) -> None:
    while not ended.is_set():
        with contextlib.suppress(OSError):
            connection = _connect(url, ".")
            status = connection.getresponse().status
            connection.close()
            if status == 200:
                break
        time.sleep(0.1)
    with _viewers(url, ".", viewers, 0):
        ended.wait()


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
