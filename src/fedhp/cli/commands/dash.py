"""`fedhp dash`: the live page of running and finished runs; and --dash of other commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fedhp.cli.parameters import argument, flag, option, say, shared_option, suggest, wrong_option
from fedhp.errors import RunError

if TYPE_CHECKING:
    from fedhp.dash.security import Access
    from fedhp.dash.server import DashCertificate

HOST_NAME = r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?"
HIGHEST_PORT = 65_535

Dash = Annotated[
    bool, shared_option("", "Show the run on a page in the browser while it runs.", "--dash")
]
DashPort = Annotated[
    int | None,
    shared_option(
        "N",
        "Port of that page; 0 is any free one. Default: a free one from 8420 on.",
        min=0,
        max=HIGHEST_PORT,
    ),
]


def dash(
    folder: Path = argument("RUNS_FOLDER", "A folder with runs, or a run.", default=Path("runs")),
    port: int | None = option(
        "N",
        "Port to listen on; 0 is any free one. Default: a free one from 8420 on.",
        min=0,
        max=HIGHEST_PORT,
    ),
    open_page: bool = flag("Open the page in a browser.", "--open"),
    host: str = option(
        "HOST",
        "Address to listen on. Others than this machine's own need --cert, --key and --token-file.",
        default="127.0.0.1",
    ),
    allow_host: list[str] | None = option(
        "NAME", "A name under which browsers reach the server; may be repeated."
    ),
    cert: Path | None = option("FILE", "Certificate for TLS, PEM."),
    key: Path | None = option("FILE", "Its key, PEM."),
    token_file: Path | None = option("FILE", "File with the token for commands and logins."),
    require_token: bool = option(
        "", "Reading needs the token as well.", "--require-token", default=False
    ),
    certs: Path | None = option(
        "FOLDER", "Keys and certificates of an operator, to stop and drain cluster runs."
    ),
    name: str = option("NAME", "Name of the operator, as in its certificate.", default="operator"),
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
def live_page(wanted: bool, folder: Path, *, port: int | None) -> Iterator[None]:
    """While a command runs, its page if --dash is given; it ends with the command."""
    if not wanted:
        if port is not None:
            raise wrong_option(
                "--dash-port",
                "it is only used together with --dash",
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
    suggest("look at them in a browser:", [f"fedhp dash {shlex.quote(str(folder))} --open"])


def _tls(cert: Path | None, key: Path | None) -> DashCertificate | None:
    from fedhp.dash.server import DashCertificate, check_tls

    if cert is None and key is None:
        return None
    if cert is None or key is None:
        missing = "--cert" if cert is None else "--key"
        raise wrong_option(
            missing,
            "a certificate and its key are needed together",
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
        raise wrong_option(
            "--host",
            f"other machines can reach {host}, but TLS or the token is missing",
            allowed="--host with --cert, --key and --token-file; without them 127.0.0.1",
            fix="add these options, or leave --host out and use: ssh -L 8420:localhost:8420 ...",
        )
    for name in names:
        if host_name(name) != name.lower() or not re.fullmatch(HOST_NAME, name):
            raise wrong_option(
                "--allow-host",
                f"{name!r} is not the name of a host",
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
