"""The tree of a group average: its shape, how long a fragment takes over it, and its bytes.

The fragment travels in CHUNKS pieces, up to the root and back down at the same time: the slowest
link sets the pace, and the pieces need two more of their times per level of the tree.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from fedhp.timing import INT8_BLOCK, Network, int8_bytes
from fedhp.types import BoolArray, FloatArray, GroupAverage, IntArray, Pair

CHUNKS = 128
INT8_SHARE = 1 / 4 + 1 / INT8_BLOCK  # one byte per value, and a scale of 32 bits per block
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


def message_bits(group: GroupAverage, model_bits: float) -> float:
    """Bits of a fragment as a message of the tree, up or down."""
    return model_bits / group.fragments * (1 if group.compression == "none" else INT8_SHARE)


def group_time(group: GroupAverage, network: Network, *, jitter: FloatArray | None = None) -> float:
    """Seconds until the last participant has the new consensus. jitter: by how much each link of
    group.links takes longer, [E]."""
    streaming = streaming_time(group, network, jitter=jitter)
    return streaming + tree_latency(group, network.latency)


def streaming_time(
    group: GroupAverage, network: Network, *, jitter: FloatArray | None = None
) -> float:
    """The part of group_time that the bandwidth sets; 0 where nothing travels."""
    if len(group.participants) < 2:
        return 0.0
    seconds = _link_seconds(group, network)
    if jitter is not None:
        seconds = seconds[_link_order(group)] * jitter
    slowest = float(seconds.max())
    return slowest * (1 + 2 * tree_depth(group) / CHUNKS)


def tree_latency(group: GroupAverage, latency: float) -> float:
    """The part of group_time that does not depend on the bandwidth: one latency per hop."""
    return 2 * tree_depth(group) * latency if len(group.participants) else 0.0


def link_times(group: GroupAverage, network: Network) -> FloatArray:
    """Seconds that each link of group.links needs for its messages, [E]."""
    seconds = _link_seconds(group, network) + network.latency
    return np.asarray(seconds[_link_order(group)])


def link_bytes(group: GroupAverage, model_bits: float) -> IntArray:
    """Bytes over each link of group.links, up and down together, [E]."""
    values = round(model_bits / 32)
    first, last = (
        part * values // group.fragments for part in (group.fragment, group.fragment + 1)
    )
    message = 4 * (last - first) if group.compression == "none" else int8_bytes(last - first)
    return np.full(len(group.links), 2 * message, dtype=np.int64)


def tree_depth(group: GroupAverage) -> int:
    """Links between the root and the farthest participant."""
    above = dict(zip(group.participants.tolist(), group.parents.tolist(), strict=True))
    depth: dict[int, int] = {-1: -1}
    for worker in above:
        path = []
        while worker not in depth:
            path.append(worker)
            worker = above[worker]
        for node in reversed(path):
            depth[node] = depth[above[node]] + 1
    return max(depth.values())


def _link_seconds(group: GroupAverage, network: Network) -> FloatArray:
    """Seconds of each participant's link to its parent, the root left out; without latency."""
    message = message_bits(group, network.model_bits)
    below = group.parents >= 0
    child, parent = group.participants[below], group.parents[below]
    lower = upper = np.full(len(child), message)
    if network.sharing:
        # What a worker sends goes over its bandwidth, and what it receives, both at once.
        degree = np.bincount(np.concatenate([child, parent]), minlength=len(network.bandwidth))
        lower, upper = message * degree[child], message * degree[parent]
    if network.bandwidth.ndim == 1:
        by_child, by_parent = lower / network.bandwidth[child], upper / network.bandwidth[parent]
        return np.asarray(np.maximum(by_child, by_parent))
    return np.asarray(np.maximum(lower, upper) / network.bandwidth[child, parent])


def _link_order(group: GroupAverage) -> IntArray:
    """How the links, by their lower end, are sorted in group.links."""
    below = group.parents >= 0
    ends = np.stack([group.participants[below], group.parents[below]], axis=1)
    ends.sort(axis=1)
    return np.lexsort((ends[:, 1], ends[:, 0]))
