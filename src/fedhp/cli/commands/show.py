"""`fedhp show`: a run's settings, numbers and rounds; or all runs in a folder."""

from __future__ import annotations

from pathlib import Path

from fedhp.cli.parameters import Json, argument, option, table_console


def show(
    run: Path = argument("RUN", "A run folder, or a folder that contains runs.", default=...),
    round_index: int | None = option("N", "Show what every worker did in this round.", "--round"),
    figures: Path | None = option("DIR", "Also save figures in this folder."),
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
            from fedhp.report.figures.comparison import save_comparison_figures
            from fedhp.report.figures.run import save_run_figures

            first, *others = folders = find_runs(run)
            if others:
                paths = save_comparison_figures(folders, figures)
            else:
                paths = save_run_figures(first, figures)
        if not as_json:
            print_parts(console, [f"figures: {figures} ({count(len(paths), 'file')})"])
