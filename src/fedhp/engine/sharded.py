"""Carries out plans over shards of workers: one in this process, or many in other processes.

What needs all workers is done here: who sends to whom, the weights, the mean model. What needs
tensors is done in a shard (shard/).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedhp.algorithms.base import traits_of
from fedhp.engine.executor import (
    Estimates,
    Evaluations,
    LocalTraining,
    Pending,
    PendingParts,
    Training,
    check_finite,
)
from fedhp.engine.prepare import Prepared
from fedhp.engine.shard.arrivals import PAIR_STATE, WHOLE
from fedhp.engine.shard.groups import Groups
from fedhp.engine.shard.mixer import Mixer
from fedhp.engine.shard.shard import Shard
from fedhp.engine.shard.tester import Tester
from fedhp.engine.shard.trainer import Trainer
from fedhp.engine.shard.turns import ShardTurns
from fedhp.engine.until import is_due
from fedhp.errors import RunError
from fedhp.exchange import DirectedMixing, Exchange, Exchanged, GroupAverage, Mixing, Scoring
from fedhp.exchange.mixing import pulls
from fedhp.learn.evaluate import ModelScore
from fedhp.learn.group import fragment_columns, group_step
from fedhp.learn.group_state import Columns, GroupUpdate
from fedhp.learn.quantize import from_int8_blocks, to_int8_blocks
from fedhp.learn.topk import delta_share
from fedhp.record.tensors import Arrays
from fedhp.types import BoolArray, Evaluation, FloatArray, IntArray, RoundRecord

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class Shards(Protocol):
    """Where the shards are and how to call them; groups are the workers of each, rising."""

    groups: list[IntArray]
    moved: int  # bytes of models that went from one shard to another

    def submit(
        self,
        shard: int,
        method: Callable[Concatenate[S, P], T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Pending[T]:
        """Start a method of a part of one shard, such as Mixer.exchange; shards work at once."""

    def start_tests(
        self, shard: int, mean: NDArray[np.float32] | None, *, whole: bool
    ) -> Pending[list[ModelScore]]:
        """Start Tester.evaluate of one shard; it may train meanwhile."""

    def deliver(self, wanted: list[dict[int, IntArray]]) -> None:
        """Bring every shard the trained models it wants: workers, by their shard."""

    def keep(self, *, in_flight: bool) -> None:
        """Keep the state as of now for `recover`; at first that is the initial one."""

    def kept(self) -> list[Arrays]:
        """The state that was kept, shard by shard."""

    def recover(self) -> None:
        """Bring all shards back to the state that was kept."""

    def restart(self) -> None:
        """After StateLost: start all shards again, as at the start of a run."""

    def close(self) -> None:
        """Release the shards."""


class ShardedExecutor:
    """Carries out the plans of any algorithm, tests the models and holds their state."""

    def __init__(self, prepared: Prepared, shards: Shards) -> None:
        self.prepared = prepared
        self._last_round = prepared.experiment.rounds
        self.shards = shards
        self.workers = prepared.experiment.workers
        self._tests = ShardTests(prepared, shards, self._gather)
        self.kernel = "ordered" if len(shards.groups) > 1 else prepared.experiment.training.mixing
        self._shard_of = np.zeros(self.workers, dtype=np.int64)  # the shard of every worker
        self._position = np.zeros(self.workers, dtype=np.int64)  # and its row there
        self._nobody = np.empty((self.workers, 0), dtype=np.int64)  # selected without scoring
        for index, group in enumerate(shards.groups):
            self._shard_of[group] = index
            self._position[group] = np.arange(len(group))

    def close(self) -> None:
        """Release the shards."""
        self.shards.close()

    def recover(self) -> None:
        """After ShardLost: go back to the state that was kept at the last round's end."""
        self.shards.recover()

    # --- synchronous rounds ----------------------------------------------------------------

    def train(
        self,
        local_steps: IntArray,
        *,
        round_index: int,
        learning_rate: float,
        present: BoolArray | None = None,
    ) -> Training:
        """Run every worker's local steps; the model of an absent one does not change."""
        everyone = np.ones(self.workers, dtype=np.bool_) if present is None else present
        return self._trained(Shard.train, local_steps, round_index, learning_rate, everyone)

    def estimate(self, chosen: BoolArray, *, round_index: int) -> Estimates:
        """Smoothness and gradient variance as these workers [N] measure them."""
        estimates = _results(
            self.shards.submit(
                index,
                Trainer.estimate,
                np.flatnonzero(chosen[group]).tolist(),
                round_index=round_index,
            )
            for index, group in enumerate(self.shards.groups)
        )
        return Estimates(
            smoothness=self._gather([part.smoothness for part in estimates]),
            gradient_variance=self._gather([part.gradient_variance for part in estimates]),
            start_loss=self._gather([part.start_loss for part in estimates]),
        )

    def exchange(self, exchange: Exchange, *, round_index: int) -> Exchanged:
        """Move models, measure distances on the links, then mix into the next models."""
        return exchange.carry_out(self, round_index=round_index)

    def mix(self, mixing: Mixing, *, round_index: int) -> Exchanged:
        """Move models, measure distances on the links, then mix into the next models."""
        links = mixing.links
        self._deliver(links if mixing.directed else np.concatenate([links, links[:, ::-1]]))
        return self._mix(links, mixing.matrix(), directed=mixing.directed, selected=self._nobody)

    def score(self, mixing: DirectedMixing, scoring: Scoring, *, round_index: int) -> Exchanged:
        """Every worker scores the models of its sources, and mixes the best."""
        self._deliver(mixing.links)
        selected = self._score(mixing.sources, scoring, round_index)
        if scoring.symmetric:
            self._deliver(pulls(selected)[:, ::-1])
        links, weights = mixing.kept_links(selected), mixing.kept_matrix(selected)
        return self._mix(links, weights, directed=True, selected=selected)

    def proceed(self) -> None:
        """The next exchange of the round begins with what the last one left."""
        if self.prepared.experiment.exchange.compression == "topk":
            raise RunError(
                "the algorithm plans several exchanges in a round, but with topk every reader has "
                "one copy of a model per round",
                allowed="exchange.compression other than 'topk', or one exchange per round",
                fix="set exchange.compression = 'int8'",
            )
        _results(
            self.shards.submit(index, Mixer.proceed) for index in range(len(self.shards.groups))
        )

    def average_groups(self, groups: Sequence[GroupAverage]) -> None:
        """The participants of each add the mean of their changes to the consensus. The sum over a
        tree is made here, from the participants' rows, in the tree's order: it has the same bits
        however many shards there are."""
        if not traits_of(self.prepared.algorithm).group_average:
            raise RunError(
                "the algorithm plans a GroupAverage, but its class does not say so",
                allowed="GroupAverage in the plans of a class with Traits(group_average=True)",
                fix="set traits = Traits(group_average=True) in the class of your algorithm",
            )
        layout, first = self.prepared.layout, groups[0]  # all have the same fragment
        start, stop = fragment_columns(layout.mixed, first.fragment, first.fragments)
        columns = Columns.of(start, stop, trainable=layout.trainable)
        updates: list[list[GroupUpdate]] = [[] for _ in self.shards.groups]
        for group in groups:
            for index, update in self._group_updates(group, columns) if group.required else ():
                updates[index].append(update)
        _results(
            self.shards.submit(index, Groups.adopt, update, columns)
            for index, update in enumerate(updates)
        )

    def train_on(
        self, local_steps: IntArray, *, round_index: int, learning_rate: float
    ) -> Training:
        """After a group average: more local steps of the same round, from the mixed models."""
        return self._trained(Groups.train_on, local_steps, round_index, learning_rate)

    def _trained(
        self,
        method: Callable[..., tuple[FloatArray, FloatArray]],
        local_steps: IntArray,
        round_index: int,
        learning_rate: float,
        present: BoolArray | None = None,
    ) -> Training:
        trained = _results(
            self.shards.submit(
                index,
                method,
                local_steps[group],
                round_index=round_index,
                learning_rate=learning_rate,
                **({} if present is None else {"present": present[group]}),
            )
            for index, group in enumerate(self.shards.groups)
        )
        loss = self._gather([losses for losses, _ in trained])
        norms = self._gather([norms for _, norms in trained])
        check_finite(
            loss,
            norms,
            worked=local_steps > 0,
            round_index=round_index,
            learning_rate=learning_rate,
            training=self.prepared.experiment.training,
        )
        return Training(loss, norms)

    def _group_updates(
        self, exchange: GroupAverage, columns: Columns
    ) -> Iterator[tuple[int, GroupUpdate]]:
        """What each shard's participants get, by shard."""
        participants = exchange.participants
        shard_of = self._shard_of[participants]
        inside = [np.flatnonzero(shard_of == index) for index in range(len(self.shards.groups))]
        pending = {
            index: self.shards.submit(index, Groups.contributions, participants[members], columns)
            for index, members in enumerate(inside)
            if len(members)
        }
        root_shard, _ = self._find(exchange.root)
        known = self.shards.submit(root_shard, Groups.root_rows, exchange.root, columns).result()
        consensus = {exchange.root: known.consensus}
        for parent in set(exchange.parents[exchange.returning].tolist()) - consensus.keys():
            shard, _ = self._find(parent)
            rows = self.shards.submit(shard, Groups.root_rows, parent, columns).result()
            consensus[parent] = rows.consensus
        parts = {index: part.result() for index, part in pending.items()}
        order = np.argsort(np.concatenate([inside[index] for index in parts]))

        def by_participant(name: str) -> NDArray[np.float32]:
            rows = np.concatenate([getattr(part, name) for part in parts.values()])
            return np.asarray(rows[order])

        step = group_step(
            exchange,
            changes=by_participant("changes"),
            residuals=by_participant("residuals"),
            plain=by_participant("plain"),
            consensus=consensus,
            momentum=known.momentum,
            root_residual=known.root_residual,
        )
        if len(self.shards.groups) > 1:
            self.shards.moved += 4 * len(participants) * (columns.stop - columns.start) * 2
        for index in parts:
            members, has_root = inside[index], index == root_shard
            yield (
                index,
                GroupUpdate(
                    rows=self._position[participants[members]].tolist(),
                    returning=exchange.returning[members],
                    residuals=step.residuals[members],
                    root=int(self._position[exchange.root]) if has_root else None,
                    change=step.change,
                    wholes={
                        int(self._position[worker]): whole
                        for worker, whole in step.wholes.items()
                        if self._shard_of[worker] == index
                    },
                    root_residual=step.root_residual,
                    plain=step.plain,
                    factor=exchange.momentum,
                    rate=exchange.rate,
                ),
            )

    def advance(self) -> None:
        """End the round: the mixed models become the models of the next one."""
        _results(
            self.shards.submit(index, Shard.advance) for index in range(len(self.shards.groups))
        )
        self.shards.keep(in_flight=False)

    # --- asynchronous algorithms -----------------------------------------------------------

    def snapshot(self, worker: int) -> None:
        """Start a turn of this worker from its current model."""
        shard, position = self._find(worker)
        self.shards.submit(shard, ShardTurns.snapshot, position).result()

    def train_snapshots(self, trainings: dict[int, LocalTraining]) -> dict[int, float]:
        """Train the snapshots of these workers; mean losses."""
        by_shard: list[dict[int, LocalTraining]] = [{} for _ in self.shards.groups]
        for worker, training in trainings.items():
            shard, position = self._find(worker)
            by_shard[shard][position] = training
        losses = _results(
            self.shards.submit(index, ShardTurns.train, part) for index, part in enumerate(by_shard)
        )
        found = {worker: self._find(worker) for worker in trainings}
        return {worker: losses[shard][position] for worker, (shard, position) in found.items()}

    def apply(self, worker: int) -> float:
        """Add the change that training made to the worker's current model; its norm."""
        shard, position = self._find(worker)
        return self.shards.submit(shard, ShardTurns.apply, position).result()

    def share(self, worker: int) -> float:
        """Add the change that training made to every worker's model; its norm."""
        shard, position = self._find(worker)
        # What comes from another process may be read-only.
        change = np.array(self.shards.submit(shard, ShardTurns.change, position).result())
        layout = self.prepared.layout
        change[layout.trainable :] /= self.workers
        if len(self.shards.groups) > 1:
            self.shards.moved += change.nbytes * (len(self.shards.groups) - 1)
        _results(
            self.shards.submit(index, ShardTurns.shift_all, change)
            for index in range(len(self.shards.groups))
        )
        return float(np.linalg.norm(change[: layout.trainable]))

    def average(self, worker: int, partner: int, *, compression: str = "none") -> float:
        """Set both models to their mean, or move them by the coded half of their difference; the
        distance between them before."""
        shard, position = self._find(worker)
        other_shard, other_position = self._find(partner)
        mine = self.shards.submit(shard, ShardTurns.model, position).result()
        theirs = self.shards.submit(other_shard, ShardTurns.model, other_position).result()
        if shard != other_shard:
            self.shards.moved += mine.nbytes + theirs.nbytes
        if compression != "none":
            difference = theirs - mine
            half = np.float32(0.5) * from_int8_blocks(*to_int8_blocks(difference))
            self.shards.submit(other_shard, ShardTurns.shift, other_position, -half).result()
            self.shards.submit(shard, ShardTurns.shift, position, half).result()
            return float(np.linalg.norm(difference[: self.prepared.layout.trainable]))
        self.shards.submit(other_shard, ShardTurns.average, other_position, mine).result()
        return self.shards.submit(shard, ShardTurns.average, position, theirs).result()

    def serve(self, worker: int, factor: float) -> None:
        """Move the model that a worker serves towards its current one by this share of the way."""
        shard, position = self._find(worker)
        self.shards.submit(shard, ShardTurns.serve, position, factor).result()

    def keep(self) -> None:
        """Keep the state as of now, models in flight included: it is that of a round's end."""
        self.shards.keep(in_flight=True)

    # --- tests -----------------------------------------------------------------------------

    @property
    def overlap(self) -> bool:
        """Whether tests may run while the next round trains."""
        return self.prepared.overlap

    def end_at(self, round_index: int) -> None:
        """This round is the last one: it is tested as such."""
        self._last_round = round_index

    def is_tested(self, record: RoundRecord) -> bool:
        """Whether the models are tested: every so many rounds or seconds, and after the last."""
        due = is_due(
            self.prepared.experiment.evaluation,
            record.round_index,
            started=record.clock - record.timing.round_time,
            clock=record.clock,
        )
        return due or record.round_index == self._last_round

    def start_tests(self, round_index: int) -> Pending[Evaluations]:
        """Start testing every worker's model and their mean; models must not change meanwhile."""
        mean = self._tests.mean_model()
        tests = [self._tests.start(mean, whole=False)]
        if round_index == self._last_round and self.prepared.whole_at_end:
            tests.append(self._tests.start(mean, whole=True))
        return PendingParts(tests, lambda evaluations: Evaluations(*evaluations))

    def evaluate(self, *, whole: bool = False) -> Evaluation:
        """Test every worker's model and their mean."""
        return self._tests.start(self._tests.mean_model(), whole=whole).result()

    # --- what a checkpoint holds -----------------------------------------------------------

    def state(self) -> Arrays:
        """The state of the last round's end, [N, ...] by worker."""
        kept = self.shards.kept()
        return {
            name: np.concatenate([part[name] for part in kept])
            if name in PAIR_STATE
            else self._gather([part[name] for part in kept])
            for name in kept[0]
        }

    def load(self, state: Arrays) -> None:
        """Go on from a state."""
        _results(
            self.shards.submit(
                index,
                Shard.load,
                {name: rows[_rows_in(name, state, group)] for name, rows in state.items()},
            )
            for index, group in enumerate(self.shards.groups)
        )
        self.shards.keep(in_flight="in_flight" in state)

    # --- inside ----------------------------------------------------------------------------

    def _find(self, worker: int) -> tuple[int, int]:
        """A worker's shard, and its row there."""
        return int(self._shard_of[worker]), int(self._position[worker])

    def _gather(self, parts: list[NDArray[Any]]) -> NDArray[Any]:
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
        target, origin = self._shard_of[transfers[:, 0]], self._shard_of[transfers[:, 1]]
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

    def _score(self, candidates: IntArray, scoring: Scoring, round_index: int) -> IntArray:
        return self._gather(
            _results(
                self.shards.submit(
                    index,
                    Mixer.score,
                    candidates[group],
                    keep=scoring.keep,
                    samples=scoring.samples,
                    round_index=round_index,
                )
                for index, group in enumerate(self.shards.groups)
            )
        )

    def _mix(
        self, links: IntArray, weights: csr_array, *, directed: bool, selected: IntArray
    ) -> Exchanged:
        owner = self._shard_of[links[:, 0]]
        alone = len(self.shards.groups) == 1
        distances = _results(
            self.shards.submit(
                index,
                Mixer.exchange,
                links if alone else links[owner == index],
                weights if alone else weights[group],
                kernel=self.kernel,
            )
            for index, group in enumerate(self.shards.groups)
        )
        distance = np.empty(len(links))
        for index, part in enumerate(distances):
            distance[owner == index] = part
        shares = self._shares(links, directed=directed)
        return Exchanged(links, directed, distance, selected, shares)

    def _shares(self, links: IntArray, *, directed: bool) -> FloatArray | None:
        """What went over each link this round, as a share of a model's bytes, [E, 2]."""
        compression = self.prepared.experiment.exchange.compression
        if self.prepared.transfer_share == 1 and compression != "topk":
            return None
        shares = np.full((len(links), 2), self.prepared.transfer_share)
        if compression == "topk":
            counts = np.concatenate(
                _results(
                    self.shards.submit(index, Mixer.delta_counts)
                    for index in range(len(self.shards.groups))
                )
            )
            width = self.prepared.layout.mixed
            by_pair = {
                (reader, sender): 1.0 if count == WHOLE else delta_share(count, width)
                for reader, sender, count in counts.tolist()
            }
            shares = np.array(
                [(by_pair[a, b], by_pair.get((b, a), 0.0)) for a, b in links.tolist()]
            ).reshape(-1, 2)
        if directed:
            shares[:, 1] = 0.0
        return shares


