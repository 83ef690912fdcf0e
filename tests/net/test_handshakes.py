"""Failed TLS handshakes are logged with address and cause, and the log stays pure."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedhp.cluster.protocol.limits import LogThrottle
from fedhp.cluster.security.handshakes import HandshakeLog
from net.identities import make_ours
from waiting import PATIENCE

# A gRPC server that logs in JSON. It is called by a program that does not speak TLS, by one
# without a certificate, by one whose certificate has expired, and by an honest one.
PROGRAM = """
import asyncio, os, pathlib, socket, ssl, sys
from fedhp.cluster.ops import logs
from fedhp.cluster.security.handshakes import start_handshake_log
assert start_handshake_log(json_lines=True)
logs.set_up(who="server", form="json")
import grpc.aio
from fedhp.cluster.security import identity, tls
folder = pathlib.Path(sys.argv[1])

def call(port, name):
    with socket.create_connection(("127.0.0.1", port), 60) as plain:
        if name is None:
            plain.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
            plain.recv(1)
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.set_alpn_protocols(["h2"])
        context.load_verify_locations(folder / "ca.crt")
        if name:
            context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
        with context.wrap_socket(plain) as secure:
            print(name, bool(secure.recv(1)), flush=True)

async def main():
    server = grpc.aio.server()
    credentials = tls.server_credentials(identity.load_identity(folder, "server"))
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    for name in (None, "", "old", "worker-1"):
        try:
            await asyncio.to_thread(call, port, name)
        except OSError:
            pass
    os.write(2, b"a library's own words\\n")
    await server.stop(None)

asyncio.run(main())
"""


def test_a_server_logs_who_was_refused_and_why(tmp_path: Path) -> None:
    make_ours(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert "worker-1 True" in done.stdout
    lines = [json.loads(line) for line in done.stderr.splitlines()]  # every line is JSON
    failures = [line["message"] for line in lines if line["logger"] == "fedhp.tls"]
    causes = ("it does not speak TLS", "it has no certificate", "its certificate has expired")
    for cause in causes:
        ((message),) = [message for message in failures if message.endswith(cause)]
        assert message.startswith("a TLS connection from 127.0.0.1:")
    assert failures[-1] == "a library's own words"
    assert len(failures) == len(causes) + 1


HEAD = b"I1117 08:13:57.738672   16994 handshaker.cc:155] CallNextHandshakerLocked: "
ENDPOINT = (
    b"shutdown=false index=2, args={endpoint=0x7f, args={grpc.internal.endpoint_peer_address="
    b"ipv4:%s:38516, grpc.internal.server_credentials=0x55}, read_buffer.Length()=0, exit_early=0}"
)


def failed(host: bytes) -> list[bytes]:
    """The trace of a failed handshake, shortened."""
    return [
        HEAD + b"error=OK " + ENDPOINT % host,
        HEAD + b"error=UNKNOWN: Ssl handshake failed: CERTIFICATE_VERIFY_FAILED: self signed: OK",
        b"=== Source Location Trace: ===",
        b"src/core/util/status_helper.cc:68",
        b" " + ENDPOINT % host,
        b"I1117 08:13:57.738680   16994 channel_trace.h:396] handshake manager: Failed with error",
        b"=== Source Location Trace: ===",
        b"src/core/util/status_helper.cc:68",
        b"",
    ]


def test_a_flood_of_bad_handshakes_is_throttled_by_host(caplog: pytest.LogCaptureFixture) -> None:
    clock, passed = [0.0], list[bytes]()
    throttle = LogThrottle(lines=2, seconds=60.0, clock=lambda: clock[0])
    handshakes = HandshakeLog(passed.append, throttle=throttle)
    for line in [*failed(b"10.0.0.9") * 50, *failed(b"10.0.0.8")]:
        handshakes.line(line)
    assert len(caplog.messages) == 3
    assert "from 10.0.0.9:38516 failed: its certificate is of another authority" in caplog.text
    clock[0] = 61.0
    for line in failed(b"10.0.0.9"):
        handshakes.line(line)
    assert caplog.messages[-1].endswith("(48 more like it before)")
    assert passed == []


def test_what_others_write_is_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    passed: list[bytes] = []
    handshakes = HandshakeLog(passed.append)
    warning = b"W1117 08:13:53.518808   16832 %s:102] %s"
    for line in (
        b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        warning % (b"log.cc", b"Log level INFO is not suitable for production."),
        b"first",
        *failed(b"10.0.0.9"),
        b"second",
        b"",
        warning % (b"tcp_server.cc", b"no more file descriptors"),
    ):
        handshakes.line(line)
    assert passed == [b"first", b"second", b""]
    assert caplog.messages[-1] == "gRPC: no more file descriptors"
