"""FedHP, the coordinator's side (Algorithm 2): take in the reports, then plan.

pace.py holds the step rules, search.py Algorithm 3. Defaults are as settled in this
project; the paper's own readings stay selectable: planner, pace, bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedhp.algorithms.base import Federation, Observation, Settings
from fedhp.algorithms.pace import Assignment, fill, literal, opt, raw_pace
from fedhp.algorithms.search import SearchResult, search
from fedhp.distance import complete, unknown, update_bound, update_distance
from fedhp.graph import MixingRule, among
from fedhp.types import (
    Decision,
    FloatArray,
    IntArray,
    NeighborMixing,
    Plan,
    Reports,
    Topology,
)


@dataclass(frozen=True, slots=True)
class FedHPState:
    """What the coordinator keeps between rounds; NaN stands for not measured yet."""

    workers: int
    rounds: int
    initial_steps: int
    base_links: IntArray  # [E, 2]
    step_time: FloatArray  # [N] s
    distance: FloatArray  # [N, N]
    distance_bound: float
    smoothness: float
    gradient_variance: float
    initial_loss: float
    learning_rate: float  # of the round planned last
    first_raw_pace: float


class FedHP(Settings):
    """Adaptive steps and topology for every worker, every round."""

    planner: Literal["settled", "literal"] = "settled"
    deadline: Literal["opt", "fill"] = "opt"
    pace: Literal["ratio", "formula", "fixed"] = "ratio"
    initial_steps: Annotated[int, Field(ge=1, le=100_000)] | None = (
        None  # none: training.local_steps
    )
    max_steps: Annotated[int, Field(ge=1, le=100_000)] = 100
    weights: MixingRule = "max_degree"
    distance_smoothing: Annotated[float, Field(ge=0, le=1)] = 0.5  # beta_1
    bound_smoothing: Annotated[float, Field(ge=0, le=1)] = 0.5  # beta_2
    bound: Literal["update", "gradient", "none"] = "update"  # gradient: without eta
    bound_scale: Annotated[float, Field(ge=0)] = 0.5  # the paper: bound "gradient", scale 1.0
    waiting_tolerance: Annotated[float, Field(ge=0, le=1)] | None = None  # share of the round
    estimate_every: Annotated[int, Field(ge=1)] = 2  # rounds
    smoothing: Annotated[float, Field(gt=0, le=1)] = 0.5  # of step times and estimates

    def start(self, federation: Federation) -> FedHPState:
        """Nothing is known but the base topology."""
        nan = float("nan")
        return FedHPState(
            workers=federation.workers,
            rounds=federation.rounds,
            initial_steps=self.initial_steps or federation.local_steps,
            base_links=federation.base_topology.links,
            step_time=np.full(federation.workers, nan),
            distance=unknown(federation.workers),
            distance_bound=nan,
            smoothness=nan,
            gradient_variance=nan,
            initial_loss=nan,
            learning_rate=nan,
            first_raw_pace=nan,
        )

    def plan(
        self, state: FedHPState, observation: Observation, reports: Reports
    ) -> tuple[FedHPState, Plan]:
        """One round of Algorithm 2. Round 1 keeps the base topology: every pair is measured."""
        state = self._learn(state, reports)
        state = replace(state, learning_rate=observation.learning_rate)
        present = observation.available
        pace_steps = self._pace_steps(state)
        step_time = np.where(present, state.step_time, np.nan)
        distance = np.where(present & present[:, None], complete(state.distance), 0.0)
        first = reports.round_index == 0
        bound = np.inf if self.bound == "none" else state.distance_bound
        found = search(
            among(Topology(state.workers, state.base_links), present),
            network=observation.network,
            distance=distance,
            distance_bound=None if first or np.isnan(bound) else float(bound),
            members=int(present.sum()),
            assign=lambda communication: self._assign(
                step_time[present], communication[present], pace_steps
            ),
        )
        local_steps = np.zeros(state.workers, dtype=np.int64)
        local_steps[present] = found.assignment.local_steps
        return state, Plan(
            exchange=NeighborMixing(found.topology, self.weights),
            local_steps=local_steps,
            deadline=found.assignment.deadline,
            decision=self._decision(state, observation, found, local_steps, pace_steps),
            estimate=present if (observation.round_index - 1) % self.estimate_every == 0 else None,
        )

    def _learn(self, state: FedHPState, reports: Reports) -> FedHPState:
        """Algorithm 2, lines 3-5, and the updates of the distances and the bound."""
        norms = reports.update_norm
        if self.bound == "gradient" and np.isfinite(state.learning_rate):
            norms = norms / state.learning_rate
        old_bound = None if np.isnan(state.distance_bound) else state.distance_bound
        bound = update_bound(
            old_bound, norms, smoothing=self.bound_smoothing, scale=self.bound_scale
        )
        distance = state.distance
        if len(reports.links):
            distance = update_distance(
                distance, reports.links, reports.distance, smoothing=self.distance_smoothing
            )
        state = replace(
            state,
            step_time=_average(state.step_time, reports.step_time, self.smoothing),
            distance=distance,
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
        # A worker on its own waits for nobody: every deadline costs the same per step.
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
        found: SearchResult,
        local_steps: IntArray,
        pace_steps: float,
    ) -> Decision:
        communication = observation.network.communication_time(found.topology)
        planned = np.where(
            observation.available, local_steps * state.step_time + communication, -np.inf
        )
        links = found.base_links
        return Decision(
            links=links,
            verdicts=found.verdicts,
            link_time=observation.network.link_time(links, found.topology.degrees),
            distance=complete(state.distance)[links[:, 0], links[:, 1]],
            rule=found.assignment.rule,
            pace_setter=int(np.argmax(planned)),
            facts={
                "deadline": found.assignment.deadline,
                "planned_round_time": found.assignment.round_time,
                "objective": found.assignment.objective,
                "base_objective": found.base_objective,
                "pace_steps": pace_steps,
                "raw_pace": self._raw_pace(state),
                "distance_bound": state.distance_bound,
                "mean_distance": found.mean_distance,
                "smoothness": state.smoothness,
                "gradient_variance": state.gradient_variance,
                "initial_loss": state.initial_loss,
                "iterations": float(found.iterations),
            },
        )


def _average(old: FloatArray, new: FloatArray, smoothing: float) -> FloatArray:
    """Element-wise moving average; a missing value leaves the other."""
    blended = np.where(np.isnan(old), new, (1 - smoothing) * old + smoothing * new)
    return np.where(np.isfinite(new), blended, old)


def _blend(old: float, new: float, smoothing: float) -> float:
    return float(_average(np.array(old), np.array(new), smoothing))


def _mean(values: FloatArray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else float("nan")


def _median(values: FloatArray) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else float("nan")
