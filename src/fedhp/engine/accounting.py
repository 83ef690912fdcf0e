"""The accounts of a round in virtual time: steps, times and bytes; and real seconds.

worker_time = sum of the step times + max over neighbors of link_time, and so on (SPEC 1).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from fedhp.algorithms import Observation
from fedhp.config import Experiment
from fedhp.engine.executor import Estimates, Training
from fedhp.errors import Diverged, RunError
from fedhp.exchange import Exchanged
from fedhp.exchange.base import Moment
from fedhp.rounds.context import PlanningContext
from fedhp.rounds.planner import MOST_STEPS, Measured, PlannedRound, first_reports
from fedhp.timing import PROBE_BATCHES, ROUNDING, mean_bandwidth, timing
from fedhp.types import BoolArray, FloatArray, IntArray, Plan, Reports, RoundRecord, Timing
from fedhp.world import World

# The estimators' gradients in units of local steps, where they are charged to the clock.
ESTIMATE_STEPS = 2 * PROBE_BATCHES
RUN_INTERVALS = 10_000_000  # of the links' changes in one run, at most


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Real seconds by phase of a round: shown to people, never part of a result."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started


@dataclass(frozen=True, slots=True)
class SimulatedRound:
    """A planned round with the steps that it takes in virtual time."""

    planned: PlannedRound
    local_steps: IntArray  # [N] of the whole round
    first_steps: IntArray  # [N] those before the exchange
    # Of a group average, which is followed by the time until the deadline: its time on the true
    # network, s; and [N] s already spent on the step that is unfinished at the round's end.
    transfer_time: float | None = None
    carried: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a run after a round, without its models."""

    round_index: int
    clock: float  # at the end of that round
    started: float  # clock at its start
    carried: FloatArray  # [N] s spent on steps that a group average left unfinished


def calibration(world: World) -> Reports:
    """The reports of round 0: one timed step on every worker."""
    times = [float(world.step_times(i, 0, steps=1, time=0.0)[0]) for i in range(world.workers)]
    return first_reports(np.array(times))


def group_round(
    world: World, planned: PlannedRound, carried: FloatArray, *, transfer_time: float
) -> SimulatedRound:
    """The steps of a round that begins with its exchange. carried [N] are the seconds that were
    spent on unfinished steps when the round began."""
    plan, observation = planned.plan, planned.observation
    deadline = plan.deadline
    assert deadline is not None
    idle = 0.0 if plan.overlap else transfer_time
    steps = np.zeros(world.workers, dtype=np.int64)
    during, left = steps.copy(), np.zeros(world.workers)
    for worker in np.flatnonzero(observation.available).tolist():
        ends = _step_ends(
            world, worker, observation, until=transfer_time - idle + deadline + carried[worker]
        )
        ends -= carried[worker]
        # A step that ends within rounding of the deadline counts.
        steps[worker] = np.searchsorted(ends, transfer_time - idle + deadline + ROUNDING)
        during[worker] = np.searchsorted(ends, transfer_time - idle + ROUNDING)
        done = ends[steps[worker] - 1] if steps[worker] else -carried[worker]
        left[worker] = max(0.0, transfer_time - idle + deadline - done)
    if not plan.overlap:
        during = np.zeros_like(during)
    return SimulatedRound(planned, steps, during, transfer_time, left)


def _step_ends(world: World, worker: int, observation: Observation, *, until: float) -> FloatArray:
    """When each step of a worker ends, in seconds of work, one more than fits at least."""
    count = 16
    while True:
        ends = np.cumsum(
            world.step_times(worker, observation.round_index, steps=count, time=observation.clock)
        )
        if ends[-1] > until + 1:
            return np.asarray(ends)
        if count > MOST_STEPS:
            raise RunError(
                f"round {observation.round_index}: worker {worker} would take more than "
                f"{MOST_STEPS:,} steps in {until:.3g} s",
                allowed=f"at most {MOST_STEPS:,} steps per worker and round",
                fix="raise the step time of its device, or lower world.model_megabits",
            )
        count *= 2


