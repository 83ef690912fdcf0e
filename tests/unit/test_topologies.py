"""The named topologies: their structure against networkx, exact averaging, and what is refused."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest

from fedhp import graph, topologies
from fedhp.config import parse
from fedhp.errors import ConfigError
from fedhp.graph import base_topology, mixing_matrix, mixing_rate, round_topology, topology_from
from fedhp.rounds.context import planning_context
from fedhp.seeds import Purpose, generator
from fedhp.types import ChangingTopology, FloatArray, Topology


def as_networkx(topology: Topology) -> networkx.Graph:
    plain = networkx.Graph()
    plain.add_nodes_from(range(topology.workers))
    plain.add_edges_from(topology.links.tolist())
    return plain


def build(name: str, workers: int, *, seed: int = 3, **settings: Any) -> Topology:
    return base_topology(name, settings, workers=workers, seed=seed)


def changing(name: str, workers: int, *, seed: int = 3, **settings: Any) -> ChangingTopology:
    built = graph.topologies(name, settings, workers=workers, seed=seed)[1]
    assert built is not None
    return built


def cycle(name: str, workers: int, **settings: Any) -> list[Topology]:
    built = changing(name, workers, **settings)
    assert built.period is not None
    return [round_topology(built, 1 + number) for number in range(built.period)]


def product(rounds: list[Topology]) -> FloatArray:
    """What a whole cycle of mixing does to the models."""
    result: FloatArray = np.eye(rounds[0].workers)
    for topology in rounds:
        result = mixing_matrix(topology) @ result
    return result


def spectral_gap(plain: networkx.Graph) -> float:
    """1 - rho of I - L / (max degree + 1), by networkx alone."""
    most = max(degree for _, degree in plain.degree)
    values = np.sort(networkx.laplacian_spectrum(plain))
    eigenvalues = np.sort(np.abs(1 - values / (most + 1)))
    return float(1 - eigenvalues[-2])


SAME_AS: list[tuple[str, int, dict[str, Any], networkx.Graph]] = [
    ("hypercube", 16, {}, networkx.hypercube_graph(4)),
    ("hypercube", 2, {}, networkx.hypercube_graph(1)),
    ("torus", 12, {}, networkx.grid_2d_graph(3, 4, periodic=True)),
    ("torus", 12, {"rows": 2}, networkx.grid_2d_graph(2, 6, periodic=True)),
    ("torus", 12, {"rows": 6}, networkx.grid_2d_graph(6, 2, periodic=True)),
    ("torus", 36, {}, networkx.grid_2d_graph(6, 6, periodic=True)),
    ("torus", 4, {}, networkx.cycle_graph(4)),
    ("exponential", 16, {}, networkx.circulant_graph(16, [1, 2, 4, 8])),
    ("exponential", 11, {}, networkx.circulant_graph(11, [1, 2, 4, 8])),
    ("exponential", 3, {}, networkx.complete_graph(3)),
    ("exponential", 2, {}, networkx.complete_graph(2)),
    ("star", 9, {"center": 4}, networkx.star_graph(8)),
    ("small_world", 20, {"probability": 0.0}, networkx.watts_strogatz_graph(20, 4, 0.0)),
]


@pytest.mark.parametrize(("name", "workers", "settings", "expected"), SAME_AS)
def test_a_fixed_topology_is_that_of_networkx_with_its_spectral_gap(
    name: str, workers: int, settings: dict[str, Any], expected: networkx.Graph
) -> None:
    topology = build(name, workers, **settings)
    plain = as_networkx(topology)
    assert networkx.is_isomorphic(plain, networkx.convert_node_labels_to_integers(expected))
    gap = 1 - mixing_rate(mixing_matrix(topology))
    assert gap == pytest.approx(spectral_gap(expected), abs=1e-9)


def test_exponential_mixes_better_than_torus_and_torus_than_ring() -> None:
    """The order for which they are known, at 64 workers."""
    gaps = [
        1 - mixing_rate(mixing_matrix(build(name, 64)))
        for name in ("ring", "torus", "hypercube", "exponential")
    ]
    assert all(first < second for first, second in pairwise(gaps))


@pytest.mark.parametrize("name", ["exponential", "torus", "hypercube", "small_world"])
def test_a_seed_gives_one_order_of_the_workers(name: str) -> None:
    first, again, other = (build(name, 16, seed=seed) for seed in (5, 5, 6))
    assert first.links.tolist() == again.links.tolist()
    assert first.links.tolist() != other.links.tolist()


@pytest.mark.parametrize("neighbors", [2, 4, 6])
@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_a_small_world_is_connected_and_keeps_its_links(neighbors: int, probability: float) -> None:
    for seed in range(5):
        topology = build("small_world", 24, seed=seed, neighbors=neighbors, probability=probability)
        assert len(topology.links) == 24 * neighbors // 2
        assert networkx.is_connected(as_networkx(topology))


def test_moved_links_make_a_small_world_small() -> None:
    """Watts and Strogatz: a few moved links shorten the paths, and leave most triangles."""

    def facts(probability: float) -> tuple[float, float]:
        plain = as_networkx(build("small_world", 200, neighbors=6, probability=probability))
        return networkx.average_shortest_path_length(plain), networkx.average_clustering(plain)

    (lattice_path, lattice_triangles), (path, triangles) = facts(0.0), facts(0.1)
    assert path < 0.5 * lattice_path
    assert triangles > 0.6 * lattice_triangles


@pytest.mark.parametrize("power", range(8))
def test_one_peer_exponential_is_exact_after_a_cycle(power: int) -> None:
    workers = 2**power
    rounds = cycle("one_peer_exponential", workers)
    assert len(rounds) == max(1, power)
    for topology in rounds if workers > 1 else []:
        assert topology.degrees.tolist() == [1] * workers
    assert np.abs(product(rounds) - 1 / workers).max() < 1e-12
    if power > 1:
        assert np.abs(product(rounds[1:]) - 1 / workers).max() > 1e-3
    everything = topology_from(workers, np.concatenate([each.links for each in rounds]))
    if power:
        assert everything.links.tolist() == build("hypercube", workers).links.tolist()


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("workers", range(1, 41))
def test_base_k_is_exact_after_a_cycle_with_at_most_k_peers(workers: int, k: int) -> None:
    rounds = cycle("base_k", workers, k=k)
    for topology in rounds:
        matrix = mixing_matrix(topology)
        assert (matrix >= 0).all()
        assert np.allclose(matrix, matrix.T)
        assert np.allclose(matrix.sum(axis=1), 1)
        assert topology.degrees.max(initial=0) <= k
    assert np.abs(product(rounds) - 1 / workers).max() < 1e-12
    # The bound of the paper: 2 log_{k+1}(n) + 2 rounds.
    assert len(rounds) <= 2 * np.log(workers) / np.log(k + 1) + 2


def test_base_k_is_exact_for_large_numbers_and_their_cycles_stay_short() -> None:
    for workers, k in ((97, 1), (127, 2), (211, 3), (150, 1)):
        rounds = cycle("base_k", workers, k=k)
        assert np.abs(product(rounds) - 1 / workers).max() < 1e-12
    assert len(cycle("base_k", 64, k=1)) == 6  # a power of two: the one-peer hypercube
    assert len(cycle("base_k", 10_007, k=1)) <= 2 * np.log2(10_007) + 2


def test_a_schedule_is_a_pure_function_of_the_round() -> None:
    for name, workers in (("one_peer_exponential", 8), ("base_k", 11), ("random", 9)):
        settings = {"redraw": True} if name == "random" else {}
        one, other = (changing(name, workers, **settings) for _ in range(2))
        for number in (7, 2, 100, 7):
            first, second = round_topology(one, number), round_topology(other, number)
            assert first.links.tolist() == second.links.tolist()
        if one.period:
            later = round_topology(one, 2 + 5 * one.period)
            assert later.links.tolist() == round_topology(one, 2).links.tolist()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("random", {"probability": 0.4}),
        ("random_regular", {"degree": 3}),
        ("random_regular", {"degree": 1}),
        ("small_world", {"neighbors": 4, "probability": 0.5}),
    ],
)
def test_random_topologies_are_drawn_again_every_round(name: str, settings: dict[str, Any]) -> None:
    built = changing(name, 20, redraw=True, **settings)
    assert built.period is None
    drawn = [round_topology(built, number) for number in range(1, 30)]
    assert len({topology.links.tobytes() for topology in drawn}) == len(drawn)
    together = topology_from(20, np.concatenate([topology.links for topology in drawn]))
    assert networkx.is_connected(as_networkx(together))
    for topology in drawn:
        assert np.allclose(mixing_matrix(topology).sum(axis=0), 1)
        if name == "random_regular":
            assert topology.degrees.tolist() == [settings["degree"]] * 20


def test_without_redraw_random_graphs_are_as_they_always_were() -> None:
    rng = generator(3, Purpose.TOPOLOGY)
    drawn = graph.draw_links(12, 0.3, generator(3, Purpose.TOPOLOGY))
    assert build("random", 12).links.tolist() == drawn.links.tolist()
    drawn = graph.draw_regular(12, 6, generator(3, Purpose.TOPOLOGY), connected=True)
    assert build("random_regular", 12).links.tolist() == drawn.links.tolist()
    assert build("ring", 12).degrees.tolist() == [2] * 12
    expected = topology_from(12, graph.ring_over(rng.permutation(12))).links
    assert build("ring", 12).links.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("name", "workers", "settings", "problem", "fix"),
    [
        ("hypercube", 12, {}, "needs a power of two", "workers = 8 or 16"),
        ("one_peer_exponential", 15, {}, "needs a power of two", "'base_k'"),
        ("torus", 13, {}, "13 is not a product", "workers = 14"),
        ("torus", 1, {}, "1 is not a product", "workers = 4"),
        ("torus", 12, {"rows": 5}, "do not fill 5 rows", "topology.rows"),
        ("small_world", 12, {"neighbors": 3}, "as many on one side", "neighbors = 4"),
        ("small_world", 4, {"neighbors": 4}, "workers = 4", "neighbors = 2"),
        ("star", 4, {"center": 4}, "workers = 4", "topology.center"),
        ("random_regular", 5, {"degree": 3, "redraw": True}, "must be even", "degree = 4"),
    ],
)
def test_an_impossible_topology_is_refused_with_the_reason_and_the_fix(
    name: str, workers: int, settings: dict[str, Any], problem: str, fix: str
) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        base_topology(name, settings, workers=workers, seed=0)
    assert fix in caught.value.fix
    assert caught.value.allowed
    assert caught.value.key.startswith("topology.")


def test_the_fix_of_a_refused_topology_works() -> None:
    refused = []
    for workers in range(1, 40):
        try:
            build("torus", workers)
        except ConfigError as error:
            refused.append(workers)
            number = int(error.fix.split("workers = ")[1].split(",")[0])
            assert build("torus", number).workers == number
    primes = [n for n in range(2, 40) if all(n % divisor for divisor in range(2, n))]
    assert refused == [1, *primes]
    refused = []
    for neighbors in range(2, 12):
        try:
            build("small_world", 9, neighbors=neighbors)
        except ConfigError as error:
            refused.append(neighbors)
            build("small_world", 9, neighbors=int(error.fix.split("= ")[1]))
    assert refused == [3, 5, 7, 9, 10, 11]


def wrong_weights(workers: int, seed: int) -> Topology:
    return Topology(workers, np.array([[0, 1], [1, 2]]), np.array([0.6, 0.6]))


def pairs_in_turn(workers: int, seed: int) -> ChangingTopology:
    """A user's own: workers on a line, the even and the odd links in turn."""
    return ChangingTopology(
        lambda number: np.array([(i, i + 1) for i in range(number % 2, workers - 1, 2)]), period=2
    )


