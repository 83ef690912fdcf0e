"""Metrics for Prometheus and a health check over plain HTTP: /metrics and /healthz.

Rounds are counted as they end. Everything else is looked up at each request, by the
coordinator's own event loop: a loop that hangs is reported as not healthy.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import prometheus_client as prometheus
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fedhp.cluster.coordinator.conductor import MemberStatus
from fedhp.cluster.coordinator.coordinator import Coordinator
from fedhp.cluster.coordinator.handlers import CoordinatorHandlers
from fedhp.cluster.coordinator.state import Phase
from fedhp.cluster.protocol.addresses import parse_listen
from fedhp.errors import ConfigError
from fedhp.types import RoundRecord

EVENT_LOOP_SECONDS = 2.0  # that the event loop may take to answer
REQUEST_SECONDS = 10.0  # for one HTTP request
MOST_LINKS = 10_000  # links that are counted one by one; the others are counted together
BUCKETS = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800, 3600, math.inf)
HEALTHY = (Phase.RUNNING, Phase.FINISHED)


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


def snapshot_of(coordinator: Coordinator | None) -> Snapshot:
    """The coordinator now; call it in its event loop."""
    state = None if coordinator is None else coordinator.state
    if state is None:
        return Snapshot()
    status = CoordinatorHandlers(state).status()
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
    )


def health(snapshot: Snapshot) -> tuple[bool, str]:
    """Whether it leads and makes progress, and the same in words."""
    state = snapshot.state
    if state == Phase.FINISHED or (snapshot.leading and state in HEALTHY):
        return True, f"{state}, round {snapshot.round_index} of {snapshot.rounds}"
    if state in HEALTHY:
        return False, "this process does not lead"
    return False, f"{state}: {snapshot.why}" if snapshot.why else state


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
        self._waiting = self._gauge(
            "waiting_seconds", "Waiting time in the last round.", ("worker",)
        )
        self._mean_waiting = self._gauge(
            "mean_waiting_seconds", "Mean waiting time in the last round."
        )
        self._steps = self._gauge("local_steps", "Local steps in the last round.", ("worker",))
        self._step_seconds = self._gauge(
            "step_seconds", "Mean time of one local step.", ("worker",)
        )
        self._accuracy = self._gauge("accuracy", "Accuracy at the last test.", ("worker",))
        self._mean_accuracy = self._gauge(
            "mean_accuracy", "Mean accuracy of the workers at the last test."
        )
        self._bytes = prometheus.Counter(
            "fedhp_link_bytes",
            "Bytes of models sent over a link.",
            ("a", "b"),
            registry=self.registry,
        )
        self.registry.register(self)

    def round_ended(self, record: RoundRecord) -> None:
        """Count a committed round."""
        timing = record.timing
        self._round_seconds.observe(timing.round_time)
        self._mean_waiting.set(timing.mean_waiting_time)
        _set_each(self._waiting, timing.waiting_time.tolist())
        _set_each(self._steps, record.local_steps.tolist())
        _set_each(self._step_seconds, record.step_time.tolist())
        if record.evaluation is not None:
            _set_each(self._accuracy, record.evaluation.accuracy.tolist())
            self._mean_accuracy.set(record.evaluation.mean_accuracy)
        pairs = zip(record.links.tolist(), record.link_bytes.tolist(), strict=True)
        for (a, b), size in pairs:
            self._bytes.labels(*self._link(str(a), str(b))).inc(size)

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
        ):
            yield GaugeMetricFamily(f"fedhp_{name}", text, value=float(value))
        members = GaugeMetricFamily("fedhp_members", "Workers by status.", labels=("status",))
        for status in MemberStatus:
            members.add_metric((str(status),), now.members.get(status, 0))
        members.add_metric(("draining",), now.members.get("draining", 0))
        yield members
        refused = CounterMetricFamily(
            "fedhp_refused_messages", "Refused messages by reason.", labels=("reason",)
        )
        for reason, count in sorted(now.refused.items()):
            refused.add_metric((reason,), count)
        yield refused

    def _link(self, a: str, b: str) -> tuple[str, str]:
        if (a, b) not in self._links:
            if len(self._links) >= MOST_LINKS:
                return "other", "other"
            self._links.add((a, b))
        return a, b

    def _gauge(self, name: str, text: str, labels: tuple[str, ...] = ()) -> prometheus.Gauge:
        return prometheus.Gauge(f"fedhp_{name}", text, labels, registry=self.registry)


def _set_each(gauge: prometheus.Gauge, values: Iterable[float]) -> None:
    for worker, value in enumerate(values):
        if math.isfinite(value):
            gauge.labels(str(worker)).set(value)


class MetricsServer:
    """Answers /metrics and /healthz in its own threads; make it inside an event loop."""

    def __init__(self, address: str, metrics: Metrics, snapshot: Callable[[], Snapshot]) -> None:
        self._metrics, self._snapshot = metrics, snapshot
        self._loop = asyncio.get_running_loop()
        self._metrics_page = prometheus.make_wsgi_app(metrics.registry)
        listen = parse_listen(address, key="--metrics")
        server_class = _Server6 if listen.family == socket.AF_INET6 else _Server
        try:
            self._server = make_server(
                listen.host, listen.port, self._answer, server_class, _QuietRequestHandler
            )
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {address}: {error.strerror}",
                key="--metrics",
                allowed="HOST:PORT of this machine that is not in use, port 0 for any free one",
                fix="choose another port",
            ) from None
        self.port = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop answering. Not from the event loop's thread while a request waits for it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(REQUEST_SECONDS)

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            return _page(start_response, "405 Method Not Allowed", "only GET is supported\n")
        if path not in ("/metrics", "/healthz"):
            return _page(start_response, "404 Not Found", "the pages are /metrics and /healthz\n")
        snapshot = self._look_up()
        if path == "/healthz":
            healthy, words = False, "the event loop does not answer"
            if snapshot is not None:
                healthy, words = health(snapshot)
            return _page(start_response, "200 OK" if healthy else "503 Unavailable", f"{words}\n")
        if snapshot is not None:
            self._metrics.snapshot = snapshot
        page: Iterable[bytes] = self._metrics_page(environ, start_response)
        return page

    def _look_up(self) -> Snapshot | None:
        """A snapshot from the event loop's thread; None if the loop does not answer."""

        async def snapshot() -> Snapshot:
            return self._snapshot()

        try:
            return asyncio.run_coroutine_threadsafe(snapshot(), self._loop).result(
                EVENT_LOOP_SECONDS
            )
        except (RuntimeError, concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            return None


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that hung up."""


class _Server6(_Server):
    address_family = socket.AF_INET6


class _QuietRequestHandler(WSGIRequestHandler):
    timeout = REQUEST_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: Prometheus asks all the time."""


def _page(start_response: Any, status: str, text: str) -> list[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [text.encode()]
