"""The parts of a shard, and what needs several of them: a round's training, its end, the state.

In one process one shard holds all workers; on Ray each actor hosts one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedhp.engine.prepare import ShardSpec
from fedhp.engine.shard.arrivals import PAIR_STATE
from fedhp.engine.shard.groups import Groups
from fedhp.engine.shard.mixer import Mixer
from fedhp.engine.shard.rows import Rows
from fedhp.engine.shard.tester import Tester
from fedhp.engine.shard.trainer import Trainer
from fedhp.engine.shard.turns import ShardTurns
from fedhp.exchange.mailbox import BOX_STATE
from fedhp.learn.group_state import GROUP_STATE
from fedhp.learn.mix import update_norms
from fedhp.record.tensors import Arrays
from fedhp.types import BoolArray, FloatArray, IntArray

IN_FLIGHT = ("in_flight", "flight_counters")  # as checkpoints name them: of asynchronous workers


class Shard:
    """Some of the workers. A part is called by one of its methods, such as Mixer.exchange."""

    def __init__(self, spec: ShardSpec, *, stop: Callable[[], bool] = lambda: False) -> None:
        self.spec = spec
        self.rows = Rows(spec, stop)
        self.trainer = Trainer(self.rows)
        self.mixer = Mixer(self.rows)
        self.turns = ShardTurns(self.rows, self.trainer)
        self.groups = Groups(self.rows, self.trainer) if spec.group_average else None
        self.tester = Tester(self.rows, self.turns, self.groups)
        parts = (
            self.trainer,
            self.mixer,
            self.mixer.arrivals,
            self.turns,
            self.groups,
            self.tester,
        )
        self.parts: dict[str, Any] = {type(part).__name__: part for part in parts}
        self.parts[Shard.__name__] = self
        self._plain = spec.rule.is_plain()

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method of a part by its qualified name, such as Mixer.exchange."""
        part, _, name = method.partition(".")
        return getattr(self.parts[part], name)(*args, **kwargs)

    def close(self) -> None:
        self.rows.threads.close()

    def train(
        self,
        local_steps: IntArray,
        present: BoolArray | None = None,
        *,
        round_index: int,
        learning_rate: float,
    ) -> tuple[FloatArray, FloatArray]:
        """Every worker's local steps, from `models` into `after`: mean losses, update norms.

        present [n], none for all: what travels with the model of an absent worker must not move it.
        """
        rows = self.rows
        self.mixer.begin(round_index)
        if self.groups is not None:
            self.groups.begin()
        if not self._plain:
            steps = local_steps.tolist()
            rows.step = rows.step_of(steps, round_index=round_index, rate=learning_rate)
        rows.after.copy_(rows.models)
        rows.after_counters.copy_(rows.counters)
        loss = self.trainer.train_round(
            local_steps, rows.after, round_index=round_index, rate=learning_rate, phase=0
        )
        norms = update_norms(rows.models, rows.after, rows.layout.trainable)
        if self.mixer.acts:
            self.mixer.prepare(present)
        return loss, np.where(local_steps > 0, norms, np.nan)

    def advance(self) -> None:
        if self.groups is not None:
            self.groups.state.commit()
        if self.mixer.changes_models:
            self.mixer.arrivals.commit()
        rows = self.rows
        rows.models, rows.mixed = rows.mixed, rows.models
        rows.counters, rows.after_counters = rows.after_counters, rows.counters

    def state(self, *, in_flight: bool = False) -> Arrays:
        """Models and counters; for an asynchronous algorithm also what is in flight."""
        targets = self._targets()
        arrays: Arrays = {
            name: tensor.cpu().numpy()
            for name, tensor in targets.items()
            if in_flight or name not in IN_FLIGHT
        }
        boxes = self.turns.state() if in_flight else {}
        return {**arrays, **self.mixer.arrivals.state(), **boxes}

    def load(self, state: Arrays) -> None:
        targets = self._targets()
        if self.groups is not None:
            self.groups.state.give_up()
        if self.mixer.changes_models:
            self.mixer.arrivals.load(state, self.rows.models.device)
        if self.turns.has_boxes:
            self.turns.load(state)
        for name, array in state.items():
            if name not in (*PAIR_STATE, *BOX_STATE):
                targets[name].copy_(torch.from_numpy(np.array(array)))

    def _targets(self) -> dict[str, Tensor]:
        rows = self.rows
        targets = {
            "models": rows.models,
            "counters": rows.counters,
            "in_flight": rows.after,
            "flight_counters": rows.after_counters,
        }
        if self.groups is not None:
            targets.update({name: getattr(self.groups.state, name) for name in GROUP_STATE})
        return {**targets, **self.turns.kept}
