"""Parts of one's own that are refused, each for another reason; names of fedhp's public types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import fedhp
from fedhp.types import ChangingTopology, Dataset, IntArray, Topology


@dataclass(frozen=True)
class Kept:
    """What an algorithm remembers."""

    steps: int


class Odd:
    """The type of a setting that cannot be checked."""


class UncheckedSetting:
    """Its setting has a type that says nothing."""

    def __init__(self, *, odd: Odd | None = None) -> None:
        self.odd = odd

    def start(self, federation: fedhp.Federation) -> None:
        """Nothing to keep."""

    def plan(self, state: Any, observation: Any, reports: Any) -> Any:
        """Never asked."""


class PushesAlone:
    """Push-sum without rounds."""

    push_sum: ClassVar = True

    def start(self, federation: fedhp.Federation) -> None:
        """Nothing to keep."""

    def act(self, state: Any, worker: int, observation: Any, *, turn: int) -> Any:
        """Never asked."""


class WeightedRing:
    """Weights of its own, and two peers each."""

    def start(self, federation: fedhp.Federation) -> Kept:
        """How many steps there are."""
        return Kept(federation.local_steps)

    def plan(
        self, state: Kept, observation: fedhp.Observation, reports: fedhp.Reports
    ) -> tuple[Kept, fedhp.Plan]:
        """A ring in both directions."""
        workers = len(observation.available)
        both = {(a, b) for a, b in ring(workers)} | {(b, a) for a, b in ring(workers)}
        links = np.array(sorted(both), dtype=np.int64)
        third = np.full(len(links), 1 / 3)
        verdicts = np.full(len(links), fedhp.LinkVerdict.FIXED, dtype=np.int64)
        return state, fedhp.Plan(
            exchange=fedhp.WeightedMixing(links, third, np.full(workers, 1 / 3)),
            local_steps=np.full(workers, state.steps),
            decision=fedhp.Decision(links, verdicts, np.zeros(len(links)), "a weighted ring"),
        )


def ring(workers: int) -> list[list[int]]:
    """A ring in order."""
    return [[worker, (worker + 1) % workers] for worker in range(workers)]


def fails_later(workers: int, seed: int) -> ChangingTopology:
    """Its rounds cannot be drawn."""

    def at(round_index: int) -> IntArray:
        raise KeyError(round_index)

    return ChangingTopology(at)


def endless_period(workers: int, seed: int) -> ChangingTopology:
    """It repeats after no rounds."""
    return ChangingTopology(lambda round_index: np.array(ring(workers)), 0)


def of_others(workers: int, seed: int) -> Topology:
    """A topology for more workers."""
    return Topology(workers + 1, np.array([[0, 1]]))


def heavy(workers: int, seed: int) -> Topology:
    """Weights above 1 in sum."""
    links = np.array(sorted(sorted(pair) for pair in ring(workers)))
    return Topology(workers, links, np.full(len(links), 0.9))


def too_few_parts(targets: Any, workers: int, seed: int) -> list[Any]:
    """A partition for one worker less."""
    return [np.array([worker]) for worker in range(workers - 1)]


def of_three_users() -> Dataset:
    """Samples of three users."""
    inputs = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
    targets = np.arange(60) % 3
    return Dataset(
        name="users",
        train_inputs=inputs[:45],
        train_targets=targets[:45],
        test_inputs=inputs[45:],
        test_targets=targets[45:],
        classes=3,
        groups=np.arange(45) % 3,
    )
