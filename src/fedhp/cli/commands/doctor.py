"""`fedhp doctor`: is this machine ready to take part, and if not, how to fix that."""

from __future__ import annotations

from pathlib import Path

import typer

from fedhp.cli.parameters import Json, option, redirect_user_prints, table_console

STYLES = {"ok": "green", "warning": "yellow", "wrong": "red"}


def doctor(
    coordinator: str | None = option("HOST:PORT", "Check whether this coordinator answers."),
    certs: Path | None = option("FOLDER", "Folder of keys and certificates. Default: certs."),
    name: str | None = option("NAME", "Name of this machine in its certificate."),
    data: str | None = option(
        "FILE.npz | EXPERIMENT.toml | NAME", "Check whether this data can be read."
    ),
    listen: str | None = option(
        "HOST:PORT",
        "Check whether this port is free and, with --coordinator, whether the other "
        "workers can reach it.",
    ),
    advertise: str | None = option(
        "HOST:PORT", "Address that other workers connect to, if not --listen."
    ),
    ha: str | None = option("etcds://HOST:PORT,...", "Check whether etcd answers."),
    out: Path = option(
        "DIR",
        "Check the disk of this folder. Default: the current folder.",
        default=Path(),
        show_default=False,
    ),
    as_json: Json = False,
) -> None:
    """Check this machine: clock, ports, certificates, versions, data, memory and disk.

    With --coordinator, --name and --listen also whether this machine and the other workers of a
    running federation reach each other.
    """
    import json

    from rich.text import Text

    from fedhp.cluster.ops.doctor import run_checks
    from fedhp.terminal import fit_text

    wants_certificates = certs is not None or name is not None or Path("certs").is_dir()
    found = run_checks(
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
        for check in found:
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
        names = {"check": "name", "verdict": "verdict", "message": "message", "fix": "fix"}
        rows = [{key: getattr(check, name) for key, name in names.items()} for check in checks]
        print(json.dumps({"ready": ready, "checks": rows}))
    if not ready:
        raise typer.Exit(1)
