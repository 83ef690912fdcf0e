"""Tables for the terminal and for Markdown: a comparison, a run's rounds, a round's workers.

Runs that did not finish are never averaged: each gets its own row, which says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from fedhp.columns import added_columns
from fedhp.record.reader import Columns, RunReader, RunSummary
from fedhp.record.statistics import Interval, interval
from fedhp.record.timeline import overlaps, transfer_times
from fedhp.report.claims.judging import INTERVAL_SEEDS
from fedhp.report.formatting import (
    ACCURACY,
    MISSING,
    count,
    data_size,
    decimals_for,
    final_meaning,
    fixed,
    target_name,
    time_name,
)
from fedhp.report.groups import FINISHED
from fedhp.report.labels import names_for
from fedhp.report.limit import find_limit
from fedhp.report.paired import (
    Labelled,
    compare_times,
    comparison_pairs,
    competitors,
    finished_by_label,
    is_lower,
    paired_words,
)

if TYPE_CHECKING:
    from rich.table import Table

    from fedhp.terminal import FittingTable

MOST_ROUNDS = 20
# In a narrow terminal; how the headers begin.
DROPPED_FIRST = ("best", "test", "mean-", "worst", "mean\n", "data", "sent", "waiting", "round")
WORKER_DROPPED_FIRST = (
    *("step\n(s)", "compute\n(s)", "loss", "test\nloss", "link\n(s)", "links", "done\n(s)"),
)
BOLD_CAPTION = (
    "bold: better than every other algorithm in the same seeds (95 % interval of the paired "
    "numbers)"
)
AT_TIME_CAPTION = (
    f"at a time: the last test up to then, {MISSING} if none or if the run ended before"
)
Value: TypeAlias = Callable[[RunSummary], float | None]
MOST_WORKERS = 1000  # a longer table takes many seconds to print


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One number of a comparison: where it comes from and how it is written."""

    header: str  # a line break where a narrow column may have one
    meaning: str
    value: Value
    better: int = 0  # -1: more is better, 1: less is, 0: neither
    spread: bool = False  # show the half-width of the interval
    scale: float = 1.0
    decimals: int | None = None  # None: by the column's largest value
    write: Callable[[float], str] | None = None  # instead of decimals
    target: str = ""  # its key, if this is the time to one
    goal: bool = False  # of a target: missing if that was not reached
    time: str = ""  # its key, if this is the result at one: missing if the run ended before


@dataclass(frozen=True, slots=True)
class TableCell:
    """A text, and the number that decides which one is the best of its column (None: none)."""

    text: str
    rank: float | None = None  # smaller is better
    best: bool = False


@dataclass(frozen=True, slots=True)
class ComparisonGrid:
    """A comparison as texts, before it becomes a rich table or Markdown."""

    headers: list[str]
    meanings: list[str]  # of the headers
    rows: list[list[TableCell]]
    caption: str
    bold_caption: str  # for a form in which the best cells are bold


def comparison_table(
    summaries: Sequence[RunSummary], *, names: Mapping[str, str] | None = None
) -> Table:
    """One row per algorithm, in the given order; bold: certainly the best of its column."""
    from rich.markup import escape

    grid = comparison_grid(summaries, names=names)
    # The least important first; the rest goes from the right.
    drop_first = [
        header for start in DROPPED_FIRST for header in grid.headers if header.startswith(start)
    ]
    table = new_table(
        *grid.headers, left=grid.headers[:1], drop_first=drop_first, caption=grid.caption
    )
    table.bold_caption = grid.bold_caption
    for row in grid.rows:
        texts = [row[0].text, *(cell.text.replace(" (", "\n(") for cell in row[1:])]
        table.add_row(
            *(
                f"[bold]{escape(text)}[/]" if cell.best else escape(text)
                for cell, text in zip(row, texts, strict=True)
            )
        )
    return table


