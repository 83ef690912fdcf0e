"""fedhp certs: an authority of one's own, identities for machines, and when they end."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedhp.cli.parameters import Json, table_console
from fedhp.errors import FedhpError, IdentityError

if TYPE_CHECKING:
    from fedhp.cluster.security.identity import Facts

app = typer.Typer(
    help="Identities of machines: make an authority, issue certificates, see when they end.",
    no_args_is_help=True,
)

_SOON = 30  # days until an end that is warned of

Folder = Annotated[
    Path,
    typer.Option("--folder", "--certs", metavar="FOLDER", help="Where keys and certificates are."),
]
Replace = Annotated[bool, typer.Option("--replace", help="Replace what is already there.")]


@app.command()
def init(
    folder: Folder = Path("certs"),
    days: Annotated[int, typer.Option(metavar="N", help="How long it is valid.")] = 3650,
    replace: Replace = False,
) -> None:
    """Make an authority: its key signs the certificates of all machines."""
    made = _certs().init_authority(folder, days=days, replace=replace)
    print(f"{made.name}: valid until {made.ends:%Y-%m-%d}")
    print(f"  {made.file}   its certificate: every machine needs a copy")
    print(f"  {made.file.with_suffix('.key')}   its key: keep it here and secret, copy it nowhere")
    given = "" if folder == Path("certs") else f" --folder {shlex.quote(str(folder))}"
    print(f"next, for every machine: fedhp certs issue NAME --host HOST{given}")


@app.command()
def issue(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The machine, e.g. worker-1.")],
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host", metavar="HOST", help="DNS name or IP address it serves at; may be repeated."
        ),
    ] = None,
    roles: Annotated[
        list[str] | None,
        typer.Option(
            "--role",
            metavar="ROLE",
            help="coordinator, worker or operator; may be repeated. Default: worker.",
        ),
    ] = None,
    days: Annotated[int, typer.Option(metavar="N", help="How long it is valid.")] = 365,
    folder: Folder = Path("certs"),
    replace: Replace = False,
) -> None:
    """Make the key and the certificate of one machine."""
    made = _certs().issue(
        folder,
        name,
        hosts=hosts or (),
        roles=roles or ("worker",),
        days=days,
        replace=replace,
    )
    print(f"{made.name}: {', '.join(made.roles)}; valid until {made.ends:%Y-%m-%d}")
    if made.hosts:
        print(f"  serves at {', '.join(made.hosts)}")
    else:
        print("  no --host: only who asks for it by name connects to it")
    files = [made.file.with_name("ca.crt"), made.file, made.file.with_suffix(".key")]
    print("next, copy these three files, and no others, to one folder of that machine:")
    for file in files:
        print(f"  {file}")
    print(f"for example: scp -p {shlex.join(map(str, files))} MACHINE:certs/")


@app.command()
def inspect(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A certificate, or a folder of them.")
    ] = Path("certs"),
    as_json: Json = False,
) -> None:
    """Show who has which certificate, until when, and what is wrong with it."""
    from datetime import UTC

    now = datetime.now(UTC)
    found = _certs().inspect(path, now=now)
    if as_json:
        import json

        print(json.dumps({"certificates": [_as_json(facts, now) for facts in found]}))
    else:
        _print_table(found, now)
    bad = [facts for facts in found if facts.problem]
    if bad:
        raise IdentityError(
            f"{len(bad)} of {len(found)} certificates cannot be used; the first: {bad[0].problem}",
            fix="issue it anew (--replace), or copy the right files",
        )


def _certs() -> Any:
    """The module that makes certificates, or how to get what it needs."""
    try:
        from fedhp.cluster.security import certificates
    except ModuleNotFoundError as error:
        raise FedhpError(
            f"certificates need a package that is not installed: {error.name}",
            fix="pip install 'fedhp[cluster]'",
        ) from None
    return certificates


def _as_json(facts: Facts, now: datetime) -> dict[str, Any]:
    return {
        "name": facts.name,
        "roles": list(facts.roles),
        "hosts": list(facts.hosts),
        "authority": facts.authority,
        "from": facts.starts.isoformat(),
        "until": facts.ends.isoformat(),
        "days_left": facts.days_left(now),
        "file": str(facts.file),
        "key": facts.has_key,
        "sha256": facts.fingerprint,
        "problem": facts.problem,
    }


def _print_table(found: Sequence[Facts], now: datetime) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table()
    for column in ("name", "roles", "hosts", "valid from", "until"):
        table.add_column(column, overflow="fold")
    table.add_column("days left", justify="right")
    table.add_column("key")
    for facts in found:
        days = facts.days_left(now)
        bad = facts.problem or days < 0
        style = "red" if bad else "yellow" if days < _SOON else ""
        cells = [
            facts.name,
            "authority" if facts.authority else ", ".join(facts.roles),
            ", ".join(facts.hosts),
            f"{facts.starts:%Y-%m-%d}",
            f"{facts.ends:%Y-%m-%d}",
            str(days),
            "here" if facts.has_key else "elsewhere",
        ]
        table.add_row(*map(escape, cells), style=style)
    console = table_console()
    console.print(table)
    for facts in found:
        left = facts.days_left(now)
        if facts.problem:
            console.print(f"wrong: {facts.problem}", markup=False, soft_wrap=True)
        elif left < _SOON:
            days_left = "1 day" if left == 1 else f"{left} days"
            again = f"fedhp certs issue {facts.name} --replace (with its --host and --role)"
            todo = "make a new authority and new identities" if facts.authority else again
            console.print(f"soon: {facts.name} ends in {days_left}: {todo}", soft_wrap=True)