def never_connected(workers: int, seed: int) -> ChangingTopology:
    return ChangingTopology(lambda number: np.array([[0, 1]]), period=3)


def broken(workers: int, seed: int) -> ChangingTopology:
    return ChangingTopology(lambda number: [][number], period=2)


def endless(workers: int, seed: int) -> ChangingTopology:
    return ChangingTopology(lambda number: np.array([[0, 1]]), period=0)


def to_nobody(workers: int, seed: int) -> ChangingTopology:
    return ChangingTopology(lambda number: np.array([[0, number]]), period=None)


def every_round(workers: int, seed: int) -> ChangingTopology:
    return ChangingTopology(lambda number: np.array([[0, 1]]), period=True)


def halves(workers: int, seed: int) -> Any:
    return [[0, 1.5], [1, 2]]


def one_more(workers: int, seed: int) -> Topology:
    return Topology(workers + 1, np.array([[0, 1], [1, 2]]))


def line_with_weights(workers: int, seed: int) -> Topology:
    return Topology(workers, np.array([[0, 1], [1, 2]]), np.array([0.3, 0.3]))


def test_what_an_own_topology_returns_is_not_rounded_or_cut() -> None:
    with pytest.raises(ConfigError, match="float64, not whole numbers"):
        build(f"{__name__}:halves", 3)
    with pytest.raises(ConfigError, match="for 4 workers: workers = 3"):
        build(f"{__name__}:one_more", 3)
    with pytest.raises(ConfigError, match="repeats after True rounds"):
        build(f"{__name__}:every_round", 3)


