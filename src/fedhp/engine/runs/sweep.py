"""A sweep: every combination of some settings, with every seed, as the cells of one campaign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from fedhp.algorithms.rates import KEY, check_rate_has_effect
from fedhp.config import Draft, Experiment, log_notes
from fedhp.config.origins import Origins
from fedhp.engine.runs.campaign import Cell, folder_name, refuse_repeated
from fedhp.engine.runs.run import may_change_on_resume
from fedhp.engine.runs.variants import split_commas
from fedhp.errors import ConfigError
from fedhp.tables import COMMAND_LINE, parse_override

MOST_RUNS = 10_000  # of one sweep


@dataclass(frozen=True, slots=True)
class SweptKey:
    """A setting and its values, as texts and as they are parsed."""

    key: str
    texts: tuple[str, ...]
    values: tuple[Any, ...]

    @property
    def varies(self) -> bool:
        return len(self.texts) > 1


@dataclass(frozen=True, slots=True)
class SweepCell:
    """One run of a sweep and the values of the settings that vary."""

    cell: Cell
    texts: tuple[str, ...]
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Sweep:
    """The settings that vary, and all runs."""

    keys: tuple[SweptKey, ...]
    runs: tuple[SweepCell, ...]

    @property
    def cells(self) -> list[Cell]:
        return [run.cell for run in self.runs]


def plan_sweep(
    draft: Draft, *, settings: Sequence[str], seeds: Sequence[int] | None, out: Path
) -> Sweep:
    """All runs of a sweep, every configuration checked; dropped settings are logged.

    A setting is key=a,b,c or key=value.
    """
    keys = [_swept_key(text) for text in settings]
    _check_keys(keys)
    varied = [key for key in keys if key.varies]
    first = draft.experiment(_overrides(keys, [0] * len(keys)))
    numbers = list(first.compare.seeds if seeds is None else seeds)
    with (first.origins if seeds is None else Origins(COMMAND_LINE)).named():
        refuse_repeated(numbers, key="compare.seeds", what="the seed ")
    runs = prod(len(key.texts) for key in keys) * len(numbers)
    if runs > MOST_RUNS:
        raise ConfigError(
            f"the sweep has {runs} runs",
            key=keys[0].key,
            source=COMMAND_LINE,
            allowed=f"at most {MOST_RUNS} runs",
            fix="give fewer values or fewer seeds",
        )
    planned = []
    notes: list[str] = []
    for choice in product(*(range(len(key.texts)) for key in keys)):
        overrides = _overrides(keys, choice)
        experiment = draft.experiment(overrides, notes=notes)
        _check_rate(keys, experiment)
        chosen = [(key, at) for key, at in zip(keys, choice, strict=True) if key.varies]
        texts = tuple(key.texts[at] for key, at in chosen)
        values = tuple(key.values[at] for key, at in chosen)
        label = _label(experiment, varied, texts)
        origins = experiment.origins.with_label(label, [key.key for key in varied], listed=True)
        experiment = experiment.with_origins(origins)
        combination = out / _combination_name(keys, overrides)
        for seed in numbers:
            seeded = experiment.model_copy(update={"seed": seed})
            cell = Cell(label, seed, seeded, combination / f"seed-{seed}")
            planned.append(SweepCell(cell, texts, values))
    log_notes(notes)
    return Sweep(tuple(varied), tuple(planned))


def _check_rate(keys: Sequence[SweptKey], experiment: Experiment) -> None:
    """Refuse a swept training.learning_rate that does not change the runs of an algorithm; one
    value for all may be for the other algorithms of the sweep."""
    several = any(key.key == "algorithm.name" and key.varies for key in keys)
    if any(key.key == KEY and (key.varies or not several) for key in keys):
        check_rate_has_effect(experiment)


def _combination_name(keys: Sequence[SweptKey], overrides: Sequence[str]) -> str:
    """The folder of a combination. Keys with one value are in it too, so that a key that gets a
    second value later keeps its folders; except those that may change when a run is resumed."""
    return folder_name(
        " ".join(
            override
            for key, override in zip(keys, overrides, strict=True)
            if key.varies or not may_change_on_resume(key.key)
        )
    )


def _swept_key(text: str) -> SweptKey:
    """key=a,b,c with its values apart."""
    key, separator, raw = text.partition("=")
    parse_override(text)  # refuses what is not key=value
    texts = split_values(raw)
    if not texts or not all(texts):
        raise ConfigError(
            f"{text!r} has an empty value",
            key=key.strip(),
            source=COMMAND_LINE,
            allowed="values separated by commas, such as training.learning_rate=0.05,0.1,0.2",
            fix="remove the comma that is too many, or add the value",
        )
    values = [parse_override(f"{key}{separator}{value}")[1] for value in texts]
    return SweptKey(key.strip(), tuple(texts), tuple(values))


def split_values(text: str) -> list[str]:
    """Values separated by commas, except inside brackets and quotes."""
    return split_commas(text, quotes="\"'")


def _check_keys(keys: Sequence[SweptKey]) -> None:
    names = [key.key for key in keys]
    for key in keys:
        repeated = [text for i, text in enumerate(key.texts) if key.values[i] in key.values[:i]]
        if key.key == "seed":
            problem, fix = "seeds are not a setting of a sweep", "write --seeds 0-4 instead"
        elif names.count(key.key) > 1:
            problem, fix = f"{key.key} is given twice", f"write {key.key}=a,b,c once"
        elif repeated:
            problem, fix = f"the value {repeated[0]} is given twice", "remove one of them"
        else:
            continue
        raise ConfigError(
            problem,
            key=key.key,
            source=COMMAND_LINE,
            allowed="each setting once, with different values",
            fix=fix,
        )
    if not any(key.varies for key in keys):
        raise ConfigError(
            "no setting has more than one value",
            key="key=a,b,c",
            source=COMMAND_LINE,
            allowed="at least one setting with two values or more",
            fix="write for example training.learning_rate=0.05,0.1, or use `fedhp run`",
        )


def _overrides(keys: Sequence[SweptKey], choice: Sequence[int]) -> list[str]:
    return [f"{key.key}={key.texts[position]}" for key, position in zip(keys, choice, strict=True)]


def _label(experiment: Experiment, keys: Sequence[SweptKey], texts: Sequence[str]) -> str:
    """The combination as `fedhp compare` writes a variant: fedhp:deadline=fill:data.skew=0.8."""
    parts = [
        f"{key.key.removeprefix('algorithm.')}={text}"
        for key, text in zip(keys, texts, strict=True)
        if key.key != "algorithm.name"
    ]
    return ":".join([experiment.algorithm.name, *parts])
