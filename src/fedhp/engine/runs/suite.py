"""The paper's figures as one campaign: which runs each figure needs, in a profile.

fedhp/paper/ has one TOML file per figure and one per data set. A run's folder is named for
its experiment, so that figures share it, a changed setting makes a new run, and nothing runs
twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from fedhp.config import Draft, Experiment, log_notes, to_tables
from fedhp.config.origins import Origins
from fedhp.engine.prepare import prepare
from fedhp.engine.runs.campaign import Cell, plan_cells, refuse_seed
from fedhp.engine.runs.run import check_folder, is_finished
from fedhp.engine.trial import try_algorithm
from fedhp.errors import ConfigError, DataMissing
from fedhp.tables import COMMAND_LINE, merge_tables, parse_override, read_toml

PROFILES = ("quick", "standard", "paper")
SET_ORDER = ("emnist", "mnist", "cifar10", "image100")  # in the paper's order; others follow
FIGURES = ("fig1", "fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "tables")
Kind = TypeVar("Kind", bound=BaseModel)
# Settings that never change a number of a simulation.
NOT_COUNTED = ("device", "executors", "memory", "checkpoint", "cluster", "compare")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SetProfile(_Strict):
    """A data set in one profile: its name in the figures, and changed settings."""

    title: str
    note: str = ""  # what was reduced and why, for the report
    experiment: dict[str, Any] = {}


class SetFile(_Strict):
    """paper/sets/NAME.toml."""

    stands_for: str  # the paper's name of the set
    experiment: dict[str, Any]
    quick: SetProfile
    standard: SetProfile
    paper: SetProfile


class FigureProfile(_Strict):
    """The seeds of each data set (none: the set is not in the figure), and changed lists."""

    seeds: dict[str, list[int]]
    algorithms: list[str] | None = None
    skews: list[float] | None = None
    without: dict[str, list[str]] = {}  # data set -> algorithms left out


class FigureFile(_Strict):
    """paper/figN.toml."""

    # For the report, which reads them itself (report/figures/paper.py).
    title: str
    claim: str
    draw: str
    algorithms: list[str]
    skews: list[float]
    quick: FigureProfile
    standard: FigureProfile
    paper: FigureProfile


@dataclass(frozen=True, slots=True)
class PaperSet:
    """A data set of the reproduction, in one profile."""

    key: str
    title: str
    stands_for: str
    note: str
    experiment: Experiment

    @property
    def targets(self) -> tuple[float, ...]:
        """Test accuracies whose time counts, rising."""
        return tuple(sorted(self.experiment.evaluation.targets))


@dataclass(frozen=True, slots=True)
class PaperCell:
    """One run: a data set, a non-IID level, and the campaign's cell (label, seed, folder)."""

    data: str
    skew: float
    cell: Cell

    @property
    def name(self) -> str:
        return f"{self.data} p={self.skew:g} {self.cell.label} seed {self.cell.seed}"


@dataclass(frozen=True, slots=True)
class PaperFigure:
    """A figure and the runs it needs."""

    name: str
    sets: tuple[str, ...]
    skews: tuple[float, ...]
    algorithms: tuple[str, ...]
    cells: tuple[PaperCell, ...]


@dataclass(frozen=True, slots=True)
class Suite:
    """Figures and their runs; `missing` names the data sets that were not found, and why."""

    profile: str
    sets: Mapping[str, PaperSet]
    figures: tuple[PaperFigure, ...]
    missing: Mapping[str, str] = field(default_factory=dict)

    def cells(self) -> list[PaperCell]:
        """Every run once, those of one data set together; without missing data sets."""
        by_folder: dict[Path, PaperCell] = {}
        for figure in self.figures:
            for run in figure.cells:
                if run.data not in self.missing:
                    by_folder.setdefault(run.cell.folder, run)
        order = {key: index for index, key in enumerate(self.sets)}
        return sorted(by_folder.values(), key=lambda run: order[run.data])


def paper_folder() -> Path:
    """Where the figures' files are: in the package, so that they are installed with it."""
    return Path(__file__).parents[2] / "paper"


