"""What workers keep for group averages, as rows of a shard: consensus, momentum, what was left out.

A round's average is prepared first and takes effect with `commit`, so that a round can be given
up. The arithmetic is in group.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhp.learn.group import Rows, next_momentum
from fedhp.learn.params import Layout, matrix
from fedhp.learn.quantize import Row
from fedhp.types import BoolArray

GROUP_STATE = ("consensus", "momentum", "residual", "root_residual")  # as checkpoints name them


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a fragment: those that are trained, then those that are averaged plainly."""

    start: int
    middle: int
    stop: int

    @classmethod
    def of(cls, start: int, stop: int, *, trainable: int) -> Columns:
        """The columns from start to stop of a row whose first `trainable` ones are trained."""
        return cls(start, min(max(start, trainable), stop), stop)

    @property
    def trained(self) -> slice:
        """Averaged as changes, with momentum."""
        return slice(self.start, self.middle)

    @property
    def plain(self) -> slice:
        """Statistics and frozen values: the mean of the values replaces them."""
        return slice(self.middle, self.stop)


@dataclass(frozen=True, slots=True)
class Contributions:
    """What some participants bring into an average."""

    changes: Rows  # [k, D] since the consensus that each holds
    residuals: Rows  # [k, D]
    plain: Rows  # [k, R]


@dataclass(frozen=True, slots=True)
class RootRows:
    """What the root knows, of the trained columns, [D] each."""

    consensus: Row
    momentum: Row
    root_residual: Row


@dataclass(frozen=True, slots=True)
class GroupUpdate:
    """What some participants get from an average; row numbers are those of their shard."""

    rows: list[int]
    returning: BoolArray  # [k]
    residuals: Rows  # [k, D]
    root: int | None  # the row of the root, if it is among them
    change: Row  # [D]
    wholes: dict[int, Row]  # [D] by row, for those that return: the consensus
    root_residual: Row  # [D]
    plain: Row  # [R]
    factor: float  # of the momentum
    rate: float = 1.0  # of the step


class GroupState:
    """The rows of a shard's workers."""

    def __init__(
        self, count: int, initial: Tensor, layout: Layout, folder: Path | None = None
    ) -> None:
        self.layout = layout
        zeros = torch.zeros_like(initial[: layout.trainable])
        self.consensus = matrix(count, initial[: layout.mixed], folder)
        self.momentum = matrix(count, zeros, folder)
        self.residual = matrix(count, zeros, folder)
        self.root_residual = matrix(count, zeros, folder)
        self._prepared: list[tuple[Tensor, int, slice, Tensor]] = []

    def contributions(self, models: Tensor, rows: list[int], columns: Columns) -> Contributions:
        """What the workers in these rows bring, from their models at the start of the round."""
        trained, plain = columns.trained, columns.plain
        return Contributions(
            changes=_array(models[rows, trained] - self.consensus[rows, trained]),
            residuals=_array(self.residual[rows, trained]),
            plain=_array(models[rows, plain]),
        )

    def root_rows(self, row: int, columns: Columns) -> RootRows:
        """What the worker in this row knows as the root."""
        trained = columns.trained
        return RootRows(
            _array(self.consensus[row, trained]),
            _array(self.momentum[row, trained]),
            _array(self.root_residual[row, trained]),
        )

    def prepare(self, update: GroupUpdate, columns: Columns) -> dict[int, Tensor]:
        """The new consensus of every row, its trained columns; `commit` makes it the worker's."""
        trained = columns.trained
        new: dict[int, Tensor] = {}
        for index, row in enumerate(update.rows):
            momentum = _array(self.momentum[row, trained])
            if update.returning[index]:
                consensus, momentum = update.wholes[row], np.zeros_like(momentum)
            else:
                consensus = _array(self.consensus[row, trained]) + update.change
                momentum = next_momentum(update.change, momentum, update.factor, rate=update.rate)
            new[row] = self._later(self.consensus, row, trained, consensus)
            self._later(self.consensus, row, columns.plain, update.plain)
            self._later(self.momentum, row, trained, momentum)
            self._later(self.residual, row, trained, update.residuals[index])
            if row == update.root:
                self._later(self.root_residual, row, trained, update.root_residual)
        return new

    def commit(self) -> None:
        """The average that was prepared takes effect."""
        for target, row, columns, values in self._prepared:
            target[row, columns] = values
        self.give_up()

    def after_commit(self, row: int) -> dict[str, NDArray[np.float32]]:
        """What the worker in this row keeps once `commit` is called, by name."""
        kept = {name: _array(getattr(self, name)[row]).copy() for name in GROUP_STATE}
        names = {id(getattr(self, name)): name for name in GROUP_STATE}
        for target, changed, columns, values in self._prepared:
            if changed == row:
                kept[names[id(target)]][columns] = _array(values)
        return kept

    def give_up(self) -> None:
        self._prepared = []

    def served(self, models: Tensor) -> Tensor:
        """The models to test and to export: the consensus; what does not travel is the worker's."""
        mixed, tested = self.layout.mixed, self.layout.tested
        if mixed == tested:
            return self.consensus
        return torch.cat([self.consensus, models[:, mixed:tested]], dim=1)

    def _later(self, target: Tensor, row: int, columns: slice, values: Row) -> Tensor:
        tensor = torch.from_numpy(np.array(values)).to(target)
        self._prepared.append((target, row, columns, tensor))
        return tensor


def _array(tensor: Tensor) -> NDArray[np.float32]:
    return np.asarray(tensor.cpu().numpy(), dtype=np.float32)
