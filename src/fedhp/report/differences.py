"""In which settings runs really differ: by what each of them ran with, not by its label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedhp.algorithms.base import ALGORITHMS, Range, built_in
from fedhp.report.formatting import listed
from fedhp.report.groups import RunEntry, read_entry, setting_text, short_value, with_titles

RATE = "training.learning_rate"
NAMES = {RATE: "learning rate", "training.local_steps": "local steps"}
UNUSED = object()  # instead of a value: the algorithm sets it by itself
MOST_SETTINGS = 8  # that a sentence names


def differing_settings(entries: Sequence[RunEntry]) -> dict[str, list[Any]]:
    """The settings in which these runs differ, by dotted key, with the value of each run; UNUSED
    where the algorithm of a run does not use it. Algorithm and seed are left out."""
    tables = [_effective(entry) for entry in entries]
    keys = dict.fromkeys(key for table in tables for key in table)
    columns = {key: [table.get(key) for table in tables] for key in sorted(keys)}
    return {
        key: values
        for key, values in columns.items()
        if len({setting_text(value) for value in values if value is not UNUSED}) > 1
    }


def difference_words(entries: Sequence[RunEntry]) -> str:
    """In which settings these runs differ, with their values; what is equal."""
    differences = differing_settings(entries)
    rest = "but for the algorithm, its own settings and the seed"
    if not differences:
        return f"All runs have the same settings, {rest}."
    parts = [_words(key, values, entries) for key, values in differences.items()]
    return (
        f"The runs differ in {listed(parts, most=MOST_SETTINGS)}. Their other settings are equal, "
        f"{rest}."
    )


def runs_difference_words(folders: Sequence[Path]) -> str:
    """The same, for the runs in these folders; empty if only their seeds differ."""
    kinds: dict[str, RunEntry] = {}
    for entry in with_titles([read_entry(folder) for folder in folders]):
        kinds.setdefault(setting_text(entry.label, _effective(entry), entry.algorithm), entry)
    entries = list(kinds.values())
    titles = Counter(entry.title for entry in entries)
    entries = [
        entry if titles[entry.title] == 1 else replace(entry, title=f"{entry.title} ({number})")
        for number, entry in enumerate(entries, start=1)
    ]
    return difference_words(entries) if len(entries) > 1 else ""


def _effective(entry: RunEntry) -> dict[str, Any]:
    """The settings that counted: one of the algorithm replaces that of [training]."""
    replaced = {k: v for k, v in _replaced(entry.algorithm).items() if v is not None}
    return {**entry.settings, RATE: entry.learning_rate, **replaced}


def _replaced(algorithm: Mapping[str, Any]) -> dict[str, Any]:
    """By key of the experiment, what a built-in algorithm has instead; None: the experiment counts,
    UNUSED: it decides by itself."""
    if algorithm["name"] not in ALGORITHMS:
        return {}
    found = {
        tried.unset: algorithm.get(name)
        for name, tried in built_in(algorithm["name"]).tunable.items()
        if isinstance(tried, Range) and tried.unset and tried.unset != RATE
    }
    return {"training.local_steps": UNUSED, **found}


def _words(key: str, values: Sequence[Any], entries: Sequence[RunEntry]) -> str:
    """learning rate (0.3 with FedHP+; 0.1 with the others)."""
    with_value: dict[str, list[str]] = {}
    for value, entry in zip(values, entries, strict=True):
        if value is not UNUSED:
            text = "not set" if value is None else short_value(value)
            with_value.setdefault(text, []).append(entry.title)
    most = max(with_value, key=lambda text: len(with_value[text]))
    others = {} if len(with_value[most]) == 1 else {most: with_value.pop(most)}
    parts = [f"{text} with {listed(titles)}" for text, titles in with_value.items()]
    parts += [f"{text} with the others" for text in others]
    unused = [entry.title for value, entry in zip(values, entries, strict=True) if value is UNUSED]
    if unused:
        own = "sets it by itself" if len(unused) == 1 else "set it by themselves"
        parts.append(f"{listed(unused)} {own}")
    return f"{NAMES.get(key, key)} ({'; '.join(parts)})"
