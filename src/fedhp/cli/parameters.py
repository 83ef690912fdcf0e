"""Arguments and options that several commands share."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

ExperimentFile = Annotated[
    Path, typer.Argument(metavar="EXPERIMENT.toml", help="The experiment file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="key=value", help="Settings that replace those of the file."),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Folder to write to. Default: runs/NAME-1, NAME-2, ..."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with what is in the folder, bit for bit.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


def own_prints_aside(as_json: bool) -> AbstractContextManager[object]:
    """What a part of one's own prints goes to standard error, where JSON must stand alone."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def choose_folder(out: Path | None, experiment: Path, *, resume: bool) -> Path:
    """The given folder; or the next free one below runs/, or with resume the last."""
    if out is not None:
        return out
    number = 1
    while Path("runs", f"{experiment.stem}-{number}").exists():
        number += 1
    if resume and number > 1:
        number -= 1
    return Path("runs", f"{experiment.stem}-{number}")
