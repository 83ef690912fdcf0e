"""`fedhp report`: one HTML page about any runs, with its figures and numbers as files."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedhp.cli.parameters import Json

FOLDER = "report"


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Runs, or folders with runs in them.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder to write to. Default: report, in the one folder given or beside several.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write one HTML page about runs, with figures for a paper and all numbers."""
    from rich.console import Console

    from fedhp.record.reader import find_runs
    from fedhp.report.formatting import count, data_size
    from fedhp.report.pages.run_report import save_report

    folders = [folder for run in runs for folder in find_runs(run)]
    place = default_folder(runs) if out is None else out
    # Shown in a terminal only: forty runs take a minute or two.
    with Console(stderr=True).status(f"drawing {count(len(folders), 'run')} ..."):
        page, *files = save_report(folders, place)
    figures, data = (
        [path for path in files if path.parent.name == name] for name in ("figures", "data")
    )
    if as_json:
        paths = {"figures": [str(path) for path in figures], "data": [str(path) for path in data]}
        print(json.dumps({"report": str(page), **paths}))
        return
    print(f"report: {page} ({data_size(page.stat().st_size)}, {count(len(folders), 'run')})")
    print(f"figures: {place / 'figures'} ({count(len(figures), 'file')})")
    print(f"numbers: {place / 'data'} ({count(len(data), 'file')})")


def default_folder(given: Sequence[Path]) -> Path:
    """Inside the one folder that was given, or in the folder that holds all of them."""
    if len(given) == 1:
        return given[0] / FOLDER
    top = Path(os.path.commonpath([path.absolute() for path in given]))
    here = Path.cwd()
    return (top.relative_to(here) if top.is_relative_to(here) else top) / FOLDER
