"""Raw tables before validation: TOML files, key=value overrides, merging, dotted keys, paths."""

from __future__ import annotations

import codecs
import errno
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedhp.errors import ConfigError

COMMAND_LINE = "command line"

# Settings that are paths; relative ones are resolved against the folder of the file they are in.
TRACES = ("trace", "device_trace", "availability_trace")
PATHS = (("data", "path"), *(("world", trace) for trace in TRACES))


def read_toml(path: str | Path) -> dict[str, Any]:
    """The raw tables of a TOML file."""

    def refused(problem: str, *, allowed: str, fix: str) -> ConfigError:
        return ConfigError(
            f"the experiment file {problem}", key="", source=str(path), allowed=allowed, fix=fix
        )

    try:
        content = Path(path).read_bytes()
        if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise refused(
                "cannot be read: it is UTF-16 text",
                allowed="a readable UTF-8 text file in TOML",
                fix="save it as UTF-8",
            )
        # A byte order mark is what some editors on Windows put before UTF-8.
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise refused(
            "does not exist",
            allowed="the path of a TOML file",
            fix="check the path, or create an experiment to start from: fedhp init FOLDER",
        ) from None
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        encoded = isinstance(error, UnicodeDecodeError)
        raise refused(
            f"cannot be read: {reason}",
            allowed="a readable UTF-8 text file in TOML",
            fix="save it as UTF-8" if encoded else "check the path and its permissions",
        ) from None
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        problem = _toml_problem(text, str(error))
        allowed = 'lines such as rounds = 100, name = "mlp" and [data]'
        fix = "correct that line; text needs quotes, and a section starts with [its name]"
        if "is set twice" in problem:
            allowed, fix = "each key and each section once", "remove one of the two lines"
        raise refused(f"is not valid TOML: {problem}", allowed=allowed, fix=fix) from None


def _toml_problem(text: str, message: str) -> str:
    """The parser's message; a key or section that occurs twice is named, with both lines."""
    if not message.startswith(("Cannot overwrite", "Cannot declare")):
        return message
    lines = text.splitlines()
    position = re.search(r"at line (\d+)", message)
    last = max((number for number, line in enumerate(lines, 1) if line.strip()), default=1)
    last = int(position[1]) if position else last
    section, seen = "", dict[str, int]()
    for number, line in enumerate(lines[:last], 1):
        name = line.partition("#")[0].partition("=")[0].strip()
        if name.startswith("["):
            section = name = f"[{name.strip('[]').strip()}]"
        elif section:
            name = f"{section} {name}"
        if number == last and name in seen:
            return f"{name} is set twice, in line {seen[name]} and in line {last}"
        seen.setdefault(name, number)
    return message


def parse_override(text: str) -> tuple[str, Any]:
    """Split `key=value`; the value is TOML or a bare word."""
    key, separator, raw = text.partition("=")
    key, raw = key.strip(), raw.strip()
    if not separator or not key or any(not part.strip() for part in key.split(".")):
        raise ConfigError(
            f"{text!r} is not of the form key=value",
            key=key,
            source=COMMAND_LINE,
            allowed="key=value, for example data.skew=0.8",
            fix="write key=value without spaces",
        )
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except (ValueError, RecursionError):
        return key, raw
    return key, parsed["value"] if len(parsed) == 1 else raw


def set_key(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in nested tables, creating the tables it needs."""
    *sections, last = key.split(".")
    for section in sections:
        table = tree.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigError(
                f"{section!r} is a value, not a section, so {key!r} cannot be set",
                key=key,
                source=COMMAND_LINE,
                allowed="section.key=value",
                fix=f"set {section} itself, or use a key of a section",
            )
        tree = table
    tree[last] = value


def pop_key(tree: dict[str, Any], key: str) -> tuple[bool, Any]:
    """Remove a dotted key from nested tables: whether it was there, and its value."""
    *sections, last = key.split(".")
    for section in sections:
        table = tree.get(section)
        if not isinstance(table, dict):
            return False, None
        tree = table
    return last in tree, tree.pop(last, None)


def merge_tables(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Tables with changes laid over them, table by table; the result shares no table with either.

    The one merge of settings: base may be defaults below a file, or a file below a profile.
    """
    merged = {
        key: merge_tables(value, {}) if isinstance(value, Mapping) else value
        for key, value in base.items()
    }
    for key, value in changes.items():
        below = merged.get(key)
        if isinstance(value, Mapping):
            value = merge_tables(below if isinstance(below, Mapping) else {}, value)
        merged[key] = value
    return merged


def flatten(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one table with dotted keys."""
    flattened: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping) and value:
            flattened.update(flatten(value, f"{prefix}{key}."))
        else:
            flattened[prefix + key] = value
    return flattened


def resolve_paths(tree: Mapping[str, Any], folder: Path) -> None:
    """Make the path settings absolute, in place; relative ones start at this folder."""
    for section, key in PATHS:
        table = tree.get(section)
        value = table.get(key) if isinstance(table, dict) else None
        if isinstance(table, dict) and isinstance(value, str) and value:
            try:
                path = str((folder / Path(value).expanduser()).resolve())
                os.stat(path)
            except (ValueError, RuntimeError, OSError) as error:
                # A NUL, an unknown user after ~, a path too long, a loop, no permission.
                if getattr(error, "errno", None) not in (errno.ENOENT, errno.ENOTDIR):
                    reason = error.strerror if isinstance(error, OSError) else str(error)
                    shown = value if len(value) <= 60 else value[:57] + "..."
                    raise ConfigError(
                        f"the path {shown!r} cannot be used: {reason}",
                        key=f"{section}.{key}",
                        allowed="the path of a file or folder that can be reached",
                        fix=f"correct {section}.{key}, or remove it",
                    ) from None
            table[key] = path
