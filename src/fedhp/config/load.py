"""Reading an experiment: a TOML file or tables, key=value overrides, and what is written again."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedhp.components import from_validation
from fedhp.config import rules
from fedhp.config.origins import UNKNOWN, Origins, covers
from fedhp.config.own_parts import check_origin
from fedhp.config.rules import COMPONENTS, check_targets
from fedhp.config.schema import MOST_ROUNDS, PROFILES, Experiment
from fedhp.errors import ConfigError
from fedhp.tables import (
    COMMAND_LINE,
    flatten,
    merge_tables,
    parse_override,
    pop_key,
    read_toml,
    resolve_paths,
    set_key,
)
from fedhp.wording import choices_at, names_at

LOG = logging.getLogger("fedhp")

# Settings that do not change the results; they may differ when a run is resumed.
FREE_ON_RESUME = ("checkpoint", "cluster", "compare", "executors", "memory", "ray")


@dataclass(frozen=True, slots=True)
class Draft:
    """The tables of an experiment before they are checked, and where they come from."""

    tables: Mapping[str, Any]
    origins: Origins = UNKNOWN

    @classmethod
    def read(cls, path: str | Path) -> Draft:
        return cls(read_toml(path), Origins.of_file(path))

    def experiment(
        self, overrides: Sequence[str] = (), *, notes: list[str] | None = None
    ) -> Experiment:
        """The experiment with these overrides; notes gets a line for settings that are dropped."""
        file = self.origins.file
        folder = Path(file).parent if file else None
        experiment = parse(self.tables, overrides, origins=self.origins, folder=folder, notes=notes)
        with experiment.origins.named():
            check_targets(experiment)
        return experiment


def load(
    path: str | Path, overrides: Sequence[str] = (), *, notes: list[str] | None = None
) -> Experiment:
    """Read an experiment file and apply key=value overrides.

    The notes about dropped settings are logged, or added to the list.
    """
    dropped: list[str] = []
    experiment = Draft.read(path).experiment(overrides, notes=dropped)
    check_origin(experiment)
    dropped += rules.weak_defence(experiment)
    if notes is None:
        log_notes(dropped)
    else:
        notes.extend(dropped)
    return experiment


def log_notes(notes: Iterable[str]) -> None:
    for note in dict.fromkeys(notes):
        LOG.warning("note: %s", note)


def parse(
    tables: Mapping[str, Any],
    overrides: Iterable[str] = (),
    *,
    origins: Origins = UNKNOWN,
    folder: Path | None = None,
    notes: list[str] | None = None,
    stored: bool = False,
) -> Experiment:
    """Validate raw tables and overrides; notes gets a line for settings that were dropped.

    `key=none` unsets a key, unless none is one of its values. stored: the tables are those of a
    record or of another process, which nobody can correct. An earlier version may have accepted
    settings without effect: they are left out.
    """
    overrides = list(overrides)
    tree = merge_tables({}, tables)
    refuse_repeated(overrides)
    changes = [parse_change(override) for override in overrides]
    changed = origins.with_overrides(overrides)
    with changed.named():
        if folder is not None:
            resolve_paths(tree, folder)
        before = merge_tables({}, tree)
        dropped = apply_changes(tree, changes)
        if notes is not None:
            notes.extend(drop.note(origins.name) for drop in dropped)
        resolve_paths(tree, Path.cwd())
        try:
            experiment = _validated(tree, stored=stored)
        except ConfigError as wrong:
            reasons = [drop.note(origins.name) for drop in dropped if wrong.key in drop.settings]
            if reasons:
                wrong.detail = "; ".join([wrong.detail, *reasons])
            given = any(covers(key, wrong.key) for key, _ in changes)
            if given or (changes and _is_valid(before)):
                wrong.name_source(COMMAND_LINE)
            raise
    return experiment.with_origins(changed)


@dataclass(frozen=True, slots=True)
class DroppedSettings:
    change: str  # and what it does: "horizon=5 replaces rounds = 3"
    settings: Mapping[str, Any]
    listed: bool = False  # the settings follow in the note

    def note(self, name: str) -> str:
        settings = ", ".join(f"{key} = {value!r}" for key, value in self.settings.items())
        text = f"{self.change} in {name or 'the experiment'}"
        return f"{text}: {settings}" if self.listed else text


def apply_changes(
    tree: dict[str, Any], changes: Sequence[tuple[str, Any]]
) -> list[DroppedSettings]:
    """Set dotted keys in the tables of an experiment, in place.

    A changed kind (algorithm, partition, ...) drops the settings of the other kind, which are
    returned.
    """
    dropped = _drop_settings_of_other_kinds(tree, changes)
    for key, value in changes:
        if value is not UNSET:
            set_key(tree, key, value)
        elif not pop_key(tree, key)[0] and not _is_known(key):
            set_key(tree, key, "none")  # so that the key is refused as unknown
    return dropped


def _validated(tree: dict[str, Any], *, stored: bool = False) -> Experiment:
    """The experiment of these tables; stored: without the settings that have no effect."""
    while True:
        _fill_in(tree)
        try:
            experiment = Experiment.model_validate(tree)
        except ValidationError as error:
            raise from_validation(error, Experiment) from None
        refused = next((no for rule in rules.RULES for no in rule.refusals(experiment)), None)
        if refused is None:
            return experiment
        if not (stored and refused.idle and pop_key(tree, refused.idle)[0]):
            raise refused


def _fill_in(tree: dict[str, Any]) -> None:
    """What the tables leave open: the rest of a profile, the names of components
    ([algorithm] deadline = "fill" is about the default one), the rounds beside a horizon."""
    world = tree.get("world", {})
    profile = world.get("profile", "paper") if isinstance(world, dict) else None
    if isinstance(profile, str) and profile in PROFILES:
        tree["world"] = merge_tables(PROFILES[profile], world)
    for section in COMPONENTS:
        if isinstance(tree.get(section), dict):
            default = Experiment.model_fields[section].default
            tree[section] = {"name": default.name, **tree[section]}
    if tree.get("horizon") is not None:
        tree.setdefault("rounds", MOST_ROUNDS)


def _is_valid(tree: dict[str, Any]) -> bool:
    try:
        _validated(tree)
    except ConfigError:
        return False
    return True


UNSET: Any = object()  # the value of key=none
# Settings of built-in components for which none is a value.
NONE_IS_A_VALUE = ("algorithm.bound", "algorithm.compression", "model.norm")


def parse_change(override: str) -> tuple[str, Any]:
    """The key and value of an override; the bare word none unsets the key."""
    key, value = parse_override(override)
    bare = override.partition("=")[2].strip() == "none"
    if bare and "none" not in choices_at(Experiment, key.split(".")) and key not in NONE_IS_A_VALUE:
        return key, UNSET
    return key, value


def refuse_repeated(overrides: Sequence[str]) -> None:
    """Refuse overrides of which a later one would silently replace an earlier one."""
    earlier: dict[str, str] = {}
    for override in overrides:
        key = parse_override(override)[0]
        value = override.partition("=")[2].strip()
        for name, other in earlier.items():
            if f"{name}.".startswith(f"{key}."):
                both = f"{name}={other} and {key}={value}"
                raise ConfigError(
                    f"is given twice: {f'{other} and {value}' if name == key else both}",
                    key=name,
                    source=COMMAND_LINE,
                    allowed="each setting once",
                    fix="remove one of the two",
                )
        earlier[key] = value


def _is_known(key: str) -> bool:
    """Whether a key is part of the schema; the settings of a component are checked by itself."""
    *sections, last = key.split(".")
    return sections[:1] in [[name] for name in COMPONENTS] or last in names_at(Experiment, sections)


def to_tables(experiment: Experiment) -> dict[str, Any]:
    """The experiment as plain tables for TOML or JSON; settings that are None are left out."""
    tables = experiment.model_dump(mode="json", exclude_none=True)
    for key in [key for rule in rules.RULES for key in rule.omits(experiment)]:
        pop_key(tables, key)
    return tables


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Settings that differ between two experiments and change the results: (key, old, new)."""
    before, after = flatten(old), flatten(new)
    return [
        (key, before.get(key), after.get(key))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and key.split(".")[0] not in FREE_ON_RESUME
    ]


