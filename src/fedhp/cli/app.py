"""The commands of `fedhp`. Their modules import heavy libraries only when they run."""

from __future__ import annotations

from typing import Annotated

import typer

from fedhp import __version__
from fedhp.cli.certs import app as certs_app
from fedhp.cli.cluster import app as cluster_app
from fedhp.cli.compare import compare
from fedhp.cli.coordinator import coordinator
from fedhp.cli.dash import dash
from fedhp.cli.data import app as data_app
from fedhp.cli.doctor import doctor
from fedhp.cli.explain import explain
from fedhp.cli.export import export
from fedhp.cli.help import CommandApp
from fedhp.cli.report import report
from fedhp.cli.reproduce import reproduce
from fedhp.cli.run import run
from fedhp.cli.show import show
from fedhp.cli.start import demo, init
from fedhp.cli.sweep import sweep
from fedhp.cli.tune import tune
from fedhp.cli.whatif import whatif
from fedhp.cli.worker import worker

app = CommandApp(help="Decentralized federated learning among unequal participants.")
for command in (demo, init, run, compare, sweep, tune, reproduce):
    app.command()(command)
for reading_command in (show, dash, explain, whatif, report, export):
    app.command()(reading_command)
for network_command in (coordinator, worker, doctor):
    app.command()(network_command)
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
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Decentralized federated learning among unequal participants."""
