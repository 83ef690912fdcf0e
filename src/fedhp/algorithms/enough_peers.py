"""Links added to a plan so that robust mixing can withstand poisoned models.

A rule that drops the extremes needs enough models to drop some: a planner that cuts links does not
know that. PENS keeps few peers by itself, and is refused where they are too few for Krum. The
simulator and a coordinator use this alike.
"""

from __future__ import annotations

from dataclasses import replace

from fedhp.algorithms.base import Algorithm, AsyncAlgorithm, Federation, Observation
from fedhp.algorithms.pens import PENS
from fedhp.config import Experiment
from fedhp.errors import ConfigError
from fedhp.types import Plan


def check_enough_peers(
    algorithm: Algorithm | AsyncAlgorithm, federation: Federation, experiment: Experiment
) -> None:
    """Refuse Krum of the few peers that PENS scores and keeps in its first stage: it would choose
    among too few. The other rules withstand fewer poisoned models then, and a note says so."""
    exchange, workers = experiment.exchange, experiment.workers
    if not isinstance(algorithm, PENS) or exchange.robust != "krum":
        return
    least = exchange.min_peers(workers, present=workers)
    fewest = int(federation.base_topology.degrees.min())
    counts = {"algorithm.keep": algorithm.keep, "algorithm.peers": algorithm.peers}
    short = [f"{key} is {count}" for key, count in counts.items() if count < least]
    fix = f"set algorithm.keep = {least} and algorithm.peers to at least as much"
    if not short and fewest < least:
        short = [f"a worker has only {fewest} neighbors in [topology]"]
        fix = "set topology.name = 'full'"
    if short:
        raise ConfigError(
            f"is 'krum', which needs the models of {least} peers to withstand "
            f"{exchange.max_poisoned(workers)} poisoned ones, but {' and '.join(short)}",
            key="exchange.robust",
            allowed=f"another rule, or at least {least} peers that PENS scores and keeps",
            fix=f"{fix}, lower exchange.trim, or set exchange.robust = 'trimmed_mean'",
        )


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
