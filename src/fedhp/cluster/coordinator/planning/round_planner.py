"""Plans the rounds of a synchronous algorithm and turns reports into a round's record.

The algorithm is the same code as in simulation; times are those that the workers measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from fedhp.algorithms import Algorithm, Observation
from fedhp.algorithms.base import Condensable, Restartable, averages_groups
from fedhp.algorithms.enough_peers import with_min_peers
from fedhp.algorithms.group_tree import group_time
from fedhp.algorithms.plan_checks import next_plan
from fedhp.cluster.coordinator.planning.link_estimates import (
    SLOWEST_GUESS,
    LinkEstimates,
    Transfer,
    limit_rates,
)
from fedhp.cluster.coordinator.planning.outliers import (
    STEP_TIME_FACTOR,
    limit_to_median,
    set_aside_large,
    usual_count,
)
from fedhp.cluster.coordinator.planning.planner import evaluation_of, from_bytes, to_bytes
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.engine.accounting import first_reports, mean_bandwidth, rate_at
from fedhp.engine.context import PlanningContext
from fedhp.engine.executor import travelled
from fedhp.graph import components_of, neighbor_lists, topology_from
from fedhp.learn.attack import attackers_of
from fedhp.record.tensors import Arrays, pack, unpack
from fedhp.types import (
    BoolArray,
    FloatArray,
    GroupAverage,
    GroupRole,
    IntArray,
    NeighborMixing,
    Pair,
    PeerScoring,
    Plan,
    Reports,
    RoundRecord,
    Timing,
    Topology,
    WeightedMixing,
)

WireReports = Mapping[int, wire.RoundReport]  # by worker
MOST_OVERHEAD = 2.0
OVERHEAD_SMOOTHING = 0.3


@dataclass(frozen=True, slots=True)
class PlannedRound:
    """A plan and what it was made from."""

    state: Any
    plan: Plan
    observation: Observation
    local_steps: IntArray  # [N]
    predicted: FloatArray  # [N] s that each worker should need; 0 for those who are absent
    transfer_time: float = 0.0  # s that a group average should be on its way

    @property
    def slowest(self) -> float:
        """Seconds that the round should take."""
        return float(self.predicted.max(initial=0.0))

    @property
    def middle(self) -> float:
        """Seconds that the worker in the middle should need."""
        seconds = self.predicted[self.observation.available]
        return float(np.median(seconds)) if seconds.size else 0.0


class RoundPlanner:
    """Everything that a synchronous algorithm needs from one round to the next."""

    def __init__(self, stage: PlanningContext) -> None:
        algorithm = stage.algorithm
        assert isinstance(algorithm, Algorithm)
        self.stage = stage
        self.algorithm = algorithm
        self.workers = stage.experiment.workers
        self.attackers = attackers_of(
            stage.experiment.attack, workers=self.workers, seed=stage.experiment.seed
        )
        self.clock = 0.0
        self.links = LinkEstimates(self.workers)
        self.state: Any = algorithm.start(stage.federation)
        self.reports: Reports | None = None
        self.step_time = np.full(self.workers, np.nan)
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
    ) -> PlannedRound:
        """The next round for the present workers, [N]; step_time [N] is their last one, and
        epoch_steps [N] what their local epochs take, where the experiment has them.
        restarted: workers that begin again with the initial model, in a run of group averages.
        avoid: links that do not work. Not grouped: nothing is averaged, everyone only trains."""
        self.step_time = np.where(np.isfinite(step_time), step_time, self.step_time)
        self.step_time[present] = limit_to_median(self.step_time[present], STEP_TIME_FACTOR)
        observation = Observation(
            round_index=round_index,
            clock=self.clock,
            learning_rate=rate_at(self.stage, round_index, self.clock),
            available=present,
            network=self.links.network(
                model_bits=self._overhead * self.stage.transfer_share * self.stage.world.model_bits,
                sharing=self.stage.world.sharing,
                otherwise=SLOWEST_GUESS,
            ),
            topology=self.stage.federation.topology_at(round_index),
            changing=self.stage.federation.changing is not None,
            epoch_steps=epoch_steps,
            avoid=avoid,
        )
        reports = self.reports or first_reports(self.step_time)
        state = self.state
        if restarted:
            assert isinstance(self.algorithm, Restartable)
            state = self.algorithm.restart(state, np.isin(np.arange(self.workers), restarted))
        before = state
        state, plan = next_plan(
            self.algorithm,
            before,
            observation=observation,
            reports=self._with_step_times(reports, present),
        )
        exchange = self.stage.experiment.exchange
        least = exchange.min_peers(self.workers, present=int(present.sum()))
        plan = _ensure_connected(_without_links(plan, avoid), observation)
        plan = with_min_peers(plan, observation, least=least)
        if isinstance(plan.exchange, GroupAverage) and not grouped:
            state, plan = before, _without_group(plan)  # to the algorithm, nothing happened
        if plan.local_steps is not None:
            steps = plan.local_steps
        else:
            assert plan.deadline is not None
            steps = np.maximum(1, np.nan_to_num(plan.deadline // self.step_time)).astype(np.int64)
        steps = np.where(present, np.nan_to_num(steps), 0).astype(np.int64)
        if isinstance(plan.exchange, GroupAverage):
            transfer_time = group_time(plan.exchange, observation.network)
            predicted = np.where(present, transfer_time + (plan.deadline or 0.0), 0.0)
            return PlannedRound(state, plan, observation, steps, predicted, transfer_time)
        predicted = self._predicted_seconds(plan, observation, steps)
        return PlannedRound(state, plan, observation, steps, predicted)

    def _learn_overhead(self, measured: float, predicted: float) -> None:
        """Frames, acknowledgements and waiting for each other: what a tree needs in addition to
        its bytes. A new leader learns it again."""
        if predicted > 0 and np.isfinite(measured):
            ratio = np.clip(self._overhead * measured / predicted, 1.0, MOST_OVERHEAD)
            self._overhead += OVERHEAD_SMOOTHING * (float(ratio) - self._overhead)

    def finish(self, planned: PlannedRound, reports: WireReports, *, seconds: float) -> RoundRecord:
        """The record of a round from the reports that count; the next plan builds on it."""
        took_part = np.isin(np.arange(self.workers), list(reports))
        links, times, sizes, distances = _measured_links(planned, reports)
        compute = self._column(reports, "compute_seconds")
        communication = np.where(took_part, 0.0, np.nan)
        exchange, decision, transfer_time = planned.plan.exchange, planned.plan.decision, np.nan
        local_steps = planned.local_steps
        if isinstance(exchange, GroupAverage):
            # Everyone trains meanwhile, unless the plan says otherwise.
            waited = self._column(reports, "exchange_seconds")
            communication = communication if planned.plan.overlap else waited
            local_steps = np.nan_to_num(self._column(reports, "steps")).astype(np.int64)
            if len(exchange.participants):
                # All have it at nearly the same time, and one of them may not tell the truth.
                transfer_time = float(np.nanmedian(waited[exchange.participants]))
                self._learn_overhead(transfer_time, planned.transfer_time)
                facts = {**decision.facts, "transfer_time": transfer_time}
                decision = replace(decision, facts=facts)
        else:
            np.fmax.at(communication, links[:, 0], times)
        if isinstance(exchange, NeighborMixing):
            np.fmax.at(communication, links[:, 1], times)
        # Mixing, testing and saving is not waiting, though the simulation has none of it.
        other = self._column(reports, "other_seconds")
        worked = np.minimum(compute + communication + other, seconds)
        images = usual_count(report.images for report in reports.values())
        record = RoundRecord(
            round_index=planned.observation.round_index,
            clock=self.clock + seconds,
            learning_rate=planned.observation.learning_rate,
            local_steps=np.where(took_part, local_steps, 0),
            step_time=self._column(reports, "step_time"),
            timing=Timing(compute, communication, worked, seconds - worked, seconds),
            links=links,
            link_time=times,
            link_bytes=sizes,
            link_distance=distances,
            decision=decision,
            train_loss=np.where(local_steps > 0, self._column(reports, "train_loss"), np.nan),
            update_norm=self._column(reports, "update_norm"),
            smoothness=self._column(reports, "smoothness"),
            gradient_variance=self._column(reports, "gradient_variance"),
            bandwidth=mean_bandwidth(planned.observation.network),
            evaluation=evaluation_of(self._column(reports, "accuracy"), images, self.attackers),
            wall={"round": seconds},
            final_evaluation=evaluation_of(
                self._column(reports, "whole_accuracy"), images, self.attackers
            ),
        )
        first = record.round_index == 1
        missing = np.full(self.workers, np.nan)
        measured = np.isfinite(distances)
        self.reports = Reports(
            round_index=record.round_index,
            step_time=limit_to_median(record.step_time, STEP_TIME_FACTOR),
            update_norm=set_aside_large(record.update_norm),
            links=links[measured],
            distance=set_aside_large(distances[measured]),
            smoothness=set_aside_large(record.smoothness),
            gradient_variance=set_aside_large(record.gradient_variance),
            start_loss=set_aside_large(self._column(reports, "start_loss")) if first else missing,
            selected=self._selected(planned.plan, reports),
            transfer_time=transfer_time,
        )
        self.state, self.clock = planned.state, record.clock
        timed = {worker: report.links for worker, report in reports.items()}
        self._learn_links(timed, round_index=record.round_index)
        return record

    def probes(self, planned: PlannedRound) -> list[tuple[int, int]]:
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
        used = set(map(tuple, np.sort(travelled(planned.plan.exchange), axis=1).tolist()))
        return [pair for pair in stale if pair not in used]

    def learn_failed(
        self, timed: Mapping[int, Sequence[wire.LinkReport]], *, round_index: int
    ) -> None:
        """The links of a group average that did not come: one may be slower than was planned."""
        self._learn_links(timed, round_index=round_index)

    def learn_survey(self, timed: Mapping[int, Sequence[wire.LinkReport]]) -> None:
        """The links that workers timed before the first round."""
        self._learn_links(timed, round_index=0)

    def pack(self) -> bytes:
        """Everything that the next coordinator needs."""
        arrays, scalars = pack("state", self._condensed())
        if self.reports is not None:
            report_arrays, report_scalars = pack("reports", self.reports)
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
            self.reports = unpack("reports", Reports, arrays, scalars)
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
        algorithm = self.algorithm
        return algorithm.condense(self.state) if isinstance(algorithm, Condensable) else self.state

    def _expand(self, arrays: Arrays, scalars: dict[str, Any]) -> None:
        self.state = unpack("state", type(self.state), arrays, scalars)
        if isinstance(self.algorithm, Condensable):
            self.state = self.algorithm.expand(self.state)

    def _with_step_times(self, reports: Reports, present: BoolArray) -> Reports:
        """A worker that has just joined did not report: its own last step time counts."""
        known = np.isfinite(reports.step_time)
        step_time = np.where(known | ~present, reports.step_time, self.step_time)
        return replace(reports, step_time=step_time)

    def _predicted_seconds(
        self, plan: Plan, observation: Observation, steps: IntArray
    ) -> FloatArray:
        """How long each worker should need for its steps and its slowest link, [N]."""
        links = travelled(plan.exchange)
        transfers = np.bincount(links.ravel(), minlength=self.workers)
        times = observation.network.link_time(links, transfers)
        communication = np.zeros(self.workers)
        np.maximum.at(communication, links[:, 0], times)
        np.maximum.at(communication, links[:, 1], times)
        seconds = np.nan_to_num(self.step_time) * steps + communication
        return np.where(observation.available, seconds, 0.0)

    def _learn_links(
        self, timed: Mapping[int, Sequence[wire.LinkReport]], *, round_index: int
    ) -> None:
        """All workers get their orders at once, so times since then can be compared."""
        transfers = [
            transfer
            for worker, links in sorted(timed.items())
            for link in links
            if (transfer := self._transfer(worker, link)) is not None
        ]
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

    def _transfer(self, worker: int, link: wire.LinkReport) -> Transfer | None:
        """What a link shows of its speed; None for nothing."""
        if averages_groups(self.algorithm) and not link.probe and link.bytes:
            # The pieces of a tree keep the pace of its slowest link: only those that waited count.
            if 2 * link.timed_bytes < link.bytes:
                return None
            bits, seconds = 8.0 * link.timed_bytes, link.timed_seconds
            return Transfer(worker, link.worker, bits, link.started, seconds)
        if link.lost or not link.bytes:
            return None
        return Transfer(worker, link.worker, 8.0 * link.bytes, link.started, link.seconds)

    def _column(self, reports: WireReports, name: str) -> FloatArray:
        """One field of all reports, [N], NaN where there is none."""
        column = np.full(self.workers, np.nan)
        for worker, report in reports.items():
            column[worker] = getattr(report, name)
        return column

    def _selected(self, plan: Plan, reports: WireReports) -> IntArray:
        """The peers that each worker kept after scoring, [N, keep], -1 where there are fewer."""
        if not isinstance(plan.exchange, PeerScoring):
            return np.empty((self.workers, 0), dtype=np.int64)
        width = max((len(report.selected) for report in reports.values()), default=0)
        table = np.full((self.workers, width), -1, dtype=np.int64)
        for worker, report in reports.items():
            table[worker, : len(report.selected)] = list(report.selected)
        return table


def all_sources(plan: Plan) -> list[list[int]]:
    """For each worker, the workers whose models it pulls, in ascending order."""
    exchange = plan.exchange
    if isinstance(exchange, NeighborMixing):
        start, neighbors = (array.tolist() for array in neighbor_lists(exchange.topology))
        return [sorted(neighbors[first:stop]) for first, stop in pairwise(start)]
    assert not isinstance(exchange, GroupAverage)  # sums travel, not models
    if isinstance(exchange, WeightedMixing):
        pulled: list[list[int]] = [[] for _ in exchange.own_weights]
        for receiver, sender in exchange.links.tolist():
            pulled[receiver].append(sender)
        return [sorted(senders) for senders in pulled]
    table = exchange.candidates if isinstance(exchange, PeerScoring) else exchange.sources
    return [sorted({source for source in row if source >= 0}) for row in table.tolist()]


def _without_links(plan: Plan, avoid: frozenset[Pair]) -> Plan:
    """The plan without links between neighbors that do not work; trees have none of them."""
    exchange = plan.exchange
    if not isinstance(exchange, NeighborMixing) or not avoid:
        return plan
    topology = exchange.topology
    kept = np.array([(a, b) not in avoid for a, b in topology.links.tolist()], dtype=np.bool_)
    weights = None if topology.weights is None else topology.weights[kept]
    topology = Topology(topology.workers, topology.links[kept], weights)
    return replace(plan, exchange=replace(exchange, topology=topology))


def _without_group(plan: Plan) -> Plan:
    """The same round in which nobody averages."""
    exchange, decision = plan.exchange, plan.decision
    assert isinstance(exchange, GroupAverage)
    nobody = np.empty(0, dtype=np.int64)
    group = replace(
        exchange, participants=nobody, parents=nobody, returning=nobody.astype(np.bool_)
    )
    participation = decision.participation
    if participation is not None:
        roles = tuple(
            role if role is GroupRole.AWAY else GroupRole.LEFT_OUT for role in participation.roles
        )
        returning = np.zeros_like(participation.returning)
        participation = replace(participation, roles=roles, returning=returning, root=-1)
    decision = replace(
        decision,
        links=np.empty((0, 2), dtype=np.int64),
        verdicts=nobody,
        link_time=np.empty(0),
        facts={**decision.facts, "participants": 0.0, "planned_transfer_time": 0.0},
        participation=participation,
    )
    return replace(plan, exchange=group, decision=decision)


def _ensure_connected(plan: Plan, observation: Observation) -> Plan:
    """The plan with links added until the present workers are connected: a base topology may
    fall apart when machines are missing. One that changes is connected over rounds only."""
    exchange = plan.exchange
    if not isinstance(exchange, NeighborMixing) or observation.changing:
        return plan
    present = np.flatnonzero(observation.available)
    topology = exchange.topology
    while len(present) > 1:
        labels = components_of(topology)[present]
        if (labels == labels[0]).all():
            break
        inside, outside = present[labels == labels[0]], present[labels != labels[0]]
        pairs = np.stack([np.repeat(inside, len(outside)), np.tile(outside, len(inside))], axis=1)
        pairs.sort(axis=1)
        works = [(a, b) not in observation.avoid for a, b in pairs.tolist()]
        pairs = pairs[works] if any(works) else pairs
        fastest = pairs[observation.network.link_time(pairs).argmin()]
        added = (int(fastest[0]), int(fastest[1]))
        topology = topology_from(topology.workers, [*topology.links.tolist(), added])
    if topology is exchange.topology:
        return plan
    return replace(plan, exchange=replace(exchange, topology=topology))


def _measured_links(
    planned: PlannedRound, reports: WireReports
) -> tuple[IntArray, FloatArray, IntArray, FloatArray]:
    """The links over which models went: pairs, seconds, bytes and distances."""
    directed = not isinstance(planned.plan.exchange, NeighborMixing | GroupAverage)
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
