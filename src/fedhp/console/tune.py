"""A tuning with a live display: the runs of all batches count as one campaign."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fedhp.console.campaign import cell_display
from fedhp.console.forecast import RunForecast
from fedhp.console.progress import CampaignProgress
from fedhp.engine.runs.campaign import run_cells
from fedhp.engine.runs.tune import CellBatch, Trial, Tuned, Tuning, tune
from fedhp.errors import FedhpError


def tune_with_progress(
    tuning: Tuning,
    *,
    jobs: int | None = None,
    ray: str | None = None,
    stop: Callable[[], bool] = lambda: False,
    describe: Callable[[Trial, bool], str],
    short_labels: Mapping[str, str],
) -> tuple[Tuned, list[FedhpError]]:
    """Search and compare; `describe` is a line about a trial, and whether it is the best so far.

    `short_labels` are the names of the tuned algorithms.
    """
    forecast = RunForecast(tuning.most_runs, clock=time.monotonic)
    names: dict[Path, str] = {}
    with CampaignProgress(total=tuning.most_runs) as display:
        show = cell_display(display, forecast, name_of=lambda cell: names[cell.folder])

        def run(batch: CellBatch) -> list[FedhpError]:
            for folder, (label, name) in batch.names.items():
                names[folder] = f"{short_labels[label]} {name}"
            forecast.total = display.expect(len(batch.cells) + batch.later)
            return run_cells(batch.cells, jobs=jobs, ray=ray, report=show, stop=stop)

        return tune(
            tuning, run=run, trial_ended=lambda trial, best: display.note(describe(trial, best))
        )
