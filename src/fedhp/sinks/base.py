"""What a sink is: one function that opens the log of a run, and the log that it returns.

An opened log takes the rounds of the run from the first one on. What an earlier process left of
it is replaced, or continued where the library can compare.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Protocol

from fedhp.files import write_file
from fedhp.sinks.points import RoundPoints, RunDescription, RunOutcome

MARK_FILE = "log.json"
OWNER_FILE = "runs.txt"  # the folder whose runs are logged here, from the one that was asked for


class Outdated(Exception):
    """The log holds other numbers than the record: it has to be opened with fresh=True."""


class RunLog(Protocol):
    def write(self, rounds: Sequence[RoundPoints]) -> None:
        """Add rounds; what was written survives the end of the process soon."""
        ...

    def finish(self, outcome: RunOutcome, *, mark: str) -> None:
        """Add how the run ended, then the mark of a whole log, and close."""
        ...

    def close(self, status: str) -> None:
        """Leave the log of a run that is not over; status: running or interrupted."""
        ...


class Sink(Protocol):
    """The module of a sink. `place` is where the log belongs: a folder, or a file of many logs."""

    def place_of(self, description: RunDescription, path: Path | None) -> Path:
        """Where the log of this run belongs; path: where the user wants logs, if given."""
        ...

    def is_marked(self, description: RunDescription, place: Path, mark: str) -> bool:
        """Whether a whole log with this mark is there."""
        ...

    def open_log(self, description: RunDescription, place: Path, *, fresh: bool) -> RunLog:
        """The log of this run; fresh: what is there has other numbers and must not stay."""
        ...

    def viewing(self, top: Path, path: Path | None) -> str:
        """The command that shows the logs of the runs in this folder."""
        ...


def folder_for(description: RunDescription, path: Path | None, *, inside: str = "") -> Path:
    """The folder of a run's log: that of the run, or `inside` of it, or below the path."""
    if path is None:
        return description.folder / inside
    return owned_folder(description.top, path) / description.below_top


def owned_folder(top: Path, path: Path) -> Path:
    """The folder for the logs of the runs in `top`, below the one that the user chose.

    It has the name of `top`, with a number if the runs of another folder have that name there.
    """
    # Relative, since both may be moved together.
    owner = os.path.relpath(top.resolve(), path.resolve())
    for number in count(1):
        folder = path / (top.name if number == 1 else f"{top.name}-{number}")
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with (folder / OWNER_FILE).open("x", encoding="utf-8") as file:
                file.write(owner)
            return folder
        except FileExistsError:
            if (folder / OWNER_FILE).read_text(encoding="utf-8") == owner:
                return folder
    raise AssertionError


def has_mark(folder: Path, mark: str) -> bool:
    try:
        return bool(json.loads((folder / MARK_FILE).read_bytes())["log"] == mark)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def set_mark(folder: Path, mark: str) -> None:
    write_file(folder / MARK_FILE, json.dumps({"log": mark}).encode())


def remove_mark(folder: Path) -> None:
    """The log in a folder is not whole, or no longer."""
    (folder / MARK_FILE).unlink(missing_ok=True)
