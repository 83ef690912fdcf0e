"""`fedhp tune`: the best settings of several algorithms, compared on held-out seeds."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from fedhp.cli import parameters as cli
from fedhp.cli.logs import Log, PerWorker, end_of_runs, follow, parse_log

if TYPE_CHECKING:
    from fedhp.report.tune import TuneResult


def tune(
    experiment: cli.ExperimentFile,
    overrides: cli.Overrides = None,
    algorithms: str | None = cli.option(
        "LIST",
        "Algorithms, separated by commas. Settings that are given are fixed, "
        "such as adpsgd:overlap=true, or have a range, such as adpsgd:steps=5..50. "
        "Default: compare.algorithms in the file.",
    ),
    budget: int = cli.option("N", "Trials for each of the algorithms.", default=20),
    target: float | None = cli.option(
        "SHARE",
        "The accuracy that is to be reached soon, such as 0.9. "
        "Default: the highest of evaluation.targets in the file.",
    ),
    tuning_seeds: str = cli.option("LIST", "The seeds of every trial.", default="0-2"),
    seeds: str = cli.option("LIST", "The held-out seeds of the comparison.", default="6-8"),
    out: cli.Out = None,
    resume: cli.Resume = False,
    trust: cli.TrustedModules = None,
    as_json: cli.Json = False,
    jobs: cli.Jobs = None,
    ray: cli.Ray = None,
    figures: bool = cli.option("", "Save the figure.", default=True),
    log: Log = None,
    per_worker: PerWorker = False,
) -> None:
    """Tune algorithms with an equal budget, then compare them on held-out seeds.

    With --resume, finished runs are not repeated; the budget may be increased.
    """
    from fedhp.engine.runs.variants import split_algorithms, split_ranges

    entries = None if algorithms is None else split_algorithms(algorithms)
    labels = None if entries is None else ",".join(split_ranges(entry)[0] for entry in entries)
    cli.trust_modules(trust)
    cli.check_compared(experiment, overrides or [], labels)
    tuned_on = cli.parse_seeds(tuning_seeds, option="--tuning-seeds")
    compared_on = cli.parse_seeds(seeds)
    targets = parse_log(log, per_worker=per_worker)

    from fedhp.console import Activity

    with cli.redirect_user_prints(as_json), Activity("starting") as activity:
        from fedhp.cli.stopping import StopRequest
        from fedhp.config import Draft
        from fedhp.console.tune import tune_with_progress
        from fedhp.engine.runs.tune import Trial, check_tuning, plan_tuning
        from fedhp.report.labels import names_for
        from fedhp.report.tune import TuneResult, trial_words

        plan = plan_tuning(
            Draft.read(experiment),
            overrides=overrides or [],
            algorithms=entries,
            budget=budget,
            target=target,
            tuning_seeds=tuned_on,
            seeds=compared_on,
            out=cli.choose_folder(out, experiment, resume=resume),
        )
        activity.now("checking the settings")
        check_tuning(plan, resume=resume)
        names = names_for(algorithm.label for algorithm in plan.algorithms)

    def describe(trial: Trial, best: bool) -> str:
        return trial_words(trial, name=names[trial.algorithm], target=plan.target, best=best)

    logs = follow(plan.folder, targets, per_worker=per_worker)
    with StopRequest() as stop, logs:
        found, errors = tune_with_progress(
            plan, jobs=jobs, ray=ray, stop=stop, describe=describe, short_labels=names
        )
    _finish(TuneResult(found), as_json=as_json, figures=figures)
    end_of_runs(logs, errors, as_json=as_json)


def _finish(result: TuneResult, *, as_json: bool, figures: bool) -> None:
    from fedhp.console import Activity
    from fedhp.report.figures.tune import save_tuning
    from fedhp.report.tune import tune_table

    with Activity("drawing the figure"):
        picture = save_tuning(result, figures=figures)
    if as_json:
        print(json.dumps(result.as_json()))
        return
    cli.table_console().print(tune_table(result))
    for line in result.verdicts():
        cli.say(line)
    folder = result.found.tuning.folder
    cli.say(f"table, numbers and every trial: {folder} (tune.md, tune.json, trials.csv)")
    if picture is not None:
        cli.say(f"figure: {picture}")
    cli.suggest("the comparison as a page:", [f"fedhp report {shlex.quote(str(folder))}"])
