"""Named, replaceable components: algorithms, models, tasks, topologies, data loaders.

A component is a callable with annotated keyword-only settings. It has a built-in name, or is the
user's own, named by a dotted path ("package.module:Name"). Its settings are checked against its
signature before anything runs, and an error names the key.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic_core import PydanticSerializationError, to_json

from fedhp import trust
from fedhp.errors import ConfigError, FedhpError, at_user_place
from fedhp.files import is_run_folder
from fedhp.wording import allowed_at, choices_at, default_at, did_you_mean, key_path, names_at

NO_SETTINGS = "nothing: it takes no settings"


def is_dotted(name: str) -> bool:
    """Whether a name is a dotted path, not that of a built-in component."""
    return "." in name or ":" in name


def resolve(name: str, builtins: Mapping[str, str], *, key: str) -> Callable[..., Any]:
    check_name(name, builtins, key=key)
    if not is_dotted(name):
        return _import(builtins[name], key=key)
    limit = trust.limit()
    if limit is not None:
        limit.check_path(name, key=key)
    part = _import(name, key=key)
    if limit is not None:
        limit.check_part(part, name, key=key)
    return part


def check_name(name: str, builtins: Mapping[str, object], *, key: str) -> None:
    """Refuse a name that is neither built in nor a dotted path; nothing is imported."""
    if is_dotted(name) or name in builtins:
        return
    kind = key.split(".")[0]
    raise ConfigError(
        f"unknown {'data set' if kind == 'data' else kind} {name!r}",
        key=key,
        allowed=", ".join(sorted(builtins)) + ", or a dotted path to your own (module:Name)",
        fix=f"{did_you_mean(name, builtins)}set {key} to one of these",
    )


def _import(path: str, *, key: str) -> Callable[..., Any]:
    module_name, attribute = trust.split_path(path)
    try:
        importlib.invalidate_caches()
        component = importlib.import_module(module_name)
        for step in attribute.split("."):
            component = getattr(component, step)
    except (Exception, SystemExit) as error:  # the user's module may fail in any way
        raise ConfigError(
            f"cannot import {path!r}: {_error_text(error)}{at_user_place(error)}",
            key=key,
            allowed="module:Name, importable from the current folder or the experiment's folder",
            fix="check the spelling, and run from the folder that holds the module",
        ) from error
    if not callable(component):
        raise ConfigError(
            f"{path!r} is a {type(component).__name__}, which cannot be called",
            key=key,
            allowed="a class or a function",
            fix=f"set {key} to the class or function itself",
        )
    try:
        _parameters(component)
    except Exception as error:  # a class written in C, or annotations that cannot be resolved
        raise ConfigError(
            f"the parameters of {path!r} cannot be read: {_error_text(error)}",
            key=key,
            allowed="a class or function written in Python, with annotations that can be resolved",
            fix="import the annotated types outside TYPE_CHECKING, or wrap it in a function",
        ) from error
    return component


_own_folders: set[str] = set()  # that make_importable has added


def make_importable(*folders: str) -> None:
    """Add these folders to the import path, for dotted paths; the last one is looked at first.

    They come after the installed modules, which no file there replaces. A run folder is left out:
    what lies there may come from somebody else.
    """
    for folder in folders:
        if folder in sys.path or is_run_folder(Path(folder)):
            continue
        places = (place for place, known in enumerate(sys.path) if known in _own_folders)
        sys.path.insert(next(places, len(sys.path)), folder)
        _own_folders.add(folder)


@contextmanager
def parts_of_record(trusted: Iterable[str] = (), *, named: Iterable[str] = ()) -> Iterator[None]:
    """Inside the block, own parts are those of a record: built-in ones, and those that the user
    trusts (module names) or has named (dotted paths). Only these are imported."""
    modules = (*trusted, *trust.granted())
    trust.check_option(modules)
    paths = frozenset(filter(is_dotted, named))
    if modules or paths:
        make_importable(os.getcwd())
    with trust.limited_to(trust.Trust(trust.load_trust(modules).modules, paths)):
        yield


def check_settings(
    component: Callable[..., Any], settings: Mapping[str, Any], *, prefix: str
) -> dict[str, Any]:
    """The settings, checked against the component's keyword-only parameters and converted."""
    try:
        schema = _settings_model(component)
        # Strict as TOML: "1" and true are not numbers, but a list may become a tuple.
        try:
            text = to_json(dict(settings), inf_nan_mode="constants")
        except PydanticSerializationError:  # Python objects, passed through the API
            checked = schema.model_validate(dict(settings))
        else:
            checked = schema.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise from_validation(error, schema, prefix=prefix) from None
    except Exception as error:  # pydantic rejects unusual annotations in many ways
        raise ConfigError(
            f"the settings of {_title(component)} cannot be checked: {_error_text(error)}",
            key=f"{prefix}.name",
            allowed="keyword-only parameters with types that pydantic supports",
            fix="give its parameters plain types: int, float, str, bool, lists and tables of them",
        ) from error
    return {name: getattr(checked, name) for name in settings}


