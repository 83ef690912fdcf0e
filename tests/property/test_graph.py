"""Topologies, connectivity and mixing matrices on any graph; networkx is the oracle."""

from __future__ import annotations

import tracemalloc
from itertools import combinations
from typing import Any

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhp.errors import ConfigError
from fedhp.graph import (
    MixingRule,
    among,
    base_topology,
    components_of,
    is_connected,
    laplacian,
    mixing_matrix,
    mixing_rate,
    mixing_weights,
    neighbor_lists,
    random_regular,
    ring_over,
    topology_from,
)
from fedhp.types import Topology

FAST = settings(deadline=None, derandomize=True, max_examples=150)
RULES: tuple[MixingRule, ...] = ("max_degree", "metropolis", "sinkhorn")


@st.composite
def graphs(draw: st.DrawFn, least: int = 1, most: int = 10) -> Topology:
    """Any graph, connected or not."""
    workers = draw(st.integers(least, most))
    pairs = list(combinations(range(workers), 2))
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return topology_from(workers, chosen)


def as_networkx(topology: Topology) -> networkx.Graph:
    graph = networkx.Graph()
    graph.add_nodes_from(range(topology.workers))
    graph.add_edges_from(topology.links.tolist())
    return graph


@FAST
@given(graphs())
def test_components_equal_networkx(topology: Topology) -> None:
    graph = as_networkx(topology)
    result = components_of(topology)
    for group in networkx.connected_components(graph):
        assert len({int(result[i]) for i in group}) == 1
    assert len(set(result.tolist())) == networkx.number_connected_components(graph)
    assert result[0] == 0
    assert is_connected(topology) == networkx.is_connected(graph)


@FAST
@given(graphs())
def test_degrees_adjacency_and_laplacian_agree(topology: Topology) -> None:
    adjacency = topology.adjacency
    assert (adjacency == adjacency.T).all()
    assert not np.diag(adjacency).any()
    assert topology.degrees.tolist() == adjacency.sum(axis=1).tolist()
    matrix = laplacian(topology)
    expected = networkx.laplacian_matrix(as_networkx(topology), nodelist=range(topology.workers))
    assert (matrix == expected.toarray()).all()
    zeros = int((np.abs(np.linalg.eigvalsh(matrix)) < 1e-9).sum())
    assert zeros == components_of(topology).max() + 1


@FAST
@given(graphs(), st.data())
def test_among_keeps_links_between_those_present(topology: Topology, data: st.DataObject) -> None:
    flags = data.draw(st.lists(st.booleans(), min_size=topology.workers, max_size=topology.workers))
    result = among(topology, np.array(flags))
    expected = [[a, b] for a, b in topology.links.tolist() if flags[a] and flags[b]]
    assert result.links.tolist() == expected
    assert result.workers == topology.workers


@FAST
@given(graphs(), st.sampled_from(RULES))
def test_mixing_matrices(topology: Topology, rule: MixingRule) -> None:
    """Symmetric, doubly stochastic, weights on links only, rho < 1 exactly if connected."""
    matrix = mixing_matrix(topology, rule)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
    np.testing.assert_allclose(matrix.sum(axis=1), 1.0, atol=1e-9)
    assert matrix.min() >= -1e-15
    others = ~np.eye(topology.workers, dtype=np.bool_)
    assert ((matrix > 0) == topology.adjacency)[others].all()
    assert (np.diag(matrix) > 0).all()
    rate = mixing_rate(matrix)
    if topology.workers > 1:
        assert (rate < 1 - 1e-7) == is_connected(topology)
    values = np.linalg.eigvalsh(matrix)
    assert values.max() <= 1 + 1e-9
    assert values.min() > -1


@FAST
@given(graphs(least=2), st.sampled_from(RULES), st.integers(0, 2**31))
def test_mixing_brings_models_together(topology: Topology, rule: MixingRule, seed: int) -> None:
    """The mean stays; the spread shrinks by rho at least."""
    models = np.random.default_rng(seed).standard_normal((topology.workers, 3))
    matrix = mixing_matrix(topology, rule)
    mixed = matrix @ models
    np.testing.assert_allclose(mixed.mean(axis=0), models.mean(axis=0), atol=1e-8)
    before = np.linalg.norm(models - models.mean(axis=0))
    after = np.linalg.norm(mixed - mixed.mean(axis=0))
    assert after <= mixing_rate(matrix) * before + 1e-7


