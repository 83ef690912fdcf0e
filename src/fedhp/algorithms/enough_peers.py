"""Links added to a plan so that robust mixing can withstand poisoned models.

A rule that drops the extremes needs enough models to drop some: a planner that cuts links does not
know that. The simulator and a coordinator use this alike.
"""

from __future__ import annotations

from dataclasses import replace

from fedhp.algorithms.base import Observation
from fedhp.types import Plan


def with_min_peers(plan: Plan, observation: Observation, *, least: int) -> Plan:
    """The plan with links added, the fastest first, until every present worker has at least so
    many peers."""
    exchange = plan.exchange.with_min_peers(
        observation.available,
        observation.network,
        least=least,
        round_index=observation.round_index,
    )
    return plan if exchange is plan.exchange else replace(plan, exchange=exchange)
