"""Plans the rounds of a synchronous algorithm and turns reports into a round's record.

The algorithm is the same code as in simulation; times are those that the workers measured.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedhp.algorithms import Observation
from fedhp.algorithms.base import is_synchronous, traits_of
from fedhp.cluster.coordinator.planning.link_estimates import (
    SLOWEST_GUESS,
    LinkEstimates,
    Transfer,
    limit_rates,
)
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.columns import WORKER_COLUMNS
from fedhp.learn.attack import attackers_of
from fedhp.record.tensors import Arrays, pack, read_buffer, tensor_parts, unpack
from fedhp.rounds.context import PlanningContext
from fedhp.rounds.planner import Measured, PlannedRound, Planner, first_reports, observe
from fedhp.timing import mean_bandwidth
from fedhp.types import (
    BoolArray,
    Evaluation,
    FloatArray,
    IntArray,
    Pair,
    Plan,
    Reports,
    RoundRecord,
    Timing,
)

STEP_TIME_FACTOR = 30.0  # how far honest machines are apart at most, from the median
ESTIMATE_FACTOR = 10.0  # the same for what is measured on models
METRIC_SPREAD = 1.0  # how far results of tests may always be apart: accuracies never are further
LEAST_VALUES = 3
WireReports = Mapping[int, wire.RoundReport]  # by worker
# Fields of a report that become columns of the round, NaN where there is none.
REPORTED = (
    "compute_seconds",
    "exchange_seconds",
    "other_seconds",
    "steps",
    "step_time",
    "train_loss",
    "update_norm",
    "smoothness",
    "gradient_variance",
    "start_loss",
    "accuracy",
    "whole_accuracy",
)
MOST_OVERHEAD = 2.0
OVERHEAD_SMOOTHING = 0.3


class NetworkPlanner(ABC):
    """Drives an algorithm; all it knows can be handed to another coordinator as bytes."""

    def __init__(self, stage: PlanningContext, planner: Planner) -> None:
        self.stage = stage
        self.planner = planner
        self.algorithm: Any = stage.algorithm
        self.workers = stage.experiment.workers
        self.attackers = attackers_of(
            stage.experiment.attack, workers=self.workers, seed=stage.experiment.seed
        )
        self.clock = 0.0
        self.links = LinkEstimates(self.workers)

    @abstractmethod
    def pack(self) -> bytes:
        """Everything that the next coordinator needs."""

    @abstractmethod
    def unpack(self, content: bytes) -> None:
        """Continue from what another planner packed."""


def evaluation_of(
    accuracy: FloatArray, counts: Iterable[int], attackers: Sequence[int] = ()
) -> Evaluation | None:
    """The workers' tests, [N], NaN where none; no process sees all models, so there is no mean
    model. counts: of images, as they say. Attackers of a study do not count."""
    if np.isnan(accuracy).all():
        return None
    images = usual_count(counts)
    honest = ~np.isin(np.arange(len(accuracy)), attackers)
    accuracy = set_aside_odd_metrics(np.where(honest, accuracy, np.nan))
    tested = accuracy[np.isfinite(accuracy)]
    if not tested.size:
        return None
    mean = float(tested.mean())
    is_share = images > 0 and 0 <= mean <= 1
    error = float(np.sqrt(mean * (1 - mean) / images)) if is_share else float("nan")
    counted = honest if len(attackers) else None
    return Evaluation(accuracy, float("nan"), images, error, honest=counted)


def to_bytes(arrays: Arrays, scalars: dict[str, Any]) -> bytes:
    """Arrays and scalars as one safetensors file."""
    parts = tensor_parts(arrays, {"scalars": json.dumps(scalars)})
    return b"".join(bytes(part) for part in parts)


def from_bytes(content: bytes) -> tuple[Arrays, dict[str, Any]]:
    """The arrays and scalars of to_bytes()."""
    arrays, metadata = read_buffer(content)
    return arrays, json.loads(metadata["scalars"])


# --- numbers that one member reports and that plans for everybody depend on ---------------------
# Values far from the median of all members are limited, or replaced by it. With fewer than three
# there is no majority, and nothing is changed.


def limit_to_median(values: FloatArray, factor: float) -> FloatArray:
    """The values, none further from the median than this factor; NaN stays."""
    finite = values[np.isfinite(values)]
    if finite.size < LEAST_VALUES:
        return values
    middle = float(np.median(finite))
    return np.clip(values, middle / factor, middle * factor)


def set_aside_large(values: FloatArray) -> FloatArray:
    """The values, with the median in place of those far above it. Small ones stay: they do not
    dominate a mean."""
    finite = values[np.isfinite(values)]
    middle = float(np.median(finite)) if finite.size >= LEAST_VALUES else 0.0
    if middle <= 0:
        return values
    return np.where(values > ESTIMATE_FACTOR * middle, middle, values)


def set_aside_odd_metrics(values: FloatArray) -> FloatArray:
    """Results of tests, with NaN (not tested) in place of those that no honest worker has: one
    of them would decide the mean, and with it when a run ends (`until.accuracy`)."""
    finite = values[np.isfinite(values)]
    if finite.size < LEAST_VALUES:
        return values
    middle = float(np.median(finite))
    spread = float(np.median(np.abs(finite - middle)))
    odd = np.abs(values - middle) > max(METRIC_SPREAD, ESTIMATE_FACTOR * spread)
    return np.where(odd, np.nan, values)


def usual_count(counts: Iterable[int]) -> int:
    """What most members say; of equally frequent counts the smaller; 0 if nobody says anything."""
    frequency = Counter(counts)
    return min(frequency, key=lambda count: (-frequency[count], count), default=0)


@dataclass(frozen=True, slots=True)
class NetworkRound:
    """A planned round as the network should carry it out."""

    planned: PlannedRound
    plan: Plan  # what the algorithm decided
    observation: Observation  # from what
    local_steps: IntArray  # [N]
    slowest: float  # s that the round should take
    middle: float  # s that the worker in the middle should need
    # s that an exchange that begins with the round should take; None: it follows the steps
    transfer_time: float | None = None


class RoundPlanner(NetworkPlanner):
    """Everything that a synchronous algorithm needs from one round to the next."""

    def __init__(self, stage: PlanningContext) -> None:
        assert is_synchronous(stage.algorithm)
        super().__init__(stage, Planner(stage, believe=_believable, on_network=True))
        self.step_time = np.full(self.workers, np.nan)
        self._grouped = traits_of(stage.algorithm).group_average
        self._overhead = 1.0  # of a group's transfer: measured / predicted from the links alone

    def plan(
        self,
        round_index: int,
        present: BoolArray,
        step_time: FloatArray,
        *,
        restarted: Sequence[int] = (),
        epoch_steps: IntArray | None = None,
        avoid: frozenset[Pair] = frozenset(),
        grouped: bool = True,
    ) -> NetworkRound:
        """The next round for the present workers, [N]; step_time [N] is their last one, and
        epoch_steps [N] what their local epochs take, where the experiment has them.
        restarted: workers that begin again with the initial model, in a run of group averages.
        avoid: links that do not work. Not grouped: nothing is averaged, everyone only trains."""
        self.step_time = np.where(np.isfinite(step_time), step_time, self.step_time)
        self.step_time[present] = limit_to_median(self.step_time[present], STEP_TIME_FACTOR)
        observed = observe(
            self.stage,
            round_index,
            self.clock,
            available=present,
            network=self.links.network(
                model_bits=self._overhead * self.stage.transfer_share * self.stage.world.model_bits,
                sharing=self.stage.world.sharing,
                otherwise=SLOWEST_GUESS,
            ),
            epoch_steps=epoch_steps,
            avoid=avoid,
        )
        reports = self.planner.last_reports or first_reports(self.step_time)
        before = self.planner.state
        if restarted:
            before = self.algorithm.restart(before, np.isin(np.arange(self.workers), restarted))
        # A worker that has just joined did not report: its own last step time counts.
        known = np.isfinite(reports.step_time) | ~present
        step_time = np.where(known, reports.step_time, self.step_time)
        planned = self.planner.plan(
            observed,
            replace(reports, step_time=step_time),
            state=before,
            change=_over_working_links,
        )
        alone = planned.plan if grouped else planned.plan.exchange.without_group(planned.plan)
        if alone is not planned.plan:  # to the algorithm, nothing happened
            planned = replace(planned, state=before, plan=alone)
        plan, observation = planned.plan, planned.observation
        if plan.local_steps is not None:
            steps = plan.local_steps
        else:
            assert plan.deadline is not None
            steps = np.maximum(1, np.nan_to_num(plan.deadline // self.step_time)).astype(np.int64)
        steps = np.where(present, np.nan_to_num(steps), 0).astype(np.int64)
        transfer_time = plan.exchange.lead_time(observation.network)
        if transfer_time is None:
            communication = plan.exchange.communication_time(observation.network, self.workers)
            seconds = np.nan_to_num(self.step_time) * steps + communication
        else:
            seconds = np.full(self.workers, transfer_time + (plan.deadline or 0.0))
        needed = seconds[present]
        return NetworkRound(
            planned,
            plan,
            observation,
            local_steps=steps,
            slowest=float(needed.max(initial=0.0)),
            middle=float(np.median(needed)) if needed.size else 0.0,
            transfer_time=transfer_time,
        )

    def _learn_overhead(self, measured: float, predicted: float) -> None:
        """Frames, acknowledgements and waiting for each other: what a tree needs in addition to
        its bytes. A new leader learns it again."""
        if predicted > 0 and np.isfinite(measured):
            ratio = np.clip(self._overhead * measured / predicted, 1.0, MOST_OVERHEAD)
            self._overhead += OVERHEAD_SMOOTHING * (float(ratio) - self._overhead)

    def finish(self, planned: NetworkRound, reports: WireReports, *, seconds: float) -> RoundRecord:
        """The record of a round from the reports that count; the next plan builds on it."""
        took_part = np.isin(np.arange(self.workers), list(reports))
        links, times, sizes, distances = _measured_links(planned, reports)
        table = np.full((len(REPORTED), self.workers), np.nan)
        for worker, report in reports.items():
            table[:, worker] = [getattr(report, name) for name in REPORTED]
        columns: dict[str, FloatArray] = dict(zip(REPORTED, table, strict=True))
        compute = columns["compute_seconds"]
        communication = np.where(took_part, 0.0, np.nan)
        exchange, transfer_time = planned.plan.exchange, np.nan
        local_steps = planned.local_steps
        if planned.transfer_time is not None:
            # Everyone trains meanwhile, unless the plan says otherwise.
            waited = columns["exchange_seconds"]
            communication = communication if planned.plan.overlap else waited
            local_steps = np.nan_to_num(columns["steps"]).astype(np.int64)
            if exchange.required:
                # All have it at nearly the same time, and one of them may not tell the truth.
                transfer_time = float(np.nanmedian(waited[list(exchange.required)]))
                self._learn_overhead(transfer_time, planned.transfer_time)
        else:
            np.fmax.at(communication, links[:, 0], times)
            if not exchange.directed:
                np.fmax.at(communication, links[:, 1], times)
        # Mixing, testing and saving is not waiting, though the simulation has none of it.
        worked = np.minimum(compute + communication + columns["other_seconds"], seconds)
        images = [report.images for report in reports.values()]
        measured_more = any(report.measures for report in reports.values())
        measured = Measured(
            local_steps=np.where(took_part, local_steps, 0),
            step_time=columns["step_time"],
            timing=Timing(compute, communication, worked, seconds - worked, seconds),
            links=links,
            link_time=times,
            link_bytes=sizes,
            link_distance=distances,
            train_loss=np.where(local_steps > 0, columns["train_loss"], np.nan),
            update_norm=columns["update_norm"],
            bandwidth=mean_bandwidth(planned.observation.network),
            wall={"round": seconds},
            smoothness=columns["smoothness"],
            gradient_variance=columns["gradient_variance"],
            start_loss=columns["start_loss"],
            selected=exchange.selected(
                {worker: report.selected for worker, report in reports.items()}, self.workers
            ),
            transfer_time=transfer_time,
            evaluation=evaluation_of(columns["accuracy"], images, self.attackers),
            final_evaluation=evaluation_of(columns["whole_accuracy"], images, self.attackers),
            measures=_measures(reports, self.workers) if measured_more else {},
        )
        record = self.planner.finish(planned.planned, measured)
        self.clock = record.clock
        timed = {worker: report.links for worker, report in reports.items()}
        self.learn_links(timed, round_index=record.round_index)
        return record

    def probes(self, planned: NetworkRound) -> list[tuple[int, int]]:
        """Links of the base topology to time in addition to the plan's: those not timed for some
        rounds."""
        cluster, observation = self.stage.experiment.cluster, planned.observation
        if not cluster.probe_bytes:
            return []
        stale = self.links.stale(
            self.stage.federation.base_topology.links,
            observation.available,
            round_index=observation.round_index,
            every=cluster.probe_every,
        )
        used = set(map(tuple, np.sort(planned.plan.exchange.links, axis=1).tolist()))
        return [pair for pair in stale if pair not in used]

    def learn_links(
        self, timed: Mapping[int, Sequence[wire.LinkReport]], *, round_index: int = 0
    ) -> None:
        """Transfers that the workers timed; round 0: before the first one. All workers get their
        orders at once, so times since then can be compared."""
        transfers = []
        for worker, links in sorted(timed.items()):
            for link in links:
                size, seconds, usable = link.bytes, link.seconds, not link.lost
                if self._grouped and not link.probe:
                    # The pieces of a tree keep the pace of its slowest link: only those that
                    # waited count.
                    size, seconds = link.timed_bytes, link.timed_seconds
                    usable = 2 * size >= link.bytes
                if link.bytes and usable:
                    transfers.append(
                        Transfer(worker, link.worker, 8.0 * size, link.started, seconds)
                    )
        transfers = limit_rates(transfers)
        if self.stage.world.sharing:
            self.links.learn_shared(transfers, round_index=round_index)
            return
        for transfer in transfers:
            self.links.learn(
                transfer.receiver,
                transfer.sender,
                bits=transfer.bits,
                seconds=transfer.seconds,
                round_index=round_index,
            )

    def pack(self) -> bytes:
        """Everything that the next coordinator needs."""
        arrays, scalars = pack("state", self._condensed())
        if self.planner.last_reports is not None:
            report_arrays, report_scalars = pack("reports", self.planner.last_reports)
            arrays, scalars = {**arrays, **report_arrays}, {**scalars, **report_scalars}
        arrays.update(self.links.pack())
        arrays["step_time"] = self.step_time
        scalars["clock"] = self.clock
        return to_bytes(arrays, scalars)

    def unpack(self, content: bytes) -> None:
        """Continue from what another planner packed."""
        arrays, scalars = from_bytes(content)
        self._expand(arrays, scalars)
        if "reports.round_index" in scalars:
            self.planner.last_reports = unpack("reports", Reports, arrays, scalars)
        self.links = LinkEstimates.unpack(arrays)
        self.step_time = arrays["step_time"]
        self.clock = float(scalars["clock"])

    def pack_state(self) -> bytes:
        """What the algorithm keeps between rounds."""
        return to_bytes(*pack("state", self._condensed()))

    def go_back(self, content: bytes) -> None:
        """Plan on from what pack_state() gave; what was measured stays."""
        self._expand(*from_bytes(content))

    # --- inside ----------------------------------------------------------------------------

    def _condensed(self) -> Any:
        state = self.planner.state
        return self.algorithm.condense(state) if hasattr(self.algorithm, "condense") else state

    def _expand(self, arrays: Arrays, scalars: dict[str, Any]) -> None:
        state = unpack("state", type(self.planner.state), arrays, scalars)
        if hasattr(self.algorithm, "expand"):
            state = self.algorithm.expand(state)
        self.planner.state = state


def _measures(reports: WireReports, workers: int) -> dict[str, FloatArray]:
    """The added columns of the record that somebody has reported, [N] each."""
    measures = {}
    for column in WORKER_COLUMNS:
        values = np.full(workers, np.nan)
        for worker, report in reports.items():
            values[worker] = report.measures.get(column.name, np.nan)
        if column.added and np.isfinite(values).any():
            measures[column.name] = values
    return measures


def _over_working_links(plan: Plan, observation: Observation) -> Plan:
    """The plan over links that work, the present workers connected. A topology that changes is
    connected over rounds only."""
    exchange = plan.exchange.without_links(observation.avoid)
    if not observation.changing:
        exchange = exchange.connected(
            observation.available, observation.network, avoid=observation.avoid
        )
    return plan if exchange is plan.exchange else replace(plan, exchange=exchange)


def _measured_links(
    planned: NetworkRound, reports: WireReports
) -> tuple[IntArray, FloatArray, IntArray, FloatArray]:
    """The links over which models went: pairs, seconds, bytes and distances."""
    directed = planned.plan.exchange.directed
    by_pair: dict[tuple[int, int], tuple[float, int, float]] = {}
    for worker, report in sorted(reports.items()):
        for link in report.links:
            if link.probe or link.lost:
                continue
            pair = (worker, link.worker)
            if not directed:
                pair = (min(pair), max(pair))
            seconds, size, distance = by_pair.get(pair, (0.0, 0, np.nan))
            distance = distance if np.isfinite(distance) else link.distance
            by_pair[pair] = max(seconds, link.seconds), size + link.bytes, distance
    pairs = np.array(sorted(by_pair), dtype=np.int64).reshape(-1, 2)
    rows = [by_pair[pair] for pair in sorted(by_pair)]
    return (
        pairs,
        np.array([seconds for seconds, _, _ in rows], dtype=np.float64),
        np.array([size for _, size, _ in rows], dtype=np.int64),
        np.array([distance for _, _, distance in rows], dtype=np.float64),
    )


def _believable(reports: Reports) -> Reports:
    """What one worker alone cannot move: the next plan is made from it."""
    measured = np.isfinite(reports.distance)
    return replace(
        reports,
        step_time=limit_to_median(reports.step_time, STEP_TIME_FACTOR),
        update_norm=set_aside_large(reports.update_norm),
        links=reports.links[measured],
        distance=set_aside_large(reports.distance[measured]),
        smoothness=set_aside_large(reports.smoothness),
        gradient_variance=set_aside_large(reports.gradient_variance),
        start_loss=set_aside_large(reports.start_loss),
    )
