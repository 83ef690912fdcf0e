"""Carries out plans over shards of workers, wherever these are: one in this process, or many.

Everything that needs all workers is done here: who sends to whom, the weights, the mean
model. Everything that needs tensors is done in a shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedhp.engine.executor import (
    Answer,
    Estimates,
    Exchanged,
    Testing,
    Training,
    Turn,
    check_finite,
    pairs,
    travelled,
)
from fedhp.engine.prepare import Prepared
from fedhp.graph import directed_weights, mixing_weights, topology_from
from fedhp.record.packing import Arrays
from fedhp.types import (
    BoolArray,
    Evaluation,
    Exchange,
    IntArray,
    NeighborMixing,
    PeerScoring,
)


class Shards(Protocol):
    """Where shards are and how to reach them; groups are the workers of each, rising."""

    groups: list[IntArray]
    moved: int  # bytes of models that went from one shard to another

    def call(self, method: str, arguments: Sequence[tuple[Any, ...]], **common: Any) -> list[Any]:
        """Call a method of every shard, side by side."""

    def one(self, shard: int, method: str, *arguments: Any, **settings: Any) -> Any:
        """Call a method of one shard."""

    def deliver(self, wanted: list[dict[int, IntArray]]) -> None:
        """Bring every shard the trained models it wants: by shard of origin, workers."""

    def evaluate_later(self, arguments: Sequence[tuple[Any, ...]], *, whole: bool) -> Answer:
        """Start the tests of every shard; an argument is the mean model, or None."""

    def keep(self, *, flying: bool) -> None:
        """Remember the state as of now; `recover` comes back to it, at first to the initial one."""

    def kept(self) -> list[Arrays]:
        """The state that was remembered, shard by shard."""

    def recover(self) -> None:
        """Bring all shards back to the state that was remembered."""

    def restart(self) -> None:
        """After StateLost: all shards anew, as at the start of a run."""

    def close(self) -> None:
        """Let the shards go."""


class Engine:
    """Executes plans."""

    def __init__(self, prepared: Prepared, shards: Shards) -> None:
        self.prepared = prepared
        self.shards = shards
        self.workers = prepared.experiment.workers
        self.kernel = "ordered" if len(shards.groups) > 1 else prepared.experiment.training.mixing
        self._home = np.zeros(self.workers, dtype=np.int64)  # the shard of every worker
        self._place = np.zeros(self.workers, dtype=np.int64)  # and its row there
        for index, group in enumerate(shards.groups):
            self._home[group] = index
            self._place[group] = np.arange(len(group))
        self._flying = False

    def close(self) -> None:
        """Let the shards go."""
        self.shards.close()

    def train(self, local_steps: IntArray, *, round_index: int, learning_rate: float) -> Training:
        """Every worker's local steps."""
        found = self.shards.call(
            "train",
            [(local_steps[group],) for group in self.shards.groups],
            round_index=round_index,
            learning_rate=learning_rate,
        )
        loss, norms = (self._gather([each[k] for each in found]) for k in (0, 1))
        check_finite(loss, norms, local_steps > 0, round_index, learning_rate)
        return Training(loss, norms)

    def estimate(self, chosen: BoolArray, *, round_index: int) -> Estimates:
        """Smoothness and gradient variance as these workers [N] measure them."""
        found = self.shards.call(
            "estimate",
            [(np.flatnonzero(chosen[group]).tolist(),) for group in self.shards.groups],
            round_index=round_index,
        )
        names = ("smoothness", "gradient_variance", "start_loss")
        return Estimates(*(self._gather([getattr(each, name) for each in found]) for name in names))

    def exchange(self, exchange: Exchange, *, round_index: int) -> Exchanged:
        """Move models, measure distances on the links, then mix into the next models."""
        none = np.empty((self.workers, 0), dtype=np.int64)
        links = travelled(exchange)
        if isinstance(exchange, NeighborMixing):
            self._deliver(np.concatenate([links, links[:, ::-1]]))
            weights = mixing_weights(exchange.topology, exchange.weights)
            return self._mix(links, weights, directed=False, selected=none)
        self._deliver(links)
        if not isinstance(exchange, PeerScoring):
            weights = directed_weights(exchange.sources)
            return self._mix(links, weights, directed=True, selected=none)
        selected = self._score(exchange, round_index)
        weights = directed_weights(selected)
        if exchange.symmetric:
            kept = pairs(selected)
            self._deliver(kept[:, ::-1])
            links = travelled(exchange, selected)
            weights = mixing_weights(topology_from(self.workers, kept), "metropolis")
        return self._mix(links, weights, directed=True, selected=selected)

    def advance(self) -> None:
        """The mixed models become the models of the next round: it is done."""
        self.shards.call("advance", [()] * len(self.shards.groups))
        self.shards.keep(flying=False)

    def tests(self, round_index: int) -> bool:
        """Every so many rounds, and after the last."""
        experiment = self.prepared.experiment
        return round_index % experiment.evaluation.every == 0 or round_index == experiment.rounds

    def test(self, *, whole: bool = False) -> Testing:
        """Start testing every worker's model and their mean; models must not change meanwhile."""
        total: NDArray[np.float64] | None = None
        for index in range(len(self.shards.groups)):
            total = self.shards.one(index, "sum_models", total)
        assert total is not None
        mean = (total / self.workers).astype(np.float32)
        first = len(self.shards.groups) - 1  # the last shard tests the mean model
        given = [(mean if index == first else None,) for index in range(first + 1)]
        answer = self.shards.evaluate_later(given, whole=whole)
        images = len(self.prepared.dataset.test_inputs) if whole else self.prepared.test_images
        return Testing(answer, lambda scores: self._evaluation(scores, images))

    def evaluate(self, *, whole: bool = False) -> Evaluation:
        """Test every worker's model and their mean."""
        return self.test(whole=whole).result()

    # --- for asynchronous algorithms -------------------------------------------------------

    def enable_in_flight_state(self) -> None:
        """From now on there are models in flight, which belong to the state."""
        self._flying = True
        self.shards.keep(flying=True)

    def keep(self) -> None:
        """The state as of now is that of a round's end."""
        self.shards.keep(flying=self._flying)

    def snapshot(self, worker: int) -> None:
        """A worker starts a turn from its current model."""
        self.shards.one(int(self._home[worker]), "snapshot", int(self._place[worker]))

    def train_snapshots(self, turns: dict[int, Turn]) -> dict[int, float]:
        """Train the snapshots of these workers; mean losses."""
        shared: list[dict[int, Turn]] = [{} for _ in self.shards.groups]
        for worker, turn in turns.items():
            shared[self._home[worker]][int(self._place[worker])] = turn
        found = self.shards.call("train_snapshots", [(each,) for each in shared])
        return {worker: found[self._home[worker]][int(self._place[worker])] for worker in turns}

    def apply(self, worker: int) -> float:
        """Add what training changed to the worker's current model; the norm of the change."""
        norm: float = self.shards.one(int(self._home[worker]), "apply", int(self._place[worker]))
        return norm

    def average(self, worker: int, partner: int) -> float:
        """Both take the mean of their current models; how far apart they were."""
        ends = [(int(self._home[end]), int(self._place[end])) for end in (worker, partner)]
        mine, theirs = (self.shards.one(shard, "model", place) for shard, place in ends)
        (first, here), (second, there) = ends
        if first != second:
            self.shards.moved += mine.nbytes + theirs.nbytes
        self.shards.one(second, "average", there, mine)
        apart: float = self.shards.one(first, "average", here, theirs)
        return apart

    # --- what a checkpoint holds -----------------------------------------------------------

    def state(self) -> Arrays:
        """The state of the last round's end, [N, ...] by worker."""
        kept = self.shards.kept()
        if len(kept) == 1:
            return kept[0]
        return {name: self._gather([each[name] for each in kept]) for name in kept[0]}

    def load(self, state: Arrays) -> None:
        """Go on from a state."""
        self.shards.call(
            "load",
            [
                ({name: rows[group] for name, rows in state.items()},)
                for group in self.shards.groups
            ],
        )
        self.keep()

    def recover(self) -> None:
        """After ShardLost: everything as it was at the last round's end."""
        self.shards.recover()

    # --- inside ----------------------------------------------------------------------------

    def _gather(self, parts: list[Any]) -> Any:
        """Rows of all shards, by worker."""
        if len(parts) == 1:
            return parts[0]
        whole = np.empty((self.workers, *parts[0].shape[1:]), dtype=parts[0].dtype)
        for group, part in zip(self.shards.groups, parts, strict=True):
            whole[group] = part
        return whole

    def _deliver(self, transfers: IntArray) -> None:
        """Rows of transfers are (receiver, sender); only what crosses shards moves."""
        if len(self.shards.groups) == 1:
            return
        target, origin = self._home[transfers[:, 0]], self._home[transfers[:, 1]]
        wanted: list[dict[int, IntArray]] = []
        for index in range(len(self.shards.groups)):
            here = (target == index) & (origin != index)
            senders = transfers[here, 1]
            wanted.append(
                {
                    int(shard): np.unique(senders[origin[here] == shard])
                    for shard in np.unique(origin[here])
                }
            )
        self.shards.deliver(wanted)

    def _score(self, exchange: PeerScoring, round_index: int) -> IntArray:
        found = self.shards.call(
            "score",
            [(exchange.candidates[group],) for group in self.shards.groups],
            keep=exchange.keep,
            samples=exchange.samples,
            round_index=round_index,
        )
        selected: IntArray = self._gather(found)
        return selected

    def _mix(
        self, links: IntArray, weights: csr_array, *, directed: bool, selected: IntArray
    ) -> Exchanged:
        owner = self._home[links[:, 0]]
        whole = len(self.shards.groups) == 1
        found = self.shards.call(
            "exchange",
            [
                (links, weights) if whole else (links[owner == index], weights[group])
                for index, group in enumerate(self.shards.groups)
            ],
            kernel=self.kernel,
        )
        distance = np.empty(len(links))
        for index, part in enumerate(found):
            distance[owner == index] = part
        return Exchanged(links, directed, distance, selected)

    def _evaluation(self, scores: list[list[float]], images: int) -> Evaluation:
        *_, last = scores
        mean_model = last.pop()
        accuracy = self._gather([np.array(each) for each in scores])
        share = float(accuracy.mean())
        counts = self.prepared.dataset.classes is not None and 0 <= share <= 1
        return Evaluation(
            accuracy=accuracy,
            mean_model_accuracy=mean_model,
            images=images,
            standard_error=float(np.sqrt(share * (1 - share) / images)) if counts else np.nan,
        )
