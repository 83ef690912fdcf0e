"""10,000 workers on a sparse base: every algorithm decides without an array of all pairs."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedhp.algorithms import Algorithm, AsyncAlgorithm, Federation, Observation, load_algorithm
from fedhp.exchange import DirectedMixing, NeighborMixing
from fedhp.graph import base_topology, mixing_weights
from fedhp.timing import Network
from fedhp.types import IntArray, Plan, Reports

WORKERS = 10_000
PAIRS = 8 * WORKERS**2  # bytes of one array of all pairs
LIMIT = PAIRS // 2


@pytest.fixture(scope="module")
def federation() -> Federation:
    base = base_topology("random_regular", {"degree": 20}, workers=WORKERS, seed=0)
    return Federation(WORKERS, 8, 0, 5, base)


@pytest.fixture
def peak() -> Iterator[Any]:
    """Asked, the most memory held at once since the start, in bytes."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


def observe(round_index: int, *, away: float = 0.0) -> Observation:
    rng = np.random.default_rng([4, round_index])
    available = rng.random(WORKERS) >= away
    network = Network(rng.uniform(1e6, 1e7, WORKERS), 12e6)
    return Observation(round_index, 0.0, 0.1, available, network)


def reports_of(round_index: int, plan: Plan | None) -> Reports:
    rng = np.random.default_rng([5, round_index])
    missing = np.full(WORKERS, np.nan)
    links: IntArray = np.empty((0, 2), dtype=np.int64)
    selected: IntArray = np.empty((WORKERS, 0), dtype=np.int64)
    if plan is not None and isinstance(plan.exchange, NeighborMixing):
        links = plan.exchange.topology.links
    if (
        plan is not None
        and isinstance(plan.exchange, DirectedMixing)
        and plan.exchange.score is not None
    ):
        selected = plan.exchange.sources[:, : plan.exchange.score.keep]
    return Reports(
        round_index=round_index,
        step_time=rng.uniform(0.03, 0.3, WORKERS),
        update_norm=missing if plan is None else rng.uniform(1, 4, WORKERS),
        links=links,
        distance=rng.uniform(0.2, 2, len(links)),
        smoothness=missing,
        gradient_variance=missing,
        start_loss=missing,
        selected=selected,
    )


@pytest.mark.parametrize("bound", [{}, {"bound": "none"}, {"bound_scale": 8.0}])
def test_fedhp(bound: dict[str, Any], federation: Federation, peak: Any) -> None:
    """Within the bound or without one; then links that were not measured are estimated."""
    algorithm = load_algorithm("fedhp", bound)
    assert isinstance(algorithm, Algorithm)
    state, plan = algorithm.start(federation), None
    for round_index in range(1, 3):
        state, plan = algorithm.plan(state, observe(round_index), reports_of(round_index - 1, plan))
        assert plan.decision.facts["distance_sources"] == 256
    if "bound_scale" in bound:
        base = federation.base_topology
        measured = np.random.default_rng(6).random(len(base.links)) >= 0.005
        report = reports_of(2, plan)
        links = base.links[measured]
        report = replace(report, links=links, distance=np.full(len(links), 0.1))
        state, _ = algorithm.plan(state, observe(3), report)
        assert (state.link_distance[measured] == 0.1).all()
        assert state.link_distance[~measured].min() > 0.1
    assert state.distance.shape == (256, WORKERS)
    assert np.isfinite(state.link_distance).all()
    assert plan is not None
    assert isinstance(plan.exchange, NeighborMixing)
    cut = len(federation.base_topology.links) - len(plan.exchange.topology.links)
    assert (cut > 0) == bool(bound)
    weights = mixing_weights(plan.exchange.topology)
    np.testing.assert_allclose(weights @ np.ones(WORKERS), 1.0, atol=1e-12)
    assert peak() < LIMIT


def test_pens(federation: Federation, peak: Any) -> None:
    algorithm = load_algorithm("pens", {})
    assert isinstance(algorithm, Algorithm)
    state, plan = algorithm.start(federation), None
    for round_index in range(1, 5):  # two rounds of each stage
        state, plan = algorithm.plan(
            state, observe(round_index, away=0.1), reports_of(round_index - 1, plan)
        )
    assert peak() < LIMIT


@pytest.mark.parametrize("neighbors", ["base", "ring"])
def test_adpsgd(neighbors: str, federation: Federation, peak: Any) -> None:
    algorithm = load_algorithm("adpsgd", {"neighbors": neighbors})
    assert isinstance(algorithm, AsyncAlgorithm)
    state = algorithm.start(federation)
    observation = observe(1, away=0.3)
    for worker in np.flatnonzero(observation.available).tolist():
        state, action = algorithm.act(state, worker, observation, turn=0)
        assert action.partner is None or observation.available[action.partner]
    assert peak() < LIMIT
