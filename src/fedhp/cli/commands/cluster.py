"""`fedhp cluster`: start a federation on this machine, and operate any running one."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedhp.cli import parameters as cli
from fedhp.cli.commands.coordinator import InsecureEtcd, LogFormat, Moved, Resume, check_log_format
from fedhp.cli.commands.dash import Dash, DashPort, live_page
from fedhp.cli.commands.verify import verify
from fedhp.cli.help import CommandApp
from fedhp.cli.logs import Log, PerWorker, follow, parse_log, suggest_viewing
from fedhp.errors import Interrupted, RunError

if TYPE_CHECKING:
    from fedhp.cluster.ops.launch import Cluster
    from fedhp.cluster.ops.operator import Target

app = CommandApp(help="Start a federation on this machine; watch and control any running one.")

app.command()(verify)

REFRESH_SECONDS = 0.5  # between two updates of the display

CoordinatorAddress = Annotated[
    str | None,
    cli.shared_option(
        "HOST:PORT,...", "Address of a coordinator, also of a standby; several with commas."
    ),
]
RunFolder = Annotated[
    Path | None,
    cli.shared_option("DIR", "Instead of --coordinator: the folder of a run on this machine."),
]
Etcd = Annotated[
    str | None,
    cli.shared_option(
        "etcds://HOST:PORT,...", "Instead of --coordinator: ask etcd which coordinator leads."
    ),
]
Run = Annotated[
    str | None,
    cli.shared_option(
        "RUN",
        "The run that is meant, or the first 8 digits of its name. Default: that of --out; "
        "otherwise a terminal asks.",
    ),
]
OperatorCerts = Annotated[
    Path | None,
    cli.shared_option(
        "FOLDER", "Folder of keys and certificates. Default: DIR/certs with --out, else certs."
    ),
]
OperatorName = Annotated[
    str, cli.shared_option("NAME", "Name of the operator, as in its certificate.")
]


@app.command()
def up(
    experiment: cli.ExperimentFile,
    overrides: cli.Overrides = None,
    workers: int | None = cli.option(
        "N", "Number of workers. Default: that of the experiment.", min=1
    ),
    out: Path | None = cli.option("DIR", "Folder to write to or to continue."),
    resume: Resume = False,
    moved: Moved = False,
    restart: bool = cli.option(
        "", "Restart a process that died, at most once a minute.", default=True
    ),
    as_json: cli.Json = False,
    log_format: LogFormat = "text",
    dash: Dash = False,
    dash_port: DashPort = None,
    log: Log = None,
    per_worker: PerWorker = False,
) -> None:
    """Start a coordinator and workers as processes on this machine, and watch them.

    Run the same command with the same --out to continue the run.
    """
    from fedhp.algorithms.rates import check_rate_of_command_line
    from fedhp.cli.stopping import StopRequest
    from fedhp.config import load
    from fedhp.console import Activity

    form = check_log_format(log_format)
    targets = parse_log(log, per_worker=per_worker)
    changes = [*(overrides or []), *([] if workers is None else [f"workers={workers}"])]
    settings = load(experiment, changes)
    check_rate_of_command_line(settings, changes)
    folder = cli.choose_folder(out, experiment, resume=False)
    stop = StopRequest()
    with live_page(dash, folder, port=dash_port), cli.redirect_user_prints(as_json), stop:
        with Activity("starting"):
            from fedhp.cluster.ops import processes
            from fedhp.cluster.ops.launch import Cluster
            from fedhp.engine.prepare import prepare

            processes.warm_up()
            prepare(settings)
        began = time.monotonic()
        logs = follow(folder, targets, per_worker=per_worker)
        started = Cluster(
            settings, folder, resume=resume, moved=moved, restart=restart, log_format=form
        )
        with logs, started as cluster:
            if not cluster.is_over():
                cluster.check_not_stopped()
                with Activity("starting the coordinator and the workers"):
                    cluster.start()
                _watch(cluster, stop)
        seconds = time.monotonic() - began
    _print_result(cluster, seconds, as_json=as_json or form == "json")
    if not as_json and form != "json":
        suggest_viewing(folder, logs.working)


@app.command()
def status(
    coordinator: CoordinatorAddress = None,
    out: RunFolder = None,
    ha: Etcd = None,
    insecure_etcd: InsecureEtcd = False,
    certs: OperatorCerts = None,
    name: OperatorName = "operator",
    as_json: cli.Json = False,
) -> None:
    """Show the progress of a run and its workers."""
    from fedhp.cluster.ops import operator
    from fedhp.console import Activity
    from fedhp.console.cluster import status_line, status_table, trouble_lines

    target = _target(coordinator, out, certs, name, ha=ha, insecure_etcd=insecure_etcd)
    notes: list[str] = []
    try:
        with Activity("asking the coordinator"):
            status = operator.leader_status(
                target, patience=operator.TAKEOVER_SECONDS, notify=notes.append
            )
    finally:
        for note in notes:
            cli.say(note, error=True)
    reply = status.reply
    if as_json:
        print(json.dumps(operator.status_json(reply, leader=status.leader)))
        return
    cli.say(status_line(reply))
    if reply.members:
        cli.table_console().print(status_table(reply))
    for line in trouble_lines(reply):
        cli.say(line)


@app.command()
def stop(
    coordinator: CoordinatorAddress = None,
    out: RunFolder = None,
    ha: Etcd = None,
    insecure_etcd: InsecureEtcd = False,
    run: Run = None,
    certs: OperatorCerts = None,
    name: OperatorName = "operator",
) -> None:
    """End a run after its current round, or in a few seconds if that takes longer.

    No coordinator, not even a standby, continues it until it is started again with --resume.
    """
    target = _target(coordinator, out, certs, name, ha=ha, insecure_etcd=insecure_etcd, run=run)
    _command(target, stop=True)


def _add_worker_command(action: str, words: str, text: str) -> None:
    def command(
        worker: str = cli.argument("NAME", words, default=...),
        coordinator: CoordinatorAddress = None,
        out: RunFolder = None,
        ha: Etcd = None,
        insecure_etcd: InsecureEtcd = False,
        run: Run = None,
        certs: OperatorCerts = None,
        name: OperatorName = "operator",
    ) -> None:
        target = _target(coordinator, out, certs, name, ha=ha, insecure_etcd=insecure_etcd, run=run)
        _command(target, **{action: worker})

    app.command(action, help=text)(command)


_add_worker_command(
    "drain",
    "The worker that should leave.",
    "Let a worker leave after its current round, or in a few seconds if that takes longer.",
)
_add_worker_command(
    "remove",
    "The worker to exclude.",
    "Exclude a worker at once, also from its peers, until `fedhp cluster allow` lets it in.",
)
_add_worker_command(
    "allow",
    "The worker to let in again.",
    "Let a worker in again: quarantined, suspended, removed, or now on another machine.",
)


@app.command()
def gather(
    folders: list[Path] = cli.argument(
        "FOLDER", "The folders of all coordinators that led.", default=...
    ),
    out: Path = cli.option("RUN", "Folder to create for the combined run.", default=...),
    as_json: cli.Json = False,
) -> None:
    """Combine the records of a run that several coordinators led, one after another."""
    from fedhp.cluster.audit import merge

    whole = merge.gather(folders, out)
    if as_json:
        columns = ("first", "last", "coordinator", "epoch")
        pieces = [
            {name: getattr(piece, name) for name in columns} | {"folder": str(piece.folder)}
            for piece in whole.pieces
        ]
        facts = {"run": whole.run, "status": whole.status, "rounds": whole.rounds}
        print(json.dumps({"folder": str(whole.folder), **facts, "pieces": pieces}))
        return
    from fedhp.report.formatting import count

    planned = count(whole.planned, "round")
    for piece in whole.pieces:
        cli.say(f"{piece.rounds}: {piece.coordinator} (epoch {piece.epoch}), {piece.folder}")
    cli.say(f"run: {whole.folder} ({whole.status}, {whole.rounds} of {planned})")
    if whole.missing:
        cli.say(f"{whole.missing}; the record has these rounds")
    if whole.stopped and whole.status != "finished":
        cli.say(f"the run was {whole.stopped}; `fedhp coordinator --resume` continues it")
    elif whole.status != "finished":
        cli.say("the run is not over in these folders; did another coordinator lead afterwards?")
    path = shlex.quote(str(out))
    commands = ("show", "report", "cluster verify")
    cli.suggest("next:", [f"fedhp {command} {path}" for command in commands])


def _command(target: Target, **what: Any) -> None:
    """Send a command to the coordinator that leads, and print its answer."""
    from fedhp.cluster.ops import operator

    patience = operator.TAKEOVER_SECONDS
    if not target.run:
        target = replace(target, run=_ask_run(target, patience=patience))
    cli.say(
        operator.command(target, patience=patience, notify=partial(cli.say, error=True), **what)
    )


def _ask_run(target: Target, *, patience: float) -> str:
    """Let the user confirm which run is meant: an address may be that of another one by now."""
    from fedhp.cluster.ops import operator
    from fedhp.console.cluster import status_line

    status = operator.leader_status(target, patience=patience)
    run = status.reply.run
    if not sys.stdin.isatty():
        raise cli.wrong_option(
            "--run",
            f"is needed, since an address may be that of another run by now; {status.leader} "
            f"leads run {run}",
            allowed="the name of the run that is meant, or --out DIR with its record",
            fix=f"if that run is meant: --run {run}",
        )
    about = f"{status.leader} leads run {run}, {status_line(status.reply)}"
    if not typer.confirm(f"{about}. Send the command?"):
        raise Interrupted("nothing was sent")
    return run


def _target(
    address: str | None,
    out: Path | None,
    certs: Path | None,
    name: str,
    *,
    ha: str | None,
    insecure_etcd: bool,
    run: str | None = None,
) -> Target:
    from fedhp.cluster.coordinator.process.leadership import check_etcd
    from fedhp.cluster.ops.operator import CoordinatorAddress, Target, target_of
    from fedhp.cluster.protocol.addresses import parse_address

    given = [option for option in (address, out, ha) if option is not None]
    if len(given) != 1:
        raise cli.wrong_option(
            "--coordinator, --out, --ha",
            "only one of them is allowed" if given else "one of them is needed",
            allowed="--coordinator HOST:PORT, --out DIR of a run on this machine, or "
            "--ha etcds://HOST:PORT of its coordinators",
            fix="for example: fedhp cluster status --out runs/NAME-1",
        )
    if run is not None and not re.fullmatch("[0-9a-f]{8,32}", run):
        raise cli.wrong_option(
            "--run",
            f"{run!r} does not name a run",
            allowed="the 32 hexadecimal digits of a run, or at least the first 8 of them",
            fix="`fedhp cluster status --json` names the run",
        )
    if out is not None:
        target = target_of(out, certificates=certs, name=name)
        return target if run is None else replace(target, run=run)
    folder = certs or Path("certs")
    if ha is not None:
        check_etcd(ha, insecure=insecure_etcd)
        return Target("", folder, name, etcd=ha, insecure_etcd=insecure_etcd, run=run or "")
    assert address is not None
    first, *others = [part.strip() for part in address.split(",")]
    for part in (first, *others):
        parse_address(part, key="--coordinator")
    others_there = tuple(map(CoordinatorAddress, others))
    return Target(first, folder, name, others=others_there, run=run or "")


def _watch(cluster: Cluster, stop: Any) -> None:
    """Show progress until the run is over or the user stops it."""
    from fedhp.console.cluster import ClusterView

    shown, notes_shown = 0, 0
    label = cluster.experiment.algorithm.name
    with ClusterView(cluster.experiment.rounds, label=label) as view:
        view.show(None)
        while not cluster.finished():
            if stop():
                raise Interrupted(
                    f"stopped\n  the same command with --out {shlex.quote(str(cluster.folder))} "
                    "continues the run"
                )
            cluster.supervise()
            cluster.check_alive()
            try:
                reply = cluster.status(seconds=2 * REFRESH_SECONDS)
            except RunError:
                reply = None  # it is starting
            rounds = list(cluster.rounds(after=shown))
            view.show(reply, rounds=rounds, notes=cluster.notes[notes_shown:])
            shown = max([shown, *(facts.round_index for facts in rounds)])
            notes_shown = len(cluster.notes)
            time.sleep(REFRESH_SECONDS)
        rounds = list(cluster.rounds(after=shown))
        view.show(None, rounds=rounds, notes=cluster.notes[notes_shown:], over=True)


def _print_result(cluster: Cluster, seconds: float, *, as_json: bool) -> None:
    """The same table as after `fedhp run`, and the folders."""
    from fedhp.record.reader import RunReader
    from fedhp.report.describe import cost_of
    from fedhp.report.tables import comparison_table

    with RunReader(cluster.record_folder()) as reader:
        summary, cost = reader.summary(), cost_of(reader)
    if as_json:
        facts = {
            "runs": [summary.as_json()],
            "run": summary.as_json(),  # as before there was "runs"
            "rounds": summary.rounds,
            "accuracy": summary.as_json()["final_accuracy"],
            "seconds": round(seconds, 3),
            "digests": cluster.digests(),
            "exit_codes": cluster.exit_codes(),
            "folder": str(cluster.folder),
        }
        print(json.dumps(facts))
        return
    cli.table_console().print(comparison_table([summary]))
    if cost:
        cli.say(cost)
    if reason := cluster.stopped():
        cli.say(f"the run was {reason}; to continue it, run the same command with --resume")
    cli.say(f"run: {cluster.folder}")
    cli.say(f"logs: {cluster.folder / 'logs'}")
    cli.say(f"models: {cluster.folder / 'workers'}")
    cli.suggest("next:", cli.next_commands(cluster.folder, summary.rounds))
