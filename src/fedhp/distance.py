"""Consensus distances: completion by shortest paths, smoothing, the bound.

Equations (37) to (39) and (43) of the paper:
measured pairs count as they are, other pairs are estimated through common neighbors.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path

from fedhp.types import BoolArray, FloatArray, IntArray, Topology


def unknown(workers: int) -> FloatArray:
    """The distances before any measurement: NaN, 0 on the diagonal, [N, N]."""
    distance = np.full((workers, workers), np.nan)
    np.fill_diagonal(distance, 0.0)
    return distance


def update_distance(
    old: FloatArray, links: IntArray, measured: FloatArray, *, smoothing: float
) -> FloatArray:
    """This round's distance estimate, [N, N].

    links [E, 2] and measured [E] are this round's measurements. Other pairs move towards
    the shortest path over these; the first time they take it. Pairs that no path joins
    this round keep their value.
    """
    workers = len(old)
    path = paths(workers, links, measured)
    reached = np.isfinite(path)
    # Where no path leads, 0 stands in for infinity: the estimate is not used there.
    path = np.where(reached, path, 0.0)
    estimate = np.where(np.isnan(old), path, (1 - smoothing) * old + smoothing * path)
    new = np.where(reached, estimate, old)
    new[links[:, 0], links[:, 1]] = measured
    new[links[:, 1], links[:, 0]] = measured
    np.fill_diagonal(new, 0.0)
    return new


def paths(workers: int, links: IntArray, measured: FloatArray) -> FloatArray:
    """Shortest-path distance between all pairs over the measured links, inf if none."""
    if not len(links):
        return np.where(np.eye(workers, dtype=np.bool_), 0.0, np.inf)
    # Explicit zeros mean "no link" to csgraph, so an exact 0 becomes the least positive number.
    lengths = np.maximum(measured, np.finfo(np.float64).tiny)
    graph = csr_array((lengths, (links[:, 0], links[:, 1])), shape=(workers, workers))
    path: FloatArray = shortest_path(graph, method="D", directed=False)
    return path


def complete(distance: FloatArray) -> FloatArray:
    """Distances with unknown pairs taken as the largest known one: such links stay first."""
    known = distance[np.isfinite(distance)]
    return np.where(np.isfinite(distance), distance, known.max(initial=0.0))


def mean_distance(topology: Topology, distance: FloatArray, available: BoolArray) -> float:
    """(1/N^2) * the sum over ordered pairs without a link of their distance."""
    absent = ~topology.adjacency & available[:, None] & available[None, :]
    np.fill_diagonal(absent, False)
    return float(distance[absent].sum() / max(1, int(available.sum())) ** 2)


def update_bound(
    old: float | None, update_norms: FloatArray, *, smoothing: float, scale: float
) -> float | None:
    """The distance bound: moving average of scale * the mean norm of the workers' updates."""
    norms = update_norms[np.isfinite(update_norms)]
    if not norms.size:
        return old
    fresh = scale * float(norms.mean())
    return fresh if old is None else (1 - smoothing) * old + smoothing * fresh
