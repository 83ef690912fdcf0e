"""The allowed values of a setting in words, from its type: "a whole number from 1 to 100000"."""

from __future__ import annotations

import difflib
import functools
import inspect
import types
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_BOUNDS: dict[type, tuple[str, str]] = {
    Ge: ("ge", " of at least"),
    Gt: ("gt", " above"),
    Le: ("le", ", at most"),
    Lt: ("lt", ", below"),
}
_PLURALS = {
    "a whole number": "whole numbers",
    "a number": "numbers",
    "text": "texts",
    "a table": "tables",
    "a list": "lists",
}


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint at the known word that is most like this one; empty if none is."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]!r}? " if close else ""


def allowed_at(schema: Any, path: Sequence[str]) -> str:
    """The allowed values of the setting at this path of a schema; empty if there is none."""
    field = _at(schema, path)
    return "" if field is None else describe(field)


def default_at(schema: Any, path: Sequence[str]) -> Any:
    """The default of the setting at this path, its own or that of its section; None without one."""
    for depth, name in enumerate(path):
        section = _bare(_at(schema, path[:depth]))
        field = getattr(section, "model_fields", {}).get(name)
        if field is not None and not field.is_required():
            default = field.get_default(call_default_factory=True)
            for inner in path[depth + 1 :]:
                default = getattr(default, inner, None)
            return default
    return None


def names_at(schema: Any, path: Sequence[str]) -> list[str]:
    return list(getattr(_bare(_at(schema, path)), "model_fields", {}))


def choices_at(schema: Any, path: Sequence[str]) -> list[str]:
    """The texts a setting may be, if it is one of a few."""
    return _choices(_at(schema, path))


def key_path(schema: Any, location: Sequence[str | int]) -> list[str]:
    """Pydantic's location of an error as keys, without the branches of unions."""
    path: list[str] = []
    current, branched = schema, False
    for part in location:
        if not branched and _branches(current):
            branched = True
            continue
        path.append(str(part))
        current, branched = _inside(current, str(part)), False
    return path


def describe(annotation: Any) -> str:
    if isinstance(annotation, FieldInfo):
        if annotation.description:
            return annotation.description
        return describe(Annotated[annotation.annotation, *annotation.metadata, None])
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        notes = [note for part in arguments[1:] for note in _notes(part)]
        written = next((n.description for n in arguments[1:] if getattr(n, "description", "")), "")
        return written or describe(arguments[0]) + _range(notes)
    if origin is Literal:
        return " or ".join(repr(option) for option in arguments)
    if origin in (Union, types.UnionType):
        options = [describe(option) for option in arguments if option is not type(None)]
        return " or ".join(dict.fromkeys(options))
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        if annotation.model_config.get("extra") == "allow":
            return f"a table with {', '.join(annotation.model_fields)} and settings"
        return f"a table with the keys {', '.join(annotation.model_fields)}"
    if origin is dict:
        return f"a table of {_several(arguments[1])}"
    if origin is tuple and Ellipsis not in arguments and len(set(arguments)) == 1:
        return f"a list of {len(arguments)} {_several(arguments[0])}"
    if origin is not None and inspect.isclass(origin) and issubclass(origin, Sequence):
        return f"a list of {_several(arguments[0])}"
    return _KINDS.get(annotation, "")


def _several(annotation: Any) -> str:
    one = describe(annotation)
    for kind, kinds in _PLURALS.items():
        if one.startswith(kind):
            rest = one.removeprefix(kind)
            return f"{kinds}, each{rest}" if rest else kinds
    return one


def _notes(part: Any) -> list[Any]:
    return list(part.metadata) if isinstance(part, FieldInfo) else [part]


def _range(notes: list[Any]) -> str:
    words = ""
    least = [note.ge for note in notes if isinstance(note, Ge)]
    most = [note.le for note in notes if isinstance(note, Le)]
    if least and most:
        words = f" from {_figure(least[0])} to {_figure(most[0])}"
        notes = [note for note in notes if not isinstance(note, Ge | Le)]
    for note in notes:
        for kind, (name, text) in _BOUNDS.items():
            if isinstance(note, kind):
                words += f"{text} {_figure(getattr(note, name))}"
        if isinstance(note, MinLen) and note.min_length == 1:
            words += " that is not empty"
        elif isinstance(note, MaxLen):
            words += f", at most {note.max_length} of them"
    return words


def _figure(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _at(schema: Any, path: Sequence[str]) -> Any:
    return functools.reduce(_inside, path, schema)


def _unwrapped(annotation: Any) -> Any:
    """The type of a field, without its notes."""
    if isinstance(annotation, FieldInfo):
        return _unwrapped(annotation.annotation)
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _inside(annotation: Any, part: str) -> Any:
    annotation = _unwrapped(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        inner = [field for option in arguments if (field := _inside(option, part)) is not None]
        return inner[0] if inner else None
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return annotation.model_fields.get(part)
    if origin is dict:
        return arguments[1]
    if inspect.isclass(origin) and issubclass(origin, Sequence) and part.isdigit():
        return arguments[0]
    return None


def _branches(annotation: Any) -> bool:
    """Whether pydantic names the branch it tried: a union of several types, not counting None."""
    annotation = _unwrapped(annotation)
    options = [option for option in get_args(annotation) if option is not type(None)]
    return get_origin(annotation) in (Union, types.UnionType) and len(options) > 1


def _choices(annotation: Any) -> list[str]:
    annotation = _unwrapped(annotation)
    if get_origin(annotation) is Literal:
        return [option for option in get_args(annotation) if isinstance(option, str)]
    return [word for option in get_args(annotation) for word in _choices(option)]


def _bare(annotation: Any) -> Any:
    """The section class of a field, if it has one."""
    annotation = _unwrapped(annotation)
    for option in get_args(annotation):
        if inspect.isclass(option) and issubclass(option, BaseModel):
            return option
    return annotation
