"""What is logged of a run, the same for every sink, read from its record alone.

A live log and one that is made afterwards are equal because both come from here.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from fedhp.columns import WORKER_COLUMNS
from fedhp.record.reader import Columns, RunReader, RunSummary
from fedhp.record.store import NUMBERS_DIGEST
from fedhp.tables import flatten

DESCRIPTION_VERSION = 1  # what is logged; a log of another version is written again
ENDED = ("finished", "diverged")
STARTED = ("running", "interrupted", *ENDED)
BLOCK_ROUNDS = 256  # rounds read at a time
BYTES_TOTAL = "network/bytes_total"
CLOCK = "time/clock"

Setting: TypeAlias = bool | int | float | str
Values: TypeAlias = dict[str, float]

# The name of a scalar, and its column in the table `rounds`.
ROUND_SCALARS = {
    "train/loss": "train_loss",
    "train/learning_rate": "learning_rate",
    "train/local_steps": "mean_local_steps",
    CLOCK: "clock",
    "time/round": "round_time",
    "time/waiting": "mean_waiting_time",
    "network/bytes": "bytes_sent",
    "network/links": "links",
}
# With --per-worker: the columns of `workers`, each with the worker's number behind its name.
WORKER_SCALARS = tuple(column.name for column in WORKER_COLUMNS if column.logged)


@dataclass(frozen=True, slots=True)
class RunDescription:
    """What is known of a run before its first round."""

    folder: Path
    top: Path  # the folder of the command: that of the run, or of the runs it is one of
    label: str
    seed: int
    metric: str  # the name of the tests' result in scalars
    tables: dict[str, Any]  # the experiment
    per_worker: bool

    @property
    def name(self) -> str:
        """The run's path, from the name of the command's folder on: demo-1/fedhp/seed-0."""
        return str(Path(self.top.name) / self.below_top)

    @property
    def below_top(self) -> Path:
        """The run's path in the command's folder."""
        return self.folder.relative_to(self.top)

    @property
    def settings(self) -> dict[str, Setting]:
        """The experiment as parameters: dotted keys, lists and tables as JSON."""
        return {
            key: value if isinstance(value, bool | int | float | str) else json.dumps(value)
            for key, value in flatten(self.tables).items()
        }


@dataclass(frozen=True, slots=True)
class RoundPoints:
    """The scalars of one round; a value that is missing or not finite has no entry."""

    round_index: int
    clock: float  # s of virtual time; of a real network, of real time
    values: Values


@dataclass(frozen=True, slots=True)
class RunOutcome:
    summary: RunSummary
    round_index: int
    clock: float

    @property
    def numbers(self) -> Values:
        """The summary's numbers, under the names final/..."""
        plain = self.summary.as_json()
        flat: dict[str, Any] = {}
        for name, value in plain.items():
            if isinstance(value, Mapping):
                flat.update({f"{name}_{key}": inner for key, inner in value.items()})
            elif isinstance(value, list):
                flat.update({f"{name}_{index}": inner for index, inner in enumerate(value)})
            else:
                flat[name] = value
        return {
            f"final/{name}": float(value)
            for name, value in flat.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and name != "seed"
        }


def read_description(
    run: RunReader, *, folder: Path, top: Path, per_worker: bool
) -> RunDescription | None:
    """The description, or None of a run that has not begun."""
    tables, label, seed = run.meta("experiment"), run.meta("label"), run.meta("seed")
    metric = run.meta("metric")
    if run.meta("status") not in STARTED or None in (tables, label, seed, metric):
        return None
    return RunDescription(folder, top, label, seed, metric_word(metric), tables, per_worker)


def metric_word(metric: str) -> str:
    """The name of a test's result as part of a scalar's name."""
    word = _word(metric)
    return "metric" if word in ("", "loss") else word  # the test loss has that name


