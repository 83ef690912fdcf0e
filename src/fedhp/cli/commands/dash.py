"""`fedhp dash`: the live page of running and finished runs; and --dash of other commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fedhp.cli.parameters import argument, option, say, suggest
from fedhp.errors import ConfigError, RunError
from fedhp.tables import COMMAND_LINE

if TYPE_CHECKING:
    from fedhp.dash.security import Access
    from fedhp.dash.server import DashCertificate

HOST_NAME = r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?"
HIGHEST_PORT = 65_535

Dash = Annotated[bool, option("Show the run on a page in the browser while it runs.", "--dash")]
DashPort = Annotated[
    int | None,
    option(
        "Port of that page; 0 is any free one. Default: a free one from 8420 on.",
        "--dash-port",
        metavar="N",
        min=0,
        max=HIGHEST_PORT,
    ),
]


def dash(
    folder: Annotated[
        Path, argument("A folder with runs, or a run.", metavar="RUNS_FOLDER")
    ] = Path("runs"),
    port: Annotated[
        int | None,
        option(
            "Port to listen on; 0 is any free one. Default: a free one from 8420 on.",
            metavar="N",
            min=0,
            max=HIGHEST_PORT,
        ),
    ] = None,
    open_page: Annotated[bool, option("Open the page in a browser.", "--open")] = False,
    host: Annotated[
        str,
        option(
            "Address to listen on. Others than this machine's own need --cert, --key and "
            "--token-file.",
            metavar="HOST",
        ),
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        option(
            "A name under which browsers reach the server; may be repeated.",
            "--allow-host",
            metavar="NAME",
        ),
    ] = None,
    cert: Annotated[Path | None, option("Certificate for TLS, PEM.", metavar="FILE")] = None,
    key: Annotated[Path | None, option("Its key, PEM.", metavar="FILE")] = None,
    token_file: Annotated[
        Path | None,
        option("File with the token for commands and logins.", "--token-file", metavar="FILE"),
    ] = None,
    require_token: Annotated[
        bool, option("Reading needs the token as well.", "--require-token")
    ] = False,
    certs: Annotated[
        Path | None,
        option(
            "Keys and certificates of an operator, to stop and drain cluster runs.",
            "--certs",
            metavar="FOLDER",
        ),
    ] = None,
    name: Annotated[
        str, option("Name of the operator, as in its certificate.", metavar="NAME")
    ] = "operator",
) -> None:
    """Show running and finished runs on a page in the browser."""
    if not folder.is_dir():
        raise RunError(
            f"{folder} is not a folder",
            allowed="a folder with runs, or the folder of one run",
            fix="check the path; `fedhp run` prints where it writes",
        )
    from fedhp.console import Activity

    with Activity("starting"):
        from fedhp.dash.actions import Operator
        from fedhp.dash.app import DashSettings
        from fedhp.dash.listening import listening_socket, url_of
        from fedhp.dash.server import serve

        files = _tls(cert, key)
        access, made = _access(
            host,
            tls=files is not None,
            names=allow_host or [],
            token_file=token_file,
            require_token=require_token,
            acts=certs is not None,
        )
        if certs is not None:
            from fedhp.cluster.security.identity import load_identity

            load_identity(certs, name)
        listener = listening_socket(host, port)
    url = url_of(listener, host, tls=files is not None)

    def started() -> None:
        say(f"runs in {folder}: {url}")
        if made:
            say(f"token for stop and drain: {access.token}")
        say("Ctrl-C ends the page; runs go on")
        if open_page:
            _open(url)

    serve(DashSettings(folder, access, Operator(certs, name)), listener, tls=files, started=started)


@contextmanager
def live_page(
    wanted: bool, folder: Path, *, port: int | None, quiet: bool = False
) -> Iterator[None]:
    """While a command runs, its page if --dash is given; it ends with the command."""
    if not wanted:
        if port is not None:
            raise ConfigError(
                "it is only used together with --dash",
                key="--dash-port",
                source=COMMAND_LINE,
                allowed="--dash --dash-port N",
                fix="add --dash",
            )
        yield
        return
    from fedhp.dash.child import DashChild

    with DashChild(folder, port=port, option="--dash-port") as child:
        say(f"live page: {child.url}", error=True)
        yield
        if child.failed:
            say("the live page ended before the run", error=True)


def suggest_dash(folder: Path) -> None:
    """Say how to look at runs on the page."""
    suggest("look at them in a browser:", [f"fedhp dash {shlex.quote(str(folder))} --open"])


def _tls(cert: Path | None, key: Path | None) -> DashCertificate | None:
    from fedhp.dash.server import DashCertificate, check_tls

    if cert is None and key is None:
        return None
    if cert is None or key is None:
        missing = "--cert" if cert is None else "--key"
        raise ConfigError(
            "a certificate and its key are needed together",
            key=missing,
            source=COMMAND_LINE,
            allowed="--cert FILE --key FILE",
            fix=f"add {missing} FILE",
        )
    files = DashCertificate(cert, key)
    check_tls(files)
    return files


def _access(
    host: str,
    *,
    tls: bool,
    names: list[str],
    token_file: Path | None,
    require_token: bool,
    acts: bool,
) -> tuple[Access, bool]:
    """Who may read and command, and whether a new token was made for that."""
    from fedhp.dash.security import LOOPBACK, Access, host_name, is_loopback, new_token, read_token

    local = is_loopback(host)
    if not local and (not tls or token_file is None):
        raise ConfigError(
            f"other machines can reach {host}, but TLS or the token is missing",
            key="--host",
            source=COMMAND_LINE,
            allowed="--host with --cert, --key and --token-file; without them 127.0.0.1",
            fix="add these options, or leave --host out and use: ssh -L 8420:localhost:8420 ...",
        )
    for name in names:
        if host_name(name) != name.lower() or not re.fullmatch(HOST_NAME, name):
            raise ConfigError(
                f"{name!r} is not the name of a host",
                key="--allow-host",
                source=COMMAND_LINE,
                allowed="a host name without a port, such as dash.example.org",
                fix="write only the name",
            )
    token = None if token_file is None else read_token(token_file)
    made = token is None and (acts or require_token)
    wildcard = host in ("0.0.0.0", "::")
    own = () if wildcard else (host.lower(),)
    access = Access(
        hosts=frozenset([*LOOPBACK, *own, *(name.lower() for name in names)]),
        any_address=wildcard,
        token=new_token() if made else token,
        read_token=not local or require_token,
        tls=tls,
    )
    return access, made


def _open(url: str) -> None:
    import webbrowser

    if not webbrowser.open(url):
        say("no browser was found; open the address in yours", error=True)
