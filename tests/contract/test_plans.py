"""Every algorithm's plans and actions can be carried out, with any workers away."""

from __future__ import annotations

from typing import Any

import networkx
import numpy as np
import pytest

from contract.rounds import (
    ASYNCHRONOUS,
    INSIDE_BASE,
    ROUNDS,
    SYNCHRONOUS,
    federation,
    make,
    observe,
    play,
    report,
)
from fedhp.algorithms import Algorithm, AsyncAlgorithm, Observation
from fedhp.exchange import DirectedMixing, GroupAverage, NeighborMixing
from fedhp.graph import directed_weights, mixing_matrix
from fedhp.timing import Network
from fedhp.types import IntArray, LinkVerdict, Plan, Topology


def check_links(links: IntArray, workers: int, available: Any) -> None:
    assert links.shape[1:] == (2,)
    assert links.dtype == np.int64
    if len(links):
        assert 0 <= links.min() <= links.max() < workers
        assert (links[:, 0] != links[:, 1]).all()
        assert available[links].all()
    assert len({tuple(pair) for pair in links.tolist()}) == len(links)


def check_sources(sources: IntArray, workers: int, available: Any) -> None:
    assert len(sources) == workers
    for worker, row in enumerate(sources.tolist()):
        chosen = [peer for peer in row if peer >= 0]
        assert len(set(chosen)) == len(chosen)
        assert worker not in chosen
        assert all(available[peer] for peer in chosen)
        assert available[worker] or not chosen
        assert min(row, default=-1) >= -1
    weights = directed_weights(sources)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)


def check_topology(topology: Topology, weights: str, available: Any) -> None:
    links = topology.links
    check_links(links, topology.workers, available)
    assert (links[:, 0] < links[:, 1]).all()
    assert links.tolist() == sorted(links.tolist())
    matrix = mixing_matrix(topology, weights)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
    np.testing.assert_allclose(matrix.sum(axis=0), 1.0, atol=1e-9)
    for gone in np.flatnonzero(~available):
        assert matrix[gone, gone] == 1.0


def check_group(group: GroupAverage, available: Any) -> None:
    check_links(group.links, len(available), available)
    assert available[group.participants].all()
    if len(group.participants):
        graph = networkx.Graph(group.links.tolist())
        graph.add_node(group.root)
        assert networkx.is_tree(graph)
        assert sorted(graph) == group.participants.tolist()
        leaves = group.participants[group.returning]
        assert not set(leaves.tolist()) & set(group.parents.tolist())


def check(plan: Plan, observation: Observation) -> None:
    """A plan that an engine can carry out."""
    available = observation.available
    workers = len(available)
    steps = plan.local_steps
    if isinstance(plan.exchange, GroupAverage):
        assert steps is None
        assert plan.deadline is not None
    else:
        assert steps is not None
        assert steps.shape == (workers,)
        assert steps.dtype == np.int64
        assert (steps[available] >= 1).all()
        assert (steps[~available] == 0).all()
    if isinstance(plan.exchange, NeighborMixing):
        check_topology(plan.exchange.topology, plan.exchange.weights, available)
    elif isinstance(plan.exchange, DirectedMixing):
        check_sources(plan.exchange.sources, workers, available)
        if plan.exchange.score is not None:
            assert plan.exchange.score.keep >= 1
            assert plan.exchange.score.samples >= 1
            assert plan.exchange.score.cost_per_candidate >= 0
    else:
        assert isinstance(plan.exchange, GroupAverage)  # of the built-in algorithms
        check_group(plan.exchange, available)
    decision = plan.decision
    check_links(decision.links, workers, available)
    assert decision.verdicts.shape == decision.link_time.shape == (len(decision.links),)
    assert set(decision.verdicts.tolist()) <= {verdict.value for verdict in LinkVerdict}
    assert (decision.link_time > 0).all()
    assert np.isfinite(decision.link_time).all()
    assert decision.rule
    if decision.distance is not None:
        assert decision.distance.shape == decision.link_time.shape
    if decision.pace_setter is not None:
        assert available[decision.pace_setter]
    assert all(isinstance(value, float) for value in decision.facts.values())
    assert plan.deadline is None or plan.deadline > 0
    if plan.estimate is not None:
        assert plan.estimate.shape == (workers,)
        assert plan.estimate.dtype == np.bool_
        assert available[plan.estimate].all()


@pytest.mark.parametrize("name", SYNCHRONOUS)
@pytest.mark.parametrize("workers", [1, 2, 3, 5, 30])
@pytest.mark.parametrize("base", ["full", "ring"])
@pytest.mark.parametrize("away", [False, True])
def test_plans_are_valid(name: str, workers: int, base: str, away: bool) -> None:
    for per in ("worker", "link") if workers < 30 else ("worker",):
        for turn in play(name, workers, base=base, away=away, per=per):
            check(turn.plan, turn.observation)


@pytest.mark.parametrize("name", [name for name in SYNCHRONOUS if name in INSIDE_BASE])
@pytest.mark.parametrize("away", [False, True])
def test_only_links_of_the_base_topology_are_used(name: str, away: bool) -> None:
    workers = 8
    allowed = federation(workers, "ring").base_topology.adjacency
    for turn in play(name, workers, base="ring", away=away):
        links = turn.plan.decision.links
        assert allowed[links[:, 0], links[:, 1]].all()
        if isinstance(turn.plan.exchange, NeighborMixing):
            assert not (turn.plan.exchange.topology.adjacency & ~allowed).any()


@pytest.mark.parametrize("name", ["fedhp opt", "fedhp fill", "fedhp literal", "dpsgd", "ldsgd"])
@pytest.mark.parametrize("workers", [2, 3, 5, 30])
def test_everyone_is_connected(name: str, workers: int) -> None:
    for turn in play(name, workers):
        assert isinstance(turn.plan.exchange, NeighborMixing)
        graph = networkx.Graph(turn.plan.exchange.topology.links.tolist())
        assert graph.number_of_nodes() == workers
        assert networkx.is_connected(graph)


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_a_lone_worker_trains_on(name: str) -> None:
    """All others away: it works, and exchanges nothing."""
    algorithm = make(name)
    assert isinstance(algorithm, Algorithm)
    state = algorithm.start(federation(4))
    reports = report(None, 4, 0)
    for round_index in range(1, ROUNDS + 1):
        there = np.arange(4) == 2
        network = Network(np.full(4, 1e6), 12e6)
        observation = Observation(round_index, 0.0, 0.1, there, network)
        state, plan = algorithm.plan(state, observation, reports)
        check(plan, observation)
        assert len(plan.decision.links) == 0
        reports = report(plan, 4, round_index)


@pytest.mark.parametrize("name", ASYNCHRONOUS)
@pytest.mark.parametrize("workers", [1, 2, 3, 5, 30])
@pytest.mark.parametrize("base", ["full", "ring"])
@pytest.mark.parametrize("away", [False, True])
def test_actions_are_valid(name: str, workers: int, base: str, away: bool) -> None:
    algorithm = make(name)
    assert isinstance(algorithm, AsyncAlgorithm)
    known = federation(workers, base)
    state = algorithm.start(known)
    links = known.base_topology.adjacency
    for turn in range(8):
        observation = observe(workers, turn + 1, away=away)
        for worker in np.flatnonzero(observation.available).tolist():
            state, action = algorithm.act(state, worker, observation, turn=turn)
            assert action.local_steps == 5
            others = observation.available & (np.arange(workers) != worker)
            reachable = others & links[worker] if name == "adpsgd" else others
            assert (action.partner is None) == (not reachable.any())
            if action.partner is None:
                continue
            assert reachable[action.partner]
