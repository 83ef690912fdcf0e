"""What an asynchronous algorithm asks of a shard: one worker at a time.

`after` holds what is in flight: the snapshot a turn started from, then the change that training
made. Where workers have boxes, or a rule that sends and receives, a turn ends with a message (in
`mixed`), and `after` holds the model that it started from until the next turn begins: the box is
read then.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, isnan

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhp.engine.executor import LocalTraining
from fedhp.engine.shard.rows import Rows
from fedhp.engine.shard.trainer import Trainer
from fedhp.exchange.mailbox import BOXES, kept_messages
from fedhp.learn.params import STATE_RESET
from fedhp.learn.vectors import receive, send
from fedhp.record.tensors import Arrays
from fedhp.rule import Step

# What is sent of a mass is a multiple of this, so that sums of masses below 256 are exact; a worker
# that has hardly any keeps it.
MASS_UNIT = 2.0**-16


class ShardTurns:
    """The turns of a shard's workers, and the models that they serve."""

    def __init__(self, rows: Rows, trainer: Trainer) -> None:
        self.rows, self.layout, self._trainer = rows, rows.layout, trainer
        self._own_columns = self.layout.state.start  # before the optimizer's state that stays here
        # What is tested, where that is not the current model.
        self.served = rows.matrix(self.layout.tested) if rows.spec.serves else None
        self._rule, self._box = rows.spec.rule, rows.spec.mailbox
        self._sends = rows.spec.asynchronous and kept_messages(self._box, self._rule) != ()
        # [n, 4] of the last turn: its key, steps and rate, and whether its message is there.
        self._turns = torch.zeros((len(rows.workers), 4), dtype=torch.float64)
        self.has_boxes = self._sends and self._box in BOXES
        # Messages on their way.
        self._outbox = rows.matrix(self.layout.mixed) if self.has_boxes else None
        # What else a checkpoint has of every worker, by name.
        self.kept = {} if self.served is None else {"served": self.served}
        if self._sends:
            self.kept.update(messages=rows.mixed, turns=self._turns)
        if self._outbox is not None:
            self.kept["outbox"] = self._outbox
        # By the receiver's row: sender and columns, and what came of it with its weight.
        self._boxes: list[dict[tuple[int, int, int], tuple[Tensor, float]]] = [
            {} for _ in rows.workers
        ]

    def snapshot(self, row: int) -> None:
        """Start a turn of a worker: read its box, and train from its current model."""
        rows = self.rows
        if self._turns[row, 3]:
            self._read(row)
        if (flag := self.layout.columns(STATE_RESET)) is not None:
            rows.models[row, flag] = 0.0
        rows.after[row] = rows.models[row]
        rows.after_counters[row] = rows.counters[row]

    def train(self, trainings: dict[int, LocalTraining]) -> dict[int, float]:
        """Train these snapshots; what is in flight is then the change that training made, and the
        optimizer's state after it."""
        model, after = slice(self._own_columns), self.rows.after
        start = after[list(trainings), model]
        losses = dict.fromkeys(trainings, 0.0)
        alike: dict[tuple[float, ...], dict[int, LocalTraining]] = {}
        for row, training in trainings.items():
            facts = (training.key, training.steps, training.learning_rate)
            self._turns[row] = torch.tensor((*facts, 0.0), dtype=torch.float64)
            # A rule that steers is told of the turn.
            group = (training.key, training.learning_rate) if self._rule.steers() else ()
            if training.steps:
                alike.setdefault(group, {})[row] = training
        for part in alike.values():
            losses.update(self._trainer.train(part, after))
        for index, row in enumerate(trainings):
            after[row, model] -= start[index]
        return losses

    def apply(self, row: int) -> float:
        rows = self.rows
        start = rows.models[row].clone() if self._sends else None
        self._end(row, slice(self._own_columns))
        norm = float(torch.linalg.vector_norm(rows.after[row, : self.layout.trainable]))
        if start is not None:
            rows.after[row], rows.mixed[row] = start, rows.models[row]
            if self._rule.acts():
                one = slice(row, row + 1)
                send(self._rule, self.layout, rows.after[one], rows.mixed[one], self._step(row))
            self._turns[row, 3] = 1.0
        return norm

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

    # --- messages --------------------------------------------------------------------------

    def message(self, row: int) -> NDArray[np.float32]:
        source = self.rows.mixed if self._sends else self.rows.models
        return source[row, : self.layout.mixed].cpu().numpy().copy()

    def settle(self, row: int, mixed: NDArray[np.float32]) -> None:
        """The new model of a worker, from the mean of the messages of its group."""
        source = self.rows.mixed if self._sends else self.rows.models
        new = source[row].clone()
        new[: self.layout.mixed] = torch.from_numpy(np.array(mixed)).to(new.device)
        self._receive(row, new)
        self.rows.reset_state(self.rows.models, [row])

    def post(self, row: int, weights: Sequence[float]) -> None:
        """Keep the message as it is now until it has arrived; a mass leaves, by these weights."""
        assert self._outbox is not None
        message = self.rows.mixed[row, : self.layout.mixed]
        self._outbox[row] = message
        if self._rule.mass:
            for weight in weights:
                message -= self._part(row, weight)

    def sent(self, row: int, weight: float, columns: tuple[int, int]) -> NDArray[np.float32]:
        """These columns of what a receiver gets of the message that is on its way."""
        return self._part(row, weight)[slice(*columns)].cpu().numpy().copy()

    def deliver(
        self,
        row: int,
        sender: int,
        sent: NDArray[np.float32],
        weight: float,
        columns: tuple[int, int],
    ) -> None:
        box = self._boxes[row]
        content = torch.from_numpy(np.array(sent)).to(self.rows.models.device)
        if self._box == "sum":
            key = (-1, *columns)
            box[key] = (box[key][0] + content if key in box else content, 1.0)
        else:
            box[sender, *columns] = (content, weight)

    def state(self) -> Arrays:
        """The boxes, for a checkpoint; nothing if there are none."""
        if self._outbox is None:
            return {}
        items = [
            ((worker, *key), *content)
            for worker, box in zip(self.rows.workers, self._boxes, strict=True)
            for key, content in sorted(box.items(), key=lambda item: item[0])
        ]
        contents = [content.cpu().numpy() for _, content, _ in items]
        return {
            "box": np.concatenate([np.empty(0, dtype=np.float32), *contents]),
            "box_keys": np.array([key for key, _, _ in items], dtype=np.int64).reshape(-1, 4),
            "box_weights": np.array([weight for _, _, weight in items], dtype=np.float64),
        }

    def load(self, state: Arrays) -> None:
        """Take over boxes, where there are any."""
        self._boxes, start = [{} for _ in self.rows.workers], 0
        for key, weight in zip(
            state["box_keys"].tolist(), state["box_weights"].tolist(), strict=True
        ):
            receiver, sender, first, last = key
            end = start + last - first
            content = torch.from_numpy(np.array(state["box"][start:end]))
            box = self._boxes[self.rows.index[receiver]]
            box[sender, first, last] = (content.to(self.rows.models.device), weight)
            start = end

    def _part(self, row: int, weight: float) -> Tensor:
        """Of the message on its way, what a receiver with this weight gets. Newest messages are
        weighed by their reader."""
        assert self._outbox is not None
        message = self._outbox[row]
        if self._box != "sum":
            return message
        if not self._rule.mass:
            return message * weight
        column = self.layout.columns(self._rule.mass)
        assert column is not None
        mass = float(message[column])
        leaving = floor(mass * weight / MASS_UNIT) * MASS_UNIT
        part = message * (leaving / mass)
        part[column] = leaving
        return part

    def _read(self, row: int) -> None:
        """Mix what the box holds into the own message, and make the new model of it."""
        box, width = self._boxes[row], self.layout.mixed
        new = self.rows.mixed[row].clone()
        by_columns: dict[tuple[int, int], list[tuple[Tensor, float]]] = {}
        for (_, first, last), content in sorted(box.items(), key=lambda item: item[0]):
            by_columns.setdefault((first, last), []).append(content)
        for columns, contents in by_columns.items():
            _mix_in(new[:width][slice(*columns)], contents, added=self._box == "sum")
        self._receive(row, new)
        if box:
            self.rows.reset_state(self.rows.models, [row])
        if self._box != "newest":
            box.clear()

    def _receive(self, row: int, new: Tensor) -> None:
        rows, one = self.rows, slice(row, row + 1)
        if self._rule.acts():
            before, own = rows.after[one], rows.mixed[one]
            receive(self._rule, self.layout, before, own, new[None], self._step(row))
        rows.models[row] = new
        self._turns[row, 3] = 0.0

    def _step(self, row: int) -> Step:
        key, steps, rate, _ = self._turns[row].tolist()
        return self.rows.step_of([int(steps)], round_index=int(key), rate=rate)

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


def _mix_in(own: Tensor, contents: Sequence[tuple[Tensor, float]], *, added: bool) -> None:
    """Add these messages to the own one, or mix them by their weights, in place: the own one gets
    what is left to 1. Without weights: the mean."""
    if added:
        for content, _ in contents:
            own += content
        return
    weights = [1.0 if isnan(weight) else weight for _, weight in contents]
    mean = isnan(contents[0][1])
    rest = 1.0 if mean else max(0.0, 1.0 - sum(weights))
    total = rest + sum(weights)
    own *= rest / total
    for (content, _), weight in zip(contents, weights, strict=True):
        own += content * (weight / total)
