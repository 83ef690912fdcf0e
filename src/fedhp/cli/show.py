"""`fedhp show`: a run's settings, numbers and rounds; or all runs in a folder."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedhp.cli.parameters import Json, table_console
from fedhp.errors import RunError

if TYPE_CHECKING:
    from rich.console import Console

    from fedhp.record.reader import RunReader, RunSummary


def show(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder, or a folder that contains runs.")
    ],
    round_index: Annotated[
        int | None,
        typer.Option("--round", metavar="N", help="Show what every worker did in this round."),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also save figures in this folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a run's settings and results, or compare all runs in a folder."""
    from fedhp.record.reader import RunReader, find_runs

    folders = find_runs(run)
    console = table_console()
    if as_json:
        _print_json(folders)
    elif len(folders) > 1:
        if round_index is not None:
            raise RunError(
                f"{run} contains {len(folders)} runs, but --round needs a single one",
                allowed="--round with a single run folder",
                fix=f"for example: fedhp show {shlex.quote(str(folders[0]))} --round {round_index}",
            )
        _show_many(console, folders, run)
    else:
        with RunReader(folders[0]) as reader:
            if round_index is None:
                _show_run(console, reader)
            else:
                _show_round(console, reader, round_index)
    if figures is not None:
        paths = _draw(folders, figures)
        if not as_json:
            console.print(f"figures: {figures} ({len(paths)} files)", soft_wrap=True, markup=False)


def _show_run(console: Console, run: RunReader) -> None:
    from fedhp.report.describe import describe_run
    from fedhp.report.tables import round_table

    facts = [("run", str(run.folder)), *describe_run(run)]
    _print_facts(console, facts)
    console.print()
    if not run.rounds_done:
        _print_facts(console, [("digest", run.digest())])
        return
    console.print(round_table(run))
    console.print()
    numbers = _numbers(run.summary(), run.meta("metric"), network=bool(run.meta("network")))
    _print_facts(console, numbers)
    command = f"fedhp explain {shlex.quote(str(run.folder))} --round {run.rounds_done}"
    console.print(f"explain a round: {command}", soft_wrap=True, markup=False)


def _numbers(summary: RunSummary, metric: str, *, network: bool) -> list[tuple[str, str]]:
    from fedhp.report.formatting import (
        data_size,
        final_meaning,
        number,
        score,
        seconds,
        target_name,
    )

    reached = [
        (f"to {target_name(target, metric)}", "not reached" if time is None else seconds(time))
        for target, time in summary.time_to_target.items()
    ]
    # On a network time is real, and nobody sees all models.
    mean_model = [] if network else [("mean model", score(summary.mean_model_accuracy, metric))]
    loss = number(summary.final_loss)
    if summary.mean_model_loss is not None:
        loss += f", of the mean model {number(summary.mean_model_loss)}"
    test_loss = [] if summary.final_loss is None else [("test loss", loss)]
    known = [(v, c) for c, v in enumerate(summary.class_accuracy or []) if v is not None]
    by_class = [
        (f"{name} class", f"{score(value, metric)} (class {number_of_class})")
        for name, (value, number_of_class) in (
            (("worst", min(known)), ("best", max(known))) if known else ()
        )
    ]
    total = seconds(summary.completion_time)
    meaning = final_meaning([summary.final_tests])
    return [
        ("final", f"{score(summary.final_accuracy, metric)} (mean of the workers; {meaning})"),
        *mean_model,
        ("worst worker", score(summary.worst_worker_accuracy, metric)),
        ("best worker", score(summary.best_worker_accuracy, metric)),
        *test_loss,
        *by_class,
        ("best", score(summary.best_accuracy, metric)),
        *reached,
        ("total time", total if network else f"{total} of virtual time"),
        ("round", seconds(summary.round_time)),
        ("waiting", f"{seconds(summary.mean_waiting_time)} per round"),
        ("mean steps", number(summary.mean_local_steps)),
        ("data sent", data_size(summary.bytes_sent)),
        ("digest", summary.digest),
    ]


def _print_facts(console: Console, facts: Sequence[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in facts)
    for name, fact in facts:
        console.print(f"{name:<{width}}  {fact}", soft_wrap=True, markup=False)


def _show_round(console: Console, run: RunReader, round_index: int) -> None:
    from fedhp.report.rounds import check_round
    from fedhp.report.tables import worker_table

    index = check_round(run, round_index)
    console.print(f"{run.folder}, round {index}", soft_wrap=True, markup=False)
    console.print(worker_table(run, index))
    console.print(
        f"explain it: fedhp explain {shlex.quote(str(run.folder))} --round {index}",
        soft_wrap=True,
        markup=False,
    )


def _show_many(console: Console, folders: Sequence[Path], top: Path) -> None:
    from fedhp.record.reader import RunReader
    from fedhp.report.formatting import count, score, seconds
    from fedhp.report.tables import comparison_table

    summaries = []
    for folder in folders:
        with RunReader(folder) as run:
            summary = run.summary()
        summaries.append(summary)
        final = score(summary.final_accuracy, summary.metric)
        console.print(
            f"{folder.relative_to(top)}: {summary.status}, {count(summary.rounds, 'round')}, "
            f"{seconds(summary.completion_time)}, final {final}, "
            f"digest {summary.digest[:12]}",
            soft_wrap=True,
            markup=False,
        )
    for metric in dict.fromkeys(summary.metric for summary in summaries):
        console.print()
        console.print(comparison_table([s for s in summaries if s.metric == metric]))
    one = shlex.quote(str(folders[0]))
    console.print(f"show one of them: fedhp show {one}", soft_wrap=True, markup=False)


def _print_json(folders: Sequence[Path]) -> None:
    """One run: its summary. Several: the same object as `fedhp compare --json`."""
    import json

    from fedhp.record.reader import RunReader
    from fedhp.record.statistics import summarize_runs

    summaries = []
    for folder in folders:
        with RunReader(folder) as run:
            summaries.append(run.summary())
    if len(summaries) == 1:
        print(json.dumps(summaries[0].as_json()))
    else:
        runs = [summary.as_json() for summary in summaries]
        print(json.dumps({"runs": runs, "summary": summarize_runs(summaries)}))


def _draw(folders: Sequence[Path], out: Path) -> list[Path]:
    from fedhp.report.figures.comparison import save_comparison_figures
    from fedhp.report.figures.run import save_run_figures

    if len(folders) > 1:
        return save_comparison_figures(folders, out)
    return save_run_figures(folders[0], out)
