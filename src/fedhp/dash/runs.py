"""The runs below a folder: found cheaply, and nothing outside it.

A run is named by its path relative to the folder. A name with "..", an absolute one or one that
leads through a symbolic link is not a run, whatever it points to.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedhp.dash.schema import ListedRun
from fedhp.errors import FedhpError, RunError
from fedhp.files import UNFINISHED
from fedhp.record.lock import is_held
from fedhp.record.reader import RunReader
from fedhp.record.store import RECORD_FILE
from fedhp.report.formatting import label_name
from fedhp.report.labels import read_names

ITSELF = "."  # the name of the run if the folder is one
MOST_DEPTH = 12  # folders below the one that is served
MOST_RUNS = 5000
MOST_FOLDERS = 100_000
HELD_SECONDS = 1.0  # that the state of a run's lock may be old
# A file system's clock has steps: what was written just before the look may be followed by more
# with the same time.
FRESH_SECONDS = 0.05


class NoSuchRun(RunError):
    """A name that is not one of the runs."""


@dataclass(frozen=True, slots=True)
class RecordState:
    """What tells two states of a record apart without opening it."""

    files: tuple[tuple[int, int, int], ...]  # inode, size, time of the record and its log, if any
    changed: float  # s since 1970

    @property
    def is_fresh(self) -> bool:
        """Whether the next look must not trust an equal state."""
        return time.time() - self.changed < FRESH_SECONDS


def record_state(folder: Path) -> RecordState:
    files = [os.lstat(folder / RECORD_FILE)]
    with suppress(OSError):
        files.append(os.lstat(folder / f"{RECORD_FILE}-wal"))
    return RecordState(
        tuple((status.st_ino, status.st_size, status.st_mtime_ns) for status in files),
        max(status.st_mtime for status in files),
    )


class RunsFolder:
    """A folder with runs, or a run itself; several threads may ask."""

    def __init__(self, folder: Path) -> None:
        self.given = folder
        self.top = folder.resolve()
        self._entries: dict[str, tuple[RecordState, float, ListedRun]] = {}
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self.top.name or str(self.top)

    def folder_of(self, run: str) -> Path:
        """The folder of a run; NoSuchRun for anything else, also outside of the folder."""
        parts = [] if run == ITSELF else run.split("/")
        wrong = any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts)
        if wrong or len(parts) > MOST_DEPTH or len(run) > 4096 or UNFINISHED in parts:
            raise self.unknown(run)
        folder = self.top
        try:
            for part in parts:
                folder = folder / part
                if not stat.S_ISDIR(os.lstat(folder).st_mode):  # of a link: that of the link
                    raise self.unknown(run)
            if not stat.S_ISREG(os.lstat(folder / RECORD_FILE).st_mode):
                raise self.unknown(run)
        except (OSError, ValueError):  # ValueError: not a name on this file system
            raise self.unknown(run) from None
        return folder

    def unknown(self, run: str) -> NoSuchRun:
        shown = run if len(run) <= 200 else f"{run[:197]}..."
        return NoSuchRun(
            f"there is no run {shown!r} in {self.name}",
            allowed="a run of /api/runs",
            fix="choose one of the list; it may have been removed meanwhile",
        )

    def _find(self) -> Iterator[str]:
        if is_record(self.top):
            yield ITSELF
            return
        found = seen = 0
        folders: list[tuple[str, ...]] = [()]  # by the parts of their names
        while folders and found < MOST_RUNS and seen < MOST_FOLDERS:
            parts = folders.pop()
            folder = self.top.joinpath(*parts)
            seen += 1
            if parts and is_record(folder):
                found += 1
                yield "/".join(parts)
            elif len(parts) < MOST_DEPTH:
                folders += [(*parts, below) for below in _folders_in(folder)]

    def listing(self) -> list[ListedRun]:
        """All runs, live ones first, then the newest."""
        names = set(self._find())
        entries = [entry for name in names if (entry := self.entry(name)) is not None]
        with self._lock:
            for gone in self._entries.keys() - names:
                del self._entries[gone]
        return sorted(entries, key=lambda entry: (not entry.live, -entry.changed, entry.run))

    def entry(self, run: str) -> ListedRun | None:
        """A run in a few numbers; one that cannot be read says why; None: it is gone."""
        try:
            folder = self.folder_of(run)
            state = record_state(folder)
        except (NoSuchRun, OSError):
            return None
        now = time.monotonic()
        with self._lock:
            known = self._entries.get(run)
        if known is not None and known[0] == state and not state.is_fresh:
            settled = known[2].status not in ("running", "created")
            if settled or now - known[1] < HELD_SECONDS:
                return known[2]
        entry = self._read(run, folder, state)
        with self._lock:
            self._entries[run] = state, now, entry
        return entry

    def _read(self, run: str, folder: Path, state: RecordState) -> ListedRun:
        try:
            with RunReader(folder) as reader, reader.snapshot():
                return entry_of(run, reader, changed=state.changed)
        except Exception as error:  # whatever one record holds, the others are listed
            text = f"the record is not whole ({type(error).__name__}: {error})"
            text = self.without_place(error.problem if isinstance(error, FedhpError) else text)
            return _unreadable(run, text, changed=state.changed, begins=is_held(folder) is True)

    def without_place(self, text: str) -> str:
        """A message without where the folder is on this machine."""
        return text.replace(str(self.top), self.name).replace(str(self.given), self.name)


def entry_of(run: str, reader: RunReader, *, changed: float) -> ListedRun:
    reader.check_sealed()
    last, test = reader.last_row("rounds"), reader.last_row("evaluations")
    status, label = reader.status, str(reader.meta("label"))
    own_names = read_names(reader.folder.parent.parent)  # the user's, in a comparison
    experiment = reader.meta("experiment")
    return ListedRun(
        run=run,
        label=own_names.get(label) or label_name(label),
        algorithm=str(reader.meta("algorithm")),
        seed=reader.meta("seed"),
        status=status,
        live=status in ("running", "created") and is_held(reader.folder) is True,
        network=bool(reader.meta("network")),
        metric=str(reader.meta("metric") or "accuracy"),
        workers=int(reader.meta("workers")),
        rounds=0 if last is None else last["round"],
        planned_rounds=reader.meta("rounds"),
        horizon=experiment.get("horizon"),
        clock=0.0 if last is None else last["clock"],
        accuracy=None if test is None else test["accuracy"],
        changed=changed,
    )


def _unreadable(run: str, problem: str, *, changed: float, begins: bool) -> ListedRun:
    """A record that is being created has a process; any other is damaged."""
    unknown: Any = dict.fromkeys(("seed", "planned_rounds", "horizon", "accuracy"))
    return ListedRun(
        run=run,
        label=run,
        algorithm="",
        status="created" if begins else "damaged",
        live=begins,
        network=False,
        metric="accuracy",
        **{**unknown, "workers": 0, "rounds": 0, "clock": 0.0},
        changed=changed,
        problem="the run is being created" if begins else problem,
    )


def is_record(folder: Path) -> bool:
    """Whether a folder is one of a run, itself and not by a link."""
    try:
        return stat.S_ISREG(os.lstat(folder / RECORD_FILE).st_mode)
    except (OSError, ValueError):
        return False


def _folders_in(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [
                entry.name
                for entry in entries
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
            ]
    except OSError:
        return []
