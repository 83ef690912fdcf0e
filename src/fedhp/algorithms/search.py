"""The planner's search over topologies: Algorithm 3 of the paper, with this project's objective.

Start from the base topology; drop the slowest links a batch at a time while the graph stays
connected and within the distance bound; accept a batch if the objective falls. Every link gets
a verdict: why it was cut or kept. walk.py decides which links may go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt

import numpy as np

from fedhp.algorithms.pace import Assignment
from fedhp.algorithms.walk import Bound, Walk
from fedhp.timing import Network, slowest_link
from fedhp.types import FloatArray, IntArray, LinkVerdict, Topology


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The topology that was found, its steps, and why each base link is cut or kept."""

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
    link_distance: FloatArray,
    absent_distance: float,
    distance_bound: float | None,
    members: int,
    assign: Assign,
) -> SearchResult:
    """Algorithm 3. link_distance is [E], of the base links; absent_distance the sum over the
    ordered pairs without a base link; members the N of the bound. Without a bound, no cut."""
    links = base.links
    verdicts = np.full(len(links), LinkVerdict.KEPT_UNTRIED, dtype=np.int64)
    link_time = network.link_time(links, base.degrees)
    best = assign(slowest_link(base.workers, links, link_time))
    base_objective = best.objective
    squared = max(1, members) ** 2
    apart = absent_distance / squared
    if distance_bound is None or apart > distance_bound:
        verdicts[:] = LinkVerdict.KEPT_ALL
        return SearchResult(base, links, best, verdicts, apart, base_objective, 0)
    walk = Walk(
        base,
        link_time=link_time,
        link_distance=link_distance,
        absent_distance=absent_distance,
        bound=Bound(squared, distance_bound),
        depth=_depth(len(links)) if network.sharing else None,
    )
    improved, search_step, iterations = True, 0, 0
    while True:
        # Ordered pairs count each link twice: 870 for a full graph of 30 workers, so 29 at first.
        search_step = isqrt(2 * walk.links_left) if improved else search_step // 2
        if search_step == 0:
            break
        iterations += 1
        removed, stayed, reasons = walk.look(search_step)
        if network.sharing:  # with fewer transfers at once, every link is faster
            present = walk.present.copy()
            present[removed] = False
            rest = base.keep(present)
            link_time = network.link_time(rest.links, rest.degrees)
            communication = slowest_link(base.workers, rest.links, link_time)
        else:
            communication = walk.slowest(search_step)
        trial = assign(communication)
        improved = len(removed) > 0 and trial.objective < best.objective
        # A link that was needed on the way to a rejected topology may not be needed in the
        # result; only the last and smallest step shows the result.
        if improved or search_step == 1:
            verdicts[stayed] = reasons
        if improved:
            best = trial
            verdicts[removed] = LinkVerdict.CUT
            walk.commit(search_step)
            if network.sharing:
                walk.reorder(link_time, _depth(walk.links_left))
        else:
            verdicts[removed] = LinkVerdict.KEPT_NO_GAIN
            if search_step == 1:
                break
    return SearchResult(
        topology=base.keep(walk.present),
        base_links=links,
        assignment=best,
        verdicts=verdicts,
        mean_distance=walk.absent_distance / squared,
        base_objective=base_objective,
        iterations=iterations,
    )


def _depth(links: int) -> int:
    """How many links the next look will probably need, including bridges and far ones."""
    return 2 * isqrt(2 * links) + 64
