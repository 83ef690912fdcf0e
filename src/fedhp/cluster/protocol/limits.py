"""Every bound on size, count and time that does not depend on an experiment, by name.

Nothing here imports gRPC: the log of handshakes starts before it does (security/handshakes.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

PROTOCOL_VERSION = 1

MESSAGE_BYTES = 4 << 20  # the largest single message, that of a coordinator
MODEL_CHUNK_BYTES = 1 << 20  # data in one chunk of a model
CHUNK_MESSAGE_BYTES = MODEL_CHUNK_BYTES + (64 << 10)  # with its envelope and digest
REQUEST_BYTES = 256 << 10  # of one request to a coordinator, beyond the links in a report
REQUEST_WINDOW_BYTES = 64 << 10  # of it that may arrive before it is read
LINK_BYTES = 256  # in a report for every worker of the experiment
MODEL_BYTES = 8 << 30  # the largest model that may be announced
EXPERIMENT_BYTES = 1 << 20
PROBE_BYTES = 16 << 20
NAME_LENGTH = 64
ADDRESS_LENGTH = 255
TEXT_LENGTH = 2000  # of a reason or a phase
MAX_WORKERS = 10_000
MAX_LINKS = 10_000  # in one report
MODEL_VERSIONS = 8  # that a worker may name as its own
SEQUENCE_WINDOW = 4096  # how far out of order the messages of one sender may arrive
STRIKES = 5  # bad messages of one sender until it is in quarantine
PEER_QUARANTINE_SECONDS = 600.0  # that one lasts between workers; at a coordinator until `allow`

REQUEST_SECONDS = 20.0  # until the message of a call must be there
JOIN_SECONDS = 20.0  # until Join must be answered
POLL_SECONDS = 10.0  # how long Next waits for an order
POLL_SLACK = 10.0  # s beyond it, until Next must be answered
REPORT_SECONDS = 20.0
BEAT_SECONDS = 5.0
COMMAND_SECONDS = 10.0
DIAL_BACK_SECONDS = 25.0  # until the members have tried an address
CHUNK_SECONDS = 20.0  # between two chunks of a stream
CONNECT_SECONDS = 5.0
FOREVER = 1e9  # s, sent in place of infinity
LOG_LINES, LOG_SECONDS = 10, 60.0  # of one kind in this time; more are only counted

# Of every gRPC channel and server. A stopped process still answers keepalive: deadlines and
# heartbeats notice it.
CONNECTION_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.so_reuseport", 0),
)
# Of a message beyond its limit that is still read, so that it counts as a bad one of its sender.
# gRPC refuses longer ones without a word.
EXCESS_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What one connection may make a server keep. Calls that wait for the same connection to
    carry them do so at their caller."""

    message: int  # bytes; a longer one is refused before it is parsed
    window: int  # bytes of a call that may arrive before its message is read
    streams: int  # calls of one connection at once

    def options(self) -> tuple[tuple[str, int], ...]:
        """For a gRPC server. A window that grows by itself would reach megabytes per call."""
        own = {
            "grpc.max_receive_message_length": self.message + EXCESS_BYTES,
            "grpc.max_concurrent_streams": self.streams,
            "grpc.http2.lookahead_bytes": self.window,
            "grpc.http2.bdp_probe": 0,
        }
        return tuple({**dict(CONNECTION_OPTIONS), **own}.items())


def coordinator_limits(workers: int) -> ServerLimits:
    """Of a coordinator: many small requests, and reports with a link per worker."""
    return ServerLimits(
        REQUEST_BYTES + LINK_BYTES * workers, window=REQUEST_WINDOW_BYTES, streams=32
    )


# Of a coordinator that waits for the lead, which reads no request at all.
STANDBY_LIMITS = coordinator_limits(0)
# Of a worker: its peers send models, and the window is what is under way on a slow link.
WORKER_LIMITS = ServerLimits(CHUNK_MESSAGE_BYTES, window=256 << 10, streams=8)


class LogThrottle:
    """Lets the first lines of a kind pass, then counts: nobody may fill a disk with refusals."""

    def __init__(
        self,
        *,
        lines: int = LOG_LINES,
        seconds: float = LOG_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lines, self._seconds, self._clock = lines, seconds, clock
        self.kinds: dict[tuple[str, ...], tuple[float, int]] = {}  # since when, and how many

    def admit(self, *kind: str) -> tuple[bool, int]:
        """Whether to write a line of this kind now, and how many were left out before it."""
        now = self._clock()
        since, count = self.kinds.get(kind, (now, 0))
        left_out = 0
        if now - since >= self._seconds:
            left_out, since, count = max(0, count - self._lines), now, 0
        self.kinds[kind] = since, count + 1
        return count < self._lines, left_out
