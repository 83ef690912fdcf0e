"""The Python interface: what the commands do, as functions."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedhp.config import Draft, Experiment, load, own_modules, to_tables
from fedhp.console.campaign import run_with_progress
from fedhp.engine.runs.campaign import check_cells, plan_cells, run_cells
from fedhp.engine.runs.run import Run, start_run
from fedhp.record.reader import RunReader
from fedhp.report.explain import explain_text
from fedhp.report.export import export_run
from fedhp.report.show import print_parts, show_parts
from fedhp.sinks.follow import LogFollower, write_logs
from fedhp.sinks.targets import LogTarget, parse_targets
from fedhp.trust import granting
from fedhp.wording import default_at

if TYPE_CHECKING:
    from fedhp.report.pages.reproduction import Reproduction
    from fedhp.report.sweep import SweepResult
    from fedhp.report.tune import TuneResult


RESERVED = ("true", "false", "none", "inf", "nan")  # words that need quotes to be texts


def load_experiment(
    path: str | Path, *overrides: str, trust: Sequence[str] = (), **settings: Any
) -> Experiment:
    """Read an experiment file; overrides as on the command line ("data.skew=0.8").

    A file in a run folder may name own parts only of modules in `trust`.

    Settings may be given by name, sections as dictionaries, which are laid over those of the file:
    load_experiment("demo.toml", seed=3, algorithm={"name": "dpsgd"}, data={"skew": 0.6}).
    """
    named = [text for key, value in settings.items() for text in _overrides(key, value)]
    with granting(trust):
        experiment = load(path, [*overrides, *named])
    # From here on it is the caller's own word, whatever folder the file is in.
    return experiment.with_origins(replace(experiment.origins, file=""))


def make_experiment(tables: dict[str, Any] | None = None) -> Experiment:
    """An experiment from nested dictionaries; other settings have their defaults."""
    return Draft(tables or {}).experiment()


def run(
    experiment: Experiment | str | Path,
    out: str | Path,
    *,
    resume: bool = False,
    log: str | Sequence[str] = (),
    per_worker: bool = False,
) -> RunReader:
    """Run an experiment to its end and open the results.

    `log` names sinks as `--log` does: ["tensorboard", "mlflow:store.db"]; with per_worker, every
    worker's numbers are logged too. So it is in the other functions that run experiments.
    """
    logs = _follower(out, log, per_worker=per_worker)
    started = start(experiment, out, resume=resume)
    with logs:
        for _ in started.rounds():
            pass
    return RunReader(out, trust=own_modules(started.prepared.experiment))


def start(experiment: Experiment | str | Path, out: str | Path, *, resume: bool = False) -> Run:
    """Prepare a run; iterating over its .rounds() runs it, one record per round."""
    loaded = experiment if isinstance(experiment, Experiment) else load(experiment)
    return start_run(loaded, out, resume=resume)


def compare(
    experiment: Experiment | str | Path,
    out: str | Path,
    *,
    algorithms: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    overrides: Sequence[str] = (),
    jobs: int | None = None,
    ray: str | None = None,
    resume: bool = False,
    progress: bool = False,
    log: str | Sequence[str] = (),
    per_worker: bool = False,
) -> list[RunReader]:
    """Run algorithms x seeds in the same worlds, one process per core; return the opened runs.

    `ray` runs them on a Ray cluster instead, as `fedhp compare --ray` does.
    With progress, a live display is shown on standard error.
    If a run fails, the others still run; then the first error is raised.
    """
    logs = _follower(out, log, per_worker=per_worker)
    draft = _draft_of(experiment)
    cells = plan_cells(
        draft, overrides=overrides, algorithms=algorithms, seeds=seeds, out=Path(out)
    )
    check_cells(cells, resume=resume)
    runner = run_with_progress if progress else run_cells
    with logs:
        errors = runner(cells, jobs=jobs, ray=ray)
    if errors:
        raise errors[0]
    return [RunReader(cell.folder, trust=own_modules(cell.experiment)) for cell in cells]


def sweep(
    experiment: Experiment | str | Path,
    out: str | Path,
    settings: Mapping[str, Any] | Sequence[str],
    *,
    seeds: Sequence[int] | None = None,
    jobs: int | None = None,
    ray: str | None = None,
    resume: bool = False,
    progress: bool = False,
    figures: bool = True,
    log: str | Sequence[str] = (),
    per_worker: bool = False,
) -> SweepResult:
    """Run every combination of settings with every seed, as `fedhp sweep` does; its results.

    The settings are {"training.learning_rate": [0.05, 0.1], "data.skew": 0.5}, where a list has the
    values to try, or texts as on the command line: ["training.learning_rate=0.05,0.1"].
    The table, the numbers and the figure are written to `out`. If a run fails, the others still
    run; then the first error is raised.
    """
    from fedhp.engine.runs.sweep import plan_sweep
    from fedhp.report.figures.sweep import save_sweep
    from fedhp.report.sweep import read_sweep

    logs = _follower(out, log, per_worker=per_worker)
    draft = _draft_of(experiment)
    texts = _swept_texts(settings) if isinstance(settings, Mapping) else list(settings)
    plan = plan_sweep(draft, settings=texts, seeds=seeds, out=Path(out))
    check_cells(plan.cells, resume=resume)
    runner = run_with_progress if progress else run_cells
    with logs:
        errors = runner(plan.cells, jobs=jobs, ray=ray)
    result = read_sweep(plan)
    save_sweep(result, Path(out), figures=figures)
    if errors:
        raise errors[0]
    return result


def tune(
    experiment: Experiment | str | Path,
    out: str | Path,
    *,
    algorithms: Sequence[str] | None = None,
    budget: int = 20,
    target: float | None = None,
    tuning_seeds: Sequence[int] = (0, 1, 2),
    seeds: Sequence[int] = (6, 7, 8),
    overrides: Sequence[str] = (),
    jobs: int | None = None,
    ray: str | None = None,
    resume: bool = False,
    progress: bool = False,
    figures: bool = True,
    log: str | Sequence[str] = (),
    per_worker: bool = False,
) -> TuneResult:
    """Tune algorithms with an equal budget, then compare them on held-out seeds: `fedhp tune`.

    An entry of `algorithms` fixes settings ("adpsgd:overlap=true") or gives ranges
    ("adpsgd:steps=5..50"). The table, the numbers and the figure are written to `out`. If a run of
    the comparison fails, the others still run; then the first error is raised.
    """
    from fedhp.console.tune import tune_with_progress
    from fedhp.engine.runs.tune import check_tuning, plan_tuning
    from fedhp.engine.runs.tune import tune as search
    from fedhp.report.figures.tune import save_tuning
    from fedhp.report.labels import names_for
    from fedhp.report.tune import TuneResult, trial_words

    logs = _follower(out, log, per_worker=per_worker)
    draft = _draft_of(experiment)
    plan = plan_tuning(
        draft,
        overrides=overrides,
        algorithms=algorithms,
        budget=budget,
        target=target,
        tuning_seeds=tuning_seeds,
        seeds=seeds,
        out=Path(out),
    )
    check_tuning(plan, resume=resume)
    with logs:
        if progress:
            names = names_for(algorithm.label for algorithm in plan.algorithms)
            found, errors = tune_with_progress(
                plan,
                jobs=jobs,
                ray=ray,
                describe=lambda trial, best: trial_words(
                    trial, name=names[trial.algorithm], target=plan.target, best=best
                ),
                short_labels=names,
            )
        else:
            found, errors = search(
                plan, run=lambda batch: run_cells(batch.cells, jobs=jobs, ray=ray)
            )
    result = TuneResult(found)
    save_tuning(result, figures=figures)
    if errors:
        raise errors[0]
    return result


def open_run(folder: str | Path, *, trust: Sequence[str] = ()) -> RunReader:
    """Open a run folder to read its tables, arrays and models.

    A model of your own is built only if its module is one of `trust`: a folder may come from
    somebody else, and nothing that it names is imported otherwise.
    """
    return RunReader(folder, trust=trust)


def show(run: str | Path, *, round_index: int | None = None, width: int = 120) -> str:
    """The text of `fedhp show`: a run, one of its rounds, or all runs in a folder."""
    from rich.console import Console

    text = io.StringIO()
    print_parts(Console(file=text, highlight=False, width=width), show_parts(run, round_index))
    return text.getvalue()


def explain(run: str | Path, round_index: int | None = None) -> str:
    """The text of `fedhp explain`: what was decided in a round (default: the last), and why."""
    with RunReader(run) as reader:
        reader.check()
        return explain_text(reader, round_index)


def export(
    run: str | Path,
    out: str | Path | None = None,
    *,
    table: str | None = None,
    trace: str | Path | None = None,
    models: str | Path | None = None,
    latex: str | Path | None = None,
    to: str | Sequence[str] = (),
    per_worker: bool = False,
    trust: Sequence[str] = (),
) -> list[Path]:
    """Write tables, a trace or models as `fedhp export` does; returns the files.

    `to` names sinks, such as ["mlflow"], that get the log of the run or runs in the folder. If a
    record cannot be read, the others are still logged; then the first error is raised.

    With `latex`, the comparison of the run or runs in the folder goes to that file.
    All tables go to the folder `out` (default: RUN/tables), a single one to the file `out`; the
    models go to the folder `models`, one safetensors file per worker and one with their mean;
    a model of your own needs its module in `trust`.
    """
    written = []
    if to:
        _, errors = write_logs(Path(run), _targets(to, "to"), per_worker=per_worker)
        if errors:
            raise errors[0]
    if latex is not None:
        from fedhp.report.latex import save_latex

        written.append(save_latex(run, latex))
    nothing_else = out is None and table is None and trace is None and models is None
    if not (nothing_else and (to or latex is not None)):
        written += export_run(run, out, table=table, trace=trace, models=models, trust=trust)
    return written


def report(runs: str | Path | Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the page of `fedhp report` about runs, with its figures and numbers; returns it."""
    from fedhp.report.pages.run_report import report_on

    return report_on(runs, out)[0]


