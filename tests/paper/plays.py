"""A federation that exists only in its random reports, planned by fedhp and by the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from fedhp.algorithms import Federation, Observation
from fedhp.algorithms.fedhp import FedHP, FedHPState
from fedhp.graph import topology_from
from fedhp.types import FloatArray, Plan, Reports
from paper.instances import MEGABIT, network_of
from paper.reference import Link, Wires
from paper.reference_fedhp import Coordinator, ReportedNumbers, Rules, Searched

NAN = float("nan")


def numbers(values: Sequence[float | None]) -> FloatArray:
    """None becomes NaN."""
    return np.array([NAN if value is None else value for value in values])


def reports_of(reported: ReportedNumbers, round_index: int) -> Reports:
    """The same report for fedhp."""
    pairs = sorted(reported.distance)
    return Reports(
        round_index=round_index,
        step_time=numbers(reported.step_time),
        update_norm=numbers(reported.update_norm),
        links=np.array(pairs, dtype=np.int64).reshape(-1, 2),
        distance=np.array([reported.distance[pair] for pair in pairs]),
        smoothness=numbers(reported.smoothness),
        gradient_variance=numbers(reported.gradient_variance),
        start_loss=numbers(reported.start_loss),
        selected=np.empty((len(reported.step_time), 0), dtype=np.int64),
    )


def algorithm_of(rules: Rules) -> FedHP:
    """fedhp with the same settings."""
    return FedHP(**asdict(rules))


@dataclass
class Seen:
    """One round, both ways."""

    round_index: int
    expected: Searched
    coordinator: Coordinator
    state: FedHPState
    plan: Plan


class Play:
    """A federation that exists only in its random reports."""

    def __init__(
        self,
        rng: np.random.Generator,
        *,
        rules: Rules,
        workers: int,
        base: list[Link],
        rounds: int = 20,
        per: str = "worker",
        sharing: bool = False,
        away: float = 0.0,
        ties: bool = False,
    ) -> None:
        self.rng, self.rules, self.workers, self.base = rng, rules, workers, base
        self.per, self.sharing, self.away, self.ties = per, sharing, away, ties
        self.reference = Coordinator(workers, rounds, base, rules)
        self.algorithm = algorithm_of(rules)
        self.state = self.algorithm.start(
            Federation(workers, rounds, 0, 17, topology_from(workers, base))
        )
        self.mean = rng.choice([0.03, 0.1, 0.3], workers)
        nothing: list[float | None] = [None] * workers
        self.reported = ReportedNumbers(
            self._step_times(range(workers)), nothing, {}, nothing, nothing, nothing
        )
        self.round_index = 0

    def _step_times(self, present: Sequence[int]) -> list[float | None]:
        return [
            float(self.mean[i] * self.rng.uniform(0.8, 1.2)) if i in present else None
            for i in range(self.workers)
        ]

    def _wires(self) -> Wires:
        def rate() -> float:
            found = self.rng.integers(1, 4) if self.ties else self.rng.uniform(1, 10)
            return float(found) * MEGABIT

        pairs = [(i, j) for i in range(self.workers) for j in range(i + 1, self.workers)]
        of_link = {pair: rate() for pair in pairs} if self.per == "link" else {}
        of_worker = {} if of_link else {i: rate() for i in range(self.workers)}
        return Wires(12 * MEGABIT, of_worker, of_link, self.sharing)

    def _some(self, present: list[int], low: float, high: float) -> list[float | None]:
        """A value of every present worker; now and then one is missing."""
        values: list[float | None] = [None] * self.workers
        for i in present:
            if self.rng.random() < 0.9:
                values[i] = float(self.rng.uniform(low, high))
        return values

    def step(self) -> Seen:
        """One round: both plan, then the workers of that plan report."""
        self.round_index += 1
        there = self.rng.random(self.workers) >= self.away
        if not there.any():
            there[0] = True
        present = [i for i in range(self.workers) if there[i]]
        wires = self._wires()
        rate = 0.1 * 0.98 ** (self.round_index - 1)
        self.reference.learn(self.reported)
        expected = self.reference.plan(learning_rate=rate, present=present, wires=wires)
        observation = Observation(
            self.round_index, 0.0, rate, there, network_of(wires, self.workers)
        )
        self.state, plan = self.algorithm.plan(
            self.state, observation, reports_of(self.reported, self.round_index - 1)
        )
        seen = Seen(self.round_index, expected, self.reference, self.state, plan)
        estimating = self.round_index % 2 == 1
        nothing: list[float | None] = [None] * self.workers
        scale = float(self.rng.uniform(0.2, 2))
        self.reported = ReportedNumbers(
            step_time=self._step_times(present),
            update_norm=[
                float(self.rng.uniform(0, 6)) if i in present else None for i in range(self.workers)
            ],
            distance={link: scale * float(self.rng.uniform(0.1, 2)) for link in expected.links},
            smoothness=self._some(present, 1, 9) if estimating else nothing,
            gradient_variance=self._some(present, 0.5, 4) if estimating else nothing,
            start_loss=self._some(present, 2, 3) if self.round_index == 1 else nothing,
        )
        return seen
