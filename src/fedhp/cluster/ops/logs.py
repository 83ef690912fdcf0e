"""Log lines: text for people, or one JSON object per line.

Facts are passed as `extra={"round": 3}`. Private keys, passwords and tokens never get into a
log, wherever in a line they are.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import math
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TextIO

from fedhp.files import restrict
from fedhp.texts import printable

Format = Literal["text", "json"]
FORMATS: tuple[Format, ...] = ("text", "json")
HIDDEN = "[hidden]"
ROOT = "fedhp"
LOG_BYTES = 16 << 20  # of a log file; as much again in the copy of what was before it
CONSOLE = "fedhp.console"  # the logger of what was printed

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


class SizeBound(logging.Handler):
    """Keeps the file that standard error leads to, in append mode, from growing without end. After
    every line, a large one is copied to FILE.1, over the copy before it, and emptied. It stays the
    same file: more than one stream writes to it."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self._log, self._copy = log, log.with_name(f"{log.name}.1")

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):  # a full disk: it is tried again
            if self._log.stat().st_size > LOG_BYTES:
                shutil.copyfile(self._log, self._copy)
                restrict(self._copy)
                os.truncate(self._log, 0)


def begin_json_lines(who: str) -> Callable[[], None]:
    """From now on every line of this process is JSON, whoever prints it: commands, libraries,
    warnings, the user's own code, uncaught exceptions. Returns what ends it."""
    streams, hooks = (sys.stdout, sys.stderr), (sys.excepthook, threading.excepthook)
    root = logging.getLogger()
    handlers = root.handlers[:]
    sys.stdout, sys.stderr = JsonLines(_own(sys.stdout), who), JsonLines(_own(sys.stderr), who)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(who))
    root.handlers[:] = [handler]
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread

    def end() -> None:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, JsonLines):
                stream.finish()
        sys.stdout, sys.stderr = streams
        sys.excepthook, threading.excepthook = hooks
        logging.captureWarnings(False)
        root.handlers[:] = handlers

    return end


class JsonLines(io.TextIOBase):
    """A stream for text of any kind; what is not JSON becomes the message of a log line."""

    def __init__(self, stream: TextIO, who: str) -> None:
        super().__init__()
        self._stream, self._formatter = stream, JsonFormatter(who)
        self._text = ""
        self._lock = threading.RLock()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._lock:
            self._text += text
            if self._text.endswith("\n"):
                self.finish()
        return len(text)

    def flush(self) -> None:
        if not self._stream.closed:
            self._stream.flush()

    def finish(self) -> None:
        with self._lock:
            text, self._text = self._text.rstrip("\r\n"), ""
            if not text.strip():
                return
            if not all(map(_is_json, text.split("\n"))):
                is_error = any(line.startswith(("error: ", "Error: ")) for line in text.split("\n"))
                level = logging.ERROR if is_error else logging.INFO
                text = self._formatter.format(
                    logging.LogRecord(CONSOLE, level, "", 0, text, None, None)
                )
            with contextlib.suppress(ValueError):  # closed, at the end of the process
                self._stream.write(text + "\n")
                self._stream.flush()


def _own(stream: TextIO) -> TextIO:
    """The stream, or one that stays where it is when the file descriptor leads elsewhere."""
    try:
        handle = stream.fileno()
    except (OSError, ValueError, AttributeError):
        return stream
    if isinstance(stream, JsonLines) or handle not in (1, 2):
        return stream
    stream.flush()
    return open(os.dup(handle), "w", buffering=1, encoding="utf-8", errors="backslashreplace")


def _is_json(line: str) -> bool:
    with contextlib.suppress(ValueError):
        return line.startswith("{") and isinstance(json.loads(line), dict)
    return False


def _log_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    logging.getLogger(f"{ROOT}.process").critical("uncaught", exc_info=(kind, error, trace))


def _log_uncaught_in_thread(details: threading.ExceptHookArgs) -> None:
    error = details.exc_value
    if error is not None and not isinstance(error, SystemExit):
        _log_uncaught(details.exc_type, error, details.exc_traceback)


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


class _Formatter(logging.Formatter):
    def __init__(self, who: str) -> None:
        super().__init__()
        self._who = who

    def _message(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}\n{self.formatException(record.exc_info)}"
        return hide(message)


class TextFormatter(_Formatter):
    """2026-01-31T12:00:00Z warning w1: overtaken (round=3)."""

    def format(self, record: logging.LogRecord) -> str:
        """One harmless line, even if the message has several, or a text from another machine."""
        facts = ", ".join(f"{key}={value}" for key, value in extra_facts(record).items())
        message = self._message(record) + (f" ({facts})" if facts else "")
        line = f"{_at(record)} {record.levelname.lower()} {self._who}: {message}"
        return printable(line.replace("\r", "\\r").replace("\n", "\\n"))


class JsonFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": _at(record),
            "level": record.levelname.lower(),
            "who": self._who,
            "logger": record.name,
            "message": self._message(record),
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
    lines_of_last = [line for last in (errors or lines)[-1:] for line in _unfolded(last)]
    return "  " + "\n  ".join(lines_of_last)


def _unfolded(line: str) -> list[str]:
    if line.startswith("{"):
        with contextlib.suppress(ValueError):
            return str(json.loads(line)["message"]).splitlines()
    return line.replace("\\n", "\n").splitlines()


def _at(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_is_secret = functools.lru_cache(maxsize=256)(_SECRET.search)


def _clean(key: str, value: Any) -> Any:
    if _is_secret(key):
        return HIDDEN
    if value is None or isinstance(value, int):  # most are
        return value
    if isinstance(value, Mapping):
        return {str(name): _clean(str(name), inner) for name, inner in value.items()}
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean("", inner) for inner in value]
    return hide(str(value))
