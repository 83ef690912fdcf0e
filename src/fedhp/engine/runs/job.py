"""A job process of a campaign: cells come in on standard input, one JSON object per line;
events go out on standard output. It ends when its input ends."""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedhp.config import parse
from fedhp.config.origins import UNKNOWN, Origins
from fedhp.engine.runs.run import start_run
from fedhp.errors import Interrupted, as_fedhp_error
from fedhp.trust import grant
from fedhp.types import RoundRecord

Event = dict[str, Any]


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    # What a user's own module prints must not get into the protocol.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    stop, busy = threading.Event(), threading.Event()
    cells: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(cells, stop, busy), daemon=True).start()
    while (cell := cells.get()) is not None:
        for event in cell_events(cell, stop=stop.is_set):
            try:
                out.write(json.dumps(event) + "\n")
            except BrokenPipeError:
                os._exit(1)
        busy.clear()


def _listen(
    cells: queue.SimpleQueue[dict[str, Any] | None], stop: threading.Event, busy: threading.Event
) -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("stop"):
            stop.set()
        else:
            busy.set()
            cells.put(message)
    cells.put(None)
    if busy.is_set():
        # The parent is gone. Everything committed is safe on disk.
        os._exit(1)


def cell_events(
    cell: dict[str, Any], *, stop: Callable[[], bool] = lambda: False
) -> Iterator[Event]:
    """Run a cell; an event for every round, then one that says how it ended."""
    try:
        grant(cell["trust"])
        origins = Origins.of_file(cell["file"]) if cell["file"] else UNKNOWN
        experiment = parse(cell["experiment"], origins=origins)
        if experiment.executors == "auto":
            experiment = experiment.model_copy(update={"executors": cell["executors"]})
        folder, label = Path(cell["folder"]), cell["label"]
        run = start_run(experiment, folder, resume=True, label=label, stop=stop)
        for record in run.rounds():
            yield round_event(record, run.prepared.task.metric_name)
    except Interrupted:
        yield {"event": "interrupted"}
    except (Exception, SystemExit) as failure:  # the user's own code may call sys.exit
        error = as_fedhp_error(failure)
        yield {"event": "failed", "kind": type(error).__name__, "message": str(error)}
    else:
        yield {"event": "finished"}


def round_event(record: RoundRecord, metric: str) -> Event:
    """A round as the live display shows it."""
    return {
        "event": "round",
        "round": record.round_index,
        "clock": record.clock,
        "metric": metric,
        "accuracy": record.accuracy,
        "waiting": record.timing.mean_waiting_time,
        "steps": float(record.local_steps.mean()),
    }


if __name__ == "__main__":
    main()
