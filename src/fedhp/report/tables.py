"""Tables for the terminal and for Markdown: a comparison, a run's rounds, a round's workers.

Runs that did not finish are never averaged: each has a row of its own that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedhp.record.reader import RunReader, RunSummary
from fedhp.record.statistics import Interval, interval
from fedhp.report.formatting import (
    ACCURACY,
    MISSING,
    count,
    data_size,
    decimals_for,
    fixed,
    target_name,
)
from fedhp.report.groups import FINISHED

if TYPE_CHECKING:
    from rich.table import Table

    from fedhp.engine.replay.whatif import WhatIf

ROWS = 20  # of a run's rounds
BEST = "bold: best of the column"
MOST_WORKERS = 1000  # of a round; a longer table takes many seconds to print


@dataclass(frozen=True, slots=True)
class Column:
    """One number of a comparison: where it comes from and how it is written."""

    header: str  # a line break where a narrow column may have one
    value: Callable[[RunSummary], float | None]
    better: int = 0  # -1: more is better, 1: less is, 0: neither
    spread: bool = False  # show the half-width of the interval
    scale: float = 1.0
    decimals: int | None = None  # None: by the column's largest value
    write: Callable[[float], str] | None = None  # instead of decimals
    target: bool = False  # may be missing: not reached


@dataclass(frozen=True, slots=True)
class Cell:
    """A text, and the number by which the best of the column is found (None: no candidate)."""

    text: str
    rank: float | None = None  # smaller is better
    best: bool = False


@dataclass(frozen=True, slots=True)
class Grid:
    """A comparison as texts, before it becomes a rich table or Markdown."""

    headers: list[str]
    rows: list[list[Cell]]
    caption: str


def comparison_table(summaries: Sequence[RunSummary]) -> Table:
    """One row per algorithm, in the given order; the best of each column is bold."""
    from rich.markup import escape

    grid = comparison_grid(summaries)
    table = _table(*grid.headers, left=(grid.headers[0],), caption=grid.caption)
    table.columns[0].min_width = len(grid.headers[0])
    for row in grid.rows:
        table.add_row(*(f"[bold]{escape(c.text)}[/]" if c.best else escape(c.text) for c in row))
    return table


def comparison_markdown(summaries: Sequence[RunSummary]) -> str:
    """The same as a Markdown table with its caption below."""
    grid = comparison_grid(summaries)

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    headers = [header.replace("-\n", "-").replace("\n", " ") for header in grid.headers]
    ruler = "|" + "|".join(["---", *["---:"] * (len(headers) - 1)]) + "|"
    rows = [line([f"**{c.text}**" if c.best else c.text for c in row]) for row in grid.rows]
    return "\n".join([line(headers), ruler, *rows, "", grid.caption]) + "\n"


def comparison_grid(summaries: Sequence[RunSummary]) -> Grid:
    """Headers and cells of a comparison."""
    columns = _columns(summaries)
    columns = [
        column
        if column.decimals is not None
        else replace(column, decimals=decimals_for(column.value(run) for run in summaries))
        for column in columns
    ]
    rows: list[list[Cell]] = []
    for label in dict.fromkeys(run.algorithm for run in summaries):
        mine = [run for run in summaries if run.algorithm == label]
        done = [run for run in mine if run.status == FINISHED]
        if done:
            part = f" ({len(done)} of {len(mine)} seeds)" if len(done) < len(mine) else ""
            rows.append([Cell(label + part), *(_cell(column, done) for column in columns)])
        for run in mine:
            if run.status != FINISHED:
                cells = [Cell(_cell(column, [run]).text) for column in columns]
                rows.append([Cell(_unfinished(run)), *cells])
    headers = ["algorithm", *(column.header for column in columns)]
    return Grid(headers, _mark_best(rows), _caption(summaries))


def _columns(summaries: Sequence[RunSummary]) -> list[Column]:
    metric = summaries[0].metric if summaries else ACCURACY
    accuracy = metric == ACCURACY
    unit = "%" if accuracy else metric
    scale, decimals = (100.0, 1) if accuracy else (1.0, None)
    targets = sorted(dict.fromkeys(t for run in summaries for t in run.time_to_target), key=float)

    def time_to(target: str) -> Callable[[RunSummary], float | None]:
        return lambda run: run.time_to_target.get(target)

    return [
        Column(
            f"final\n{unit}", lambda run: run.final_accuracy, -1, True, scale, decimals=decimals
        ),
        Column(
            f"mean-\nmodel {unit}",
            lambda run: run.mean_model_accuracy,
            -1,
            scale=scale,
            decimals=decimals,
        ),
        *(
            Column(f"to {target_name(target, metric)}\n(s)", time_to(target), 1, True, target=True)
            for target in targets
        ),
        Column("round\n(s)", lambda run: run.round_time, 1),
        Column("waiting\n(s)", lambda run: run.mean_waiting_time, 1),
        # More steps are neither better nor worse by themselves.
        Column("mean\nsteps", lambda run: run.mean_local_steps, decimals=1),
        Column("data\nsent", lambda run: run.bytes_sent, 1, write=data_size),
    ]


def _cell(column: Column, runs: Sequence[RunSummary]) -> Cell:
    values = [v for run in runs if (v := column.value(run)) is not None and v == v]
    found = interval([column.scale * value for value in values])
    if found is None:
        return Cell("not reached" if column.target else MISSING)
    if column.write is not None:
        return Cell(column.write(found.mean), column.better * found.mean)
    text = fixed(found.mean, column.decimals or 0)
    if column.target and len(values) < len(runs):
        return Cell(f"{text} ({len(values)}/{len(runs)} reached)")
    if column.spread:
        text = with_spread(found, column.decimals or 0)
    return Cell(text, column.better * found.mean if column.better else None)


def with_spread(found: Interval, decimals: int) -> str:
    """mean ± half-width of the interval; the mean alone where there is none."""
    text = fixed(found.mean, decimals)
    if found.high is None or found.high == found.mean:
        return text
    return f"{text} ± {fixed(found.high - found.mean, decimals)}"


def _unfinished(run: RunSummary) -> str:
    what = {"created": "not started", "running": "still running"}.get(run.status, run.status)
    return f"{run.algorithm}, seed {run.seed}: {what} after {count(run.rounds, 'round')}"


def _caption(summaries: Sequence[RunSummary]) -> str:
    seeds = {run.seed for run in summaries if run.status == FINISHED}
    note = BEST
    if len(seeds) > 1:
        note = f"mean ± half-width of the 95 % interval over {len(seeds)} seeds; {note}"
    if any(run.status != FINISHED for run in summaries):
        note += "; unfinished runs stand alone, with their numbers so far"
    return note


def _mark_best(rows: list[list[Cell]]) -> list[list[Cell]]:
    least: list[float | None] = []
    for column in zip(*rows, strict=True):
        ranks = [cell.rank for cell in column if cell.rank is not None]
        least.append(min(ranks) if len(ranks) > 1 else None)
    return [
        [
            replace(cell, best=cell.rank is not None and cell.rank == limit)
            for cell, limit in zip(row, least, strict=True)
        ]
        for row in rows
    ]


def spread_evenly(length: int, most: int = ROWS) -> list[int]:
    """At most so many of the places 0..length-1, evenly, the first and last included."""
    if length <= most:
        return list(range(length))
    return sorted({round(i * (length - 1) / (most - 1)) for i in range(most)})


def round_table(run: RunReader) -> Table:
    """The evaluated rounds, at most 20 of them, evenly chosen."""
    metric = run.meta("metric")
    unit, scale = ("%", 100.0) if metric == ACCURACY else (metric, 1.0)
    tests, rounds = run.table("evaluations"), run.table("rounds")
    chosen = spread_evenly(len(tests["round"]))
    places = {index: place for place, index in enumerate(rounds["round"])}
    at = [places[tests["round"][test]] for test in chosen]

    def tested(name: str, decimals: int | None = None) -> list[str]:
        values = [None if (v := tests[name][i]) is None else scale * v for i in chosen]
        return _texts(values, decimals)

    def of_round(name: str, decimals: int | None = None) -> list[str]:
        return _texts([rounds[name][i] for i in at], decimals)

    share = 1 if metric == ACCURACY else None
    columns = {
        "round": of_round("round", 0),
        "clock\n(s)": of_round("clock"),
        f"workers\n{unit}": tested("accuracy", share),
        f"mean-\nmodel {unit}": tested("mean_model_accuracy", share),
        "loss": of_round("train_loss", 3),
        "round\n(s)": of_round("round_time"),
        "waiting\n(s)": of_round("mean_waiting_time"),
        "mean\nsteps": of_round("mean_local_steps", 1),
        "links": of_round("links", 0),
        "sent": [data_size(rounds["bytes_sent"][i]) for i in at],
    }
    table = _table(*columns)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    if len(chosen) < len(tests["round"]):
        table.caption = f"{len(chosen)} of {len(tests['round'])} evaluated rounds"
    return table


def worker_table(run: RunReader, round_index: int) -> Table:
    """What every worker did in one round; an even choice of very many."""
    from rich.markup import escape

    metric, devices = run.meta("metric"), run.meta("devices")
    asynchronous = bool(run.meta("asynchronous"))
    workers = run.table("workers", round_index=round_index)
    tests = run.table("worker_evaluations", round_index=round_index)
    chosen = spread_evenly(len(devices), MOST_WORKERS)
    if len(chosen) < len(devices):
        workers, tests = (
            {name: [column[i] for i in chosen] if column else [] for name, column in table.items()}
            for table in (workers, tests)
        )
    away = [time is None for time in workers["worker_time"]]
    steps = _texts(workers["local_steps"], 0)
    columns = {
        "worker": _texts(workers["worker"], 0),
        "device": [escape(devices[worker]) for worker in workers["worker"]],
        "links": _texts(workers["links"], 0),
        "steps": ["away" if gone else text for gone, text in zip(away, steps, strict=True)],
        "step\n(s)": _texts(workers["step_time"], 3),
        "compute\n(s)": _texts(workers["compute_time"]),
        "link\n(s)": _texts(workers["communication_time"]),
        "done\n(s)": _texts([None if asynchronous else t for t in workers["worker_time"]]),
        "waited\n(s)": _texts(workers["waiting_time"]),
        "loss": _texts(workers["train_loss"], 3),
    }
    if tests["worker"]:
        unit, scale = ("%", 100.0) if metric == ACCURACY else (metric, 1.0)
        results = [scale * value for value in tests["accuracy"]]
        columns[f"test\n{unit}"] = _texts(results, 1 if metric == ACCURACY else None)
    table = _table(*columns, left=("device",))
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    notes = []
    if asynchronous:
        notes.append("turns that ended in this round; they may have begun before it")
    if len(chosen) < len(devices):
        notes.append(f"{len(chosen)} of {len(devices)} workers; all of them: fedhp export")
    table.caption = "; ".join(notes) or None
    return table


def whatif_table(result: WhatIf) -> Table:
    """The recorded rounds, then those of every planner; the most steps per second is bold."""
    from rich.markup import escape

    recorded = result.recorded
    outcomes = [recorded, *result.planners]
    most = max(outcome.steps_per_second for outcome in outcomes)
    against = [result.against_record(outcome) for outcome in result.planners]
    rates = _texts([outcome.steps_per_second for outcome in outcomes])
    columns: list[tuple[str, list[str]]] = [
        ("planner", [escape(outcome.planner) for outcome in outcomes]),
        ("rounds", _texts([len(outcome.rounds.clock) for outcome in outcomes], 0)),
        ("round\n(s)", _texts([outcome.round_time for outcome in outcomes])),
        ("against\nrecord", [MISSING, *(_percent(time) for time, _ in against)]),
        ("waiting\n(s)", _texts([outcome.mean_waiting_time for outcome in outcomes])),
        ("against\nrecord", [MISSING, *(_percent(waiting) for _, waiting in against)]),
        ("mean\nsteps", _texts([outcome.mean_local_steps for outcome in outcomes], 1)),
        (
            "steps\nper s",
            [
                f"[bold]{text}[/]" if outcome.steps_per_second == most else text
                for outcome, text in zip(outcomes, rates, strict=True)
            ],
        ),
        ("links", _texts([outcome.mean_links for outcome in outcomes], 1)),
        ("total\n(s)", _texts([outcome.total_time for outcome in outcomes])),
        ("sure", [outcome.sure for outcome in outcomes]),
    ]
    table = _table(
        *(header for header, _ in columns),
        left=("planner", "sure"),
        caption="exact: what such a run would take; assumed: planned by the recorded measurements",
    )
    for row in zip(*(column for _, column in columns), strict=True):
        table.add_row(*row)
    return table


def _percent(share: float | None) -> str:
    return MISSING if share is None else f"{100 * share:+.0f} %"


def _texts(values: Sequence[Any], decimals: int | None = None) -> list[str]:
    """A column of numbers, all with the same decimals."""
    places = decimals_for(values) if decimals is None else decimals
    return [fixed(value, places) for value in values]


def _table(*headers: str, left: Sequence[str] = (), caption: str | None = None) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        caption=caption,
        caption_justify="left",
    )
    for header in headers:
        justify: Any = "left" if header in left else "right"
        table.add_column(header, justify=justify, vertical="top", overflow="fold")
    return table
