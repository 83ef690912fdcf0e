"""`fedhp reproduce`: run the paper's experiments and judge its claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from fedhp.cli import parameters as cli
from fedhp.cli.commands.dash import Dash, DashPort, live_page, suggest_dash
from fedhp.cli.logs import Log, PerWorker, end_of_runs, follow, parse_log

if TYPE_CHECKING:
    from fedhp.engine.runs.suite import Suite

WHAT = "fig1 ... fig7 | tables | all"


def reproduce(
    what: list[str] | None = cli.argument(WHAT, "Figures to reproduce. Default: all."),
    profile: str = cli.option(
        "NAME",
        "quick (an hour on 2 cores), standard (5 hours) or paper (needs GPUs).",
        default="quick",
    ),
    out: Path | None = cli.option(
        "DIR", "Folder to write to or to continue. Default: runs/reproduce-PROFILE."
    ),
    changes: list[str] | None = cli.option("key=value", "Change a setting in every run.", "--set"),
    files: Path | None = cli.option(
        "DIR", "Folder with figN.toml and sets/. Default: the paper's own files."
    ),
    sets: str | None = cli.option(
        "NAMES", "Only these data sets: emnist, mnist, cifar10, image100. Default: all."
    ),
    jobs: cli.Jobs = None,
    as_json: cli.Json = False,
    dash: Dash = False,
    dash_port: DashPort = None,
    log: Log = None,
    per_worker: PerWorker = False,
) -> None:
    """Run the paper's experiments and judge every claim.

    Finished runs are never repeated: after an interruption, run the same command again.
    """
    targets = parse_log(log, per_worker=per_worker)

    from fedhp.console import Activity

    with cli.redirect_user_prints(as_json), Activity("starting") as activity:
        from fedhp.cli.stopping import StopRequest
        from fedhp.console.campaign import run_with_progress
        from fedhp.engine.runs.suite import check_suite, choose_figures, profile_folder, read_suite
        from fedhp.report.figures.paper import read_figure_texts
        from fedhp.report.formatting import short_names
        from fedhp.report.pages.reproduction import save_reproduction

        folder = profile_folder(profile, out)
        names = choose_figures(what or ["all"], files)
        suite = read_suite(
            names,
            profile=profile,
            out=folder,
            overrides=changes or [],
            folder=files,
            chosen=[] if sets is None else [name.strip() for name in sets.split(",")],
        )
        texts = read_figure_texts([figure.name for figure in suite.figures], files)
        activity.now("checking the settings")
        suite = check_suite(suite)
    _announce(suite)
    cells = suite.cells()
    run_names = {each.cell.folder: each.name for each in cells}
    logs = follow(folder, targets, per_worker=per_worker)
    with live_page(dash, folder, port=dash_port), StopRequest() as stop, logs:
        errors = run_with_progress(
            [each.cell for each in cells],
            jobs=jobs,
            stop=stop,
            name_of=lambda cell: run_names[cell.folder],
            short_labels=short_names([each.cell.label for each in cells]),
        )
    with Activity("drawing the figures and judging the claims"):
        result = save_reproduction(suite, texts, folder)
    if as_json:
        print(json.dumps(result.as_json()))
    else:
        cli.table_console().print(result.table())
        cli.say(f"report: {result.page}")
        cli.say(f"figures, numbers and verdicts: {folder}")
        suggest_dash(folder)
    end_of_runs(logs, errors, as_json=as_json)


def _announce(suite: Suite) -> None:
    from fedhp.engine.runs.suite import finished_cells
    from fedhp.report.formatting import count

    cells = suite.cells()
    done = len(finished_cells(cells))
    names = ", ".join(figure.name for figure in suite.figures)
    cli.say(
        f"profile {suite.profile}: {count(len(cells), 'run')} for {names}, {done} of them finished",
        error=True,
    )
    for data_set in suite.sets.values():
        if data_set.key in suite.missing:
            cli.say(f"{data_set.title}: skipped. {suite.missing[data_set.key]}", error=True)
        elif data_set.note:
            cli.say(f"{data_set.title}: {data_set.note}", error=True)
