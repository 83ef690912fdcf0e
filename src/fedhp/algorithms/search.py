"""The planner's search over topologies: Algorithm 3 of the paper, as settled.

Start from the base topology; drop the slowest links a batch at a time while the graph stays
connected and within the distance bound; accept a batch if the objective falls. Every link
leaves with the reason why it was cut or kept. walk.py says which links may go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt

import numpy as np

from fedhp.algorithms.pace import Assignment
from fedhp.algorithms.walk import Walk
from fedhp.timing import Network
from fedhp.types import FloatArray, IntArray, LinkVerdict, Topology


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
    verdicts = np.full(len(links), LinkVerdict.KEPT_UNTRIED, dtype=np.int64)
    best = assign(network.communication_time(base))
    base_objective = best.objective
    squared = max(1, members) ** 2
    # Pairs without a base link count always; both orders of a pair count.
    absent = float(distance[~base.adjacency].sum())
    if distance_bound is None or absent / squared > distance_bound:
        verdicts[:] = LinkVerdict.KEPT_ALL
        return SearchResult(base, links, best, verdicts, absent / squared, base_objective, 0)
    walk = Walk(
        base,
        link_time=network.link_time(links, base.degrees),
        link_distance=distance[links[:, 0], links[:, 1]],
        absent_distance=absent,
        allowed_distance=lambda total: total / squared <= distance_bound,
    )
    improved, search_step, iterations = True, 0, 0
    while True:
        # Ordered pairs count each link twice: 870 for a full graph of 30, so 29 at first.
        search_step = isqrt(2 * walk.links_left) if improved else search_step // 2
        if search_step == 0:
            break
        iterations += 1
        trial_walk, trial_verdicts = walk.copy(), verdicts.copy()
        removed = trial_walk.remove(search_step, trial_verdicts)
        communication = (
            network.communication_time(base.keep(trial_walk.present))
            if network.sharing
            else trial_walk.slowest_links()
        )
        trial = assign(communication)
        improved = len(removed) > 0 and trial.objective < best.objective
        if improved:
            walk, best, verdicts = trial_walk, trial, trial_verdicts
            verdicts[removed] = LinkVerdict.CUT
            if network.sharing:  # with fewer transfers at once, every link is faster
                walk.reorder(network.link_time(links, base.keep(walk.present).degrees))
        else:
            if search_step == 1:  # what had to stay here had to stay in the result, too
                verdicts = trial_verdicts
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
