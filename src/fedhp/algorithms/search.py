"""The planner's search over topologies: Algorithm 3 of the paper, as settled.

Start from the base topology; drop the slowest links a batch at a time while the graph stays
connected and within the distance bound; accept a batch if the objective falls. Every link
leaves with the reason why it was cut or kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt

import numpy as np

from fedhp.algorithms.pace import Assignment
from fedhp.graph import joined, neighbor_lists
from fedhp.timing import Network
from fedhp.types import BoolArray, FloatArray, IntArray, LinkVerdict, Topology

MAX_ITERATIONS = 10_000


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The topology that was found, its steps, and why each base link is in or out."""

    topology: Topology
    base_links: IntArray  # [E, 2]
    assignment: Assignment
    verdicts: IntArray  # [E] of the base topology's links, LinkVerdict
    mean_distance: float  # of the pairs left without a link
    base_objective: float
    iterations: int


Assign = Callable[[FloatArray], Assignment]  # communication time [N] -> steps


def search(
    base: Topology,
    *,
    network: Network,
    distance: FloatArray,
    distance_bound: float | None,
    members: int,
    assign: Assign,
) -> SearchResult:
    """Algorithm 3. distance is [N, N]; members is the N of the bound; no bound, no cut."""
    links = base.links
    present = np.ones(len(links), dtype=np.bool_)
    verdicts = np.full(len(links), LinkVerdict.KEPT_UNTRIED, dtype=np.int64)
    best = assign(network.communication_time(base))
    base_objective = best.objective
    walk = _Walk(base, distance, distance_bound, members)
    if distance_bound is None or walk.base_mean > distance_bound:
        verdicts[:] = LinkVerdict.KEPT_ALL
        return SearchResult(base, links, best, verdicts, walk.base_mean, base_objective, 0)
    improved, search_step, iterations = True, 0, 0
    while iterations < MAX_ITERATIONS:
        # Ordered pairs count each link twice: 870 for a full graph of 30, so 29 at first.
        search_step = isqrt(2 * int(present.sum())) if improved else search_step // 2
        if search_step == 0:
            break
        iterations += 1
        link_time = network.link_time(links, base.keep(present).degrees)
        removed = walk.remove(present, link_time, verdicts, count=search_step)
        trial_present = present & ~removed
        trial = assign(network.communication_time(base.keep(trial_present)))
        improved = bool(removed.any()) and trial.objective < best.objective
        if improved:
            present, best = trial_present, trial
            verdicts[removed] = LinkVerdict.CUT
        else:
            verdicts[removed] = LinkVerdict.KEPT_NO_GAIN
            if search_step == 1:
                break
    return SearchResult(
        topology=base.keep(present),
        base_links=links,
        assignment=best,
        verdicts=verdicts,
        mean_distance=walk.mean(present),
        base_objective=base_objective,
        iterations=iterations,
    )


class _Walk:
    """Chooses the slowest links that may go: connectivity and the bound hold at each one."""

    def __init__(
        self, base: Topology, distance: FloatArray, distance_bound: float | None, members: int
    ) -> None:
        self.links = base.links
        self.workers = base.workers
        self.link_distance = distance[self.links[:, 0], self.links[:, 1]]
        self.squared = max(1, members) ** 2
        self.bound = distance_bound
        # Pairs without a base link count always; both orders of a pair count.
        self.base_sum = float(distance[~base.adjacency].sum())

    @property
    def base_mean(self) -> float:
        return self.base_sum / self.squared

    def mean(self, present: BoolArray) -> float:
        return (self.base_sum + 2 * float(self.link_distance[~present].sum())) / self.squared

    def remove(
        self, present: BoolArray, link_time: FloatArray, verdicts: IntArray, *, count: int
    ) -> BoolArray:
        """Up to `count` links to remove, slowest first, ties by smaller distance."""
        removed = np.zeros(len(self.links), dtype=np.bool_)
        order = np.lexsort((self.link_distance, -link_time))
        masks = neighbor_lists(self.links[present].tolist(), self.workers)
        total = self.mean(present) * self.squared
        left = count
        for index in order[present[order]].tolist():
            if left == 0:
                break
            step = 2 * float(self.link_distance[index])
            if self.bound is not None and (total + step) / self.squared > self.bound:
                verdicts[index] = LinkVerdict.KEPT_BOUND
                continue
            a, b = self.links[index].tolist()
            masks[a] ^= 1 << b
            masks[b] ^= 1 << a
            if joined(masks, a, b):
                removed[index] = True
                total += step
                left -= 1
            else:
                masks[a] ^= 1 << b
                masks[b] ^= 1 << a
                verdicts[index] = LinkVerdict.KEPT_BRIDGE
        return removed
