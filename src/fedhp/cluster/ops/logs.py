"""Log lines: text for people, or one JSON object per line.

Facts are passed as `extra={"round": 3}`. Private keys, passwords and tokens never get into a
log, wherever in a line they are.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TextIO

Format = Literal["text", "json"]
FORMATS: tuple[Format, ...] = ("text", "json")
HIDDEN = "[hidden]"
ROOT = "fedhp"

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_RESERVED = frozenset({"at", "level", "who", "logger", "message"})  # keys of every JSON line
_SECRET = re.compile(r"(?i)(^|_)(key|password|passwd|secret|token|credentials?)$")
_PEM = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S
)
_LOGIN = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")


def set_up(*, who: str, form: Format = "text", stream: TextIO | None = None) -> logging.Handler:
    """Log to a stream (default: standard error); returns the handler, so that it can be removed."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(TextFormatter(who) if form == "text" else JsonFormatter(who))
    logger = logging.getLogger(ROOT)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    return handler


def extra_facts(record: logging.LogRecord) -> dict[str, Any]:
    """What was passed as `extra`, secrets hidden."""
    return {
        key: _clean(key, value)
        for key, value in vars(record).items()
        if key not in _STANDARD and not key.startswith("_")  # a library's mark on every record
    }


def hide(text: str) -> str:
    """The text without private keys, and without passwords in addresses."""
    return _LOGIN.sub(rf"\1{HIDDEN}@", _PEM.sub(HIDDEN, text))


class TextFormatter(logging.Formatter):
    """2026-01-31T12:00:00Z warning w1: overtaken (round=3)."""

    def __init__(self, who: str) -> None:
        super().__init__()
        self._who = who

    def format(self, record: logging.LogRecord) -> str:
        """One line, even if the message has several."""
        facts = ", ".join(f"{key}={value}" for key, value in extra_facts(record).items())
        message = _message(self, record) + (f" ({facts})" if facts else "")
        line = f"{_at(record)} {record.levelname.lower()} {self._who}: {message}"
        return line.replace("\r", "\\r").replace("\n", "\\n")


class JsonFormatter(logging.Formatter):
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
            "message": _message(self, record),
        }
        # A fact with a reserved name must not replace the value of every line.
        facts = extra_facts(record)
        line.update({f"{key}_" if key in _RESERVED else key: facts[key] for key in facts})
        return json.dumps(line, default=str)


def last_error(log: Path) -> str:
    """The last error in the log of a process, or its last line."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "  (it logged nothing)"
    errors = [line for line in lines if " error " in line or '"level": "error"' in line]
    return "  " + "\n  ".join((errors or lines)[-1:])


def _at(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    message = record.getMessage()
    if record.exc_info:
        message = f"{message}\n{formatter.formatException(record.exc_info)}"
    return hide(message)


def _clean(key: str, value: Any) -> Any:
    """A fact as a plain value without secrets."""
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
