"""The numbered equations of the paper, one by one, against reference.py (see README.md)."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch

from fedhp.algorithms.pace import literal, raw_pace
from fedhp.distance import mean_distance, paths, unknown, update_bound, update_distance
from fedhp.graph import (
    MixingRule,
    is_connected,
    laplacian,
    mixing_matrix,
    mixing_rate,
    mixing_weights,
    ring_over,
    topology_from,
)
from fedhp.learn.mix import distances, mix
from fedhp.timing import Network, slowest_link, timing
from fedhp.types import Topology
from paper import reference, reference_fedhp
from paper.instances import connected_graphs, draw, random_base
from paper.reference import Link
from paper.tiny import engine_of, loop_of, tiny

RULES: tuple[MixingRule, ...] = ("max_degree", "metropolis", "sinkhorn")


def some_graphs() -> list[tuple[int, list[Link]]]:
    """All connected graphs up to four workers and random ones up to twelve."""
    rng = np.random.default_rng(1)
    small = [(n, links) for n in (1, 2, 3, 4) for links in connected_graphs(n)]
    large = [(n, random_base(rng, n, rng.uniform(0, 1))) for n in range(5, 13)]
    return small + large


def test_eq1_laplacian() -> None:
    for workers, links in some_graphs():
        found = laplacian(topology_from(workers, links))
        assert found.tolist() == reference.laplacian(workers, links)


def test_eq1_second_eigenvalue_is_positive_exactly_if_connected() -> None:
    rng = np.random.default_rng(2)
    seen = set()
    for _ in range(200):
        workers = int(rng.integers(2, 9))
        links = [pair for pair in combinations(range(workers), 2) if rng.random() < 0.3]
        topology = topology_from(workers, links)
        second = np.sort(np.linalg.eigvalsh(laplacian(topology)))[1]
        assert is_connected(topology) == (second > 1e-9)
        seen.add(is_connected(topology))
    assert seen == {True, False}


@pytest.mark.parametrize("rule", RULES)
def test_eq5_mixing(rule: MixingRule) -> None:
    rng = np.random.default_rng(6)
    for workers, links in some_graphs():
        models = rng.standard_normal((workers, 7)).astype(np.float32)
        out = torch.empty(workers, 7)
        weights = mixing_weights(topology_from(workers, links), rule)
        mix(torch.from_numpy(models), weights, mixed=7, out=out)
        expected = reference.mix(models.astype(np.float64).tolist(), links, rule)
        np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_eq6_mixing_weights(rule: MixingRule) -> None:
    for workers, links in some_graphs():
        found = mixing_matrix(topology_from(workers, links), rule)
        expected = reference.link_weights(workers, links, rule)
        for i in range(workers):
            for j in range(workers):
                if i != j:
                    assert found[i, j] == pytest.approx(expected.get((i, j), 0.0), abs=1e-10)
            rest = 1 - sum(expected.get((i, j), 0.0) for j in range(workers))
            assert found[i, i] == pytest.approx(rest, abs=1e-10)


def test_eq7_consensus_distances() -> None:
    rng = np.random.default_rng(7)
    for workers, links in some_graphs():
        models = rng.standard_normal((workers, 9)).astype(np.float32)
        plain = models.astype(np.float64).tolist()
        found = distances(torch.from_numpy(models), topology_from(workers, links).links)
        expected = [reference.distance(plain, i, j) for i, j in sorted(links)]
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_eq8_eq9_eq35_eq36_mean_distance_bounds_the_average_consensus_distance() -> None:
    """With w = 1/N (u_max = N - 1, as in the derivation): D^{h+1} <= mean_distance."""
    rng = np.random.default_rng(8)
    for workers, links in some_graphs():
        models = rng.standard_normal((workers, 5)).tolist()
        mixed = []
        for i in range(workers):
            near = [models[j] for j in reference.neighbors(i, links)]
            mixed.append(
                [
                    value + sum(other[k] - value for other in near) / workers
                    for k, value in enumerate(models[i])
                ]
            )
        between = np.array(
            [[reference.distance(models, i, j) for j in range(workers)] for i in range(workers)]
        )
        everyone = np.ones(workers, dtype=np.bool_)
        bound = mean_distance(topology_from(workers, links), between, everyone)
        assert reference.average_distance(mixed) <= bound + 1e-9
        if len(links) == workers * (workers - 1) // 2:
            assert bound == 0.0


def test_eq36_mean_distance_counts_ordered_pairs_without_a_link() -> None:
    rng = np.random.default_rng(9)
    for workers, links in some_graphs():
        problem = draw(rng, workers, base=links, away=workers // 4)
        available = np.isin(np.arange(workers), problem.present)
        found = mean_distance(problem.topology, np.array(problem.distances), available)
        expected = reference.mean_distance(problem.present, problem.base_present, problem.distances)
        assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("per", ["worker", "link"])
@pytest.mark.parametrize("sharing", [False, True])
def test_spec1_link_time(per: str, sharing: bool) -> None:
    rng = np.random.default_rng(10)
    for workers, links in some_graphs():
        problem = draw(rng, workers, base=links, per=per, sharing=sharing, latency=0.25)
        topology = topology_from(workers, links)
        found = problem.network.link_time(topology.links, topology.degrees)
        expected = [problem.wires.time(link, links) for link in sorted(links)]
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        slowest = [problem.wires.slowest(i, links) for i in range(workers)]
        np.testing.assert_allclose(problem.network.communication_time(topology), slowest)


def test_spec1_link_time_is_the_same_in_both_directions() -> None:
    network = Network(np.array([2e6, 8e6, 4e6]), 12e6)
    there = network.link_time(np.array([[0, 1], [1, 2]]))
    back = network.link_time(np.array([[1, 0], [2, 1]]))
    assert there.tolist() == back.tolist() == [6.0, 3.0]


def test_eq10_worker_time() -> None:
    compute = np.array([3.0, 1.0, 0.5])
    links = np.array([[0, 1], [1, 2]])
    found = timing(compute, slowest_link(3, links, np.array([2.0, 6.0])), np.ones(3, np.bool_))
    expected = [reference.worker_time([t], b) for t, b in zip(compute, (2, 6, 6), strict=True)]
    assert found.worker_time.tolist() == expected == [5.0, 7.0, 6.5]
    assert found.round_time == reference.round_time(expected) == 7.0


def test_eq11_waiting_time() -> None:
    rng = np.random.default_rng(11)
    for workers in range(1, 9):
        compute, communication = rng.uniform(0, 5, (2, workers))
        found = timing(compute, communication, np.ones(workers, np.bool_))
        times = (compute + communication).tolist()
        assert found.mean_waiting_time == pytest.approx(reference.mean_waiting_time(times))
        assert found.waiting_time.min() == 0.0


def test_eq11_workers_away_do_not_count() -> None:
    present = np.array([True, False, True])
    found = timing(np.array([1.0, 99.0, 2.0]), np.array([1.0, 99.0, 1.0]), present)
    assert found.round_time == 3.0
    assert np.isnan(found.worker_time[1])
    assert found.mean_waiting_time == reference.mean_waiting_time([2.0, 3.0]) == 0.5


def test_assumption4_rho_of_ring_and_full_graph() -> None:
    """SPEC 10: 0.98543 (N = 30), 0.98987 (N = 36), full graph 0."""
    for workers, rho in ((30, 0.98543), (36, 0.98987)):
        ring = topology_from(workers, ring_over(np.arange(workers)))
        assert mixing_rate(mixing_matrix(ring)) == pytest.approx(rho, abs=5e-6)
        whole = topology_from(workers, list(combinations(range(workers), 2)))
        assert mixing_rate(mixing_matrix(whole)) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_assumption4_mixing_matrices(rule: MixingRule) -> None:
    """Symmetric, doubly stochastic, rho < 1; Eq. (5) in float32 keeps the mean model."""
    rng = np.random.default_rng(12)
    graphs = [(30, random_base(rng, 30, share)) for share in (0.0, 0.05, 0.3, 1.0)]
    for workers, links in some_graphs() + graphs:
        matrix = mixing_matrix(topology_from(workers, links), rule)
        assert np.abs(matrix - matrix.T).max() <= 1e-12
        np.testing.assert_allclose(matrix.sum(axis=0), 1.0, atol=1e-10)
        np.testing.assert_allclose(matrix.sum(axis=1), 1.0, atol=1e-10)
        assert matrix.min() >= -1e-15
        assert mixing_rate(matrix) < 1 - 1e-9
        models = torch.from_numpy(rng.standard_normal((workers, 300)).astype(np.float32) + 1)
        out = torch.empty_like(models)
        mix(models, mixing_weights(topology_from(workers, links), rule), mixed=300, out=out)
        before, after = (each.double().mean(dim=0) for each in (models, out))
        assert float((after - before).norm() / before.norm()) <= 1e-6


def test_eq31_pace_minimises_the_bound() -> None:
    """Remark 2: the terms with tau, 4 f / (eta tau H) + 4 L eta tau sigma^2 / N, turn there."""
    n, loss, bend, rounds, eta, variance = 30, 2.3, 4.0, 200, 0.1, 6.0

    def bound(tau: float) -> float:
        return 4 * loss / (eta * tau * rounds) + 4 * bend * eta * tau * variance / n

    found = raw_pace(
        workers=n,
        initial_loss=loss,
        smoothness=bend,
        rounds=rounds,
        learning_rate=eta,
        gradient_variance=variance,
    )
    assert found == pytest.approx(reference_fedhp.raw_pace(n, loss, bend, rounds, eta, variance))
    assert bound(found) < min(bound(0.99 * found), bound(1.01 * found))


@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf, -1.0])
def test_eq31_pace_is_unknown_without_estimates(bad: float) -> None:
    found = raw_pace(
        workers=3,
        initial_loss=1.0,
        smoothness=bad,
        rounds=10,
        learning_rate=0.1,
        gradient_variance=1.0,
    )
    assert math.isnan(found)


def test_eq38_two_hops() -> None:
    """min over p of D_ip + D_pj, where the pair itself was not measured."""
    measured = {(0, 1): 3.0, (1, 2): 4.0, (0, 3): 1.0, (2, 3): 2.5}
    links = np.array(list(measured))
    new = update_distance(unknown(4), links, np.array(list(measured.values())), smoothing=0.5)
    assert new[0, 2] == new[2, 0] == min(3.0 + 4.0, 1.0 + 2.5)
    assert new[1, 3] == min(3.0 + 1.0, 4.0 + 2.5)


def test_eq37_eq38_paths_equal_floyd_warshall() -> None:
    rng = np.random.default_rng(13)
    for _ in range(60):
        workers = int(rng.integers(1, 10))
        chosen = [pair for pair in combinations(range(workers), 2) if rng.random() < 0.3]
        lengths = rng.choice([0.0, 0.5, 1.0, 2.0, *rng.uniform(0, 3, 3)], size=len(chosen))
        links = np.array(chosen, dtype=np.int64).reshape(-1, 2)
        expected = reference.floyd_warshall(
            workers, dict(zip(chosen, lengths.tolist(), strict=True))
        )
        np.testing.assert_allclose(paths(workers, links, lengths), expected, atol=1e-300)


@pytest.mark.parametrize("smoothing", [0.25, 0.5, 1.0])
def test_eq39_estimated_distances(smoothing: float) -> None:
    """Measured pairs overwrite; others move to the path, the first time all the way."""
    rng = np.random.default_rng(14)
    for _ in range(30):
        workers = int(rng.integers(2, 9))
        mine = unknown(workers)
        theirs: reference.Known = [
            [0.0 if i == j else None for j in range(workers)] for i in range(workers)
        ]
        for _ in range(4):
            share = rng.uniform(0, 0.7)
            chosen = [pair for pair in combinations(range(workers), 2) if rng.random() < share]
            values = rng.uniform(0, 2, len(chosen))
            links = np.array(chosen, dtype=np.int64).reshape(-1, 2)
            before = mine.copy()
            mine = update_distance(mine, links, values, smoothing=smoothing)
            measured = dict(zip(chosen, values.tolist(), strict=True))
            theirs = reference.update_distances(theirs, measured, smoothing=smoothing)
            as_numbers = [[math.nan if v is None else v for v in row] for row in theirs]
            np.testing.assert_allclose(mine, as_numbers, rtol=1e-12)
            assert np.array_equal(np.isnan(before), np.isnan(before.T))


def test_eq40_steps_level_the_worker_times() -> None:
    """floor(t_l / t_i) = 1 for every worker that neither limit of the steps holds back."""
    rng = np.random.default_rng(15)
    checked = 0
    for _ in range(200):
        workers = int(rng.integers(2, 10))
        step_time, communication = rng.uniform(0.02, 0.4, workers), rng.uniform(0, 6, workers)
        found = literal(step_time, communication, pace_steps=rng.uniform(1, 40), max_steps=100)
        times = found.local_steps * step_time + communication
        for i in range(workers):
            fits = step_time[i] + communication[i] <= found.deadline
            if fits and found.local_steps[i] < 100:
                checked += 1
                assert math.floor(found.deadline / times[i] + 1e-9) == 1
    assert checked > 300


def test_eq41_total_time_is_the_sum_of_the_rounds() -> None:
    with engine_of(tiny("dpsgd")) as engine:
        records = list(loop_of(engine).rounds())
    total = 0.0
    for record in records:
        total += record.timing.round_time
        assert record.clock == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_eq43_distance_bound(scale: float) -> None:
    rng = np.random.default_rng(16)
    mine: float | None = None
    theirs: float | None = None
    for _ in range(6):
        norms = rng.uniform(0, 3, 5)
        mine = update_bound(mine, norms, smoothing=0.5, scale=scale)
        theirs = reference.distance_bound(theirs, norms.tolist(), smoothing=0.5, scale=scale)
        assert mine == pytest.approx(theirs, rel=1e-12)


def test_eq43_starts_at_the_first_measurement_and_ignores_workers_away() -> None:
    nothing = np.full(3, np.nan)
    assert update_bound(None, nothing, smoothing=0.5, scale=0.5) is None
    first = update_bound(None, np.array([2.0, np.nan, 4.0]), smoothing=0.5, scale=0.5)
    assert first == 1.5
    assert update_bound(first, nothing, smoothing=0.5, scale=0.5) == 1.5


def test_eq5_links_are_listed_once() -> None:
    topology = topology_from(4, [(2, 1), (1, 2), (3, 0), (0, 0)])
    assert topology.links.tolist() == [[0, 3], [1, 2]]
    assert isinstance(topology, Topology)
