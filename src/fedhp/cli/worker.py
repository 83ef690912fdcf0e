"""`fedhp worker`: take part in a run over the network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedhp.cli.coordinator import LogFormat, check_log_format
from fedhp.errors import Interrupted

if TYPE_CHECKING:
    from fedhp.cluster.worker.rounds import RoundProgress


def worker(
    name: Annotated[str, typer.Option(metavar="NAME", help="This machine, as in its certificate.")],
    coordinator: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Who coordinates; several separated by commas."),
    ] = "",
    certs: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where keys and certificates are.")
    ] = Path("certs"),
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npz", help="Samples of its own, which never leave it."),
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where peers connect to; port 0: any.")
    ] = "0.0.0.0:0",
    advertise: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="What peers are told. Default: found out."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="For its models. Default: workers/NAME."),
    ] = None,
    coordinator_name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Who must be there, as in its certificate."),
    ] = None,
    ha: Annotated[
        str | None,
        typer.Option(metavar="etcd://HOST:PORT,...", help="Where to find out who coordinates."),
    ] = None,
    standby: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Be ready to coordinate, at this address; needs --ha."
        ),
    ] = None,
    standby_advertise: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="What others are told of --standby."),
    ] = None,
    log_format: LogFormat = "text",
) -> None:
    """Take part in a run: train, exchange models with peers, until the run is over."""
    import asyncio
    import signal

    from fedhp.cluster.coordinator.leadership import (
        CoordinatorProcessSettings,
        check_standby,
        leader_finder,
    )
    from fedhp.cluster.ops import logs
    from fedhp.cluster.ops.processes import ProcessEnvironment, standby_process
    from fedhp.cluster.worker.worker import WorkerSettings, run_worker

    folder = Path("workers") / name if state is None else state
    settings = WorkerSettings(
        name=name,
        coordinator=coordinator,
        certificates=certs,
        state=folder,
        listen=listen,
        advertise=advertise,
        data=None if data is None else str(data),
        coordinator_name=coordinator_name,
        finder=None if ha is None else leader_finder(ha),
    )
    form = check_log_format(log_format)
    standby_settings = None
    if standby is not None:
        standby_settings = CoordinatorProcessSettings(
            experiment=None,
            certificates=certs,
            folder=folder / "coordinator",
            name=name,
            listen=standby,
            advertise=standby_advertise,
            ha=ha,
        )
        check_standby(standby_settings)
    logs.set_up(who=name, form=form)

    async def live() -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        return await run_worker(settings, stop=stop, on_round=_print)

    with standby_process(standby_settings, ProcessEnvironment(None, form)) as standby_coordinator:
        code = asyncio.run(live())
        if not code:
            standby_coordinator.let_run_end()
    if code:
        raise Interrupted(f"{name}: left the run; started again as it was, it comes back")
    print(f"{name}: the run is over; its model: {folder / 'model.safetensors'}")


def _print(line: RoundProgress) -> None:
    tested = "" if line.accuracy != line.accuracy else f", accuracy {line.accuracy:.4f}"
    lost = f", {line.lost} neighbors lost" if line.lost else ""
    print(
        f"round {line.round_index}: {line.local_steps} steps, {line.seconds:.2f} s{tested}{lost}",
        flush=True,
    )
