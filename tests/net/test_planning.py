"""The planner of rounds: plans for the workers that are present, records from reports."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedhp.cluster.coordinator.attempts.orders import GivenWork
from fedhp.cluster.coordinator.conductor import Member
from fedhp.cluster.coordinator.planning.round_planner import NetworkRound, RoundPlanner
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.config import ExchangeConfig, parse
from fedhp.distance import paths
from fedhp.exchange import NeighborMixing
from fedhp.graph import components_of, mixing_weights
from fedhp.rounds.context import planning_context
from fedhp.types import Plan

NAN = float("nan")


def all_sources(plan: Plan) -> list[list[int]]:
    """For each worker, the workers whose models it pulls."""
    return [list(part.sources) for part in plan.exchange.parts(5)]


def make_planner(
    algorithm: str = "fedhp",
    workers: int = 5,
    topology: str = "full",
    exchange: dict[str, object] | None = None,
) -> RoundPlanner:
    experiment = parse(
        {
            "workers": workers,
            "rounds": 10,
            "algorithm": {"name": algorithm},
            "topology": {"name": topology},
            "exchange": exchange or {},
        }
    )
    return RoundPlanner(planning_context(experiment, model_bits=8e6))


def steps(count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.linspace(0.01, 0.05, count)


def report(worker: int, peers: list[int], *, lost: tuple[int, ...] = ()) -> wire.RoundReport:
    return wire.RoundReport(
        step_time=0.01 * (worker + 1),
        compute_seconds=0.5,
        train_loss=1.0,
        update_norm=0.3,
        smoothness=2.0,
        gradient_variance=1.0,
        start_loss=2.3,
        accuracy=0.5,
        whole_accuracy=NAN,
        images=100,
        links=[
            wire.LinkReport(
                worker=peer,
                bytes=0 if peer in lost else 1_000_000,
                seconds=0.1 * (1 + worker + peer),
                distance=NAN if peer in lost else 1.0 + worker + peer,
                lost="gone" if peer in lost else "",
            )
            for peer in peers
        ],
    )


def finish(planner: RoundPlanner, planned: NetworkRound, workers: list[int]) -> None:
    reports = {worker: report(worker, all_sources(planned.plan)[worker]) for worker in workers}
    planner.finish(planned, reports, seconds=2.0)


@pytest.mark.parametrize("algorithm", ["fedhp", "dpsgd", "ldsgd", "pens"])
def test_rounds_follow_each_other_when_some_are_missing(algorithm: str) -> None:
    planner = make_planner(algorithm)
    for round_index, away in enumerate((None, 2, 2, None), start=1):
        present = np.arange(5) != away
        planned = planner.plan(round_index, present, steps(5))
        workers = np.flatnonzero(present).tolist()
        assert (planned.local_steps[present] >= 1).all()
        assert (planned.local_steps[~present] == 0).all()
        for worker in workers:
            assert set(all_sources(planned.plan)[worker]) <= set(workers) - {worker}
        finish(planner, planned, workers)
    assert planner.clock == pytest.approx(8.0)


def test_present_workers_stay_connected_when_the_base_topology_falls_apart() -> None:
    planner = make_planner("fedhp", workers=6, topology="ring")
    present = np.isin(np.arange(6), [0, 1, 3, 4])
    planned = planner.plan(1, present, steps(6))
    exchange = planned.plan.exchange
    assert isinstance(exchange, NeighborMixing)
    labels = components_of(exchange.topology)[present]
    assert (labels == labels[0]).all()
    assert set(exchange.topology.links.ravel().tolist()) <= {0, 1, 3, 4}


def test_a_record_has_what_was_measured_and_lost_links_do_not_count() -> None:
    planner = make_planner()
    present = np.ones(5, dtype=np.bool_)
    planned = planner.plan(1, present, steps(5))
    reports = {
        worker: report(
            worker, all_sources(planned.plan)[worker], lost=(4,) if worker != 4 else (0, 1, 2, 3)
        )
        for worker in range(4)
    }
    record = planner.finish(planned, reports, seconds=3.0)
    assert record.timing.round_time == 3.0
    assert set(record.links.ravel().tolist()) == {0, 1, 2, 3}
    assert np.isnan(record.timing.worker_time[4])
    assert record.local_steps[4] == 0
    for worker in range(4):  # both ends of a link wait for it
        slowest = record.link_time[(record.links == worker).any(axis=1)].max()
        assert record.timing.communication_time[worker] == pytest.approx(slowest)
    assert record.evaluation is not None
    assert record.evaluation.mean_accuracy == 0.5
    assert record.final_evaluation is None
    assert record.link_bytes.tolist() == [2_000_000] * len(record.links)


@pytest.mark.parametrize(("rule", "least"), [("none", 1), ("trimmed_mean", 4), ("median", 4)])
def test_everyone_has_enough_peers_to_withstand_poisoned_ones(rule: str, least: int) -> None:
    planner = make_planner("dpsgd", workers=10, exchange={"robust": rule, "trim": 0.2})
    for away in (None, 3):
        present = np.arange(10) != away
        planned = planner.plan(1, present, steps(10))
        exchange = planned.plan.exchange
        assert isinstance(exchange, NeighborMixing)
        degrees = exchange.topology.degrees[present]
        assert degrees.min() >= least
        assert (degrees.min() == 2) == (rule == "none"), "D-PSGD's ring, unless more is needed"
        assert away not in exchange.topology.links


@pytest.mark.parametrize(
    ("workers", "share", "poisoned", "peers"),
    [(10, 0.2, 2, 4), (10, 0.3, 3, 6), (100, 0.29, 29, 58), (4, 0.2, 1, 2), (3, 0.4, 1, 2)],
)
def test_how_many_workers_may_be_poisoned(
    workers: int, share: float, poisoned: int, peers: int
) -> None:
    median = ExchangeConfig(robust="median", trim=share)
    assert median.max_poisoned(workers) == poisoned
    assert median.min_peers(workers, present=workers) == peers
    assert ExchangeConfig(robust="clip").min_peers(workers, present=workers) == 0


def test_mixing_testing_and_saving_is_not_waiting() -> None:
    planner = make_planner()
    planned = planner.plan(1, np.ones(5, dtype=np.bool_), steps(5))
    reports = {worker: report(worker, all_sources(planned.plan)[worker]) for worker in range(5)}
    reports[2].other_seconds = 0.75
    timing = planner.finish(planned, reports, seconds=9.0).timing
    idle = 9.0 - timing.compute_time - timing.communication_time
    assert timing.waiting_time[2] == pytest.approx(idle[2] - 0.75)
    assert timing.waiting_time[1] == pytest.approx(idle[1])


def test_another_coordinator_plans_the_same_from_the_packed_state() -> None:
    planner = make_planner()
    present = np.ones(5, dtype=np.bool_)
    for round_index in (1, 2):
        finish(planner, planner.plan(round_index, present, steps(5)), [0, 1, 2, 3, 4])
    other = make_planner()
    other.unpack(planner.pack())
    mine, theirs = (one.plan(3, present, steps(5)) for one in (planner, other))
    assert mine.local_steps.tolist() == theirs.local_steps.tolist()
    for worker in range(5):
        assert all_sources(mine.plan)[worker] == all_sources(theirs.plan)[worker]
    assert mine.observation.clock == theirs.observation.clock == 4.0


def played(workers: int, topology: str) -> tuple[RoundPlanner, RoundPlanner]:
    """A planner after two rounds, and one that continues from what it packed."""
    planner, other = (make_planner(workers=workers, topology=topology) for _ in range(2))
    present = np.ones(workers, dtype=np.bool_)
    for round_index in (1, 2):
        planned = planner.plan(round_index, present, steps(workers))
        finish(planner, planned, list(range(workers)))
    planned = planner.plan(3, present, steps(workers))
    planner.planner.state = planned.planned.state  # with the distances of round 2
    other.unpack(planner.pack())
    return planner, other


def test_on_a_full_mesh_the_packed_state_has_every_distance() -> None:
    planner, other = played(30, "full")
    assert np.array_equal(
        planner.planner.state.distance, other.planner.state.distance, equal_nan=True
    )


def test_on_few_links_the_distances_of_other_pairs_are_estimated_again() -> None:
    planner, other = played(60, "random_regular")
    state, again = planner.planner.state, other.planner.state
    assert len(planner.pack()) < 60 * 60 * 8, "fewer bytes than the distances of all pairs"
    assert np.array_equal(state.link_distance, again.link_distance, equal_nan=True)
    expected = paths(60, state.base_links, state.link_distance)
    a, b = state.base_links.T
    expected[a, b] = expected[b, a] = state.link_distance
    assert np.array_equal(again.distance, expected)
    present = np.ones(60, dtype=np.bool_)
    mine, theirs = (one.plan(4, present, steps(60)) for one in (planner, other))
    assert mine.local_steps.tolist() == theirs.local_steps.tolist()
    assert all_sources(mine.plan) == all_sources(theirs.plan)


def test_a_state_with_the_distances_of_all_pairs_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As states of earlier versions were packed."""
    monkeypatch.setattr("fedhp.algorithms.fedhp.CONDENSED_SHARE", 10**9)
    planner, other = played(60, "random_regular")
    assert len(planner.pack()) > 60 * 60 * 8
    assert np.array_equal(
        planner.planner.state.distance, other.planner.state.distance, equal_nan=True
    )