def reproduce(
    figures: str | Sequence[str] = "all",
    *,
    profile: str = "quick",
    out: str | Path | None = None,
    overrides: Sequence[str] = (),
    files: str | Path | None = None,
    sets: Sequence[str] = (),
    jobs: int | None = None,
    progress: bool = False,
    log: str | Sequence[str] = (),
    per_worker: bool = False,
) -> Reproduction:
    """Run the paper's experiments and judge its claims, as `fedhp reproduce` does.

    sets: only these data sets, such as ("cifar10",).
    Finished runs are not repeated. If a run fails, the others still run; then the first error is
    raised.
    """
    from fedhp.engine.runs.suite import check_suite, choose_figures, profile_folder, read_suite
    from fedhp.report.figures.paper import read_figure_texts
    from fedhp.report.pages.reproduction import save_reproduction

    folder = profile_folder(profile, None if out is None else Path(out))
    logs = _follower(folder, log, per_worker=per_worker)
    source = None if files is None else Path(files)
    names = choose_figures([figures] if isinstance(figures, str) else figures, source)
    suite = read_suite(
        names, profile=profile, out=folder, overrides=overrides, folder=source, chosen=sets
    )
    texts = read_figure_texts([figure.name for figure in suite.figures], source)
    suite = check_suite(suite)
    runner = run_with_progress if progress else run_cells
    with logs:
        errors = runner([run.cell for run in suite.cells()], jobs=jobs)
    result = save_reproduction(suite, texts, folder)
    if errors:
        raise errors[0]
    return result


