"""A campaign with its live display and the time it still takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedhp.console.forecast import Forecast, in_words
from fedhp.console.progress import CampaignProgress
from fedhp.engine.prepare import cores
from fedhp.engine.runs.campaign import Cell, run_cells
from fedhp.errors import FedhpError


def plain_name(cell: Cell) -> str:
    """How a run is called in the display."""
    return f"{cell.label} seed {cell.seed}"


def run_shown(
    cells: Sequence[Cell],
    *,
    source: str = "",
    jobs: int | None = None,
    stop: Callable[[], bool] = lambda: False,
    name_of: Callable[[Cell], str] = plain_name,
) -> list[FedhpError]:
    """Run the cells, a bar for each; the errors of runs that failed."""
    forecast = Forecast(cells, jobs=jobs or cores(), clock=time.monotonic)
    with CampaignProgress(total=len(cells)) as display:
        started: set[Path] = set()

        def tell(cell: Cell, event: dict[str, Any]) -> None:
            name = name_of(cell)
            if event["event"] != "round":
                forecast.end(cell)
                left = forecast.seconds_left()
                # The first line now; all of it comes at the end.
                outcome = event.get("message", event["event"]).splitlines()[0]
                known = "" if not left else f"; about {in_words(left)} left"
                display.end(name, outcome + known)
                return
            forecast.round(cell, event["round"])
            if cell.folder not in started:
                started.add(cell.folder)
                display.begin(name, cell.experiment.rounds, done=event["round"] - 1)
            display.update(name, event)

        return run_cells(cells, source=source, jobs=jobs, report=tell, stop=stop)
