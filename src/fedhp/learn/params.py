"""A model as one flat row: every worker's parameters are a row of one fp32 matrix.

Columns: trainable parameters, then frozen ones, what travels along with a model (`carried`), and
float buffers (BatchNorm's running statistics). The first `mixed` columns travel to neighbors; the
rest stay with the worker, also what is carried behind them. Integers (BatchNorm's counters, the
position in the stream of shuffled samples) stay, in a matrix of their own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedhp.rule import Vector

# The state of the optimizer (optimizer.py).
VELOCITY, FIRST_MOMENT, SECOND_MOMENT = "velocity", "first_moment", "second_moment"
STEP_COUNT = "step_count"
STATE_RESET = "state_reset"  # 1: an exchange has set the state to zero since the last training
PER_PARAMETER = (VELOCITY, FIRST_MOMENT, SECOND_MOMENT)  # a number for each trained one
OPTIMIZER_STATE = (*PER_PARAMETER, STEP_COUNT, STATE_RESET)


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one tensor lives in a row."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class VectorSlot(Slot):
    """Where a vector lives in a row; no tensor of a module has a name that begins with a dot."""

    vector: Vector

    @property
    def columns(self) -> slice:
        return slice(self.start, self.stop)


@dataclass(frozen=True, slots=True)
class Layout:
    """How a module's tensors are laid out in a row."""

    slots: tuple[Slot, ...]
    counters: tuple[Slot, ...]  # integer buffers, in the counter row
    trainable: int  # columns with a gradient
    mixed: int  # columns that are exchanged
    width: int  # all columns
    counter_width: int
    # Columns of no tensor of the module: the vectors of the method's rule and of the optimizer.
    carried: tuple[VectorSlot, ...] = ()
    position: int | None = None  # the counter of the samples taken, with training.batches = epochs

    @property
    def sent_slots(self) -> tuple[Slot, ...]:
        """The tensors that travel, in the order of their columns."""
        slots = sorted((*self.slots, *self.carried), key=lambda slot: slot.start)
        return tuple(slot for slot in slots if slot.stop <= self.mixed)

    @property
    def module_columns(self) -> int:
        """How many of the columns that travel are the model's own."""
        return self.mixed - sum(s.stop - s.start for s in self.carried if s.stop <= self.mixed)

    @property
    def tested(self) -> int:
        """The first columns, which contain all tensors of the module: what a test needs."""
        return max((slot.stop for slot in self.slots), default=0)

    @property
    def state(self) -> slice:
        """The columns of the optimizer's state, one after the other; empty if it has none."""
        slots = [slot for slot in self.carried if slot.vector.name in OPTIMIZER_STATE]
        return slice(slots[0].start, slots[-1].stop) if slots else slice(self.width, self.width)

    @property
    def mixed_ends(self) -> tuple[int, ...]:
        return tuple(slot.stop for slot in self.sent_slots)

    @property
    def untrained(self) -> tuple[slice, slice]:
        """The columns of the module that travel and are not trained: frozen ones, statistics."""
        travelling = [slot for slot in self.carried if slot.stop <= self.mixed]
        first, last = (
            (travelling[0].start, travelling[-1].stop) if travelling else (self.mixed,) * 2
        )
        return slice(self.trainable, first), slice(last, self.mixed)

    def columns(self, name: str) -> slice | None:
        """Where a vector is, if it is there."""
        for slot in self.carried:
            if slot.vector.name == name:
                return slot.columns
        return None

    def continue_from(self, row: NDArray[np.float32], received: NDArray[np.float32]) -> None:
        """Take over what another worker sent, in place: a vector that stays is kept, or begins
        again, as it declares."""
        row[: self.mixed] = received
        for slot in self.carried:
            if slot.stop > self.mixed and slot.vector.returning == "start":
                row[slot.columns] = self.start_of(slot, row)

    def start_of(self, slot: VectorSlot, row: Any) -> Any:
        """What a vector begins with, in the row of a model."""
        return {"zero": 0.0, "one": 1.0, "model": row[: self.trainable]}[slot.vector.start]


