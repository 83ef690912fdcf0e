"""The one rule for the user's own parts: which modules a dotted path may name.

An experiment file of this machine's user may name any module. An experiment that another machine
sent, or that lies in a run folder, may name only modules that the user of this machine trusts
(--trust MODULE): a part is code, and its settings come from elsewhere too.
"""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedhp.errors import ConfigError

OPTION = "--trust"


def split_path(path: str) -> tuple[str, str]:
    """The module and the attribute of a dotted path: module:Name, or module.Name."""
    module, separator, attribute = path.partition(":")
    if not separator:
        module, _, attribute = path.rpartition(".")
    return module, attribute


@dataclass(frozen=True, slots=True)
class TrustedModule:
    """A module that an operator trusts, and the file that was read."""

    name: str
    file: Path | None  # None: built into the interpreter
    sha256: str


@dataclass(frozen=True, slots=True)
class Trust:
    """The modules whose parts an experiment from elsewhere may use; without any, none."""

    modules: tuple[TrustedModule, ...] = ()
    named: frozenset[str] = frozenset()  # dotted paths that the user of this machine wrote

    def check_path(self, path: str, *, key: str) -> None:
        """Refuse a dotted path outside the trusted modules; nothing is imported for that."""
        module, _ = split_path(path)
        if path not in self.named and module not in self._names():
            raise self._refused(
                f"{path!r} is not a built-in part, and this machine does not trust "
                f"the module {module!r}",
                module=module,
                key=key,
            )

    def check_part(self, part: Any, path: str, *, key: str) -> None:
        """Refuse what a trusted module only imported, such as its_module:shutil.rmtree."""
        home = home_of(part)
        if path not in self.named and home not in self._names():
            raise self._refused(
                f"{path!r} is defined in the module {home!r}, which this machine does not trust",
                module=home,
                key=key,
            )

    def _names(self) -> frozenset[str]:
        return frozenset(module.name for module in self.modules)

    def _refused(self, problem: str, *, module: str, key: str) -> ConfigError:
        trusted = ", ".join(sorted(self._names())) or "none"
        return ConfigError(
            problem,
            key=key,
            allowed="built-in parts, and functions and classes defined in the modules that this "
            f"machine trusts: {trusted}",
            fix=f"if you have read that module and trust it, add {OPTION} {module}; "
            "otherwise ask whoever wrote the experiment",
        )


NO_TRUST = Trust()


def home_of(part: Any) -> str:
    """The module in which a function or class is defined; empty if it does not say so."""
    home = getattr(part, "__module__", None)
    return home if isinstance(home, str) else ""


def check_option(names: Iterable[str]) -> None:
    """Refuse modules that nobody should offer to another machine."""
    for name in names:
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top == "fedhp":
            raise ConfigError(
                f"{name!r} is part of {'fedhp' if top == 'fedhp' else 'Python'}",
                key=OPTION,
                allowed="your own modules",
                fix=f"built-in parts need no trust: remove {OPTION} {name}",
            )


def load_trust(names: Iterable[str]) -> Trust:
    """Import the modules that the operator trusts; their files are hashed before."""
    return Trust(tuple(_load(name) for name in dict.fromkeys(names)))


def _load(name: str) -> TrustedModule:
    try:
        importlib.invalidate_caches()
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ImportError("it was not found")
        file = Path(spec.origin) if spec.has_location and spec.origin else None
        digest = "" if file is None else hashlib.sha256(file.read_bytes()).hexdigest()
        importlib.import_module(name)
    except (Exception, SystemExit) as error:  # the user's module may fail in any way
        raise ConfigError(
            f"the module {name!r} cannot be imported: {type(error).__name__}: {error}",
            key=OPTION,
            allowed="a Python module, importable from the current folder",
            fix="check the spelling, and run from the folder that holds the module",
        ) from error
    return TrustedModule(name, file, digest)


_limit: contextvars.ContextVar[Trust | None] = contextvars.ContextVar("trust", default=None)


@contextlib.contextmanager
def limited_to(trust: Trust) -> Iterator[None]:
    """Inside the block, dotted paths must be trusted; every lookup of a part asks."""
    token = _limit.set(trust)
    try:
        yield
    finally:
        _limit.reset(token)


def limit() -> Trust | None:
    """The trust that limits dotted paths at the moment; None: those of this machine's user."""
    return _limit.get()


_granted: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("granted", default=())


def grant(names: Iterable[str]) -> None:
    """From now on, the modules that the user trusts in experiments of run folders."""
    _granted.set(tuple(names))


def granted() -> tuple[str, ...]:
    return _granted.get()


@contextlib.contextmanager
def granting(names: Iterable[str]) -> Iterator[None]:
    """Inside the block, the user trusts these modules as well."""
    token = _granted.set((*granted(), *names))
    try:
        yield
    finally:
        _granted.reset(token)
