"""The commands of `fedhp`. Their modules import heavy libraries only when they run."""

from __future__ import annotations

from typing import Annotated

import typer

from fedhp import __version__
from fedhp.cli.commands.certs import app as certs_app
from fedhp.cli.commands.cluster import app as cluster_app
from fedhp.cli.commands.compare import compare
from fedhp.cli.commands.coordinator import coordinator
from fedhp.cli.commands.dash import dash
from fedhp.cli.commands.data import app as data_app
from fedhp.cli.commands.doctor import doctor
from fedhp.cli.commands.explain import explain
from fedhp.cli.commands.export import export
from fedhp.cli.commands.report import report
from fedhp.cli.commands.reproduce import reproduce
from fedhp.cli.commands.run import run
from fedhp.cli.commands.show import show
from fedhp.cli.commands.start import demo, init
from fedhp.cli.commands.sweep import sweep
from fedhp.cli.commands.tune import tune
from fedhp.cli.commands.whatif import whatif
from fedhp.cli.commands.worker import worker
from fedhp.cli.help import CommandApp
from fedhp.cli.parameters import shared_option

app = CommandApp(help="Decentralized federated learning among unequal participants.")
for command in (
    *(demo, init, run, compare, sweep, tune, reproduce),
    *(show, dash, explain, whatif, report, export),
    *(coordinator, worker, doctor),
):
    app.command()(command)
app.add_typer(data_app, name="data")
app.add_typer(certs_app, name="certs")
app.add_typer(cluster_app, name="cluster")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedhp {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        shared_option(
            "", "Show the version and exit.", "--version", callback=_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Decentralized federated learning among unequal participants."""
