"""`fedhp run`: one experiment."""

from __future__ import annotations

import json

from fedhp.cli import parameters as cli
from fedhp.cli.commands.dash import Dash, DashPort, live_page
from fedhp.cli.logs import Log, PerWorker, follow, parse_log, suggest_viewing


def run(
    experiment: cli.ExperimentFile,
    overrides: cli.Overrides = None,
    out: cli.Out = None,
    resume: cli.Resume = False,
    trust: cli.TrustedModules = None,
    as_json: cli.Json = False,
    dash: Dash = False,
    dash_port: DashPort = None,
    log: Log = None,
    per_worker: PerWorker = False,
) -> None:
    """Run one experiment."""
    folder = cli.choose_folder(out, experiment, resume=resume)
    cli.trust_modules(trust)
    settings = cli.load_settings(experiment, overrides or [])
    targets = parse_log(log, per_worker=per_worker)

    from fedhp.console import Activity, CampaignProgress

    with live_page(dash, folder, port=dash_port), cli.redirect_user_prints(as_json):
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
        display = CampaignProgress()
        display.begin(label, settings.rounds, done=done, horizon=horizon)
        with stop, logs, display:
            for record in started.rounds():
                display.update(label, round_event(record, metric))
    with RunReader(folder) as reader:
        summary = reader.summary()
        cost = cost_of(reader)
    if as_json:
        print(json.dumps({"runs": [summary.as_json()], "summary": summarize_runs([summary])}))
    else:
        from fedhp.report.tables import comparison_table

        cli.table_console().print(comparison_table([summary]))
        cli.say(cost)
        cli.say(f"run: {folder}")
        cli.suggest("next:", cli.next_commands(folder, summary.rounds))
        suggest_viewing(folder, logs.working)
