"""One process that repeats what all workers of a recorded run did, with the same bits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedhp.algorithms.base import traits_of
from fedhp.cluster.audit.committed_rounds import CommittedRound
from fedhp.cluster.audit.timeline import RunTimeline
from fedhp.cluster.events import CaughtUp, Joined
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.codec import row_digest
from fedhp.cluster.worker.data import worker_experiment
from fedhp.engine.prepare import prepare
from fedhp.engine.shard.arrivals import PAIR_STATE
from fedhp.engine.sharded import LocalExecutor
from fedhp.exchange import DirectedMixing, NeighborMixing
from fedhp.exchange.base import Part
from fedhp.graph import topology_from, with_weights_of
from fedhp.record.tensors import Arrays
from fedhp.types import IntArray

MOST_UNKNOWN = 6  # links of which every selection is tried


class RunReplayer:
    """The models of all workers, round by round."""

    def __init__(
        self, experiment: str, timeline: RunTimeline, *, returns: Collection[Attempt] = ()
    ) -> None:
        """returns: the rounds to which the run went back later."""
        self._prepared = prepare(worker_experiment(experiment))
        self._timeline = timeline
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as every worker does: more threads sum in another order
        self._engine = LocalExecutor(self._prepared)
        self._workers = self._prepared.experiment.workers
        self._initial = {name: rows[:1].copy() for name, rows in self._engine.state().items()}
        self._last = INITIAL  # the attempt that was repeated last
        self._versions = [INITIAL] * self._workers  # the attempt that made each worker's model
        self._unreported: dict[int, Arrays] = {}  # mixed by workers whose report was not counted
        self._unknown: dict[int, str] = {}  # why the model of a worker is not known
        self._returns = frozenset(returns)
        self._kept: dict[Attempt, Arrays] = {}  # all models, after each round of `returns`

    def close(self) -> None:
        self._engine.close()
        torch.set_num_threads(self._threads)

    def prepare_round(self, done: CommittedRound) -> str:
        """Give every participant the model it began with; why the round cannot be repeated, or
        "". Workers whose model is not known are remembered: the others are compared."""
        obstacle = self._obstacle(done)
        if obstacle:
            self._unknown = dict.fromkeys(range(self._workers), obstacle)
            self._versions, self._last = [done.attempt] * self._workers, done.attempt
            return obstacle
        if done.averaged is not None:
            return ""
        caught_up = self._timeline.of_workers(CaughtUp)
        for worker, event in sorted(caught_up, key=lambda found: found[1].at):
            if event.attempt != self._last:
                continue
            source = self._timeline.worker_numbers[str(event["peer"])]
            self._versions[worker] = self._last
            if self._versions[source] != self._last or source in self._unknown:
                why = f"worker {worker} took the model of worker {source}, which is unknown"
                self._unknown[worker] = why
            else:
                self._copy_model(worker, source, int(event.get("position", 0)))
        for worker in done.participants:
            if self._versions[worker] != self._last and not self._take_unreported(worker):
                self._unknown[worker] = f"the model that worker {worker} began with is unknown"
        return ""

    def unknown_inputs(self, done: CommittedRound) -> str:
        return next((self._unknown[each] for each in done.digests if each in self._unknown), "")

    def _obstacle(self, done: CommittedRound) -> str:
        silent = [worker for worker in done.participants if worker not in done.digests]
        if len(self._unknown) == self._workers:
            return next(iter(self._unknown.values()))
        if not done.has_all_links and done.exchange is None:
            return "the record has only a selection of its links"
        if done.scored and traits_of(self._prepared.algorithm).scoring is None:
            return "its peers were scored by an algorithm of your own"
        if done.attempt.round_index != self._last.round_index + 1:
            return f"there is no record of round {self._last.round_index + 1}"
        if done.averaged is not None:
            missing = sorted(set(done.averaged.required) - done.digests.keys())
            if missing:
                return f"participants {missing} of its average did not report"
            if done.back_to is not None and done.back_to not in self._kept:
                return f"the models of round {done.back_to.round_index} are unknown"
            return next(iter(self._unknown.values()), "")
        return self._unknown_copies(done, silent)

    def _unknown_copies(self, done: CommittedRound, silent: list[int]) -> str:
        """With topk a model depends on the copies that readers have: why these are unknown, or ""
        for a round without a fault."""
        if self._prepared.experiment.exchange.compression != "topk":
            return ""
        whose = "the copies that readers have of other models are unknown"
        if silent or any(done.lost.values()):
            return f"{whose}: not all models of the round arrived"
        if done.attempt.number > 1:
            return f"{whose}: the round was tried {done.attempt.number} times"
        if len(self._timeline.terms) > 1:
            return f"{whose}: another coordinator may have begun the round before"
        histories = sorted(self._timeline.worker_events.items())
        joined = [name for name, own in histories if sum(line.is_a(Joined) for line in own) > 1]
        return f"{whose}: {', '.join(joined)} joined again" if joined else ""

    def replay_group_round(self, done: CommittedRound) -> tuple[dict[int, str], dict[int, str]]:
        """Train, average, train on; the digests of the models and of the consensus, by worker.
        Who was not counted keeps what it had."""
        assert done.averaged is not None
        assert done.during_transfer is not None
        engine, index, rate = self._engine, done.attempt.round_index, done.learning_rate
        if done.back_to is not None:
            engine.load(_copied(self._kept[done.back_to]))
        before = _copied(engine.state())
        if done.restarted:
            for name, rows in before.items():
                rows[list(done.restarted)] = self._initial[name][0]
            engine.load(_copied(before))
        counted = np.isin(np.arange(self._workers), list(done.digests))
        during = np.where(counted, done.during_transfer, 0)
        engine.train(during, round_index=index, learning_rate=rate)
        done.averaged.carry_out(engine, round_index=index)
        engine.train(
            np.where(counted, done.local_steps - during, 0),
            round_index=index,
            learning_rate=rate,
            continued=True,
        )
        engine.advance()
        after = _copied(engine.state())
        for name, rows in after.items():
            rows[~counted] = before[name][~counted]
        engine.load(after)
        self._last = done.attempt
        if done.attempt in self._returns:
            self._kept[done.attempt] = _copied(after)
        return (
            {worker: self._digest(after["models"][worker]) for worker in done.digests},
            {worker: row_digest(after["consensus"][worker]).hex() for worker in done.digests},
        )

    def replay_round(self, done: CommittedRound) -> dict[int, str]:
        engine, index = self._engine, done.attempt.round_index
        before = _copied(engine.state())
        engine.train(done.local_steps, round_index=index, learning_rate=done.learning_rate)
        known = self._mix(done)
        engine.advance()
        after = _copied(engine.state())
        digests = {worker: self._digest(after["models"][worker]) for worker in sorted(known)}
        by_worker = {name: rows for name, rows in after.items() if name not in PAIR_STATE}
        self._unreported = {
            worker: {name: rows[worker].copy() for name, rows in by_worker.items()}
            for worker, digest in done.unreported.items()
            if self._digest(after["models"][worker]) == digest
        }
        for worker in set(range(self._workers)) - done.digests.keys():
            for name, rows in by_worker.items():
                rows[worker] = before[name][worker]
        engine.load(after)
        self._last = done.attempt
        for worker in done.digests:
            self._versions[worker] = done.attempt
        return digests

    def _mix(self, done: CommittedRound) -> set[int]:
        """Exchange and mix; the workers whose result is known: they and all that they heard began
        with a model that is. Links between workers that did not report are on no record: what
        the others reported shows which of them there were."""
        silent = sorted(set(done.participants) - done.digests.keys())
        guesses = self._possible_links(done, silent)
        if len(guesses) > 1:
            guesses = self._best_guess(done, guesses)
        if not guesses:
            why = f"the links between workers {silent} are unknown: none of them reported"
            self._unknown = dict.fromkeys(range(self._workers), why)
            return set()
        heard = self._exchange(done, guesses[0])
        known = self._known_after(done, heard)
        for worker in done.digests.keys() - known:
            whose = min(self._unknown.keys() & heard[worker])
            self._unknown.setdefault(worker, self._unknown[whose])
        for worker in known:
            self._unknown.pop(worker, None)
        return known

    def _best_guess(
        self, done: CommittedRound, guesses: list[tuple[tuple[int, int], ...]]
    ) -> list[tuple[tuple[int, int], ...]]:
        """The one that gives all models that were reported, and most of those that only their
        workers know of; none if there is no such."""
        fitting: dict[tuple[tuple[int, int], ...], int] = {}
        for guess in guesses:
            known = self._known_after(done, self._exchange(done, guess))
            if self._have(known, done.digests):
                stored = [self._have({worker}, done.unreported) for worker in done.unreported]
                fitting[guess] = sum(stored)
        return sorted(fitting, key=lambda guess: -fitting[guess])[:1]

    def _known_after(self, done: CommittedRound, heard: list[set[int]]) -> set[int]:
        unknown = self._unknown.keys()
        return {worker for worker in done.digests if unknown.isdisjoint(heard[worker])}

    def _have(self, workers: Collection[int], digests: Mapping[int, str]) -> bool:
        mixed = self._engine.shard.rows.mixed
        return all(
            self._digest(mixed[worker].cpu().numpy()) == digests[worker] for worker in workers
        )

    def _exchange(
        self, done: CommittedRound, silent_links: Sequence[tuple[int, int]]
    ) -> list[set[int]]:
        """Mix by the weights of the plan. By worker: itself, and those whose models decided what
        it has now."""
        planned = self._planned_parts(done, silent_links)
        nothing = np.empty((0, 2), dtype=np.int64)
        mixer = self._engine.shard.mixer
        senders = done.local_steps > 0  # who does not train sends nothing
        heard = [{worker} for worker in range(self._workers)]
        rows = zip(*((part, *part.then) for part in planned), strict=True)
        for number, parts in enumerate(rows):
            if number:
                mixer.proceed()
            weights = self._weights(done, parts, number)
            mixer.exchange(nothing, weights, kernel="ordered", senders=senders)
            heard = [
                heard[worker].union(
                    *(heard[peer] for peer in set(part.sources) - done.lost_by(worker, number))
                )
                for worker, part in enumerate(parts)
            ]
        for receiver, sender in done.links.tolist() if done.scored else ():
            heard[receiver].add(sender)
        return heard

    def _possible_links(
        self, done: CommittedRound, silent: Sequence[int]
    ) -> list[tuple[tuple[int, int], ...]]:
        """Which links there may have been between workers that did not report, all of them first.
        They matter where a link concerns both ends."""
        if done.directed or done.exchange is not None or len(silent) < 2:
            return [()]
        planned = self._prepared.federation.topology_at(done.attempt.round_index)
        ends = set(silent)
        between = [(int(a), int(b)) for a, b in planned.links if a in ends and b in ends]
        sizes = range(len(between), -1, -1) if len(between) <= MOST_UNKNOWN else (len(between), 0)
        return [guess for size in sizes for guess in combinations(between, size)]

    def _weights(self, done: CommittedRound, parts: Sequence[Part], number: int) -> csr_array:
        """The weights by which every worker mixed, [N, N]; those of models that did not come
        are added to the worker's own, except with push-sum (worker/rounds.py)."""
        rows = [
            {worker: part.own_weight, **dict(zip(part.sources, part.weights, strict=True))}
            for worker, part in enumerate(parts)
        ]
        for worker in done.lost:
            row, lost = rows[worker], done.lost_by(worker, number)
            missing = sum(row.pop(peer) for peer in sorted(lost) if peer in row)
            if lost and not parts[worker].push_sum:
                row[worker] = row.get(worker, 0.0) + missing if len(row) > 1 else 1.0
        for worker in set(range(self._workers)) - set(done.participants):
            rows[worker] = {worker: 1.0}
        entries = [
            (worker, column, weight)
            for worker, row in enumerate(rows)
            for column, weight in sorted(row.items())
        ]
        owners, columns, weights = map(np.array, zip(*entries, strict=True))
        return csr_array((weights, (owners, columns)), shape=(self._workers, self._workers))

    def _planned_parts(
        self, done: CommittedRound, silent_links: Sequence[tuple[int, int]]
    ) -> list[Part]:
        algorithm = self._prepared.algorithm
        traits = traits_of(algorithm)
        if done.exchange is not None:
            return done.exchange.parts(self._workers)
        lost = [(worker, peer) for worker, peers in done.lost.items() for peer in peers]
        if not done.directed:
            rule = done.rule or getattr(algorithm, "weights", "max_degree")
            links = (*done.links.tolist(), *lost, *silent_links)
            pairs = [tuple(sorted(pair)) for pair in links]
            topology = topology_from(self._workers, sorted(set(pairs)))
            if traits.follows_changes and traits.uses_topology:
                planned = self._prepared.federation.topology_at(done.attempt.round_index)
                topology = with_weights_of(topology, planned)
            return NeighborMixing(topology, rule).parts(self._workers)
        if not done.scored:
            sources = self._sources([*done.links.tolist(), *lost])
            return DirectedMixing(sources).parts(self._workers)
        assert traits.scoring is not None
        selected = self._engine.shard.mixer.score(
            self._sources(done.links.tolist()),
            keep=traits.scoring.keep,
            samples=traits.scoring.samples,
            round_index=done.attempt.round_index,
        )
        return DirectedMixing(selected).parts(self._workers)

    def _sources(self, links: list[list[int] | tuple[int, int]]) -> IntArray:
        """The peers whose models each worker took, rising, padded with -1, [N, M]."""
        sources: list[list[int]] = [[] for _ in range(self._workers)]
        for receiver, sender in links:
            sources[receiver].append(sender)
        table = np.full((self._workers, max(map(len, sources), default=0)), -1, dtype=np.int64)
        for worker, senders in enumerate(sources):
            table[worker, : len(senders)] = sorted(senders)
        return table

    def _copy_model(self, worker: int, source: int, position: int) -> None:
        """What is sent is the other's; the rest stays the worker's own, or begins again as it
        declares (learner.py). A worker that was started again may have lost its last position
        in the stream of its samples."""
        layout = self._prepared.layout
        state = _copied(self._engine.state())
        if layout.position is not None:
            state["counters"][worker, layout.position] = position
        layout.continue_from(state["models"][worker], state["models"][source, : layout.mixed])
        self._engine.load(state)
        self._unknown.pop(worker, None)

    def _take_unreported(self, worker: int) -> bool:
        """A worker that died between mixing and reporting still has the model."""
        model = self._unreported.get(worker)
        if model is None:
            return False
        state = _copied(self._engine.state())
        for name, row in model.items():
            state[name][worker] = row
        self._engine.load(state)
        self._versions[worker] = self._last
        self._unknown.pop(worker, None)
        return True

    def _digest(self, row: NDArray[Any]) -> str:
        """As a worker computes it (learner.py): of the part that is sent."""
        return row_digest(row[: self._prepared.layout.mixed]).hex()


def _copied(state: Arrays) -> Arrays:
    return {name: rows.copy() for name, rows in state.items()}