def check_keys(known: Sequence[str], settings: Mapping[str, Any], *, prefix: str) -> None:
    """Refuse a setting that a component does not have, before the component is imported."""
    fields: dict[str, Any] = dict.fromkeys(known, (Any, None))
    schema = create_model("known", __config__=ConfigDict(extra="forbid"), **fields)
    try:
        schema.model_validate(dict(settings))
    except ValidationError as error:
        raise from_validation(error, schema, prefix=prefix) from None


def build(
    component: Callable[..., Any], *arguments: Any, settings: Mapping[str, Any], prefix: str
) -> Any:
    checked = check_settings(component, settings, prefix=prefix)
    try:
        return component(*arguments, **checked)
    except (FedhpError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        used = ", ".join(f"{name} = {_short(value)}" for name, value in settings.items())
        names = ", ".join(_parameters(component))
        raise ConfigError(
            f"{_title(component)} fails with {used or 'its default settings'}:"
            f" {_error_text(error)}{at_user_place(error)}",
            key=f"{prefix}.name",
            allowed=f"values it can work with for: {names}" if names else NO_SETTINGS,
            fix=f"change the settings in [{prefix}], or correct {_title(component)} if it is yours",
        ) from error


def defaults(component: Callable[..., Any]) -> dict[str, Any]:
    """The settings of a component that have a default, and the defaults."""
    return {
        name: parameter.default
        for name, parameter in _parameters(component).items()
        if parameter.default is not inspect.Parameter.empty
    }


def _title(component: Callable[..., Any]) -> str:
    return getattr(component, "__qualname__", repr(component))


def _error_text(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _parameters(component: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    if inspect.isclass(component) and issubclass(component, BaseModel):
        return dict(inspect.signature(component).parameters)
    signature = inspect.signature(component, eval_str=True)
    return {
        name: parameter
        for name, parameter in signature.parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }


def _settings_model(component: Callable[..., Any]) -> type[BaseModel]:
    if inspect.isclass(component) and issubclass(component, BaseModel):
        return component
    fields: dict[str, Any] = {}
    for name, parameter in _parameters(component).items():
        given = (parameter.annotation, parameter.default)
        fields[name] = tuple(
            default if value is inspect.Parameter.empty else value
            for value, default in zip(given, (Any, ...), strict=True)
        )
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    return create_model(_title(component), __config__=config, **fields)


def from_validation(
    error: ValidationError, schema: type[BaseModel], *, prefix: str = ""
) -> ConfigError:
    details = error.errors(include_url=False)
    first = details[0]
    path = key_path(schema, first["loc"])
    if first["type"] == "missing" and path[-1].isdigit():
        path = path[:-1]  # a list that is too short
    key = ".".join([prefix, *path] if prefix else path) or "experiment"
    value = _short(first.get("input"))
    if first["type"] == "extra_forbidden":
        names = names_at(schema, path[:-1])
        return ConfigError(
            f"unknown key (value {value})",
            key=key,
            allowed=", ".join(sorted(names)) or NO_SETTINGS,
            fix=f"{did_you_mean(path[-1], names)}rename the key or remove it",
        )
    if first["type"] == "missing" and path == key_path(schema, first["loc"]):
        return ConfigError(
            "is required but missing",
            key=key,
            allowed=allowed_at(schema, path),
            fix=f"add {key} = {_example(schema, path) or '...'}",
        )
    # A union has one error per member: together they say what is allowed.
    messages = [detail["msg"] for detail in details if key_path(schema, detail["loc"]) == path]
    plain = (m.removeprefix("Value error, ").removeprefix("Input should be ") for m in messages)
    expected = " or ".join(dict.fromkeys(plain))
    return ConfigError(
        f"invalid value {value}",
        key=key,
        allowed=allowed_at(schema, path) or expected,
        fix=_fix(schema, path, key, first.get("input")),
    )


def _fix(schema: type[BaseModel], path: list[str], key: str, value: Any) -> str:
    names, example = names_at(schema, path), _example(schema, path)
    if names and not isinstance(value, Mapping) and not example:  # a table and nothing else
        if "name" in names and isinstance(value, str):
            return f"write {key}.name = {_short(value)}"
        return f"write it as a table: a line [{key}] with its settings below"
    if isinstance(value, str):
        if value and allowed_at(schema, path).startswith(_unquoted(value)):
            return f"write it without quotes: {key} = {value}"
        if hint := did_you_mean(value, choices_at(schema, path)):
            return f"{hint}set {key} to an allowed value"
    return f"set {key} to an allowed value" + (f", for example {example}" if example else "")


def _example(schema: type[BaseModel], path: list[str]) -> str:
    default = default_at(schema, path)
    return _short(default) if isinstance(default, int | float | str) else ""


def _unquoted(value: str) -> tuple[str, ...]:
    """What a text would be without its quotes, as wording.describe calls it."""
    if value in ("true", "false"):
        return ("true or false",)
    try:
        return ("a number", "a whole number") if float(value).is_integer() else ("a number",)
    except (ValueError, OverflowError):
        return ()


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    try:
        text = repr(value)
    except ValueError:  # Python does not print integers of more than 4300 digits
        return "a number with thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."
