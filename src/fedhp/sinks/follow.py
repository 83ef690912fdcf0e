"""Keeps the logs of runs equal to their records: live in a thread, or once for finished runs.

Only records are read, so a run does not know whether it is logged. A sink that fails is given up
with one warning; the runs continue. A record that cannot be read concerns its own log only.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from fedhp.errors import FedhpError, RunError
from fedhp.files import UNFINISHED, open_plain
from fedhp.record.lock import is_held
from fedhp.record.reader import RunReader, find_runs
from fedhp.record.store import RECORD_FILE, Store
from fedhp.sinks import points
from fedhp.sinks.base import Outdated, RunLog
from fedhp.sinks.targets import LogTarget

LOG = logging.getLogger("fedhp")
LOOK_SECONDS = 1.0  # between two looks at the records
MOST_SECONDS = 300.0  # for the last look, after the runs have ended
ROUNDS_AT_ONCE = 100
WAL_MARK = slice(18, 20)  # of SQLite's header: both bytes are 2 in WAL mode

Seen = tuple[tuple[int, int], ...]


class LogFollower:
    """Logs the runs in a folder while they run; as a context it covers their time."""

    def __init__(self, folder: Path, targets: Sequence[LogTarget], *, per_worker: bool) -> None:
        self.folder = folder
        self._logs = [_TargetLogs(folder, target, per_worker=per_worker) for target in targets]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="logs", daemon=True)

    @property
    def working(self) -> list[LogTarget]:
        return [logs.target for logs in self._logs if not logs.failed]

    def __enter__(self) -> LogFollower:
        if self._logs:
            self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._ended.set()
        if not self._logs:
            return
        self._thread.join(MOST_SECONDS)
        if self._thread.is_alive():
            LOG.warning("the logs were not complete after %.0f s; the runs are", MOST_SECONDS)

    def _follow(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            for logs in self._logs:
                logs.look(last=False)
        for logs in self._logs:
            logs.look(last=True)


def write_logs(
    folder: Path, targets: Sequence[LogTarget], *, per_worker: bool
) -> tuple[int, list[FedhpError]]:
    """Log the runs at or below a folder as they are now; how many were logged, and an error for
    each of the others, whose record cannot be read. An error of a sink is raised at once."""
    top = folder.resolve()
    runs = _runs_in(top) or find_runs(folder)  # which says that there is none
    sinks = [_TargetLogs(top, target, per_worker=per_worker) for target in targets]
    errors: dict[Path, FedhpError] = {}
    for run in runs:
        try:
            with RunReader(run) as reader:
                reader.check()  # so that no log ends where the record is damaged
        except FedhpError as error:
            errors[run] = error
    for logs in sinks:
        target = logs.target
        for run in runs:
            if run in errors:
                continue
            try:
                logs.update(run, last=True)
            except FedhpError as error:
                errors[run] = error
                logs.abandon(run)
            except Exception as error:  # a library may fail in any way
                raise RunError(
                    f"{run}: the log for {target.sink} could not be written: {_words(error)}",
                    allowed="a path that can be written, and a log that fedhp wrote",
                    fix=f"free some space, or choose another path with --to {target.sink}:PATH",
                ) from error
    return len(runs) - len(errors), list(errors.values())


@dataclass(slots=True)
class _Session:
    description: points.RunDescription
    log: RunLog
    last: points.RoundPoints | None = None


class _TargetLogs:
    """The logs of all runs of a folder in one sink."""

    def __init__(self, top: Path, target: LogTarget, *, per_worker: bool) -> None:
        target.check_folder(top)
        self.target = target
        self.failed = False
        self._top, self._per_worker = top.resolve(), per_worker
        self._open: dict[Path, _Session] = {}
        self._seen: dict[Path, Seen] = {}

    def look(self, *, last: bool) -> None:
        """Log what is new in all records; a failure is reported once, and ends it."""
        if self.failed:
            return
        run = self._top
        try:
            for run in _runs_in(self._top):
                try:
                    self.update(run, last=last)
                except FedhpError as error:  # before the end: of a record that is just being made
                    if last:
                        self.abandon(run)
                        LOG.warning(
                            "warning: the log of %s for %s is not complete: %s",
                            *(run, self.target.sink, error.problem),
                        )
        except Exception as error:  # a library may fail in any way; the runs must not
            self.failed = True
            for open_run in list(self._open):
                self.abandon(open_run)
            LOG.warning(
                "warning: the log of %s for %s could not be written: %s\n"
                "  the runs continue without it; write it later with: %s",
                *(run, self.target.sink, _words(error), self._later()),
            )

    def _later(self) -> str:
        words = ["fedhp", "export", str(self._top), "--to", self.target.text]
        return shlex.join(words + ["--per-worker"] * self._per_worker)

    def update(self, run: Path, *, last: bool) -> None:
        """Log what is new in the record of a run; last: nothing will follow."""
        seen = _state_of(run)
        if seen == self._seen.get(run) and not (last and run in self._open):
            return
        try:
            ended = self._update(run, last=last)
        except Outdated:
            self._open.pop(run).log.close("running")
            ended = self._update(run, last=last, fresh=True)
        self._seen[run] = seen
        if ended:
            _leave_wal_mode(run)

    def _update(self, run: Path, *, last: bool, fresh: bool = False) -> bool:
        """Whether the run has ended."""
        with RunReader(run) as reader:
            description = points.read_description(
                reader, folder=run, top=self._top, per_worker=self._per_worker
            )
            if description is None:
                return False
            session = self._session(reader, description, fresh=fresh)
            ended = reader.meta("status") in points.ENDED
            if session is None:
                return ended
            rounds = points.read_points(reader, description, after=session.last)
            while some := list(islice(rounds, ROUNDS_AT_ONCE)):
                session.log.write(some)
                session.last = some[-1]
            if ended:
                mark = points.log_mark(reader, description)
                session.log.finish(points.read_outcome(reader), mark=mark)
            elif last:
                session.log.close("running" if reader.status == "running" else "interrupted")
            if ended or last:
                del self._open[run]
            return ended

    def _session(
        self, reader: RunReader, description: points.RunDescription, *, fresh: bool
    ) -> _Session | None:
        """The open log of a run; None if there is a whole one."""
        run = description.folder
        session = self._open.get(run)
        if session is not None:
            last = session.last
            same = session.description == description
            if same and (last is None or points.has_round(reader, description, last)):
                return session
            # The record was cut back since: what came after is not its past.
            del self._open[run]
            session.log.close("running")
        sink = self.target.load()
        place = sink.place_of(description, self.target.path)
        ended = reader.meta("status") in points.ENDED
        if ended and sink.is_marked(description, place, points.log_mark(reader, description)):
            return None
        session = _Session(description, sink.open_log(description, place, fresh=fresh))
        self._open[run] = session
        return session

    def abandon(self, run: Path) -> None:
        """Close the log of a run that cannot be continued."""
        session = self._open.pop(run, None)
        if session is not None:
            with contextlib.suppress(Exception):  # the first failure is the one to report
                session.log.close("interrupted")


def _runs_in(top: Path) -> list[Path]:
    records = top.glob(f"**/{RECORD_FILE}")
    return sorted(record.parent for record in records if UNFINISHED not in record.parts)


def _state_of(run: Path) -> Seen:
    """What tells whether a record was written: times and sizes of its files."""
    state = []
    for name in (RECORD_FILE, f"{RECORD_FILE}-wal"):
        try:
            stat = (run / name).stat()
            state.append((stat.st_mtime_ns, stat.st_size))
        except FileNotFoundError:
            state.append((0, 0))
    return tuple(state)


def _leave_wal_mode(run: Path) -> None:
    """Make the record of a run that has ended one plain file: it stays in WAL mode if it was read
    when the run wanted that."""
    with contextlib.suppress(OSError, FedhpError):
        with open(open_plain(run / RECORD_FILE), "rb") as file:
            in_wal_mode = file.read(WAL_MARK.stop)[WAL_MARK] == b"\2\2"
        if in_wal_mode and is_held(run) is False:
            with contextlib.closing(Store.open(run, write=True)) as store:
                store.leave_wal_mode()


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split()).partition(" [SQL:")[0]  # SQLAlchemy adds whole commands
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