def comparison_markdown(
    summaries: Sequence[RunSummary],
    *,
    names: Mapping[str, str] | None = None,
    differences: str = "",
) -> str:
    """The comparison as a Markdown table with its caption below, and how the settings differ."""
    grid = comparison_grid(summaries, names=names)

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    headers = [header.replace("-\n", "-").replace("\n", " ") for header in grid.headers]
    ruler = "|" + "|".join(["---", *["---:"] * (len(headers) - 1)]) + "|"
    caption = "; ".join(filter(None, [grid.caption, grid.bold_caption]))
    rows = [line([f"**{c.text}**" if c.best else c.text for c in row]) for row in grid.rows]
    notes = [f"- {line}" for line in paired_lines(summaries, names=names)]
    notes = ["", *notes] if notes else []
    settings = ["", differences] if differences else []
    return "\n".join([line(headers), ruler, *rows, "", caption, *settings, *notes]) + "\n"


def paired_lines(
    summaries: Sequence[RunSummary], *, names: Mapping[str, str] | None = None
) -> list[str]:
    """FedHP, or the first algorithm, against each other one over the common seeds, in words."""
    metric = summaries[0].metric if summaries else ACCURACY
    shown = names_for((run.algorithm for run in summaries), names)
    return [
        paired_words(paired, metric, name=lambda label: shown[label])
        for paired in comparison_pairs(summaries)
    ]


def comparison_grid(
    summaries: Sequence[RunSummary], *, names: Mapping[str, str] | None = None
) -> ComparisonGrid:
    """Headers and cells of a comparison; `names` are the user's own, by label."""
    names = names_for((run.algorithm for run in summaries), names)
    columns = _columns(summaries)
    columns = [
        column
        if column.decimals is not None
        else replace(column, decimals=decimals_for(column.value(run) for run in summaries))
        for column in columns
    ]
    rows: list[list[TableCell]] = []
    ranked = finished_by_label(competitors(summaries))
    labels: list[str | None] = []  # of the rows; None: an unfinished run, or the limit
    for label in dict.fromkeys(run.algorithm for run in summaries):
        runs = [run for run in summaries if run.algorithm == label]
        finished = [run for run in runs if run.status == FINISHED]
        if finished:
            part = f" ({len(finished)} of {len(runs)} seeds)" if len(finished) < len(runs) else ""
            cells = [_cell(column, finished) for column in columns]
            rows.append([TableCell(names[label] + part), *cells])
            labels.append(label if label in ranked else None)
        for run in runs:
            if run.status != FINISHED:
                cells = [TableCell(_cell(column, [run]).text) for column in columns]
                rows.append([TableCell(_unfinished(run, names[label])), *cells])
                labels.append(None)
    headers = ["algorithm", *(column.header for column in columns)]
    rows = _mark_best(rows, labels, columns=columns, runs=ranked)
    marked = any(cell.best for row in rows for cell in row)
    caption = _caption(summaries, best_marked=marked)
    meanings = ["Its settings are at the end of the page.", *(each.meaning for each in columns)]
    return ComparisonGrid(headers, meanings, rows, caption, BOLD_CAPTION if marked else "")


def _columns(summaries: Sequence[RunSummary]) -> list[TableColumn]:
    metric = summaries[0].metric if summaries else ACCURACY
    unit, scale, decimals = ("%", 100.0, 1) if metric == ACCURACY else (metric, 1.0, None)
    final = final_meaning(run.final_tests for run in summaries)
    targets = sorted({key for run in summaries for key in run.time_to_target}, key=float)
    times = sorted({key for run in summaries for key in run.accuracy_at_time}, key=float)
    limit = find_limit(summaries)

    def result(header: str, of: str, value: Value, *, spread: bool = False) -> TableColumn:
        """A test result, and of what it is."""
        text = f"Test {metric}{of}: {final}."
        return TableColumn(header + unit, text, value, -1, spread, scale, decimals)

    columns = [
        result("final\n", ", mean of the workers", lambda run: run.final_accuracy, spread=True),
        result("mean-\nmodel ", " of the mean of all models", lambda run: run.mean_model_accuracy),
        *(
            result(f"{end}\nworker ", f" of the worker that ends {end}", attrgetter(field))
            for end, field in (("worst", "worst_worker_accuracy"), ("best", "best_worker_accuracy"))
        ),
    ]
    if any(run.own_accuracy is not None for run in summaries):
        words = " of each worker on the samples it held back"
        columns.append(result("own\ndata ", words, lambda run: run.own_accuracy))
    if any(run.class_accuracy for run in summaries):
        words = " of the class that ends worst, mean of the workers"
        columns.append(result("worst\nclass ", words, _worst_class))
    words = f"Loss on the test data, mean of the workers: {final}."
    columns.append(TableColumn("test\nloss", words, lambda run: run.final_loss, 1, decimals=3))
    for target in targets:
        name, value = target_name(target, metric), partial(_of_target, "time_to_target", target)
        words = f"Virtual seconds until the workers' mean test {metric} first reaches {name}."
        column = TableColumn(
            f"to {name}\n(s)", words, value, 1, spread=True, target=target, goal=True
        )
        columns.append(column)
    for target in targets:
        if any(target in run.bytes_to_target for run in summaries):
            name = target_name(target, metric)
            value = partial(_of_target, "bytes_to_target", target)
            words = f"What all workers together had sent when {name} was first reached."
            columns.append(
                TableColumn(f"sent to\n{name}", words, value, 1, write=data_size, goal=True)
            )
    for time in times:
        value = partial(_of_target, "accuracy_at_time", time)
        words = f"Test {metric} of the last test up to {time_name(time)} of virtual time."
        header = f"at {time_name(time)}\n{unit}"
        columns.append(TableColumn(header, words, value, -1, True, scale, decimals, time=time))
    if limit is not None:
        words = (
            "The time of the limit (links that cost nothing) to its target, divided by that of the "
            "algorithm."
        )
        columns.append(
            TableColumn("share of\nlimit %", words, limit.share, -1, scale=100.0, decimals=0)
        )
    return [*columns, *COST_COLUMNS]


