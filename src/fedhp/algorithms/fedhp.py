"""FedHP, the coordinator's side (Algorithm 2): learn from the reports, then plan.

pace.py has the step rules, search.py Algorithm 3. The defaults are this project's reading of the
paper; the paper's own can be selected: planner, pace, bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedhp.algorithms.base import (
    Federation,
    Observation,
    Range,
    Settings,
    Space,
    expected_rounds,
)
from fedhp.algorithms.pace import Assignment, fill, literal, moving_average, opt, raw_pace
from fedhp.algorithms.search import SearchResult, search
from fedhp.algorithms.traits import About, Traits
from fedhp.distance import (
    absent_distance,
    complete,
    distances_over,
    farthest_known,
    unknown,
    update_bound,
    update_distance,
    update_link_distance,
)
from fedhp.exchange import NeighborMixing
from fedhp.graph import MixingRule
from fedhp.seeds import Purpose, generator
from fedhp.timing import median_steps
from fedhp.types import (
    BoolArray,
    Decision,
    FloatArray,
    IntArray,
    Plan,
    Reports,
    Topology,
)

# Up to this many workers the distances of all pairs are kept, [N, N]; above, only some rows.
ALL_PAIRS = 2_000
SAMPLED_SOURCES = 256
# The distances of pairs are left out of a condensed state if they are as many times the links.
CONDENSED_SHARE = 8
MAX_STEPS = 100  # of a worker in a round, by default


@dataclass(frozen=True, slots=True)
class FedHPState:
    """What the coordinator keeps between rounds; NaN means not measured yet."""

    workers: int
    rounds: int
    initial_steps: int
    base_links: IntArray  # [E, 2]
    step_time: FloatArray  # [N] s
    probe_order: IntArray  # [N] the order in which workers take turns at measuring
    sources: IntArray  # [K] the workers whose distances to all others are kept, ascending
    distance: FloatArray  # [K, N] of the sources
    link_distance: FloatArray  # [E] of the base links
    distance_bound: float
    smoothness: float
    gradient_variance: float
    initial_loss: float
    learning_rate: float  # of the last planned round
    first_raw_pace: float


class FedHP(Settings):
    """Adaptive steps and topology for every worker, every round."""

    traits: ClassVar[Traits] = Traits(local_epochs=True)
    about: ClassVar[About] = About(
        name="FedHP",
        color="#D55E00",
        dashes="-",
        marker="o",
        width=2.0,
        order=5.0,
        favourite=1,
        work=1.8,
        most_steps=MAX_STEPS,
        planners=("deadline=opt", "deadline=fill"),
    )
    tunable: ClassVar[Space] = {
        **Settings.tunable,
        "deadline": ("opt", "fill"),
        "max_steps": Range(20, 500),
    }
    planner: Literal["settled", "literal"] = "settled"
    deadline: Literal["opt", "fill"] = "opt"
    pace: Literal["ratio", "formula", "fixed"] = "ratio"
    initial_steps: Annotated[int, Field(ge=1, le=100_000)] | None = (
        None  # none: training.local_steps
    )
    max_steps: Annotated[int, Field(ge=1, le=100_000)] = MAX_STEPS
    weights: MixingRule = "max_degree"
    distance_smoothing: Annotated[float, Field(ge=0, le=1)] = 0.5  # beta_1
    bound_smoothing: Annotated[float, Field(ge=0, le=1)] = 0.5  # beta_2
    bound: Literal["update", "gradient", "none"] = "update"  # gradient: without eta
    bound_scale: Annotated[float, Field(ge=0)] = 0.5  # the paper: bound "gradient", scale 1.0
    waiting_tolerance: Annotated[float, Field(ge=0, le=1)] | None = None  # share of the round
    estimate_every: Annotated[int, Field(ge=1)] = 2  # rounds
    # How many workers measure in an estimating round after the first; none: all.
    probe_workers: Annotated[int, Field(ge=1)] | None = 10
    smoothing: Annotated[float, Field(gt=0, le=1)] = 0.5  # of step times and estimates
    # Of how many workers the distances are kept; none: of all up to 2,000, otherwise of 256.
    distance_sources: Annotated[int, Field(ge=1)] | None = None

    def configured(self) -> Traits:
        """The steps follow a pace, and with it training.local_steps, unless the deadline sets
        them alone."""
        paced = (self.deadline, self.planner) != ("opt", "settled")
        return replace(
            super().configured(),
            local_work=paced,
            own_steps="" if self.initial_steps is None else "initial_steps",
            uses_estimates=paced,
            distance_smoothing=self.distance_smoothing,
        )

    def start(self, federation: Federation) -> FedHPState:
        """Only the base topology is known."""
        nan = float("nan")
        workers, links = federation.workers, federation.base_topology.links
        sources = self._sources(federation)
        return FedHPState(
            workers=workers,
            rounds=federation.rounds,
            initial_steps=self.initial_steps or federation.local_steps,
            base_links=links,
            step_time=np.full(workers, nan),
            probe_order=generator(federation.seed, Purpose.ALGORITHM, 4).permutation(workers),
            sources=sources,
            distance=unknown(workers, sources),
            link_distance=np.full(len(links), nan),
            distance_bound=nan,
            smoothness=nan,
            gradient_variance=nan,
            initial_loss=nan,
            learning_rate=nan,
            first_raw_pace=nan,
        )

    def condense(self, state: FedHPState) -> FedHPState:
        """Without the distances of pairs, where there are far more pairs than links."""
        if state.distance.size < CONDENSED_SHARE * len(state.base_links):
            return state
        return replace(state, distance=state.distance[:0])

    def expand(self, state: FedHPState) -> FedHPState:
        """With the distances of pairs estimated from those of the links."""
        if len(state.distance) == len(state.sources):
            return state
        links, known = state.base_links, state.link_distance
        distance = distances_over(links, known, workers=state.workers, sources=state.sources)
        return replace(state, distance=distance)

    def _sources(self, federation: Federation) -> IntArray:
        """All workers, or a sample drawn once, whose distances are then estimates."""
        workers = federation.workers
        count = self.distance_sources or (workers if workers <= ALL_PAIRS else SAMPLED_SOURCES)
        if count >= workers:
            return np.arange(workers)
        rng = generator(federation.seed, Purpose.ALGORITHM, 3)
        return np.sort(rng.choice(workers, count, replace=False))

    def plan(
        self, state: FedHPState, observation: Observation, reports: Reports
    ) -> tuple[FedHPState, Plan]:
        """One round of Algorithm 2. Round 1 keeps the base topology: every pair is measured."""
        if observation.share_done and observation.round_index == 2:
            # Once: raw(h) / raw(1) needs the same number of rounds in both.
            rounds = expected_rounds(observation.round_index, observation.share_done)
            state = replace(state, rounds=rounds)
        if observation.epoch_steps is not None and observation.round_index == 1:
            state = replace(state, initial_steps=median_steps(observation.epoch_steps))
        state = self._learn(state, reports)
        state = replace(state, learning_rate=observation.learning_rate)
        present = observation.available
        pace_steps = self._pace_steps(state)
        step_time = state.step_time[present]
        base, link_distance = Topology(state.workers, state.base_links), state.link_distance
        if not present.all():
            usable = present[base.links[:, 0]] & present[base.links[:, 1]]
            base, link_distance = base.keep(usable), link_distance[usable]
        farthest = farthest_known(state.distance, link_distance)
        link_distance = complete(link_distance, farthest)
        first = reports.round_index == 0
        bound = np.inf if self.bound == "none" else state.distance_bound
        result = search(
            base,
            network=observation.network,
            link_distance=link_distance,
            absent_distance=absent_distance(
                base, state.distance, present, sources=state.sources, farthest=farthest
            ),
            distance_bound=None if first or np.isnan(bound) else float(bound),
            members=int(present.sum()),
            assign=lambda communication: self._assign(
                step_time, communication[present], pace_steps
            ),
        )
        local_steps = np.zeros(state.workers, dtype=np.int64)
        local_steps[present] = result.assignment.local_steps
        return state, Plan(
            exchange=NeighborMixing(result.topology, self.weights),
            local_steps=local_steps,
            deadline=result.assignment.deadline,
            decision=self._decision(
                state, observation, result, link_distance, local_steps, pace_steps
            ),
            estimate=self._estimating(state, observation.round_index, present),
        )

    def _estimating(
        self, state: FedHPState, round_index: int, present: BoolArray
    ) -> BoolArray | None:
        """Which workers measure smoothness and variance: all in round 1, because raw(1) is the
        reference of later rounds; then a few at a time, in turn."""
        turn, rest = divmod(round_index - 1, self.estimate_every)
        if rest:
            return None
        count = self.probe_workers
        if turn == 0 or count is None or count >= state.workers:
            return present.copy()
        queue = np.roll(state.probe_order, -(turn - 1) * count)
        chosen = np.zeros(state.workers, dtype=np.bool_)
        chosen[queue[present[queue]][:count]] = True
        return chosen

    def _learn(self, state: FedHPState, reports: Reports) -> FedHPState:
        """Algorithm 2, lines 3-5, and the updates of the distances and the bound."""
        norms = reports.update_norm
        if self.bound == "gradient" and np.isfinite(state.learning_rate):
            norms = norms / state.learning_rate
        old_bound = None if np.isnan(state.distance_bound) else state.distance_bound
        bound = update_bound(
            old_bound, norms, smoothing=self.bound_smoothing, scale=self.bound_scale
        )
        if len(reports.links):
            state = self._learn_distances(state, reports)
        state = replace(
            state,
            step_time=moving_average(state.step_time, reports.step_time, self.smoothing),
            distance_bound=float("nan") if bound is None else bound,
            smoothness=_blend(state.smoothness, _median(reports.smoothness), self.smoothing),
            gradient_variance=_blend(
                state.gradient_variance, _mean(reports.gradient_variance), self.smoothing
            ),
        )
        if np.isnan(state.initial_loss):
            state = replace(state, initial_loss=_mean(reports.start_loss))
        if np.isnan(state.first_raw_pace):
            state = replace(state, first_raw_pace=self._raw_pace(state))
        return state

    def _learn_distances(self, state: FedHPState, reports: Reports) -> FedHPState:
        distance = update_distance(
            state.distance,
            reports.links,
            reports.distance,
            smoothing=self.distance_smoothing,
            sources=state.sources,
        )
        link_distance = update_link_distance(
            state.link_distance,
            state.base_links,
            reports.links,
            reports.distance,
            smoothing=self.distance_smoothing,
            rows=distance,
            sources=state.sources,
        )
        return replace(state, distance=distance, link_distance=link_distance)

    def _raw_pace(self, state: FedHPState) -> float:
        return raw_pace(
            workers=state.workers,
            initial_loss=state.initial_loss,
            smoothness=state.smoothness,
            rounds=state.rounds,
            learning_rate=state.learning_rate,
            gradient_variance=state.gradient_variance,
        )

    def _pace_steps(self, state: FedHPState) -> float:
        """clip(initial_steps * raw(h) / raw(1), 1, max_steps), or the paper's absolute value."""
        wanted = float(state.initial_steps)
        raw = self._raw_pace(state)
        if np.isfinite(raw):
            if self.pace == "formula" or self.planner == "literal":
                wanted = raw
            elif self.pace == "ratio" and state.first_raw_pace > 0:
                wanted = state.initial_steps * raw / state.first_raw_pace
        return float(np.clip(wanted, 1, self.max_steps))

    def _assign(
        self, step_time: FloatArray, communication_time: FloatArray, pace_steps: float
    ) -> Assignment:
        if self.planner == "literal":
            return literal(
                step_time, communication_time, pace_steps=pace_steps, max_steps=self.max_steps
            )
        # A single worker never waits: every deadline costs the same per step.
        if self.deadline == "fill" or len(step_time) == 1:
            return fill(
                step_time,
                communication_time,
                pace_steps=pace_steps,
                max_steps=self.max_steps,
                waiting_tolerance=self.waiting_tolerance,
            )
        return opt(
            step_time,
            communication_time,
            max_steps=self.max_steps,
            waiting_tolerance=self.waiting_tolerance,
        )

    def _decision(
        self,
        state: FedHPState,
        observation: Observation,
        result: SearchResult,
        link_distance: FloatArray,
        local_steps: IntArray,
        pace_steps: float,
    ) -> Decision:
        communication = observation.network.communication_time(result.topology)
        planned = np.where(
            observation.available, local_steps * state.step_time + communication, -np.inf
        )
        links = result.base_links
        sampled = len(state.sources) < state.workers
        return Decision(
            links=links,
            verdicts=result.verdicts,
            link_time=observation.network.link_time(links, result.topology.degrees),
            distance=link_distance,
            rule=result.assignment.rule,
            pace_setter=int(np.argmax(planned)),
            facts={
                "deadline": result.assignment.deadline,
                "planned_round_time": result.assignment.round_time,
                "objective": result.assignment.objective,
                "base_objective": result.base_objective,
                "pace_steps": pace_steps,
                "raw_pace": self._raw_pace(state),
                "distance_bound": state.distance_bound,
                "mean_distance": result.mean_distance,
                "smoothness": state.smoothness,
                "gradient_variance": state.gradient_variance,
                "initial_loss": state.initial_loss,
                "iterations": float(result.iterations),
                **({"distance_sources": float(len(state.sources))} if sampled else {}),
            },
        )


def _blend(old: float, new: float, smoothing: float) -> float:
    return float(moving_average(np.array(old), np.array(new), smoothing))


def _mean(values: FloatArray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else float("nan")


def _median(values: FloatArray) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else float("nan")
