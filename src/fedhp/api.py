"""The Python interface: load an experiment, run it, iterate over rounds, compare, read results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedhp.config import Experiment, check_targets, load, parse, to_tables
from fedhp.console.campaign import run_with_progress
from fedhp.engine.runs.campaign import check_cells, plan_cells, run_cells
from fedhp.engine.runs.run import Run, start_run
from fedhp.record.reader import RunReader
from fedhp.tables import read_toml


def load_experiment(path: str | Path, *overrides: str, **settings: Any) -> Experiment:
    """Read an experiment file; overrides as on the command line ("data.skew=0.8").

    Top-level settings may be given by name: load_experiment("demo.toml", seed=3).
    """
    named = [f"{key}={_toml(value)}" for key, value in settings.items()]
    return load(path, [*overrides, *named])


def make_experiment(tables: dict[str, Any] | None = None) -> Experiment:
    """An experiment from nested dictionaries; other settings have their defaults."""
    experiment = parse(tables or {})
    check_targets(experiment)
    return experiment


def run(experiment: Experiment | str | Path, out: str | Path, *, resume: bool = False) -> RunReader:
    """Run an experiment to its end and open the results."""
    for _ in start(experiment, out, resume=resume).rounds():
        pass
    return RunReader(out)


def start(experiment: Experiment | str | Path, out: str | Path, *, resume: bool = False) -> Run:
    """Prepare a run; iterating over its .rounds() runs it, one record per round."""
    if isinstance(experiment, Experiment):
        return start_run(experiment, out, resume=resume)
    return start_run(load(experiment), out, resume=resume, source=str(experiment))


def compare(
    experiment: Experiment | str | Path,
    out: str | Path,
    *,
    algorithms: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    overrides: Sequence[str] = (),
    jobs: int | None = None,
    resume: bool = False,
    progress: bool = False,
) -> list[RunReader]:
    """Run algorithms x seeds in the same worlds, one process per core; return the opened runs.

    With progress, a live display is shown on standard error.
    If a run fails, the others still run; then the first error is raised.
    """
    if isinstance(experiment, Experiment):
        tables, source = to_tables(experiment), ""
    else:
        tables, source = read_toml(experiment), str(experiment)
    cells = plan_cells(
        tables,
        overrides=overrides,
        algorithms=algorithms,
        seeds=seeds,
        out=Path(out),
        source=source,
    )
    check_cells(cells, resume=resume, source=source)
    runner = run_with_progress if progress else run_cells
    errors = runner(cells, source=source, jobs=jobs)
    if errors:
        raise errors[0]
    return [RunReader(cell.folder) for cell in cells]


def open_run(folder: str | Path) -> RunReader:
    """Open a run folder to read its tables, arrays and models."""
    return RunReader(folder)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, str) else str(value)
