"""What one process did, line by line, for the offline checks: history-NAME.jsonl.

A line is written before the event has any effect elsewhere; on a full disk it waits in memory, and
nothing is committed or reported before flush() has written it. A kill may leave half a line;
readers skip it. A large file becomes a part, history-NAME.jsonl.1, .2, ..., which keeps only the
first and last of many attempts at one round. In the end the oldest part is dropped: part 0 keeps
its lines about leaders and members, and says up to which round lines are missing.
"""

from __future__ import annotations

import contextlib
import glob
import json
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from fedhp.cluster import events as kinds
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.errors import RunError, StorageFull
from fedhp.files import PRIVATE_FILE, read_plain, restrict, storage_errors, write_file
from fedhp.texts import printable_texts

LOG = logging.getLogger("fedhp.history")
PART_BYTES = 8 << 20  # of a file until it becomes a part
PARTS = 128  # that are kept
ATTEMPTS = 10  # of one round, of the first and of the last ones, that a part keeps
# What a reader of the rest needs of the lines that were dropped.
LASTING = ("lead", "join", "certificate", "removed", "allowed", "finished")
# Without an attempt of their own: these lines are left out together with those of the attempts.
PER_ATTEMPT = ("left_aside", "waiting")
DROPPED = kinds.Dropped.event


def facts_of(event: kinds.Event) -> dict[str, Any]:
    """What the line of an event says, apart from when and who."""
    facts: dict[str, Any] = {}
    for name, value in vars(event).items():
        several = value.to_facts() if isinstance(value, Attempt) else value
        if isinstance(several, dict):
            facts.update(several)
        elif value is not None:
            facts[name] = value
    return facts


