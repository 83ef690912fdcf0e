"""Bad configurations, generated from the schema: one fault each, in a random valid experiment."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedhp.algorithms.base import ALGORITHMS
from fuzz.component_faults import component_faults, name_faults, own_component_faults
from fuzz.fault import Fault, Tables
from fuzz.joint_faults import combinations, file_faults
from fuzz.schema_faults import schema_faults, unknown_keys


@dataclass(frozen=True)
class Case:
    """A whole bad experiment."""

    title: str
    tables: Tables
    keys: tuple[str, ...]


def make_cases(folder: Path, count: int, seed: int) -> list[Case]:
    """Every fault once, then faults at random, each in its own random experiment."""
    rng = random.Random(seed)
    faults = list(all_faults(folder, rng))
    chosen = faults + [rng.choice(faults) for _ in range(count - len(faults))]
    rng.shuffle(chosen)
    return [with_fault(fault, {} if fault.bare else random_base(rng)) for fault in chosen[:count]]


def with_fault(fault: Fault, tables: Tables) -> Case:
    """An experiment with a fault; settings that would hide the fault are replaced."""
    for key, value in fault.settings.items():
        *sections, last = key.split(".")
        table = tables
        for section in sections:
            if not isinstance(table.get(section), dict):
                table[section] = {}
            table = table[section]
        if last == "name" and sections:
            table.clear()  # settings of another component would be a second fault
        table[last] = value
    return Case(fault.title, tables, fault.keys)


def random_base(rng: random.Random) -> Tables:
    """A random valid experiment that is cheap to prepare."""
    tables: Tables = {"workers": rng.randint(4, 12), "rounds": rng.randint(0, 50)}
    choices: list[tuple[str, str, list[Any]]] = [
        ("algorithm", "name", list(ALGORITHMS)),
        ("model", "name", ["mlp", "logistic", "small_cnn"]),
        ("topology", "name", ["full", "ring", "grid", "random"]),
        ("training", "learning_rate", [0.01, 0.1, 1]),
        ("training", "batch_size", [1, 32, 5000]),
        ("evaluation", "every", [1, 3, 1000]),
        ("world", "profile", ["paper", "slow_links", "uniform"]),
        ("world", "monitor_delay", [0, 1]),
        ("world", "monitor_error", [0, 0.3]),
        ("checkpoint", "seconds", [0, 5.5]),
        ("compare", "seeds", [[0, 1], [7]]),
    ]
    for section, key, values in rng.sample(choices, rng.randint(0, len(choices))):
        tables.setdefault(section, {})[key] = rng.choice(values)
    return tables


def all_faults(folder: Path, rng: random.Random) -> Iterator[Fault]:
    """Every fault there is."""
    yield from schema_faults()
    yield from unknown_keys(rng)
    yield from component_faults(rng)
    yield from name_faults(rng)
    yield from own_component_faults()
    yield from combinations(rng)
    yield from file_faults(folder)
