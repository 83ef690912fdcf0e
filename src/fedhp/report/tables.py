"""Tables for the terminal and for Markdown: a comparison, a run's rounds, a round's workers.

Runs that did not finish are never averaged: each gets its own row, which says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    markdown_row,
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
    part: str = ""  # what to call the runs that have it, if others may not: reached, seeds


@dataclass(slots=True)
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

    @property
    def plain_headers(self) -> list[str]:
        return [header.replace("-\n", "-").replace("\n", " ") for header in self.headers]

    @property
    def full_caption(self) -> str:
        return "; ".join(filter(None, [self.caption, self.bold_caption]))


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
    rows = []
    for row in grid.rows:
        texts = [row[0].text, *(cell.text.replace(" (", "\n(") for cell in row[1:])]
        marks = ("[bold]{}[/]" if cell.best else "{}" for cell in row)
        rows.append([mark.format(escape(text)) for mark, text in zip(marks, texts, strict=True)])
    left, caption = grid.headers[:1], grid.caption
    table = new_table(*grid.headers, rows=rows, left=left, drop_first=drop_first, caption=caption)
    table.bold_caption = grid.bold_caption
    return table


def comparison_markdown(
    summaries: Sequence[RunSummary],
    *,
    names: Mapping[str, str] | None = None,
    differences: str = "",
) -> str:
    """The comparison as a Markdown table with its caption below, and how the settings differ."""
    grid = comparison_grid(summaries, names=names)
    ruler = "|---|" + "---:|" * (len(grid.headers) - 1)
    rows = [[f"**{c.text}**" if c.best else c.text for c in row] for row in grid.rows]
    notes = [f"- {line}" for line in paired_lines(summaries, names=names)]
    first, *below = map(markdown_row, (grid.plain_headers, *rows))
    lines = [first, ruler, *below, "", grid.full_caption]
    lines += ["", differences] if differences else []
    return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"


def paired_lines(
    summaries: Sequence[RunSummary], *, names: Mapping[str, str] | None = None
) -> list[str]:
    """FedHP, or the first algorithm, against each other one over the common seeds, in words."""
    metric = summaries[0].metric if summaries else ACCURACY
    shown = names_for((run.algorithm for run in summaries), names)
    return [paired_words(paired, metric, shown) for paired in comparison_pairs(summaries)]


def comparison_grid(
    summaries: Sequence[RunSummary], *, names: Mapping[str, str] | None = None
) -> ComparisonGrid:
    names = names_for((run.algorithm for run in summaries), names)
    columns = [
        column
        if column.decimals is not None
        else replace(column, decimals=decimals_for(column.value(run) for run in summaries))
        for column in _columns(summaries)
    ]
    ranked = finished_by_label(competitors(summaries))
    rows: list[list[TableCell]] = []
    by_label: dict[str, list[TableCell]] = {}  # of those that are ranked
    for label in dict.fromkeys(run.algorithm for run in summaries):
        runs = [run for run in summaries if run.algorithm == label]
        finished = [run for run in runs if run.status == FINISHED]
        if finished:
            part = f" ({len(finished)} of {len(runs)} seeds)" if len(finished) < len(runs) else ""
            cells = [_cell(column, finished) for column in columns]
            rows.append([TableCell(names[label] + part), *cells])
            if label in ranked:
                by_label[label] = cells
        for run in runs:
            if run.status != FINISHED:
                cells = [TableCell(_cell(column, [run]).text) for column in columns]
                words = {"created": "not started", "running": "still running"}
                what = f"{words.get(run.status, run.status)} after {count(run.rounds, 'round')}"
                rows.append([TableCell(f"{names[label]}, seed {run.seed}: {what}"), *cells])
    for position, column in enumerate(columns):
        _mark_best(column, {label: c[position] for label, c in by_label.items()}, ranked)
    marked = any(cell.best for cells in rows for cell in cells)
    return ComparisonGrid(
        headers=["algorithm", *(column.header for column in columns)],
        meanings=["Its settings are at the end of the page.", *(each.meaning for each in columns)],
        rows=rows,
        caption=_caption(summaries, best_marked=marked),
        bold_caption=BOLD_CAPTION if marked else "",
    )


def _columns(summaries: Sequence[RunSummary]) -> list[TableColumn]:
    metric = summaries[0].metric if summaries else ACCURACY
    unit, scale, decimals = ("%", 100.0, 1) if metric == ACCURACY else (metric, 1.0, None)
    final = final_meaning(run.final_tests for run in summaries)
    targets = sorted({key for run in summaries for key in run.time_to_target}, key=float)
    times = sorted({key for run in summaries for key in run.accuracy_at_time}, key=float)
    limit = find_limit(summaries)

    def result(header: str, of: str, value: Value, *, spread: bool = False) -> TableColumn:
        text = f"Test {metric}{of}: {final}."
        return TableColumn(header + unit, text, value, -1, spread, scale, decimals)

    columns = [
        result("final\n", ", mean of the workers", attrgetter("final_accuracy"), spread=True),
        result("mean-\nmodel ", " of the mean of all models", attrgetter("mean_model_accuracy")),
        *(
            result(f"{end}\nworker ", f" of the worker that ends {end}", attrgetter(field))
            for end, field in (("worst", "worst_worker_accuracy"), ("best", "best_worker_accuracy"))
        ),
    ]
    if any(run.own_accuracy is not None for run in summaries):
        words = " of each worker on the samples it held back"
        columns.append(result("own\ndata ", words, attrgetter("own_accuracy")))
    if any(run.class_accuracy for run in summaries):
        words = " of the class that ends worst, mean of the workers"
        columns.append(result("worst\nclass ", words, _worst_class))
    words = f"Loss on the test data, mean of the workers: {final}."
    columns.append(TableColumn("test\nloss", words, attrgetter("final_loss"), 1, decimals=3))
    for target in targets:
        name, value = target_name(target, metric), partial(_of_target, "time_to_target", target)
        words = f"Virtual seconds until the workers' mean test {metric} first reaches {name}."
        header, part = f"to {name}\n(s)", "reached"
        columns.append(TableColumn(header, words, value, 1, True, target=target, part=part))
    for target in targets:
        if any(target in run.bytes_to_target for run in summaries):
            name = target_name(target, metric)
            value = partial(_of_target, "bytes_to_target", target)
            words = f"What all workers together had sent when {name} was first reached."
            header, part = f"sent to\n{name}", "reached"
            columns.append(TableColumn(header, words, value, 1, write=data_size, part=part))
    for time in times:
        value = partial(_of_target, "accuracy_at_time", time)
        words = f"Test {metric} of the last test up to {time_name(time)} of virtual time."
        header = f"at {time_name(time)}\n{unit}"
        columns.append(TableColumn(header, words, value, -1, True, scale, decimals, part="seeds"))
    if limit is not None:
        words = (
            "The time of the limit (links that cost nothing) to its target, divided by that of the "
            "algorithm."
        )
        header = "share of\nlimit %"
        columns.append(TableColumn(header, words, limit.share, -1, scale=100.0, decimals=0))
    words = "Length of a round, mean of the rounds."
    columns.append(TableColumn("round\n(s)", words, attrgetter("round_time"), 1))
    words = "How long a worker waits in a round for the last one, mean of workers and rounds."
    columns.append(TableColumn("waiting\n(s)", words, attrgetter("mean_waiting_time"), 1))
    words = "Local steps of a worker in a round, mean of workers and rounds."
    # More steps are neither better nor worse by themselves.
    columns.append(TableColumn("mean\nsteps", words, attrgetter("mean_local_steps"), decimals=1))
    words = "What all workers together sent in the whole run."
    columns.append(TableColumn("data\nsent", words, attrgetter("bytes_sent"), 1, write=data_size))
    return columns


def _of_target(field: str, key: str, run: RunSummary) -> float | None:
    by_key: Mapping[str, float | None] = getattr(run, field)
    return by_key.get(key)


def _worst_class(run: RunSummary) -> float | None:
    return min((v for v in run.class_accuracy or () if v is not None), default=None)


def _cell(column: TableColumn, runs: Sequence[RunSummary]) -> TableCell:
    values = [v for run in runs if (v := column.value(run)) is not None and v == v]
    spread = interval([column.scale * value for value in values])
    if spread is None:
        return TableCell("not reached" if column.part == "reached" else MISSING)
    text = fixed(spread.mean, column.decimals or 0)
    if column.write is not None:
        text = column.write(spread.mean)
    if column.part and len(values) < len(runs):
        return TableCell(f"{text} ({len(values)}/{len(runs)} {column.part})")
    if column.spread:
        text = with_spread(spread, column.decimals or 0)
    return TableCell(text, column.better * spread.mean if column.better else None)


def with_spread(
    spread: Interval | None, decimals: int, *, runs: int = 0, part: str = "", missing: str = MISSING
) -> str:
    """mean ± half-width of the interval, where there is one; of only a part of so many runs the
    mean and how many."""
    if spread is None:
        return missing
    text = fixed(spread.mean, decimals)
    if spread.count < runs:
        return f"{text} ({spread.count}/{runs} {part})"
    if spread.high is None or spread.high == spread.mean:
        return text
    return f"{text} ± {fixed(spread.high - spread.mean, decimals)}"


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, left: int) -> str:
    """A table in Markdown; the first `left` columns are aligned left."""
    ruler = ["---"] * left + ["---:"] * (len(headers) - left)
    lines = [[header.replace("\n", " ") for header in headers], ruler, *rows]
    return "".join(f"{markdown_row(line)}\n" for line in lines)


def _caption(summaries: Sequence[RunSummary], *, best_marked: bool) -> str:
    seeds = {run.seed for run in summaries if run.status == FINISHED}
    notes = [f"final: {final_meaning(run.final_tests for run in summaries)}"] if summaries else []
    if any(run.accuracy_at_time for run in summaries):
        notes.append(AT_TIME_CAPTION)
    if (limit := find_limit(summaries)) is not None:
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
    column: TableColumn,
    cells: Mapping[str, TableCell],
    runs: Mapping[str, Sequence[RunSummary]],
) -> None:
    """Mark the best cell of a column, by label, if it is better than all others, seed by seed."""
    ranks = {label: cell.rank for label, cell in cells.items() if cell.rank is not None}
    if len(ranks) > 1:
        best = min(ranks, key=ranks.__getitem__)
        others = [other for other in runs.items() if other[0] != best]
        cells[best].best = all(
            _certainly_better(column, (best, runs[best]), other) for other in others
        )


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
    unit = "%" if metric == ACCURACY else metric
    tests, rounds = run.table("evaluations"), run.table("rounds")
    chosen = spread_evenly(len(tests["round"]), MOST_ROUNDS)
    row_of_round = {round_index: row for row, round_index in enumerate(rounds["round"])}
    rows = [row_of_round[tests["round"][test]] for test in chosen]

    def tested(name: str) -> list[str]:
        return _result_texts([tests[name][i] for i in chosen], metric)

    def of_round(name: str, decimals: int | None = None) -> list[str]:
        return column_texts([rounds[name][row] for row in rows], decimals)

    loss_of_round = _test_losses(run.table("test_metrics"), "round")
    losses = [loss_of_round.get(tests["round"][test]) for test in chosen]
    test_loss = {"test\nloss": column_texts(losses, 3)} if loss_of_round else {}
    columns = {
        "round": of_round("round", 0),
        "clock\n(s)": of_round("clock"),
        f"workers\n{unit}": tested("accuracy"),
        f"mean-\nmodel {unit}": tested("mean_model_accuracy"),
        **test_loss,
        "loss": of_round("train_loss", 3),
        "round\n(s)": of_round("round_time"),
        "waiting\n(s)": of_round("mean_waiting_time"),
        "mean\nsteps": of_round("mean_local_steps", 1),
        "links": of_round("links", 0),
        "sent": [data_size(rounds["bytes_sent"][row]) for row in rows],
    }
    some = f"{len(chosen)} of {len(tests['round'])} evaluated rounds"
    return new_table(
        *columns,
        rows=zip(*columns.values(), strict=True),
        drop_first=("links", "loss", f"mean-\nmodel {unit}"),
        caption=some if len(chosen) < len(tests["round"]) else None,
    )


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
    unit = "%" if metric == ACCURACY else metric
    for name, results in (("test", tests), ("own", own)):
        if results["worker"]:  # workers that attack are not tested
            of_worker = dict(zip(results["worker"], results["accuracy"], strict=True))
            found = [of_worker.get(worker) for worker in workers["worker"]]
            columns[f"{name}\n{unit}"] = _result_texts(found, metric)
    metrics = run.table("worker_test_metrics", round_index=round_index)
    loss_of_worker = _test_losses(metrics, "worker")
    if loss_of_worker:
        losses = [loss_of_worker.get(worker) for worker in workers["worker"]]
        columns["test\nloss"] = column_texts(losses, 3)
    notes = []
    if asynchronous:
        notes.append("turns that ended in this round; they may have started earlier")
    if overlaps(run, round_index):
        notes.append("link: the transfer of the group, during which everyone trained")
    if own["worker"]:
        notes.append("own: on the samples that the worker held back")
    if len(chosen) < len(devices):
        notes.append(f"{len(chosen)} of {len(devices)} workers; all of them: fedhp export")
    return new_table(
        *columns,
        rows=zip(*columns.values(), strict=True),
        left=("device",),
        drop_first=WORKER_DROPPED_FIRST,
        caption="; ".join(notes) or None,
    )


def _result_texts(results: Sequence[float | None], metric: str) -> list[str]:
    if metric != ACCURACY:
        return column_texts(results)
    return column_texts([None if result is None else 100.0 * result for result in results], 1)


def column_texts(values: Sequence[Any], decimals: int | None = None) -> list[str]:
    """A column of numbers, all with the same number of decimals."""
    digits = decimals_for(values) if decimals is None else decimals
    return [fixed(value, digits) for value in values]


def new_table(
    *headers: str,
    rows: Iterable[Sequence[str]] = (),
    left: Sequence[str] = (),
    drop_first: Sequence[str] = (),
    keep: Sequence[str] = (),
    caption: str | None = None,
) -> FittingTable:
    """A table for the terminal; all columns but those named are aligned right."""
    from fedhp.terminal import FittingTable

    table = FittingTable(*headers, left=left, drop_first=drop_first, keep=keep, caption=caption)
    for row in rows:
        table.add_row(*row)
    return table
