"""`fedhp worker`: take part in a run over the network."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from fedhp.cli.commands.coordinator import Certs, InsecureEtcd, LogFormat, Metrics, check_log_format
from fedhp.cli.parameters import option, say, trust_modules, wrong_option
from fedhp.errors import Interrupted, service_exit_codes

if TYPE_CHECKING:
    from fedhp.cluster.worker.rounds import RoundProgress


def worker(
    name: str = option("NAME", "Name of this machine in its certificate.", default=...),
    coordinator: str = option(
        "HOST:PORT", "The coordinator, or several, separated by commas.", default=""
    ),
    certs: Certs = Path("certs"),
    data: Path | None = option(
        "FILE.npz",
        "Private samples: train on all of them, and on no others. They never leave this machine.",
    ),
    data_path: Path | None = option(
        "PATH",
        "Where this machine has the experiment's data set (data.path), "
        "which must be the same on all machines.",
    ),
    trace: Path | None = option("FILE", "The recorded world (world.trace), if it is emulated."),
    trust: list[str] | None = option(
        "MODULE", "Let the coordinator's experiment use parts of this module; may be repeated."
    ),
    listen: str = option(
        "HOST:PORT", "Address for peers; port 0 is any free port.", default="0.0.0.0:0"
    ),
    advertise: str | None = option(
        "HOST:PORT", "Address that peers connect to. Default: detected."
    ),
    state: Path | None = option("FOLDER", "Folder for the worker's models. Default: workers/NAME."),
    coordinator_name: str | None = option(
        "NAME", "Name that the coordinator's certificate must have."
    ),
    ha: str | None = option("etcds://HOST:PORT,...", "Look up the current coordinator in etcd."),
    insecure_etcd: InsecureEtcd = False,
    standby: str | None = option(
        "HOST:PORT", "Also run a standby coordinator at this address; needs --ha."
    ),
    standby_name: str | None = option(
        "NAME",
        "Name in the standby's own certificate, which has the role coordinator. "
        "Default: that of the worker, with -standby.",
    ),
    standby_advertise: str | None = option(
        "HOST:PORT", "Address that others connect to, if not --standby."
    ),
    allow: Path | None = option(
        "FILE",
        "File with the names of the machines that may connect to the standby. "
        "Default: that of the coordinator.",
    ),
    give_up: float | None = option(
        "SECONDS",
        "End with code 75 (try again later) after so long without a coordinator. "
        "Default: 60 before it has joined, then never.",
        min=1.0,
    ),
    metrics: Metrics = None,
    log_format: LogFormat = "text",
) -> None:
    """Take part in a run: train and exchange models with peers until the run is over.

    Run the same command again to rejoin a run after an interruption.
    """
    import asyncio
    import signal

    from fedhp.cluster.security.handshakes import start_handshake_log

    form = check_log_format(log_format)
    start_handshake_log(json_lines=form == "json")

    from fedhp.cluster.coordinator.process.finders import leader_finder
    from fedhp.cluster.coordinator.process.leadership import (
        CoordinatorProcessSettings,
        check_etcd,
        check_standby,
        warn_of_plain_etcd,
    )
    from fedhp.cluster.ops import logs
    from fedhp.cluster.ops.processes import ProcessEnvironment, standby_process
    from fedhp.cluster.security.identity import load_identity
    from fedhp.cluster.worker.worker import WorkerSettings, run_worker

    folder = Path("workers") / name if state is None else state
    finder = None
    if ha is not None:
        check_etcd(ha, insecure=insecure_etcd)
        authority = load_identity(certs, name).authority
        finder = leader_finder(ha, insecure=insecure_etcd, authority=authority)
    settings = WorkerSettings(
        name=name,
        coordinator=coordinator,
        certificates=certs,
        state=folder,
        listen=listen,
        advertise=advertise,
        data=None if data is None else str(data),
        data_path=None if data_path is None else data_path.resolve(),
        trace=None if trace is None else trace.resolve(),
        trust=tuple(trust or ()),
        coordinator_name=coordinator_name,
        finder=finder,
        give_up=give_up,
        metrics=metrics,
    )
    trust_modules(settings.trust, error=False)
    standby_settings = None
    for key, value in (("--allow", allow), ("--standby-name", standby_name)):
        if value is not None and standby is None:
            raise wrong_option(
                key,
                "is given, but only a coordinator has that, and this worker runs none",
                allowed=f"{key} together with --standby",
                fix=f"add --standby HOST:PORT, or remove {key}",
            )
    if standby is not None:
        standby_settings = CoordinatorProcessSettings(
            experiment=None,
            certificates=certs,
            folder=folder / "coordinator",
            name=standby_name or f"{name}-standby",
            listen=standby,
            advertise=standby_advertise,
            allow=allow,
            ha=ha,
            insecure_etcd=insecure_etcd,
            trust=settings.trust,
        )
        check_standby(standby_settings)
    logs.set_up(who=name, form=form)
    warn_of_plain_etcd(ha)

    async def run() -> int:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        return await run_worker(settings, stop=stop, on_round=_print)

    with standby_process(standby_settings, ProcessEnvironment(None, form)) as standby_coordinator:
        with service_exit_codes():
            code = asyncio.run(run())
        if not code and standby_coordinator is not None:
            standby_coordinator.let_run_end()
    if code:
        raise Interrupted(f"{name}: left the run; the same command joins it again")
    say(f"{name}: the run is over; model: {folder / 'model.safetensors'}")


def _print(progress: RoundProgress) -> None:
    from fedhp.report.formatting import count

    steps = count(progress.local_steps, "step")
    line = f"round {progress.round_index}: {steps}, {progress.seconds:.2f} s"
    if not math.isnan(progress.accuracy):
        line += f", {progress.metric} {progress.accuracy:.4f}"
    if progress.lost:
        line += f", {count(progress.lost, 'neighbor')} lost"
    say(line)
