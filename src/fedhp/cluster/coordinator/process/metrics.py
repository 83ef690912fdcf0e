"""The coordinator's metrics for Prometheus, and its health.

Rounds are counted as they end; everything else is looked up at each request.
"""

from __future__ import annotations

import contextlib
import math
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import prometheus_client as prometheus
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fedhp.cluster.coordinator.conductor import MemberStatus
from fedhp.cluster.coordinator.context import Phase
from fedhp.cluster.coordinator.coordinator import Coordinator
from fedhp.cluster.metrics_server import BUCKETS, Health, expiry_metric
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.types import RoundRecord

MOST_LINKS = 10_000  # links that are counted one by one; the others are counted together
HEALTHY = (Phase.RUNNING, Phase.FINISHED)
UP = (MemberStatus.READY, MemberStatus.BEHIND, MemberStatus.SUSPENDED, "draining")
CAUSES = ("unreachable", "deadline", "refused", "failed")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A coordinator at one moment."""

    state: str = Phase.WAITING
    why: str = "for the lead"
    leading: bool = False
    epoch: int = 0
    round_index: int = 0
    rounds: int = 0
    members: Mapping[str, int] = field(default_factory=dict)  # how many by status
    refused: Mapping[str, int] = field(default_factory=dict)  # messages by reason
    quarantined: int = 0
    certificates: Mapping[str, float] = field(default_factory=dict)  # s until they end, by name
    silent: Mapping[str, float] = field(default_factory=dict)  # s since the last call, by name
    up: Mapping[str, bool] = field(default_factory=dict)  # whether it takes part or soon will
    broken: Mapping[tuple[str, str, str], int] = field(default_factory=dict)  # see broken_by_name
    broken_links: int = 0  # also those that `broken` leaves out
    warnings: Mapping[tuple[str, str], float] = field(default_factory=dict)  # by key and member
    disk_free: float = math.nan  # bytes, where the record is


def snapshot_of(coordinator: Coordinator | None) -> Snapshot:
    """The coordinator now; call it in its event loop."""
    state = None if coordinator is None else coordinator.state
    if state is None:
        return Snapshot()
    status, disk_free = state.status(), math.nan
    with contextlib.suppress(OSError):
        disk_free = float(shutil.disk_usage(state.context.record.folder).free)
    refused: Counter[str] = Counter()
    for (_, reason), count in state.guard.counts().items():
        refused[reason] += count
    return Snapshot(
        state=status.state,
        why=status.why,
        leading=state.leads(),
        epoch=status.epoch,
        round_index=status.round,
        rounds=status.rounds,
        members=Counter(member.status for member in status.members),
        refused=refused,
        quarantined=len(state.guard.quarantined()),
        silent={
            member.name: member.silent_seconds
            for member in status.members
            if member.silent_seconds < limits.FOREVER
        },
        up={member.name: member.status in UP for member in status.members},
        broken=broken_by_name(status),
        broken_links=status.broken_links,
        warnings={
            (warning.key, name): warning.value
            for warning in status.warnings
            for name in warning.members or [""]
        },
        disk_free=disk_free,
    )


def broken_by_name(status: wire.StatusReply) -> dict[tuple[str, str, str], int]:
    """How often links failed in a row, by worker, peer and a cause out of CAUSES: a label with
    the text of a member could have any number of values."""
    names = {member.worker: member.name for member in status.members}
    broken = {}
    for link in status.broken:
        cause = link.why.partition(":")[0]
        ends = names.get(link.worker, str(link.worker)), names.get(link.peer, str(link.peer))
        broken[*ends, cause if cause in CAUSES else "other"] = link.failures
    return broken


def health(snapshot: Snapshot) -> Health:
    """Whether it leads and makes progress, and the same in words."""
    state = snapshot.state
    if state == Phase.FINISHED or (snapshot.leading and state in HEALTHY):
        return Health(True, f"{state}, round {snapshot.round_index} of {snapshot.rounds}")
    if state in HEALTHY:
        return Health(False, "this process does not lead")
    return Health(False, f"{state}: {snapshot.why}" if snapshot.why else state)


class Metrics:
    """All metrics of one process."""

    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        self.snapshot = Snapshot()
        self._links: set[tuple[str, str]] = set()
        self._round_seconds = prometheus.Histogram(
            "fedhp_round_seconds",
            "Duration of rounds.",
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._gauges = {
            name: prometheus.Gauge(f"fedhp_{name}", text, labels, registry=self.registry)
            for name, text, labels in (
                ("waiting_seconds", "Waiting time in the last round.", ["worker"]),
                ("mean_waiting_seconds", "Mean waiting time in the last round.", []),
                ("local_steps", "Local steps in the last round.", ["worker"]),
                ("step_seconds", "Mean time of one local step.", ["worker"]),
                ("accuracy", "Accuracy at the last test.", ["worker"]),
                ("mean_accuracy", "Mean accuracy of the workers at the last test.", []),
            )
        }
        self._bytes = prometheus.Counter(
            "fedhp_link_bytes",
            "Bytes of models sent over a link.",
            ("a", "b"),
            registry=self.registry,
        )
        self.registry.register(self)

    def update(self, snapshot: Snapshot) -> Health:
        """Show this snapshot from now on; whether all is well."""
        self.snapshot = snapshot
        return health(snapshot)

    def round_ended(self, record: RoundRecord) -> None:
        timing = record.timing
        self._round_seconds.observe(timing.round_time)
        self._gauges["mean_waiting_seconds"].set(timing.mean_waiting_time)
        columns = {
            "waiting_seconds": timing.waiting_time,
            "local_steps": record.local_steps,
            "step_seconds": record.step_time,
        }
        if record.evaluation is not None:
            columns["accuracy"] = record.evaluation.accuracy
            self._gauges["mean_accuracy"].set(record.evaluation.mean_accuracy)
        for name, values in columns.items():
            for worker, value in enumerate(values.tolist()):
                if math.isfinite(value):
                    self._gauges[name].labels(str(worker)).set(value)
        for (a, b), size in zip(record.links.tolist(), record.link_bytes.tolist(), strict=True):
            link = str(a), str(b)
            if len(self._links) < MOST_LINKS:
                self._links.add(link)
            self._bytes.labels(*(link if link in self._links else ("other", "other"))).inc(size)

    def collect(self) -> Iterator[Metric]:
        """The metrics of the latest snapshot, for the registry."""
        now = self.snapshot
        for name, text, value in (
            ("epoch", "Epoch of the coordinator; the largest leads.", now.epoch),
            ("round", "The last committed round.", now.round_index),
            ("rounds", "Rounds of the experiment.", now.rounds),
            ("leading", "1 while this process coordinates.", now.leading),
            ("paused", "1 while the run cannot continue.", now.state == "paused"),
            ("quarantined", "Senders in quarantine.", now.quarantined),
            ("broken_links", "Links that failed at the last try.", now.broken_links),
            ("disk_free_bytes", "Free space on the disk of the run folder.", now.disk_free),
        ):
            yield GaugeMetricFamily(f"fedhp_{name}", text, value=float(value))
        statuses = {status: now.members.get(status, 0) for status in (*MemberStatus, "draining")}
        failures = "Failures in a row of a worker to get the model of a peer."
        labelled: list[tuple[str, str, str, Mapping[Any, float]]] = [
            ("members", "Workers by status.", "status", statuses),
            ("refused_messages", "Refused messages by reason.", "reason", now.refused),
            ("member_silent_seconds", "Time since the last call.", "name", now.silent),
            ("member_up", "1 while it takes part or is about to.", "name", now.up),
            ("broken_link_failures", failures, "worker peer why", now.broken),
            (
                "warning",
                "Something unusual that lasts, as in the status.",
                "key member",
                now.warnings,
            ),
        ]
        for name, text, labels, samples in labelled:
            kind = CounterMetricFamily if name == "refused_messages" else GaugeMetricFamily
            family = kind(f"fedhp_{name}", text, labels=labels.split())
            for subject, sample in sorted(samples.items()):
                family.add_metric([subject] if isinstance(subject, str) else subject, float(sample))
            yield family
        yield expiry_metric(now.certificates)