def test_weights_of_a_fixed_topology_are_not_replaced_silently() -> None:
    tables: dict[str, Any] = {
        "workers": 3,
        "algorithm": {"name": "dpsgd", "neighbors": "base"},
        "topology": {"name": f"{__name__}:line_with_weights"},
    }
    planning_context(parse(tables), model_bits=1e6)
    tables["algorithm"]["weights"] = "metropolis"
    with pytest.raises(ConfigError, match="has its own weights") as caught:
        planning_context(parse(tables), model_bits=1e6)
    assert caught.value.key == "algorithm.weights"


def test_a_star_without_its_center_in_a_recording_is_refused(tmp_path: Path) -> None:
    trace, clients = tmp_path / "t.csv", tmp_path / "c.json"
    trace.write_text("time,worker,available\n0,1,1\n9,1,0\n")
    client = {"active": [0], "inactive": [5], "finish_time": 9}
    clients.write_text(json.dumps({str(i): client for i in range(4)}))

    def star(center: int, **world: Any) -> None:
        tables = {
            "workers": 4,
            "algorithm": {"name": "dpsgd", "neighbors": "base"},
            "topology": {"name": "star", "center": center},
            "world": world,
        }
        planning_context(parse(tables), model_bits=1e6)

    star(0, trace=str(trace))
    with pytest.raises(ConfigError, match="center of the star") as caught:
        star(1, trace=str(trace))
    assert caught.value.key == "world.trace"
    with pytest.raises(ConfigError, match="center of the star") as caught:
        star(0, availability_trace=str(clients))
    assert caught.value.key == "world.availability_trace"


