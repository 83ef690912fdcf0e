"""A run that goes on: the rounds of a real one, committed again one by one."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from fedhp.record.lock import FolderLock
from fedhp.record.store import RECORD_FILE, Store


class GrowingRun:
    """Has the description of another run, and as many of its rounds as a test wants."""

    def __init__(self, source: Path, folder: Path, *, network: bool = False) -> None:
        folder.mkdir(parents=True)
        self.folder, self.rounds = folder, 0
        self._source = Store.open(source)
        self._lock = FolderLock(folder)
        self._lock.__enter__()
        self._store = Store.create(folder)
        with sqlite3.connect(source / RECORD_FILE) as connection:
            rows = connection.execute("SELECT key, value FROM meta").fetchall()
        for key, value in rows:
            if key != "version" and not key.endswith("digest"):
                self._store.set_meta(key, json.loads(value))
        if network:
            self._store.set_meta("network", True)
        self._store.set_meta("status", "running")

    def commit(self, rounds: int = 1) -> None:
        """A few more rounds."""
        last = self.rounds + rounds
        self._store.copy_rounds(self._source, first=self.rounds + 1, last=last)
        self.rounds = last

    def note(self, at: float, event: str, **facts: object) -> None:
        """A line of the coordinator's history."""
        line = {"at": at, "who": "coordinator", "event": event, **facts}
        with (self.folder / "history-coordinator.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def truncate(self, rounds: int) -> None:
        """As a resumed run does."""
        self._store.truncate(rounds)
        self.rounds = rounds

    def end(self, status: str) -> None:
        """The run ends; without a status its process is killed."""
        if status:
            if status == "finished":
                self._store.seal()
            self._store.set_meta("status", status)
            self._store.leave_wal_mode()
        self._store.close()
        self._source.close()
        self._lock.__exit__(None, None, None)
