"""`fedhp reproduce`: the paper's figures and claims, run and judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedhp.cli.parameters import Json, redirect_user_prints, table_console
from fedhp.errors import ConfigError, combine_errors
from fedhp.tables import COMMAND_LINE

if TYPE_CHECKING:
    from fedhp.engine.runs.suite import Suite


def reproduce(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="fig1 ... fig7 | tables | all", help="What to reproduce."),
    ] = None,
    profile: Annotated[
        str, typer.Option(help="quick (an hour on 2 cores), standard (a night), paper (GPUs).")
    ] = "quick",
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder to write to, or to go on with.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="key=value", help="A setting changed in every run."),
    ] = None,
    files: Annotated[
        Path | None,
        typer.Option("--files", help="Folder of figN.toml and sets/. Default: the paper's own."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs side by side. Default: one per core.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the paper's experiments and say of every claim whether it holds.

    Finished runs are never run again: after an interruption the same command goes on.
    """
    from fedhp.cli.stopping import StopRequest
    from fedhp.console.campaign import run_shown
    from fedhp.engine.runs.suite import check_suite, read_suite
    from fedhp.report.pages.reproduction import save_reproduction

    folder = _check_profile(profile, out)
    suite = read_suite(
        _chosen(what or ["all"], files),
        profile=profile,
        out=folder,
        overrides=changes or [],
        folder=files,
    )
    with redirect_user_prints(as_json):
        suite = check_suite(suite)
    _announce(suite)
    cells = suite.cells()
    names = {each.cell.folder: each.name for each in cells}
    with StopRequest() as stop:
        errors = run_shown(
            [each.cell for each in cells],
            jobs=jobs,
            stop=stop,
            name_of=lambda cell: names[cell.folder],
        )
    result = save_reproduction(suite, folder)
    if as_json:
        print(json.dumps(result.as_json()))
    else:
        table_console().print(result.table())
        print(f"report: {result.page}")
        print(f"figures, numbers and verdicts: {folder}")
    if errors:
        raise combine_errors(errors)


def _announce(suite: Suite) -> None:
    """What is going to be run, on standard error."""
    from fedhp.engine.runs.suite import finished_cells

    cells = suite.cells()
    done = len(finished_cells(cells))
    names = ", ".join(figure.name for figure in suite.figures)
    typer.echo(
        f"profile {suite.profile}: {len(cells)} runs for {names}; {done} already finished",
        err=True,
    )
    for each in suite.sets.values():
        if each.key in suite.missing:
            typer.echo(f"{each.title}: skipped. {suite.missing[each.key]}", err=True)
        elif each.note:
            typer.echo(f"{each.title}: {each.note}", err=True)


def _check_profile(profile: str, out: Path | None) -> Path:
    """The folder for a profile that exists."""
    from fedhp.engine.runs.suite import PROFILES

    if profile not in PROFILES:
        raise ConfigError(
            f"{profile!r} is no profile",
            key="--profile",
            source=COMMAND_LINE,
            allowed=", ".join(PROFILES),
            fix="write --profile quick",
        )
    return out or Path("runs", f"reproduce-{profile}")


def _chosen(what: list[str], files: Path | None) -> list[str]:
    """The names asked for, in the order of the files."""
    from fedhp.engine.runs.suite import FIGURES, figures_in

    there = FIGURES if files is None else figures_in(files)
    names = [name for word in what for name in (there if word == "all" else (word,))]
    unknown = [name for name in names if name not in there]
    if unknown:
        raise ConfigError(
            f"{unknown[0]!r} is no figure of {'the paper' if files is None else files}",
            key="fig1 ... fig7 | tables | all",
            source=COMMAND_LINE,
            allowed=f"{', '.join(there)}, all",
            fix="name one or more of these",
        )
    return [name for name in there if name in names]
