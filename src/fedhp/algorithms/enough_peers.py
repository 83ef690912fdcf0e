"""Links added to a plan so that robust mixing can withstand poisoned models.

A rule that drops the extremes needs enough models to drop some: a planner that cuts links does not
know that. The simulator and a coordinator use this alike.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedhp.algorithms.base import Observation
from fedhp.graph import topology_from
from fedhp.types import NeighborMixing, Plan


def with_min_peers(plan: Plan, observation: Observation, *, least: int) -> Plan:
    """The plan with links added, the fastest first, until every present worker has at least so
    many peers. A plan without links stays as it is: in that round nothing is mixed."""
    exchange = plan.exchange
    if not isinstance(exchange, NeighborMixing) or least <= 0 or not len(exchange.topology.links):
        return plan
    degrees = exchange.topology.degrees.copy()
    present = np.flatnonzero(observation.available)
    if (degrees[present] >= least).all():
        return plan
    first, second = np.triu_indices(len(present), 1)
    pairs = np.stack([present[first], present[second]], axis=1).astype(np.int64)
    fastest_first = np.argsort(observation.network.link_time(pairs), kind="stable")
    links = {(int(a), int(b)) for a, b in exchange.topology.links}
    for a, b in pairs[fastest_first].tolist():
        if (a, b) not in links and min(degrees[a], degrees[b]) < least:
            links.add((a, b))
            degrees[[a, b]] += 1
    topology = topology_from(exchange.topology.workers, sorted(links))
    return replace(plan, exchange=replace(exchange, topology=topology))