def figures_in(folder: Path) -> tuple[str, ...]:
    names = tuple(sorted(path.stem for path in folder.glob("*.toml")))
    if not names:
        raise ConfigError(
            f"{folder} has no file of a figure",
            key="--files",
            source=COMMAND_LINE,
            allowed="a folder with fig1.toml, ... and sets/NAME.toml, such as src/fedhp/paper",
            fix="check the path, or omit --files for the paper's own files",
        )
    return names


def profile_folder(profile: str, out: Path | None = None) -> Path:
    """The folder of a profile's runs; refuse a profile that does not exist."""
    if profile not in PROFILES:
        raise ConfigError(
            f"unknown profile {profile!r}",
            key="--profile",
            source=COMMAND_LINE,
            allowed=", ".join(PROFILES),
            fix="write --profile quick",
        )
    return out or Path("runs", f"reproduce-{profile}")


def choose_figures(words: Sequence[str], files: Path | None = None) -> list[str]:
    """The figures that these words name, in the order of the files; "all" names every one."""
    known = FIGURES if files is None else figures_in(files)
    names = [name for word in words for name in (known if word == "all" else (word,))]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(
            f"{unknown[0]!r} is not a figure of {'the paper' if files is None else files}",
            key="fig1 ... fig7 | tables | all",
            source=COMMAND_LINE,
            allowed=f"{', '.join(known)}, all",
            fix="name one or more of these",
        )
    return [name for name in known if name in names]


def read_suite(
    names: Sequence[str],
    *,
    profile: str,
    out: Path,
    overrides: Sequence[str] = (),
    folder: Path | None = None,
    chosen: Sequence[str] = (),
) -> Suite:
    """The suite of these figures; every configuration is checked, dropped settings are logged.

    `chosen` names the data sets to run; none means all. A figure without any of them is left out.
    """
    folder = folder or paper_folder()
    _refuse_fixed(overrides)
    set_files = {path.stem: path for path in sorted((folder / "sets").glob("*.toml"))}
    unknown = [name for name in chosen if name not in set_files]
    if unknown:
        raise ConfigError(
            f"{unknown[0]!r} is not a data set of the figures",
            key="--sets",
            source=COMMAND_LINE,
            allowed=", ".join(set_files),
            fix="name one or more of these, separated by commas",
        )
    notes: dict[str, list[str]] = {key: [] for key in set_files}
    sets = {
        key: _read_set(key, set_files[key], profile, overrides, notes=notes[key])
        for key in dict.fromkeys((*SET_ORDER, *set_files))
        if key in set_files
    }
    read = [
        _read_figure(folder / f"{name}.toml", sets, profile=profile, out=out, chosen=chosen)
        for name in names
    ]
    figures = tuple(figure for figure in read if figure.cells)
    if not figures:
        raise ConfigError(
            f"{', '.join(names)} has no run on {', '.join(chosen) or 'any data set'} in the "
            f"profile {profile}",
            key="--sets",
            source=COMMAND_LINE,
            allowed="data sets that the figures use",
            fix="name other figures or data sets, or omit --sets",
        )
    used = {key for figure in figures for key in figure.sets}
    log_notes(note for key in sets if key in used for note in notes[key])
    return Suite(profile, {key: sets[key] for key in sets if key in used}, figures)


def _refuse_fixed(overrides: Sequence[str]) -> None:
    """Refuse overrides of what the figures vary: the seeds and the non-IID level."""
    refuse_seed(overrides, fix="change the seeds in a copy of the files, and use --files")
    for key in (parse_override(override)[0] for override in overrides):
        if key in ("data", "data.partition", "data.skew"):
            raise ConfigError(
                "cannot be changed: the figures vary data.skew",
                key=key,
                source=COMMAND_LINE,
                allowed="settings other than seed, data.partition and data.skew",
                fix="change skews in a copy of the files and use --files, or use `fedhp compare`",
            )