class ShardTests:
    """Tests of all workers' models and of their mean."""

    def __init__(
        self,
        prepared: Prepared,
        shards: Shards,
        gather: Callable[[list[NDArray[Any]]], NDArray[Any]],
    ) -> None:
        self.prepared, self.shards = prepared, shards
        self._gather = gather  # rows of all shards, by worker
        self.workers = prepared.experiment.workers

    def mean_model(self) -> NDArray[np.float32]:
        """The sum goes from shard to shard: it has the same bits however many there are."""
        total: NDArray[np.float64] | None = None
        for index in range(len(self.shards.groups)):
            total = self.shards.submit(index, Tester.sum_models, total).result()
        assert total is not None
        return (total / (self.workers - len(self.prepared.attackers))).astype(np.float32)

    def start(self, mean: NDArray[np.float32], *, whole: bool) -> Pending[Evaluation]:
        """Start testing; models must not change meanwhile."""
        last = len(self.shards.groups) - 1  # this shard tests the mean model
        scores = [
            self.shards.start_tests(index, mean if index == last else None, whole=whole)
            for index in range(last + 1)
        ]
        images = len(self.prepared.dataset.test_inputs) if whole else self.prepared.test_images
        return PendingParts(scores, lambda parts: self._evaluation(parts, images))

    def _evaluation(self, scores: list[list[ModelScore]], images: int) -> Evaluation:
        *others, last = scores
        *workers, mean_model = last
        by_shard = (*others, workers)
        accuracy = self._gather([np.array([s.metric for s in part]) for part in by_shard])
        own = self._gather([np.array([s.own_metric for s in part]) for part in by_shard])
        honest = None
        share = float(accuracy.mean())
        if self.prepared.attackers:
            honest = ~np.isin(np.arange(self.workers), self.prepared.attackers)
            accuracy, own = np.where(honest, accuracy, np.nan), np.where(honest, own, np.nan)
            share = float(accuracy[honest].mean())
        counts = self.prepared.dataset.classes is not None and 0 <= share <= 1
        return Evaluation(
            accuracy=accuracy,
            mean_model_accuracy=mean_model.metric,
            images=images,
            standard_error=float(np.sqrt(share * (1 - share) / images)) if counts else np.nan,
            loss=self._gather([np.array([s.loss for s in part]) for part in by_shard]),
            mean_model_loss=mean_model.loss,
            class_accuracy=self._class_means(by_shard),
            mean_model_class_accuracy=mean_model.by_class,
            own_accuracy=own if np.isfinite(own).any() else None,
            honest=honest,
        )

    def _class_means(self, by_shard: Sequence[Sequence[ModelScore]]) -> FloatArray | None:
        """The accuracy of every class, mean of the workers by rising worker."""
        if by_shard[0][0].by_class is None:
            return None
        by_worker = self._gather([np.array([s.by_class for s in part]) for part in by_shard])
        if self.prepared.attackers:
            by_worker = np.delete(by_worker, self.prepared.attackers, axis=0)
        return np.asarray(by_worker.mean(axis=0))


def _results(pending: Iterable[Pending[T]]) -> list[T]:
    """Start all, then wait for all."""
    return [part.result() for part in list(pending)]


def _rows_in(name: str, state: Arrays, group: IntArray) -> IntArray:
    """Which rows of a state belong to a shard: its workers', or what they have of others."""
    if name not in PAIR_STATE:
        return group
    return np.flatnonzero(np.isin(state["copy_pairs"][:, 0], group))
