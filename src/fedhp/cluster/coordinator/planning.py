"""The algorithm's side of the coordinator: what is known, the next plan, a round's record.

The same planning code as in simulation; times are those that workers measured. All of it can
be packed into bytes and taken up again by another coordinator.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedhp.algorithms import Algorithm, Observation
from fedhp.cluster.coordinator.capacity import Transfer
from fedhp.cluster.coordinator.link_estimates import SLOWEST_GUESS, Links
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.poisoned import least_peers, poisoned_of
from fedhp.engine.accounting import first_reports, mean_bandwidth, rate_at
from fedhp.engine.context import BareStage
from fedhp.engine.executor import travelled
from fedhp.graph import components_of, topology_from
from fedhp.record.packing import Arrays, pack, unpack
from fedhp.record.tensors import read_buffer, tensor_file
from fedhp.types import (
    BoolArray,
    Evaluation,
    FloatArray,
    IntArray,
    NeighborMixing,
    PeerScoring,
    Plan,
    Reports,
    RoundRecord,
    Timing,
)


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan and what it was made from."""

    state: Any
    plan: Plan
    observation: Observation
    local_steps: IntArray  # [N]
    predicted: float  # s, the round by what is known


class Planning:
    """Everything a synchronous algorithm needs from one round to the next."""

    def __init__(self, stage: BareStage) -> None:
        algorithm = stage.algorithm
        assert isinstance(algorithm, Algorithm)
        self.stage = stage
        self.algorithm = algorithm
        self.workers = stage.experiment.workers
        self.clock = 0.0
        self.links = Links.unknown(self.workers)
        self.state: Any = algorithm.start(stage.federation)
        self.reports: Reports | None = None
        self.step_time = np.full(self.workers, np.nan)

    def plan(self, round_index: int, present: BoolArray, step_time: FloatArray) -> Planned:
        """The next round for the workers that are there; step_time [N] is their last one."""
        experiment = self.stage.experiment
        self.step_time = np.where(np.isfinite(step_time), step_time, self.step_time)
        observation = Observation(
            round_index=round_index,
            clock=self.clock,
            learning_rate=rate_at(experiment, round_index, self.clock),
            available=present,
            network=self.links.network(
                model_bits=self.stage.world.model_bits,
                sharing=self.stage.world.sharing,
                otherwise=SLOWEST_GUESS,
            ),
        )
        reports = self.reports or first_reports(self.step_time)
        state, plan = self.algorithm.plan(self.state, observation, self._filled(reports, present))
        plan = self._ensure_min_degree(_joined_up(plan, observation), observation)
        if plan.local_steps is not None:
            steps = plan.local_steps
        else:
            assert plan.deadline is not None
            steps = np.maximum(1, plan.deadline // self.step_time).astype(np.int64)
        steps = np.where(present, np.nan_to_num(steps), 0).astype(np.int64)
        return Planned(state, plan, observation, steps, self._predicted(plan, observation, steps))

    def finish(
        self, planned: Planned, found: Mapping[int, wire.RoundReport], *, seconds: float
    ) -> RoundRecord:
        """The record of a round that took so long, by the reports that count."""
        took_part = np.isin(np.arange(self.workers), list(found))
        links, times, sizes, distances = self._measured_links(planned, found)
        compute = _column(found, "compute_seconds", self.workers)
        communication = np.where(took_part, 0.0, np.nan)
        np.fmax.at(communication, links[:, 0], times)
        if isinstance(planned.plan.exchange, NeighborMixing):
            np.fmax.at(communication, links[:, 1], times)
        # Mixing, testing and keeping is no waiting, though the simulation has none of it.
        other = _column(found, "other_seconds", self.workers)
        worked = np.minimum(compute + communication + other, seconds)
        images = max((report.images for report in found.values()), default=0)
        record = RoundRecord(
            round_index=planned.observation.round_index,
            clock=self.clock + seconds,
            learning_rate=planned.observation.learning_rate,
            local_steps=np.where(took_part, planned.local_steps, 0),
            step_time=_column(found, "step_time", self.workers),
            timing=Timing(compute, communication, worked, seconds - worked, seconds),
            links=links,
            link_time=times,
            link_bytes=sizes,
            link_distance=distances,
            decision=planned.plan.decision,
            train_loss=_column(found, "train_loss", self.workers),
            update_norm=_column(found, "update_norm", self.workers),
            smoothness=_column(found, "smoothness", self.workers),
            gradient_variance=_column(found, "gradient_variance", self.workers),
            bandwidth=mean_bandwidth(planned.observation.network),
            evaluation=evaluation_of(_column(found, "accuracy", self.workers), images),
            wall={"round": seconds},
            final_evaluation=evaluation_of(_column(found, "whole_accuracy", self.workers), images),
        )
        first = record.round_index == 1
        missing = np.full(self.workers, np.nan)
        start_loss = _column(found, "start_loss", self.workers) if first else missing
        measured = np.isfinite(distances)
        self.reports = Reports(
            round_index=record.round_index,
            step_time=record.step_time,
            update_norm=record.update_norm,
            links=links[measured],
            distance=distances[measured],
            smoothness=record.smoothness,
            gradient_variance=record.gradient_variance,
            start_loss=start_loss,
            selected=_selected(planned.plan, found, self.workers),
        )
        self.state, self.clock = planned.state, record.clock
        told = {worker: report.links for worker, report in found.items()}
        self._learn_links(told, round_index=record.round_index)
        return record

    def probes(self, planned: Planned) -> list[tuple[int, int]]:
        """Links to time beside this plan's: those of which nothing was heard for some rounds."""
        cluster, seen = self.stage.experiment.cluster, planned.observation
        if not cluster.probe_bytes:
            return []
        stale = self.links.stale(
            seen.available, round_index=seen.round_index, every=cluster.probe_every
        )
        used = set(map(tuple, np.sort(travelled(planned.plan.exchange), axis=1).tolist()))
        return [pair for pair in stale if pair not in used]

    def survey(self, found: Mapping[int, Sequence[wire.LinkReport]]) -> None:
        """What was found of links before the first round."""
        self._learn_links(found, round_index=0)

    def pack(self) -> bytes:
        """All of it."""
        arrays, scalars = pack("state", self.state)
        if self.reports is not None:
            more, others = pack("reports", self.reports)
            arrays, scalars = {**arrays, **more}, {**scalars, **others}
        arrays.update(self.links.pack())
        arrays["step_time"] = self.step_time
        scalars["clock"] = self.clock
        return packed(arrays, scalars)

    def unpack(self, content: bytes) -> None:
        """Go on from there."""
        arrays, scalars = unpacked(content)
        self.state = unpack("state", type(self.state), arrays, scalars)
        if "reports.round_index" in scalars:
            self.reports = unpack("reports", Reports, arrays, scalars)
        self.links = Links.unpack(arrays)
        self.step_time = arrays["step_time"]
        self.clock = float(scalars["clock"])

    # --- inside ----------------------------------------------------------------------------

    def _ensure_min_degree(self, plan: Plan, observation: Observation) -> Plan:
        """The same plan with links added, the fastest first, until everyone has as many peers as
        mixing needs to withstand poisoned ones."""
        cluster, exchange = self.stage.experiment.cluster, plan.exchange
        poisoned = poisoned_of(self.workers, cluster.trim)
        least = least_peers(int(observation.available.sum()), poisoned, rule=cluster.robust)
        if not isinstance(exchange, NeighborMixing) or least <= 0:
            return plan
        there = np.flatnonzero(observation.available)
        pairs = np.array([(a, b) for a in there for b in there if a < b], dtype=np.int64)
        order = np.argsort(observation.network.link_time(pairs), kind="stable")
        links = {(int(a), int(b)) for a, b in exchange.topology.links}
        peers = exchange.topology.degrees.copy()
        for a, b in pairs[order].tolist():
            if (a, b) not in links and min(peers[a], peers[b]) < least:
                links.add((a, b))
                peers[[a, b]] += 1
        return replace(
            plan, exchange=replace(exchange, topology=topology_from(self.workers, sorted(links)))
        )

    def _filled(self, reports: Reports, present: BoolArray) -> Reports:
        """Someone who is there but did not report, having just come, is known by its own word."""
        known = np.isfinite(reports.step_time)
        filled = np.where(known | ~present, reports.step_time, self.step_time)
        return replace(reports, step_time=filled)

    def _predicted(self, plan: Plan, observation: Observation, steps: IntArray) -> float:
        """How long the round should take: the slowest worker's steps and links."""
        links = travelled(plan.exchange)
        transfers = np.bincount(links.ravel(), minlength=self.workers)
        times = observation.network.link_time(links, transfers)
        communication = np.zeros(self.workers)
        np.maximum.at(communication, links[:, 0], times)
        np.maximum.at(communication, links[:, 1], times)
        there = observation.available
        spent = np.nan_to_num(self.step_time) * steps + communication
        return float(spent[there].max()) if there.any() else 0.0

    def _measured_links(
        self, planned: Planned, found: Mapping[int, wire.RoundReport]
    ) -> tuple[IntArray, FloatArray, IntArray, FloatArray]:
        """Links over which models went: pairs, seconds, bytes and distances."""
        directed = not isinstance(planned.plan.exchange, NeighborMixing)
        seen: dict[tuple[int, int], tuple[float, int, float]] = {}
        for worker, report in sorted(found.items()):
            for link in report.links:
                if link.probe or link.lost:
                    continue
                pair = (worker, link.worker)
                if not directed:
                    pair = (min(pair), max(pair))
                time, size, apart = seen.get(pair, (0.0, 0, np.nan))
                far = apart if np.isfinite(apart) else link.distance
                seen[pair] = max(time, link.seconds), size + link.bytes, far
        pairs = np.array(sorted(seen), dtype=np.int64).reshape(-1, 2)
        rows = [seen[pair] for pair in sorted(seen)]
        return (
            pairs,
            np.array([time for time, _, _ in rows], dtype=np.float64),
            np.array([size for _, size, _ in rows], dtype=np.int64),
            np.array([far for _, _, far in rows], dtype=np.float64),
        )

    def _learn_links(
        self, found: Mapping[int, Sequence[wire.LinkReport]], *, round_index: int
    ) -> None:
        """Orders are given to all at once, so the times since then can be compared."""
        transfers = [
            Transfer(worker, link.worker, 8.0 * link.bytes, link.started, link.seconds)
            for worker, links in sorted(found.items())
            for link in links
            if not link.lost and link.bytes > 0
        ]
        if self.stage.world.sharing:
            self.links.learn_shared(transfers, round_index=round_index)
            return
        for each in transfers:
            self.links.learn(
                each.receiver,
                each.sender,
                bits=each.bits,
                seconds=each.seconds,
                round_index=round_index,
            )


def sources_of(plan: Plan, worker: int) -> list[int]:
    """Whose models a worker pulls, rising."""
    exchange = plan.exchange
    if isinstance(exchange, NeighborMixing):
        links = exchange.topology.links
        ends = np.concatenate([links[links[:, 0] == worker, 1], links[links[:, 1] == worker, 0]])
        return sorted(ends.tolist())
    table = exchange.candidates if isinstance(exchange, PeerScoring) else exchange.sources
    return sorted({int(each) for each in table[worker] if each >= 0})


def _joined_up(plan: Plan, observation: Observation) -> Plan:
    """The same plan with links added until those that are there are connected: a base topology
    may fall apart when machines are missing."""
    exchange = plan.exchange
    if not isinstance(exchange, NeighborMixing):
        return plan
    there = np.flatnonzero(observation.available)
    topology = exchange.topology
    added: list[tuple[int, int]] = []
    while len(there) > 1:
        whole = topology_from(topology.workers, [*topology.links.tolist(), *added])
        labels = components_of(whole)[there]
        if (labels == labels[0]).all():
            break
        inside, outside = there[labels == labels[0]], there[labels != labels[0]]
        pairs = np.array([(a, b) for a in inside for b in outside], dtype=np.int64)
        times = observation.network.link_time(np.sort(pairs, axis=1))
        added.append((int(pairs[times.argmin()].min()), int(pairs[times.argmin()].max())))
    if not added:
        return plan
    repaired = topology_from(topology.workers, [*topology.links.tolist(), *added])
    return replace(plan, exchange=replace(exchange, topology=repaired))


def _column(found: Mapping[int, wire.RoundReport], name: str, workers: int) -> FloatArray:
    column = np.full(workers, np.nan)
    for worker, report in found.items():
        column[worker] = getattr(report, name)
    return column


def evaluation_of(accuracy: FloatArray, images: int) -> Evaluation | None:
    """What the workers that tested found; nobody sees all models, so there is no mean model."""
    tested = accuracy[np.isfinite(accuracy)]
    if not tested.size:
        return None
    share = float(tested.mean())
    counts = images > 0 and 0 <= share <= 1
    error = float(np.sqrt(share * (1 - share) / images)) if counts else float("nan")
    return Evaluation(accuracy, float("nan"), images, error)


def _selected(plan: Plan, found: Mapping[int, wire.RoundReport], workers: int) -> IntArray:
    if not isinstance(plan.exchange, PeerScoring):
        return np.empty((workers, 0), dtype=np.int64)
    width = max((len(report.selected) for report in found.values()), default=0)
    table = np.full((workers, width), -1, dtype=np.int64)
    for worker, report in found.items():
        table[worker, : len(report.selected)] = list(report.selected)
    return table


def packed(arrays: Arrays, scalars: dict[str, Any]) -> bytes:
    """Arrays and scalars as one safetensors file."""
    parts = tensor_file(arrays, {"scalars": json.dumps(scalars)})
    return b"".join(bytes(part) for part in parts)


def unpacked(content: bytes) -> tuple[Arrays, dict[str, Any]]:
    """As they were packed."""
    arrays, metadata = read_buffer(content)
    return arrays, json.loads(metadata["scalars"])
