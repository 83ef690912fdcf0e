"""Links added to a plan so that robust mixing can withstand poisoned models.

A rule that drops the extremes needs enough models to drop some: a planner that cuts links does not
know that. The simulator and a coordinator use this alike.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedhp.algorithms.base import Observation
from fedhp.errors import ConfigError
from fedhp.graph import topology_from
from fedhp.types import DirectedMixing, IntArray, NeighborMixing, Plan, WeightedMixing


def with_min_peers(plan: Plan, observation: Observation, *, least: int) -> Plan:
    """The plan with links added, the fastest first, until every present worker has at least so
    many peers. A plan without links stays as it is: in that round nothing is mixed. Weights of an
    own algorithm cannot be completed: with too few peers they are refused."""
    exchange = plan.exchange
    if isinstance(exchange, WeightedMixing):
        _refuse_few_weights(exchange, least, observation.round_index)
    if isinstance(exchange, DirectedMixing) and least > 0:
        sources = _with_sources(exchange.sources, observation, least)
        return replace(plan, exchange=replace(exchange, sources=sources))
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


def _refuse_few_weights(exchange: WeightedMixing, least: int, round_index: int) -> None:
    counts = np.bincount(exchange.links[:, 0], minlength=len(exchange.own_weights))
    short = np.flatnonzero((counts > 0) & (counts < least))
    if len(short):
        worker = int(short[0])
        raise ConfigError(
            f"needs the models of {least} peers, but in round {round_index} the WeightedMixing of "
            f"the algorithm gives worker {worker} {counts[worker]}: poisoned models would count",
            key="exchange.robust",
            allowed=f"'none' or 'clip', or plans with at least {least} links for every worker that "
            "mixes",
            fix="plan more links, lower exchange.trim, or set exchange.robust = 'clip'",
        )


def _with_sources(sources: IntArray, observation: Observation, least: int) -> IntArray:
    """The table of sources [N, M] with the fastest others where a present worker has too few."""
    present, counts = np.flatnonzero(observation.available), (sources >= 0).sum(axis=1)
    short = present[counts[present] < least]
    if not len(short) or not counts.any():
        return sources
    room = max(0, least - sources.shape[1])
    table = np.pad(sources, ((0, 0), (0, room)), constant_values=-1)
    for worker in short.tolist():
        others = np.setdiff1d(present, [worker, *sources[worker]])
        links = np.stack([np.full(len(others), worker), others], axis=1)
        seconds = observation.network.link_time(links, directed=True)
        added = others[np.argsort(seconds, kind="stable")][: least - counts[worker]]
        table[worker, np.flatnonzero(table[worker] < 0)[: len(added)]] = added
    return table