class History:
    """An open history; lines of an earlier process of the same name stay."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._path = folder / f"history-{name}.jsonl"
        with storage_errors(self._path, what="the history"):
            self._open()
        # Ends an incomplete line.
        self._unwritten = b"\n" if self._file.tell() else b""

    def _open(self) -> None:
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115
        restrict(self._path)
        self._size = self._file.tell()
        self._tries = 0  # the most attempts at one round in this file

    def note(self, event: kinds.Event) -> None:
        """Append one event, as soon as the disk has space for it."""
        self.append(event.event, facts_of(event))

    def append(self, event: str, facts: Mapping[str, Any]) -> None:
        """Append a line about an event of this kind."""
        self._tries = max(self._tries, facts.get("attempt", 0))
        self._unwritten += json.dumps({**self._common(event), **facts}).encode() + b"\n"
        with contextlib.suppress(StorageFull):
            self.flush()
            if self._size > PART_BYTES:
                self._begin_part()

    def _common(self, event: str) -> dict[str, Any]:
        return {"at": time.time(), "who": self.name, "process": os.getpid(), "event": event}

    @property
    def waits_for_space(self) -> bool:
        """Whether some lines are not written yet."""
        return bool(self._unwritten)

    def flush(self) -> None:
        """Write what waits for space; StorageFull if there is none."""
        with storage_errors(self._path, what="the history"):
            while self._unwritten:  # the last bytes of a disk take a part of a line
                written = self._file.write(self._unwritten) or 0
                self._unwritten = self._unwritten[written:]
                self._size += written

    def _begin_part(self) -> None:
        """Make the file a part; where that fails, it goes on as it is."""
        before, tries = self._file, self._tries
        try:
            parts = _numbered(self._path)
            part = self._path.with_name(f"{self._path.name}.{1 + (parts[-1][0] if parts else 0)}")
            os.rename(self._path, part)
            try:
                self._open()
            except OSError:
                os.rename(part, self._path)
                raise
            before.close()
            if tries > 2 * ATTEMPTS:
                _write_lines(part, compacted(events_in(part.read_bytes())))
            if len(parts) >= PARTS:
                self._drop(parts)
        except OSError as error:
            LOG.warning("the history cannot be divided into parts: %s", error)
            self._size = 0  # until it is tried again

    def _drop(self, parts: list[tuple[int, Path]]) -> None:
        """Keep of the oldest part what readers of the others need."""
        kept = parts[:1] if not parts[0][0] else []
        place, oldest = parts[len(kept)]
        lines = [
            line for _, part in parts[: len(kept) + 1] for line in events_in(part.read_bytes())
        ]
        lasting = [line for line in lines if line["event"] in LASTING]
        earlier = [line for line in lines if line["event"] == DROPPED]
        attempts = _attempts_of(lines)
        last = max(attempts, key=lambda last: (last.round_index, last.epoch), default=INITIAL)
        count = len(lines) - len(lasting) - len(earlier) + sum(line["lines"] for line in earlier)
        summary = self._common(DROPPED) | facts_of(kinds.Dropped(last, count, place))
        _write_lines(self._path.with_name(f"{self._path.name}.0"), [*lasting, summary])
        oldest.unlink()

    def close(self) -> None:
        with contextlib.suppress(StorageFull):
            self.flush()
        self._file.close()


def history_parts(file: Path) -> list[Path]:
    """The files of one history in their order; the last one is still written."""
    return [part for _, part in _numbered(file)] + [file]


def history_content(file: Path) -> bytes:
    """The lines of a history, of all its parts."""
    try:
        while True:
            parts = history_parts(file)
            content = b"".join(map(read_plain, parts))
            if history_parts(file) == parts:  # no part was made or dropped meanwhile
                return content
    except OSError as error:
        raise RunError(
            f"{file}: the history cannot be read: {error.strerror or error}",
            allowed="plain files that this user can read",
            fix="change the permissions, or copy the file itself to its place",
        ) from None


def read_history(file: Path) -> Iterator[dict[str, Any]]:
    """The events of a history in order; incomplete lines are left out."""
    return events_in(history_content(file))


def _numbered(file: Path) -> list[tuple[int, Path]]:
    """The parts of a history; not those that part 0 stands for, which a kill may have left."""
    pattern = re.compile(re.escape(file.name) + r"\.(\d+)")
    parts = sorted(
        (int(match[1]), part)
        for part in file.parent.glob(f"{glob.escape(file.name)}.*")
        # A link would lead out of the folder.
        if (match := pattern.fullmatch(part.name)) and part.is_file() and not part.is_symlink()
    )
    if parts and not parts[0][0]:
        lines = events_in(read_plain(parts[0][1]))
        through = [line.get("parts") for line in lines if line.get("event") == DROPPED]
        last = through[-1] if through and isinstance(through[-1], int) else 0
        parts = [parts[0], *(part for part in parts[1:] if part[0] > last)]
    return parts


def _write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    write_file(path, content, mode=PRIVATE_FILE)


def _attempt_of(line: Mapping[str, Any]) -> Attempt | None:
    with contextlib.suppress(KeyError, TypeError, ValueError):
        return Attempt.from_facts(line)
    return None


def _attempts_of(lines: Iterable[Mapping[str, Any]]) -> list[Attempt]:
    return [attempt for line in lines if (attempt := _attempt_of(line)) is not None]


def compacted(lines: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The lines without those of most attempts at one round, and how many those were."""
    lines = list(lines)
    tried = groupby(sorted(set(_attempts_of(lines))), key=_round_of)
    spare = {each for _, attempts in tried for each in list(attempts)[ATTEMPTS:-ATTEMPTS]}
    left_out: list[dict[str, Any]] = []
    of_round: tuple[int, int] | None = None  # theirs
    for line in lines:
        attempt = _attempt_of(line)
        if (
            left_out
            and attempt is not None
            and (attempt not in spare or _round_of(attempt) != of_round)
        ):
            yield _sum(left_out)
            left_out = []
        if attempt is not None and attempt in spare and line["event"] not in LASTING:
            of_round = _round_of(attempt)
            left_out.append(line)
        elif left_out and attempt is None and line["event"] in PER_ATTEMPT:
            left_out.append(line)
        else:
            yield line
    if left_out:
        yield _sum(left_out)


def _sum(lines: list[dict[str, Any]]) -> dict[str, Any]:
    attempts = _attempts_of(lines)
    numbers = [attempt.number for attempt in attempts]
    common: dict[str, Any] = {
        key: value for key, value in lines[-1].items() if key in ("at", "who", "process")
    }
    summary = kinds.LeftOut(*_round_of(attempts[0]), min(numbers), max(numbers), len(lines))
    return {**common, "event": summary.event, **facts_of(summary)}


def _round_of(attempt: Attempt) -> tuple[int, int]:
    return attempt.epoch, attempt.round_index


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
