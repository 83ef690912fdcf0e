"""What a group average asks of a shard: contribute, adopt the new consensus, train on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from fedhp.engine.executor import LocalTraining
from fedhp.engine.shard.rows import Rows
from fedhp.engine.shard.trainer import Trainer
from fedhp.learn.group_state import Columns, Contributions, GroupState, GroupUpdate, RootRows
from fedhp.learn.local import check
from fedhp.types import FloatArray, IntArray


class Groups:
    """The rounds of a shard's workers with group averages."""

    def __init__(self, rows: Rows, trainer: Trainer) -> None:
        self.rows, self.layout, self._trainer = rows, rows.layout, trainer
        self.state = GroupState(len(rows.workers), rows.initial, rows.layout, rows.spec.scratch)
        self._new_consensus: dict[int, Tensor] = {}  # by row, of this round's group average
        self._fragment = Columns(0, 0, 0)

    def begin(self) -> None:
        """Forget the average of another round, or of another try of this one."""
        self._new_consensus = {}

    def contributions(self, workers: IntArray, columns: Columns) -> Contributions:
        rows = [self.rows.index[worker] for worker in workers.tolist()]
        return self.state.contributions(self.rows.models, rows, columns)

    def root_rows(self, worker: int, columns: Columns) -> RootRows:
        return self.state.root_rows(self.rows.index[worker], columns)

    def adopt(self, updates: Sequence[GroupUpdate], columns: Columns) -> None:
        """mixed = the new consensus + what was learned during the transfer, for the participants.

        Everyone else, and every other column, continues from `after`.
        """
        rows = self.rows
        rows.mixed.copy_(rows.after)
        self.state.give_up()
        for update in updates:
            self._fragment = columns
            prepared = self.state.prepare(update, columns)
            self._new_consensus |= prepared
            trained = columns.trained
            plain = torch.from_numpy(np.array(update.plain)).to(rows.mixed)
            for row, consensus in prepared.items():
                learned = rows.after[row, trained] - rows.models[row, trained]
                rows.mixed[row, trained] = consensus + learned
                rows.mixed[row, columns.plain] = plain
            rows.reset_state(rows.mixed, update.rows)
        check(rows.stop)

    def train_on(
        self, local_steps: IntArray, *, round_index: int, learning_rate: float
    ) -> tuple[FloatArray, FloatArray]:
        """More local steps, on `mixed`: mean losses, and norms of all local steps of the round."""
        loss = self._trainer.train_round(
            local_steps, self.rows.mixed, round_index=round_index, rate=learning_rate, phase=1
        )
        return loss, self._norms()

    def train_paced(
        self, row: int, more: Callable[[], bool], *, round_index: int, learning_rate: float
    ) -> tuple[int, float]:
        """Local steps of one worker as long as `more` says, before the group average: how many,
        and their mean loss."""
        rows = self.rows
        self.begin()
        rows.after[row] = rows.models[row]
        rows.after_counters[row] = rows.counters[row]
        training = LocalTraining(round_index, 0, learning_rate)
        return self._trainer.train_paced(row, training, more, rows.after)

    def train_on_paced(
        self, row: int, more: Callable[[], bool], *, round_index: int, learning_rate: float
    ) -> tuple[int, float, float]:
        """The same after the average, on `mixed`: steps, mean loss, and the norm of all steps."""
        training = LocalTraining(round_index, 0, learning_rate, phase=1)
        steps, loss = self._trainer.train_paced(row, training, more, self.rows.mixed)
        return steps, loss, float(self._norms()[row])

    def served(self) -> Tensor:
        """The models to test: the consensus that each worker holds."""
        return self.state.served(self.rows.models)

    def _norms(self) -> FloatArray:
        """The norms of all local steps of a round with a group average, [n]."""
        norms, trainable, mixed = [], self.layout.trainable, self.rows.mixed
        for row in range(len(self.rows.workers)):
            change = mixed[row, :trainable] - self.rows.models[row, :trainable]
            if row in self._new_consensus:
                trained = self._fragment.trained
                change[trained] = mixed[row, trained] - self._new_consensus[row]
            norms.append(float(torch.linalg.vector_norm(change)))
        return np.array(norms)