def layout_of(
    module: nn.Module,
    *,
    batch_norm: str,
    vectors: Sequence[Vector] = (),
    epochs: bool = False,
) -> Layout:
    """The layout of a module; batch_norm is "mixed" or "local" (training.batch_norm).

    vectors: of the method's rule, then of the optimizer; those that stay are the last columns.
    epochs: a worker's position in the stream of its samples is counted.
    """
    parameters = list(module.named_parameters())
    trainable = [(name, tensor) for name, tensor in parameters if tensor.requires_grad]
    frozen = [(name, tensor) for name, tensor in parameters if not tensor.requires_grad]
    buffers = list(module.named_buffers())
    floats = [(name, tensor) for name, tensor in buffers if tensor.is_floating_point()]
    whole = [(name, tensor) for name, tensor in buffers if not tensor.is_floating_point()]
    tensors: list[tuple[str, Tensor]] = [*trainable, *frozen]
    slots = _slots(tensors)
    counters = _slots(whole)
    trained = slots[len(trainable) - 1].stop if trainable else 0
    fixed = slots[-1].stop if slots else 0
    carried = _vector_slots([vector for vector in vectors if vector.travels], trained, fixed)
    fixed = carried[-1].stop if carried else fixed
    slots += _slots(floats, fixed)
    width = max(fixed, slots[-1].stop if slots else 0)
    mixed = width if batch_norm == "mixed" else fixed
    carried += _vector_slots([vector for vector in vectors if not vector.travels], trained, width)
    width = max([width, *(slot.stop for slot in carried)])
    counter_width = counters[-1].stop if counters else 0
    return Layout(
        slots=slots,
        counters=counters,
        trainable=trained,
        mixed=mixed,
        width=width,
        counter_width=counter_width + epochs,
        carried=tuple(carried),
        position=counter_width if epochs else None,
    )


def _vector_slots(vectors: Sequence[Vector], trained: int, start: int) -> list[VectorSlot]:
    slots = []
    for vector in vectors:
        size = 1 if vector.scalar else trained
        slots.append(VectorSlot(f".{vector.name}", (size,), start, start + size, vector))
        start += size
    return slots


def _slots(tensors: list[tuple[str, Tensor]], start: int = 0) -> tuple[Slot, ...]:
    slots = []
    for name, tensor in tensors:
        shape = tuple(tensor.shape)
        slots.append(Slot(name, shape, start, start + prod(shape)))
        start += prod(shape)
    return tuple(slots)


class Replica:
    """One module that can be pointed at any worker's row; each thread has its own."""

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        forward: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.module = module
        self.forward = forward or module  # another way to compute the same (learn/blocked)
        self.layout = layout
        self.row = torch.empty(0)  # to which the module is bound
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        self._tensors = [tensors[slot.name] for slot in layout.slots]
        self._counters = [tensors[slot.name] for slot in layout.counters]
        self.trained = [tensor for tensor in self._tensors if tensor.requires_grad]

    def bind(self, row: Tensor, counters: Tensor) -> None:
        """Make the module's tensors views of this row: what it learns is written there."""
        self.row = row
        for tensor, slot in zip(self._tensors, self.layout.slots, strict=True):
            # .data gives the module its own version counter: threads never share one.
            tensor.data = row[slot.start : slot.stop].view(slot.shape)
        for tensor, slot in zip(self._counters, self.layout.counters, strict=True):
            tensor.data = counters[slot.start : slot.stop].view(slot.shape)

    def views(self, row: Tensor) -> list[Tensor]:
        """A row of the trainable columns, as tensors of the shapes of the trained parameters."""
        slots = self.layout.slots[: len(self.trained)]
        return [row[slot.start : slot.stop].view(slot.shape) for slot in slots]

    def carried(self, name: str) -> Tensor:
        """The columns of the row in which something carried is."""
        columns = self.layout.columns(name)
        if columns is None:
            raise KeyError(f"the layout has no columns for {name}")
        return self.row[columns]

    def gradient(self) -> Tensor:
        """The gradient of the trainable columns as one vector."""
        return torch.cat(
            [(torch.zeros_like(t) if t.grad is None else t.grad).reshape(-1) for t in self.trained]
        )

    def clear(self) -> None:
        for tensor in self.trained:
            tensor.grad = None


def row_of(module: nn.Module, layout: Layout) -> tuple[Tensor, Tensor]:
    """A module's tensors as a row and a counter row."""
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    row = torch.zeros(layout.width)
    counters = torch.zeros(layout.counter_width, dtype=torch.int64)
    for slot in layout.slots:
        row[slot.start : slot.stop] = tensors[slot.name].detach().reshape(-1)
    for carried in layout.carried:
        row[carried.columns] = layout.start_of(carried, row)
    for slot in layout.counters:
        counters[slot.start : slot.stop] = tensors[slot.name].detach().reshape(-1)
    return row, counters


def matrix(count: int, row: Tensor, folder: Path | None = None) -> Tensor:
    """`count` copies of a row [D] as one matrix; with a folder, memory-mapped from a file without a
    name there, which the system deletes together with the matrix."""
    if folder is None or not count or not len(row):
        return row.repeat(count, 1)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(4 * count * len(row))
        mapped = np.memmap(file, dtype=np.float32, mode="r+", shape=(count, len(row)))
    rows = torch.from_numpy(mapped)
    for target in rows:  # one row after the other reaches the disk
        target.copy_(row)
    return rows


def rows_of(matrix: Tensor) -> list[Tensor]:
    """The rows as tensors that share memory with the matrix but no version counter."""
    if matrix.device.type != "cpu":
        return [matrix[i] for i in range(len(matrix))]
    array = matrix.numpy()
    return [torch.from_numpy(array[i]) for i in range(len(matrix))]
