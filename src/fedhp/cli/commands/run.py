"""`fedhp run`: one experiment."""

from __future__ import annotations

import json

from fedhp.cli.commands.dash import Dash, DashPort, live_page
from fedhp.cli.logs import Log, PerWorker, follow, parse_log, suggest_viewing
from fedhp.cli.parameters import (
    ExperimentFile,
    Json,
    Out,
    Overrides,
    Resume,
    TrustedModules,
    choose_folder,
    load_settings,
    next_commands,
    redirect_user_prints,
    say,
    suggest,
    table_console,
    trust_modules,
)


def run(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    out: Out = None,
    resume: Resume = False,
    trust: TrustedModules = None,
    as_json: Json = False,
    dash: Dash = False,
    dash_port: DashPort = None,
    log: Log = None,
    per_worker: PerWorker = False,
) -> None:
    """Run one experiment."""
    folder = choose_folder(out, experiment, resume=resume)
    trust_modules(trust)
    settings = load_settings(experiment, overrides or [])
    targets = parse_log(log, per_worker=per_worker)

    from fedhp.console import Activity, RunProgress

    with live_page(dash, folder, port=dash_port), redirect_user_prints(as_json):
        with Activity("starting") as activity:
            from fedhp.cli.stopping import StopRequest
            from fedhp.engine.runs.job import round_event
            from fedhp.engine.runs.run import start_run
            from fedhp.record.reader import RunReader
            from fedhp.record.statistics import summarize_runs
            from fedhp.report.describe import cost_of

            stop = StopRequest()
            activity.now("preparing the run")
            started = start_run(settings, folder, resume=resume, stop=stop)
        metric = started.prepared.task.metric_name
        label = settings.algorithm.name
        done, horizon = started.rounds_done(), settings.horizon
        logs = follow(folder, targets, per_worker=per_worker)
        progress = RunProgress(label, settings.rounds, done=done, horizon=horizon)
        with stop, logs, progress as display:
            for record in started.rounds():
                display.update(round_event(record, metric))
    with RunReader(folder) as reader:
        summary = reader.summary()
        cost = cost_of(reader)
    if as_json:
        print(json.dumps({"runs": [summary.as_json()], "summary": summarize_runs([summary])}))
    else:
        from fedhp.report.tables import comparison_table

        table_console().print(comparison_table([summary]))
        say(cost)
        say(f"run: {folder}")
        suggest("next:", next_commands(folder, summary.rounds))
        suggest_viewing(folder, logs.working)
