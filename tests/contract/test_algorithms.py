"""Every algorithm passes the same suite: pure, deterministic, valid plans, a state that packs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest

from fedhp.algorithms import (
    Algorithm,
    AsyncAlgorithm,
    Federation,
    Observation,
    load_algorithm,
)
from fedhp.graph import base_topology, directed_weights, mixing_matrix
from fedhp.record.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from fedhp.record.packing import pack, unpack
from fedhp.timing import Network
from fedhp.types import (
    DirectedMixing,
    IntArray,
    LinkVerdict,
    NeighborMixing,
    PeerScoring,
    Plan,
    Reports,
    Topology,
)
from paper.compare import leaves

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "fedhp opt": ("fedhp", {}),
    "fedhp fill": ("fedhp", {"deadline": "fill", "waiting_tolerance": 0.05}),
    "fedhp literal": ("fedhp", {"planner": "literal"}),
    "dpsgd": ("dpsgd", {}),
    "ldsgd": ("ldsgd", {"steps": 4}),
    "adpsgd": ("adpsgd", {}),
    "adpsgd ring": ("adpsgd", {"neighbors": "ring"}),
    "pens": ("pens", {"stage_share": 0.5}),
    "pens symmetric": ("pens", {"stage_share": 0.5, "symmetric": True}),
}
SYNCHRONOUS = [name for name in CASES if not name.startswith("adpsgd")]
ASYNCHRONOUS = [name for name in CASES if name.startswith("adpsgd")]
INSIDE_BASE = [name for name in CASES if name.startswith(("fedhp", "pens"))]
ROUNDS = 6


@dataclass
class Turn:
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
        assert plan.local_steps is not None
        worked = plan.local_steps > 0
        if isinstance(plan.exchange, NeighborMixing):
            links = plan.exchange.topology.links
        elif isinstance(plan.exchange, PeerScoring):
            selected = plan.exchange.candidates[:, : plan.exchange.keep]

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
) -> Iterator[Turn]:
    """The rounds of a synchronous algorithm."""
    algorithm = make(name)
    assert isinstance(algorithm, Algorithm)
    state = algorithm.start(federation(workers, base, seed))
    told = report(None, workers, 0)
    for round_index in range(1, ROUNDS + 1):
        observation = observe(workers, round_index, away=away, per=per)
        after, plan = algorithm.plan(state, observation, told)
        yield Turn(state, observation, told, after, plan)
        state, told = after, report(plan, workers, round_index)


def read_only(value: Any) -> None:
    """No array inside may be written to."""
    if isinstance(value, np.ndarray):
        value.setflags(write=False)
    elif is_dataclass(value):
        for field in fields(value):
            read_only(getattr(value, field.name))


# --- pure and deterministic ------------------------------------------------------------------


@pytest.mark.parametrize("name", SYNCHRONOUS)
@pytest.mark.parametrize("away", [False, True])
def test_planning_is_pure(name: str, away: bool) -> None:
    """The same inputs give the same outputs, and stay as they were."""
    for turn in play(name, 6, away=away):
        inputs = (turn.state, turn.observation, turn.reports)
        copies = deepcopy(inputs)
        for each in inputs:
            read_only(each)
        algorithm = make(name)
        assert isinstance(algorithm, Algorithm)
        after, plan = algorithm.plan(*inputs)
        assert leaves(after) == leaves(turn.after)
        assert leaves(plan) == leaves(turn.plan)
        for mine, copy in zip(inputs, copies, strict=True):
            assert leaves(mine) == leaves(copy)


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_acting_is_pure(name: str) -> None:
    """Also whatever was asked before: an action depends on worker and turn alone."""
    algorithm = make(name)
    assert isinstance(algorithm, AsyncAlgorithm)
    state = algorithm.start(federation(6))
    observation = observe(6, 1, away=True)
    read_only(state)
    read_only(observation)
    copies = deepcopy((state, observation))
    asked = [(worker, turn) for worker in range(6) for turn in range(5)]
    first = {key: algorithm.act(state, key[0], observation, turn=key[1]) for key in asked}
    fresh = make(name)
    assert isinstance(fresh, AsyncAlgorithm)
    for worker, turn in reversed(asked):
        after, action = fresh.act(state, worker, observation, turn=turn)
        assert leaves(after) == leaves(first[worker, turn][0])
        assert action == first[worker, turn][1]
    assert [leaves(each) for each in (state, observation)] == [leaves(each) for each in copies]


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_the_seed_decides(name: str) -> None:
    def plans(seed: int) -> list[list[Any]]:
        return [leaves(turn.plan) for turn in play(name, 12, seed=seed)]

    assert plans(0) == plans(0)
    if not name.startswith("fedhp"):  # FedHP draws nothing: its plans follow from the reports
        assert plans(0) != plans(1)


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_the_seed_decides_actions(name: str) -> None:
    def actions(seed: int) -> list[Any]:
        algorithm = make(name)
        assert isinstance(algorithm, AsyncAlgorithm)
        state = algorithm.start(federation(12, seed=seed))
        observation = observe(12, 1, away=False)
        return [
            algorithm.act(state, worker, observation, turn=turn)[1]
            for worker in range(12)
            for turn in range(4)
        ]

    assert actions(0) == actions(0)
    assert actions(0) != actions(1)


@pytest.mark.parametrize("name", CASES)
def test_the_global_generators_are_left_alone(name: str) -> None:
    state: Any = np.random.get_state()  # noqa: NPY002
    if name in SYNCHRONOUS:
        list(play(name, 5, away=True))
    else:
        algorithm = make(name)
        assert isinstance(algorithm, AsyncAlgorithm)
        algorithm.act(algorithm.start(federation(5)), 0, observe(5, 1, away=False), turn=0)
    assert (np.random.get_state()[1] == state[1]).all()  # type: ignore[index] # noqa: NPY002


# --- valid plans -----------------------------------------------------------------------------


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


def check(plan: Plan, observation: Observation) -> None:
    """A plan that an engine can carry out."""
    available = observation.available
    workers = len(available)
    steps = plan.local_steps
    assert steps is not None
    assert steps.shape == (workers,)
    assert steps.dtype == np.int64
    assert (steps[available] >= 1).all()
    assert (steps[~available] == 0).all()
    if isinstance(plan.exchange, NeighborMixing):
        check_topology(plan.exchange.topology, plan.exchange.weights, available)
    elif isinstance(plan.exchange, DirectedMixing):
        check_sources(plan.exchange.sources, workers, available)
    else:
        check_sources(plan.exchange.candidates, workers, available)
        assert plan.exchange.keep >= 1
        assert plan.exchange.samples >= 1
        assert plan.exchange.cost_per_candidate >= 0
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
    told = report(None, 4, 0)
    for round_index in range(1, ROUNDS + 1):
        there = np.arange(4) == 2
        network = Network(np.full(4, 1e6), 12e6)
        observation = Observation(round_index, 0.0, 0.1, there, network)
        state, plan = algorithm.plan(state, observation, told)
        check(plan, observation)
        assert len(plan.decision.links) == 0
        told = report(plan, 4, round_index)


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


# --- state -----------------------------------------------------------------------------------


def states(name: str) -> Iterator[Any]:
    """The state at the start and after every round."""
    algorithm = make(name)
    yield algorithm.start(federation(6))
    if isinstance(algorithm, Algorithm):
        for turn in play(name, 6, away=True):
            yield turn.after


@pytest.mark.parametrize("name", CASES)
def test_the_state_packs_bit_for_bit(name: str, tmp_path: Path) -> None:
    """Through JSON and through a checkpoint file."""
    for number, state in enumerate(states(name)):
        arrays, scalars = pack("state", state)
        again = unpack("state", type(state), arrays, json.loads(json.dumps(scalars)))
        assert leaves(again) == leaves(state)
        write_checkpoint(tmp_path, Checkpoint(number, arrays, scalars))
        saved = read_checkpoint(tmp_path)
        assert saved is not None
        assert saved.round_index == number
        loaded = unpack("state", type(state), saved.arrays, saved.scalars)
        assert leaves(loaded) == leaves(state)


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_an_unpacked_state_plans_the_same(name: str) -> None:
    for turn in play(name, 6, away=True):
        arrays, scalars = pack("state", turn.state)
        again = unpack("state", type(turn.state), arrays, scalars)
        algorithm = make(name)
        assert isinstance(algorithm, Algorithm)
        after, plan = algorithm.plan(again, turn.observation, turn.reports)
        assert leaves(plan) == leaves(turn.plan)
        assert leaves(after) == leaves(turn.after)


@pytest.mark.parametrize("name", CASES)
def test_the_state_is_a_frozen_dataclass(name: str) -> None:
    state = make(name).start(federation(3))
    assert is_dataclass(state)
    first = fields(state)[0].name
    with pytest.raises(AttributeError):
        setattr(state, first, None)
