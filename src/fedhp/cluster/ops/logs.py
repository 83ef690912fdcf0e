"""What a process says while it runs: text for people or one JSON object per line.

Facts are given as `extra={"round": 3}`. Private keys, passwords and tokens never get out,
wherever in a line they stand.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

Format = Literal["text", "json"]
FORMATS: tuple[Format, ...] = ("text", "json")
HIDDEN = "[hidden]"
ROOT = "fedhp"

_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_OWN = frozenset({"at", "level", "who", "logger", "message"})  # keys of a JSON line
_SECRET = re.compile(r"(?i)(^|_)(key|password|passwd|secret|token|credentials?)$")
_PEM = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S
)
_LOGIN = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")


def set_up(*, who: str, form: Format = "text", stream: TextIO | None = None) -> logging.Handler:
    """Send what fedhp logs to a stream (default: standard error); the handler, to remove it."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(Lines(who) if form == "text" else JsonLines(who))
    logger = logging.getLogger(ROOT)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    return handler


def facts_of(record: logging.LogRecord) -> dict[str, Any]:
    """What was given as `extra`, secrets hidden."""
    found = {
        key: value
        for key, value in vars(record).items()
        if key not in _ORDINARY and not key.startswith("_")  # a library's own mark on every record
    }
    return {key: _clean(key, value) for key, value in found.items()}


def hide(text: str) -> str:
    """The text without private keys, and without passwords in addresses."""
    return _LOGIN.sub(rf"\1{HIDDEN}@", _PEM.sub(HIDDEN, text))


class Lines(logging.Formatter):
    """2026-01-31T12:00:00Z warning w1: overtaken (round=3)."""

    def __init__(self, who: str) -> None:
        super().__init__()
        self._who = who

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever is in it."""
        facts = ", ".join(f"{key}={value}" for key, value in facts_of(record).items())
        said = _said(self, record) + (f" ({facts})" if facts else "")
        line = f"{_at(record)} {record.levelname.lower()} {self._who}: {said}"
        return line.replace("\r", "\\r").replace("\n", "\\n")


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def __init__(self, who: str) -> None:
        super().__init__()
        self._who = who

    def format(self, record: logging.LogRecord) -> str:
        """One line of strict JSON."""
        line: dict[str, Any] = {
            "at": _at(record),
            "level": record.levelname.lower(),
            "who": self._who,
            "logger": record.name,
            "message": _said(self, record),
        }
        # A fact that is called like one of ours must not replace it.
        facts = facts_of(record)
        line.update({f"{key}_" if key in _OWN else key: facts[key] for key in facts})
        return json.dumps(line, default=str)


def _at(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _said(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    said = record.getMessage()
    if record.exc_info:
        said = f"{said}\n{formatter.formatException(record.exc_info)}"
    return hide(said)


def _clean(key: str, value: Any) -> Any:
    """A fact as a plain value that may be told."""
    if _SECRET.search(key):
        return HIDDEN
    if isinstance(value, Mapping):
        return {str(name): _clean(str(name), inner) for name, inner in value.items()}
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, str):
        return hide(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean("", inner) for inner in value]
    return hide(str(value))