@pytest.mark.parametrize(("away", "refused"), [(0, True), (1, False)])
def test_the_center_of_a_star_is_worker_0_if_nothing_is_said(away: int, refused: bool) -> None:
    tables = {
        "workers": 4,
        "rounds": 5,
        "algorithm": {"name": "dpsgd", "neighbors": "base"},
        "topology": {"name": "star"},
        "world": {"away": [{"worker": away, "first": 2, "last": 3}]},
    }
    if not refused:
        planning_context(parse(tables), model_bits=1e6)
        return
    with pytest.raises(ConfigError, match=r"worker 0, the center of the star, is away in rounds 2"):
        planning_context(parse(tables), model_bits=1e6)


def test_own_topologies_may_change_and_are_checked() -> None:
    own = cycle(f"{__name__}:pairs_in_turn", 5)
    assert [topology.links.tolist() for topology in own] == [[[1, 2], [3, 4]], [[0, 1], [2, 3]]]
    with pytest.raises(ConfigError, match=r"worker 1 add up to 1\.2"):
        build(f"{__name__}:wrong_weights", 3)
    with pytest.raises(ConfigError, match="no path from worker 0 to worker 2"):
        build(f"{__name__}:never_connected", 3)
    with pytest.raises(ConfigError, match=r"fails in round 1: IndexError.*test_topologies\.py"):
        build(f"{__name__}:broken", 3)
    with pytest.raises(ConfigError, match="repeats after 0 rounds"):
        build(f"{__name__}:endless", 3)
    bad = changing(f"{__name__}:to_nobody", 3)
    round_topology(bad, 2)
    with pytest.raises(ConfigError, match="unknown worker 3"):
        round_topology(bad, 3)
    with pytest.raises(ConfigError, match="unknown worker -1"):
        round_topology(bad, -1)


def test_weights_are_found_again_by_the_links() -> None:
    weighted = topologies.base_k(7, 0, k=2).at(1)
    assert isinstance(weighted, Topology)
    assert weighted.weights is not None
    plain = Topology(7, weighted.links)
    found = graph.with_weights_of(plain, weighted).weights
    assert found is not None
    assert found.tolist() == weighted.weights.tolist()
    some = graph.with_weights_of(Topology(7, weighted.links[1:3]), weighted).weights
    assert some is not None
    assert some.tolist() == weighted.weights[1:3].tolist()
    other = topology_from(7, [*weighted.links.tolist(), [0, 6], [1, 5], [2, 3], [0, 1]])
    assert graph.with_weights_of(other, weighted).weights is None
