"""What `fedhp show` says about a run, one of its rounds, or all runs in a folder."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fedhp.errors import RunError
from fedhp.record.reader import RunReader, RunSummary, find_runs
from fedhp.record.statistics import summarize_runs
from fedhp.record.store import GROUP_TABLES, METRIC_TABLES, PHASE_TABLES
from fedhp.record.timeline import read_pace, read_paces, transfer_times
from fedhp.report.behind import workers_behind
from fedhp.report.describe import describe_run
from fedhp.report.formatting import (
    count,
    data_size,
    final_meaning,
    number,
    score,
    seconds,
    target_name,
    time_name,
)
from fedhp.report.groups import sort_runs
from fedhp.report.labels import stored_names
from fedhp.report.rounds import check_round, pace_words, paces_words, round_rows
from fedhp.report.tables import comparison_table, round_table, worker_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MOST_CLASSES = 20  # that are listed; export and --json have all
DIGEST = "digest"
TUNING_TABLE = "tune.md"  # of `fedhp tune`
SHORT_DIGEST = 12  # characters, where there is no room for all


@dataclass(frozen=True, slots=True)
class Fact:
    """A name and a value; the values of some facts begin in the same column."""

    name: str
    value: str
    width: int  # of the longest name


@dataclass(frozen=True, slots=True)
class Hint:
    intro: str
    command: str


Part: TypeAlias = "str | Fact | Hint | Table"
Parts: TypeAlias = "list[Part]"


def show_parts(folder: str | Path, round_index: int | None = None) -> Parts:
    """Lines and tables about the run in a folder, one of its rounds, or all runs below it."""
    top = Path(folder)
    folders = find_runs(top)
    if len(folders) > 1:
        _refuse_round_of_many(top, folders, round_index)
        return _many_parts(folders, top)
    with RunReader(folders[0]) as run:
        run.check()
        return _run_parts(run) if round_index is None else _round_parts(run, round_index)


def show_json(folder: str | Path, round_index: int | None = None) -> dict[str, Any]:
    """One run: its summary, or one of its rounds. Several: as `fedhp compare --json`."""
    top = Path(folder)
    folders = find_runs(top)
    if round_index is not None:
        _refuse_round_of_many(top, folders, round_index)
        with RunReader(folders[0]) as run:
            run.check()
            return round_json(run, check_round(run, round_index))
    summaries = [_checked_summary(each) for each in folders]
    runs = [summary.as_json() for summary in summaries]
    if len(runs) == 1:
        return runs[0]
    batches, _ = _comparable(folders, summaries)
    parts = [{"settings": name, "summary": summarize_runs(same)} for name, same in batches]
    several = {"batches": parts} if len(parts) > 1 else {"summary": parts[0]["summary"]}
    return {"runs": runs, **several}


def print_parts(console: Console, parts: Iterable[Part]) -> None:
    """A terminal breaks lines between words; tables are as wide as the console."""
    from fedhp.terminal import fit_commands, fit_text

    width = console.width if console.is_terminal else None
    for part in parts:
        match part:
            case str():
                text = fit_text(part, width)
            case Fact():
                text = _fact_text(part, width)
            case Hint():
                text = fit_commands(part.intro, [part.command], width)
            case _:
                console.print(part)
                continue
        console.print(text, soft_wrap=True, markup=False)


def _fact_text(fact: Fact, width: int | None) -> str:
    from fedhp.terminal import ELLIPSIS, fit_text

    column, value = fact.width + 2, fact.value
    if width and fact.name == DIGEST and column + len(value) > width:
        value = f"{value[:SHORT_DIGEST]}{ELLIPSIS} (in full with --json)"
    return fit_text(f"{fact.name:<{fact.width}}  {value}", width, hang=column)


def _refuse_round_of_many(top: Path, folders: Sequence[Path], round_index: int | None) -> None:
    if round_index is not None and len(folders) > 1:
        raise RunError(
            f"{top} contains {len(folders)} runs, but --round needs a single one",
            allowed="--round with a single run folder",
            fix=f"for example: fedhp show {shlex.quote(str(folders[0]))} --round {round_index}",
        )


def _run_parts(run: RunReader) -> Parts:
    parts: Parts = [*_fact_lines([("run", str(run.folder)), *describe_run(run)]), ""]
    if not run.rounds_done:
        return parts + _fact_lines([(DIGEST, run.digest())])
    numbers = _numbers(run.summary(), run.meta("metric"), network=bool(run.meta("network")))
    command = f"fedhp explain {shlex.quote(str(run.folder))} --round {run.rounds_done}"
    hint = Hint("explain a round:", command)
    behind = workers_behind(run)
    late = [] if behind is None else [("far behind", behind.text)]
    pace = paces_words(read_paces(run), run.meta("devices"))
    if pace:
        numbers.insert(-1, ("pace", pace))  # before the digest
    return [*parts, round_table(run), "", *_fact_lines([*late, *numbers]), hint]


def _round_parts(run: RunReader, round_index: int) -> Parts:
    index = check_round(run, round_index)
    words = pace_words(read_pace(run, index), run.meta("devices"))
    return [
        f"{run.folder}, round {index}",
        worker_table(run, index),
        *([words] if words else []),
        Hint("explain it:", f"fedhp explain {shlex.quote(str(run.folder))} --round {index}"),
    ]


def _checked_summary(folder: Path) -> RunSummary:
    with RunReader(folder) as run:
        run.check()
        return run.summary()


def _many_parts(folders: Sequence[Path], top: Path) -> Parts:
    parts: Parts = []
    summaries = [_checked_summary(folder) for folder in folders]
    for folder, summary in zip(folders, summaries, strict=True):
        final = score(summary.final_accuracy, summary.metric)
        meaning = final_meaning([summary.final_tests])
        parts.append(
            f"{folder.relative_to(top)}: {summary.status}, {count(summary.rounds, 'round')}, "
            f"{seconds(summary.completion_time)}, final {final} ({meaning}), "
            f"digest {summary.digest[:12]}"
        )
    names = stored_names(folders)
    batches, notes = _comparable(folders, summaries)
    for name, same in batches:
        parts += ["", *([name] if name else []), comparison_table(same, names=names)]
    parts += notes
    if (top / TUNING_TABLE).is_file():
        parts.append(f"the settings found, and how: {top / TUNING_TABLE}")
    return [*parts, Hint("show one of them:", f"fedhp show {shlex.quote(str(folders[0]))}")]


def _comparable(
    folders: Sequence[Path], summaries: Sequence[RunSummary]
) -> tuple[list[tuple[str, list[RunSummary]]], tuple[str, ...]]:
    """The runs that may be averaged and compared with each other, with what sets them apart from
    the other runs (nothing, where algorithm and seed are all that differs); and notes on runs that
    were left out."""
    if not any(summary.rounds for summary in summaries):
        return [("", list(summaries))], ()
    sorted_runs = sort_runs(folders)
    kept = [{run.folder for run in batch.runs} for batch in sorted_runs.batches]
    known = list(zip(folders, summaries, strict=True))
    if len(kept) == 1:  # those without a round yet are shown, too
        kept[0] |= {folder for folder, run in known if not run.rounds}
    batches = [
        (batch.name, [run for folder, run in known if folder in members])
        for batch, members in zip(sorted_runs.batches, kept, strict=True)
    ]
    left_out = sum(len(members) for members in kept) < len(folders)
    return batches, sorted_runs.notes if left_out else ()


def _numbers(summary: RunSummary, metric: str, *, network: bool) -> list[tuple[str, str]]:
    reached = [
        (f"to {target_name(target, metric)}", _reached(time, summary.bytes_to_target.get(target)))
        for target, time in summary.time_to_target.items()
    ]
    at_times = [
        (f"at {time_name(time)}", _result_at(time, summary, metric))
        for time in summary.accuracy_at_time
    ]
    loss, own = number(summary.final_loss), score(summary.own_accuracy, metric)
    if summary.mean_model_loss is not None:
        loss += f", of the mean model {number(summary.mean_model_loss)}"
    known = [(v, c) for c, v in enumerate(summary.class_accuracy or []) if v is not None]
    by_class = []
    if known:
        for name, (value, c) in (("worst", min(known)), ("best", max(known))):
            by_class.append((f"{name} class", f"{score(value, metric)} (class {c})"))
    if 0 < len(known) <= MOST_CLASSES:
        texts = (f"{c}: {score(value, metric, unit=False)}" for value, c in known)
        by_class.append(("by class", f"{', '.join(texts)} (%)"))
    total, has_own = seconds(summary.completion_time), summary.own_accuracy is not None
    meaning = final_meaning([summary.final_tests])
    return [
        ("final", f"{score(summary.final_accuracy, metric)} (mean of the workers; {meaning})"),
        *([("last test", score(summary.last_accuracy, metric))] if summary.final_tests > 1 else []),
        # On a network time is real, and nobody sees all models.
        *([] if network else [("mean model", score(summary.mean_model_accuracy, metric))]),
        ("worst worker", score(summary.worst_worker_accuracy, metric)),
        ("best worker", score(summary.best_worker_accuracy, metric)),
        *([("own data", f"{own} (each worker on the samples it held back)")] if has_own else []),
        *([] if summary.final_loss is None else [("test loss", loss)]),
        *by_class,
        ("best", score(summary.best_accuracy, metric)),
        *reached,
        *at_times,
        ("total time", total if network else f"{total} of virtual time"),
        ("round", seconds(summary.round_time)),
        ("waiting", f"{seconds(summary.mean_waiting_time)} per round"),
        ("mean steps", number(summary.mean_local_steps)),
        ("data sent", data_size(summary.bytes_sent)),
        (DIGEST, summary.digest),
    ]


def _reached(time: float | None, sent: int | None) -> str:
    if time is None:
        return "not reached"
    return seconds(time) if sent is None else f"{seconds(time)}, {data_size(sent)} sent"


def _result_at(time: str, summary: RunSummary, metric: str) -> str:
    value = summary.accuracy_at_time[time]
    if value is not None:
        return f"{score(value, metric)} (the last test up to then)"
    if float(time) > summary.completion_time:
        return f"no result: the run ended after {seconds(summary.completion_time)}"
    return "no result: not tested yet at that time"


def _fact_lines(facts: Sequence[tuple[str, str]]) -> list[Fact]:
    width = max(len(name) for name, _ in facts)
    return [Fact(name, value, width) for name, value in facts]


def round_json(run: RunReader, index: int) -> dict[str, Any]:
    """The round's row of `rounds`, its evaluation or null, the rows of its other tables, and who
    set the pace. Workers also have transfer_time: with FedHP+ models travel while they train."""

    rows = partial(round_rows, run, index)
    others = ("links", "verdicts", "worker_evaluations", *METRIC_TABLES, *GROUP_TABLES)
    others += PHASE_TABLES
    evaluations, workers = rows("evaluations"), rows("workers")
    transfers = transfer_times(run, run.table("workers", round_index=index))
    return {
        **rows("rounds")[0],
        "evaluation": evaluations[0] if evaluations else None,
        "facts": {row["name"]: row["value"] for row in rows("facts")},
        "workers": [
            {**row, "transfer_time": time} for row, time in zip(workers, transfers, strict=True)
        ],
        "pace": read_pace(run, index).as_json(),
        **{table: rows(table) for table in others},
    }
