"""`fedhp sweep`: one experiment with every combination of some settings, over several seeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedhp.cli.parameters import (
    ExperimentFile,
    Jobs,
    Json,
    Out,
    Ray,
    Resume,
    Seeds,
    choose_folder,
    parse_seeds,
    redirect_user_prints,
    say,
    table_console,
)
from fedhp.errors import combine_errors
from fedhp.tables import read_toml

if TYPE_CHECKING:
    from fedhp.engine.runs.sweep import Sweep
    from fedhp.report.sweep import SweepResult


def sweep(
    experiment: ExperimentFile,
    settings: Annotated[
        list[str],
        typer.Argument(
            metavar="key=a,b,c",
            help="Settings and their values, separated by commas. A single value is a fixed one.",
        ),
    ],
    seeds: Seeds = None,
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
    jobs: Jobs = None,
    ray: Ray = None,
    figures: Annotated[bool, typer.Option(help="Save the figure.")] = True,
) -> None:
    """Run one experiment with every combination of settings.

    With --resume, finished runs are not repeated; values and seeds may be added.
    """
    from fedhp.console import Activity

    with redirect_user_prints(as_json), Activity("starting") as activity:
        from fedhp.cli.stopping import StopRequest
        from fedhp.console.campaign import run_with_progress
        from fedhp.engine.runs.campaign import check_cells
        from fedhp.engine.runs.sweep import plan_sweep
        from fedhp.report.formatting import short_names

        folder = choose_folder(out, experiment, resume=resume)
        plan = plan_sweep(
            read_toml(experiment),
            settings=settings,
            seeds=None if seeds is None else parse_seeds(seeds),
            out=folder,
            source=str(experiment),
        )
        activity.now("checking the settings")
        check_cells(plan.cells, resume=resume, source=str(experiment))
    with StopRequest() as stop:
        errors = run_with_progress(
            plan.cells,
            source=str(experiment),
            jobs=jobs,
            ray=ray,
            stop=stop,
            short_labels=short_names([cell.label for cell in plan.cells]),
        )
    _finish(_read(plan), folder, as_json=as_json, figures=figures)
    if errors:
        raise combine_errors(errors)


def _read(plan: Sweep) -> SweepResult:
    from fedhp.engine.runs.run import is_run
    from fedhp.record.reader import RunReader, RunSummary
    from fedhp.report.sweep import Combination, SweepResult

    summaries: dict[tuple[str, ...], list[RunSummary]] = {}
    values = {run.texts: run.values for run in plan.runs}
    for run in plan.runs:
        combination = summaries.setdefault(run.texts, [])
        if is_run(run.cell.folder):
            with RunReader(run.cell.folder) as reader:
                combination.append(reader.summary())
    return SweepResult(
        tuple(key.key for key in plan.keys),
        tuple(Combination(texts, values[texts], tuple(runs)) for texts, runs in summaries.items()),
    )


def _finish(result: SweepResult, folder: Path, *, as_json: bool, figures: bool) -> None:
    from fedhp.console import Activity
    from fedhp.engine.runs.run import run_storage_errors
    from fedhp.files import write_file
    from fedhp.report.sweep import sweep_markdown, sweep_table

    numbers = result.as_json()
    picture: Path | None = None
    with run_storage_errors(folder):
        if any(combination.runs for combination in result.combinations):
            write_file(folder / "sweep.json", json.dumps(numbers, indent=1).encode())
            write_file(folder / "sweep.md", sweep_markdown(result).encode())
        if figures and any(combination.finished for combination in result.combinations):
            from fedhp.report.figures.sweep import save_sweep_figure

            with Activity("drawing the figure"):
                picture = save_sweep_figure(result, folder / "figures")[0]
    if as_json:
        print(json.dumps(numbers))
        return
    table_console().print(sweep_table(result))
    say(f"runs, table and numbers: {folder}")
    if picture is not None:
        say(f"figure: {picture}")
