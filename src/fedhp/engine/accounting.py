"""The accounts of a round: virtual times, bytes, the record, the workers' reports, real seconds.

worker_time = sum of the step times + max over neighbors of link_time, and so on (SPEC 1).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedhp.algorithms import Observation
from fedhp.config import Experiment
from fedhp.engine.context import PlanningContext
from fedhp.engine.executor import Estimates, Exchanged, Training
from fedhp.errors import Diverged, RunError
from fedhp.timing import PROBE_BATCHES, Network, learning_rate, slowest_link, timing
from fedhp.types import (
    FloatArray,
    IntArray,
    PeerScoring,
    Plan,
    Reports,
    RoundRecord,
)
from fedhp.world import World

# The estimators' gradients in units of local steps, where they are charged to the clock.
ESTIMATE_STEPS = 2 * PROBE_BATCHES
RUN_INTERVALS = 10_000_000  # of the links' changes in one run, at most


class Stopwatch:
    """Real seconds by phase of a round: shown to people, never part of a result."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside."""
        started = time.monotonic()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What was decided for a round."""

    state: Any  # of the algorithm, after its plan
    plan: Plan
    observation: Observation
    local_steps: IntArray  # [N]

    @property
    def round_index(self) -> int:
        """The number of the round."""
        return self.observation.round_index


def rate_at(experiment: Experiment, round_index: int, clock: float) -> float:
    """The learning rate of a round."""
    training = experiment.training
    return learning_rate(
        training.learning_rate,
        training.decay,
        round_index=round_index,
        clock=clock,
        seconds=training.decay_seconds if training.decay_by == "time" else None,
    )


def calibration(world: World) -> Reports:
    """The reports of round 0: one timed step on every worker."""
    times = [float(world.step_times(i, 0, steps=1, time=0.0)[0]) for i in range(world.workers)]
    return first_reports(np.array(times))


def first_reports(step_time: FloatArray) -> Reports:
    """The reports of round 0: nothing is known but the time of a step, [N]."""
    missing = np.full(len(step_time), np.nan)
    return Reports(
        round_index=0,
        step_time=step_time,
        update_norm=missing,
        links=np.empty((0, 2), dtype=np.int64),
        distance=np.empty(0),
        smoothness=missing,
        gradient_variance=missing,
        start_loss=missing,
        selected=np.empty((len(step_time), 0), dtype=np.int64),
    )


def account(
    context: PlanningContext,
    planned: RoundPlan,
    *,
    training: Training,
    estimates: Estimates | None,
    exchanged: Exchanged,
    wall: dict[str, float],
) -> RoundRecord:
    """The cost of a round, on the true network: what the planner observed may be late."""
    plan, observation, local_steps = planned.plan, planned.observation, planned.local_steps
    world, start = context.world, observation.clock
    network = world.network(start)
    workers = world.workers
    missing = np.full(workers, np.nan)
    stepping = world.compute_times(local_steps, observation.round_index, time=start)
    with np.errstate(invalid="ignore"):
        step_time = np.where(local_steps > 0, stepping / np.maximum(local_steps, 1), np.nan)
    extra = _extra_steps(context.experiment, plan, workers) * np.nan_to_num(step_time)
    links = exchanged.links
    transfers = np.bincount(links.ravel(), minlength=workers)
    link_time = network.link_time(links, transfers)
    communication = (
        _slowest_pull(workers, links, link_time)
        if exchanged.directed
        else slowest_link(workers, links, link_time)
    )
    times = timing(stepping + extra, communication, observation.available)
    directions = 1 if exchanged.directed else 2
    return RoundRecord(
        round_index=observation.round_index,
        clock=start + times.round_time,
        learning_rate=observation.learning_rate,
        local_steps=local_steps,
        step_time=step_time,
        timing=times,
        links=links,
        link_time=link_time,
        link_bytes=np.full(len(links), directions * context.model_bytes, dtype=np.int64),
        link_distance=exchanged.distance,
        decision=plan.decision,
        train_loss=training.loss,
        update_norm=training.update_norm,
        smoothness=estimates.smoothness if estimates else missing,
        gradient_variance=estimates.gradient_variance if estimates else missing,
        bandwidth=mean_bandwidth(network),
        evaluation=None,
        wall=wall,
    )


def reports_of(
    record: RoundRecord, *, estimates: Estimates | None, exchanged: Exchanged
) -> Reports:
    """What the workers report to the coordinator."""
    missing = np.full(len(record.step_time), np.nan)
    first = record.round_index == 1
    return Reports(
        round_index=record.round_index,
        step_time=record.step_time,
        update_norm=record.update_norm,
        links=exchanged.links,
        distance=exchanged.distance,
        smoothness=record.smoothness,
        gradient_variance=record.gradient_variance,
        start_loss=estimates.start_loss if first and estimates else missing,
        selected=exchanged.selected,
    )


def mean_bandwidth(network: Network) -> FloatArray:
    """Bytes per second of every worker; its mean over links where they differ, [N]."""
    bandwidth = network.bandwidth
    if bandwidth.ndim == 2:
        others = ~np.eye(len(bandwidth), dtype=np.bool_)
        bandwidth = np.array(
            [
                row[mask].mean() if mask.any() else row.mean()
                for row, mask in zip(bandwidth, others, strict=True)
            ]
        )
    return np.asarray(bandwidth / 8)


def _extra_steps(experiment: Experiment, plan: Plan, workers: int) -> FloatArray:
    """Work in addition to the local steps, in units of a worker's step time, [N]."""
    extra = np.zeros(workers)
    if isinstance(plan.exchange, PeerScoring):
        scored = (plan.exchange.candidates >= 0).sum(axis=1)
        extra += plan.exchange.cost_per_candidate * scored
    if plan.estimate is not None and experiment.world.charge_estimators:
        extra += np.where(plan.estimate, ESTIMATE_STEPS, 0)
    return extra


def _slowest_pull(workers: int, links: IntArray, link_time: FloatArray) -> FloatArray:
    """The longest transfer each receiver waits for, [N]; links are (receiver, sender)."""
    slowest = np.zeros(workers)
    np.maximum.at(slowest, links[:, 0], link_time)
    return slowest


def check_clock(record: RoundRecord, experiment: Experiment) -> None:
    """Stop before virtual time runs too far ahead of the links, which move by intervals."""
    interval = experiment.world.bandwidth.interval
    limit = RUN_INTERVALS * interval
    if not record.clock <= limit or np.isnan(record.timing.mean_waiting_time):
        raise RunError(
            f"round {record.round_index}: the virtual clock reached {record.clock:g} s",
            allowed=f"at most {limit:g} s, at world.bandwidth.interval = {interval:g}",
            fix="check [world] and the settings of the algorithm for times that are too long",
        )


def check_evaluation(record: RoundRecord) -> None:
    """Stop a run whose tests do not give finite numbers."""
    if record.evaluation is None:
        return
    bad = np.flatnonzero(~np.isfinite(record.evaluation.accuracy))
    if len(bad) or not np.isfinite(record.evaluation.mean_model_accuracy):
        whose = f"the model of worker {bad[0]}" if len(bad) else "the mean model"
        raise Diverged(
            f"round {record.round_index}: the test of {whose} gave no finite number; "
            "rounds before it are kept",
            allowed="a metric that is a finite number for every model",
            fix=f"lower training.learning_rate (it was {record.learning_rate:g} in this round), "
            "or correct the metric of your own task",
        )
