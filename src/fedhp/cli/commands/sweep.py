"""`fedhp sweep`: one experiment with every combination of some settings, over several seeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from fedhp.cli import parameters as cli
from fedhp.cli.logs import Log, PerWorker, end_of_runs, follow, parse_log

if TYPE_CHECKING:
    from fedhp.report.sweep import SweepResult


def sweep(
    experiment: cli.ExperimentFile,
    settings: list[str] = cli.argument(
        "key=a,b,c",
        "Settings and their values, separated by commas. A setting with a single value "
        "is the same in every run.",
        default=...,
    ),
    seeds: cli.Seeds = None,
    out: cli.Out = None,
    resume: cli.Resume = False,
    trust: cli.TrustedModules = None,
    as_json: cli.Json = False,
    jobs: cli.Jobs = None,
    ray: cli.Ray = None,
    figures: bool = cli.option("", "Save the figure.", default=True),
    log: Log = None,
    per_worker: PerWorker = False,
) -> None:
    """Run one experiment with every combination of settings.

    With --resume, finished runs are not repeated; values and seeds may be added.
    """
    cli.trust_modules(trust)
    targets = parse_log(log, per_worker=per_worker)

    from fedhp.console import Activity

    with cli.redirect_user_prints(as_json), Activity("starting") as activity:
        from fedhp.cli.stopping import StopRequest
        from fedhp.config import Draft
        from fedhp.console.campaign import run_with_progress
        from fedhp.engine.runs.campaign import check_cells
        from fedhp.engine.runs.sweep import plan_sweep
        from fedhp.report.formatting import short_names
        from fedhp.report.sweep import read_sweep

        folder = cli.choose_folder(out, experiment, resume=resume)
        plan = plan_sweep(
            Draft.read(experiment),
            settings=settings,
            seeds=None if seeds is None else cli.parse_seeds(seeds),
            out=folder,
        )
        activity.now("checking the settings")
        check_cells(plan.cells, resume=resume)
    logs = follow(folder, targets, per_worker=per_worker)
    with StopRequest() as stop, logs:
        errors = run_with_progress(
            plan.cells,
            jobs=jobs,
            ray=ray,
            stop=stop,
            short_labels=short_names([cell.label for cell in plan.cells]),
        )
    _finish(read_sweep(plan), folder, as_json=as_json, figures=figures)
    end_of_runs(logs, errors, as_json=as_json)


def _finish(result: SweepResult, folder: Path, *, as_json: bool, figures: bool) -> None:
    from fedhp.console import Activity
    from fedhp.report.figures.sweep import save_sweep
    from fedhp.report.sweep import sweep_table

    with Activity("drawing the figure"):
        picture = save_sweep(result, folder, figures=figures)
    if as_json:
        print(json.dumps(result.as_json()))
        return
    cli.table_console().print(sweep_table(result))
    cli.say(f"runs, table and numbers: {folder}")
    if picture is not None:
        cli.say(f"figure: {picture}")
