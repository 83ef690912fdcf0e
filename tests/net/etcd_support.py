"""Real etcd processes on loopback, and a separate process that leads."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx
import pytest

from waiting import wait_until

PROGRAM = shutil.which("etcd")
needs_etcd = pytest.mark.skipif(
    PROGRAM is None, reason="etcd is not installed: apt-get install etcd-server"
)
STARTING = 60.0  # s until a member must be healthy


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses; all are found before the first is given back."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for open_socket in sockets:
            open_socket.bind(("127.0.0.1", 0))
        return [int(open_socket.getsockname()[1]) for open_socket in sockets]


class Etcd:
    """An etcd of some members, each a process that can be killed, stopped and started again."""

    def __init__(self, folder: Path, members: int, *, extra: tuple[str, ...] = ()) -> None:
        ports = free_ports(2 * members)
        self._clients, self._peers = ports[:members], ports[members:]
        self._folder = folder
        self._extra = extra
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._logs: list[IO[bytes]] = []

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._clients)
        return f"etcd://{hosts}/test"

    def member_url(self, member: int, scheme: str = "http") -> str:
        return f"{scheme}://127.0.0.1:{self._clients[member]}"

    def start(self, *members: int) -> None:
        """Start these members, all if none is named, and wait until a majority works."""
        chosen = members or tuple(range(len(self._clients)))
        peers = [f"http://127.0.0.1:{port}" for port in self._peers]
        everyone = ",".join(f"m{index}={peer}" for index, peer in enumerate(peers))
        for member in chosen:
            scheme = "https" if "--cert-file" in self._extra else "http"
            client = self.member_url(member, scheme)
            log = (self._folder / f"log{member}").open("ab")
            self._logs.append(log)
            assert PROGRAM is not None
            self._processes[member] = subprocess.Popen(
                [
                    *(PROGRAM, "--name", f"m{member}"),
                    *("--data-dir", str(self._folder / f"data{member}")),
                    *("--listen-client-urls", client, "--advertise-client-urls", client),
                    *("--listen-peer-urls", peers[member]),
                    *("--initial-advertise-peer-urls", peers[member]),
                    *("--initial-cluster", everyone),
                    *("--heartbeat-interval", "50", "--election-timeout", "500"),
                    *self._extra,
                ],
                stdout=log,
                stderr=log,
                env={name: text for name, text in os.environ.items() if "ETCD" not in name},
            )
        for member in chosen:
            self._await_health(member)

    def _await_health(self, member: int) -> None:
        log = self._folder / f"log{member}"

        def healthy() -> bool:
            # With TLS it asks for a certificate: then its log has to do.
            if self._extra and b"ready to serve client requests" in log.read_bytes():
                return True
            with contextlib.suppress(httpx.HTTPError):
                answer = httpx.get(
                    f"{self.member_url(member)}/health", timeout=2.0, trust_env=False
                )
                return bool(answer.json().get("health") == "true")
            return False

        wait_until(healthy, lambda: f"member {member}: {log.read_text()[-2000:]}", seconds=STARTING)

    def kill(self, *members: int) -> None:
        """kill -9."""
        for member in members:
            process = self._processes.pop(member)
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()

    def pid(self, member: int) -> int:
        """The id of a member's process."""
        return self._processes[member].pid

    def freeze(self, member: int) -> None:
        """SIGSTOP: it takes connections, and never answers."""
        self._processes[member].send_signal(signal.SIGSTOP)

    def wake(self, member: int) -> None:
        """SIGCONT."""
        self._processes[member].send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.kill(*tuple(self._processes))
        for log in self._logs:
            log.close()


@contextlib.contextmanager
def running_etcd(folder: Path, members: int, *, extra: tuple[str, ...] = ()) -> Iterator[Etcd]:
    """A healthy etcd, ended at the end."""
    etcd = Etcd(folder, members, extra=extra)
    try:
        etcd.start()
        yield etcd
    finally:
        etcd.close()


LEADER = """
import asyncio, os, sys
from hashlib import sha512
from fedhp.cluster.ledger.etcd import EtcdLedger
from fedhp.cluster.ledger.base import Unreachable
from fedhp.errors import FedhpError

def say(text):
    sys.stdout.write(text + "\\n")
    sys.stdout.flush()

async def main(url, run, name):
    noise = os.urandom(1_000_000)
    ledger = EtcdLedger(url, run, lease_seconds=2, insecure=True)
    say("waits")
    epoch = await ledger.lead(name=name, address=name + ":1")
    say(f"leads {epoch}")
    async def watch():
        await ledger.lost.wait()
        say("lost")
    watching = asyncio.create_task(watch())
    while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
        try:
            if line == "read":
                say("state " + ((await ledger.committed()) or b"none").decode())
            elif line.startswith("large"):
                number = int(line.split()[1])
                while True:
                    try:
                        await ledger.commit(sha512(str(number).encode()).digest() * 20_000 + noise)
                    except Unreachable:
                        continue
                    say(str(number))
                    number += 1
            else:
                await ledger.commit(line.encode())
                say("committed " + line)
        except FedhpError as error:
            say(type(error).__name__)
    watching.cancel()
    await ledger.close()

asyncio.run(main(*sys.argv[1:]))
"""


class Leader:
    """A process that leads a run and follows commands, a line at a time."""

    def __init__(self, url: str, run: str, *, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", LEADER, url, run, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert self.hear() == "waits"
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Leader:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def hear(self) -> str:
        """The next thing it says."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def ask(self, line: str) -> str:
        self.tell(line)
        return self.hear()

    def signal(self, number: signal.Signals) -> float:
        """Send a signal; the time when it was sent."""
        self._process.send_signal(number)
        return time.monotonic()

    def rest(self) -> list[str]:
        """All whole lines it said before it died."""
        assert self._process.stdout is not None
        return [line.strip() for line in self._process.stdout if line.endswith("\n")]

    def close(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.communicate()
