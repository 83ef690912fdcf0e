"""What the history of a coordinator says: events for people, and the state of every worker.

The file grows while it is read; only what was added is read again. Names and reasons in it come
from other machines and are data, never markup.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedhp.cluster import events
from fedhp.cluster.history import events_in
from fedhp.files import open_plain
from fedhp.report.formatting import count, listed, seconds

_HISTORY = re.compile(r"history-.*\.jsonl(\.\d+)?")  # with the parts of those that have grown
MOST_READ = 1 << 24  # bytes at a time
LONGEST_TEXT = 500  # characters of an event

JOINING, READY, CATCHING_UP, LEFT = "joining", "ready", "catching up", "left"
LOST, SUSPECT, DEAD, QUARANTINED = "lost", "suspect", "dead", "quarantined"
SUSPENDED, REMOVED = "suspended", "removed"
SILENT = (LOST, SUSPECT, DEAD)
GONE = (LEFT, REMOVED, QUARANTINED)
PRESENT = (READY, CATCHING_UP, SUSPENDED)
# What is shown of an event: its kind and text; of a worker's event first its state from then on.
OF_WORKER: dict[str, tuple[str | None, str, str]] = {
    events.Left.event: (LEFT, "leave", "{name} left{why}"),
    events.Dismissed.event: (LEFT, "leave", "{name} left: it has finished"),
    events.FellBehind.event: (
        CATCHING_UP,
        CATCHING_UP,
        "{name} takes the committed model from a peer",
    ),
    events.Allowed.event: (LEFT, "allowed", "{name} may join again"),
    events.Removed.event: (REMOVED, REMOVED, "{name} is removed{why}"),
    events.Drained.event: (None, "drain", "{name} is to leave after its round"),
}
OF_RUN = {
    events.Paused.event: ("pause", "paused{why}"),
    events.Resumed.event: ("resume", "round {line[round]} goes on"),
    events.GaveUp.event: (
        "retry",
        "round {line[round]} is tried again: attempt {line[attempt]} failed",
    ),
    events.Warned.event: ("warning", "{line[text]}"),
    events.NewCertificate.event: ("certificate", "{line[name]} has a new certificate"),
    events.Stopped.event: ("stop", "the run is to end{why}"),
}


@dataclass(slots=True)
class GrowingFile:
    """A file of lines; new() gives the whole lines that were added since."""

    path: Path
    _inode: int = 0
    _offset: int = 0

    def new(self) -> tuple[bytes, bool]:
        """The added lines, and whether the file is another one than before."""
        try:
            descriptor = open_plain(self.path)
        except OSError:
            return b"", False
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            replaced = status.st_size < self._offset or status.st_ino != self._inode
            if replaced:
                self._offset = 0
            first = self._inode == 0
            self._inode = status.st_ino
            file.seek(self._offset)
            content = file.read(MOST_READ)
        whole = content.rfind(b"\n") + 1
        self._offset += whole
        return content[:whole], replaced and not first


@dataclass(frozen=True, slots=True)
class Happening:
    at: float
    round_index: int  # that was under way
    kind: str
    worker: int | None
    text: str


@dataclass(slots=True)
class Membership:
    """Who is in the run and in which state, from one line of the history to the next."""

    names: dict[int, str] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    # (last committed round, worker, state) of every change, in order.
    changes: list[tuple[int, int, str]] = field(default_factory=list)
    committed: int = 0
    _before: dict[int, str] = field(default_factory=dict)  # silent workers: their state before
    _waiting: bool = False

    def state_after(self, round_index: int) -> dict[int, str]:
        """Everyone's state when the round after this one was committed, or now."""
        states: dict[int, str] = {}
        for committed, worker, state in self.changes:
            if committed > round_index:
                break
            states[worker] = state
        return states

    def name_of(self, worker: object) -> str:
        known = self.names.get(worker) if isinstance(worker, int) else None
        return known or f"worker {worker}"

    def follow(self, line: dict[str, Any]) -> Iterator[Happening]:
        """Take in one line; what a viewer should see of it."""
        try:
            at, event = float(line["at"]), str(line["event"])
            worker = line.get("worker")
            number = worker if isinstance(worker, int) else None
            if event == events.Ended.event:  # of the launcher, which knows processes by name
                number = next((w for w, name in self.names.items() if name == line["name"]), None)
            shown = list(self._take(event, number, line))
        except (LookupError, TypeError, ValueError, AttributeError):
            return  # of another version, or damaged: the others count
        for kind, text in shown:
            yield Happening(at, self.committed + 1, kind, number, text[:LONGEST_TEXT])

    def _take(
        self, event: str, worker: int | None, line: dict[str, Any]
    ) -> Iterator[tuple[str, str]]:
        name = "" if worker is None else self.name_of(worker)
        why = f": {line['why']}" if line.get("why") else ""
        if event in OF_WORKER and worker is not None:
            state, *shown = OF_WORKER[event]
            if state is not None:
                self._set(worker, state)
            yield shown[0], shown[1].format(name=name, why=why)
        elif event in OF_RUN:
            kind, text = OF_RUN[event]
            yield kind, text.format(why=why, line=line)
        match event:
            case events.Committed.event:
                self.committed = int(line["round"])
                for reported in line["reported"]:
                    # Who reported may be gone by now.
                    if self.states.get(int(reported)) not in (LOST, *GONE):
                        self._set(int(reported), READY)
            case events.Began.event:
                for participant in map(int, line["participants"]):
                    if self.states.get(participant) not in SILENT and not self._left(participant):
                        self._set(participant, READY)
                if self._waiting:
                    self._waiting = False
                    yield "resume", f"enough workers are ready for round {line['round']}"
            case events.Lead.event:
                self.committed = int(line["stand"][1])
                for member, state in list(self.states.items()):
                    if state in (READY, CATCHING_UP, *SILENT):
                        self._set(member, JOINING)
                yield "leader", f"{line['who']} leads, epoch {line['epoch']}"
            case events.Joined.event if worker is not None:
                again = worker in self.names
                self.names[worker] = str(line["name"])
                self._before.pop(worker, None)
                self._set(worker, JOINING)
                text = "joined again" if again else f"joined as worker {worker}"
                yield "back" if again else "join", f"{line['name']} {text}"
            case events.Lost.event if worker is not None:
                yield from self._lose(worker, name, str(line["why"]))
            case events.Ended.event if worker is not None:
                yield from self._lose(worker, name, f"its process {line['why']}")
            case events.Suspect.event | events.Dead.event if worker is not None:
                self._before.setdefault(worker, self.states.get(worker, READY))
                if (event, self.states.get(worker)) != (SUSPECT, LOST):
                    self._set(worker, event)
                yield event, f"{name} is {event}: no heartbeat for {seconds(line['seconds'])}"
            case events.Heard.event if worker is not None:
                self._set(worker, self._before.pop(worker, READY))
                yield "back", f"{name} sends heartbeats again"
            case events.Quarantined.event:
                if worker is not None:
                    self._set(worker, QUARANTINED)
                yield QUARANTINED, f"{line['name']} is quarantined: too many refused messages"
            case events.CallRefused.event:
                yield "refusal", f"{line['name'] or 'an unknown caller'} was refused{why}"
            case events.Suspended.event if worker is not None:
                self._set(worker, SUSPENDED)
                rounds = count(int(line["rounds"]), "round")
                yield SUSPENDED, f"{name} is put aside for {rounds}{why}"
            case events.Waiting.event:
                if line.get("why"):
                    self._waiting = True
                    yield "pause", str(line["why"])
            case events.Frozen.event:
                yield "pause", f"the coordinator did not run for {seconds(line['seconds'])}"
            case events.LeftAside.event:
                who = listed([self.name_of(each) for each in line["workers"]], most=5)
                yield "retry", f"the round is tried again without {who}"
            case events.Surveyed.event:
                yield "survey", f"links were timed for {seconds(line['seconds'])}"
            case events.Finished.event:
                for member, state in list(self.states.items()):
                    if state in (READY, JOINING, CATCHING_UP):
                        self._set(member, LEFT)
                yield "finished", f"the run is over{why}"

    def _left(self, worker: int) -> bool:
        """Whether a worker has gone since the last commit: it may have, while the round that now
        begins with it was planned."""
        if self.states.get(worker) not in GONE:
            return False
        return next(at for at, who, _ in reversed(self.changes) if who == worker) == self.committed

    def _lose(self, worker: int, name: str, why: str) -> Iterator[tuple[str, str]]:
        if self.states.get(worker) not in (LOST, DEAD, *GONE):
            self._before.setdefault(worker, self.states.get(worker, READY))
            self._set(worker, LOST)
            yield LOST, f"{name} is lost: {why}"

    def _set(self, worker: int, state: str) -> None:
        if self.states.get(worker) != state:
            self.states[worker] = state
            self.changes.append((self.committed, worker, state))


class Histories:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, GrowingFile] = {}
        self.membership = Membership()

    def states(self) -> tuple[tuple[str, int, int], ...]:
        """What tells whether something was added, without reading it."""
        states = []
        for name in history_files(self._folder):
            with suppress(OSError):
                status = os.lstat(self._folder / name)
                states.append((name, status.st_size, status.st_mtime_ns))
        return tuple(states)

    def follow(self) -> tuple[list[Happening], bool]:
        """What was added, and whether a file was replaced: then everything is to be read again."""
        lines: list[dict[str, Any]] = []
        for name in history_files(self._folder):
            file = self._files.setdefault(name, GrowingFile(self._folder / name))
            while True:
                content, replaced = file.new()
                if replaced:
                    return [], True
                if not content:
                    break
                new = events_in(content)
                lines += [line for line in new if isinstance(line.get("at"), int | float)]
        if len(self._files) > 1:
            lines.sort(key=lambda line: float(line["at"]))
        return [happening for line in lines for happening in self.membership.follow(line)], False


def history_files(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(
                entry.name
                for entry in entries
                if _HISTORY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
            )
    except OSError:
        return []
