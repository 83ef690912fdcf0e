"""`fedhp show`: a run's settings, numbers and rounds; or all runs in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from fedhp.cli.parameters import Json, argument, option, table_console


def show(
    run: Annotated[Path, argument("A run folder, or a folder that contains runs.", metavar="RUN")],
    round_index: Annotated[
        int | None, option("Show what every worker did in this round.", "--round", metavar="N")
    ] = None,
    figures: Annotated[
        Path | None, option("Also save figures in this folder.", metavar="DIR")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a run's settings and results, or compare all runs in a folder."""
    import json

    from fedhp.console import Activity
    from fedhp.record.reader import find_runs
    from fedhp.report.formatting import count
    from fedhp.report.show import print_parts, show_json, show_parts

    console = table_console()
    if as_json:
        print(json.dumps(show_json(run, round_index)))
    else:
        print_parts(console, show_parts(run, round_index))
    if figures is not None:
        with Activity("drawing the figures"):
            paths = _draw(find_runs(run), figures)
        if not as_json:
            print_parts(console, [f"figures: {figures} ({count(len(paths), 'file')})"])


def _draw(folders: Sequence[Path], out: Path) -> list[Path]:
    from fedhp.report.figures.comparison import save_comparison_figures
    from fedhp.report.figures.run import save_run_figures

    if len(folders) > 1:
        return save_comparison_figures(folders, out)
    return save_run_figures(folders[0], out)
