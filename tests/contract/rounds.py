"""Every algorithm with its settings, and rounds to play it on: random networks, random reports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from fedhp.algorithms import Algorithm, AsyncAlgorithm, Federation, Observation, load_algorithm
from fedhp.exchange import DirectedMixing, NeighborMixing
from fedhp.graph import base_topology
from fedhp.timing import Network
from fedhp.types import Plan, Reports

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "fedhp opt": ("fedhp", {}),
    "fedhp fill": ("fedhp", {"deadline": "fill", "waiting_tolerance": 0.05}),
    "fedhp literal": ("fedhp", {"planner": "literal"}),
    "fedhp_plus": ("fedhp_plus", {}),
    "fedhp_plus plain": ("fedhp_plus", {"fragments": 1, "compression": "none", "patience": 1}),
    "dpsgd": ("dpsgd", {}),
    "ldsgd": ("ldsgd", {"steps": 4}),
    "adpsgd": ("adpsgd", {}),
    "adpsgd ring": ("adpsgd", {"neighbors": "ring"}),
    "pens": ("pens", {"stage_share": 0.5}),
    "pens symmetric": ("pens", {"stage_share": 0.5, "symmetric": True}),
}
SYNCHRONOUS = [name for name in CASES if not name.startswith("adpsgd")]
ASYNCHRONOUS = [name for name in CASES if name.startswith("adpsgd")]
INSIDE_BASE = [name for name in CASES if name.startswith(("fedhp ", "pens"))]
ROUNDS = 6


@dataclass
class PlanCall:
    """One call of plan() and what it gave."""

    state: Any
    observation: Observation
    reports: Reports
    after: Any
    plan: Plan


def make(name: str) -> Algorithm | AsyncAlgorithm:
    algorithm, settings = CASES[name]
    return load_algorithm(algorithm, settings)


def federation(workers: int, base: str = "full", seed: int = 0) -> Federation:
    topology = base_topology(base, {}, workers=workers, seed=seed)
    return Federation(workers, ROUNDS, seed, 5, topology)


def observe(workers: int, round_index: int, *, away: bool, per: str = "worker") -> Observation:
    """A random network; with `away`, about a third is missing."""
    rng = np.random.default_rng([1, workers, round_index])
    available = np.ones(workers, dtype=np.bool_)
    if away:
        available = rng.random(workers) >= 0.35
        if not available.any():
            available[rng.integers(workers)] = True
    bandwidth = rng.uniform(1e6, 1e7, (workers, workers) if per == "link" else workers)
    if per == "link":
        bandwidth = np.minimum(bandwidth, bandwidth.T)
    return Observation(
        round_index=round_index,
        clock=10.0 * round_index,
        learning_rate=0.1 * 0.98 ** (round_index - 1),
        available=available,
        network=Network(bandwidth, 12e6),
    )


def report(plan: Plan | None, workers: int, round_index: int) -> Reports:
    """What workers that followed this plan would say; before round 1, the calibration."""
    rng = np.random.default_rng([2, workers, round_index])
    missing = np.full(workers, np.nan)
    links = np.empty((0, 2), dtype=np.int64)
    selected = np.empty((workers, 0), dtype=np.int64)
    worked = np.ones(workers, dtype=np.bool_)
    if plan is not None:
        if plan.local_steps is not None:
            worked = plan.local_steps > 0
        if isinstance(plan.exchange, NeighborMixing):
            links = plan.exchange.topology.links
        elif isinstance(plan.exchange, DirectedMixing) and plan.exchange.score is not None:
            selected = plan.exchange.sources[:, : plan.exchange.score.keep]

    def some(low: float, high: float, given: bool = True) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.where(worked & given, rng.uniform(low, high, workers), np.nan)

    measured = plan is not None
    probing = np.zeros(workers, dtype=np.bool_)
    if plan is not None and plan.estimate is not None:
        probing = plan.estimate
    return Reports(
        round_index=round_index,
        step_time=some(0.03, 0.3),
        update_norm=some(1, 4, measured),
        links=links,
        distance=rng.uniform(0.2, 2, len(links)),
        smoothness=np.where(probing, some(1, 5, measured), np.nan),
        gradient_variance=np.where(probing, some(1, 2, measured), np.nan),
        start_loss=some(2, 3) if round_index == 1 else missing,
        selected=selected,
    )


def play(
    name: str,
    workers: int,
    *,
    base: str = "full",
    away: bool = False,
    seed: int = 0,
    per: str = "worker",
) -> Iterator[PlanCall]:
    """The rounds of a synchronous algorithm."""
    algorithm = make(name)
    assert isinstance(algorithm, Algorithm)
    state = algorithm.start(federation(workers, base, seed))
    reports = report(None, workers, 0)
    for round_index in range(1, ROUNDS + 1):
        observation = observe(workers, round_index, away=away, per=per)
        after, plan = algorithm.plan(state, observation, reports)
        yield PlanCall(state, observation, reports, after, plan)
        state, reports = after, report(plan, workers, round_index)


def read_only(value: Any) -> None:
    """No array inside may be written to."""
    if isinstance(value, np.ndarray):
        value.setflags(write=False)
    elif is_dataclass(value):
        for field in fields(value):
            read_only(getattr(value, field.name))
