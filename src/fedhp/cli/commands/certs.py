"""fedhp certs: create an authority, issue certificates for machines, show when they expire."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fedhp.cli.help import CommandApp
from fedhp.cli.parameters import Json, argument, option, say, shared_option, suggest, table_console
from fedhp.errors import FedhpError, IdentityError, install_extra

if TYPE_CHECKING:
    from fedhp.cluster.security.identity import CertificateInfo

app = CommandApp(
    help="Create an authority, issue certificates for machines, show when they expire."
)

EXPIRY_WARNING_DAYS = 30

Folder = Annotated[
    Path, shared_option("FOLDER", "Folder of the keys and certificates.", "--folder", "--certs")
]
Replace = Annotated[bool, shared_option("", "Replace existing files.", "--replace")]


@app.command()
def init(
    folder: Folder = Path("certs"),
    days: int = option("N", "Days until it expires.", default=3650),
    replace: Replace = False,
) -> None:
    """Create an authority: its key signs the certificates of all machines."""
    certificates, _ = _security()
    authority = certificates.init_authority(folder, days=days, replace=replace)
    say(f"{authority.name}: valid until {authority.ends:%Y-%m-%d}")
    say(f"  {authority.file}   its certificate: every machine needs a copy")
    say(f"  {authority.file.with_suffix('.key')}   its key: keep it secret, do not copy it")
    option = "" if folder == Path("certs") else f" --folder {shlex.quote(str(folder))}"
    suggest("next, for every machine:", [f"fedhp certs issue NAME{option}"])


@app.command()
def issue(
    name: str = argument("NAME", "The machine, e.g. worker-1.", default=...),
    hosts: list[str] | None = option(
        "HOST", "DNS name or IP address of the machine; may be repeated.", "--host"
    ),
    roles: list[str] | None = option(
        "ROLE", "coordinator, worker or operator; may be repeated. Default: worker.", "--role"
    ),
    days: int = option("N", "Days until it expires.", default=365),
    folder: Folder = Path("certs"),
    replace: Replace = False,
) -> None:
    """Create the key and the certificate of one machine."""
    certificates, _ = _security()
    issued = certificates.issue(
        folder, name, hosts=hosts or (), roles=roles or ("worker",), days=days, replace=replace
    )
    say(f"{issued.name}: {', '.join(issued.roles)}; valid until {issued.ends:%Y-%m-%d}")
    if issued.hosts:
        say(f"  serves at {', '.join(issued.hosts)}")
    files = [issued.file.with_name("ca.crt"), issued.file, issued.file.with_suffix(".key")]
    say("next, copy these three files, and no others, to one folder on that machine:")
    for file in files:
        say(f"  {file}")
    suggest("for example:", [f"scp -p {shlex.join(map(str, files))} MACHINE:certs/"])


@app.command()
def inspect(
    path: Path = argument("PATH", "A certificate, or a folder of them.", default=Path("certs")),
    as_json: Json = False,
) -> None:
    """Show each certificate, when it expires, and what is wrong with it."""
    from datetime import UTC

    now = datetime.now(UTC)
    _, identity = _security()
    infos = identity.inspect(path, now=now)
    if as_json:
        import json

        rows = [
            {
                "name": info.name,
                "roles": list(info.roles),
                "hosts": list(info.hosts),
                "authority": info.authority,
                "from": info.starts.isoformat(),
                "until": info.ends.isoformat(),
                "days_left": info.days_left(now),
                "file": str(info.file),
                "key": info.has_key,
                "sha256": info.fingerprint,
                "problem": info.problem,
            }
            for info in infos
        ]
        print(json.dumps({"certificates": rows}))
    else:
        _print_table(infos, now)
    bad = [info for info in infos if info.problem]
    if bad:
        raise IdentityError(
            f"{len(bad)} of {len(infos)} certificates cannot be used; the first: {bad[0].problem}",
            fix="issue it again (--replace), or copy the right files",
        )


def _security() -> Any:
    """The modules that make and read certificates, or how to install what they need."""
    try:
        from fedhp.cluster.security import certificates, identity
    except ModuleNotFoundError as error:
        raise FedhpError(
            f"certificates need a package that is not installed: {error.name}",
            fix=install_extra("cluster"),
        ) from None
    return certificates, identity


def _print_table(infos: Sequence[CertificateInfo], now: datetime) -> None:
    from rich.markup import escape

    from fedhp.terminal import FittingTable

    words = ("name", "roles", "hosts", "key")
    table = FittingTable(
        *("name", "roles", "hosts", "valid from", "until", "days left", "key"),
        left=words,
        drop_first=("valid from", "days left", "hosts", "roles"),
        keep=("name", "until", "key"),
    )
    for info in infos:
        days = info.days_left(now)
        bad = info.problem or days < 0
        style = "red" if bad else "yellow" if days < EXPIRY_WARNING_DAYS else ""
        cells = [
            info.name,
            "authority" if info.authority else ", ".join(info.roles),
            ", ".join(info.hosts),
            f"{info.starts:%Y-%m-%d}",
            f"{info.ends:%Y-%m-%d}",
            str(days),
            "here" if info.has_key else "elsewhere",
        ]
        table.add_row(*(f"[{style}]{escape(cell)}[/]" if style else escape(cell) for cell in cells))
    table_console().print(table)
    for info in infos:
        left = info.days_left(now)
        if info.problem:
            say(f"wrong: {info.problem}")
        elif left < EXPIRY_WARNING_DAYS:
            days_left = "1 day" if left == 1 else f"{left} days"
            again = f"fedhp certs issue {info.name} --replace (with its --host and --role)"
            todo = "create a new authority and new certificates" if info.authority else again
            say(f"soon: {info.name} expires in {days_left}: {todo}")
