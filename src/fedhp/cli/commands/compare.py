"""`fedhp compare`: several algorithms in the same worlds, over several seeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from fedhp.cli import parameters as cli
from fedhp.cli.commands.dash import Dash, DashPort, live_page, suggest_dash
from fedhp.cli.logs import Log, PerWorker, end_of_runs, follow, parse_log

if TYPE_CHECKING:
    from fedhp.engine.runs.campaign import Cell


def compare(
    experiment: cli.ExperimentFile,
    overrides: cli.Overrides = None,
    algorithms: str | None = cli.option(
        "LIST",
        "Algorithms, separated by commas, such as fedhp,fedhp:deadline=fill,dpsgd. "
        "Default: compare.algorithms in the file.",
    ),
    seeds: cli.Seeds = None,
    out: cli.Out = None,
    resume: cli.Resume = False,
    trust: cli.TrustedModules = None,
    as_json: cli.Json = False,
    jobs: cli.Jobs = None,
    ray: cli.Ray = None,
    labels: list[str] | None = cli.option(
        "ALGORITHM=NAME",
        "A name for tables and figures, such as 'adpsgd:steps=100=tuned AD-PSGD'; may be repeated.",
        "--label",
    ),
    figures: bool = cli.option("", "Save figures.", default=True),
    dash: Dash = False,
    dash_port: DashPort = None,
    log: Log = None,
    per_worker: PerWorker = False,
) -> None:
    """Run several algorithms on one experiment and compare them."""
    cli.trust_modules(trust)
    cli.check_compared(experiment, overrides or [], algorithms)
    targets = parse_log(log, per_worker=per_worker)

    from fedhp.console import Activity

    with cli.redirect_user_prints(as_json), Activity("starting") as activity:
        from fedhp.cli.stopping import StopRequest
        from fedhp.config import Draft
        from fedhp.console.campaign import run_with_progress
        from fedhp.engine.runs.campaign import check_cells, plan_cells
        from fedhp.engine.runs.variants import split_algorithms
        from fedhp.report.labels import names_for, parse_names, read_names

        folder = cli.choose_folder(out, experiment, resume=resume)
        cells = plan_cells(
            Draft.read(experiment),
            overrides=overrides or [],
            algorithms=None if algorithms is None else split_algorithms(algorithms),
            seeds=None if seeds is None else cli.parse_seeds(seeds),
            out=folder,
        )
        cell_labels = list(dict.fromkeys(cell.label for cell in cells))
        earlier = read_names(folder) if resume else {}
        names = {
            **{label: name for label, name in earlier.items() if label in cell_labels},
            **parse_names(labels or [], cell_labels),
        }
        activity.now("checking the settings")
        check_cells(cells, resume=resume)
    logs = follow(folder, targets, per_worker=per_worker)
    with live_page(dash, folder, port=dash_port), StopRequest() as stop, logs:
        short = names_for(cell_labels, names)
        errors = run_with_progress(cells, jobs=jobs, ray=ray, stop=stop, short_labels=short)
    _finish(cells, folder, names=names, as_json=as_json, figures=figures)
    end_of_runs(logs, errors, as_json=as_json)


def _finish(
    cells: list[Cell], folder: Path, *, names: dict[str, str], as_json: bool, figures: bool
) -> None:
    from fedhp.console import Activity
    from fedhp.engine.runs.run import is_run, run_storage_errors
    from fedhp.files import write_file
    from fedhp.record.statistics import summarize_runs
    from fedhp.report.differences import runs_difference_words
    from fedhp.report.formatting import count
    from fedhp.report.groups import read_summaries
    from fedhp.report.labels import COMPARISON_FILE
    from fedhp.report.latex import comparison_latex
    from fedhp.report.limit import find_limit
    from fedhp.report.paired import compare_all
    from fedhp.report.tables import comparison_markdown, comparison_table, paired_lines

    folders = [cell.folder for cell in cells if is_run(cell.folder)]
    summaries = read_summaries(folders)
    result = {
        "runs": [summary.as_json() for summary in summaries],
        "summary": summarize_runs(summaries),
        "paired": [paired.as_json() for paired in compare_all(summaries)],
        "labels": names,
        **({"limit": limit.as_json(summaries)} if (limit := find_limit(summaries)) else {}),
    }
    figure_paths: list[Path] = []
    with run_storage_errors(folder):
        if folders:
            write_file(folder / COMPARISON_FILE, json.dumps(result, indent=1).encode())
            differences = runs_difference_words(folders)
            text = comparison_markdown(summaries, names=names, differences=differences)
            write_file(folder / "comparison.md", text.encode())
            write_file(folder / "comparison.tex", comparison_latex(summaries, names=names).encode())
        if folders and figures:
            from fedhp.report.figures.comparison import save_comparison_figures

            with Activity(f"drawing {count(len(folders), 'run')}"):
                figure_paths = save_comparison_figures(folders, folder / "figures", names=names)
    if as_json:
        print(json.dumps(result))
        return
    cli.table_console().print(comparison_table(summaries, names=names))
    for line in paired_lines(summaries, names=names):
        cli.say(line)
    cli.say(f"runs, table and numbers: {folder}")
    suggest_dash(folder)
    if figure_paths:
        files = f"{count(len(figure_paths), 'file')}; start with overview.png"
        cli.say(f"figures: {folder / 'figures'} ({files})")
