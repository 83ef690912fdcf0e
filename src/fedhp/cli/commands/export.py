"""`fedhp export`: a run's tables as files, its world as a trace to replay, its models."""

from __future__ import annotations

import shlex
from pathlib import Path

from fedhp.cli.logs import parse_log, suggest_viewing
from fedhp.cli.parameters import TrustedModules, argument, flag, option, say, trust_modules
from fedhp.errors import combine_errors


def export(
    run: Path = argument(
        "RUN", "A run folder; with --latex or --to also a folder that contains runs.", default=...
    ),
    table: str | None = option(
        "NAME",
        "Export only this table: rounds, workers, links, verdicts, facts, evaluations, "
        "worker_evaluations, final_evaluations, final_worker_evaluations, "
        "participation, test_metrics, worker_test_metrics, class_test_metrics, "
        "own_test_metrics, phases or wall.",
    ),
    out: Path | None = option(
        "PATH",
        "With --table, the file to write: CSV or Parquet, by its ending. Default: CSV on "
        "standard output. Without --table, the folder for all tables. Default: RUN/tables.",
    ),
    trace: Path | None = option(
        "FILE",
        "Write the run's bandwidths and step times, for world.trace; of a network, as "
        "measured, with availability.",
    ),
    latex: Path | None = option(
        "FILE", "Write the comparison of the runs in the folder as LaTeX tables."
    ),
    models: Path | None = option(
        "FOLDER", "Write every worker's model and their mean as safetensors files."
    ),
    trust: TrustedModules = None,
    to: list[str] | None = option(
        "SINK[:PATH]",
        "Write the log for tensorboard, mlflow or wandb (offline), in local files. May be "
        "repeated.",
    ),
    per_worker: bool = flag("With --to: log every worker's numbers too.", "--per-worker"),
) -> None:
    """Write a run's tables, a comparison as LaTeX, its world as a trace, its models, or a log."""
    targets = parse_log(to, per_worker=per_worker, option="--to")
    trust_modules(trust)
    from fedhp.console import Activity
    from fedhp.record.reader import RunReader
    from fedhp.report.capture import replay_settings
    from fedhp.report.export import save_table, save_tables, save_text, table_csv, trace_csv
    from fedhp.report.formatting import count
    from fedhp.report.latex import save_latex
    from fedhp.report.rounds import selection_note

    if targets:
        from fedhp.sinks.follow import write_logs

        with Activity("writing the logs"):
            logged, errors = write_logs(run, targets, per_worker=per_worker)
        if logged:
            sinks = ", ".join(target.sink for target in targets)
            say(f"logged {count(logged, 'run')}: {sinks}")
            suggest_viewing(run, targets)
        if errors:
            raise combine_errors(errors, outcome="could not be logged")
        if all(value is None for value in (table, out, trace, models, latex)):
            return
    if latex is not None:
        say(f"LaTeX: {save_latex(run, latex)}")
        if table is None and out is None and trace is None and models is None:
            return
    with RunReader(run) as reader:
        if models is not None:
            of_run = reader.run_models()
            with Activity("writing the models"):
                files = of_run.save(models)
            number_of_files = count(len(files), "file")
            say(f"models: {models} ({number_of_files}, as of round {of_run.round_index})")
        if trace is not None:
            save_text(trace, trace_csv(reader))
            say(f"trace: {trace}")
            settings = replay_settings(reader, shlex.quote(str(trace)))
            say(f"replay it with: {' '.join(settings)}")
        if table is not None:
            if out is None:
                for part in table_csv(reader, table):
                    print(part, end="")
            else:
                with Activity("writing the table"):
                    file = save_table(reader, table, out)
                say(f"table: {file}")
        elif (trace is None and models is None) or out is not None:
            folder = run / "tables" if out is None else out
            with Activity("writing the tables"):
                files = save_tables(reader, folder)
            say(f"tables: {folder} ({count(len(files), 'file')})")
        else:
            return
        note = selection_note(reader)
        if note and table in (None, "links"):
            say(f"links: {note}", error=True)
