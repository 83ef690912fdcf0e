"""The numbers of a run over its rounds: progress, decisions, one round."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedhp.dash import schema
from fedhp.errors import RunError
from fedhp.record.reader import Columns, RunReader
from fedhp.record.timeline import read_paces, read_turns
from fedhp.report.behind import workers_behind
from fedhp.report.describe import describe_run
from fedhp.report.explain import VERDICT_MEANINGS, explain_round

ROUND_COLUMNS = (
    "round",
    "clock",
    "round_time",
    "mean_waiting_time",
    "mean_local_steps",
    "learning_rate",
    "links",
    "bytes_sent",
    "train_loss",
    "rule",
)
PACE_COLUMNS = (
    "last_worker",
    "link_with",
    "link_time",
    "directed",
    "waited",
    "planned_worker",
    "plan_was_right",
)
FACTS = (
    "mean_distance",
    "distance_bound",
    "planned_round_time",
    "deadline",
    "planned_transfer_time",
    "transfer_time",
)


MANY_WORKERS = 30  # above which the spread of the tests is told by quantiles
SPREAD = (0.1, 0.9)
MOST_DRAWN = 10  # workers that are behind, with their curves


class NoSuchRound(RunError):
    """A round or a worker that is not in the record."""


def details(entry: schema.ListedRun, run: RunReader, **others: list[str]) -> schema.RunDetails:
    """`others`: the names of the workers, those that are missing, and the actions."""
    evaluation = run.meta("experiment")["evaluation"]
    return schema.RunDetails(
        **entry.model_dump(),
        **others,
        devices=list(run.meta("devices") or ()),
        samples=list(run.meta("samples") or ()),
        targets=list(evaluation["targets"]),
        asynchronous=bool(run.meta("asynchronous")),
        group_average=run.last_row("participation") is not None,
        description=[
            schema.NamedFact(name=name, value=str(fact)) for name, fact in describe_run(run)
        ],
    )


def progress(run: RunReader, *, after: int) -> schema.ProgressColumns:
    first = after + 1
    with run.snapshot():
        rounds = run.table("rounds", first_round=first, columns=ROUND_COLUMNS)
        tests = run.table("evaluations", first_round=first)
        spread = run.extremes("worker_evaluations", "accuracy", first_round=first)
        quantiles = _quantiles(run, first)
        behind = _behind(run)
        losses = run.table("test_metrics", first_round=first)
        sent = run.table("rounds", columns=("round", "bytes_sent"))
        paces = read_paces(run, first_round=first)
    before = sum(size for index, size in _rows(sent, "round", "bytes_sent") if index < first)
    tested = _rows(losses, "round", "whole", "loss")
    of_test: dict[str, dict[int, float]] = {
        "worst": dict(_rows(spread, "round", "lowest")),
        "best": dict(_rows(spread, "round", "highest")),
        "low": {index: low for index, (low, _) in quantiles.items()},
        "high": {index: high for index, (_, high) in quantiles.items()},
        "loss": {index: value for index, whole, value in tested if not whole},
    }
    return schema.ProgressColumns(
        rounds={**rounds, **{name: [getattr(p, name) for p in paces] for name in PACE_COLUMNS}},
        tests={
            **{name: tests[name] for name in ("round", "clock", "accuracy", "mean_model_accuracy")},
            **{name: [v.get(index) for index in tests["round"]] for name, v in of_test.items()},
        },
        bytes_before=before,
        behind=behind,
    )


def _quantiles(run: RunReader, first: int) -> dict[int, tuple[float, float]]:
    """Between which results most workers are in each test; empty for few workers."""
    if int(run.meta("workers")) <= MANY_WORKERS:
        return {}
    tests = run.table("worker_evaluations", first_round=first, columns=("round", "accuracy"))
    rounds = np.array(tests["round"], dtype=np.int64)
    results = np.array(tests["accuracy"], dtype=np.float64)
    indices, starts = np.unique(rounds, return_index=True)
    edges = (np.quantile(part, SPREAD) for part in np.split(results, starts[1:]))
    return {
        int(i): (float(low), float(high)) for i, (low, high) in zip(indices, edges, strict=False)
    }


def _behind(run: RunReader) -> schema.WorkersBehind | None:
    behind = workers_behind(run)
    if behind is None:
        return None
    clock = dict(_rows(run.table("evaluations"), "round", "clock"))
    tests: dict[str, list[Any]] = {name: [] for name in ("round", "clock", "worker", "accuracy")}
    for worker in behind.workers[:MOST_DRAWN]:
        own = run.worker_rows("worker_evaluations", worker, columns=("round", "worker", "accuracy"))
        for name, values in own.items():
            tests[name] += values
        tests["clock"] += [clock.get(index) for index in own["round"]]
    return schema.WorkersBehind(text=behind.text, workers=list(behind.workers), tests=tests)


def decisions(run: RunReader, *, after: int) -> schema.Decisions:
    """Distance and its bound, planned and real round time, and why links were kept or cut."""
    first = after + 1
    with run.snapshot():
        rounds = run.table("rounds", first_round=first, columns=("round", "round_time", "links"))
        facts = run.table("facts", first_round=first)
        verdicts = run.table("verdicts", first_round=first)
    rows = {index: row for row, index in enumerate(rounds["round"])}
    values: dict[str, list[float | None]] = {name: [None] * len(rows) for name in FACTS}
    for index, name, value in _rows(facts, "round", "name", "value"):
        if name in values:
            values[name][rows[index]] = value
    counts: dict[str, list[int]] = {}
    for index, word, links in _rows(verdicts, "round", "verdict", "links"):
        counts.setdefault(word, [0] * len(rows))[rows[index]] = links
    return schema.Decisions(
        round=rounds["round"],
        **values,
        round_time=rounds["round_time"],
        links=rounds["links"],
        verdicts=counts,
        words={word: VERDICT_MEANINGS.get(word, word) for word in counts},
    )


def explanation(run: RunReader, round_index: int) -> schema.Explanation:
    return schema.Explanation(
        round=round_index,
        paragraphs=[
            schema.ExplainedParagraph(title=paragraph.heading, text=paragraph.text)
            for paragraph in explain_round(run, round_index)
        ],
    )


def turns(run: RunReader, round_index: int) -> schema.Turns:
    """What every worker did when, around a round without a barrier."""
    window = read_turns(run, round_index)
    names = ("worker", "start", "finish", "partner")
    return schema.Turns(
        **{name: getattr(window, name) for name in window.__slots__ if name != "phases"},
        phases={name: [getattr(phase, name) for phase in window.phases] for name in names},
    )


def round_in_record(run: RunReader, round_index: int) -> int:
    """The round; NoSuchRound if the record does not have it."""
    last = run.rounds_done
    recorded = run.table("rounds", round_index=round_index, columns=("round",))["round"]
    if not recorded or not 1 <= round_index <= last:
        raise NoSuchRound(
            f"round {round_index} is not in the record" if last else "no round is committed yet",
            allowed=f"a round from 1 to {last}" if last else "a run with a committed round",
            fix=f"ask for round {last}" if last else "wait for the first round",
        )
    return round_index


def finite(value: Any) -> Any:
    """The same value with null for NaN and infinity, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(content) for key, content in value.items()}
    if isinstance(value, list | tuple):
        return [finite(content) for content in value]
    return value


def _rows(table: Columns, *names: str) -> Any:
    return zip(*(table[name] for name in names), strict=True)
