"""Many runs sorted for a report: what may be averaged, and which run speaks for a label.

Runs are compared only if they differ in nothing but algorithm and seed; a label that says more
(dpsgd:training.learning_rate=0.4) may differ in what it says.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedhp.config import FREE_ON_RESUME
from fedhp.errors import RunError
from fedhp.record.reader import RunReader
from fedhp.report.formatting import count, listed
from fedhp.report.groups import FINISHED
from fedhp.report.rounds import check_round
from fedhp.tables import flatten

# What tells the runs of one batch apart, or changes no number that is compared.
FREE = ("algorithm", "seed", "device", "engine", *FREE_ON_RESUME)
FAVOURITE = "fedhp"
NAMED = 3  # settings in the name of a batch
LONGEST = 40  # letters of a value in it


@dataclass(frozen=True, slots=True)
class Entry:
    """One run, as far as sorting needs it."""

    folder: Path
    label: str
    seed: int
    status: str
    rounds: int  # committed
    asynchronous: bool
    metric: str
    algorithm: dict[str, Any]
    settings: dict[str, Any]  # by dotted key

    @property
    def base(self) -> str:
        """The algorithm's name, without the settings of the label."""
        return self.label.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Batch:
    """Runs that may be compared with each other."""

    name: str  # what sets it apart from the others: data.skew = 0.8; empty if it is the only one
    runs: tuple[Entry, ...]

    @property
    def folders(self) -> list[Path]:
        """Where the runs are, label by label in the order of the speakers."""
        order = [run.label for run in self.representative_runs()]
        return [run.folder for run in sorted(self.runs, key=lambda run: order.index(run.label))]

    @property
    def labels(self) -> list[str]:
        """The labels, in the order the runs were given."""
        return list(dict.fromkeys(run.label for run in self.runs))

    def representative_runs(self) -> list[Entry]:
        """One run per label, of one seed where all have it: FedHP, a rival, then the others."""
        first = [self._speaker(label) for label in self.labels]
        first.sort(key=lambda run: (run.label != FAVOURITE, run.base != FAVOURITE))
        rest = first[1:]
        # Beside a round of FedHP's another one with a barrier tells the most.
        rest.sort(key=lambda run: (run.base == first[0].base, run.asynchronous))
        rival = rest[:1]
        return [first[0], *rival, *(run for run in first[1:] if run not in rival)]

    def _speaker(self, label: str) -> Entry:
        shared = set.intersection(
            *({run.seed for run in self.runs if run.label == each} for each in self.labels)
        )
        mine = [run for run in self.runs if run.label == label]
        return min(mine, key=lambda run: (run.status != FINISHED, run.seed not in shared, run.seed))


@dataclass(frozen=True, slots=True)
class Sorted:
    """All runs of a report, and what was left out."""

    batches: tuple[Batch, ...]
    notes: tuple[str, ...]


def sort_runs(folders: Sequence[Path]) -> Sorted:
    """Read what the runs are and put together what belongs together."""
    if not folders:
        raise RunError("there is no run to report on", fix="name at least one run folder")
    places: dict[Path, Path] = {}
    for folder in folders:
        places.setdefault(folder.resolve(), folder)
    entries = [_read(folder) for folder in places.values()]
    begun = [entry for entry in entries if entry.rounds]
    if not begun:
        with RunReader(entries[0].folder) as run:
            check_round(run, None)
    kept, repeats = _without_repeats(_groups(begun))
    notes = []
    if len(begun) < len(entries):
        idle = len(entries) - len(begun)
        notes.append(f"{count(idle, 'run')} without a committed round left out.")
    if repeats:
        others = listed((str(entry.folder) for entry in repeats), most=NAMED)
        notes.append(f"Left out, for another run has the same settings and seed: {others}.")
    names = _names([group[0] for group in kept])
    batches = tuple(Batch(name, tuple(group)) for name, group in zip(names, kept, strict=True))
    return Sorted(batches, tuple(notes))


def _read(folder: Path) -> Entry:
    with RunReader(folder) as run:
        experiment = run.meta("experiment")
        settings = flatten(experiment)
        return Entry(
            folder=folder,
            label=run.meta("label"),
            seed=run.meta("seed"),
            status=run.meta("status"),
            rounds=run.rounds_done,
            asynchronous=bool(run.meta("asynchronous")),
            metric=run.meta("metric"),
            algorithm=experiment["algorithm"],
            settings={k: v for k, v in settings.items() if k.split(".")[0] not in FREE},
        )


def _groups(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Runs of the same settings; a label that stands for two things begins another group."""
    free = {key for entry in entries for key in _said_by(entry.label)}
    kinds: dict[tuple[str, str], list[str]] = {}
    groups: dict[tuple[str, int], list[Entry]] = {}
    for entry in entries:
        shared = _text({k: v for k, v in entry.settings.items() if k not in free}, entry.metric)
        own = _text({k: v for k, v in entry.settings.items() if k in free}, entry.algorithm)
        seen = kinds.setdefault((shared, entry.label), [])
        if own not in seen:
            seen.append(own)
        groups.setdefault((shared, seen.index(own)), []).append(entry)
    return list(groups.values())


def _said_by(label: str) -> list[str]:
    """The settings of the experiment that a label names."""
    keys = [part.partition("=")[0].strip() for part in label.split(":") if "=" in part]
    return [key for key in keys if "." in key]


def _text(*parts: Any) -> str:
    return json.dumps(parts, sort_keys=True, default=str)


def _without_repeats(groups: Iterable[Sequence[Entry]]) -> tuple[list[list[Entry]], list[Entry]]:
    """Of runs with one label and seed the one that came furthest: a seed counts once."""
    kept, repeats = [], []
    for group in groups:
        best: dict[tuple[str, int], Entry] = {}
        for entry in group:
            other = best.setdefault((entry.label, entry.seed), entry)
            if _progress(entry) > _progress(other):
                best[entry.label, entry.seed] = entry
        mine = [entry for entry in group if best[entry.label, entry.seed] is entry]
        repeats += [entry for entry in group if entry not in mine]
        kept.append(mine)
    return kept, repeats


def _progress(entry: Entry) -> tuple[bool, int]:
    return entry.status == FINISHED, entry.rounds


def _names(firsts: Sequence[Entry]) -> list[str]:
    """What sets every group apart: the settings in which the groups differ."""
    if len(firsts) == 1:
        return [""]
    tables = [
        {**first.settings, **{f"algorithm.{k}": v for k, v in first.algorithm.items()}}
        for first in firsts
    ]
    keys = dict.fromkeys(key for table in tables for key in table)
    apart = [key for key in keys if len({_text(table.get(key)) for table in tables}) > 1]
    names = [_name(table, apart) for table in tables]
    return [
        name if names.count(name) == 1 else f"{name} ({names[: place + 1].count(name)})"
        for place, name in enumerate(names)
    ]


def _name(table: Mapping[str, Any], keys: Sequence[str]) -> str:
    parts = [f"{key} = {_value(table[key])}" if key in table else f"no {key}" for key in keys]
    return listed(parts, most=NAMED) or "group"


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
