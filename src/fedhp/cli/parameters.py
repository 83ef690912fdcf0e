"""Arguments and options that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from fedhp.config import Experiment

WIDE = 120  # columns of a table in a file or pipe

ExperimentFile = Annotated[
    Path, typer.Argument(metavar="EXPERIMENT.toml", help="The experiment file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="key=value", help="Settings that override those in the file."),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Folder to write to. Default: runs/NAME-1, NAME-2, ..."),
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Continue the run in the folder; results are bit-identical."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


def redirect_user_prints(as_json: bool) -> AbstractContextManager[object]:
    """Send what the user's own code prints to standard error, so that stdout is only JSON."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def choose_folder(out: Path | None, experiment: Path, *, resume: bool) -> Path:
    """The --out folder, else the next free folder below runs/, or with resume the last one."""
    if out is not None:
        return out
    number = 1
    while Path("runs", f"{experiment.stem}-{number}").exists():
        number += 1
    if resume and number > 1:
        number -= 1
    return Path("runs", f"{experiment.stem}-{number}")


def load_settings(experiment: Path, overrides: Sequence[str]) -> Experiment:
    """The experiment. A wrong key is found before torch is imported, which takes seconds."""
    from fedhp.components import is_dotted
    from fedhp.config import load

    settings = load(experiment, overrides)
    algorithm = settings.algorithm
    if not is_dotted(algorithm.name):
        from fedhp.algorithms import load_algorithm

        load_algorithm(algorithm.name, algorithm.settings, source=str(experiment))
    return settings


def table_console() -> Console:
    """The console for tables: as wide as the terminal, or wide enough in a file or pipe."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
