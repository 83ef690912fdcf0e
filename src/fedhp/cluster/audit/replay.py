"""One process doing what all workers of a recorded run did, plan by plan, with the same bits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedhp.algorithms.pens import PENS
from fedhp.cluster.audit.timeline import Recorded
from fedhp.cluster.audit.verify import RoundDone
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.worker.data import worker_experiment
from fedhp.engine.local import LocalEngine
from fedhp.engine.prepare import prepare
from fedhp.graph import directed_weights, mixing_weights, topology_from
from fedhp.record.packing import Arrays
from fedhp.types import IntArray


class RunReplayer:
    """The models of all workers, round by round."""

    def __init__(self, experiment: str, run: Recorded) -> None:
        self._prepared = prepare(worker_experiment(experiment))
        self._run = run
        self.algorithm = self._prepared.experiment.algorithm.name
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as every worker does: more threads sum in another order
        self._engine = LocalEngine(self._prepared)
        self._workers = self._prepared.experiment.workers
        self._last = INITIAL
        self._stands = [INITIAL] * self._workers
        self._kept: dict[int, Arrays] = {}  # mixed by workers whose report was not counted

    def close(self) -> None:
        """Let the engine go."""
        self._engine.close()
        torch.set_num_threads(self._threads)

    def why_not(self, done: RoundDone) -> str:
        """Why this round, and so all after it, cannot be done again; empty if it can."""
        unreported = [each for each in done.participants if each not in done.digests]
        if not done.whole:
            return "the record has a selection of its links only"
        if done.attempt.round_index != self._last.round_index + 1:
            return f"there is no record of round {self._last.round_index + 1}"
        if len(unreported) > 1:
            return f"nothing is known of links between workers {unreported}, who fell silent"
        for worker, source in self._catching_up():
            if self._stands[source] != self._last:
                return f"worker {worker} took a model of worker {source}, whose own is not known"
            self._take(worker, source)
        for worker in done.participants:
            if self._stands[worker] != self._last and not self._take_kept(worker):
                return f"it is not known from which model worker {worker} went on"
        return ""

    def round(self, done: RoundDone) -> dict[int, str]:
        """Train, exchange and mix; the digests of all models."""
        engine, index = self._engine, done.attempt.round_index
        before = {name: rows.copy() for name, rows in engine.state().items()}
        engine.train(done.local_steps, round_index=index, learning_rate=done.learning_rate)
        engine.shard.exchange(
            np.empty((0, 2), dtype=np.int64), self._weights(done), kernel="ordered"
        )
        engine.advance()
        after = {name: rows.copy() for name, rows in engine.state().items()}
        digests = {worker: self._digest(after["models"][worker]) for worker in done.digests}
        self._kept = {
            worker: {name: rows[worker].copy() for name, rows in after.items()}
            for worker, told in done.uncounted.items()
            if self._digest(after["models"][worker]) == told
        }
        for worker in set(range(self._workers)) - done.digests.keys():
            for name, rows in after.items():
                rows[worker] = before[name][worker]
        engine.load(after)
        self._last = done.attempt
        for worker in done.digests:
            self._stands[worker] = done.attempt
        return digests

    # --- inside ----------------------------------------------------------------------------

    def _weights(self, done: RoundDone) -> csr_array:
        """The weights by which every worker mixed, [N, N]: a model that did not come leaves its
        weight to the worker's own."""
        rows = self._planned(done)
        for worker, lost in done.lost.items():
            row = rows[worker]
            missing = sum(row.pop(peer) for peer in sorted(lost) if peer in row)
            if lost:
                row[worker] = row.get(worker, 0.0) + missing if len(row) > 1 else 1.0
        for worker in set(range(self._workers)) - set(done.participants):
            rows[worker] = {worker: 1.0}
        entries = [(w, c, value) for w, row in enumerate(rows) for c, value in sorted(row.items())]
        owner, columns, values = zip(*entries, strict=True)
        shape = (self._workers, self._workers)
        return csr_array((np.array(values), (np.array(owner), np.array(columns))), shape=shape)

    def _planned(self, done: RoundDone) -> list[dict[int, float]]:
        """The weights of the plan, by worker."""
        algorithm = self._prepared.algorithm
        lost = [(worker, peer) for worker, peers in done.lost.items() for peer in peers]
        if not done.directed:
            rule = getattr(algorithm, "weights", "max_degree")
            pairs = [tuple(sorted(pair)) for pair in (*done.links.tolist(), *lost)]
            return _rows(mixing_weights(topology_from(self._workers, sorted(set(pairs))), rule))
        if not done.scored:
            return _rows(directed_weights(self._sources([*done.links.tolist(), *lost])))
        assert isinstance(algorithm, PENS)
        selected = self._engine.shard.score(
            self._sources(done.links.tolist()),
            keep=algorithm.keep,
            samples=algorithm.samples,
            round_index=done.attempt.round_index,
        )
        return _rows(directed_weights(selected))

    def _sources(self, links: list[list[int] | tuple[int, int]]) -> IntArray:
        """Whose models each worker took, rising, -1 where there are no more, [N, M]."""
        sources: list[list[int]] = [[] for _ in range(self._workers)]
        for receiver, sender in links:
            sources[receiver].append(sender)
        table = np.full((self._workers, max(map(len, sources), default=0)), -1, dtype=np.int64)
        for worker, found in enumerate(sources):
            table[worker, : len(found)] = sorted(found)
        return table

    def _catching_up(self) -> Iterator[tuple[int, int]]:
        """Who took the last committed model from whom, in time."""
        found = [
            (float(event["at"]), name, str(event["peer"]))
            for name, events in self._run.workers.items()
            for event in events
            if event["event"] == "caught_up" and Attempt.from_facts(event) == self._last
        ]
        places = self._run.places
        return iter([(places[name], places[peer]) for _, name, peer in sorted(found)])

    def _take(self, worker: int, source: int) -> None:
        """What travels is the other's; the rest stays the worker's own."""
        width = self._prepared.layout.mixed
        state = {name: rows.copy() for name, rows in self._engine.state().items()}
        state["models"][worker, :width] = state["models"][source, :width]
        self._engine.load(state)
        self._stands[worker] = self._last

    def _take_kept(self, worker: int) -> bool:
        """A worker that died between mixing and reporting has the model all the same."""
        kept = self._kept.get(worker)
        if kept is None:
            return False
        state = {name: rows.copy() for name, rows in self._engine.state().items()}
        for name, row in kept.items():
            state[name][worker] = row
        self._engine.load(state)
        self._stands[worker] = self._last
        return True

    def _digest(self, row: NDArray[np.generic]) -> str:
        """As a worker makes it (learner.py): of the part that travels."""
        travels = row[: self._prepared.layout.mixed]
        return hashlib.sha256(travels.astype("<f4", copy=False).tobytes()).hexdigest()


def _rows(matrix: csr_array) -> list[dict[int, float]]:
    """A sparse matrix as a table per row."""
    found = []
    for start, stop in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True):
        columns, values = matrix.indices[start:stop].tolist(), matrix.data[start:stop].tolist()
        found.append(dict(zip(columns, values, strict=True)))
    return found