def account(
    context: PlanningContext,
    simulated: SimulatedRound,
    *,
    training: Training,
    estimates: Estimates | None,
    exchanged: Exchanged,
    wall: dict[str, float],
) -> Measured:
    """The cost of a round, on the true network: what the planner observed may be late."""
    planned, local_steps = simulated.planned, simulated.local_steps
    plan, observation = planned.plan, planned.observation
    world, start = context.world, observation.clock
    network = world.network(start)
    workers = world.workers
    stepping = world.compute_times(local_steps, observation.round_index, time=start)
    with np.errstate(invalid="ignore"):
        step_time = np.where(local_steps > 0, stepping / np.maximum(local_steps, 1), np.nan)
    extra = plan.exchange.extra_steps(workers)  # in units of a worker's step time, [N]
    if plan.estimate is not None and context.experiment.world.charge_estimators:
        extra += np.where(plan.estimate, ESTIMATE_STEPS, 0)
    extra = extra * np.nan_to_num(step_time) + world.other_times(start)
    moment = Moment(world, start, stepping, observation.round_index, context.model_bytes)
    cost = plan.exchange.cost(exchanged, moment)
    lead_time = simulated.transfer_time
    if lead_time is None:
        times = timing(stepping + extra, cost.communication, observation.available)
    else:
        times = _group_timing(plan, lead_time, observation.available, world.other_times(start))
    return Measured(
        local_steps=local_steps,
        step_time=step_time,
        timing=times,
        links=exchanged.links,
        link_time=cost.link_time,
        link_bytes=cost.link_bytes,
        link_distance=exchanged.distance,
        train_loss=training.loss,
        update_norm=training.update_norm,
        bandwidth=mean_bandwidth(network),
        wall=wall,
        **(estimates._asdict() if estimates else {}),
        selected=exchanged.selected,
        transfer_time=np.nan if lead_time is None or not plan.exchange.required else lead_time,
    )


def together(simulated: SimulatedRound, first: Training, second: Training) -> Training:
    """Local training before and after a group average; the second norm is that of both."""
    before, total = simulated.first_steps, simulated.local_steps
    share = (total - before) / np.maximum(total, 1)
    loss = first.loss + (second.loss - first.loss) * share
    loss = np.where(before == 0, second.loss, np.where(before == total, first.loss, loss))
    return Training(loss, np.where(total > 0, second.update_norm, np.nan))


def _group_timing(
    plan: Plan, transfer_time: float, present: BoolArray, other_times: FloatArray
) -> Timing:
    """Everyone trains for the whole round. Without overlap, participants communicate first, and
    the others wait meanwhile. What else a round needs comes at its end."""
    assert plan.deadline is not None
    round_time = transfer_time + plan.deadline
    training = round_time if plan.overlap else plan.deadline
    communication = np.zeros(len(present))
    communication[list(plan.exchange.required)] = round_time - training
    round_time += float(other_times[present].max(initial=0.0))
    times = timing(np.full(len(present), training) + other_times, communication, present)
    return replace(times, waiting_time=round_time - times.worker_time, round_time=round_time)


def check_clock(clock: float, timing: Timing, experiment: Experiment, *, round_index: int) -> None:
    """Stop before virtual time runs too far ahead of the links, which move by intervals."""
    interval = experiment.world.bandwidth.interval
    limit = RUN_INTERVALS * interval
    if not clock <= limit or np.isnan(timing.mean_waiting_time):
        raise RunError(
            f"round {round_index}: the virtual clock reached {clock:g} s",
            allowed=f"at most {limit:g} s, at world.bandwidth.interval = {interval:g}",
            fix="check [world] and the settings of the algorithm for times that are too long",
        )


def check_evaluation(record: RoundRecord) -> None:
    if record.evaluation is None:
        return
    missing = ~np.isfinite(record.evaluation.accuracy)
    if record.evaluation.honest is not None:
        missing &= record.evaluation.honest
    bad = np.flatnonzero(missing)
    if len(bad) or not np.isfinite(record.evaluation.mean_model_accuracy):
        whose = f"the model of worker {bad[0]}" if len(bad) else "the mean model"
        raise Diverged(
            f"round {record.round_index}: the test of {whose} gave no finite number; "
            "rounds before it are kept",
            allowed="a metric that is a finite number for every model",
            fix=f"lower the learning rate (it was {record.learning_rate:g} in this round), "
            "or correct the metric of your own task",
        )
