"""How long a campaign still takes, from what its rounds took so far.

Runs on the same data with the same model cost alike per local step; until one of a kind has
been seen, the mean of all kinds stands for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from fedhp.config import to_tables
from fedhp.engine.runs.campaign import Cell

# Local steps per round against those of the fixed-step algorithms; only to weigh runs.
USUAL_WORK = {"fedhp": 1.8, "ldsgd": 0.53, "pens": 1.2}
USUAL_IMAGES = 10_000  # of a whole test set
FORWARD = 1 / 3  # of a step's cost, to test as many images


class Forecast:
    """Seconds left, for cells that `jobs` processes take in turn."""

    def __init__(self, cells: Sequence[Cell], *, jobs: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._jobs = jobs
        self._left = {cell.folder: cell.experiment.rounds for cell in cells}
        self._cells = {cell.folder: cell for cell in cells}
        self._seen: dict[str, tuple[float, float]] = {}  # kind -> seconds, work
        self._since: dict[Path, tuple[float, int]] = {}  # run -> when its last round was told

    def round(self, cell: Cell, index: int) -> None:
        """A round of a run is done."""
        now = self._clock()
        if cell.folder in self._since:
            before, last = self._since[cell.folder]
            seconds, work = self._seen.get(kind(cell), (0.0, 0.0))
            done = (index - last) * work_of_round(cell)
            self._seen[kind(cell)] = (seconds + now - before, work + done)
        self._since[cell.folder] = (now, index)
        self._left[cell.folder] = cell.experiment.rounds - index

    def end(self, cell: Cell) -> None:
        """A run has ended, whole or not."""
        self._left[cell.folder] = 0

    def seconds_left(self) -> float | None:
        """None until a second round of some run is done."""
        if not self._seen:
            return None
        seconds, work = (sum(column) for column in zip(*self._seen.values(), strict=True))
        usual = seconds / work
        total = 0.0
        for folder, rounds in self._left.items():
            cell = self._cells[folder]
            mine = self._seen.get(kind(cell))
            rate = usual if mine is None else mine[0] / mine[1]
            total += rounds * work_of_round(cell) * rate
        busy = sum(rounds > 0 for rounds in self._left.values())
        return total / max(1, min(self._jobs, busy))


def work_of_round(cell: Cell) -> float:
    """What a round costs, in local steps: those of all workers, their tests, and a little."""
    algorithm, training = cell.experiment.algorithm, cell.experiment.training
    steps = algorithm.settings.get("steps", training.local_steps)
    steps = steps if isinstance(steps, int) else training.local_steps
    evaluation = cell.experiment.evaluation
    tests = (evaluation.images or USUAL_IMAGES) / evaluation.every / training.batch_size
    usual = USUAL_WORK.get(algorithm.name, 1.0)
    return cell.experiment.workers * (steps * usual + tests * FORWARD + 1)


def kind(cell: Cell) -> str:
    """What decides the cost of a local step: data, model, batch."""
    tables = to_tables(cell.experiment)
    data = {key: value for key, value in tables["data"].items() if key != "skew"}
    return json.dumps([data, tables["model"], tables["training"]["batch_size"]], sort_keys=True)


def in_words(seconds: float) -> str:
    """1 h 05 min, 12 min, 40 s."""
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min" if minutes >= 2 else f"{max(1, round(seconds))} s"
