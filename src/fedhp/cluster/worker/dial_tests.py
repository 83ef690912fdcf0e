"""Tries whether another worker can be reached, when the coordinator asks for it (`fedhp doctor`).

Only a handshake is made: no request is sent, and nothing is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.addresses import HostPort, parse_address
from fedhp.cluster.protocol.message_checks import MAX_DIAL_TEXT, MAX_DIALS, one_line

# Why a machine of this name cannot be reached there; empty if it can.
Handshake = Callable[[HostPort, str], Awaitable[str]]


class DialTests:
    """Tests that are under way, and results that were not reported yet."""

    def __init__(self, handshake: Handshake) -> None:
        self._handshake = handshake
        self._running: set[asyncio.Task[None]] = set()
        self._results: list[wire.DialResult] = []

    def start(self, targets: Iterable[wire.DialTarget]) -> None:
        """Try these; beyond MAX_DIALS they are dropped."""
        for target in targets:
            if len(self._running) + len(self._results) >= MAX_DIALS:
                return
            task = asyncio.ensure_future(self._try(target))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def take(self) -> list[wire.DialResult]:
        """The results since the last call."""
        results, self._results = self._results, []
        return results

    async def close(self) -> None:
        """End all tests."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _try(self, target: wire.DialTarget) -> None:
        why = await self._handshake(parse_address(target.address, key="address"), target.name)
        verdict = "failed" if why else "reached"
        self._results.append(
            wire.DialResult(
                test=target.test, verdict=verdict, why=one_line(why, most=MAX_DIAL_TEXT)
            )
        )
