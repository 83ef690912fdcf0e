"""Plans the turns of an asynchronous algorithm (AD-PSGD), the counterpart of round_planner.py.

A worker that is free gets its next turn; N turns that ended make a round, of each worker no more
than the one in the middle had.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median_high

import numpy as np

from fedhp.algorithms.base import is_asynchronous
from fedhp.cluster.coordinator.planning.link_estimates import SLOWEST_GUESS, LinkEstimates
from fedhp.cluster.coordinator.planning.round_planner import (
    NetworkPlanner,
    evaluation_of,
    from_bytes,
    to_bytes,
)
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.exchange.mailbox import RULE
from fedhp.record.tensors import pack, unpack
from fedhp.rounds.context import PlanningContext
from fedhp.rounds.planner import Measured, Planner, observe
from fedhp.timing import Network, mean_bandwidth
from fedhp.types import (
    Action,
    BoolArray,
    IntArray,
    Pair,
    RoundRecord,
    Timing,
)


@dataclass(frozen=True, slots=True)
class TurnOrder:
    """What one worker does next."""

    worker: int
    number: int
    round_index: int  # when it was given; it may end in a later one
    action: Action
    learning_rate: float


def usual_turns(turns: Mapping[int, int], alive: Collection[int]) -> int:
    """How many the member in the middle has ended."""
    return median_high(turns.get(worker, 0) for worker in alive) if alive else 0


class TurnPlanner(NetworkPlanner):
    """Everything that an asynchronous algorithm needs from one turn to the next."""

    def __init__(self, stage: PlanningContext) -> None:
        assert is_asynchronous(stage.algorithm)
        super().__init__(stage, Planner(stage))
        self.turn = np.full(self.workers, -1, dtype=np.int64)  # [N] the last one given
        self.ended: list[tuple[TurnOrder, wire.RoundReport]] = []
        self._network: tuple[int, Network] | None = None  # as of which round

    def next_turn(
        self,
        worker: int,
        *,
        round_index: int,
        present: BoolArray,
        epoch_steps: IntArray | None = None,
        avoid: frozenset[Pair] = frozenset(),
    ) -> TurnOrder:
        """The next turn of a free worker; present [N] says who else is alive, epoch_steps [N] what
        the local epochs take. avoid: links that do not work: it gets no such partner."""
        cut_off = [peer for link in avoid if worker in link for peer in link if peer != worker]
        present = present & ~np.isin(np.arange(self.workers), cut_off)
        self.turn[worker] += 1
        number = int(self.turn[worker])
        observed = observe(
            self.stage,
            round_index,
            self.clock,
            available=present,
            network=self._network_at(round_index),
            epoch_steps=epoch_steps,
            avoid=avoid,
        )
        action = self.planner.act(worker, observed, turn=number)
        return TurnOrder(worker, number, round_index, action, observed.learning_rate)

    def end_turn(self, turn: TurnOrder, report: wire.RoundReport) -> None:
        """A turn was reported."""
        self.ended.append((turn, report))
        for link in report.links:
            if not link.lost and link.bytes > 0:
                self.links.learn(
                    turn.worker,
                    link.worker,
                    bits=8.0 * link.bytes,
                    seconds=link.seconds,
                    round_index=int(self.turn[turn.worker]),
                )

    def turns_by_worker(self) -> Counter[int]:
        """How many turns of each have ended since the last round."""
        return Counter(turn.worker for turn, _ in self.ended)

    def is_complete(self, alive: Collection[int]) -> bool:
        """Whether as many turns have ended as there are members. Of each count as many as of the
        member in the middle at most: nobody can use up the rounds of the others."""
        turns = self.turns_by_worker()
        most = max(1, usual_turns(turns, alive))
        return sum(min(count, most) for count in turns.values()) >= max(1, len(alive))

    def finish(self, *, round_index: int, seconds: float) -> RoundRecord:
        """The record of the turns that ended since the last round."""
        n = self.workers
        steps = np.zeros(n, dtype=np.int64)
        compute, communication = np.zeros(n), np.zeros(n)
        loss, norm, accuracy, whole_accuracy = (np.full(n, np.nan) for _ in range(4))
        transfers: dict[tuple[int, int], list[wire.LinkReport]] = {}
        rate = 0.0
        images = [report.images for _, report in self.ended if report.images]
        for turn, report in self.ended:
            worker = turn.worker
            steps[worker] += turn.action.local_steps
            compute[worker] += report.compute_seconds
            loss[worker], norm[worker] = report.train_loss, report.update_norm
            rate = turn.learning_rate
            if np.isfinite(report.accuracy):
                accuracy[worker] = report.accuracy
            if np.isfinite(report.whole_accuracy):
                whole_accuracy[worker] = report.whole_accuracy
            for link in report.links:
                if link.lost:
                    continue
                communication[worker] += link.seconds
                pair = min(worker, link.worker), max(worker, link.worker)
                transfers.setdefault(pair, []).append(link)
        pairs = np.array(sorted(transfers), dtype=np.int64).reshape(-1, 2)
        rows = [transfers[pair] for pair in sorted(transfers)]
        times = np.array([np.mean([link.seconds for link in row]) for row in rows])
        self.ended = []
        self.clock += seconds
        measured = Measured(
            local_steps=steps,
            step_time=np.where(steps > 0, compute / np.maximum(steps, 1), np.nan),
            timing=Timing(compute, communication, np.full(n, seconds), np.zeros(n), seconds),
            links=pairs,
            link_time=times,
            link_bytes=np.array([sum(link.bytes for link in row) for row in rows], dtype=np.int64),
            link_distance=np.array([row[-1].distance for row in rows]),
            train_loss=loss,
            update_norm=norm,
            bandwidth=mean_bandwidth(self._estimated_network()),
            wall={"round": seconds},
            evaluation=evaluation_of(accuracy, images, self.attackers),
            final_evaluation=evaluation_of(whole_accuracy, images, self.attackers),
        )
        return self.planner.finish_turns(
            measured, RULE, round_index=round_index, clock=self.clock, rate=rate
        )

    def pack(self) -> bytes:
        """Everything but the turns under way: their workers will ask again."""
        arrays, scalars = pack("state", self.planner.state)
        arrays["turn"] = self.turn
        arrays.update(self.links.pack())
        scalars["clock"] = self.clock
        return to_bytes(arrays, scalars)

    def unpack(self, content: bytes) -> None:
        """Continue from what another planner packed."""
        arrays, scalars = from_bytes(content)
        self.planner.state = unpack("state", type(self.planner.state), arrays, scalars)
        self.turn = arrays["turn"]
        self.links = LinkEstimates.unpack(arrays)
        self.clock = float(scalars["clock"])

    def _network_at(self, round_index: int) -> Network:
        """What was known at the first turn of a round: turns are many, and each is quick."""
        if self._network is None or self._network[0] != round_index:
            self._network = round_index, self._estimated_network()
        return self._network[1]

    def _estimated_network(self) -> Network:
        world = self.stage.world
        return self.links.network(
            model_bits=world.model_bits, sharing=world.sharing, otherwise=SLOWEST_GUESS
        )
