"""The committed rounds of a run in a few numbers each, for the console."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedhp.errors import FedhpError
from fedhp.record.reader import RunReader


@dataclass(frozen=True, slots=True)
class RoundFacts:
    round_index: int
    seconds: float
    workers: int
    steps: float
    waiting: float
    accuracy: float | None
    metric: str = "accuracy"  # the name of `accuracy` in this task


def read_rounds(folder: Path, *, after: int) -> Iterator[RoundFacts]:
    """The rounds of a record after this one; none while the record is being created."""
    with contextlib.suppress(FedhpError), RunReader(folder) as run:
        for index in range(after + 1, run.rounds_done + 1):
            row = run.table("rounds", round_index=index)
            if not row["round"]:
                continue  # another coordinator led then
            local_steps = run.table("workers", round_index=index)["local_steps"]
            accuracies = run.table("evaluations", round_index=index)["accuracy"]
            yield RoundFacts(
                round_index=index,
                seconds=row["round_time"][0],
                workers=sum(steps > 0 for steps in local_steps),
                steps=row["mean_local_steps"][0],
                waiting=row["mean_waiting_time"][0],
                accuracy=accuracies[0] if accuracies else None,
                metric=run.meta("metric"),
            )
