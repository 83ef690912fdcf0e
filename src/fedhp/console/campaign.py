"""A campaign of runs with a live display and an estimate of the time left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedhp.console.forecast import Forecast, RunForecast
from fedhp.console.progress import CampaignProgress
from fedhp.engine.prepare import cores
from fedhp.engine.runs.campaign import Cell, Report, run_cells
from fedhp.errors import FedhpError


def cell_name(cell: Cell) -> str:
    return f"{cell.label} seed {cell.seed}"


def run_with_progress(
    cells: Sequence[Cell],
    *,
    jobs: int | None = None,
    ray: str | None = None,
    stop: Callable[[], bool] = lambda: False,
    name_of: Callable[[Cell], str] = cell_name,
    short_labels: Mapping[str, str] = MappingProxyType({}),
) -> list[FedhpError]:
    """Run the cells with a progress bar for each; returns the errors of runs that failed.

    A narrow terminal shows the short label of a run where the whole one does not fit.
    """
    forecast = Forecast(cells, jobs=jobs or cores(), clock=time.monotonic)
    with CampaignProgress(total=len(cells)) as display:
        show = cell_display(display, forecast, name_of=name_of, short_labels=short_labels)
        return run_cells(cells, jobs=jobs, ray=ray, report=show, stop=stop)


def cell_display(
    display: CampaignProgress,
    forecast: Forecast | RunForecast,
    *,
    name_of: Callable[[Cell], str] = cell_name,
    short_labels: Mapping[str, str] = MappingProxyType({}),
) -> Report:
    lock = threading.Lock()  # events come from one thread per job
    started: set[Path] = set()

    def show(cell: Cell, event: dict[str, Any]) -> None:
        name = name_of(cell)
        rounds, label = cell.experiment.rounds, short_labels.get(cell.label, cell.label)
        short, horizon = name.replace(cell.label, label), cell.experiment.horizon
        with lock:
            if event["event"] == "started":
                display.begin(name, rounds, short=short, horizon=horizon)
                return
            if event["event"] != "round":
                forecast.end(cell)
                # Only the first line here: the whole message is printed at the end.
                outcome = event.get("message", event["event"]).splitlines()[0]
                done = event["event"] != "interrupted"
                left = forecast.seconds_left() if done else None
                display.end(name, outcome, left, done=done)
                return
            forecast.round(cell, event["round"], clock=event["clock"])
            if cell.folder not in started:
                started.add(cell.folder)
                done = event["round"] - 1
                display.begin(name, rounds, done=done, short=short, horizon=horizon)
            display.update(name, event, forecast.seconds_left())

    return show
