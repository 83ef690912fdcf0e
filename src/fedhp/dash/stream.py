"""What is new, for every viewer: one watcher per run looks, however many viewers there are.

A watcher compares times and sizes of files many times a second, opens the record only after a
change, and makes each message once. A viewer has a position in each of its runs and takes what
came since, so a slow one delays nobody and loses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fedhp.dash.events import EventLog, message
from fedhp.dash.runs import RecordState, RunsFolder, record_state
from fedhp.dash.schema import ListedRun

LOOK_SECONDS = 0.05  # between two looks at the files of a run
READ_SECONDS = 0.1  # between two reads of a record that changes all the time
HISTORY_SECONDS = 1.0  # between two looks whether a run has a new history, or lost its process
LIST_SECONDS = 2.0  # between two looks for new runs, or longer where that takes long
LIST_SHARE = 0.02  # of the time, at most, for the looks for new runs
HEARTBEAT_SECONDS = 10.0
RETRY_MILLISECONDS = 1000  # until a browser connects again
MOST_VIEWERS = 256
MOST_WATCHED = 64  # runs in one stream
POSITION = re.compile(r"[0-9a-f]{8}-[0-9]{1,9}\.[0-9]{1,9}|-")


class Watcher:
    """Looks for news while somebody watches; a viewer is the event that wakes it."""

    def __init__(self, runs: RunsFolder) -> None:
        self._runs = runs
        self._viewers: set[asyncio.Event] = set()
        self._task: asyncio.Task[None] | None = None
        self.update = b""  # the last message about the rounds of a run, or about the list
        self.version = 0  # how many of them there were

    def add(self, viewer: asyncio.Event) -> None:
        self._viewers.add(viewer)
        if self._task is None:
            self._task = asyncio.create_task(self._watch())

    def remove(self, viewer: asyncio.Event) -> bool:
        """One viewer less; whether nobody is left."""
        self._viewers.discard(viewer)
        if not self._viewers and self._task is not None:
            self._task.cancel()
            self._task = None
        return not self._viewers

    def _tell(self) -> None:
        for viewer in self._viewers:
            viewer.set()

    async def _watch(self) -> None:
        raise NotImplementedError


class RunWatcher(Watcher):
    def __init__(self, runs: RunsFolder, log: EventLog) -> None:
        super().__init__(runs)
        self.log = log
        self.read = False
        self._entry: ListedRun | None = None
        self._state: RecordState | None = None
        self._histories: object = None
        self._looked = float("-inf")

    async def _watch(self) -> None:
        while True:
            started = time.monotonic()
            if self._has_changed(started):
                before = self.version, len(self.log.events)
                self._entry = await asyncio.to_thread(self._read)
                update = message("round", round_facts(self.log, self._entry))
                if not self.read or update != self.update:
                    self.update, self.version = update, self.version + 1
                self.read = True
                if (self.version, len(self.log.events)) != before:
                    self._tell()
                await asyncio.sleep(max(LOOK_SECONDS, READ_SECONDS - time.monotonic() + started))
            else:
                await asyncio.sleep(LOOK_SECONDS)

    def _has_changed(self, now: float) -> bool:
        try:
            state = record_state(self.log.folder)
        except OSError:
            state = None
        histories = self.log.histories.states()
        before = self._state, self._histories
        fresh = self._state is not None and self._state.is_fresh
        self._state, self._histories = state, histories
        live = self._entry is not None and self._entry.live
        if live and now - self._looked > HISTORY_SECONDS:  # its process may be gone
            self._looked = now
            return True
        return fresh or before != (state, histories) or not self.read

    def _read(self) -> ListedRun | None:
        self.log.update()
        return self._runs.entry(self.log.run)


def round_facts(log: EventLog, entry: ListedRun | None) -> dict[str, Any]:
    """How far a run is; a run that is gone has the status removed."""
    facts: dict[str, Any] = {"run": log.run, "rounds": 0, "status": "removed"}
    if entry is not None:
        kept = ("rounds", "status", "live", "clock", "accuracy", "changed", "problem")
        facts = {"run": log.run, **entry.model_dump(include=set(kept))}
    return {**facts, "log": log.log, "events": len(log.events)}


class ListWatcher(Watcher):
    """Looks for runs that are new, changed or gone, for all viewers together."""

    def __init__(self, runs: RunsFolder) -> None:
        super().__init__(runs)
        self._known: dict[str, ListedRun] | None = None
        self._whole: tuple[int, bytes] | None = None

    def whole(self) -> bytes:
        """The whole list as a message, for a viewer that has none; empty before the first look."""
        if self._known is None:
            return b""
        if self._whole is None or self._whole[0] != self.version:
            self._whole = self.version, self._message(list(self._known.values()), [])
        return self._whole[1]

    def _message(self, entries: list[ListedRun], removed: list[str]) -> bytes:
        runs = [entry.model_dump() for entry in entries]
        return message("runs", {"folder": self._runs.name, "runs": runs, "removed": removed})

    def remove(self, viewer: asyncio.Event) -> bool:
        """As in Watcher; nobody left: the next one begins with a new look."""
        nobody = super().remove(viewer)
        if nobody:
            self._known, self._whole = None, None
        return nobody

    async def _watch(self) -> None:
        while True:
            started = time.monotonic()
            entries = {entry.run: entry for entry in await asyncio.to_thread(self._runs.listing)}
            before = self._known
            if before is not None and entries != before:
                changed = [entry for run, entry in entries.items() if before.get(run) != entry]
                removed = sorted(before.keys() - entries.keys())
                self.update, self.version = self._message(changed, removed), self.version + 1
            if entries != before:
                self._tell()
            self._known = entries
            took = time.monotonic() - started
            await asyncio.sleep(max(LIST_SECONDS, took / LIST_SHARE))


class Streams:
    """The streams of all viewers, and the watchers that they share."""

    def __init__(self, runs: RunsFolder, logs: EventLogs) -> None:
        self._logs = logs
        self._watchers: dict[str, RunWatcher] = {}
        self._list = ListWatcher(runs)
        self._runs = runs
        self.viewers = 0

    async def stream(self, names: Sequence[str], *, last_id: str = "") -> AsyncIterator[bytes]:
        """The messages of a viewer of these runs, from where the last id says on."""
        viewer = asyncio.Event()
        watchers = [self._watcher(name) for name in names]
        self.viewers += 1
        try:
            self._list.add(viewer)
            for watcher in watchers:
                watcher.add(viewer)
            async for chunk in self._messages(viewer, watchers, last_id):
                yield chunk
        finally:
            self.viewers -= 1
            self._list.remove(viewer)
            for watcher in watchers:
                if watcher.remove(viewer):
                    self._watchers.pop(watcher.log.run, None)

    def _watcher(self, name: str) -> RunWatcher:
        if name not in self._watchers:
            self._watchers[name] = RunWatcher(self._runs, self._logs.log(name))
        return self._watchers[name]

    async def _messages(
        self, viewer: asyncio.Event, watchers: Sequence[RunWatcher], last_id: str
    ) -> AsyncIterator[bytes]:
        yield f"retry: {RETRY_MILLISECONDS}\n: fedhp\n\n".encode()
        positions = dict(zip(watchers, parse_positions(last_id, len(watchers)), strict=True))
        versions = dict.fromkeys(watchers, -1)
        listed = -1
        viewer.set()
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await viewer.wait()
            except TimeoutError:
                yield b": still here\n\n"
                continue
            viewer.clear()
            chunks: list[bytes] = []
            if listed < 0 and (whole := self._list.whole()):
                listed = self._list.version
                chunks.append(whole)
            elif 0 <= listed != self._list.version:
                # Two changes since the last time: the viewer gets the whole list.
                last = self._list.version == listed + 1
                listed = self._list.version
                chunks.append(self._list.update if last else self._list.whole())
            for watcher in watchers:
                if not watcher.read:
                    continue
                log, position = positions[watcher] or ("", -1)
                if log != watcher.log.log or position > len(watcher.log.events):
                    # Another list, or the first connection: the page reads what there is.
                    position = len(watcher.log.events)
                if versions[watcher] != watcher.version:
                    versions[watcher] = watcher.version
                    chunks.append(watcher.update)
                events, position = watcher.log.messages(position)
                chunks.append(events)
                positions[watcher] = watcher.log.log, position
            if any(chunks):
                identity = format_positions([positions[watcher] for watcher in watchers])
                yield b"".join(chunks) + (f"id: {identity}\n\n".encode() if watchers else b"")


class EventLogs:
    """The event lists of the runs that somebody has looked at."""

    MOST = 256

    def __init__(self, runs: RunsFolder) -> None:
        self._runs = runs
        self._logs: dict[str, EventLog] = {}

    def log(self, run: str) -> EventLog:
        """The list of a run, as far as it was read; NoSuchRun if there is none."""
        folder = self._runs.folder_of(run)
        if run not in self._logs:
            while len(self._logs) >= self.MOST:
                with contextlib.suppress(KeyError):
                    del self._logs[next(iter(self._logs))]
            self._logs[run] = EventLog(run, folder)
        return self._logs[run]


Position = tuple[str, int] | None


def format_positions(positions: Sequence[Position]) -> str:
    """The id of the last message: a list and a position in it for every run of the stream."""
    return "_".join("-" if each is None else f"{each[0]}.{each[1]}" for each in positions)


def parse_positions(text: str, runs: int) -> list[Position]:
    """The positions that an id names; of an unknown id none."""
    parts = text.split("_") if text else []
    if len(parts) != runs or not all(POSITION.fullmatch(part) for part in parts):
        return [None] * runs
    positions: list[Position] = []
    for part in parts:
        log, separator, position = part.rpartition(".")
        positions.append((log, int(position)) if separator else None)
    return positions
