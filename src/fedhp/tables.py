"""Raw tables before the schema sees them: TOML files, key=value overrides, dotted keys, paths."""

from __future__ import annotations

import errno
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedhp.errors import ConfigError

COMMAND_LINE = "command line"

# Settings that are paths; relative ones count from the file that names them.
PATHS = (("data", "path"), ("world", "trace"))


def read_toml(path: str | Path) -> dict[str, Any]:
    """The raw tables of a TOML file, or a clear error."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            "there is no such experiment file",
            key="",
            source=str(path),
            allowed="the path of a TOML file",
            fix="check the path, or start from experiments/demo.toml",
        ) from None
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a path with a NUL in it
        words = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(
            f"the experiment file cannot be read: {words}",
            key="",
            source=str(path),
            allowed="a readable UTF-8 text file in TOML",
            fix="check the path and its permissions",
        ) from None
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"the experiment file is not valid TOML: {error}",
            key="",
            source=str(path),
            allowed='lines such as rounds = 100, name = "mlp" and [data]',
            fix="mend that line; text needs quotes, a section starts with [its name]",
        ) from None


def parse_override(text: str) -> tuple[str, Any]:
    """`key=value`, the value in TOML or a bare word."""
    key, separator, raw = text.partition("=")
    key, raw = key.strip(), raw.strip()
    if not separator or not key or any(not part.strip() for part in key.split(".")):
        raise ConfigError(
            f"{text!r} is not of the form key=value",
            key=key,
            source=COMMAND_LINE,
            allowed="key=value, for example data.skew=0.8",
            fix="write the key, an equals sign and the value without spaces",
        )
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except (ValueError, RecursionError):
        return key, raw
    return key, parsed["value"] if len(parsed) == 1 else raw


def set_key(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in nested tables."""
    *tables, last = key.split(".")
    for table in tables:
        branch = tree.setdefault(table, {})
        if not isinstance(branch, dict):
            raise ConfigError(
                f"{table!r} is a value, not a section, so {key!r} cannot be set in it",
                key=key,
                source=COMMAND_LINE,
                allowed="section.key=value",
                fix=f"set {table} itself, or name a key of a section",
            )
        tree = branch
    tree[last] = value


def copied(value: Any) -> Any:
    """Tables that can be changed without changing the given ones."""
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


def merge_defaults(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The given tables, with these values where they say nothing."""
    merged = dict(defaults)
    for key, value in given.items():
        base = merged.get(key)
        if isinstance(base, Mapping) and isinstance(value, Mapping):
            merged[key] = merge_defaults(base, value)
        else:
            merged[key] = value
    return merged


def flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, by dotted keys."""
    found: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping) and value:
            found.update(flat(value, f"{prefix}{key}."))
        else:
            found[prefix + key] = value
    return found


def anchor_paths(tree: Mapping[str, Any], folder: Path, *, source: str = "") -> None:
    """Relative paths count from the file that names them, or from the current folder."""
    for section, key in PATHS:
        table = tree.get(section)
        given = table.get(key) if isinstance(table, dict) else None
        if isinstance(table, dict) and isinstance(given, str) and given:
            try:
                place = str((folder / Path(given).expanduser()).resolve())
                os.stat(place)
            except (ValueError, RuntimeError, OSError) as error:
                if getattr(error, "errno", None) not in (errno.ENOENT, errno.ENOTDIR):
                    raise _no_path(error, f"{section}.{key}", given, source) from None
            table[key] = place


def _no_path(error: Exception, key: str, given: str, source: str) -> ConfigError:
    """A NUL in it, an unknown user after ~, too long, a loop of links, no permission."""
    words = error.strerror if isinstance(error, OSError) else str(error)
    shown = given if len(given) <= 60 else given[:57] + "..."
    return ConfigError(
        f"the value {shown!r} is no path that can be used: {words}",
        key=key,
        source=source,
        allowed="the path of a file or folder that can be reached",
        fix=f"correct {key}, or remove it",
    )
