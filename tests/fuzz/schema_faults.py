"""Faults generated from the schema: wrong values of every key, and unknown keys."""

from __future__ import annotations

import inspect
import math
import random
import string
import types
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedhp.config import AbsenceConfig, ComponentConfig, DeviceConfig, Experiment
from fuzz.fault import Fault, Tables

# Names that look like the branches of a union in an error's location.
AWKWARD = ("int", "list", "dict_of", "literal", "function-after", "a[0]", "none", "tuple", "name_")


def schema_faults() -> Iterator[Fault]:
    """Wrong types and ranges for every key; scalars and lists for every section."""
    for path, field in leaves(Experiment):
        for value in bad_values(Annotated[field.annotation, *field.metadata, None]):
            yield Fault(f"{path} = {value!r:.40}", {path: value}, (path,))
        if field.annotation is str and any("pattern" in repr(m) for m in field.metadata):
            for value in ("gpu", "cuda:", "cuda:-1", "CPU", "cpu\n", " cpu"):
                yield Fault(f"{path} = {value!r}", {path: value}, (path,))
    for path, _ in sections(Experiment):
        for value in (3, -1.5, "text", "", True, [], [1, 2], [{}], math.nan):
            yield Fault(f"section {path} = {value!r}", {path: value}, (path,))
    for nested, kind in (("world.device.mine", DeviceConfig), ("world.away", AbsenceConfig)):
        yield from nested_faults(nested, kind)


def nested_faults(nested: str, kind: type[BaseModel]) -> Iterator[Fault]:
    """Tables inside lists and tables of tables."""
    complete: Tables = {"step_time": 0.1} if kind is DeviceConfig else {"worker": 1, "first": 2}
    complete |= {} if kind is DeviceConfig else {"last": 3}
    wrap: Callable[[Any], Any] = (lambda x: x) if kind is DeviceConfig else (lambda x: [x])
    key = nested if kind is DeviceConfig else f"{nested}.0"
    for name, field in kind.model_fields.items():
        for value in bad_values(Annotated[field.annotation, *field.metadata, None]):
            broken = {**complete, name: value}
            yield Fault(f"{key}.{name} = {value!r:.40}", {nested: wrap(broken)}, (f"{key}.{name}",))
        if field.is_required():
            missing = {key: value for key, value in complete.items() if key != name}
            yield Fault(f"{key} without {name}", {nested: wrap(missing)}, (f"{key}.{name}",))
    for typo in ("steptime", "int", "form", "list_"):
        yield Fault(f"{key}.{typo}", {nested: wrap({**complete, typo: 1})}, (f"{key}.{typo}",))
    for value in (3, "x", True):
        yield Fault(f"{key} = {value!r}", {nested: wrap(value)}, (key,))


def sections(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Every section of the schema with its dotted key."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if inspect.isclass(kind) and issubclass(kind, BaseModel):
            yield prefix + name, kind
            yield from sections(kind, f"{prefix}{name}.")


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every key that holds a value."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if inspect.isclass(kind) and issubclass(kind, BaseModel):
            yield from leaves(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, field


def bad_values(annotation: Any) -> list[Any]:
    """Values that this type must refuse."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        notes = [note for part in arguments[1:] for note in _notes(part)]
        inner = arguments[0]
        return [*bad_values(inner), *_out_of_range(inner, notes)]
    if origin in (Union, types.UnionType):
        options = [option for option in arguments if option is not type(None)]
        pools = [bad_values(option) for option in options]
        return [
            value for value in pools[0] if all(_is_in(value, pool) for pool in pools[1:])
        ] + _deep(options)
    if origin is Literal:
        words = [str(option) for option in arguments]
        return [
            "",
            "wrong",
            words[0].upper() + "X",
            words[0][:-1],
            3,
            1.5,
            True,
            [],
            {},
            [words[0]],
        ]
    if origin is dict:
        return [3, 1.5, "text", True, [], [1]] + [{"k": v} for v in bad_values(arguments[1])]
    if "Sequence" in str(origin) or origin in (list, tuple):
        inner = arguments[0]
        return [3, 1.5, "text", True, {}, {"a": 1}] + [[v] for v in bad_values(inner)]
    simple: dict[Any, list[Any]] = {
        int: ["3", "", "text", 1.5, 2.0, True, [], [1], {}, math.nan, math.inf],
        float: ["0.5", "", "text", True, [], [0.5], {}, math.nan, math.inf, -math.inf, 10**400],
        bool: ["true", "", 0, 1, 0.0, [], {}, "no"],
        str: [3, 1.5, True, [], ["text"], {}, {"a": 1}],
    }
    return list(simple.get(annotation, []))


def _deep(options: list[Any]) -> list[Any]:
    """Faults inside the members of a union that are lists or tables."""
    values: list[Any] = []
    for option in options:
        if get_origin(option) is dict:
            values += [{"laptop": v} for v in bad_values(get_args(option)[1])]
        elif get_origin(option) is list:
            values += [[v] for v in bad_values(get_args(option)[0])]
    return values


def _is_in(value: Any, pool: list[Any]) -> bool:
    return any(value is other or (type(value) is type(other) and value == other) for other in pool)


def _notes(part: Any) -> list[Any]:
    return list(part.metadata) if isinstance(part, FieldInfo) else [part]


def _out_of_range(kind: Any, notes: list[Any]) -> list[Any]:
    whole = kind is int
    values: list[Any] = []
    for note in notes:
        limit: Any = next(
            (getattr(note, n) for n in ("ge", "gt", "le", "lt") if hasattr(note, n)), 0
        )
        if isinstance(note, Ge):
            values += [limit - 1 if whole else limit - max(1e-9, abs(limit) * 1e-3), -(10**12)]
        elif isinstance(note, Gt):
            values += [limit, limit - 1, -5]
        elif isinstance(note, Le):
            values += [limit + 1 if whole else limit * 1.001, 10**19, 10**300]
        elif isinstance(note, Lt):
            values += [limit, limit + 1, 10**30]
        elif isinstance(note, MinLen):
            values += [""] if kind is str else [[]]
        elif isinstance(note, MaxLen):
            values += [[1] * (note.max_length + 1)]
    return values


def unknown_keys(rng: random.Random) -> Iterator[Fault]:
    """Typos of real keys at every level, and names that look like branches of unions."""
    levels: list[tuple[str, type[BaseModel]]] = [("", Experiment)]
    levels += [(f"{path}.", kind) for path, kind in sections(Experiment)]
    for prefix, kind in levels:
        if kind is ComponentConfig:
            continue
        names = list(kind.model_fields)
        for name in rng.sample(names, min(len(names), 6)):
            typo = misspelt(name, rng)
            if typo not in names:
                value = rng.choice([1, 0.5, "text", True, [1], {"a": 1}])
                yield Fault(f"unknown {prefix}{typo}", {prefix + typo: value}, (prefix + typo,))
        for name in AWKWARD:
            yield Fault(f"unknown {prefix}{name}", {prefix + name: 1}, (prefix + name,))


def misspelt(name: str, rng: random.Random) -> str:
    """A name with a typo."""
    position = rng.randrange(len(name))
    letter = rng.choice(string.ascii_lowercase)
    return rng.choice(
        [
            name[:position] + name[position + 1 :] or "x",
            name[:position] + letter + name[position:],
            name[:position] + letter + name[position + 1 :],
            name.upper(),
            name.replace("_", "-") + "s",
            name[::-1],
        ]
    )
