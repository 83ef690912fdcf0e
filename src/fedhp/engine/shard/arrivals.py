"""What the workers of a shard send and receive: poisoned by attackers, compressed on the way.

With topk every reader has its own copy of each sender's model; where a message depends on its
receiver (Rule.send_to), the last message. Those of a round are kept apart until `commit`: a round
can be given up at any instant before.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhp.engine.prepare import ShardSpec
from fedhp.errors import Diverged
from fedhp.learn.attack import ON_MODELS, poisoned
from fedhp.learn.quantize import all_finite, as_received
from fedhp.learn.topk import add_delta, is_kept, largest_changes, topk_count
from fedhp.record.tensors import Arrays
from fedhp.types import IntArray

PAIR_STATE = ("copies", "copy_pairs")  # as checkpoints name them: one row for each pair
WHOLE = -1  # in place of the number of values of a delta: the whole model was sent


class Arrivals:
    """The models of one round as they are sent and as they arrive."""

    def __init__(self, spec: ShardSpec) -> None:
        self._spec, self._layout, self._compression = spec, spec.layout, spec.exchange.compression
        self._per_link = spec.rule.per_link()  # messages come whole, the last ones are always kept
        count = topk_count(spec.exchange.topk_share, spec.layout.mixed)
        self._count = 0 if self._per_link else count
        self._attackers = frozenset(
            spec.attackers if spec.experiment.attack.kind in ON_MODELS else ()
        )
        self.round_index = 0
        self._sent: dict[int, Tensor] = {}
        # By reader and sender: the copy, and the round in which it was made.
        self._copies: dict[tuple[int, int], tuple[Tensor, int]] = {}
        self._arrived: dict[tuple[int, int], Tensor] = {}
        self._counts: dict[tuple[int, int], int] = {}
        self._senders: dict[int, list[int]] = {}  # by reader, where messages are kept

    @property
    def by_reader(self) -> bool:
        """Whether every reader gets something else."""
        return self._compression == "topk" or self._per_link

    @property
    def changes_models(self) -> bool:
        """Whether anyone receives something else than the sender has."""
        return self._compression != "none" or bool(self._attackers) or self._per_link

    def begin(self, round_index: int) -> None:
        """Forget what was sent in another round, or in another try of this one."""
        self.round_index = round_index
        self._sent, self._arrived, self._counts = {}, {}, {}

    def offered(self, worker: int, row: Tensor) -> NDArray[np.float32]:
        """What a worker wants to send of its trained model: an attacker something else."""
        values: NDArray[np.float32] = row.cpu().numpy()
        if worker not in self._attackers:
            return values
        return poisoned(
            values,
            self._spec.experiment.attack,
            trainable=self._layout.trainable,
            seed=self._spec.experiment.seed,
            worker=worker,
            round_index=self.round_index,
        )

    def sent(self, worker: int, row: Tensor) -> Tensor:
        """What arrives of a worker's trained model, before topk."""
        if not self.changes_models:
            return row
        if worker not in self._sent:
            offered = self.offered(worker, row)
            if not all_finite(offered):
                raise Diverged(
                    f"round {self.round_index}: the model of worker {worker} is no longer finite; "
                    "rounds before it are kept",
                    fix="lower the learning rate",
                )
            arrives = as_received(offered, self._compression, self._layout.mixed_ends)
            self._sent[worker] = torch.from_numpy(arrives).to(row.device)
        return self._sent[worker]

    def received(self, reader: int, sender: int, sent: Tensor) -> Tensor:
        """What this reader has of the sender's model after the transfer."""
        if not self.by_reader:
            return sent
        pair = (reader, sender)
        if pair not in self._arrived:
            self._arrived[pair], self._counts[pair] = self._reconstructed(pair, sent)
        return self._arrived[pair]

    def heard(self, reader: int, new: Iterable[int] = (), *, but: int = -1) -> list[Tensor]:
        """The last messages that a worker has, by rising sender: of `new` those of this round, and
        none of `but`."""
        last = {sender: self._copies[reader, sender][0] for sender in self._senders.get(reader, ())}
        last.update((sender, self._arrived[reader, sender]) for sender in new)
        return [last[sender] for sender in sorted(last) if sender != but]

    def delta_counts(self) -> IntArray:
        """Of this round's transfers with topk: reader, sender, and how many values, [P, 3]."""
        rows = [(*pair, count) for pair, count in sorted(self._counts.items())]
        return np.array(rows, dtype=np.int64).reshape(-1, 3)

    def commit(self) -> None:
        """The copies of this round become those that the next one starts from."""
        made = {pair: (copy, self.round_index) for pair, copy in self._arrived.items()}
        if self._per_link:
            self._keep({**self._copies, **made})
        elif self.by_reader and self._count:
            self._copies = {
                pair: kept
                for pair, kept in {**self._copies, **made}.items()
                if is_kept(kept[1], self.round_index + 1)
            }
        self._sent, self._arrived, self._counts = {}, {}, {}

    def state(self) -> Arrays:
        """The copies, and of each the reader, the sender and the round; nothing without copies."""
        if not self.by_reader:
            return {}
        pairs = sorted(self._copies)
        copies = [self._copies[pair][0].cpu().numpy() for pair in pairs]
        return {
            "copies": np.array(copies, dtype=np.float32).reshape(-1, self._layout.mixed),
            "copy_pairs": np.array(
                [(*pair, self._copies[pair][1]) for pair in pairs], dtype=np.int64
            ).reshape(-1, 3),
        }

    def load(self, state: Arrays, device: torch.device) -> None:
        self.begin(self.round_index)
        if not self.by_reader:
            return
        self._keep(
            {
                (reader, sender): (torch.from_numpy(np.array(copy)).to(device), last)
                for (reader, sender, last), copy in zip(
                    state["copy_pairs"].tolist(), state["copies"], strict=True
                )
            }
        )

    def _keep(self, copies: dict[tuple[int, int], tuple[Tensor, int]]) -> None:
        self._copies, self._senders = copies, {}
        for reader, sender in copies:
            self._senders.setdefault(reader, []).append(sender)

    def _reconstructed(self, pair: tuple[int, int], sent: Tensor) -> tuple[Tensor, int]:
        known, last = self._copies.get(pair, (None, 0))
        if known is None or not is_kept(last, self.round_index) or not self._count:
            return sent.clone(), WHOLE
        old, new = known.cpu().numpy(), sent.cpu().numpy()
        with np.errstate(over="ignore"):
            delta = largest_changes(new - old, self._count)
        return torch.from_numpy(add_delta(old, delta)).to(sent.device), len(delta.indices)