COST_COLUMNS = (
    TableColumn(
        "round\n(s)", "Length of a round, mean of the rounds.", lambda run: run.round_time, 1
    ),
    TableColumn(
        "waiting\n(s)",
        "How long a worker waits in a round for the last one, mean of workers and rounds.",
        lambda run: run.mean_waiting_time,
        1,
    ),
    TableColumn(  # more steps are neither better nor worse by themselves
        "mean\nsteps",
        "Local steps of a worker in a round, mean of workers and rounds.",
        lambda run: run.mean_local_steps,
        decimals=1,
    ),
    TableColumn(
        "data\nsent",
        "What all workers together sent in the whole run.",
        lambda run: run.bytes_sent,
        1,
        write=data_size,
    ),
)


def _of_target(field: str, key: str, run: RunSummary) -> float | None:
    """A number of a run by target or time."""
    by_key: Mapping[str, float | None] = getattr(run, field)
    return by_key.get(key)


def _worst_class(run: RunSummary) -> float | None:
    return min((v for v in run.class_accuracy or () if v is not None), default=None)


def _cell(column: TableColumn, runs: Sequence[RunSummary]) -> TableCell:
    values = [v for run in runs if (v := column.value(run)) is not None and v == v]
    spread = interval([column.scale * value for value in values])
    if spread is None:
        return TableCell("not reached" if column.goal else MISSING)
    text = fixed(spread.mean, column.decimals or 0)
    if column.write is not None:
        text = column.write(spread.mean)
    if column.goal and len(values) < len(runs):
        return TableCell(f"{text} ({len(values)}/{len(runs)} reached)")
    if column.time and len(values) < len(runs):
        return TableCell(f"{text} ({len(values)}/{len(runs)} seeds)")
    if column.spread:
        text = with_spread(spread, column.decimals or 0)
    return TableCell(text, column.better * spread.mean if column.better else None)


def with_spread(spread: Interval, decimals: int) -> str:
    """mean ± half-width of the interval; only the mean where there is no interval."""
    text = fixed(spread.mean, decimals)
    if spread.high is None or spread.high == spread.mean:
        return text
    return f"{text} ± {fixed(spread.high - spread.mean, decimals)}"


