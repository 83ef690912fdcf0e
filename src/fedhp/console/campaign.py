"""A campaign with its live display."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedhp.console.progress import CampaignProgress
from fedhp.engine.campaign import Cell, run_cells
from fedhp.errors import FedhpError


def run_shown(
    cells: Sequence[Cell],
    *,
    source: str = "",
    jobs: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> list[FedhpError]:
    """Run the cells, a bar for each; the errors of runs that failed."""
    with CampaignProgress(total=len(cells)) as display:
        started: set[Path] = set()

        def tell(cell: Cell, event: dict[str, Any]) -> None:
            name = f"{cell.label} seed {cell.seed}"
            if event["event"] != "round":
                # The first line now; all of it comes at the end.
                display.end(name, event.get("message", event["event"]).splitlines()[0])
                return
            if cell.folder not in started:
                started.add(cell.folder)
                display.begin(name, cell.experiment.rounds, done=event["round"] - 1)
            display.update(name, event)

        return run_cells(cells, source=source, jobs=jobs, tell=tell, stop=stop)
