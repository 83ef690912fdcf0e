"""A network of its own for every process: namespaces, joined by a bridge, shaped and cut.

A host's link is shaped in both directions (tc tbf), and any host can be made deaf for another
(a blackhole route: what it sends there is dropped). Everything is removed at the end.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import subprocess
from pathlib import Path

import pytest

NEW_NETWORK = 0x40000000  # CLONE_NEWNET
BURST, QUEUE = "16kb", "300ms"
_NUMBERS = itertools.count()


def why_not() -> str:
    """Why namespaces cannot be made here; empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "ip and tc are not installed: apt-get install iproute2"
    try:
        with Net(["a"]) as net:
            net.shape("a", 5.0)
    except RuntimeError as error:
        return f"network namespaces cannot be made here: {error}"
    return ""


def needs_namespaces() -> None:
    """Skip a test where namespaces cannot be made."""
    if reason := why_not():
        pytest.skip(reason)


class Net:
    """Some hosts and the wires between them."""

    def __init__(self, hosts: list[str]) -> None:
        self._stem = f"fedhp{os.getpid()}x{next(_NUMBERS)}"
        self._hub = f"{self._stem}-hub"
        self._numbers = {host: number for number, host in enumerate(hosts, start=1)}
        self._made: list[str] = []

    def __enter__(self) -> Net:
        try:
            self._namespace(self._hub)
            _ip("-n", self._hub, "link", "add", "name", "hub0", "type", "bridge")
            _ip("-n", self._hub, "link", "set", "hub0", "up")
            for host, number in self._numbers.items():
                self._join(host, number)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove everything; wires go with their namespaces."""
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        self._made.clear()

    def namespace(self, host: str) -> str:
        """The name of a host's namespace."""
        return f"{self._stem}-{self._numbers[host]}"

    def address(self, host: str) -> str:
        """The address of a host."""
        return f"10.199.0.{self._numbers[host]}"

    def shape(self, host: str, megabits: float) -> None:
        """So many Mb/s in each direction."""
        inside, outside = self.namespace(host), f"p{self._numbers[host]}"
        for space, device in ((inside, "eth0"), (self._hub, outside)):
            _tc(
                *("-n", space, "qdisc", "replace", "dev", device, "root", "tbf"),
                *("rate", f"{megabits:.3f}mbit", "burst", BURST, "latency", QUEUE),
            )

    def cut(self, source: str, target: str) -> None:
        """Nothing that source sends reaches target any more."""
        _ip("-n", self.namespace(source), "route", "add", "blackhole", f"{self.address(target)}/32")

    def heal(self, source: str, target: str) -> None:
        """It does again."""
        _ip("-n", self.namespace(source), "route", "del", "blackhole", f"{self.address(target)}/32")

    def _namespace(self, name: str) -> None:
        _ip("netns", "add", name)
        self._made.append(name)
        _ip("-n", name, "link", "set", "lo", "up")
        # Always available. Some other algorithms share a short queue unfairly.
        setting = "/proc/sys/net/ipv4/tcp_congestion_control"
        _ip("netns", "exec", name, "sh", "-c", f"echo reno > {setting}")

    def _join(self, host: str, number: int) -> None:
        inside, port = self.namespace(host), f"p{number}"
        self._namespace(inside)
        _ip(
            *("-n", self._hub, "link", "add", port, "type", "veth"),
            *("peer", "name", "eth0", "netns", inside),
        )
        _ip("-n", self._hub, "link", "set", port, "master", "hub0", "up")
        _ip("-n", inside, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        _ip("-n", inside, "link", "set", "eth0", "up")


def enter(namespace: str) -> None:
    """Move this process there; before it has any threads."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(Path("/var/run/netns") / namespace, os.O_RDONLY)
    try:
        if libc.setns(handle, NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {namespace}")
    finally:
        os.close(handle)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _tc(*arguments: str) -> None:
    _run("tc", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
