"""`fedhp coordinator`: plan the rounds of a run over the network."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fedhp.cli import parameters as cli
from fedhp.cli.commands.dash import Dash, DashPort, live_page
from fedhp.cli.logs import Log, PerWorker, follow, parse_log, suggest_viewing
from fedhp.errors import service_exit_codes

if TYPE_CHECKING:
    from fedhp.cluster.ops.logs import Format
    from fedhp.types import RoundRecord

Certs = Annotated[Path, cli.shared_option("FOLDER", "Folder of keys and certificates.")]
InsecureEtcd = Annotated[
    bool,
    cli.shared_option("", "Accept an etcd without TLS (etcd://). Not safe.", "--insecure-etcd"),
]
Resume = Annotated[
    bool, cli.shared_option("", "Continue a run that `fedhp cluster stop` ended.", "--resume")
]
Moved = Annotated[
    bool,
    cli.shared_option(
        "",
        "Continue a run folder that was moved or restored here; its original is gone.",
        "--moved",
    ),
]
Metrics = Annotated[
    str | None, cli.shared_option("HOST:PORT", "Serve /metrics and /healthz, e.g. 127.0.0.1:9100.")
]
LogFormat = Annotated[str, cli.shared_option("text|json", "Format of the log lines.")]


def coordinator(
    experiment: cli.ExperimentFile,
    listen: str = cli.option("HOST:PORT", "Address to listen on; 0.0.0.0 is all.", default=...),
    overrides: cli.Overrides = None,
    name: str = cli.option(
        "NAME", "Name of this machine in its certificate.", default="coordinator"
    ),
    certs: Certs = Path("certs"),
    out: Path | None = cli.option("DIR", "Folder to write to or to continue."),
    allow: Path | None = cli.option(
        "FILE",
        "File with the names of the machines that may connect. Default: all that have a "
        "certificate.",
    ),
    advertise: str | None = cli.option(
        "HOST:PORT", "Address that others connect to, if not --listen."
    ),
    min_workers: int | None = cli.option(
        "N", "Pause while there are fewer workers (cluster.min_workers).", min=1
    ),
    max_workers: int | None = cli.option("N", "Maximum number of workers (workers).", min=1),
    ha: str | None = cli.option(
        "etcds://HOST:PORT,...",
        "Run several coordinators, one of which leads, with their state in etcd.",
    ),
    insecure_etcd: InsecureEtcd = False,
    resume: Resume = False,
    moved: Moved = False,
    metrics: Metrics = None,
    log_format: LogFormat = "text",
    dash: Dash = False,
    dash_port: DashPort = None,
    log: Log = None,
    per_worker: PerWorker = False,
) -> None:
    """Coordinate a run: plan its rounds, collect reports, write the record.

    Run the same command again to continue the run.
    """
    import asyncio
    import signal

    from fedhp.cluster.security.handshakes import start_handshake_log

    form = check_log_format(log_format)
    targets = parse_log(log, per_worker=per_worker)
    start_handshake_log(json_lines=form == "json")

    from fedhp.algorithms.rates import check_rate_of_command_line
    from fedhp.cluster.coordinator.process.leadership import (
        CoordinatorProcessSettings,
        check_settings,
        coordinate,
    )
    from fedhp.cluster.ops import logs
    from fedhp.components import make_importable
    from fedhp.config import load, own_parts

    changes = list(overrides or [])
    changes += [] if max_workers is None else [f"workers={max_workers}"]
    changes += [] if min_workers is None else [f"cluster.min_workers={min_workers}"]
    loaded = load(experiment, changes)
    if own_parts(loaded):
        make_importable(*loaded.origins.folders)
    check_rate_of_command_line(loaded, changes)
    settings = CoordinatorProcessSettings(
        experiment=loaded,
        certificates=certs,
        folder=cli.choose_folder(out, experiment, resume=False),
        name=name,
        listen=listen,
        allow=allow,
        advertise=advertise,
        ha=ha,
        insecure_etcd=insecure_etcd,
        resume=resume,
        moved=moved,
        metrics=metrics,
        compares=True,
    )
    check_settings(settings)
    logs.set_up(who=name, form=form)
    folder = settings.folder
    path = shlex.quote(str(folder))
    cli.say(f"run: {folder}; to continue it, run the same command with --out {path}")

    async def run() -> str:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        return await coordinate(
            settings, stop=stop, on_round=lambda record: _print(record, folder, loaded.rounds)
        )

    logs_of_run = follow(folder, targets, per_worker=per_worker)
    with live_page(dash, folder, port=dash_port), service_exit_codes(), logs_of_run:
        reason = asyncio.run(run())
    if reason:
        cli.say(
            f"the run was {reason}; to continue it, run the same command with --out {path} --resume"
        )
        return
    cli.suggest("the run is over; see:", [f"fedhp show {path}", f"fedhp dash {path} --open"])
    suggest_viewing(folder, logs_of_run.working)


def check_log_format(word: str) -> Format:
    from fedhp.cluster.ops.logs import FORMATS

    for form in FORMATS:
        if form == word:
            return form
    raise cli.wrong_option(
        "--log-format",
        f"unknown log format {word!r}",
        allowed=", ".join(FORMATS),
        fix="use --log-format json for programs that read the log",
    )


def _print(record: RoundRecord, folder: Path, rounds: int) -> None:
    from fedhp.console.cluster import round_facts, round_line
    from fedhp.record.reader import RunReader

    with RunReader(folder) as run:
        metric = run.meta("metric")
    cli.say(round_line(round_facts(record, metric), rounds))