def _drop_settings_of_other_kinds(
    tree: dict[str, Any], changes: Sequence[tuple[str, Any]]
) -> list[DroppedSettings]:
    """A changed kind does not inherit the settings of another kind.

    The kind is that of a component, a partition, a world profile, ...; a section that is given as
    a whole replaces the one in the file.
    """
    drops = []
    for key, value in changes:
        default = rules.default_of(key)
        old, new = flatten(tree).get(key, default), default if value is UNSET else value
        replaced = [other for rule in rules.RULES for other in rule.replaces(key)]
        for other in () if value is UNSET else replaced:
            there, content = pop_key(tree, other)
            if there and content != rules.default_of(other):
                text = f"{key}={new} replaces {other} = {content!r}"
                drops.append(DroppedSettings(text, {other: content}))
        if old == new:
            continue
        if isinstance(value, Mapping):
            given, what = flatten(value, f"{key}."), "the other settings"
            names = [n for n in flatten(tree) if n.startswith(f"{key}.") and n not in given]
        else:
            left = {**flatten(tree), **{k: None if v is UNSET else v for k, v in changes}}
            change = rules.Change(key, old, new, tree, left)
            names = list(dict.fromkeys(key for rule in rules.RULES for key in rule.drops(change)))
            what = "settings without effect" if key in rules.RECORDINGS else f"settings of {old!r}"
        profile = old if key == "world.profile" else flatten(tree).get("world.profile", "paper")
        changed = {
            name: content
            for name in names
            for there, content in [pop_key(tree, name)]
            if there and content != rules.default_of(name, profile)
        }
        if changed:
            shown = "{...}" if isinstance(value, Mapping) else "none" if new is None else new
            drops.append(DroppedSettings(f"{key}={shown} drops {what}", changed, listed=True))
    return drops
