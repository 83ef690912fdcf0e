"""Which errors are due to the command line: they name it as their source, not the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fedhp.errors import ConfigError, DataError, FedhpError
from fedhp.tables import COMMAND_LINE

# Options that set a key of the experiment.
_OPTIONS = {
    "--workers": "workers",
    "--max-workers": "workers",
    "--min-workers": "cluster.min_workers",
}
# Named in the errors about data.
_DATA_KEYS = (
    *("data.path", "data.name", "world.trace"),
    *("world.device_trace", "world.availability_trace"),
)
_NOT_SET = "data.path = not set"


def blame_command_line(error: FedhpError, arguments: Sequence[str]) -> FedhpError:
    """The error with the command line as its source, if the wrong value was given there."""
    if not isinstance(error, ConfigError | DataError):
        return error
    overrides = _overrides(arguments)
    variant = error.source.partition(", ")[2]  # "demo.toml, fedhp:deadline=fill"
    if isinstance(error, DataError):
        keys = [key for key in _DATA_KEYS if f"{key} = " in error.detail.replace(_NOT_SET, "")]
    else:
        keys = [error.key]
        if variant and _sets(variant, error.key):
            listed = any(variant in argument for argument in arguments)
            return error.with_source(f"{COMMAND_LINE}, {variant}") if listed else error
    if any(f"{key}.".startswith(f"{name}.") for key in keys for name in overrides):
        return error.with_source(COMMAND_LINE)
    causes = [f"{key}={value}" for key, value in overrides.items() if f"{key} = " in error.detail]
    if causes and error.source and not error.source.startswith(COMMAND_LINE):
        return error.with_source(f"{error.source} with {', '.join(causes)} on the command line")
    return error


@contextmanager
def blaming(overrides: Sequence[str]) -> Iterator[None]:
    """Errors inside name the overrides as their source, if the wrong value was given there."""
    try:
        yield
    except FedhpError as error:
        raise blame_command_line(error, overrides) from error


def _overrides(arguments: Sequence[str]) -> dict[str, str]:
    """The settings that the arguments give: key=value, --set=key=value, --workers N."""
    overrides = {}
    for position, argument in enumerate(arguments):
        key, separator, value = argument.removeprefix("--set=").partition("=")
        if not separator:
            value = next(iter(arguments[position + 1 :]), "")
        if key in _OPTIONS:
            overrides[_OPTIONS[key]] = value
        elif separator:
            overrides[key.strip()] = value.strip()
    return overrides


def _sets(variant: str, key: str) -> bool:
    """Whether a variant such as fedhp:deadline=fill sets this key."""
    _, *settings = variant.split(":")
    given = [setting.partition("=")[0] for setting in settings]
    keys = ["algorithm.name", *(word if "." in word else f"algorithm.{word}" for word in given)]
    return any(f"{key}.".startswith(f"{word}.") for word in keys)