def time_text(spread: Interval | None, *, runs: int, decimals: int) -> str:
    if spread is None:
        return "not reached"
    if spread.count < runs:
        return f"{spread.mean:.{decimals}f} ({spread.count}/{runs} reached)"
    return with_spread(spread, decimals)


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, left: int) -> str:
    """A table in Markdown; the first `left` columns are aligned left."""
    ruler = ["---"] * left + ["---:"] * (len(headers) - left)
    lines = [[header.replace("\n", " ") for header in headers], ruler, *rows]
    texts = [" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines]
    return "".join(f"| {text} |\n" for text in texts)


def _unfinished(run: RunSummary, name: str) -> str:
    what = {"created": "not started", "running": "still running"}.get(run.status, run.status)
    return f"{name}, seed {run.seed}: {what} after {count(run.rounds, 'round')}"


def _caption(summaries: Sequence[RunSummary], *, best_marked: bool) -> str:
    seeds = {run.seed for run in summaries if run.status == FINISHED}
    notes = [f"final: {final_meaning(run.final_tests for run in summaries)}"] if summaries else []
    if any(run.accuracy_at_time for run in summaries):
        notes.append(AT_TIME_CAPTION)
    limit = find_limit(summaries)
    if limit is not None:
        goal = target_name(limit.target, summaries[0].metric)
        notes.append(f"share of the limit: its time to {goal} / the algorithm's")
    if len(seeds) > 1:
        notes.append(f"mean ± half-width of the 95 % interval over {len(seeds)} seeds")
    if not best_marked and len(finished_by_label(summaries)) > 1 and len(seeds) < INTERVAL_SEEDS:
        notes.append(f"no ranking: that needs at least {INTERVAL_SEEDS} seeds")
    if any(run.status != FINISHED for run in summaries):
        notes.append("unfinished runs have their own rows, with their numbers so far")
    return "; ".join(notes)


def _mark_best(
    rows: list[list[TableCell]],
    labels: Sequence[str | None],
    *,
    columns: Sequence[TableColumn],
    runs: Mapping[str, Sequence[RunSummary]],
) -> list[list[TableCell]]:
    """Mark the best of every column that is better than all others, seed by seed."""
    marked = [list(row) for row in rows]
    for position, column in enumerate(columns, start=1):
        ranked = [
            (rank, index)
            for index, row in enumerate(rows)
            if (rank := row[position].rank) is not None and labels[index] is not None
        ]
        if len(ranked) < 2:
            continue
        _, best = min(ranked)
        label = labels[best]
        others = [other for other in runs if other != label]
        if label and all(
            _certainly_better(column, (label, runs[label]), (other, runs[other]))
            for other in others
        ):
            marked[best][position] = replace(rows[best][position], best=True)
    return marked


def _certainly_better(column: TableColumn, first: Labelled, second: Labelled) -> bool:
    if column.target:
        return compare_times(first, second, column.target).verdict == "faster"

    def rank(run: RunSummary) -> float | None:
        value = column.value(run)
        return None if value is None else column.better * value

    return is_lower(first, second, rank)


def spread_evenly(length: int, most: int) -> list[int]:
    """At most this many of the indices 0..length-1, evenly, the first and last included."""
    if length <= most:
        return list(range(length))
    return sorted({round(i * (length - 1) / (most - 1)) for i in range(most)})


def _test_losses(metrics: Columns, key: str) -> dict[int, float]:
    """The losses of usual tests, not of the whole test set, by round or worker."""
    rows = zip(metrics[key], metrics["whole"], metrics["loss"], strict=True)
    return {index: loss for index, whole, loss in rows if not whole and loss is not None}


def round_table(run: RunReader) -> Table:
    """The evaluated rounds, at most 20 of them, chosen evenly."""
    metric = run.meta("metric")
    unit, scale = ("%", 100.0) if metric == ACCURACY else (metric, 1.0)
    tests, rounds = run.table("evaluations"), run.table("rounds")
    chosen = spread_evenly(len(tests["round"]), MOST_ROUNDS)
    row_of_round = {round_index: row for row, round_index in enumerate(rounds["round"])}
    rows = [row_of_round[tests["round"][test]] for test in chosen]

    def tested(name: str, decimals: int | None = None) -> list[str]:
        values = [None if (v := tests[name][i]) is None else scale * v for i in chosen]
        return column_texts(values, decimals)

    def of_round(name: str, decimals: int | None = None) -> list[str]:
        return column_texts([rounds[name][row] for row in rows], decimals)

    share = 1 if metric == ACCURACY else None
    loss_of_round = _test_losses(run.table("test_metrics"), "round")
    losses = [loss_of_round.get(tests["round"][test]) for test in chosen]
    test_loss = {"test\nloss": column_texts(losses, 3)} if loss_of_round else {}
    columns = {
        "round": of_round("round", 0),
        "clock\n(s)": of_round("clock"),
        f"workers\n{unit}": tested("accuracy", share),
        f"mean-\nmodel {unit}": tested("mean_model_accuracy", share),
        **test_loss,
        "loss": of_round("train_loss", 3),
        "round\n(s)": of_round("round_time"),
        "waiting\n(s)": of_round("mean_waiting_time"),
        "mean\nsteps": of_round("mean_local_steps", 1),
        "links": of_round("links", 0),
        "sent": [data_size(rounds["bytes_sent"][row]) for row in rows],
    }
    table = new_table(*columns, drop_first=("links", "loss", f"mean-\nmodel {unit}"))
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    if len(chosen) < len(tests["round"]):
        table.caption = f"{len(chosen)} of {len(tests['round'])} evaluated rounds"
    return table


def worker_table(run: RunReader, round_index: int) -> Table:
    """What every worker did in one round; of very many workers an even selection."""
    from rich.markup import escape

    metric, devices = run.meta("metric"), run.meta("devices")
    asynchronous = bool(run.meta("asynchronous"))
    workers = run.table("workers", round_index=round_index)
    tests = run.table("worker_evaluations", round_index=round_index)
    chosen = spread_evenly(len(devices), MOST_WORKERS)
    if len(chosen) < len(devices):
        workers = {name: [column[i] for i in chosen] for name, column in workers.items()}
    away = [time is None for time in workers["worker_time"]]
    steps = column_texts(workers["local_steps"], 0)
    columns = {
        "worker": column_texts(workers["worker"], 0),
        "device": [escape(devices[worker]) for worker in workers["worker"]],
        "links": column_texts(workers["links"], 0),
        "steps": ["away" if gone else text for gone, text in zip(away, steps, strict=True)],
        "step\n(s)": column_texts(workers["step_time"], 3),
        "compute\n(s)": column_texts(workers["compute_time"]),
        "link\n(s)": column_texts(transfer_times(run, workers)),
        "done\n(s)": column_texts([None if asynchronous else t for t in workers["worker_time"]]),
        "waited\n(s)": column_texts(workers["waiting_time"]),
        "loss": column_texts(workers["train_loss"], 3),
    }
    for column in added_columns():
        if any(value is not None for value in workers[column.name]):
            unit = f"\n({column.unit})" if column.unit else ""
            columns[f"{column.name.replace('_', ' ')}{unit}"] = column_texts(workers[column.name])
    own = run.table("own_test_metrics", round_index=round_index)
    unit, scale = ("%", 100.0) if metric == ACCURACY else (metric, 1.0)
    for name, results in (("test", tests), ("own", own)):
        if results["worker"]:  # workers that attack are not tested
            of_worker = dict(zip(results["worker"], results["accuracy"], strict=True))
            found = [of_worker.get(worker) for worker in workers["worker"]]
            scaled = [None if value is None else scale * value for value in found]
            columns[f"{name}\n{unit}"] = column_texts(scaled, 1 if metric == ACCURACY else None)
    metrics = run.table("worker_test_metrics", round_index=round_index)
    loss_of_worker = _test_losses(metrics, "worker")
    if loss_of_worker:
        losses = [loss_of_worker.get(worker) for worker in workers["worker"]]
        columns["test\nloss"] = column_texts(losses, 3)
    table = new_table(*columns, left=("device",), drop_first=WORKER_DROPPED_FIRST)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    notes = []
    if asynchronous:
        notes.append("turns that ended in this round; they may have started earlier")
    if overlaps(run, round_index):
        notes.append("link: the transfer of the group, during which everyone trained")
    if own["worker"]:
        notes.append("own: on the samples that the worker held back")
    if len(chosen) < len(devices):
        notes.append(f"{len(chosen)} of {len(devices)} workers; all of them: fedhp export")
    table.caption = "; ".join(notes) or None
    return table


def column_texts(values: Sequence[Any], decimals: int | None = None) -> list[str]:
    """A column of numbers, all with the same number of decimals."""
    digits = decimals_for(values) if decimals is None else decimals
    return [fixed(value, digits) for value in values]


def new_table(
    *headers: str,
    left: Sequence[str] = (),
    drop_first: Sequence[str] = (),
    keep: Sequence[str] = (),
    caption: str | None = None,
) -> FittingTable:
    """An empty table for the terminal; all columns but those named are aligned right."""
    from fedhp.terminal import FittingTable

    return FittingTable(*headers, left=left, drop_first=drop_first, keep=keep, caption=caption)
