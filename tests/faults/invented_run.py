"""Histories of a run that never happened, event by event, to plant violations in."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]
RUN = "0" * 32
DEADLINE = 5.0


@dataclass
class InventedRun:
    """What every process wrote; `clock` is that of the machine."""

    workers: int = 3
    min_workers: int = 2
    clock: float = 1000.0
    committed: tuple[int, int, int] = (0, 0, 0)  # epoch, round, attempt
    epoch: int = 0
    coordinator: str = "coordinator"
    files: dict[str, list[Event]] = field(default_factory=dict)
    models: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # of workers

    def note(self, who: str, event: str, *, process: int = 1, **facts: Any) -> Event:
        """One more line in the history of `who`."""
        self.clock += 0.01
        line = {"at": self.clock, "who": who, "process": process, "event": event, **facts}
        self.files.setdefault(who, []).append(line)
        return line

    def lead(self, epoch: int, *, who: str = "coordinator", **facts: Any) -> None:
        """A coordinator takes the lead."""
        self.epoch, self.coordinator = epoch, who
        committed = {"stand": list(self.committed), "min_workers": self.min_workers}
        self.note(
            who, "lead", **{"run": RUN, "epoch": epoch, "asynchronous": False, **committed, **facts}
        )
        for worker in range(self.workers):
            self.note(who, "join", worker=worker, name=f"w{worker}")
            self.note(f"w{worker}", "join", run=RUN, epoch=epoch, worker=worker)

    def begin(self, number: int = 1, participants: list[int] | None = None) -> dict[str, int]:
        """An attempt at the next round, and its orders."""
        facts = {"epoch": self.epoch, "round": self.committed[1] + 1, "attempt": number}
        workers = list(range(self.workers)) if participants is None else participants
        self.note(self.coordinator, "attempt", **facts, participants=workers, deadline=DEADLINE)
        for worker in workers:
            self.note(f"w{worker}", "order", kind="work", **facts)
            if self.models.get(worker, (0, 0, 0)) != self.committed:
                self.take_model(worker, self.committed)
        return facts

    def take_model(self, worker: int, model: tuple[int, int, int], event: str = "advanced") -> None:
        """A worker takes over the model of an attempt."""
        epoch, round_index, attempt = model
        self.note(f"w{worker}", event, epoch=epoch, round=round_index, attempt=attempt)
        self.models[worker] = model

    def report(self, worker: int, facts: dict[str, int]) -> None:
        """A worker trains, and its report is counted."""
        self.note(f"w{worker}", "trained", **facts, steps=3)
        self.note(f"w{worker}", "mixed", **facts, digest=f"{worker}")
        self.note(self.coordinator, "report", **facts, worker=worker, digest=f"{worker}")

    def commit(self, facts: dict[str, int], reported: list[int]) -> Event:
        """The attempt counts."""
        line = self.note(self.coordinator, "commit", **facts, reported=reported)
        self.committed = facts["epoch"], facts["round"], facts["attempt"]
        return line

    def round(self, participants: list[int] | None = None) -> dict[str, int]:
        """A whole round as it should be."""
        facts = self.begin(participants=participants)
        workers = list(range(self.workers)) if participants is None else participants
        for worker in workers:
            self.report(worker, facts)
        self.commit(facts, workers)
        return facts

    def catch_up(self, worker: int) -> None:
        """A worker that was away takes the committed model."""
        epoch, round_index, attempt = self.committed
        self.note(
            f"w{worker}", "order", kind="catch_up", epoch=epoch, round=round_index, attempt=attempt
        )
        self.take_model(worker, self.committed, "caught_up")

    def write(self, folder: Path) -> Path:
        """As files, each with the incomplete line that a kill leaves."""
        for who, events in self.files.items():
            text = "".join(json.dumps(event) + "\n" for event in events)
            (folder / f"history-{who}.jsonl").write_text(text + '{"at": 1', encoding="utf-8")
        return folder
