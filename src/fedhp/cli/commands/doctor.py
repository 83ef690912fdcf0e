"""`fedhp doctor`: is this machine ready to take part, and if not, how to fix that."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedhp.cli.parameters import Json, redirect_user_prints, table_console

STYLES = {"ok": "green", "warning": "yellow", "wrong": "red"}


def doctor(
    coordinator: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Check whether this coordinator answers."),
    ] = None,
    certs: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of keys and certificates. Default: certs."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of this machine in its certificate.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.npz | EXPERIMENT.toml | NAME", help="Check whether this data can be read."
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Check whether this port is free and, with --coordinator, whether the other "
            "workers can reach it.",
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Address that other workers connect to, if not --listen."
        ),
    ] = None,
    ha: Annotated[
        str | None,
        typer.Option(metavar="etcds://HOST:PORT,...", help="Check whether etcd answers."),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            show_default=False,
            help="Check the disk of this folder. Default: the current folder.",
        ),
    ] = Path(),
    as_json: Json = False,
) -> None:
    """Check this machine: clock, ports, certificates, versions, data, memory and disk.

    With --coordinator, --name and --listen also whether this machine and the other workers of a
    running federation reach each other.
    """
    import json

    from rich.text import Text

    from fedhp.cluster.ops.doctor import DoctorOptions, run_checks
    from fedhp.terminal import fit_text

    wants_certificates = certs is not None or name is not None or Path("certs").is_dir()
    options = DoctorOptions(
        certificates=(certs or Path("certs")) if wants_certificates else None,
        name=name,
        coordinator=coordinator,
        listen=listen,
        advertise=advertise,
        data=data,
        etcd=ha,
        folder=out,
    )
    checks, console = [], table_console()
    width = console.width if console.is_terminal else None
    with redirect_user_prints(as_json):
        for check in run_checks(options):
            checks.append(check)
            if as_json:
                continue
            line = f"{check.verdict:<7}  {check.name}: {check.message}"
            text = Text(fit_text(line, width, hang=9))
            text.stylize(STYLES[check.verdict], 0, len(check.verdict))
            console.print(text, soft_wrap=True)
            if check.fix:
                fix = fit_text(f"         fix: {check.fix}", width)
                console.print(fix, markup=False, soft_wrap=True)
    ready = all(check.verdict != "wrong" for check in checks)
    if as_json:
        rows = [
            {
                "check": check.name,
                "verdict": check.verdict,
                "message": check.message,
                "fix": check.fix,
            }
            for check in checks
        ]
        print(json.dumps({"ready": ready, "checks": rows}))
    if not ready:
        raise typer.Exit(1)
