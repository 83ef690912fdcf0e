"""`fedhp coordinator`: plan the rounds of a run over the network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedhp.cli.parameters import ExperimentFile, Overrides, choose_folder
from fedhp.errors import ConfigError
from fedhp.tables import COMMAND_LINE

if TYPE_CHECKING:
    from fedhp.cluster.ops.logs import Format
    from fedhp.types import RoundRecord

Certs = Annotated[
    Path, typer.Option("--certs", metavar="FOLDER", help="Where keys and certificates are.")
]
LogFormat = Annotated[
    str, typer.Option("--log-format", metavar="text|json", help="How lines of the log look.")
]


def coordinator(
    experiment: ExperimentFile,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where workers connect to; 0.0.0.0: anywhere.")
    ],
    overrides: Overrides = None,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="This machine, as in its certificate.")
    ] = "coordinator",
    certs: Certs = Path("certs"),
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to write to, or to go on with."),
    ] = None,
    allow: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Names that may call. Default: all with a certificate."),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="What others are told, where it is not --listen."),
    ] = None,
    min_workers: Annotated[
        int | None, typer.Option(min=1, help="Below so many the run pauses: cluster.min_workers.")
    ] = None,
    max_workers: Annotated[
        int | None, typer.Option(min=1, help="At most so many take part: workers.")
    ] = None,
    ha: Annotated[
        str | None,
        typer.Option(metavar="etcd://HOST:PORT,...", help="Several coordinators, one leads."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve /metrics and /healthz, e.g. 127.0.0.1:9100."),
    ] = None,
    log_format: LogFormat = "text",
) -> None:
    """Coordinate a run: plan its rounds, gather reports, keep the record.

    The same command again goes on with the run.
    """
    import asyncio
    import signal

    from fedhp.cluster.coordinator.leadership import (
        CoordinatorProcessSettings,
        check_seat,
        coordinate,
    )
    from fedhp.cluster.ops import logs
    from fedhp.components import make_importable
    from fedhp.config import load

    form = check_log_format(log_format)
    make_importable(str(experiment.resolve().parent), str(Path.cwd()))
    changes = list(overrides or [])
    changes += [] if max_workers is None else [f"workers={max_workers}"]
    changes += [] if min_workers is None else [f"cluster.min_workers={min_workers}"]
    settings = load(experiment, changes)
    seat = CoordinatorProcessSettings(
        experiment=settings,
        certificates=certs,
        folder=choose_folder(out, experiment, resume=False),
        name=name,
        listen=listen,
        source=str(experiment),
        allow=allow,
        advertise=advertise,
        ha=ha,
        metrics=metrics,
    )
    check_seat(seat)
    logs.set_up(who=name, form=form)
    print(f"run: {seat.folder}; the same command with --out {seat.folder} goes on with it")

    async def live() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await coordinate(seat, stop=stop, on_round=lambda record: _print(record, settings.rounds))

    asyncio.run(live())
    print(f"the run is over: fedhp show {seat.folder}")


def check_log_format(word: str) -> Format:
    """text or json."""
    from fedhp.cluster.ops.logs import FORMATS

    for form in FORMATS:
        if form == word:
            return form
    raise ConfigError(
        f"{word!r} is no format",
        key="--log-format",
        source=COMMAND_LINE,
        allowed=", ".join(FORMATS),
        fix="write --log-format json for machines",
    )


def _print(record: RoundRecord, rounds: int) -> None:
    from fedhp.console.cluster import facts_of, round_line

    print(round_line(facts_of(record), rounds), flush=True)
