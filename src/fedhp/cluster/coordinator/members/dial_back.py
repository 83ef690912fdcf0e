"""Whether others can connect to a worker, for `fedhp doctor`: members try it and report.

Nobody can aim this at another machine: only the address that the request comes from is tried, at
the port that its sender names, and only that sender's certificate counts as success. Tests are few.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import socket
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import unquote

from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.addresses import HostPort, ip_address_in, split_host_port
from fedhp.cluster.protocol.guard import Refused

TEST_SECONDS = 12.0  # for the members to hear of a test, to connect, and to report
NEXT_TEST_SECONDS = 5.0  # between two tests that one name asks for
TESTS_AT_ONCE = 4  # of all names
TESTERS = 16  # members that try one address

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


def source_of(peer: str) -> IpAddress | None:
    """The IP address in what gRPC calls the peer: "ipv4:10.0.0.5:50000", "ipv6:%5B::1%5D:50000"."""
    address = split_host_port(unquote(peer).partition(":")[2])
    ip = None if address is None else ip_address_in(address.host)
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return mapped or ip


async def caller_address(advertised: str, source: IpAddress | None) -> HostPort:
    """The sender's own address: the source of its call, with the advertised port. Refused if the
    advertised host is another machine, as far as this one can tell."""
    target = split_host_port(advertised)
    if target is None or source is None:
        raise Refused("elsewhere", "the sender's address is not known here")
    literal = ip_address_in(target.host)
    known = {literal} if literal is not None else await _resolve(target.host)
    if not known:
        raise Refused(
            "elsewhere", f"the coordinator's machine does not know the host {target.host}"
        )
    if source not in known:
        is_name = f", which is {', '.join(sorted(map(str, known)))} there" if not literal else ""
        raise Refused(
            "elsewhere",
            f"the advertised host is {target.host}{is_name}, but at the coordinator the calls of "
            f"this machine come from {source}",
        )
    return HostPort(str(source), target.port)


async def _resolve(host: str) -> set[IpAddress]:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError, TimeoutError, UnicodeError):
        async with asyncio.timeout(limits.CONNECT_SECONDS):
            entries = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            ips = (ip_address_in(str(entry[4][0])) for entry in entries)
            return {ip for ip in ips if ip is not None}
    return set()


@dataclass(slots=True)
class _DialTest:
    """An address that members try."""

    name: str
    address: HostPort
    unasked: set[str]  # members that have not heard of it yet
    missing: set[str]  # members whose report has not come yet
    results: list[wire.DialResult] = field(default_factory=list)
    complete: asyncio.Event = field(default_factory=asyncio.Event)


class DialBacks:
    """The tests that are under way."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tests: dict[int, _DialTest] = {}
        self._numbers = itertools.count(1)
        self._asked: dict[str, float] = {}  # when a name asked last

    def admit(self, name: str) -> None:
        """Accept one more test of this name, or raise Refused."""
        now = self._clock()
        recent = {other: at for other, at in self._asked.items() if now - at < NEXT_TEST_SECONDS}
        if name in recent or len(self._tests) >= TESTS_AT_ONCE:
            raise Refused(
                "busy", f"too many tests at the moment; try again in {NEXT_TEST_SECONDS:g} s"
            )
        self._asked = {**recent, name: now}

    async def run(
        self, name: str, address: HostPort, testers: Collection[str]
    ) -> list[wire.DialResult]:
        """Have the testers connect to the address; their results, also of those that are silent."""
        number, test = next(self._numbers), _DialTest(name, address, set(testers), set(testers))
        self._tests[number] = test
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TEST_SECONDS):
                    await test.complete.wait()
        finally:
            del self._tests[number]
        silent = [
            wire.DialResult(name=tester, verdict="untested", why="it did not report in time")
            for tester in sorted(test.missing)
        ]
        return [*sorted(test.results, key=lambda result: result.name), *silent]

    def targets(self, member: str, source: IpAddress | None) -> list[wire.DialTarget]:
        """What a member is to try; it is told once."""
        targets = []
        for number, test in self._tests.items():
            if member not in test.unasked:
                continue
            test.unasked.discard(member)
            target = ip_address_in(test.address.host)
            # Loopback is another machine for each member, except for those on the same one.
            local = target is not None and target.is_loopback
            if local and (source is None or not source.is_loopback):
                why = "it is on another machine than the address"
                self._add(test, wire.DialResult(name=member, verdict="untested", why=why))
                continue
            targets.append(wire.DialTarget(test=number, name=test.name, address=str(test.address)))
        return targets

    def reported(self, member: str, results: Iterable[wire.DialResult]) -> None:
        """What a member found out; what it was not asked is ignored."""
        for result in results:
            test = self._tests.get(result.test)
            if test is None or member not in test.missing or member in test.unasked:
                continue
            self._add(test, wire.DialResult(name=member, verdict=result.verdict, why=result.why))

    @staticmethod
    def _add(test: _DialTest, result: wire.DialResult) -> None:
        test.missing.discard(result.name)
        test.results.append(result)
        if not test.missing:
            test.complete.set()

    def __bool__(self) -> bool:
        return bool(self._tests)
