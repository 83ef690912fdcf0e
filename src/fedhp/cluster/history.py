"""What one process did, line by line, for the offline checks: history-NAME.jsonl.

A line is written before the event it describes has any effect elsewhere. A kill may leave an
incomplete last line; readers skip it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class History:
    """An open history; lines of an earlier process of the same name stay."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._file = open(folder / f"history-{name}.jsonl", "ab", buffering=0)  # noqa: SIM115
        if self._file.tell():
            self._file.write(b"\n")  # ends an incomplete line

    def note(self, event: str, facts: Mapping[str, Any]) -> None:
        """Append one event."""
        line = {"at": time.time(), "who": self.name, "process": os.getpid(), "event": event}
        self._file.write(json.dumps({**line, **facts}).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_history(file: Path) -> Iterator[dict[str, Any]]:
    """The events of a file in order; incomplete lines are left out."""
    return events_in(file.read_bytes())


def events_in(content: bytes) -> Iterator[dict[str, Any]]:
    """The events in the content of a history file."""
    for line in content.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event
