"""Every bound on size, count and time that does not depend on an experiment, by name."""

from __future__ import annotations

VERSION = 1  # of the protocol

MESSAGE_BYTES = 4 << 20  # the largest single message
CHUNK_BYTES = 1 << 20  # data in one chunk of a model
MODEL_BYTES = 8 << 30  # the largest model that may be announced
NAME_LENGTH = 64
ADDRESS_LENGTH = 255
TEXT_LENGTH = 2000  # of a reason or a phase
EXPERIMENT_BYTES = 1 << 20
WORKERS = 10_000
LINKS = 10_000  # in one report
STANDS = 8
PROBE_BYTES = 16 << 20
SEQUENCES = 4096  # how far out of order messages of one sender may come

JOIN_SECONDS = 20.0  # until Join must be answered
POLL_SECONDS = 10.0  # how long Next waits for something to do
POLL_SLACK = 10.0  # beyond it, until Next must be answered
REPORT_SECONDS = 20.0
BEAT_SECONDS = 5.0
COMMAND_SECONDS = 10.0
CHUNK_SECONDS = 20.0  # between two chunks of a stream
CONNECT_SECONDS = 5.0
BAD_MESSAGES = 5  # of one sender until it is quarantined
FOREVER = 1e9  # s, told instead of never

# Of every gRPC server and channel. Deadlines and heartbeats notice a stopped process: it still
# answers keepalive.
CONNECTION_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.so_reuseport", 0),
)
