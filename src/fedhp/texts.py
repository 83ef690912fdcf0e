"""Texts from a record, a history or another machine: bounded, one line, nothing that a terminal or
an XML file takes for a command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

LONGEST_TEXT = 10_000  # characters of one text of a record
DEEPEST = 32  # tables inside tables


def printable(text: str) -> str:
    """A text with a space for every character that does not show: line breaks, escapes, marks that
    turn the direction of writing."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " for char in text)


def printable_texts(value: Any) -> Any:
    """A JSON value in which every text is printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [printable_texts(item) for item in value]
    if isinstance(value, dict):
        return {printable(key): printable_texts(item) for key, item in value.items()}
    return value


def check_bounds(value: Any) -> None:
    """Refuse, with ValueError, a JSON value with a text or tables that no record has."""
    for text in _texts(value, DEEPEST):
        if len(text) > LONGEST_TEXT:
            raise ValueError(f"a text has {len(text)} characters, at most {LONGEST_TEXT} are read")


def _texts(value: Any, deepest: int) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        if not deepest:
            raise ValueError(f"it has more than {DEEPEST} tables inside each other")
        for item in value:
            yield from _texts(item, deepest - 1)
        if isinstance(value, dict):
            for item in value.values():
                yield from _texts(item, deepest - 1)
