"""Your own exchange: SGP (stochastic gradient push) on a directed exponential graph.

In round h every worker sends its model to one other only, 2^(h mod log2 N) further on, and keeps
half of it: the weights sum to 1 by sender. Push-sum corrects what that does to the mean.
Run it: fedhp run examples/push_sum.toml
Compare it: fedhp compare examples/push_sum.toml --algorithms push_sum:SGP,push_sum:Tracking,dpsgd
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedhp import Decision, Federation, Observation, Plan, Reports, WeightedMixing
from fedhp.algorithms import Traits
from fedhp.rule import PushSum, Rule
from fedhp.rule import Tracking as SideVector
from fedhp.types import IntArray, LinkVerdict


@dataclass(frozen=True, slots=True)
class Steps:
    """Nothing changes from round to round."""

    local_steps: int


class SGP:
    """One peer per round; a scalar weight travels with every model."""

    traits: ClassVar = Traits(uses_rounds=False)

    def rule(self) -> Rule:
        """The weight is part of the model rows and of checkpoints."""
        return PushSum()

    def start(self, federation: Federation) -> Steps:
        """The state before round 1."""
        return Steps(federation.local_steps)

    def plan(self, state: Steps, observation: Observation, reports: Reports) -> tuple[Steps, Plan]:
        """The one-peer exponential graph of the workers that are there."""
        links = one_peer_links(observation)
        own = np.ones(len(observation.available))
        own[links[:, 1]] = 0.5  # a sender keeps half of its model
        exchange = WeightedMixing(links, np.full(len(links), 0.5), own, push_sum=True)
        return state, plan_of(state, observation, exchange)


class Tracking:
    """Gradient tracking: a side vector travels with every model, over links in both directions."""

    traits: ClassVar = Traits(uses_rounds=False)

    def rule(self) -> Rule:
        """y <- y + change - last change: y travels, and the last change stays with the worker."""
        return SideVector()

    def start(self, federation: Federation) -> Steps:
        """The state before round 1."""
        return Steps(federation.local_steps)

    def plan(self, state: Steps, observation: Observation, reports: Reports) -> tuple[Steps, Plan]:
        """Equal weights for a worker and the two at its sides on a ring."""
        present = np.flatnonzero(observation.available)
        pairs = [*zip(present, np.roll(present, 1), strict=True)]
        both = {(int(a), int(b)) for a, b in pairs if a != b}
        links = np.array(sorted(both | {(b, a) for a, b in both}), dtype=np.int64).reshape(-1, 2)
        weights = np.full(len(links), 1 / 3)
        taken = np.bincount(links[:, 0], minlength=len(observation.available)) / 3
        return state, plan_of(state, observation, WeightedMixing(links, weights, 1 - taken))


def one_peer_links(observation: Observation) -> IntArray:
    """(receiver, sender), [N, 2]: everyone sends to the one 2^k further on."""
    present = np.flatnonzero(observation.available)
    if len(present) < 2:
        return np.empty((0, 2), dtype=np.int64)
    hops = max(1, int(np.ceil(np.log2(len(present)))))
    hop = 2 ** ((observation.round_index - 1) % hops) % len(present)
    links = np.stack([np.roll(present, -hop), present], axis=1)
    return np.asarray(links[links[:, 0] != links[:, 1]], dtype=np.int64)


def plan_of(state: Steps, observation: Observation, exchange: WeightedMixing) -> Plan:
    """Fixed steps, and an exchange whose links need no reason."""
    links = exchange.links
    return Plan(
        exchange=exchange,
        local_steps=np.where(observation.available, state.local_steps, 0),
        decision=Decision(
            links=links,
            verdicts=np.full(len(links), LinkVerdict.FIXED, dtype=np.int64),
            link_time=observation.network.link_time(links),
            rule="fixed steps; one weighted exchange",
        ),
    )
