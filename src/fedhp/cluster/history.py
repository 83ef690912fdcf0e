"""What one process did, line by line, for the offline checks: history-NAME.jsonl.

A line is written before the event it describes has any effect elsewhere; on a full disk it waits
in memory, and nothing is committed or reported before flush() has written it. A kill may leave an
incomplete last line; readers skip it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedhp.errors import RunError, StorageFull
from fedhp.files import read_plain, restrict, storage_errors
from fedhp.texts import printable_texts


class History:
    """An open history; lines of an earlier process of the same name stay."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._path = folder / f"history-{name}.jsonl"
        with storage_errors(self._path, what="the history"):
            self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115
        restrict(self._path)
        # Ends an incomplete line.
        self._unwritten = b"\n" if self._file.tell() else b""

    def note(self, event: str, facts: Mapping[str, Any]) -> None:
        """Append one event, as soon as the disk has space for it."""
        line = {"at": time.time(), "who": self.name, "process": os.getpid(), "event": event}
        self._unwritten += json.dumps({**line, **facts}).encode() + b"\n"
        with contextlib.suppress(StorageFull):
            self.flush()

    @property
    def waits_for_space(self) -> bool:
        """Whether some lines are not written yet."""
        return bool(self._unwritten)

    def flush(self) -> None:
        """Write what waits for space; StorageFull if there is none."""
        with storage_errors(self._path, what="the history"):
            while self._unwritten:  # the last bytes of a disk take a part of a line
                self._unwritten = self._unwritten[self._file.write(self._unwritten) or 0 :]

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(StorageFull):
            self.flush()
        self._file.close()


def read_history(file: Path) -> Iterator[dict[str, Any]]:
    """The events of a file in order; incomplete lines are left out."""
    try:
        content = read_plain(file)
    except OSError as error:
        raise RunError(
            f"{file}: the history cannot be read: {error.strerror or error}",
            allowed="plain files that this user can read",
            fix="copy the file itself to its place",
        ) from None
    return events_in(content)


def events_in(content: bytes) -> Iterator[dict[str, Any]]:
    """The events in the content of a history file; their texts are printable."""
    for line in content.splitlines():
        try:
            event = json.loads(line)
            if b"\\" in line or not line.isascii():  # as JSON writes all that does not show
                event = printable_texts(event)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            yield event
