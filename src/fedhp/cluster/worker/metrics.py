"""A worker's metrics for Prometheus, and its health.

Rounds are counted as they end; everything else is looked up at each request.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import prometheus_client as prometheus
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fedhp.cluster.metrics_server import BUCKETS, Health, expiry_metric
from fedhp.cluster.worker.rounds import RoundProgress

SILENT_SECONDS = 30.0  # without an answer of the coordinator until a worker is not healthy


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """A worker at one moment."""

    joined: bool = False
    phase: str = "joining"
    epoch: int = 0
    round_index: int = 0
    step_seconds: float = math.nan
    silent_seconds: float = math.nan  # since the coordinator's last answer
    sent_bytes: int = 0
    received_bytes: int = 0
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)  # messages by reason
    certificates: Mapping[str, float] = field(default_factory=dict)  # s until they end, by name


class WorkerMetrics:
    """All metrics of one worker."""

    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        self._snapshot = WorkerSnapshot()
        self._rounds, self._steps, self._lost = (
            prometheus.Counter(f"fedhp_worker_{name}", text, registry=self.registry)
            for name, text in (
                ("rounds", "Rounds in which this worker took part."),
                ("steps", "Local steps."),
                ("lost_models", "Models of peers that did not come."),
            )
        )
        self._accuracy = prometheus.Gauge(
            "fedhp_worker_accuracy", "Accuracy at the last test.", registry=self.registry
        )
        self._accuracy.set(math.nan)
        self._round_seconds = prometheus.Histogram(
            "fedhp_worker_round_seconds",
            "Duration of this worker's part in a round.",
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.registry.register(self)

    def update(self, snapshot: WorkerSnapshot) -> Health:
        """Show this snapshot from now on; whether all is well."""
        self._snapshot = snapshot
        if not snapshot.joined:
            return Health(False, "joining: no coordinator has answered yet")
        if snapshot.silent_seconds > SILENT_SECONDS:
            words = f"the coordinator has not answered for {snapshot.silent_seconds:.0f} s"
            return Health(False, words)
        return Health(True, f"{snapshot.phase}, round {snapshot.round_index}")

    def round_ended(self, progress: RoundProgress) -> None:
        """Count a round that was reported."""
        self._rounds.inc()
        self._steps.inc(progress.local_steps)
        self._lost.inc(progress.lost)
        self._round_seconds.observe(progress.seconds)
        if not math.isnan(progress.accuracy):
            self._accuracy.set(progress.accuracy)

    def collect(self) -> Iterator[Metric]:
        """The metrics of the latest snapshot, for the registry."""
        now = self._snapshot
        for name, text, value in (
            ("joined", "1 after this worker has joined a run.", now.joined),
            ("epoch", "Epoch of the coordinator that this worker follows.", now.epoch),
            ("round", "The round that this worker is at.", now.round_index),
            ("step_seconds", "Time of one local step, as measured last.", now.step_seconds),
            (
                "coordinator_silent_seconds",
                "Time since the coordinator's last answer.",
                now.silent_seconds,
            ),
        ):
            yield GaugeMetricFamily(f"fedhp_worker_{name}", text, value=float(value))
        for name, text, count in (
            ("sent_bytes", "Bytes of models and probes sent to peers.", now.sent_bytes),
            ("received_bytes", "Bytes of models and probes from peers.", now.received_bytes),
        ):
            yield CounterMetricFamily(f"fedhp_worker_{name}", text, value=count)
        phases = "Time spent in each phase; in 'waiting' it waits for the others."
        for name, text, label, values in (
            ("phase_seconds", phases, "phase", now.phase_seconds),
            ("refused_messages", "Refused messages by reason.", "reason", now.refused),
        ):
            family = CounterMetricFamily(f"fedhp_worker_{name}", text, labels=(label,))
            for key, value in sorted(values.items()):
                family.add_metric((key,), value)
            yield family
        yield expiry_metric(now.certificates)
