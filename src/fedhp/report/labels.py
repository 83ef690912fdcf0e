"""The names of labels in tables and figures: automatic ones, and those of `compare --label`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fedhp.errors import ConfigError
from fedhp.files import read_plain
from fedhp.report.formatting import short_names
from fedhp.tables import COMMAND_LINE

COMPARISON_FILE = "comparison.json"  # `fedhp compare` writes it next to the folders of the labels
LONGEST_NAME = 80  # letters


def names_for(labels: Iterable[str], own: Mapping[str, str] | None = None) -> dict[str, str]:
    """The name of every label of a comparison; `own` are the user's."""
    known = list(dict.fromkeys(labels))
    given = {label: name for label, name in (own or {}).items() if label in known}
    return {**short_names(known), **given}


def stored_names(folders: Iterable[Path]) -> dict[str, str]:
    """The user's names that the comparisons of these runs hold, by label.

    A label that has different names in two comparisons keeps its automatic one.
    """
    names: dict[str, set[str]] = {}
    for folder in {run_folder.resolve().parents[1] for run_folder in folders}:
        for label, name in read_names(folder).items():
            names.setdefault(label, set()).add(name)
    return {label: min(known) for label, known in names.items() if len(known) == 1}


def read_names(folder: Path) -> dict[str, str]:
    try:
        content = json.loads(read_plain(folder / COMPARISON_FILE))
    except (OSError, ValueError, RecursionError):
        return {}
    labels = content.get("labels") if isinstance(content, dict) else None
    if not isinstance(labels, dict):
        return {}
    return {label: name for label, name in labels.items() if isinstance(name, str) and _fits(name)}


def parse_names(texts: Sequence[str], labels: Sequence[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for text in texts:
        label = max((each for each in labels if text.startswith(f"{each}=")), key=len, default="")
        name = text.removeprefix(f"{label}=").strip()
        if not label or not name:
            raise _wrong(text, "does not name an algorithm of this comparison", labels)
        if not _fits(name):
            raise _wrong(text, f"is not one line of at most {LONGEST_NAME} letters", labels)
        if label in names:
            raise _wrong(text, f"is the second name of {label}: {names[label]!r}", labels)
        names[label] = name
    shown = names_for(labels, names)
    for label, name in names.items():
        for other in labels:
            if other != label and shown[other] == name:
                problem = f"gives two algorithms the same name, also {other}"
                raise _wrong(f"{label}={name}", problem, labels)
    return names


def _fits(name: str) -> bool:
    return bool(name.strip()) and len(name) <= LONGEST_NAME and name.isprintable()


def _wrong(text: str, problem: str, labels: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"{text!r} {problem}",
        key="--label",
        source=COMMAND_LINE,
        allowed=f"ALGORITHM=NAME with one of {', '.join(labels)}, each name once",
        fix=f'write --label "{labels[0]}=NAME"',
    )