@pytest.mark.parametrize("algorithm", ["fedhp", "dpsgd", "pens"])
def test_orders_say_what_the_plan_says(algorithm: str) -> None:
    planner = make_planner(algorithm)
    present = np.ones(5, dtype=np.bool_)
    planned = planner.plan(1, present, steps(5))
    members = {worker: Member(worker, f"w{worker}", f"h:{worker + 1}") for worker in range(5)}
    conductor: Any = SimpleNamespace(members=members)
    given = GivenWork("0" * 32, conductor)
    given.begin(
        planned,
        Attempt(3, 1, 2),
        evaluation={"evaluate": True, "whole_test": False},
        probes=[(0, 3)],
        deadline=10.0,
        sizes={},
    )
    work_orders = given.orders
    assert sorted(work_orders) == [0, 1, 2, 3, 4]
    for worker, work in work_orders.items():
        assert (work.round, work.attempt, work.evaluate) == (1, 2, True)
        assert [peer.worker for peer in work.peers] == all_sources(planned.plan)[worker]
        readers = {other for other in range(5) if worker in all_sources(planned.plan)[other]}
        assert {reader.worker for reader in work.readers} == readers
        if work.keep == 0:
            assert sum(work.weights) + work.own_weight == pytest.approx(1.0, abs=1e-12)
    assert [probe.worker for probe in work_orders[3].probes] == [0]
    exchange = planned.plan.exchange
    if isinstance(exchange, NeighborMixing):
        dense = mixing_weights(exchange.topology, exchange.weights).toarray()
        assert list(work_orders[1].weights) == [
            dense[1, peer.worker] for peer in work_orders[1].peers
        ]