def _word(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_")


def read_points(
    run: RunReader, description: RunDescription, *, after: RoundPoints | None = None
) -> Iterator[RoundPoints]:
    """The rounds of the record, or those after one that was read before."""
    first, last = 1 if after is None else after.round_index + 1, run.rounds_done
    sent = 0.0 if after is None else after.values[BYTES_TOTAL]
    for start in range(first, last + 1, BLOCK_ROUNDS):
        end = min(last, start + BLOCK_ROUNDS - 1)
        for points in _block(run, description, start, end):
            sent += points.values["network/bytes"]
            points.values[BYTES_TOTAL] = sent
            yield points


def has_round(run: RunReader, description: RunDescription, points: RoundPoints) -> bool:
    """Whether the record has this round, with these numbers."""
    index = points.round_index
    expected = {name: value for name, value in points.values.items() if name != BYTES_TOTAL}
    now = next(_block(run, description, index, index), None)
    return now == RoundPoints(index, points.clock, expected)


def read_outcome(run: RunReader) -> RunOutcome:
    last = run.rounds_done
    clock = run.table("rounds", round_index=last)["clock"]
    return RunOutcome(run.summary(), last, clock[0] if clock else 0.0)


def log_mark(run: RunReader, description: RunDescription) -> str:
    """A hash that a whole log is marked with: with another one it is not of this record."""
    status = run.meta("status")
    content = (
        *(DESCRIPTION_VERSION, description.tables, description.label, description.per_worker),
        *(status, run.rounds_done, run.meta(NUMBERS_DIGEST)),
        run.table("rounds", round_index=run.rounds_done),
    )
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def _block(
    run: RunReader, description: RunDescription, first: int, last: int
) -> Iterator[RoundPoints]:
    """Some rounds, without the total of the bytes."""

    def table(name: str) -> Columns:
        return run.table(name, first_round=first, last_round=last)

    rounds = table("rounds")
    values: dict[int, dict[str, float | None]] = {
        index: {name: rounds[column][row] for name, column in ROUND_SCALARS.items()}
        for row, index in enumerate(rounds["round"])
    }

    def add(name: str, columns: Mapping[str, str]) -> None:
        """Columns of a table under these names, of every worker under its own."""
        content = table(name)
        for row, index in enumerate(content["round"]):
            worker = f"/{content['worker'][row]}" if "worker" in content else ""
            if "whole" not in content or not content["whole"][row]:
                for column, scalar in columns.items():
                    values[index][scalar + worker] = content[column][row]

    test = f"test/{description.metric}"
    add("evaluations", {"accuracy": test, "mean_model_accuracy": f"{test}_mean_model"})
    add("test_metrics", {"loss": "test/loss", "mean_model_loss": "test/loss_mean_model"})
    for index, results in _by_round(table("worker_evaluations")).items():
        values[index][f"{test}_worst_worker"] = min(results)
        values[index][f"{test}_best_worker"] = max(results)
    for index, results in _by_round(table("own_test_metrics")).items():
        values[index][f"{test}_own_data"] = sum(results) / len(results)
    facts = table("facts")
    for index, name, value in zip(facts["round"], facts["name"], facts["value"], strict=True):
        values[index][f"algorithm/{_word(name)}"] = value
    if description.per_worker:
        add("workers", {name: f"{name}_by_worker" for name in WORKER_SCALARS})
        add("worker_evaluations", {"accuracy": f"{description.metric}_by_worker"})
        add("worker_test_metrics", {"loss": "test_loss_by_worker"})
    for index, clock in zip(rounds["round"], rounds["clock"], strict=True):
        finite = {
            name: float(value)
            for name, value in values[index].items()
            if value is not None and math.isfinite(value)
        }
        yield RoundPoints(index, clock, finite)


def _by_round(tests: Columns) -> dict[int, list[float]]:
    results: dict[int, list[float]] = {}
    for index, result in zip(tests["round"], tests["accuracy"], strict=True):
        results.setdefault(index, []).append(result)
    return results
