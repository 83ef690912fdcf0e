"""The exchange of a shard's workers: what they send, what they receive, and mixing."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from fedhp.engine.shard.arrivals import Arrivals
from fedhp.engine.shard.rows import Rows
from fedhp.learn.evaluate import score_peers
from fedhp.learn.local import check
from fedhp.learn.mix import distance, distances, mix, mix_ordered
from fedhp.learn.robust import combine
from fedhp.learn.vectors import receive, receive_from, send, send_to
from fedhp.rule import Step
from fedhp.seeds import Purpose, generator
from fedhp.types import BoolArray, FloatArray, IntArray

# Workers, or readers and senders [P, 2] where that makes a difference, and what is sent.
SentModels: TypeAlias = tuple[IntArray, NDArray[np.float32]]


class Mixer:
    """Exchanges and mixes the trained models of a shard's workers."""

    def __init__(self, rows: Rows) -> None:
        spec = rows.spec
        self.rows, self.spec, self.layout = rows, spec, spec.layout
        self.arrivals = Arrivals(spec)
        self._per_link = spec.rule.per_link()
        self.acts = spec.rule.acts()  # whether something else than the trained models travels
        self.changes_models = self.arrivals.changes_models
        self._foreign: dict[int, Tensor] = {}
        self._messages: dict[tuple[int, int], Tensor] = {}  # by reader and sender, if they differ
        self._away: list[int] = []  # rows that keep their bits this round

    def begin(self, round_index: int) -> None:
        self._foreign, self._messages = {}, {}
        if self.changes_models:
            self.arrivals.begin(round_index)

    def prepare(self, present: BoolArray | None) -> None:
        """Turn the trained models into what travels; an absent worker [n] keeps its bits."""
        rows = self.rows
        self._away = []
        send(self.spec.rule, self.layout, rows.models, rows.after, rows.step)
        if present is not None:
            self._away = np.flatnonzero(~present).tolist()
            rows.after[self._away] = rows.models[self._away]

    def offered(self, worker: int) -> NDArray[np.float32]:
        """What a worker wants to send of its trained model: the part that travels."""
        row = self.rows.own(worker)
        if self.changes_models:
            return self.arrivals.offered(worker, row).copy()
        values: NDArray[np.float32] = row.cpu().numpy().copy()
        return values

    def send(self, workers: IntArray) -> SentModels:
        """What other shards get of these workers' trained models."""
        if self._per_link:
            messages = [self._message(reader, sender) for reader, sender in workers.tolist()]
            return workers, torch.stack(messages).cpu().numpy()
        if self.changes_models:
            sent = [self._sent(worker) for worker in workers.tolist()]
            return workers, torch.stack(sent).cpu().numpy()
        rows = [self.rows.index[worker] for worker in workers.tolist()]
        return workers, self.rows.after[rows, : self.layout.mixed].cpu().numpy()

    def receive(self, *parts: SentModels) -> None:
        """Add models of workers in other shards that this round's exchange needs."""
        for workers, models in parts:
            rows = torch.from_numpy(models).to(self.rows.models.device)
            if self._per_link:
                self._messages.update(zip(map(tuple, workers.tolist()), rows, strict=True))
            else:
                self._foreign.update(zip(workers.tolist(), rows, strict=True))

    def score(self, candidates: IntArray, *, keep: int, samples: int, round_index: int) -> IntArray:
        """The best-scored candidates [n, M] of every worker, [n, keep]."""
        own_samples = []
        for worker, part in zip(self.rows.workers, self.spec.parts, strict=True):
            rng = generator(self.spec.experiment.seed, Purpose.SCORING, worker, round_index)
            own_samples.append(self.rows.take(part[rng.integers(len(part), size=samples)]))
        with self.rows.threads.replica() as replica:
            losses = score_peers(
                replica,
                self.spec.task,
                self.rows.samples,
                candidates=candidates,
                own_samples=own_samples,
                bind=lambda peer, row: replica.bind(*self._as_seen(peer, row)),
                stop=self.rows.stop,
            )
        best = np.argsort(losses, axis=1, kind="stable")[:, : min(keep, losses.shape[1])]
        chosen = np.take_along_axis(candidates, best, axis=1)
        return np.asarray(np.where(np.take_along_axis(losses, best, axis=1) < np.inf, chosen, -1))

    def exchange(
        self,
        links: IntArray,
        weights: csr_array,
        senders: BoolArray | None = None,
        *,
        kernel: str,
    ) -> FloatArray:
        """Measure the distances on these links [E, 2], then mix `after` into `mixed`.

        weights are the rows of this shard's workers, [n, N]; a link's first end is here. senders
        [n]: the others have no message, and everyone receives, also who is absent.
        """
        rows, layout = self.rows, self.layout
        if senders is not None and self.acts:
            silent = np.flatnonzero(~senders).tolist()
            rows.after[silent] = rows.models[silent]
            self._away = []
        if self.changes_models or self.spec.exchange.robust != "none":
            measured = self._mix_received(links, weights)
        elif kernel == "ordered":
            measured = self._mix_in_order(links, weights)
        else:
            run = rows.threads.map
            measured = distances(rows.after[:, : layout.trainable], links, run=run)
            mix(rows.after, weights, mixed=layout.mixed, out=rows.mixed, kernel=kernel, run=run)
        if self._per_link:
            self._receive_each(weights)
        elif self.acts:
            receive(self.spec.rule, layout, rows.models, rows.after, rows.mixed, rows.step)
            rows.mixed[self._away] = rows.after[self._away]
        if self.spec.optimizer.reset:
            rows.reset_state(rows.mixed, self._exchanging(weights))
        self._foreign, self._messages = {}, {}
        check(rows.stop)
        return measured

    def proceed(self) -> None:
        """What was mixed is what the next exchange of the round begins with."""
        self.rows.after, self.rows.mixed = self.rows.mixed, self.rows.after
        self.arrivals.begin(self.arrivals.round_index)

    def _mix_in_order(self, links: IntArray, weights: csr_array) -> FloatArray:
        trainable = slice(self.layout.trainable)
        measured = np.array(
            [distance(self._row(a)[trainable], self._row(b)[trainable]) for a, b in links]
        )
        workers, columns = np.unique(weights.indices, return_inverse=True)
        self._add_up([self._row(worker) for worker in workers.tolist()], weights, columns)
        return measured

    def _add_up(self, rows: list[Tensor], weights: csr_array, columns: IntArray) -> None:
        """Mix these rows by the weights, whose columns are numbers of rows."""
        layout, mixed = self.layout, self.rows.mixed
        compact = csr_array(
            (weights.data, columns, weights.indptr), shape=(weights.shape[0], len(rows))
        )
        mix_ordered(rows, compact, mixed=layout.mixed, out=mixed, run=self.rows.threads.map)
        mixed[:, layout.mixed :] = self.rows.after[:, layout.mixed :]

    def _mix_received(self, links: IntArray, weights: csr_array) -> FloatArray:
        """Measure and mix where a worker receives something else than the sender has, or does not
        trust it: always in the order of the workers' numbers."""
        trainable, own = slice(self.layout.trainable), self.rows.own
        measured = np.array(
            [
                distance(own(a)[trainable], self._received(a, b)[trainable])
                for a, b in links.tolist()
            ]
        )
        starts, columns = weights.indptr.tolist(), weights.indices.tolist()
        peers = [columns[first:last] for first, last in pairwise(starts)]
        if self.spec.exchange.robust != "none":
            self._mix_robustly(weights, peers)
            return measured
        rows: dict[tuple[int, int], Tensor] = {}
        places = []
        for worker, its_peers in zip(self.rows.workers, peers, strict=True):
            for peer in its_peers:
                reader = worker if peer == worker or self.arrivals.by_reader else -1
                row = own(worker) if peer == worker else self._received(worker, peer)
                rows.setdefault((reader, peer), row)
                places.append((reader, peer))
        number_of = {place: number for number, place in enumerate(rows)}
        self._add_up(list(rows.values()), weights, np.array([number_of[place] for place in places]))
        return measured

    def _mix_robustly(self, weights: csr_array, peers: list[list[int]]) -> None:
        """Mix by a rule that withstands poisoned models; peers are those with a weight, by row."""
        layout, mixed, workers = self.layout, self.rows.mixed, self.rows.workers
        starts, settings = weights.indptr.tolist(), self.spec.exchange
        poisoned = settings.max_poisoned(self.spec.experiment.workers)
        received = [
            [self._received(worker, peer) for peer in its_peers if peer != worker]
            for worker, its_peers in zip(workers, peers, strict=True)
        ]

        def job(row: int) -> None:
            values = weights.data[starts[row] : starts[row + 1]]
            shares = dict(zip(peers[row], values, strict=True))
            own_weight = float(shares.pop(workers[row], 0.0))
            mixed[row, : layout.mixed] = combine(
                self.rows.own(workers[row]),
                received[row],
                [float(share) for share in shares.values()],
                own_weight,
                rule=settings.robust,
                poisoned=poisoned,
                clip=settings.clip,
                radius=settings.radius,
            )

        list(self.rows.threads.map(job, range(len(workers))))
        mixed[:, layout.mixed :] = self.rows.after[:, layout.mixed :]

    def _exchanging(self, weights: csr_array) -> list[int]:
        """The rows of workers that mix another's model into theirs."""
        return [
            row
            for row, (first, last) in enumerate(pairwise(weights.indptr.tolist()))
            if (weights.indices[first:last] != self.rows.workers[row]).any()
        ]

    def _row(self, worker: int) -> Tensor:
        """A worker's trained model, the part that travels; of this shard or received."""
        worker = int(worker)
        return self.rows.own(worker) if worker in self.rows.index else self._foreign[worker]

    def _sent(self, worker: int) -> Tensor:
        """What a worker's peers get, before topk; of this shard or received."""
        if worker not in self.rows.index:
            return self._foreign[worker]
        return self.arrivals.sent(worker, self.rows.own(worker))

    def _received(self, reader: int, sender: int) -> Tensor:
        """What a worker of this shard has of another's model after the transfer."""
        sent = self._message(reader, sender) if self._per_link else self._sent(sender)
        return self.arrivals.received(reader, sender, sent)

    def _message(self, reader: int, sender: int) -> Tensor:
        """What a worker sends to this reader alone; of this shard or received."""
        if (reader, sender) not in self._messages:
            row, heard = self.rows.index[sender], self.arrivals.heard(sender, but=reader)
            own = self.rows.after[row : row + 1]
            message = send_to(self.spec.rule, self.layout, own, heard, self._step_of(row))
            self._messages[reader, sender] = message
        return self._messages[reader, sender]

    def _receive_each(self, weights: csr_array) -> None:
        """The new model of each worker, from the last messages of all that it has heard."""
        rows, starts = self.rows, weights.indptr.tolist()
        for row, worker in enumerate(rows.workers):
            one = slice(row, row + 1)
            peers = weights.indices[starts[row] : starts[row + 1]].tolist()
            receive_from(
                self.spec.rule,
                self.layout,
                rows.models[one],
                rows.after[one],
                rows.mixed[one],
                self.arrivals.heard(worker, [peer for peer in peers if peer != worker]),
                self._step_of(row),
            )

    def _step_of(self, row: int) -> Step:
        return replace(self.rows.step, local_steps=self.rows.step.local_steps[row : row + 1])

    def _as_seen(self, peer: int, row: int) -> tuple[Tensor, Tensor]:
        """A peer's model as a worker scores it: what does not travel is the worker's own."""
        travels = self._received(self.rows.workers[row], peer)
        stays = self.rows.after[row, self.layout.mixed : self.layout.tested]
        counters = self.rows.after_counters[row].clone()
        return (torch.cat([travels, stays]) if len(stays) else travels), counters
