"""The asynchronous twin of planning.py: turns instead of rounds (AD-PSGD).

Whoever is free is told what to do next; N turns that ended make a round. Packable likewise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedhp.algorithms import AsyncAlgorithm, Observation
from fedhp.cluster.coordinator.link_estimates import SLOWEST_GUESS, Links
from fedhp.cluster.coordinator.planning import evaluation_of, packed, unpacked
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.engine.accounting import mean_bandwidth, rate_at
from fedhp.engine.context import BareStage
from fedhp.engine.events import RULE
from fedhp.record.packing import pack, unpack
from fedhp.timing import Network
from fedhp.types import Action, BoolArray, Decision, LinkVerdict, RoundRecord, Timing


@dataclass(frozen=True, slots=True)
class TurnOrder:
    """What one worker does next."""

    worker: int
    number: int
    round_index: int  # when it was given; it may end in a later one
    action: Action
    learning_rate: float


class Turns:
    """Everything an asynchronous algorithm needs from one turn to the next."""

    def __init__(self, stage: BareStage) -> None:
        algorithm = stage.algorithm
        assert isinstance(algorithm, AsyncAlgorithm)
        self.stage = stage
        self.algorithm = algorithm
        self.workers = stage.experiment.workers
        self.clock = 0.0
        self.state: Any = algorithm.start(stage.federation)
        self.turn = np.full(self.workers, -1, dtype=np.int64)
        self.links = Links.unknown(self.workers)
        self.ended: list[tuple[int, TurnOrder, wire.RoundReport]] = []

    def next(self, worker: int, *, round_index: int, clock: float, present: BoolArray) -> TurnOrder:
        """What a free worker does now."""
        self.turn[worker] += 1
        rate = rate_at(self.stage.experiment, round_index, clock)
        observation = Observation(round_index, clock, rate, present, self._network())
        number = int(self.turn[worker])
        self.state, action = self.algorithm.act(self.state, worker, observation, turn=number)
        return TurnOrder(worker, number, round_index, action, rate)

    def end(self, turn: TurnOrder, report: wire.RoundReport) -> None:
        """A turn is over."""
        self.ended.append((turn.worker, turn, report))
        for link in report.links:
            if not link.lost and link.bytes > 0:
                self.links.learn(
                    turn.worker,
                    link.worker,
                    bits=8.0 * link.bytes,
                    seconds=link.seconds,
                    round_index=int(self.turn[turn.worker]),
                )

    def finish(self, *, round_index: int, seconds: float) -> RoundRecord:
        """The record of the turns since the last one."""
        n = self.workers
        steps = np.zeros(n, dtype=np.int64)
        compute, communication = np.zeros(n), np.zeros(n)
        loss, norm, accuracy, whole = (np.full(n, np.nan) for _ in range(4))
        links: dict[tuple[int, int], list[tuple[float, int, float]]] = {}
        rate, images = 0.0, 0
        for worker, turn, report in self.ended:
            steps[worker] += turn.action.local_steps
            compute[worker] += report.compute_seconds
            loss[worker], norm[worker] = report.train_loss, report.update_norm
            rate, images = turn.learning_rate, max(images, report.images)
            if np.isfinite(report.accuracy):
                accuracy[worker] = report.accuracy
            if np.isfinite(report.whole_accuracy):
                whole[worker] = report.whole_accuracy
            for link in report.links:
                if link.lost:
                    continue
                communication[worker] += link.seconds
                pair = min(worker, link.worker), max(worker, link.worker)
                links.setdefault(pair, []).append((link.seconds, link.bytes, link.distance))
        pairs = np.array(sorted(links), dtype=np.int64).reshape(-1, 2)
        rows = [links[pair] for pair in sorted(links)]
        times = np.array([np.mean([time for time, _, _ in each]) for each in rows])
        worked = steps > 0
        missing = np.full(n, np.nan)
        self.ended = []
        self.clock += seconds
        return RoundRecord(
            round_index=round_index,
            clock=self.clock,
            learning_rate=rate,
            local_steps=steps,
            step_time=np.where(worked, compute / np.maximum(steps, 1), np.nan),
            timing=Timing(compute, communication, np.full(n, seconds), np.zeros(n), seconds),
            links=pairs,
            link_time=times,
            link_bytes=np.array(
                [sum(size for _, size, _ in each) for each in rows], dtype=np.int64
            ),
            link_distance=np.array([each[-1][2] for each in rows]),
            decision=Decision(
                links=pairs,
                verdicts=np.full(len(pairs), LinkVerdict.DRAWN, dtype=np.int64),
                link_time=times,
                rule=RULE,
            ),
            train_loss=loss,
            update_norm=norm,
            smoothness=missing,
            gradient_variance=missing,
            bandwidth=mean_bandwidth(self._network()),
            evaluation=evaluation_of(accuracy, images),
            wall={"round": seconds},
            final_evaluation=evaluation_of(whole, images),
        )

    def pack(self) -> bytes:
        """All of it but the turns under way: whoever had one asks again."""
        arrays, scalars = pack("state", self.state)
        arrays["turn"] = self.turn
        arrays.update(self.links.pack())
        scalars["clock"] = self.clock
        return packed(arrays, scalars)

    def unpack(self, content: bytes) -> None:
        """Go on from there."""
        arrays, scalars = unpacked(content)
        self.state = unpack("state", type(self.state), arrays, scalars)
        self.turn = arrays["turn"]
        self.links = Links.unpack(arrays)
        self.clock = float(scalars["clock"])

    def _network(self) -> Network:
        world = self.stage.world
        return self.links.network(
            model_bits=world.model_bits, sharing=world.sharing, otherwise=SLOWEST_GUESS
        )
