"""Rounds without training: another planner among the measurements of a recorded run.

Times are the world's own, at the replay's own clock. Update norms, smoothness, variances and
distances are those of the same round of the record, whatever the plan.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedhp.algorithms.base import is_synchronous
from fedhp.engine.events import EventLoop
from fedhp.engine.executor import Estimates, EventExecutor, Training
from fedhp.engine.loop import RoundLoop
from fedhp.exchange import (
    DirectedMixing,
    Exchanged,
    GroupAverage,
    Mixing,
    Scoring,
    ServerAverage,
)
from fedhp.graph import neighbor_lists
from fedhp.learn.topk import is_kept
from fedhp.record.measured import Distances, MeasuredRounds, Rounds
from fedhp.rounds.context import PlanningContext
from fedhp.timing import mean_bandwidth
from fedhp.types import BoolArray, FloatArray, IntArray, RoundRecord
from fedhp.world import World


class ReplayExecutor:
    """Answers the round loop from the record of a run."""

    def __init__(
        self,
        context: PlanningContext,
        measured: MeasuredRounds,
        *,
        distances: Distances,
        kept: IntArray | None = None,
    ) -> None:
        self.context = context
        self.workers = measured.workers
        self.kept = kept  # PENS: how often each worker kept each peer, [2E]
        self.drew_peers = False  # PENS: whether a round was in its second stage
        self.links_asked = self.links_measured = 0  # whose distance the planner got
        self._measured = measured
        self._distances = distances
        self._last_sent: dict[tuple[int, int], int] = {}  # with topk: by reader and sender

    def train(
        self,
        local_steps: IntArray,
        *,
        round_index: int,
        learning_rate: float,
        present: BoolArray | None = None,
        continued: bool = False,
    ) -> Training:
        """The losses and norms of the record, which are those of the whole round, whatever the
        steps."""
        worked, at = (local_steps > 0) | continued, round_index - 1
        return Training(
            np.where(worked, self._measured.train_loss[at], np.nan),
            np.where(worked, self._measured.update_norm[at], np.nan),
        )

    def estimate(self, chosen: BoolArray, *, round_index: int) -> Estimates:
        """What these workers measured in that round, if they did."""
        at = round_index - 1
        start_loss = np.full(len(chosen), np.nan)
        if chosen.any():
            # Only the mean is on record: reported by one worker alone it stays exact.
            start_loss[np.argmax(chosen)] = self._measured.initial_loss
        return Estimates(
            np.where(chosen, self._measured.smoothness[at], np.nan),
            np.where(chosen, self._measured.gradient_variance[at], np.nan),
            start_loss,
        )

    def mix(self, mixing: Mixing, *, round_index: int) -> Exchanged:
        """As planned."""
        return self._measured_over(mixing.links, round_index, directed=mixing.directed)

    def average_over_server(self, average: ServerAverage) -> Exchanged:
        """As planned."""
        return self._measured_over(average.lines, 0, directed=True)

    def score(self, mixing: DirectedMixing, scoring: Scoring, *, round_index: int) -> Exchanged:
        """With the peers that were kept, where the record says how often."""
        selected = self._select(mixing.sources, scoring.keep, round_index)
        links = mixing.kept_links(selected)
        if scoring.symmetric and self.kept is not None:
            links, _ = self._measured.transfers(round_index)
        return self._measured_over(links, round_index, directed=True, selected=selected)

    def average_groups(self, groups: Sequence[GroupAverage]) -> None:
        """There are no models."""

    def proceed(self) -> None:
        """There are no models."""

    advance = recover = proceed

    def _measured_over(
        self,
        links: IntArray,
        round_index: int,
        *,
        directed: bool,
        selected: IntArray | None = None,
    ) -> Exchanged:
        if selected is None:
            self.drew_peers = True
            selected = np.empty((self.workers, 0), dtype=np.int64)
        distance, measured = self._distances.of(links, round_index)
        self.links_asked += len(links)
        self.links_measured += int(measured.sum())
        share = self._shares(links, round_index, directed=directed)
        return Exchanged(links, directed, distance, selected, share)

    def _shares(self, links: IntArray, round_index: int, *, directed: bool) -> FloatArray | None:
        """What travelled over each link, as a share of a model's bytes; a delta of topk is counted
        with all its values."""
        compression = self.context.experiment.exchange.compression
        if self.context.transfer_share == 1 and compression != "topk":
            return None
        shares = np.full((len(links), 2), self.context.transfer_share)
        if compression == "topk":
            for index, (a, b) in enumerate(links.tolist()):
                for column, pair in enumerate([(a, b)] if directed else [(a, b), (b, a)]):
                    last = self._last_sent.get(pair)
                    if last is None or not is_kept(last, round_index):
                        shares[index, column] = 1.0
                    self._last_sent[pair] = round_index
        if directed:
            shares[:, 1] = 0.0
        return shares

    def _select(self, candidates: IntArray, keep: int, round_index: int) -> IntArray:
        """Who is kept. Candidates come in random order: the first are a choice by chance."""
        if self.kept is None:
            return candidates[:, :keep]
        # How often is on record, not when; nobody is kept twice in a round, and only the
        # sum at the end of the stage counts.
        start, peers = neighbor_lists(self.context.federation.base_topology)
        owner = np.repeat(np.arange(len(start) - 1), np.diff(start))
        now = self.kept >= round_index
        return _rows(owner[now], peers[now], workers=len(start) - 1)


def replay_loop(executor: ReplayExecutor) -> RoundLoop | EventLoop:
    if is_synchronous(executor.context.algorithm):
        return RoundLoop(executor.context, executor)
    return EventLoop(executor.context, EventExecutor())


def _rows(owner: IntArray, peers: IntArray, *, workers: int) -> IntArray:
    """The peers of every worker in a row of its own, -1 behind them; owner is rising."""
    counts = np.bincount(owner, minlength=workers)
    column = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = np.full((workers, int(counts.max(initial=0))), -1, dtype=np.int64)
    rows[owner, column] = peers
    return rows


def replay(executors: Sequence[ReplayExecutor], rounds: int) -> list[Rounds]:
    """So many rounds of each, side by side: they share what is read of a round."""
    loops = [replay_loop(executor).rounds() for executor in executors]
    rows: list[list[tuple[float, float, float, float, IntArray, int]]] = [[] for _ in loops]
    for _ in range(rounds):
        for loop, done in zip(loops, rows, strict=True):
            done.append(_row(next(loop)))
    return [Rounds(*(np.array(column) for column in zip(*done, strict=True))) for done in rows]


def _row(record: RoundRecord) -> tuple[float, float, float, float, IntArray, int]:
    """The fields of Rounds."""
    return (
        record.clock,
        record.timing.round_time,
        record.timing.mean_waiting_time,
        record.mean_local_steps,
        record.local_steps,
        len(record.links),
    )


def world_difference(measured: MeasuredRounds, world: World, *, asynchronous: bool) -> str:
    """Where this world is not the one that was recorded; empty if it is, bit for bit."""
    recorded = measured.outcome()
    starts = [0.0, *recorded.clock[:-1].tolist()]
    for index, start in enumerate(starts, start=1):
        compared = {"bandwidth": (measured.bandwidth, mean_bandwidth(world.network(start)))}
        if not asynchronous:  # else a turn spans rounds, and its steps began at another time
            steps = recorded.local_steps[index - 1]
            total = world.compute_times(steps, index, time=start)
            mean = np.where(steps > 0, total / np.maximum(steps, 1), np.nan)
            compared["step time"] = (measured.step_time, mean)
        for name, (before, now) in compared.items():
            then = before[index - 1]
            different = np.flatnonzero(~((then == now) | (np.isnan(then) & np.isnan(now))))
            if len(different):
                worker = different[0]
                return (
                    f"round {index}, worker {worker}: its {name} was {then[worker]:.6g}, "
                    f"and would now be {now[worker]:.6g}"
                )
    return ""
