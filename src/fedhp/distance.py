"""Consensus distances: completion by shortest paths, smoothing, the bound.

Equations (37) to (39) and (43) of the paper: measured pairs keep their value, other pairs are
estimated over shortest paths. Rows are kept for some workers, the sources: all of them, or a
sample where N^2 numbers would be too many; then also one number per base link.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedhp.types import BoolArray, FloatArray, IntArray, Topology

# scipy is imported where it is used: a wrong setting is refused without waiting for it.
if TYPE_CHECKING:
    from scipy.sparse import csr_array

# The cost of a worker and of a link end for Dijkstra per source, in units of one of the N^3 steps
# of Floyd-Warshall (0.8 ns). Fitted to scipy 1.17, CPU seconds Dijkstra / Floyd-Warshall:
# N = 100: 0.0004 / 0.0004 at density 0.02, 0.0047 / 0.0016 at 0.95;
# N = 300: 0.014 / 0.017 at 0.02, 0.026 / 0.024 at 0.1, 0.068 / 0.035 at 0.95;
# N = 1000: 0.28 / 0.9 at 0.02, 0.74 / 0.9 at 0.2, 0.91 / 0.9 at 0.3, 2.56 / 0.9 at 0.95.
_PER_WORKER = 240.0
_PER_LINK_END = 2.5
_CHUNK = 1 << 22  # path lengths in memory at a time for the links, 32 MB


def unknown(workers: int, sources: IntArray | None = None) -> FloatArray:
    """The distances before any measurement: NaN, 0 to itself, [K, N]; sources None: all workers."""
    rows = np.arange(workers) if sources is None else sources
    distance = np.full((len(rows), workers), np.nan)
    distance[np.arange(len(rows)), rows] = 0.0
    return distance


def distances_over(
    links: IntArray, distance: FloatArray, *, workers: int, sources: IntArray
) -> FloatArray:
    """The distances from the sources to all workers, [K, N], by what is known of some links."""
    known = np.isfinite(distance)
    return update_distance(
        unknown(workers, sources), links[known], distance[known], smoothing=1.0, sources=sources
    )


def update_distance(
    old: FloatArray,
    links: IntArray,
    measured: FloatArray,
    *,
    smoothing: float,
    sources: IntArray | None = None,
) -> FloatArray:
    """This round's distances from the sources to all workers, [K, N]; sources None: all workers.

    links [E, 2] and measured [E] are this round's measurements. Other pairs move towards
    their shortest path over these; the first time they take its length. Pairs without a path
    this round keep their value.
    """
    workers = old.shape[1]
    sources = np.arange(workers) if sources is None else sources
    new = old.copy()
    # A worker that measured its distance to all others needs no paths.
    degrees = Topology(workers, links).degrees
    open_rows = np.flatnonzero(degrees[sources] < workers - 1)
    if len(open_rows) and len(links):
        whole = len(open_rows) == len(old)
        path = paths(workers, links, measured, sources=sources[open_rows])
        if whole:
            _move(new, path, smoothing)
        else:
            part = new[open_rows]
            _move(part, path, smoothing)
            new[open_rows] = part
    row = _rows(workers, sources)
    for a, b in _both_ways(links):
        if len(sources) == workers:
            new[row[a], b] = measured
        else:
            tracked = row[a] >= 0
            new[row[a[tracked]], b[tracked]] = measured[tracked]
    new[np.arange(len(sources)), sources] = 0.0
    return new


def update_link_distance(
    old: FloatArray,
    base_links: IntArray,
    links: IntArray,
    measured: FloatArray,
    *,
    smoothing: float,
    rows: FloatArray,
    sources: IntArray,
) -> FloatArray:
    """This round's distances of the base links, [E], by the rule of update_distance.

    rows [K, N] are this round's distances of the sources: they include links that end at one.
    """
    workers = rows.shape[1]
    a, b = base_links[:, 0], base_links[:, 1]
    row = _rows(workers, sources)
    if len(sources) == workers:
        return np.asarray(rows[row[a], b])
    new = old.copy()
    of_a, of_b = row[a] >= 0, row[b] >= 0
    new[of_b] = rows[row[b[of_b]], a[of_b]]
    new[of_a] = rows[row[a[of_a]], b[of_a]]
    # Sorted like the base links, so a measured link is found by bisection.
    keys, wanted = a * workers + b, links[:, 0] * workers + links[:, 1]
    position = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
    in_base = keys[position] == wanted if len(keys) else np.zeros(len(wanted), dtype=np.bool_)
    open_links = ~(of_a | of_b)
    open_links[position[in_base]] = False
    from scipy.sparse.csgraph import connected_components

    group = connected_components(_graph(workers, links, measured), directed=False)[1]
    open_links &= group[a] == group[b]
    chosen = np.flatnonzero(open_links)
    if len(chosen):
        new[chosen] = _estimated(
            new[chosen], base_links[chosen], links, measured, workers, smoothing
        )
    new[position[in_base]] = measured[in_base]
    return new


def _estimated(
    old: FloatArray,
    wanted: IntArray,
    links: IntArray,
    measured: FloatArray,
    workers: int,
    smoothing: float,
) -> FloatArray:
    """The estimates of some unmeasured links, with paths from as few of their ends as is easy."""
    busy = Topology(workers, wanted).degrees
    a, b = wanted[:, 0], wanted[:, 1]
    swap = busy[b] > busy[a]
    near, far = np.where(swap, b, a), np.where(swap, a, b)
    ends, number = np.unique(near, return_inverse=True)
    new = old.copy()
    size = max(1, _CHUNK // workers)
    for first in range(0, len(ends), size):
        chunk = np.flatnonzero((number >= first) & (number < first + size))
        path = paths(workers, links, measured, sources=ends[first : first + size])
        part = new[chunk]
        _move(part, path[number[chunk] - first, far[chunk]], smoothing)
        new[chunk] = part
    return new


def _move(distance: FloatArray, path: FloatArray, smoothing: float) -> None:
    """Move every distance with a path towards the length of that path, in position."""
    reached = np.isfinite(path)
    # 0 instead of infinity where there is no path: the estimate is not used there.
    path[~reached] = 0.0
    estimate = (1 - smoothing) * distance
    estimate += smoothing * path
    np.copyto(estimate, path, where=np.isnan(distance))
    np.copyto(distance, estimate, where=reached)


def _both_ways(links: IntArray) -> tuple[tuple[IntArray, IntArray], tuple[IntArray, IntArray]]:
    a, b = links[:, 0], links[:, 1]
    return (a, b), (b, a)


def _rows(workers: int, sources: IntArray) -> IntArray:
    """The row of every source, -1 for other workers, [N]."""
    row = np.full(workers, -1, dtype=np.int64)
    row[sources] = np.arange(len(sources))
    return row


def paths(
    workers: int, links: IntArray, measured: FloatArray, *, sources: IntArray | None = None
) -> FloatArray:
    """Shortest-path distance from the sources to all workers over the measured links, [K, N].

    Infinite without a path; sources None: all workers. Dijkstra where it is likely faster, by the
    numbers of workers, sources and links alone; else Floyd-Warshall.
    """
    from scipy.sparse.csgraph import dijkstra, floyd_warshall

    sources = np.arange(workers) if sources is None else sources
    graph = _graph(workers, links, measured)
    if prefers_dijkstra(workers, graph.nnz // 2, len(sources)):
        from_sources: FloatArray = dijkstra(graph, directed=True, indices=sources)
        return from_sources
    from_all: FloatArray = floyd_warshall(graph, directed=True)
    return from_all if len(sources) == workers else from_all[sources]


def _graph(workers: int, links: IntArray, measured: FloatArray) -> csr_array:
    """The measured links in both directions; a distance that is not finite is no link."""
    from scipy.sparse import csr_array

    usable = np.isfinite(measured)
    a, b = links[usable].T
    # csgraph takes an explicit 0 for "no link", so an exact 0 becomes the smallest positive number.
    lengths = np.maximum(measured[usable], np.finfo(np.float64).tiny)
    # Before scipy 1.17, csgraph accepts 32-bit indices only.
    both = (np.concatenate([a, b]).astype(np.int32), np.concatenate([b, a]).astype(np.int32))
    return csr_array((np.concatenate([lengths, lengths]), both), shape=(workers, workers))


def prefers_dijkstra(workers: int, links: int, sources: int) -> bool:
    """Whether Dijkstra from so many sources is likely faster than Floyd-Warshall for all."""
    per_source = _PER_WORKER * workers + _PER_LINK_END * 2 * links
    return bool(sources * per_source < workers**3)


def farthest_known(*distances: FloatArray) -> float:
    """The largest known distance, 0 if none is known; unknown pairs are given this value."""
    farthest = 0.0
    for distance in distances:
        # fmax ignores NaN without a copy; only infinity needs one.
        largest = float(np.fmax.reduce(distance, axis=None, initial=0.0))
        if not np.isfinite(largest):
            largest = float(distance[np.isfinite(distance)].max(initial=0.0))
        farthest = max(farthest, largest)
    return farthest


def complete(distance: FloatArray, farthest: float | None = None) -> FloatArray:
    """Distances with unknown pairs set to the largest known one: such links are kept first."""
    known = np.isfinite(distance)
    if known.all():
        return distance
    return np.where(known, distance, farthest_known(distance) if farthest is None else farthest)


def absent_distance(
    topology: Topology,
    distance: FloatArray,
    available: BoolArray,
    *,
    sources: IntArray | None = None,
    farthest: float | None = None,
) -> float:
    """The sum over ordered pairs without a link of their distance, both ends available.

    With fewer sources than workers it is N/K times the sum over their rows: unbiased, since the
    sources are drawn uniformly. topology has only links between available workers.
    """
    workers = topology.workers
    count = int(available.sum())
    if len(topology.links) == count * (count - 1) // 2:
        return 0.0
    sources = np.arange(workers) if sources is None else sources
    row = _rows(workers, sources)
    absent = np.ones(distance.shape, dtype=np.bool_)
    for a, b in _both_ways(topology.links):
        tracked = row[a] >= 0
        absent[row[a[tracked]], b[tracked]] = False
    values = distance[absent]
    known = np.isfinite(values)
    if not known.all():
        values[~known] = farthest_known(distance) if farthest is None else farthest
    if count < workers:
        values[~(available[sources][:, None] & available)[absent]] = 0.0
    return float(values.sum()) * (workers / len(sources) if len(sources) < workers else 1.0)


def mean_distance(topology: Topology, distance: FloatArray, available: BoolArray) -> float:
    """(1/N^2) * the sum over ordered pairs without a link of their distance."""
    both_available = available[topology.links[:, 0]] & available[topology.links[:, 1]]
    total = absent_distance(topology.keep(both_available), distance, available)
    return total / max(1, int(available.sum())) ** 2


def update_bound(
    old: float | None, update_norms: FloatArray, *, smoothing: float, scale: float
) -> float | None:
    """The distance bound: moving average of scale * the mean norm of the workers' updates."""
    norms = update_norms[np.isfinite(update_norms)]
    if not norms.size:
        return old
    fresh = scale * float(norms.mean())
    return fresh if old is None else (1 - smoothing) * old + smoothing * fresh
