"""Where logs go: --log and --to, such as mlflow or mlflow:store.db, checked before any work."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from fedhp.errors import ConfigError, install_extra
from fedhp.sinks.base import Sink
from fedhp.tables import COMMAND_LINE
from fedhp.wording import did_you_mean

# The sinks: the module of each, and the packages that it needs.
SINKS = {
    "tensorboard": ("fedhp.sinks.tensorboard", ("tensorboard",)),
    "mlflow": ("fedhp.sinks.mlflow", ("mlflow", "sqlalchemy", "alembic")),
    "wandb": ("fedhp.sinks.wandb", ("wandb",)),
}
# What the address of an MLflow store cannot have in its path: some versions decode it.
NOT_IN_STORE = re.compile(r"\?|%[0-9A-Fa-f]{2}")
UNUSABLE = (
    "? or an encoded character such as %20 in its path, which the address of an MLflow store "
    "cannot have"
)


@dataclass(frozen=True, slots=True)
class LogTarget:
    """A sink, and the path that the user chose for it, if any."""

    sink: str
    path: Path | None = None

    @property
    def text(self) -> str:
        return self.sink if self.path is None else f"{self.sink}:{self.path}"

    def check_folder(self, top: Path) -> None:
        where = str(top.absolute())
        if self.sink == "mlflow" and self.path is None and NOT_IN_STORE.search(where):
            raise ConfigError(
                f"the folder {where!r} has a {UNUSABLE}",
                key="mlflow",
                allowed="a folder without them, or mlflow:PATH with a path without them",
                fix="choose another folder for the runs, or write mlflow:PATH",
            )

    def load(self) -> Sink:
        return cast(Sink, importlib.import_module(SINKS[self.sink][0]))


def parse_targets(texts: Sequence[str], *, option: str = "--log") -> list[LogTarget]:
    """The targets that the option names, once each; their packages must be installed."""
    # A function of the Python interface has no dashes.
    source = COMMAND_LINE if option.startswith("-") else ""
    targets: dict[str, LogTarget] = {}
    for text in texts:
        wrong = _what_is_wrong(text, option, taken=targets)
        if wrong is not None:
            problem, allowed, fix = wrong
            raise ConfigError(problem, key=option, source=source, allowed=allowed, fix=fix)
        name, _, path = text.partition(":")
        targets[name] = LogTarget(name, Path(path).expanduser().absolute() if path else None)
    return list(targets.values())


def _what_is_wrong(text: str, option: str, *, taken: Container[str]) -> tuple[str, str, str] | None:
    """The problem with a target, what is allowed, and the fix."""
    name, separator, path = text.partition(":")
    if name not in SINKS:
        allowed = f"{', '.join(SINKS)}, or one of them with a path (tensorboard:PATH)"
        hint = did_you_mean(name, SINKS)
        return f"unknown log {text!r}", allowed, f"{hint}write {option} tensorboard, for example"
    problem = _wrong_path(name, path, given=bool(separator))
    if problem:
        allowed = f"{name}, or {name}:PATH with a path on this machine"
        fix = f"write {option} {name}, and upload or copy the log later if you want to"
        return f"{text!r} {problem}", allowed, fix
    for package in SINKS[name][1]:
        if not importlib.util.find_spec(package):
            return (
                f"{name} needs the Python package {package!r}, which is not installed",
                f"an installation with the extra {name!r}",
                f"{install_extra(name)}; or remove {option} {name}; "
                f"a finished run can be logged later with fedhp export RUN --to {name}",
            )
    if name in taken:
        fix = f"remove one of the {option} options"
        return f"{name!r} is given twice", "each of them once", fix
    return None


def _wrong_path(name: str, path: str, *, given: bool) -> str:
    if given and not path:
        return "has no path after the colon"
    if "://" in path:
        return "is an address of the network, and logs are only written to local files"
    if name == "mlflow" and NOT_IN_STORE.search(str(Path(path).expanduser().absolute())):
        return f"has a {UNUSABLE}"
    if path and name != "mlflow" and Path(path).expanduser().is_file():
        return "is a file, and this log is a folder"
    return ""
