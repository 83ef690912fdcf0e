"""What a run measured, round by round: all that a replay of its rounds can know.

Distances of pairs that a round did not measure are estimated as FedHP's coordinator does it
(distance.py): moved towards the shortest path over the measured pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedhp.distance import update_link_distance
from fedhp.record.checkpoint import read_checkpoint
from fedhp.record.reader import RunReader
from fedhp.types import BoolArray, FloatArray, IntArray, Topology


@dataclass(frozen=True, slots=True)
class Rounds:
    """The results of rounds, recorded or replayed: one entry per round in every array."""

    clock: FloatArray  # [R] at the end of each round, s
    round_time: FloatArray  # [R]
    waiting_time: FloatArray  # [R] mean over the workers that took part
    mean_steps: FloatArray  # [R] likewise
    local_steps: IntArray  # [R, N]
    links: IntArray  # [R]

    def first_difference(self, other: Rounds) -> int | None:
        """The first round in which any number differs in any bit; None: all are equal."""
        same: BoolArray = np.ones(len(self.clock), dtype=np.bool_)
        for name in ("clock", "round_time", "waiting_time", "links"):
            same &= getattr(self, name) == getattr(other, name)
        same &= (self.local_steps == other.local_steps).all(axis=1)
        different = np.flatnonzero(~same)
        return int(different[0]) + 1 if len(different) else None


class MeasuredRounds:
    """The measurements of a run, [R, N] where they are per worker; NaN: not measured."""

    def __init__(self, run: RunReader) -> None:
        self._run = run
        self.rounds = run.rounds_done  # an unfinished run may commit more meanwhile
        self.workers = int(run.meta("workers"))
        self.model_bytes = int(run.meta("model_bytes"))
        self.transfer_share = float(run.meta("transfer_share") or 1.0)
        # Of each worker; not all of them may be known on a network.
        samples = [*(run.meta("samples") or ()), *[0] * self.workers]
        self.samples: list[int] = samples[: self.workers]
        self.step_time = self._of_workers("step_time")
        self.bandwidth = self._of_workers("bandwidth")
        self.train_loss = self._of_workers("train_loss")
        self.update_norm = self._of_workers("update_norm")
        self.smoothness = self._of_workers("smoothness")
        self.gradient_variance = self._of_workers("gradient_variance")
        self.initial_loss = self._initial_loss()
        recorded, known = run.links_kept()
        self.all_links = recorded == known  # else the record has a selection of them
        self._links: tuple[int, IntArray, FloatArray] | None = None  # of the round asked for last

    def outcome(self) -> Rounds:

        def of_rounds(column: str) -> FloatArray:
            return self._run.array("rounds", column)[: self.rounds]

        return Rounds(
            clock=of_rounds("clock"),
            round_time=of_rounds("round_time"),
            waiting_time=of_rounds("mean_waiting_time"),
            mean_steps=of_rounds("mean_local_steps"),
            local_steps=self._of_workers("local_steps").astype(np.int64),
            links=of_rounds("links").astype(np.int64),
        )

    def transfers(self, round_index: int) -> tuple[IntArray, FloatArray]:
        """The links used in a round, (receiver, sender) where directed, sorted, and distances."""
        if self._links is None or self._links[0] != round_index:
            table = self._run.table("links", round_index=round_index)
            used = np.array(table["used"], dtype=np.bool_)
            links = np.array([table["a"], table["b"]], dtype=np.int64).T.reshape(-1, 2)
            distance = np.array(table["distance"], dtype=np.float64)
            self._links = (round_index, links[used], distance[used])
        return self._links[1:]

    def distances(self, round_index: int) -> tuple[IntArray, FloatArray]:
        """The pairs measured in a round, each once, smaller worker first, sorted."""
        links, distance = self.transfers(round_index)
        known = np.isfinite(distance)
        keys, first = np.unique(_keys(links[known], self.workers), return_index=True)
        return np.stack(np.divmod(keys, self.workers), axis=1), distance[known][first]

    def kept_peers(self) -> IntArray | None:
        """PENS: how often each worker kept each peer in the first stage, [2E], from the
        checkpoint; None if there is no checkpoint after that stage."""
        saved = read_checkpoint(self._run.folder, mapped=True)
        if saved is None or "state.kept" not in saved.arrays:
            return None
        over = saved.round_index > saved.scalars["state.stage_rounds"]
        return np.array(saved.arrays["state.kept"]) if over else None

    def _of_workers(self, column: str) -> FloatArray:
        return self._run.array("workers", column)[: self.rounds]

    def _initial_loss(self) -> float:
        """FedHP records the mean over the workers among the facts of its rounds."""
        facts = self._run.table("facts", columns=("name", "value"))
        rows = zip(*facts.values(), strict=True)
        values = (value for name, value in rows if name == "initial_loss" and value is not None)
        return float(next(values, np.nan))


class Distances:
    """Distances between workers after each round's training: measured, else estimated.

    Estimates follow the links of a base topology; rounds must be asked for in rising order.
    """

    def __init__(self, measured: MeasuredRounds, base: Topology, *, smoothing: float) -> None:
        self._measured = measured
        self._base = base
        self._smoothing = smoothing
        self._keys = _keys(base.links, base.workers)
        self._order = np.array([base.workers, 1])  # links times this are sorted as links are
        self._estimate = np.full(len(base.links), np.nan)
        self._done = 0  # the last round that is part of the estimate

    def of(self, links: IntArray, round_index: int) -> tuple[FloatArray, BoolArray]:
        """The distance on each of these links [E], NaN where nothing is known, and whether it
        was measured in that very round."""
        wanted = _keys(links, self._base.workers)
        pairs, values = self._measured.distances(round_index)
        distance, is_measured = _look_up(wanted, _keys(pairs, self._base.workers), values)
        # Where models are pulled both ends measure, and their last bits may differ.
        used, used_distance = self._measured.transfers(round_index)
        own, is_own = _look_up(links @ self._order, used @ self._order, used_distance)
        distance = np.where(is_own, own, distance)
        if not is_measured.all():
            self._update(round_index)
            estimated, _ = _look_up(wanted, self._keys, self._estimate)
            distance = np.where(is_measured, distance, estimated)
        return distance, is_measured

    def _update(self, round_index: int) -> None:
        nobody = np.empty(0, dtype=np.int64)
        for index in range(self._done + 1, round_index + 1):
            pairs, values = self._measured.distances(index)
            self._estimate = update_link_distance(
                self._estimate,
                self._base.links,
                pairs,
                values,
                smoothing=self._smoothing,
                rows=np.empty((0, self._base.workers)),
                sources=nobody,
            )
        self._done = max(self._done, round_index)


def _keys(links: IntArray, workers: int) -> IntArray:
    """One number per pair, the same in both directions."""
    low, high = np.minimum(links[:, 0], links[:, 1]), np.maximum(links[:, 0], links[:, 1])
    return low * workers + high


def _look_up(wanted: IntArray, keys: IntArray, values: FloatArray) -> tuple[FloatArray, BoolArray]:
    """The values of the wanted keys, and whether they exist; `keys` are sorted."""
    if not len(keys):
        return np.full(len(wanted), np.nan), np.zeros(len(wanted), dtype=np.bool_)
    index = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    exists = keys[index] == wanted
    return np.where(exists, values[index], np.nan), exists
