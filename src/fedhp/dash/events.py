"""The events of a run in order, each with its position, for the page and for its stream.

Of a network run they come from the history of its coordinator; of a simulated one from its record:
absences, the last checkpoint, and how it ended. A list that is no longer the continuation of the
one before (a resumed run repeats rounds) gets another name, so that viewers start over.
"""

from __future__ import annotations

import itertools
import json
import os
import struct
import threading
import uuid
from pathlib import Path
from typing import Any

from fedhp.dash.history import JOINING, PRESENT, Histories
from fedhp.dash.progress import finite
from fedhp.dash.schema import RunEvent
from fedhp.errors import FedhpError
from fedhp.files import open_plain
from fedhp.record.checkpoint import CHECKPOINT_FILE
from fedhp.record.reader import RunReader
from fedhp.report.formatting import worker_name

AWAY, WORKING = "away", "working"
LARGEST_HEADER = 1 << 20  # bytes of a checkpoint's description
ENDED = {
    "finished": "the run is finished",
    "diverged": "the run diverged",
    "interrupted": "the run was interrupted",
}
_logs = itertools.count(1)
_SERVER = uuid.uuid4().hex[:8]


class EventLog:
    """The events of one run; update() adds what is new. Several threads may use it."""

    def __init__(self, run: str, folder: Path) -> None:
        self.run, self.folder = run, folder
        self._lock = threading.Lock()
        self._start_over()

    def _start_over(self) -> None:
        self.log = f"{_SERVER}-{next(_logs)}"
        self.events: list[RunEvent] = []
        self.encoded: list[bytes] = []  # the same as messages of the stream
        self.histories = Histories(self.folder)
        self._seen_round = 0
        self._away: set[int] = set()
        self._clocks: list[float] = [0.0]  # at the end of each round, from round 0 on
        self._status = ""
        self._checkpoint: tuple[int, int] | None = None

    def update(self) -> None:
        """Read what was added since; a record that cannot be read adds nothing."""
        with self._lock:
            try:
                with RunReader(self.folder) as run, run.snapshot():
                    self._update(run)
            except (FedhpError, OSError, TypeError, KeyError, ValueError):
                return

    def since(self, position: int) -> tuple[list[RunEvent], int]:
        with self._lock:
            return self.events[position:], len(self.events)

    def messages(self, position: int) -> tuple[bytes, int]:
        with self._lock:
            return b"".join(self.encoded[position:]), len(self.encoded)

    def about(self, worker: int) -> list[RunEvent]:
        with self._lock:
            return [event for event in self.events if event.worker == worker]

    def names(self, workers: int) -> list[str]:
        with self._lock:
            known = self.histories.membership.names
            return [known.get(worker, f"worker {worker}") for worker in range(workers)]

    def missing(self, workers: int) -> list[str]:
        """The workers of a network run that take no part now: name and state."""
        states = self.states(0, last=True)
        return [
            f"{name} ({state})"
            for worker, name in enumerate(self.names(workers))
            if (state := states.get(worker, JOINING)) not in PRESENT
        ]

    def states(self, round_index: int, *, last: bool) -> dict[int, str]:
        """Everyone's state in a network run after a round; with `last` the present one."""
        with self._lock:
            membership = self.histories.membership
            return dict(membership.states) if last else membership.state_after(round_index)

    def _update(self, run: RunReader) -> None:
        last, network = run.rounds_done, bool(run.meta("network"))
        if last < self._seen_round:
            self._start_over()
        first = self._seen_round + 1
        if network:
            if last >= first:
                rounds = run.table("rounds", first_round=first, columns=("round", "clock"))
                for index, clock in zip(*rounds.values(), strict=True):
                    missing = index + 1 - len(self._clocks)  # another coordinator led them
                    self._clocks += [clock] * max(0, missing)
            happenings, replaced = self.histories.follow()
            if replaced:
                self._start_over()
                happenings, _ = self.histories.follow()
            for found in happenings:
                done = min(found.round_index - 1, len(self._clocks) - 1)
                when = {"at": found.at, "clock": self._clocks[done], "round": found.round_index}
                self._note(found.kind, found.text, worker=found.worker, **when)
        else:
            self._find_absences(run, first)
            self._find_checkpoint()
        self._find_end(run, last, network=network)
        self._seen_round = last

    def _find_absences(self, run: RunReader, first: int) -> None:
        world = run.meta("experiment")["world"]
        if not world["away"] and not world["away_probability"]:
            return
        rows = run.table("workers", first_round=first, columns=("round", "worker", "worker_time"))
        clocks = run.table("rounds", first_round=first, columns=("round", "clock"))
        clock = dict(zip(*clocks.values(), strict=True))
        absent: dict[int, set[int]] = {index: set() for index in clock}
        for index, worker, time in zip(*rows.values(), strict=True):
            if time is None and index in absent:
                absent[index].add(worker)
        devices = run.meta("devices")
        for index, away in absent.items():
            for kind, workers, text in (
                (AWAY, away - self._away, "is away"),
                ("back", self._away - away, "is back"),
            ):
                for worker in sorted(workers):
                    name = worker_name(worker, devices[worker])
                    facts = {"clock": clock[index], "round": index, "worker": worker}
                    self._note(kind, f"{name} {text}", **facts)
            self._away = away

    def _find_checkpoint(self) -> None:
        """The last one; the earlier ones were replaced by it."""
        path = self.folder / CHECKPOINT_FILE
        try:
            status = os.stat(path)
            here = (status.st_ino, status.st_mtime_ns)
            if here == self._checkpoint:
                return
            with open(open_plain(path), "rb") as file:  # its description, without the arrays
                (length,) = struct.unpack("<Q", file.read(8))
                header = json.loads(file.read(min(length, LARGEST_HEADER)))
            index = int(header["__metadata__"]["round"])
        except (OSError, ValueError, KeyError, TypeError, struct.error):
            return
        self._checkpoint = here
        text = f"checkpoint after round {index}"
        self._note("checkpoint", text, round=index, at=status.st_mtime)

    def _find_end(self, run: RunReader, last: int, *, network: bool) -> None:
        status = run.status
        if status == self._status:
            return
        if network and (status != "interrupted" or run.meta("status") == status):
            self._status = status
            return  # its history says so; only a coordinator that was killed could not
        if status == "running" and self._status in ENDED:
            self._note("resume", "the run goes on", round=last)
        self._status = status
        if status in ENDED:
            message = run.meta("message") if status == "diverged" else run.meta("stopped")
            why = f": {str(message).splitlines()[0]}" if message else ""
            row = run.last_row("rounds") or {"clock": None}
            self._note(status, f"{ENDED[status]}{why}", clock=row["clock"], round=last)

    def _note(self, kind: str, text: str, **facts: Any) -> None:
        known = {"at": None, "clock": None, "worker": None, **facts}
        event = RunEvent(kind=kind, text=text, **known)
        place: dict[str, Any] = {"run": self.run, "number": len(self.events)}
        self.events.append(event)
        self.encoded.append(message("event", {**place, **event.model_dump(), "log": self.log}))


def message(kind: str, facts: dict[str, Any]) -> bytes:
    """A message of the stream; JSON has no line breaks, which would end it."""
    return f"event: {kind}\ndata: {json.dumps(finite(facts))}\n\n".encode()
