"""What the folder of a run tells of it: rounds, the models' digests, a process's last words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedhp.cluster.history import read_history
from fedhp.errors import FedhpError
from fedhp.record.reader import RunReader


@dataclass(frozen=True, slots=True)
class RoundFacts:
    """A committed round in a few numbers."""

    round_index: int
    seconds: float
    workers: int
    steps: float
    waiting: float
    accuracy: float | None


def final_digests(histories: Iterable[Path]) -> dict[str, str]:
    """By name of the worker, from the coordinators' histories: the reports of the last commit."""
    last: tuple[int, int, int] = (0, 0, 0)
    asynchronous = False
    names: dict[int, str] = {}
    reports: dict[tuple[int, int, int], dict[int, str]] = {}
    latest: dict[int, str] = {}
    for file in histories:
        for event in read_history(file):
            if event["event"] == "join":
                names[event["worker"]] = event["name"]
            if event["event"] not in ("report", "commit"):
                continue
            attempt = (event["round"], event["epoch"], event["attempt"])
            if event["event"] == "report":
                reports.setdefault(attempt, {})[event["worker"]] = event["digest"]
                latest[event["worker"]] = event["digest"]
            elif attempt > last:
                last, asynchronous = attempt, not event["reported"]
    found = latest if asynchronous else reports.get(last, {})
    return {names.get(worker, str(worker)): found[worker] for worker in sorted(found)}


def last_error(log: Path) -> str:
    """The last error that a process told, or its last words."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "  (it said nothing)"
    errors = [line for line in lines if " error " in line or '"level": "error"' in line]
    return "  " + "\n  ".join((errors or lines)[-1:])


def rounds_in(folder: Path, *, after: int) -> Iterator[RoundFacts]:
    """The rounds of a record after this one; nothing while it is just being made."""
    try:
        with RunReader(folder) as run:
            for index in range(after + 1, run.rounds_done + 1):
                row = run.table("rounds", round_index=index)
                if not row["round"]:
                    continue  # another coordinator led then
                steps = run.table("workers", round_index=index)["local_steps"]
                tests = run.table("evaluations", round_index=index)["accuracy"]
                yield RoundFacts(
                    round_index=index,
                    seconds=row["round_time"][0],
                    workers=sum(each > 0 for each in steps),
                    steps=row["mean_local_steps"][0],
                    waiting=row["mean_waiting_time"][0],
                    accuracy=tests[0] if tests else None,
                )
    except FedhpError:
        return
