"""The shape of the tree of a group average; its time and bytes are in exchange/group.py."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from fedhp.timing import Network
from fedhp.types import BoolArray, FloatArray, IntArray, Pair

FAN_OUT = 2  # children of a worker whose transfers do not share its bandwidth


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree over some workers, in the order in which they were added; the root is the first."""

    workers: IntArray  # [P]
    parents: IntArray  # [P] worker numbers, -1 for the root


def fastest_first(network: Network, available: BoolArray) -> IntArray:
    """The available workers by falling bandwidth; with bandwidth per link in Prim's order: the
    ends of the fastest link, then always the worker with the fastest link to those before."""
    workers = np.flatnonzero(available)
    if network.bandwidth.ndim == 1 or len(workers) < 2:
        speed = network.bandwidth if network.bandwidth.ndim == 1 else np.zeros(len(available))
        return workers[np.argsort(-speed[workers], kind="stable")]
    speeds = network.bandwidth[np.ix_(workers, workers)].copy()
    np.fill_diagonal(speeds, -np.inf)
    start = int(np.argmax(speeds.max(axis=1)))
    return workers[_prim(speeds, start)[0]]


def build_tree(
    network: Network,
    *,
    root: int,
    others: Sequence[int],
    leaves: Sequence[int],
    avoid: Collection[Pair] = (),
) -> Tree:
    """A tree with this root. `others` and `leaves` are in the order of fastest_first; nobody is
    added below a leaf. Over no link in `avoid` (lower worker first): whom the tree cannot reach
    otherwise is not in it."""
    if network.bandwidth.ndim == 2:
        return _by_link(network, root, others, leaves, avoid=avoid)
    members, bandwidth = [root], [float(network.bandwidth[root])]
    least = float(network.bandwidth[[root, *others, *leaves]].min())
    depth, degree, parents = [0], [0], [-1]

    def preference(position: int) -> tuple[float, float, int]:
        """The least is the best place for the next worker."""
        if not network.sharing:
            return float(degree[position] // FAN_OUT), float(depth[position]), position
        share = bandwidth[position] / (degree[position] + 1)
        if share >= 2 * least:
            return 0.0, float(depth[position]), position
        return 1.0, -share, position

    places = [preference(0)]

    def is_added(worker: int, *, inner: bool) -> bool:
        """Add a worker at the best place that it has a link to, if there is one."""
        refused = []
        while places and _is_avoided(worker, members[places[0][2]], avoid):
            refused.append(heapq.heappop(places))
        above = heapq.heappop(places)[2] if places else -1
        for place in refused:
            heapq.heappush(places, place)
        if above < 0:
            return False
        degree[above] += 1
        members.append(worker)
        bandwidth.append(float(network.bandwidth[worker]))
        parents.append(members[above])
        depth.append(depth[above] + 1)
        # The link to its parent counts where links share the bandwidth.
        degree.append(1 if network.sharing else 0)
        heapq.heappush(places, preference(above))
        if inner:
            heapq.heappush(places, preference(len(members) - 1))
        return True

    left, before = list(others), -1
    while left and len(left) != before:  # who has no place yet may have one below a later worker
        before = len(left)
        left = [worker for worker in left if not is_added(worker, inner=True)]
    for worker in leaves:
        is_added(worker, inner=False)
    return Tree(np.array(members, dtype=np.int64), np.array(parents, dtype=np.int64))


def _by_link(
    network: Network,
    root: int,
    others: Sequence[int],
    leaves: Sequence[int],
    *,
    avoid: Collection[Pair],
) -> Tree:
    """The tree whose slowest link is as fast as possible; leaves hang on their fastest link."""
    speed = network.bandwidth
    if avoid:
        speed, (first, second) = speed.copy(), np.array(sorted(avoid)).T
        speed[first, second] = speed[second, first] = -np.inf
    inner = np.array([root, *others], dtype=np.int64)
    speeds = speed[np.ix_(inner, inner)].copy()
    np.fill_diagonal(speeds, -np.inf)
    order, above = _prim(speeds, 0)
    workers = inner[order].tolist()
    parents = [-1, *inner[above[1:]].tolist()]
    reached = inner[np.sort(order)]
    for leaf in leaves:
        fastest = int(reached[np.argmax(speed[leaf, reached])])
        if speed[leaf, fastest] > -np.inf:
            workers.append(leaf)
            parents.append(fastest)
    return Tree(np.array(workers, dtype=np.int64), np.array(parents, dtype=np.int64))


def _is_avoided(a: int, b: int, avoid: Collection[Pair]) -> bool:
    return (min(a, b), max(a, b)) in avoid


def _prim(speeds: FloatArray, start: int) -> tuple[IntArray, IntArray]:
    """The order in which a maximum spanning tree grows, and the one above each in that order; as
    far as there are links, whose speed is not -inf."""
    count = len(speeds)
    best, above = speeds[start].copy(), np.full(count, start)
    best[start] = -np.inf
    added = np.zeros(count, dtype=np.bool_)
    added[start] = True
    order, parents = [start], [start]
    for _ in range(count - 1):
        chosen = int(np.argmax(np.where(added, -np.inf, best)))
        if added[chosen] or best[chosen] == -np.inf:
            break
        added[chosen] = True
        order.append(chosen)
        parents.append(int(above[chosen]))
        faster = speeds[chosen] > best
        best, above = np.where(faster, speeds[chosen], best), np.where(faster, chosen, above)
    return np.array(order, dtype=np.int64), np.array(parents, dtype=np.int64)
