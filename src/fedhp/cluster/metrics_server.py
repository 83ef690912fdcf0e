"""Metrics for Prometheus and a health check over plain HTTP: /metrics and /healthz.

What is served is looked up at each request, by the event loop of the process: a loop that hangs
is reported as not healthy.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, make_server

import prometheus_client as prometheus
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import ThreadingWSGIServer

from fedhp.cluster.protocol.addresses import cannot_listen, parse_listen

EVENT_LOOP_SECONDS = 2.0  # that the event loop may take to answer
REQUEST_SECONDS = 10.0  # for one HTTP request
BUCKETS = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800, 3600, math.inf)  # of durations


class Health(NamedTuple):
    """Whether a process makes progress, and the same in words."""

    healthy: bool
    words: str


def expiry_metric(certificates: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "fedhp_certificate_expiry_seconds",
        "Seconds until the certificate of this machine, or of one that connected, expires.",
        labels=("name",),
    )
    for name, seconds in certificates.items():
        family.add_metric((name,), seconds)
    return family


class MetricsServer:
    """Answers /metrics and /healthz in its own threads; make it inside an event loop."""

    def __init__(
        self, address: str, registry: prometheus.CollectorRegistry, update: Callable[[], Health]
    ) -> None:
        """`update` is called in the event loop before each answer: it brings the metrics of the
        registry up to date."""
        self._update = update
        self._loop = asyncio.get_running_loop()
        self._metrics_page = prometheus.make_wsgi_app(registry)
        listen = parse_listen(address, key="--metrics")

        class Server(_Server):
            address_family = listen.family

        try:
            self._server = make_server(
                listen.host, listen.port, self._answer, Server, _QuietRequestHandler
            )
        except OSError as error:
            raise cannot_listen(address, error, key="--metrics") from None
        self.port = self._server.server_port
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, name="metrics", daemon=True)
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
        health = self._look_up()
        if path == "/healthz":
            status = "200 OK" if health.healthy else "503 Unavailable"
            return _page(start_response, status, f"{health.words}\n")
        page: Iterable[bytes] = self._metrics_page(environ, start_response)
        return page

    def _look_up(self) -> Health:
        async def update() -> Health:
            return self._update()

        try:
            return asyncio.run_coroutine_threadsafe(update(), self._loop).result(EVENT_LOOP_SECONDS)
        except (RuntimeError, concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            return Health(False, "the event loop does not answer")


class _Server(ThreadingWSGIServer):
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that hung up."""


class _QuietRequestHandler(WSGIRequestHandler):
    timeout = REQUEST_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: Prometheus asks all the time."""


def _page(start_response: Any, status: str, text: str) -> list[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [text.encode()]
