"""Named, replaceable parts: algorithms, models, tasks, topologies, data loaders.

A part is a callable with annotated keyword settings, found by a built-in name or by the
dotted path of a user's own ("package.module:Name"). Settings are checked against its
signature before anything runs, and an error names the key.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic_core import PydanticCustomError, PydanticSerializationError, to_json

from fedhp.errors import ConfigError, FedhpError
from fedhp.wording import allowed_at, choices_at, default_at, key_path, names_at


def is_dotted(name: str) -> bool:
    """Whether a name points into a module rather than at a built-in part."""
    return "." in name or ":" in name


def resolve(
    name: str, builtins: Mapping[str, str], *, key: str, source: str = ""
) -> Callable[..., Any]:
    """The callable behind a built-in name or a dotted path."""
    if is_dotted(name):
        return _import(name, key=key, source=source)
    if name in builtins:
        return _import(builtins[name], key=key, source=source)
    close = difflib.get_close_matches(name, builtins, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ConfigError(
        f"there is no {key.split('.')[0]} called {name!r}",
        key=key,
        source=source,
        allowed=", ".join(sorted(builtins)) + ", or the dotted path of your own (module:Name)",
        fix=f"{hint}set {key} to one of these",
    )


def _import(path: str, *, key: str, source: str) -> Callable[..., Any]:
    module_name, separator, attribute = path.partition(":")
    if not separator:
        module_name, _, attribute = path.rpartition(".")
    try:
        importlib.invalidate_caches()
        part = importlib.import_module(module_name)
        for step in attribute.split("."):
            part = getattr(part, step)
    except (Exception, SystemExit) as error:  # a user's module may fail in any way
        raise ConfigError(
            f"cannot import {path!r}: {_words(error)}",
            key=key,
            source=source,
            allowed="module:Name, importable from the current folder or the experiment's folder",
            fix="check the spelling, and run from the folder that holds the module",
        ) from error
    if not callable(part):
        raise ConfigError(
            f"{path!r} is a {type(part).__name__}, not something that can be called",
            key=key,
            source=source,
            allowed="a class or a function",
            fix=f"point {key} at the class or function itself",
        )
    try:
        _parameters(part)
    except Exception as error:  # a class written in C, or annotations that name nothing
        raise ConfigError(
            f"the parameters of {path!r} cannot be read: {_words(error)}",
            key=key,
            source=source,
            allowed="a class or function written in Python, with types that can be resolved",
            fix="import the types it names outside TYPE_CHECKING, or wrap it in a function",
        ) from error
    return part


def make_importable(*folders: str) -> None:
    """Let dotted paths find modules in these folders."""
    for folder in folders:
        if folder not in sys.path:
            sys.path.insert(0, folder)


def check_settings(
    part: Callable[..., Any], settings: Mapping[str, Any], *, prefix: str, source: str = ""
) -> dict[str, Any]:
    """Settings validated and converted against the part's keyword-only parameters."""
    try:
        schema = _settings_model(part)
        checked = _validated(schema, settings)
    except ValidationError as error:
        raise from_validation(error, schema, prefix=prefix, source=source) from None
    except Exception as error:  # pydantic refuses odd annotations in many ways
        raise ConfigError(
            f"the settings of {_title(part)} cannot be checked: {_words(error)}",
            key=f"{prefix}.name",
            source=source,
            allowed="keyword-only parameters with types that pydantic knows",
            fix="give its parameters plain types: int, float, str, bool, lists and tables of them",
        ) from error
    return {name: getattr(checked, name) for name in settings}


def _validated(schema: type[BaseModel], settings: Mapping[str, Any]) -> BaseModel:
    """As strict as TOML is: "1" and true are no numbers, but a list may become a tuple."""
    try:
        text = to_json(dict(settings), inf_nan_mode="constants")
    except PydanticSerializationError:  # objects of Python's own, given through the API
        return schema.model_validate(dict(settings))
    return schema.model_validate_json(text, strict=True)