def _read_set(
    key: str, path: Path, profile: str, overrides: Sequence[str], *, notes: list[str]
) -> PaperSet:
    file = read_checked(SetFile, path)
    settings: SetProfile = getattr(file, profile)
    tables = merge_tables(file.experiment, settings.experiment)
    experiment = Draft(tables, Origins.of_file(path)).experiment(overrides, notes=notes)
    changed = f"changed: {', '.join(overrides)}" if overrides else ""
    note = "; ".join(filter(None, [settings.note, changed]))
    return PaperSet(key, settings.title, file.stands_for, note, experiment)


def _read_figure(
    path: Path, sets: Mapping[str, PaperSet], *, profile: str, out: Path, chosen: Sequence[str]
) -> PaperFigure:
    file = read_checked(FigureFile, path)
    settings: FigureProfile = getattr(file, profile)
    unknown = [key for key in settings.seeds if key not in sets]
    if unknown:
        raise ConfigError(
            f"unknown data set {unknown[0]!r}",
            key=f"{profile}.seeds",
            source=str(path),
            allowed=", ".join(sets),
            fix=f"use one of these, or add sets/{unknown[0]}.toml",
        )
    algorithms = settings.algorithms or file.algorithms
    skews = settings.skews or file.skews
    cells: list[PaperCell] = []
    for key in sets:
        if not settings.seeds.get(key) or (chosen and key not in chosen):
            continue
        without, base = settings.without.get(key, ()), sets[key].experiment
        for skew in skews:
            tables = merge_tables(to_tables(base), {"data": {"skew": skew}})
            planned = plan_cells(
                Draft(tables, replace(base.origins, name=str(path), file=str(path))),
                overrides=(),
                algorithms=[label for label in algorithms if label not in without],
                seeds=settings.seeds[key],
                out=out,
            )
            cells += [PaperCell(key, skew, _in_own_folder(key, skew, c, out)) for c in planned]
    used = dict.fromkeys(run.data for run in cells)
    return PaperFigure(path.stem, tuple(used), tuple(skews), tuple(algorithms), tuple(cells))


def _in_own_folder(key: str, skew: float, cell: Cell, out: Path) -> Cell:
    """The cell with a folder that depends on its experiment alone."""
    tables = {k: v for k, v in to_tables(cell.experiment).items() if k not in NOT_COUNTED}
    content = json.dumps([cell.label, tables], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:10]
    name = f"{cell.folder.parent.name}-seed{cell.seed}-{digest}"
    return Cell(cell.label, cell.seed, cell.experiment, out / "cells" / f"{key}-p{skew:g}" / name)


def check_suite(suite: Suite) -> Suite:
    """Find every mistake before the first run; data sets that are not found become `missing`.

    Every data set with work left is read and its model tried once, and every algorithm once.
    """
    missing: dict[str, str] = {}
    tried: set[str] = set()
    for key in suite.sets:
        for run in (run for run in suite.cells() if run.data == key):
            cell = run.cell
            check_folder(cell.experiment, cell.folder, resume=True)
            if key in missing or (key in tried and cell.label in tried):
                continue
            if is_finished(cell.folder):
                continue  # it can be shown even if its data is not available any more
            tried |= {key, cell.label}
            origins = replace(cell.experiment.origins, name=run.name, file="").unlabeled
            try:
                try_algorithm(prepare(cell.experiment.with_origins(origins)))
            except DataMissing as error:
                missing[key] = f"{error.problem}; {error.allowed}. {error.fix}"
    return replace(suite, missing=missing)


def finished_cells(cells: Iterable[PaperCell]) -> list[PaperCell]:
    return [run for run in cells if is_finished(run.cell.folder)]


def read_checked(kind: type[Kind], path: Path) -> Kind:
    """A TOML file as this model, or a clear error."""
    try:
        return kind.model_validate(read_toml(path))
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            first["msg"],
            key=".".join(map(str, first["loc"])),
            source=str(path),
            allowed="the keys of the other files in its folder",
            fix="compare it with src/fedhp/paper/fig2.toml and sets/mnist.toml",
        ) from None
