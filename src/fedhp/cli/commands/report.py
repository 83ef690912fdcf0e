"""`fedhp report`: an HTML page about any runs, with its figures and numbers as files."""

from __future__ import annotations

import json
from pathlib import Path

from fedhp.cli.parameters import Json, argument, option, say


def report(
    runs: list[Path] = argument("RUN", "Run folders, or folders that contain runs.", default=...),
    out: Path | None = option(
        "DIR",
        "Folder to write to. Default: report/, in the given folder, or in the folder "
        "that contains all of them.",
    ),
    as_json: Json = False,
) -> None:
    """Write an HTML page about one or more runs, and its figures and numbers as files."""
    from fedhp.console import Activity

    with Activity("starting") as activity:
        from fedhp.record.reader import find_runs
        from fedhp.report.formatting import count, data_size
        from fedhp.report.pages.run_report import report_folder, save_report

        folders = [folder for run in runs for folder in find_runs(run)]
        target = report_folder(runs) if out is None else out
        activity.now(f"drawing {count(len(folders), 'run')}")
        page, *files = save_report(folders, target, progress=activity.note)
    figures, data = (
        [path for path in files if path.parent.name == name] for name in ("figures", "data")
    )
    if as_json:
        paths = {"figures": [str(path) for path in figures], "data": [str(path) for path in data]}
        print(json.dumps({"report": str(page), **paths}))
        return
    say(f"report: {page} ({data_size(page.stat().st_size)}, {count(len(folders), 'run')})")
    say(f"figures: {target / 'figures'} ({count(len(figures), 'file')})")
    say(f"numbers: {target / 'data'} ({count(len(data), 'file')})")
