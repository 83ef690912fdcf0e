"""Carries out plans over shards of workers: one in this process, or many in other processes.

What needs all workers is done here: who sends to whom, the weights, the mean model. What needs
tensors is done in a shard (shard/).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedhp.algorithms.base import rule_of, traits_of
from fedhp.engine.executor import (
    Estimates,
    Evaluations,
    Pending,
    PendingParts,
    Training,
)
from fedhp.engine.prepare import Prepared, shard_spec_of
from fedhp.engine.shard.arrivals import PAIR_STATE, WHOLE, Arrivals
from fedhp.engine.shard.groups import Groups
from fedhp.engine.shard.mixer import Mixer
from fedhp.engine.shard.shard import Shard
from fedhp.engine.shard.tester import Tester
from fedhp.engine.shard.trainer import Trainer
from fedhp.engine.turns import ShardedTurns
from fedhp.errors import RunError
from fedhp.exchange import (
    DirectedMixing,
    Exchanged,
    GroupAverage,
    Mixing,
    Scoring,
    ServerAverage,
)
from fedhp.exchange.mailbox import BOX_STATE
from fedhp.exchange.mixing import pulls
from fedhp.learn.evaluate import ModelScore
from fedhp.learn.group import fragment_columns, group_step
from fedhp.learn.group_state import Columns, GroupUpdate
from fedhp.learn.topk import delta_share
from fedhp.record.tensors import Arrays
from fedhp.rounds.planner import check_finite
from fedhp.types import BoolArray, Evaluation, FloatArray, IntArray

if TYPE_CHECKING:
    from fedhp.engine.ray import RayShards

T = TypeVar("T")


Shards: TypeAlias = "LocalShards | RayShards"  # in this process, or in actors


class ShardedExecutor(ShardedTurns):
    """Carries out the plans of any algorithm, tests the models and holds their state."""

    def __init__(self, prepared: Prepared, shards: Shards) -> None:
        self.prepared = prepared
        self.shards = shards
        self.workers = prepared.experiment.workers
        self.kernel = "ordered" if len(shards.groups) > 1 else prepared.experiment.training.mixing
        self._shard_of = np.zeros(self.workers, dtype=np.int64)  # the shard of every worker
        self._position = np.zeros(self.workers, dtype=np.int64)  # and its row there
        self._nobody = np.empty((self.workers, 0), dtype=np.int64)  # selected without scoring
        self._compression = prepared.experiment.exchange.compression
        self._per_link = rule_of(prepared.algorithm).per_link()
        self._whole_models = prepared.transfer_share == 1 and self._compression != "topk"
        for index, group in enumerate(shards.groups):
            self._shard_of[group] = index
            self._position[group] = np.arange(len(group))

    def close(self) -> None:
        self.shards.close()

    def recover(self) -> None:
        self.shards.recover()

    # --- synchronous rounds ----------------------------------------------------------------

    def train(
        self,
        local_steps: IntArray,
        *,
        round_index: int,
        learning_rate: float,
        present: BoolArray | None = None,
        continued: bool = False,
    ) -> Training:
        losses, update_norms = zip(
            *self._each(
                Groups.train_on if continued else Shard.train,
                *((local_steps,) if continued else (local_steps, present)),
                round_index=round_index,
                learning_rate=learning_rate,
            ),
            strict=True,
        )
        loss, norms = self._gather(losses), self._gather(update_norms)
        check_finite(
            loss,
            norms,
            worked=local_steps > 0,
            round_index=round_index,
            learning_rate=learning_rate,
            training=self.prepared.experiment.training,
        )
        return Training(loss, norms)

    def estimate(self, chosen: BoolArray, *, round_index: int) -> Estimates:
        calls = [
            (index, (np.flatnonzero(chosen[group]).tolist(),))
            for index, group in enumerate(self.shards.groups)
        ]
        estimates = self.shards.map(Trainer.estimate, calls, round_index=round_index)
        return Estimates(*map(self._gather, zip(*estimates, strict=True)))

    def mix(self, mixing: Mixing, *, round_index: int) -> Exchanged:
        """Move models, measure distances on the links, then mix into the next models."""
        links = mixing.links
        self._deliver(links if mixing.directed else np.concatenate([links, links[:, ::-1]]))
        return self._mix(links, mixing.matrix(), directed=mixing.directed, selected=self._nobody)

    def average_over_server(self, average: ServerAverage) -> Exchanged:
        self._deliver(average.links)
        return self._mix(
            average.lines,
            average.matrix(),
            directed=True,
            selected=self._nobody,
            senders=average.weights > 0,
        )

    def score(self, mixing: DirectedMixing, scoring: Scoring, *, round_index: int) -> Exchanged:
        self._deliver(mixing.links)
        selected = self._gather(
            self._each(
                Mixer.score,
                mixing.sources,
                keep=scoring.keep,
                samples=scoring.samples,
                round_index=round_index,
            )
        )
        if scoring.symmetric:
            self._deliver(pulls(selected)[:, ::-1])
        links, weights = mixing.kept_links(selected), mixing.kept_matrix(selected)
        return self._mix(links, weights, directed=True, selected=selected)

    def proceed(self) -> None:
        self._each(Mixer.proceed)

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
        self.shards.map(
            Groups.adopt, [(index, (update, columns)) for index, update in enumerate(updates)]
        )

    def _group_updates(
        self, exchange: GroupAverage, columns: Columns
    ) -> Iterator[tuple[int, GroupUpdate]]:
        """What each shard's participants get, by shard."""
        participants = exchange.participants
        shard_of = self._shard_of[participants]
        inside = [np.flatnonzero(shard_of == index) for index in range(len(self.shards.groups))]
        arguments = {
            index: (participants[members], columns)
            for index, members in enumerate(inside)
            if len(members)
        }
        brought = self.shards.map(Groups.contributions, arguments.items())
        parts = dict(zip(arguments, brought, strict=True))
        root_shard, _ = self._find(exchange.root)
        others = set(exchange.parents[exchange.returning].tolist()) - {exchange.root}
        knowing = [exchange.root, *sorted(others)]
        rows = self.shards.map(
            Groups.root_rows,
            [(int(self._shard_of[worker]), (worker, columns)) for worker in knowing],
        )
        known = rows[0]
        consensus = {worker: part.consensus for worker, part in zip(knowing, rows, strict=True)}
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
        self._each(Shard.advance)
        self.shards.keep(in_flight=False)

    # --- tests -----------------------------------------------------------------------------

    @property
    def overlap(self) -> bool:
        return self.prepared.overlap

    def start_tests(self, *, last: bool) -> Pending[Evaluations]:
        """Start testing every worker's model and their mean, perhaps as those of the last round;
        models must not change meanwhile."""
        mean = self._mean_model()
        tests = [self._start(mean, whole=False)]
        if last and self.prepared.whole_at_end:
            tests.append(self._start(mean, whole=True))
        return PendingParts(tests, lambda evaluations: Evaluations(*evaluations))

    def evaluate(self, *, whole: bool = False) -> Evaluation:
        return self._start(self._mean_model(), whole=whole).result()

    def _mean_model(self) -> NDArray[np.float32]:
        """The sum goes from shard to shard: it has the same bits however many there are."""
        total: NDArray[np.float64] | None = None
        for index in range(len(self.shards.groups)):
            total = self.shards.map(Tester.sum_models, [(index, (total,))])[0]
        assert total is not None
        return (total / (self.workers - len(self.prepared.attackers))).astype(np.float32)

    def _start(self, mean: NDArray[np.float32], *, whole: bool) -> Pending[Evaluation]:
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

        def of_workers(name: str) -> FloatArray:
            parts = (*others, workers)
            return self._gather([np.array([getattr(s, name) for s in part]) for part in parts])

        accuracy, own, honest = of_workers("metric"), of_workers("own_metric"), None
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
            loss=of_workers("loss"),
            mean_model_loss=mean_model.loss,
            class_accuracy=None
            if mean_model.by_class is None
            else np.delete(of_workers("by_class"), self.prepared.attackers, axis=0).mean(axis=0),
            mean_model_class_accuracy=mean_model.by_class,
            own_accuracy=own if np.isfinite(own).any() else None,
            honest=honest,
        )

    # --- what a checkpoint holds -----------------------------------------------------------

    def state(self) -> Arrays:
        """The state of the last round's end, [N, ...] by worker."""
        kept = self.shards.kept()
        return {
            name: np.concatenate([part[name] for part in kept])
            if name in (*PAIR_STATE, *BOX_STATE)
            else self._gather([part[name] for part in kept])
            for name in kept[0]
        }

    def load(self, state: Arrays) -> None:
        parts = [
            {name: rows[_rows_in(name, state, group)] for name, rows in state.items()}
            for group in self.shards.groups
        ]
        self.shards.map(Shard.load, [(index, (part,)) for index, part in enumerate(parts)])
        self.shards.keep(in_flight="in_flight" in state)

    # --- inside ----------------------------------------------------------------------------

    def _each(
        self, method: Callable[..., T], *columns: NDArray[Any] | None, **settings: Any
    ) -> list[T]:
        """Call a method of a part of every shard, with the rows of its workers of each column."""
        calls = [
            (index, tuple([None if rows is None else rows[group] for rows in columns]))
            for index, group in enumerate(self.shards.groups)
        ]
        return self.shards.map(method, calls, **settings)

    def _gather(self, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
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
            # A message that depends on its receiver is asked for by both ends.
            senders = transfers[here] if self._per_link else transfers[here, 1]
            wanted.append(
                {
                    int(shard): np.unique(senders[origin[here] == shard], axis=0)
                    for shard in np.unique(origin[here])
                }
            )
        self.shards.deliver(wanted)

    def _mix(
        self,
        links: IntArray,
        weights: csr_array,
        *,
        directed: bool,
        selected: IntArray,
        senders: BoolArray | None = None,
    ) -> Exchanged:
        calls: list[tuple[int, tuple[Any, ...]]] = [(0, (links, weights, senders))]
        if len(self.shards.groups) > 1:
            owner = self._shard_of[links[:, 0]]
            calls = [
                (
                    index,
                    (
                        links[owner == index],
                        weights[group],
                        None if senders is None else senders[group],
                    ),
                )
                for index, group in enumerate(self.shards.groups)
            ]
        distances = self.shards.map(Mixer.exchange, calls, kernel=self.kernel)
        distance = distances[0]
        if len(distances) > 1:
            distance = np.empty(len(links))
            for index, part in enumerate(distances):
                distance[owner == index] = part
        shares = None if self._whole_models else self._shares(links, directed=directed)
        return Exchanged(links, directed, distance, selected, shares)

    def _shares(self, links: IntArray, *, directed: bool) -> FloatArray:
        """What went over each link this round, as a share of a model's bytes, [E, 2]."""
        shares = np.full((len(links), 2), self.prepared.transfer_share)
        if self._compression == "topk":
            counts = np.concatenate(self._each(Arrivals.delta_counts))
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


def _rows_in(name: str, state: Arrays, group: IntArray) -> IntArray:
    """Which rows of a state belong to a shard: its workers', or what they have of others."""
    if name in PAIR_STATE:
        return np.flatnonzero(np.isin(state["copy_pairs"][:, 0], group))
    if name not in BOX_STATE:
        return group
    keys = state["box_keys"]
    here = np.isin(keys[:, 0], group)
    return np.flatnonzero(np.repeat(here, keys[:, 3] - keys[:, 2]) if name == "box" else here)


class LocalShards:
    """Shards that are plain objects; groups are the workers of each, rising."""

    def __init__(self, shards: list[Shard]) -> None:
        self.shards = shards
        self.groups = [shard.spec.workers for shard in shards]
        self.moved = 0  # bytes of models that went from one shard to another
        self._kept: list[Arrays] | None = None

    def map(
        self,
        method: Callable[..., T],
        calls: Iterable[tuple[int, tuple[Any, ...]]],
        /,
        **settings: Any,
    ) -> list[T]:
        """Call a method of a part, such as Mixer.exchange: each call names its shard and has
        arguments, all have the settings; shards work at once."""
        part = method.__qualname__.partition(".")[0]
        return [
            method(self.shards[shard].parts[part], *given, **settings) for shard, given in calls
        ]

    def start_tests(
        self, shard: int, mean: NDArray[np.float32] | None, *, whole: bool
    ) -> Pending[list[ModelScore]]:
        return self.shards[shard].tester.start(mean, whole=whole)

    def deliver(self, wanted: list[dict[int, IntArray]]) -> None:
        """Bring every shard the trained models it wants: workers, or (receiver, sender) where a
        message depends on its receiver, by the sender's shard."""
        for shard, origins in zip(self.shards, wanted, strict=True):
            sent = [self.shards[origin].mixer.send(workers) for origin, workers in origins.items()]
            self.moved += sum(rows.nbytes for _, rows in sent)
            shard.mixer.receive(*sent)

    def keep(self, *, in_flight: bool) -> None:
        """Copy the state, unless it stays as it is: between synchronous rounds."""
        self._kept = None
        if in_flight:
            self._kept = [
                {name: array.copy() for name, array in shard.state(in_flight=True).items()}
                for shard in self.shards
            ]

    def kept(self) -> list[Arrays]:
        return self._kept or [shard.state() for shard in self.shards]

    def recover(self) -> None:
        """Objects are not lost."""

    restart = recover

    def close(self) -> None:
        for shard in self.shards:
            shard.close()


class LocalExecutor(ShardedExecutor):
    """The executor of one process."""

    def __init__(
        self,
        prepared: Prepared,
        *,
        shards: int = 1,
        scratch: Path | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        groups: list[IntArray | None] = [None]
        if shards > 1:
            groups = list(np.array_split(np.arange(prepared.experiment.workers), shards))
        local = [
            Shard(shard_spec_of(prepared, group, scratch=scratch), stop=stop) for group in groups
        ]
        self.shard = local[0]  # all workers, unless there are more shards
        super().__init__(prepared, LocalShards(local))