def _follower(out: str | Path, log: str | Sequence[str], *, per_worker: bool) -> LogFollower:
    return LogFollower(Path(out), _targets(log, "log"), per_worker=per_worker)


def _targets(names: str | Sequence[str], option: str) -> list[LogTarget]:
    return parse_targets([names] if isinstance(names, str) else names, option=option)


def _draft_of(experiment: Experiment | str | Path) -> Draft:
    if isinstance(experiment, Experiment):
        return Draft(to_tables(experiment), experiment.origins)
    return Draft.read(experiment)


def _swept_texts(settings: Mapping[str, Any]) -> list[str]:
    """Settings and their values as `fedhp sweep` takes them; a word needs no quotes."""

    def text(value: Any) -> str:
        word = isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w.:-]*", value)
        return value if word and value not in RESERVED else _toml(value)

    return [
        f"{key}={','.join(map(text, value if isinstance(value, list | tuple) else [value]))}"
        for key, value in settings.items()
    ]


def _overrides(key: str, value: Any) -> list[str]:
    """A setting given by name as overrides: a table becomes one for each of its keys.

    A table where other values are possible, as in world.devices, is one value.
    """
    default = default_at(Experiment, key.split("."))
    if isinstance(value, Mapping) and not isinstance(default, list):
        return [
            text for name, inner in value.items() for text in _overrides(f"{key}.{name}", inner)
        ]
    return [f"{key}={_toml(value)}"]


def _toml(value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False)
    if isinstance(value, Mapping):
        items = (f"{json.dumps(str(key))} = {_toml(inner)}" for key, inner in value.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(value, Sequence | np.ndarray):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value)
