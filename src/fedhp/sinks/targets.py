"""Where logs go: --log and --to, such as mlflow or mlflow:store.db, checked before any work."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from fedhp.errors import ConfigError, install_extra
from fedhp.sinks.base import Sink
from fedhp.tables import COMMAND_LINE

# The sinks: the module of each, and the packages that it needs.
SINKS = {
    "tensorboard": ("fedhp.sinks.tensorboard", ("tensorboard",)),
    "mlflow": ("fedhp.sinks.mlflow", ("mlflow", "sqlalchemy", "alembic")),
    "wandb": ("fedhp.sinks.wandb", ("wandb",)),
}
# What the address of an MLflow store cannot have in its path: some versions decode it.
NOT_IN_STORE = re.compile(r"\?|%[0-9A-Fa-f]{2}")


@dataclass(frozen=True, slots=True)
class LogTarget:
    """A sink, and the path that the user chose for it, if any."""

    sink: str
    path: Path | None = None

    @property
    def text(self) -> str:
        """The target as the option names it."""
        return self.sink if self.path is None else f"{self.sink}:{self.path}"

    def check_folder(self, top: Path) -> None:
        """Refuse a log that cannot be in the folder of the runs."""
        where = str(top.absolute())
        if self.sink == "mlflow" and self.path is None and NOT_IN_STORE.search(where):
            raise ConfigError(
                f"the folder {where!r} has a ? or an encoded character such as %20 in its path, "
                "which the address of an MLflow store cannot have",
                key="mlflow",
                allowed="a folder without them, or mlflow:PATH with a path without them",
                fix="choose another folder for the runs, or write mlflow:PATH",
            )

    def load(self) -> Sink:
        """The sink's module."""
        return cast(Sink, importlib.import_module(SINKS[self.sink][0]))


def parse_targets(texts: Sequence[str], *, option: str = "--log") -> list[LogTarget]:
    """The targets that the option names, once each; their packages must be installed."""
    targets: list[LogTarget] = []
    for text in texts:
        name, separator, path = text.partition(":")
        _check_name(name, text, option=option)
        _check_path(name, path, text, option=option, given=bool(separator))
        _check_packages(name, option=option)
        if any(target.sink == name for target in targets):
            raise ConfigError(
                f"{name!r} is given twice",
                key=option,
                source=_source(option),
                allowed="each of them once",
                fix=f"remove one of the {option} options",
            )
        targets.append(LogTarget(name, Path(path).expanduser().absolute() if path else None))
    return targets


def _check_name(name: str, text: str, *, option: str) -> None:
    if name in SINKS:
        return
    close = difflib.get_close_matches(name, SINKS, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ConfigError(
        f"unknown log {text!r}",
        key=option,
        source=_source(option),
        allowed=f"{', '.join(SINKS)}, or one of them with a path (tensorboard:PATH)",
        fix=f"{hint}write {option} tensorboard, for example",
    )


def _check_path(name: str, path: str, text: str, *, option: str, given: bool) -> None:
    problem = ""
    if given and not path:
        problem = "has no path after the colon"
    elif "://" in path:
        problem = "is an address of the network, and logs are only written to local files"
    elif name == "mlflow" and NOT_IN_STORE.search(str(Path(path).expanduser().absolute())):
        problem = (
            "has a ? or an encoded character such as %20 in its path, which the address of an "
            "MLflow store cannot have"
        )
    elif path and name != "mlflow" and Path(path).expanduser().is_file():
        problem = "is a file, and this log is a folder"
    if problem:
        raise ConfigError(
            f"{text!r} {problem}",
            key=option,
            source=_source(option),
            allowed=f"{name}, or {name}:PATH with a path on this machine",
            fix=f"write {option} {name}, and upload or copy the log later if you want to",
        )


def _check_packages(name: str, *, option: str) -> None:
    missing = [package for package in SINKS[name][1] if not importlib.util.find_spec(package)]
    if missing:
        raise ConfigError(
            f"{name} needs the Python package {missing[0]!r}, which is not installed",
            key=option,
            source=_source(option),
            allowed=f"an installation with the extra {name!r}",
            fix=f"{install_extra(name)}; or remove {option} {name}; "
            f"a finished run can be logged later with fedhp export RUN --to {name}",
        )


def _source(option: str) -> str:
    """Where the option is from: a function of the Python interface has no dashes."""
    return COMMAND_LINE if option.startswith("-") else ""
