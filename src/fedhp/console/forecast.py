"""How long a campaign will still take, from the time its rounds took so far.

Runs on the same data with the same model cost the same per local step; a kind of run that has
not been measured yet counts with the mean of all kinds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from fedhp.algorithms.base import about
from fedhp.config import to_tables
from fedhp.engine.runs.campaign import Cell

USUAL_ROUND = 10.0  # s of virtual time
USUAL_IMAGES = 10_000  # of a whole test set
TEST_COST = 1 / 3  # of testing a batch of images, in local steps


class Forecast:
    """The seconds left for cells that `jobs` processes run in turn."""

    def __init__(self, cells: Sequence[Cell], *, jobs: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._jobs = jobs
        self._left = {cell.folder: _rounds_left(cell, 0, clock=0.0) for cell in cells}
        # Of every cell once: a campaign of a hundred runs asks after every round.
        self._kinds = {cell.folder: cost_kind(cell) for cell in cells}
        self._work = {cell.folder: round_work(cell) for cell in cells}
        self._measured: dict[str, tuple[float, float]] = {}  # kind -> seconds, work
        self._last: dict[Path, tuple[float, int]] = {}  # run -> its last round, and when it ended

    def round(self, cell: Cell, index: int, *, clock: float = 0.0) -> None:
        """A round of a run is done, at this virtual time."""
        now = self._clock()
        if cell.folder in self._last:
            before, last_index = self._last[cell.folder]
            kind = self._kinds[cell.folder]
            seconds, work = self._measured.get(kind, (0.0, 0.0))
            done = (index - last_index) * self._work[cell.folder]
            self._measured[kind] = (seconds + now - before, work + done)
        self._last[cell.folder] = (now, index)
        self._left[cell.folder] = _rounds_left(cell, index, clock=clock)

    def end(self, cell: Cell) -> None:
        self._left[cell.folder] = 0

    def seconds_left(self) -> float | None:
        """The seconds left; None until a second round of some run is done."""
        if not self._measured:
            return None
        seconds, work = (sum(column) for column in zip(*self._measured.values(), strict=True))
        mean_rate = seconds / work
        total = 0.0
        for folder, rounds in self._left.items():
            measured = self._measured.get(self._kinds[folder])
            rate = mean_rate if measured is None else measured[0] / measured[1]
            total += rounds * self._work[folder] * rate
        busy = sum(rounds > 0 for rounds in self._left.values())
        return total / max(1, min(self._jobs, busy))


class RunForecast:
    """The seconds left where most cells are not known yet: they take as long as those so far."""

    def __init__(self, total: int, *, clock: Callable[[], float]) -> None:
        self.total = total
        self._clock = clock
        self._began = clock()
        self._worked: set[Path] = set()  # runs that had a round; others had been finished before
        self._ended, self._ended_now = 0, 0

    def round(self, cell: Cell, index: int, *, clock: float = 0.0) -> None:
        self._worked.add(cell.folder)

    def end(self, cell: Cell) -> None:
        self._ended += 1
        self._ended_now += cell.folder in self._worked

    def seconds_left(self) -> float | None:
        """The seconds left; None until a run has ended."""
        if not self._ended_now:
            return None
        return (self._clock() - self._began) / self._ended_now * (self.total - self._ended)


def _rounds_left(cell: Cell, index: int, *, clock: float) -> float:
    """Rounds until the end; with a horizon, if they take as long as those so far."""
    horizon = cell.experiment.horizon
    if horizon is None:
        return cell.experiment.rounds - index
    length = clock / index if index and clock else USUAL_ROUND
    return max(0.0, horizon - clock) / length


def round_work(cell: Cell) -> float:
    """What a round costs in local steps: those of all workers, their tests, and overhead."""
    algorithm, training = cell.experiment.algorithm, cell.experiment.training
    steps = algorithm.settings.get("steps", training.local_steps)
    steps = steps if isinstance(steps, int) else training.local_steps
    evaluation = cell.experiment.evaluation
    tests = (evaluation.images or USUAL_IMAGES) / evaluation.every / training.batch_size
    known = about(algorithm.name)
    usual = 1.0 if known is None else known.work
    return cell.experiment.workers * (steps * usual + tests * TEST_COST + 1)


def cost_kind(cell: Cell) -> str:
    """What the cost of a local step depends on: data, model, batch."""
    tables = to_tables(cell.experiment)
    data = {key: value for key, value in tables["data"].items() if key != "skew"}
    model = tables.get("model", tables["task"])  # an own task has its own model
    return json.dumps([data, model, tables["training"]["batch_size"]], sort_keys=True)
