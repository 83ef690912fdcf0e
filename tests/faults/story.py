"""Hand-made histories: a run without a fault, told event by event, for planting violations in."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]
RUN = "0" * 32
DEADLINE = 5.0


@dataclass
class Story:
    """What every process wrote; `clock` is the machine's."""

    workers: int = 3
    min_workers: int = 2
    clock: float = 1000.0
    committed: tuple[int, int, int] = (0, 0, 0)  # epoch, round, attempt
    epoch: int = 0
    boss: str = "boss"
    files: dict[str, list[Event]] = field(default_factory=dict)
    stands: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    def tell(self, who: str, event: str, *, process: int = 1, **facts: Any) -> Event:
        """One more line in the history of `who`."""
        self.clock += 0.01
        line = {"at": self.clock, "who": who, "process": process, "event": event, **facts}
        self.files.setdefault(who, []).append(line)
        return line

    def lead(self, epoch: int, *, who: str = "boss", **facts: Any) -> None:
        """A coordinator takes the lead."""
        self.epoch, self.boss = epoch, who
        told = {"stand": list(self.committed), "min_workers": self.min_workers}
        self.tell(
            who, "lead", **{"run": RUN, "epoch": epoch, "asynchronous": False, **told, **facts}
        )
        for worker in range(self.workers):
            self.tell(who, "join", worker=worker, name=f"w{worker}")
            self.tell(f"w{worker}", "join", run=RUN, epoch=epoch, worker=worker)

    def begin(self, number: int = 1, participants: list[int] | None = None) -> dict[str, int]:
        """An attempt at the next round, and the orders that tell of it."""
        facts = {"epoch": self.epoch, "round": self.committed[1] + 1, "attempt": number}
        there = list(range(self.workers)) if participants is None else participants
        self.tell(self.boss, "attempt", **facts, participants=there, deadline=DEADLINE)
        for worker in there:
            self.tell(f"w{worker}", "order", kind="work", **facts)
            if self.stands.get(worker, (0, 0, 0)) != self.committed:
                self.stand(worker, self.committed)
        return facts

    def stand(self, worker: int, stand: tuple[int, int, int], event: str = "advanced") -> None:
        """A worker goes on from a stand."""
        epoch, round_index, attempt = stand
        self.tell(f"w{worker}", event, epoch=epoch, round=round_index, attempt=attempt)
        self.stands[worker] = stand

    def report(self, worker: int, facts: dict[str, int]) -> None:
        """A worker trains and is counted."""
        self.tell(f"w{worker}", "trained", **facts, steps=3)
        self.tell(f"w{worker}", "mixed", **facts, digest=f"{worker}")
        self.tell(self.boss, "report", **facts, worker=worker, digest=f"{worker}")

    def commit(self, facts: dict[str, int], reported: list[int]) -> Event:
        """The attempt counts."""
        line = self.tell(self.boss, "commit", **facts, reported=reported)
        self.committed = facts["epoch"], facts["round"], facts["attempt"]
        return line

    def round(self, participants: list[int] | None = None) -> dict[str, int]:
        """A whole round as it should be."""
        facts = self.begin(participants=participants)
        there = list(range(self.workers)) if participants is None else participants
        for worker in there:
            self.report(worker, facts)
        self.commit(facts, there)
        return facts

    def catch_up(self, worker: int) -> None:
        """A worker that was away takes the committed model."""
        epoch, round_index, attempt = self.committed
        self.tell(
            f"w{worker}", "order", kind="catch_up", epoch=epoch, round=round_index, attempt=attempt
        )
        self.stand(worker, self.committed, "caught_up")

    def write(self, folder: Path) -> Path:
        """As files, with a torn line such as a kill leaves."""
        for who, events in self.files.items():
            text = "".join(json.dumps(each) + "\n" for each in events)
            (folder / f"history-{who}.jsonl").write_text(text + '{"at": 1', encoding="utf-8")
        return folder
