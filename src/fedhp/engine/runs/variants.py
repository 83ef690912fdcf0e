"""An algorithm with settings in one word, as comparisons and replays accept it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from fedhp.algorithms.base import ALGORITHMS
from fedhp.config import Experiment, apply_changes, parse_change, to_tables
from fedhp.errors import ConfigError
from fedhp.tables import parse_override

NUMBER = r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
RANGE = re.compile(rf"\s*([\w.]+)\s*=\s*({NUMBER})\.\.({NUMBER})\s*")


@dataclass(frozen=True, slots=True)
class Variant:
    """An algorithm with settings: "fedhp:deadline=fill"."""

    label: str
    name: str
    settings: dict[str, Any]  # of the algorithm
    overrides: dict[str, Any]  # of the experiment: keys with a dot

    @property
    def keys(self) -> tuple[str, ...]:
        settings = (f"algorithm.{name}" for name in self.settings)
        return ("algorithm.name", *settings, *self.overrides)


def parse_variant(text: str, *, key: str = "compare.algorithms") -> Variant:
    """name[:key=value]...; a key with a dot is one of the experiment, not the algorithm.

    A comma before a key=value does the same as the colon.
    """
    text = with_colons(text)
    first, *rest = text.strip().split(":")
    if rest and "=" not in rest[0] and first not in ALGORITHMS:  # package.module:Class
        first, rest = f"{first}:{rest[0]}", rest[1:]
    settings: dict[str, Any] = {}
    overrides: dict[str, Any] = {}
    for item in rest:
        name, value = parse_override(item)
        if name in settings or name in overrides:
            first_item = next(other for other in rest if parse_override(other)[0] == name)
            raise ConfigError(
                f"{text!r} gives {name} twice: {first_item} and {item}",
                key=key,
                allowed="each setting once",
                fix="remove one of the two",
            )
        if "." in name:
            overrides.update([parse_change(item)])
        else:
            settings[name] = value
    if not first or "name" in settings:
        raise ConfigError(
            f"{text!r} names {'two algorithms' if first else 'no algorithm'}",
            key=key,
            allowed="a name and its settings, such as fedhp, dpsgd or adpsgd:steps=100",
            fix="write one name, before the first colon",
        )
    return Variant(text.strip(), first, settings, overrides)


def split_algorithms(text: str) -> list[str]:
    """The entries of --algorithms, separated by commas, except inside brackets.

    A key=value is another setting of the entry before it: "adpsgd:steps=100,learning_rate=0.4".
    """
    joined: list[str] = []
    for entry in split_commas(text):
        if joined and "=" in entry.partition(":")[0]:
            joined[-1] += f":{entry}"
        elif entry:
            joined.append(entry)
    return joined


def split_commas(text: str, *, quotes: str = "") -> list[str]:
    """What is between commas, except those inside brackets and these quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in quotes:
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def split_ranges(entry: str) -> tuple[str, list[re.Match[str]]]:
    """An entry without its ranges, and these (key, low, high): "adpsgd:steps=5..50"."""
    parts = with_colons(entry).split(":")
    matches = [match for part in parts if (match := RANGE.fullmatch(part))]
    return ":".join(part for part in parts if not RANGE.fullmatch(part)).strip(), matches


def with_colons(text: str) -> str:
    """An entry as it is written in labels: "adpsgd:steps=100:learning_rate=0.4"."""
    entries = split_algorithms(text)
    return entries[0] if len(entries) == 1 else text


def tables_of(
    variant: Variant, base: Experiment, *, notes: list[str] | None = None
) -> dict[str, Any]:
    """The experiment with this algorithm; it keeps the base's settings where it is the same.

    notes gets a line for settings of another kind that the variant drops.
    """
    tables = to_tables(base)
    same = variant.name == base.algorithm.name
    kept = dict(base.algorithm.settings) if same else {}
    tables["algorithm"] = {**kept, "name": variant.name, **variant.settings}
    dropped = apply_changes(tables, list(variant.overrides.items()))
    if notes is not None:
        notes.extend(f"{variant.label}: {drop.note('')}" for drop in dropped)
    return tables