@settings(FAST, max_examples=40)
@given(st.integers(1, 40), st.integers(0, 2**31 - 1))
def test_base_topologies_are_connected(workers: int, seed: int) -> None:
    names: dict[str, dict[str, Any]] = {
        "full": {},
        "ring": {},
        "star": {"center": workers - 1},
        "grid": {},
        "random": {"probability": 0.6},
    }
    for name, options in names.items():
        result = base_topology(name, options, workers=workers, seed=seed)
        assert networkx.is_connected(as_networkx(result))
        again = base_topology(name, options, workers=workers, seed=seed)
        assert again.links.tolist() == result.links.tolist()
        ordered = result.links.tolist()
        assert all(a < b for a, b in ordered)
        assert ordered == sorted(ordered)
    counts = {
        name: len(base_topology(name, names[name], workers=workers, seed=seed).links)
        for name in ("full", "ring", "star")
    }
    assert counts["full"] == workers * (workers - 1) // 2
    assert counts["ring"] == (workers if workers > 2 else workers - 1)
    assert counts["star"] == workers - 1


@settings(FAST, max_examples=300)
@given(st.integers(2, 30), st.integers(1, 30), st.integers(0, 2**31 - 1))
def test_random_regular_is_regular_and_connected_or_refused(
    workers: int, degree: int, seed: int
) -> None:
    def build() -> Topology:
        return base_topology("random_regular", {"degree": degree}, workers=workers, seed=seed)

    possible = degree < workers and degree * workers % 2 == 0 and (degree > 1 or workers == 2)
    if not possible:
        with pytest.raises(ConfigError) as caught:
            build()
        assert caught.value.key == "topology.degree"
        assert caught.value.allowed
        assert caught.value.fix
        return
    graph = as_networkx(build())
    assert networkx.is_k_regular(graph, degree)
    assert networkx.is_connected(graph)
    assert networkx.number_of_selfloops(graph) == 0
    assert build().links.tolist() == build().links.tolist()