def build(
    part: Callable[..., Any],
    *arguments: Any,
    settings: Mapping[str, Any],
    prefix: str,
    source: str = "",
) -> Any:
    """Call a part with positional context and checked settings."""
    checked = check_settings(part, settings, prefix=prefix, source=source)
    try:
        return part(*arguments, **checked)
    except ConfigError as error:
        raise (error if error.source else error.said_of(source)) from None
    except (FedhpError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        told = ", ".join(f"{name} = {_short(value)}" for name, value in settings.items())
        raise ConfigError(
            f"{_title(part)} fails with {told or 'its default settings'}: {_words(error)}",
            key=f"{prefix}.name",
            source=source,
            allowed=_wanted(part),
            fix=f"change the settings in [{prefix}], or mend {_title(part)} if it is yours",
        ) from error


def defaults(part: Callable[..., Any]) -> dict[str, Any]:
    """The settings of a part and their default values (parameters without one left out)."""
    return {
        name: parameter.default
        for name, parameter in _parameters(part).items()
        if parameter.default is not inspect.Parameter.empty
    }


def _title(part: Callable[..., Any]) -> str:
    return getattr(part, "__qualname__", repr(part))


def _words(error: BaseException) -> str:
    """The kind of an error and its message on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _wanted(part: Callable[..., Any]) -> str:
    names = ", ".join(_parameters(part))
    return f"values it can work with for: {names}" if names else "nothing: it takes no settings"


def _parameters(part: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    if inspect.isclass(part) and issubclass(part, BaseModel):
        return dict(inspect.signature(part).parameters)
    signature = inspect.signature(part, eval_str=True)
    return {
        name: parameter
        for name, parameter in signature.parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }


def _settings_model(part: Callable[..., Any]) -> type[BaseModel]:
    if inspect.isclass(part) and issubclass(part, BaseModel):
        return part
    fields: dict[str, Any] = {}
    for name, parameter in _parameters(part).items():
        annotation = (
            Any if parameter.annotation is inspect.Parameter.empty else parameter.annotation
        )
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[name] = (annotation, default)
    return create_model(
        _title(part), __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=True), **fields
    )


def wrong_setting(key: str, problem: str, *, allowed: str, fix: str) -> PydanticCustomError:
    """What a section's own validator raises, to name the key that is at fault."""
    details: dict[str, Any] = {"key": key, "problem": problem, "allowed": allowed, "fix": fix}
    return PydanticCustomError("setting", "{problem}", details)


def from_validation(
    error: ValidationError, schema: type[BaseModel], *, prefix: str = "", source: str = ""
) -> ConfigError:
    """The first of pydantic's complaints, in the words of this project."""
    complaints = error.errors(include_url=False)
    first = complaints[0]
    path = key_path(schema, first["loc"])
    if first["type"] == "missing" and path[-1].isdigit():
        path = path[:-1]  # a list that is too short
    if first["type"] == "setting":
        context = first["ctx"]
        path = [*path, context["key"]]
        return ConfigError(
            context["problem"],
            key=_dotted(prefix, path),
            source=source,
            allowed=context["allowed"],
            fix=context["fix"],
        )
    key = _dotted(prefix, path)
    value = _short(first.get("input"))
    if first["type"] == "extra_forbidden":
        names = names_at(schema, path[:-1])
        close = difflib.get_close_matches(path[-1], names, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return ConfigError(
            f"unknown key (value {value})",
            key=key,
            source=source,
            allowed=", ".join(sorted(names)) or "nothing: this part takes no settings",
            fix=f"{hint}rename the key or remove it",
        )
    if first["type"] == "missing" and path == key_path(schema, first["loc"]):
        return ConfigError(
            "is required but missing",
            key=key,
            source=source,
            allowed=allowed_at(schema, path),
            fix=f"add {key} = {_example(schema, path) or '...'}",
        )
    # A union complains once per member: all of them together say what is allowed.
    messages = [each["msg"] for each in complaints if key_path(schema, each["loc"]) == path]
    told = " or ".join(dict.fromkeys(_plain(message) for message in messages))
    return ConfigError(
        f"the value {value} is wrong",
        key=key,
        source=source,
        allowed=allowed_at(schema, path) or told,
        fix=_mend(schema, path, key, first.get("input")),
    )


def _mend(schema: type[BaseModel], path: list[str], key: str, value: Any) -> str:
    names = names_at(schema, path)
    if names and not isinstance(value, Mapping):
        if "name" in names and isinstance(value, str):
            return f"write {key}.name = {_short(value)}"
        return f"write it as a table: [{key}] on a line of its own, its settings below"
    if isinstance(value, str):
        if value and allowed_at(schema, path).startswith(_unquoted(value)):
            return f"write it without quotes: {key} = {value}"
        close = difflib.get_close_matches(value, choices_at(schema, path), n=1)
        if close:
            return f"did you mean {close[0]!r}? set {key} to a value that is allowed"
    example = _example(schema, path)
    return f"set {key} to a value that is allowed" + (f", for example {example}" if example else "")


def _example(schema: type[BaseModel], path: list[str]) -> str:
    default = default_at(schema, path)
    return _short(default) if isinstance(default, int | float | str) else ""


def _unquoted(value: str) -> tuple[str, ...]:
    """What a text would be without its quotes, in the words of wording.describe."""
    if value in ("true", "false"):
        return ("true or false",)
    try:
        return ("a number", "a whole number") if float(value).is_integer() else ("a number",)
    except (ValueError, OverflowError):
        return ()


def _plain(message: str) -> str:
    """Pydantic's wording with "Input should be" left out."""
    return message.removeprefix("Value error, ").removeprefix("Input should be ")


def _dotted(prefix: str, path: list[str]) -> str:
    return ".".join([prefix, *path] if prefix else path) or "experiment"


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    try:
        text = repr(value)
    except ValueError:  # Python does not print whole numbers of over 4300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."
