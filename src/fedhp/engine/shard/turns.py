"""What an asynchronous algorithm asks of a shard: one worker at a time.

`after` holds what is in flight: the snapshot a turn started from, then the change that training
made.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fedhp.engine.executor import LocalTraining
from fedhp.engine.shard.rows import Rows
from fedhp.engine.shard.trainer import Trainer
from fedhp.learn.params import STATE_RESET


class ShardTurns:
    """The turns of a shard's workers, and the models that they serve."""

    def __init__(self, rows: Rows, trainer: Trainer) -> None:
        self.rows, self.layout, self._trainer = rows, rows.layout, trainer
        self._own_columns = self.layout.state.start  # before the optimizer's state that stays here
        # What is tested, where that is not the current model.
        self.served = rows.matrix(self.layout.tested) if rows.spec.serves else None

    def snapshot(self, row: int) -> None:
        """Start a turn of a worker from its current model."""
        rows = self.rows
        if (flag := self.layout.columns(STATE_RESET)) is not None:
            rows.models[row, flag] = 0.0
        rows.after[row] = rows.models[row]
        rows.after_counters[row] = rows.counters[row]

    def train(self, trainings: dict[int, LocalTraining]) -> dict[int, float]:
        """Train these snapshots; what is in flight is then the change that training made, and the
        optimizer's state after it."""
        model, after = slice(self._own_columns), self.rows.after
        start = after[list(trainings), model]
        losses = self._trainer.train(trainings, after)
        for index, row in enumerate(trainings):
            after[row, model] -= start[index]
        return losses

    def apply(self, row: int) -> float:
        """Add the change to the worker's current model; its norm."""
        self._end(row, slice(self._own_columns))
        return float(torch.linalg.vector_norm(self.rows.after[row, : self.layout.trainable]))

    def change(self, row: int) -> NDArray[np.float32]:
        """The part of a change in flight that travels; what does not travel is added here."""
        mixed = self.layout.mixed
        self._end(row, slice(mixed, self._own_columns))
        return self.rows.after[row, :mixed].cpu().numpy().copy()

    def shift_all(self, change: NDArray[np.float32]) -> None:
        """Add a change to the part of every worker's current model that travels."""
        models = self.rows.models[:, : self.layout.mixed]
        models += torch.from_numpy(change).to(models.device)
        self.rows.reset_state(self.rows.models, range(len(self.rows.workers)))

    def model(self, row: int) -> NDArray[np.float32]:
        """The part of a worker's current model that travels."""
        return self.rows.models[row, : self.layout.mixed].cpu().numpy().copy()

    def average(self, row: int, other: NDArray[np.float32]) -> float:
        """Set a worker's model to the mean of it and another; the distance between them before."""
        mine = self.rows.models[row, : self.layout.mixed]
        theirs = torch.from_numpy(other).to(mine.device)
        trainable = slice(self.layout.trainable)
        apart = float(torch.linalg.vector_norm((mine - theirs)[trainable]))
        mine.copy_((mine + theirs) * 0.5)
        self.rows.reset_state(self.rows.models, [row])
        return apart

    def shift(self, row: int, change: NDArray[np.float32]) -> None:
        """Add half of a difference to the part of a worker's current model that travels."""
        mine = self.rows.models[row, : self.layout.mixed]
        mine += torch.from_numpy(change).to(mine.device)
        self.rows.reset_state(self.rows.models, [row])

    def serve(self, row: int, factor: float) -> None:
        """Move the served model towards the current one; with the factor 1, all the way."""
        assert self.served is not None
        current = self.rows.models[row, : self.layout.tested]
        if factor == 1.0:
            self.served[row] = current
        else:
            self.served[row] += factor * (current - self.served[row])

    def _end(self, row: int, added: slice) -> None:
        """Add these columns of the change, and take the optimizer's state over, unless an exchange
        has set it to zero during the turn."""
        rows = self.rows
        rows.models[row, added] += rows.after[row, added]
        rows.counters[row] = rows.after_counters[row]
        flag = self.layout.columns(STATE_RESET)
        if flag is None or not rows.models[row, flag]:
            state = self.layout.state
            rows.models[row, state] = rows.after[row, state]
