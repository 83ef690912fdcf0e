"""One mistake in a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Tables = dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """One mistake: the settings that make it, and the keys a message may name for it."""

    title: str
    settings: dict[str, Any]  # dotted key -> value, set in a valid experiment
    keys: tuple[str, ...]
    bare: bool = False  # without any other settings
