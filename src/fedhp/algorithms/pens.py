"""PENS (Onoszko et al., 2021): average with peers whose models do well on a worker's own data.

First stage: score random peers, average the best. Second stage: random peers of those that were
kept more often than by chance. Exchanges are directed, so the mixing is row-stochastic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedhp.algorithms.base import (
    STEPS,
    Federation,
    Observation,
    Range,
    Settings,
    Space,
)
from fedhp.algorithms.traits import About, Traits
from fedhp.config import Experiment
from fedhp.errors import ConfigError
from fedhp.exchange import DirectedMixing, Exchange, NeighborMixing, Scoring
from fedhp.exchange.mixing import pulls
from fedhp.graph import neighbor_lists, topology_from
from fedhp.seeds import Purpose, generator
from fedhp.types import (
    BoolArray,
    Decision,
    FloatArray,
    IntArray,
    LinkVerdict,
    Plan,
    Reports,
    StepReason,
    StepRule,
)

# With training.local_steps and with training.local_epochs.
SCORING_RULES = (StepRule.PEERS_SCORED, StepRule.PEERS_SCORED_EPOCHS)
NOT_SENT_BACK = (
    "is true, but a network of machines does not offer that: a worker that pulls a model does not "
    "send one back"
)


@dataclass(frozen=True, slots=True)
class PENSState:
    """How often each worker kept each peer in the first stage."""

    seed: int
    steps: int
    stage_rounds: int  # length of the first stage
    start: IntArray  # [N + 1] where each worker's peers begin
    peers: IntArray  # [2E] of the base topology, worker by worker, ascending
    kept: IntArray  # [2E] rounds in which the worker kept that peer


class PENS(Settings):
    """Performance-based neighbor selection."""

    traits: ClassVar[Traits] = Traits(local_epochs=True)
    about: ClassVar[About] = About(
        name="PENS",
        color="#CC79A7",
        dashes=(0, (5, 1, 1, 1, 1, 1)),
        marker="v",
        work=1.2,
        planners=("",),
    )
    tunable: ClassVar[Space] = {**Settings.tunable, "steps": STEPS, "stage_share": Range(0.1, 0.5)}
    steps: Annotated[int, Field(ge=1, le=100_000)] | None = None  # none: training.local_steps
    stage_share: Annotated[float, Field(ge=0, le=1)] = 0.25  # of the rounds, scoring
    peers: Annotated[int, Field(ge=1)] = 10  # scored per round
    keep: Annotated[int, Field(ge=1)] = 3
    samples: Annotated[int, Field(ge=1)] = 64
    score_cost: Annotated[float, Field(ge=0)] = 0.67  # step times per scored model
    symmetric: bool = False  # average along both directions instead of pulling

    def configured(self) -> Traits:
        return replace(
            super().configured(),
            own_steps="" if self.steps is None else "steps",
            scoring=self._scoring(),
            simulated_settings={"symmetric": NOT_SENT_BACK} if self.symmetric else {},
        )

    def _scoring(self) -> Scoring:
        return Scoring(self.keep, self.samples, self.score_cost, self.symmetric)

    def check_experiment(self, experiment: Experiment, federation: Federation) -> None:
        """Refuse Krum of the few peers that are scored and kept in the first stage: it would choose
        among too few. The other rules withstand fewer poisoned models then, and a note says so."""
        exchange, workers = experiment.exchange, experiment.workers
        if exchange.robust != "krum":
            return
        least = exchange.min_peers(workers, present=workers)
        fewest = int(federation.base_topology.degrees.min())
        counts = {"algorithm.keep": self.keep, "algorithm.peers": self.peers}
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

    def start(self, federation: Federation) -> PENSState:
        start, peers = neighbor_lists(federation.base_topology)
        return PENSState(
            seed=federation.seed,
            steps=self.steps or federation.local_steps,
            stage_rounds=round(self.stage_share * federation.rounds),
            start=start,
            peers=peers,
            kept=np.zeros(len(peers), dtype=np.int64),
        )

    def plan(
        self, state: PENSState, observation: Observation, reports: Reports
    ) -> tuple[PENSState, Plan]:
        """Score peers in the first stage, then draw from those that were kept often."""
        state = replace(state, kept=_count(state, reports.selected))
        scoring = observation.round_index <= state.stage_rounds
        if observation.share_done is not None:
            scoring = observation.share_done < self.stage_share
            if scoring:
                state = replace(state, stage_rounds=observation.round_index)
        available = observation.available
        owner = np.repeat(np.arange(len(available)), np.diff(state.start))  # [2E]
        allowed = available[owner] & available[state.peers]
        if not scoring:
            allowed &= self._often_kept(state, owner, allowed)
        sources = _draw(
            owner[allowed],
            state.peers[allowed],
            # One number per directed link, so that absences do not change the others' draws.
            generator(state.seed, Purpose.ALGORITHM, 2, observation.round_index).random(len(owner))[
                allowed
            ],
            workers=len(available),
            count=self.peers if scoring else self.keep,
        )
        exchange, verdict = self._exchange(sources, scoring=scoring)
        links = pulls(sources)
        return state, Plan(
            exchange=exchange,
            local_steps=observation.fixed_steps(state.steps),
            decision=Decision(
                links=links,
                verdicts=np.full(len(links), verdict, dtype=np.int64),
                link_time=observation.network.link_time(
                    links, np.bincount(links.ravel(), minlength=len(sources)), directed=True
                ),
                rule=self._rule(state, observation, scoring=scoring),
            ),
        )

    def _exchange(self, sources: IntArray, *, scoring: bool) -> tuple[Exchange, LinkVerdict]:
        if scoring:
            return DirectedMixing(sources, self._scoring()), LinkVerdict.SCORED
        if self.symmetric:
            topology = topology_from(len(sources), pulls(sources))
            return NeighborMixing(topology, "metropolis"), LinkVerdict.DRAWN
        return DirectedMixing(sources), LinkVerdict.DRAWN

    def _rule(self, state: PENSState, observation: Observation, *, scoring: bool) -> StepReason:
        in_epochs = observation.epoch_steps is not None
        numbers = {**observation.step_numbers(state.steps), "keep": self.keep}
        if scoring:
            return StepReason(SCORING_RULES[in_epochs], {**numbers, "peers": self.peers})
        drawn = StepRule.PEERS_DRAWN_EPOCHS if in_epochs else StepRule.PEERS_DRAWN
        return StepReason(drawn, numbers)

    def _often_kept(self, state: PENSState, owner: IntArray, allowed: BoolArray) -> BoolArray:
        """Peers kept more often than by chance; all peers for a worker that has no such peer."""
        choices = np.maximum(np.diff(state.start), 1)
        by_chance = state.stage_rounds * np.minimum(self.keep / choices, 1.0)
        often: BoolArray = state.kept > by_chance[owner]
        candidates = np.bincount(owner[often & allowed], minlength=len(choices))
        often |= (candidates == 0)[owner]
        return often


def _count(state: PENSState, selected: IntArray) -> IntArray:
    """The counts, plus one for every peer that was kept."""
    workers = len(state.start) - 1
    receivers, columns = np.nonzero(selected >= 0)
    # Worker by worker and ascending: with the worker as first digit the peers are sorted.
    owner = np.repeat(np.arange(workers), np.diff(state.start))
    wanted = receivers * workers + selected[receivers, columns]
    kept = state.kept.copy()
    kept[np.searchsorted(owner * workers + state.peers, wanted)] += 1
    return kept


def _draw(
    owner: IntArray, peers: IntArray, draws: FloatArray, *, workers: int, count: int
) -> IntArray:
    """For every worker the `count` allowed peers with the smallest draws, -1 where there are
    fewer, [N, M]; owner, peers and draws are those of the allowed links, worker by worker."""
    order = np.lexsort((draws, owner))
    sizes = np.bincount(owner, minlength=workers)
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    chosen = rank < count
    sources = np.full((workers, min(count, workers)), -1, dtype=np.int64)
    sources[owner[chosen], rank[chosen]] = peers[order][chosen]
    return sources