@pytest.mark.parametrize(
    ("workers", "degree", "problem"),
    [(7, 30, "workers = 7"), (7, 3, "must be even"), (8, 1, "fall apart"), (1, 6, "workers = 1")],
)
def test_an_impossible_regular_graph_is_refused_with_the_reason(
    workers: int, degree: int, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        base_topology("random_regular", {"degree": degree}, workers=workers, seed=0)
    assert caught.value.key == "topology.degree"


def test_every_regular_graph_is_drawn() -> None:
    """All 70 connected cubic graphs on 6 labelled workers, each about equally often."""
    counts: dict[str, int] = {}
    for seed in range(1400):
        links: Any = random_regular(6, seed, degree=3)
        counts[str(links.tolist())] = counts.get(str(links.tolist()), 0) + 1
    assert len(counts) == 70
    assert max(counts.values()) < 50


def test_random_has_each_link_with_its_probability_and_nothing_added() -> None:
    workers, probability, seeds = 40, 0.3, 200
    pairs = workers * (workers - 1) // 2
    counts = np.zeros((workers, workers))
    for seed in range(seeds):
        topology = base_topology("random", {"probability": probability}, workers=workers, seed=seed)
        assert networkx.is_connected(as_networkx(topology))
        counts += topology.adjacency
    share = counts.sum() / 2 / pairs / seeds
    assert abs(share - probability) < 4 * (0.3 * 0.7 / pairs / seeds) ** 0.5
    degrees = counts.sum(axis=1) / seeds
    assert abs(degrees - probability * (workers - 1)).max() < 1.0


def test_a_random_graph_that_is_never_connected_is_refused() -> None:
    with pytest.raises(ConfigError, match="100 random graphs of 40 workers") as caught:
        base_topology("random", {"probability": 0.01}, workers=40, seed=0)
    assert caught.value.key == "topology.probability"
    fixed = float(caught.value.fix.split("topology.probability = ")[1].split(",")[0])
    base_topology("random", {"probability": fixed}, workers=40, seed=0)


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_ring_over(workers: int) -> None:
    order = np.random.default_rng(1).permutation(workers)
    result = topology_from(workers, ring_over(order))
    wanted = {1: [0], 2: [1, 1]}.get(workers, [2] * workers)
    assert result.degrees.tolist() == wanted
    if workers > 2:
        assert sorted(networkx.find_cycle(as_networkx(result)))[0][0] == 0


def test_links_from_the_settings() -> None:
    pairs = [(2, 1), (0, 1), (1, 0)]
    result = base_topology("links", {"pairs": pairs}, workers=3, seed=0)
    assert result.links.tolist() == [[0, 1], [1, 2]]


def test_a_disconnected_base_topology_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no path from worker 0 to worker 2"):
        base_topology("links", {"pairs": [(0, 1), (2, 3)]}, workers=4, seed=0)


def test_a_link_to_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown worker 4: workers = 4"):
        base_topology("links", {"pairs": [(0, 4)]}, workers=4, seed=0)


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown mixing rule"):
        mixing_matrix(topology_from(2, [(0, 1)]), "mean")


@FAST
@given(graphs(), st.sampled_from(RULES))
def test_sparse_weights_are_the_dense_ones(topology: Topology, rule: MixingRule) -> None:
    """Off the diagonal bit for bit what the dense formulas give; columns ascend."""
    sparse = mixing_weights(topology, rule)
    workers, degrees = topology.workers, topology.degrees
    assert sparse.nnz == 2 * len(topology.links) + workers
    for row in range(workers):
        columns = sparse.indices[sparse.indptr[row] : sparse.indptr[row + 1]]
        assert columns.tolist() == sorted({row, *np.flatnonzero(topology.adjacency[row]).tolist()})
    dense = sparse.toarray()
    assert (dense == mixing_matrix(topology, rule)).all()
    adjacency = topology.adjacency.astype(np.float64)
    if rule == "max_degree":
        adjacency /= degrees.max() + 1
    elif rule == "metropolis":
        adjacency /= 1 + np.maximum.outer(degrees, degrees)
    else:
        return
    others = ~np.eye(workers, dtype=np.bool_)
    assert (dense == adjacency)[others].all()
    for row in range(workers):
        total = 0.0
        for weight in adjacency[row]:
            total += weight
        assert dense[row, row] == 1.0 - total


@FAST
@given(graphs())
def test_neighbor_lists(topology: Topology) -> None:
    start, neighbors = neighbor_lists(topology)
    assert start.dtype == neighbors.dtype == np.int64
    assert len(start) == topology.workers + 1
    for worker in range(topology.workers):
        mine = neighbors[start[worker] : start[worker + 1]]
        assert mine.tolist() == np.flatnonzero(topology.adjacency[worker]).tolist()


@FAST
@given(graphs())
def test_components_are_numbered_by_first_member(topology: Topology) -> None:
    result = components_of(topology).tolist()
    assert list(dict.fromkeys(result)) == list(range(max(result) + 1))


@FAST
@given(st.integers(1, 9), st.data())
def test_topologies_from_pairs_in_any_order(workers: int, data: st.DataObject) -> None:
    worker = st.integers(0, workers - 1)
    pairs = data.draw(st.lists(st.tuples(worker, worker)))
    expected = sorted({(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]})
    result = topology_from(workers, pairs)
    assert [tuple(link) for link in result.links.tolist()] == expected
    again = topology_from(workers, result.links)
    assert again.links.tolist() == result.links.tolist()


def test_a_full_mesh_needs_no_more_than_its_links() -> None:
    tracemalloc.start()
    result = base_topology("full", {}, workers=3000, seed=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.1 * result.links.nbytes
    assert is_connected(result)


def test_a_large_sparse_base_is_quick_to_make() -> None:
    result = base_topology("random_regular", {"degree": 20}, workers=10_000, seed=0)
    assert (result.degrees == 20).all()
