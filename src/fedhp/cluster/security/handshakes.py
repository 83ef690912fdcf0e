"""Failed TLS handshakes in the log, with their address and cause.

gRPC reports them nowhere in Python, but its core can write a trace of all handshakes to standard
error. This module reads that stream: it logs the failures, drops the rest of the trace, and
passes on what others write there. Python's own sys.stderr goes past it.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import fcntl
import logging
import os
import re
import sys
import threading
from collections.abc import Callable
from urllib.parse import unquote

from fedhp.cluster.protocol.limits import LogThrottle

LOG = logging.getLogger("fedhp.tls")
VERBOSITY, TRACE = "GRPC_VERBOSITY", "GRPC_TRACE"
QUIET = "NONE"  # the verbosity that fedhp.cluster chooses where nobody else does
MOST_HOSTS = 1_000  # that are told apart when lines are throttled
MOST_LINES = 20  # of one record
PIPE_BYTES = 1 << 20
END_SECONDS = 1.0  # to read the rest when the process ends

_RECORD = re.compile(rb"([IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ ([\w.]+):\d+\] (.*)", re.S)
_FAILURE = re.compile(r"CallNextHandshakerLocked: error=(.*?)\s+shutdown=false ", re.S)
_PEER = re.compile(r"endpoint_peer_address=(?:ipv4|ipv6):([^,}]+)")
_SERVER_SIDE = "grpc.internal.server_credentials="
_CONTINUED = (b"=== Source", b"src/", b" shutdown=")  # how a record goes on after a line break
_PREAMBLE = b"WARNING: All log messages before absl::InitializeLog()"
# What the error of a handshake means; the first that occurs in it counts.
_CAUSES = (
    ("certificate has expired", "its certificate has expired"),
    ("certificate is not yet valid", "its certificate is not yet valid: compare the clocks"),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is of another authority than ca.crt, or bad"),
    ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "it has no certificate"),
    ("ALERT_UNKNOWN_CA", "it refused this machine's certificate: of another authority"),
    ("ALERT_CERTIFICATE_EXPIRED", "it refused this machine's certificate: expired"),
    ("ALERT_", "it refused this machine's certificate"),
    ("HTTP_REQUEST", "it does not speak TLS"),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS"),
    ("UNSUPPORTED_PROTOCOL", "it speaks only TLS 1.2 or older"),
    ("NO_SHARED_CIPHER", "it speaks only TLS 1.2 or older"),
    ("NO_CIPHER_MATCH", "it speaks only TLS 1.2 or older"),
    ("is not in peer certificate", "it is another machine: the certificate has another name"),
    ("Hostname Verification", "it is another machine: the certificate has another name"),
    ("Socket closed", "it closed the connection before the handshake was over"),
    ("Connection reset", "it closed the connection before the handshake was over"),
)


class HandshakeLog:
    """Turns the lines of gRPC's trace into log lines."""

    def __init__(
        self, pass_on: Callable[[bytes], None], *, throttle: LogThrottle | None = None
    ) -> None:
        self._pass_on = pass_on
        self._throttle = throttle or LogThrottle()
        self._hosts: set[str] = set()
        self._inside = False  # the last line belonged to a record of gRPC
        self._failure: list[bytes] = []  # the lines so far of a record that is a failure

    def line(self, line: bytes) -> None:
        record = _RECORD.match(line)
        if record is not None:
            self._inside, self._failure = True, []
            level, file, text = record.groups()
            if file == b"handshaker.cc":
                if b"error=" in text and b"error=OK" not in text:
                    self._failure = [text]
                    self._end_failure()
            elif level in b"EF" or (level == b"W" and file != b"log.cc"):
                LOG.warning("gRPC: %s", text.decode("utf-8", "replace"))
        elif self._failure:
            self._failure.append(line)
            self._end_failure()
        elif self._inside and (not line or line.startswith(_CONTINUED)):
            return
        elif not line.startswith(_PREAMBLE):
            self._inside = False
            self._pass_on(line)

    def _end_failure(self) -> None:
        if b"exit_early=" in self._failure[-1]:
            text = b"\n".join(self._failure).decode("utf-8", "replace")
            self._failure = []
            self._log_failure(text)
        elif len(self._failure) > MOST_LINES:
            self._failure = []

    def _log_failure(self, text: str) -> None:
        failure, peer = _FAILURE.search(text), _PEER.search(text)
        if failure is None or peer is None:
            return  # ended by this side, or nobody was reached
        error, address = failure[1].partition("\n")[0], unquote(peer[1])
        cause = next((words for mark, words in _CAUSES if mark in error), error)
        server = _SERVER_SIDE in text
        if not server and "Socket closed" in error:
            return  # a peer that ended; why it did is in its own log
        host = address.rpartition(":")[0]
        if host not in self._hosts and len(self._hosts) >= MOST_HOSTS:
            host = "others"
        self._hosts.add(host)
        write, left_out = self._throttle.admit(host, cause)
        if write:
            way = "from" if server else "to"
            more = f" ({left_out} more like it before)" if left_out else ""
            LOG.warning("a TLS connection %s %s failed: %s%s", way, address, cause, more)


def start_handshake_log(*, json_lines: bool) -> bool:
    """From now on this process logs failed handshakes; whether that is possible.

    It must be called before gRPC is imported, which reads its settings then. A process in which
    somebody else set those is left alone. With json_lines, other text that is written to the
    file descriptor of standard error is logged too, so that all lines are JSON.
    """
    chosen = os.environ.get(VERBOSITY, QUIET) != QUIET or TRACE in os.environ
    if chosen or "grpc" in sys.modules:
        return False
    try:
        original = os.dup(2)
    except OSError:
        return False  # it is closed
    os.environ |= {VERBOSITY: "INFO", TRACE: "handshaker"}
    # A crash ends the reader too: it must be able to say something without it.
    if not faulthandler.is_enabled():
        faulthandler.enable(original)
    reading, writing = os.pipe()
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    # If nobody reads for a while, lines are lost: gRPC must never wait for its own log.
    os.set_blocking(writing, False)
    uses_descriptor = False
    with contextlib.suppress(AttributeError, OSError, ValueError):
        uses_descriptor = sys.stderr.fileno() == 2
    if uses_descriptor:
        sys.stderr = open(  # noqa: SIM115 - it stays open until the process ends
            original, "w", buffering=1, encoding="utf-8", errors="backslashreplace"
        )
    os.dup2(writing, 2)
    os.close(writing)

    def pass_on(line: bytes) -> None:
        if json_lines and not line.startswith(b"{"):
            LOG.info("%s", line.decode("utf-8", "replace"))
            return
        with contextlib.suppress(OSError):
            os.write(original, line + b"\n")

    thread = threading.Thread(
        target=_read, args=(reading, HandshakeLog(pass_on)), name="handshakes", daemon=True
    )
    thread.start()
    atexit.register(_end, thread)
    return True


def _end(thread: threading.Thread) -> None:
    """Read what is left; nothing more is written, not by threads of gRPC either."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    thread.join(END_SECONDS)


def _read(descriptor: int, handshakes: HandshakeLog) -> None:
    with open(descriptor, "rb") as stream:
        for line in stream:
            handshakes.line(line.rstrip(b"\n"))
