"""Numbers for Prometheus and a health check, over plain HTTP: /metrics and /healthz.

Numbers of rounds are counted as they end. Everything else is looked up when somebody asks, by
the coordinator's own event loop: a loop that hangs is reported as not healthy.
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
from fedhp.cluster.protocol.addresses import parse_listen
from fedhp.errors import ConfigError
from fedhp.types import RoundRecord

PATIENCE = 2.0  # s that the event loop may take to answer
REQUEST_SECONDS = 10.0  # for one HTTP request
MOST_LINKS = 10_000  # links with a line of their own; the others are counted together
BUCKETS = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800, 3600, math.inf)
HEALTHY = ("running", "finished")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How a coordinator stands at one moment."""

    state: str = "waiting"
    why: str = "for the lead"
    leading: bool = False
    epoch: int = 0
    round_index: int = 0
    rounds: int = 0
    members: Mapping[str, int] = field(default_factory=dict)  # how many by status
    refused: Mapping[str, int] = field(default_factory=dict)  # messages by reason
    quarantined: int = 0


def snapshot_of(coordinator: Coordinator | None) -> Snapshot:
    """Looked up in the coordinator's event loop."""
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


def health(now: Snapshot) -> tuple[bool, str]:
    """Whether it leads and goes on, and in words."""
    if now.state == "finished" or (now.leading and now.state in HEALTHY):
        return True, f"{now.state}, round {now.round_index} of {now.rounds}"
    if now.state in HEALTHY:
        return False, "this process does not lead"
    return False, f"{now.state}: {now.why}" if now.why else now.state


class Metrics:
    """All numbers of one process."""

    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        self.now = Snapshot()
        self._links: set[tuple[str, str]] = set()
        self._round_seconds = prometheus.Histogram(
            "fedhp_round_seconds",
            "How long rounds took.",
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._waiting = self._gauge("waiting_seconds", "Waiting in the last round.", ("worker",))
        self._mean_waiting = self._gauge("mean_waiting_seconds", "Mean waiting in the last round.")
        self._steps = self._gauge("local_steps", "Local steps in the last round.", ("worker",))
        self._step_seconds = self._gauge("step_seconds", "One local step, mean.", ("worker",))
        self._accuracy = self._gauge("accuracy", "At the last test.", ("worker",))
        self._mean_accuracy = self._gauge("mean_accuracy", "Mean of the workers, last test.")
        self._bytes = prometheus.Counter(
            "fedhp_link_bytes",
            "Bytes of models sent over a link.",
            ("a", "b"),
            registry=self.registry,
        )
        self.registry.register(_Now(self))

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


class _Now:
    """The numbers that are looked up when somebody asks."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterator[Metric]:
        """Their names are known beforehand."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """One family after the other."""
        now = self._metrics.now
        for name, text, value in (
            ("epoch", "Of the coordinator; the largest leads.", now.epoch),
            ("round", "The last committed round.", now.round_index),
            ("rounds", "How many rounds are wanted.", now.rounds),
            ("leading", "1 while this process coordinates.", now.leading),
            ("paused", "1 while the run cannot go on.", now.state == "paused"),
            ("quarantined", "Senders that are shut out.", now.quarantined),
        ):
            yield GaugeMetricFamily(f"fedhp_{name}", text, value=float(value))
        members = GaugeMetricFamily("fedhp_members", "Workers by status.", labels=("status",))
        for status in MemberStatus:
            members.add_metric((str(status),), now.members.get(status, 0))
        members.add_metric(("draining",), now.members.get("draining", 0))
        yield members
        refused = CounterMetricFamily(
            "fedhp_refused_messages", "Messages that were not taken.", labels=("reason",)
        )
        for reason, count in sorted(now.refused.items()):
            refused.add_metric((reason,), count)
        yield refused


class MetricsServer:
    """Answers /metrics and /healthz in threads of its own; made inside an event loop."""

    def __init__(self, address: str, metrics: Metrics, look: Callable[[], Snapshot]) -> None:
        self._metrics, self._look = metrics, look
        self._loop = asyncio.get_running_loop()
        self._pages = prometheus.make_wsgi_app(metrics.registry)
        place = parse_listen(address, key="--metrics")
        kind = _Server6 if place.family == socket.AF_INET6 else _Server
        try:
            self._server = make_server(place.host, place.port, self._answer, kind, _Quiet)
        except OSError as error:
            raise ConfigError(
                f"cannot listen at {address}: {error.strerror}",
                key="--metrics",
                allowed="HOST:PORT of this machine that nobody uses, port 0 for any",
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
            return _page(start_response, "405 Method Not Allowed", "only GET\n")
        if path not in ("/metrics", "/healthz"):
            return _page(start_response, "404 Not Found", "there are /metrics and /healthz\n")
        now = self._ask()
        if path == "/healthz":
            well, words = (False, "the event loop does not answer") if now is None else health(now)
            return _page(start_response, "200 OK" if well else "503 Unavailable", f"{words}\n")
        if now is not None:
            self._metrics.now = now
        pages: Iterable[bytes] = self._pages(environ, start_response)
        return pages

    def _ask(self) -> Snapshot | None:
        async def look() -> Snapshot:
            return self._look()

        try:
            return asyncio.run_coroutine_threadsafe(look(), self._loop).result(PATIENCE)
        except (RuntimeError, concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            return None


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is no news."""


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    timeout = REQUEST_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: who asks for numbers does so all the time."""


def _page(start_response: Any, status: str, text: str) -> list[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [text.encode()]
