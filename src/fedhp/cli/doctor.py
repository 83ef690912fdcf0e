"""`fedhp doctor`: is this machine ready to take part, and if not, how to mend it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedhp.cli.parameters import Json, redirect_user_prints, table_console

STYLES = {"ok": "green", "warning": "yellow", "wrong": "red"}


def doctor(
    coordinator: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Whether it answers this machine.")
    ] = None,
    certs: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where keys and certificates are. Default: certs."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="This machine, as in its certificate.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="FILE.npz | EXPERIMENT.toml | NAME", help="Whether it can be read."),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Whether the port is free.")
    ] = None,
    ha: Annotated[
        str | None, typer.Option(metavar="etcd://HOST:PORT,...", help="Whether etcd answers.")
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where would be written. Default: here.")
    ] = Path(),
    as_json: Json = False,
) -> None:
    """Check clock, ports, certificates, versions, data, memory and disk of this machine."""
    import json

    from rich.markup import escape

    from fedhp.cluster.ops.doctor import Questions, examine

    looked = certs is not None or name is not None or Path("certs").is_dir()
    ask = Questions(
        certificates=(certs or Path("certs")) if looked else None,
        name=name,
        coordinator=coordinator,
        listen=listen,
        data=data,
        etcd=ha,
        folder=out,
    )
    found, console = [], table_console()
    with redirect_user_prints(as_json):
        for check in examine(ask):
            found.append(check)
            if as_json:
                continue
            style = STYLES[check.verdict]
            line = f"[{style}]{check.verdict:<7}[/]  {escape(check.name)}: {escape(check.said)}"
            console.print(line, soft_wrap=True)
            if check.mend:
                console.print(f"         mend: {check.mend}", markup=False, soft_wrap=True)
    well = all(check.verdict != "wrong" for check in found)
    if as_json:
        rows = [
            {"check": each.name, "verdict": each.verdict, "said": each.said, "mend": each.mend}
            for each in found
        ]
        print(json.dumps({"ready": well, "checks": rows}))
    if not well:
        raise typer.Exit(1)
