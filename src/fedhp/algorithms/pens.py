"""PENS (Onoszko et al., 2021): talk to peers whose models do well on your own data.

First stage: score random peers, average the best. Then: random ones of the peers that were
kept more often than by chance. Directed, so the mixing is row-stochastic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from pydantic import Field

from fedhp.algorithms.base import Federation, Observation, Settings
from fedhp.graph import topology_from
from fedhp.seeds import Purpose, generator
from fedhp.types import (
    BoolArray,
    Decision,
    DirectedMixing,
    Exchange,
    IntArray,
    LinkVerdict,
    NeighborMixing,
    PeerScoring,
    Plan,
    Reports,
)


@dataclass(frozen=True, slots=True)
class PENSState:
    """How often each worker kept each peer in the first stage."""

    seed: int
    steps: int
    stage_rounds: int  # length of the first stage
    kept: IntArray  # [N, N] rounds in which i kept j
    reachable: BoolArray  # [N, N] links of the base topology


class PENS(Settings):
    """Performance-based neighbor selection."""

    steps: Annotated[int, Field(ge=1, le=100_000)] | None = None  # none: training.local_steps
    stage_share: Annotated[float, Field(ge=0, le=1)] = 0.25  # of the rounds, scoring
    peers: Annotated[int, Field(ge=1)] = 10  # scored per round
    keep: Annotated[int, Field(ge=1)] = 3
    samples: Annotated[int, Field(ge=1)] = 64
    score_cost: Annotated[float, Field(ge=0)] = 0.67  # step times per scored model
    symmetric: bool = False  # average along both directions instead of pulling

    def start(self, federation: Federation) -> PENSState:
        """Nobody is known yet."""
        return PENSState(
            seed=federation.seed,
            steps=self.steps or federation.local_steps,
            stage_rounds=round(self.stage_share * federation.rounds),
            kept=np.zeros((federation.workers, federation.workers), dtype=np.int64),
            reachable=federation.base_topology.adjacency,
        )

    def plan(
        self, state: PENSState, observation: Observation, reports: Reports
    ) -> tuple[PENSState, Plan]:
        """Score peers in the first stage, then draw from those that proved good."""
        state = replace(state, kept=_count(state.kept, reports.selected))
        scoring = observation.round_index <= state.stage_rounds
        allowed = state.reachable & observation.available & observation.available[:, None]
        if not scoring:
            allowed &= self._proved(state, allowed)
        sources = _draw(
            allowed,
            self.peers if scoring else self.keep,
            rng=generator(state.seed, Purpose.ALGORITHM, 2, observation.round_index),
        )
        exchange, verdict, rule = self._exchange(sources, scoring=scoring)
        receivers, columns = np.nonzero(sources >= 0)
        links = np.stack([receivers, sources[receivers, columns]], axis=1)
        steps = np.where(observation.available, state.steps, 0).astype(np.int64)
        return state, Plan(
            exchange=exchange,
            local_steps=steps,
            decision=Decision(
                links=links,
                verdicts=np.full(len(links), verdict, dtype=np.int64),
                link_time=observation.network.link_time(
                    links, np.bincount(links.ravel(), minlength=len(sources))
                ),
                rule=f"every worker takes {state.steps} steps; {rule}",
            ),
        )

    def _exchange(self, sources: IntArray, *, scoring: bool) -> tuple[Exchange, LinkVerdict, str]:
        if scoring:
            rule = f"first stage: {self.peers} random peers scored, the {self.keep} best averaged"
            exchange: Exchange = PeerScoring(
                candidates=sources,
                keep=self.keep,
                samples=self.samples,
                cost_per_candidate=self.score_cost,
                symmetric=self.symmetric,
            )
            return exchange, LinkVerdict.SCORED, rule
        rule = f"second stage: {self.keep} random ones of the peers kept more often than by chance"
        if self.symmetric:
            receivers, columns = np.nonzero(sources >= 0)
            pairs = np.stack([receivers, sources[receivers, columns]], axis=1)
            topology = topology_from(len(sources), pairs)
            return NeighborMixing(topology, "metropolis"), LinkVerdict.DRAWN, rule
        return DirectedMixing(sources), LinkVerdict.DRAWN, rule

    def _proved(self, state: PENSState, allowed: BoolArray) -> BoolArray:
        """Peers kept more often than by chance; all of them for a worker that has none."""
        choices = np.maximum(state.reachable.sum(axis=1), 1)
        by_chance = state.stage_rounds * np.minimum(self.keep / choices, 1.0)
        proved: BoolArray = state.kept > by_chance[:, None]
        none_left = ~(proved & allowed).any(axis=1)
        proved[none_left] = True
        return proved


def _count(kept: IntArray, selected: IntArray) -> IntArray:
    kept = kept.copy()
    receivers, columns = np.nonzero(selected >= 0)
    kept[receivers, selected[receivers, columns]] += 1
    return kept


def _draw(allowed: BoolArray, count: int, *, rng: np.random.Generator) -> IntArray:
    """Up to `count` random allowed peers of every worker, -1 where there are fewer, [N, M]."""
    order = np.argsort(np.where(allowed, rng.random(allowed.shape), np.inf), axis=1)
    columns = min(count, allowed.shape[1])
    drawn = order[:, :columns]
    missing = np.arange(columns)[None, :] >= allowed.sum(axis=1)[:, None]
    return np.where(missing, -1, drawn).astype(np.int64)
