"""Where the settings of an experiment come from: a file, the command line, a run of a campaign.

They travel with the experiment. A check raises an error with the key of the wrong setting; named()
adds, at the border, where that setting was given.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedhp.errors import ConfigError, DataError
from fedhp.tables import COMMAND_LINE


def covers(given: str, key: str) -> bool:
    """Whether whoever gives the first key gives the second one: itself, or the table it is in."""
    return f"{key}.".startswith(f"{given}.")


@dataclass(frozen=True, slots=True)
class Origins:
    """Where an experiment was read, and which of its settings were given elsewhere.

    All are equal: the same experiment may be read in several places.
    """

    name: str = field(default="", compare=False)  # as errors call the file or record
    file: str = field(default="", compare=False)  # beside it own parts are looked for
    overrides: Mapping[str, str] = field(default_factory=dict, compare=False)
    label: str = field(default="", compare=False)  # of a campaign's run: "fedhp:deadline=fill"
    labeled: tuple[str, ...] = field(default=(), compare=False)  # the keys that the label sets
    listed: bool = field(default=False, compare=False)  # the label is on the command line

    @classmethod
    def of_file(cls, path: str | Path) -> Origins:
        return cls(str(path), str(path))

    @property
    def folders(self) -> tuple[str, str]:
        """Where the user's own parts are looked for, the last folder first."""
        folder = str(Path(self.file).resolve().parent) if self.file else os.getcwd()
        return folder, os.getcwd()

    def with_overrides(self, overrides: Iterable[str]) -> Origins:
        """Those of the same experiment with these key=value on the command line."""
        given = (override.partition("=") for override in overrides)
        texts = {key.strip(): value.strip() for key, _, value in given}
        return replace(self, overrides={**self.overrides, **texts})

    def with_label(self, label: str, keys: Iterable[str], *, listed: bool) -> Origins:
        """Those of a run of a campaign, whose label sets these keys."""
        return replace(self, label=label, labeled=tuple(keys), listed=listed)

    @property
    def unlabeled(self) -> Origins:
        """Those of the experiment of the campaign."""
        return replace(self, label="", labeled=())

    def of(self, *keys: str, others: Iterable[str] = ()) -> str:
        """Where the first of these settings was given; others: those that the value depends on."""
        labeled = ", ".join(filter(None, [self.name, self.label]))
        if any(covers(given, key) for given in self.labeled for key in keys):
            return f"{COMMAND_LINE}, {self.label}" if self.listed and self.name else labeled
        if any(covers(given, key) for given in self.overrides for key in keys):
            return COMMAND_LINE
        causes = [f"{key}={self.overrides[key]}" for key in others if key in self.overrides]
        if causes and self.name and self.name != COMMAND_LINE:
            return f"{labeled} with {', '.join(causes)} on the command line"
        return labeled

    @contextmanager
    def named(self) -> Iterator[None]:
        """Errors inside say where the wrong value was given, unless they say it already."""
        try:
            yield
        except ConfigError as error:
            if not error.source:
                error.name_source(self.of(error.key, others=error.others))
            raise
        except DataError as error:  # data are the same for all runs of a campaign
            if not error.source:
                error.name_source(self.unlabeled.of(*error.keys))
            raise


UNKNOWN = Origins()  # of settings that no file and no command line has
