"""Distances of a sample of workers: the rows are those of all pairs, the sum is unbiased."""

from __future__ import annotations

import numpy as np
import pytest

from fedhp import distance as distances
from fedhp.distance import (
    absent_distance,
    paths,
    prefers_dijkstra,
    unknown,
    update_distance,
    update_link_distance,
)
from fedhp.graph import among, base_topology
from fedhp.types import FloatArray, IntArray, Topology

WORKERS = 200


def history(rounds: int = 4) -> tuple[Topology, list[tuple[IntArray, FloatArray]]]:
    """A sparse base and rounds in which only some of its links were measured."""
    rng = np.random.default_rng(3)
    base = base_topology("random_regular", {"degree": 8}, workers=WORKERS, seed=1)
    measurements = []
    for share in (1.0, 0.6, 0.3, 0.5)[:rounds]:
        links = base.links[rng.random(len(base.links)) < share]
        measurements.append((links, rng.uniform(0.2, 2, len(links))))
    return base, measurements


def tracked(
    base: Topology, measurements: list[tuple[IntArray, FloatArray]], sources: IntArray
) -> tuple[FloatArray, FloatArray]:
    """The rows of the sources and the base links after all rounds."""
    rows = unknown(WORKERS, sources)
    on_links = np.full(len(base.links), np.nan)
    for links, measured in measurements:
        rows = update_distance(rows, links, measured, smoothing=0.5, sources=sources)
        on_links = update_link_distance(
            on_links, base.links, links, measured, smoothing=0.5, rows=rows, sources=sources
        )
    return rows, on_links


def test_rows_and_links_are_those_of_all_pairs() -> None:
    base, measurements = history()
    whole, all_links = tracked(base, measurements, np.arange(WORKERS))
    np.testing.assert_array_equal(all_links, whole[base.links[:, 0], base.links[:, 1]])
    for count in (1, 7, 60):
        sources = np.sort(np.random.default_rng(count).choice(WORKERS, count, replace=False))
        rows, on_links = tracked(base, measurements, sources)
        np.testing.assert_allclose(rows, whole[sources], rtol=1e-12)
        np.testing.assert_allclose(on_links, all_links, rtol=1e-12)


def test_links_in_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    base, measurements = history()
    _, expected = tracked(base, measurements, np.arange(3))
    monkeypatch.setattr(distances, "_CHUNK", 5 * WORKERS)
    np.testing.assert_array_equal(tracked(base, measurements, np.arange(3))[1], expected)


def test_a_link_without_a_path_keeps_its_distance() -> None:
    base = base_topology("ring", {}, workers=6, seed=0)
    old = np.arange(6.0)
    rows = unknown(6, np.array([5]))
    estimates = update_link_distance(
        old,
        base.links,
        base.links[:1],
        np.array([9.0]),
        smoothing=0.5,
        rows=update_distance(
            rows, base.links[:1], np.array([9.0]), smoothing=0.5, sources=np.array([5])
        ),
        sources=np.array([5]),
    )
    untouched = (base.links != 5).all(axis=1)
    untouched[0] = False
    assert estimates[0] == 9.0
    assert estimates[untouched].tolist() == old[untouched].tolist()


@pytest.mark.parametrize("away", [0.0, 0.2])
def test_the_sampled_sum_is_unbiased(away: float) -> None:
    """Over all ways to draw K sources its mean is the exact sum; here over many draws."""
    base, measurements = history()
    whole, _ = tracked(base, measurements, np.arange(WORKERS))
    available = np.random.default_rng(5).random(WORKERS) >= away
    topology = among(base, available)
    exact = absent_distance(topology, whole, available)
    rng = np.random.default_rng(6)
    estimates = []
    for _ in range(400):
        sources = np.sort(rng.choice(WORKERS, 20, replace=False))
        estimates.append(absent_distance(topology, whole[sources], available, sources=sources))
    error = float(np.std(estimates)) / 20
    assert np.mean(estimates) == pytest.approx(exact, abs=4 * error)
    assert error < 0.02 * exact
    # Each worker once as the only source: the mean is exact.
    singles = [
        absent_distance(topology, whole[[i]], available, sources=np.array([i]))
        for i in range(WORKERS)
    ]
    assert np.mean(singles) == pytest.approx(exact, rel=1e-12)


def test_no_paths_where_all_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only rows with an unmeasured pair are sought."""
    requested: list[list[int]] = []

    def noted(
        workers: int, links: IntArray, measured: FloatArray, *, sources: IntArray
    ) -> FloatArray:
        requested.append(sources.tolist())
        return paths(workers, links, measured, sources=sources)

    monkeypatch.setattr(distances, "paths", noted)
    full = base_topology("full", {}, workers=6, seed=0).links
    measured = np.random.default_rng(7).uniform(1, 2, len(full))
    first = update_distance(unknown(6), full, measured, smoothing=0.5)
    assert requested == []
    less = np.array([(a, b) != (1, 4) for a, b in full.tolist()])
    update_distance(first, full[less], measured[less], smoothing=0.5)
    assert requested == [[1, 4]]


@pytest.mark.parametrize(("workers", "degree"), [(30, 4), (300, 6), (300, 280)])
def test_dijkstra_and_floyd_warshall_agree(
    workers: int, degree: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = base_topology("random_regular", {"degree": degree}, workers=workers, seed=2).links
    measured = np.random.default_rng(8).uniform(0, 2, len(links))
    some = np.array([0, 3, workers - 1])
    answers = []
    for choice in (True, False):
        monkeypatch.setattr(distances, "prefers_dijkstra", lambda *_, pick=choice: pick)
        answers.append(paths(workers, links, measured))
        np.testing.assert_array_equal(
            paths(workers, links, measured, sources=some), answers[-1][some]
        )
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-12)


def test_the_faster_method_is_chosen() -> None:
    """As measured: sparse and large, or few sources, for Dijkstra; dense or small for the other."""
    pairs = 1000 * 999 // 2
    assert prefers_dijkstra(1000, int(0.02 * pairs), 1000)
    assert prefers_dijkstra(1000, int(0.2 * pairs), 1000)
    assert not prefers_dijkstra(1000, int(0.5 * pairs), 1000)
    assert not prefers_dijkstra(100, 2000, 100)
    assert not prefers_dijkstra(300, 300 * 299 // 4, 300)
    assert prefers_dijkstra(1000, pairs, 10)


def test_a_distance_that_is_not_finite_is_no_link() -> None:
    line = np.array([[0, 1], [1, 2]])
    estimates = paths(3, line, np.array([np.nan, 1.0]))
    assert np.isinf(estimates[0, 1:]).all()
    assert estimates[1, 2] == 1.0
