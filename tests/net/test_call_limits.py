"""How many calls a peer may have open and make, and how many lines about it are logged."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from fedhp.cluster.protocol import calls as call_limits
from fedhp.cluster.protocol.calls import CallLimits
from fedhp.cluster.protocol.guard import Refused
from fedhp.cluster.protocol.limits import LogThrottle


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long calls were held before they were refused."""
    seconds: list[float] = []

    async def sleep(duration: float) -> None:
        seconds.append(duration)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return seconds


async def admitted(limits: CallLimits, count: int, peer: str = "w0", cost: float = 1.0) -> int:
    """How many of so many calls, one after the other, are admitted."""
    done = 0
    for _ in range(count):
        try:
            async with limits.one_call(peer, cost=cost):
                done += 1
        except Refused:
            pass
    return done


def test_open_calls_and_connections_of_a_peer_are_limited(held: list[float]) -> None:
    async def scenario() -> None:
        limits = CallLimits(clock=Clock())
        async with AsyncExitStack() as calls:
            for index in range(8):
                await calls.enter_async_context(limits.one_call("w0", connection=f"{index % 4}"))
            with pytest.raises(Refused, match="8 open calls"):
                await calls.enter_async_context(limits.one_call("w0", connection="0"))
            await calls.enter_async_context(limits.one_call("w1"))  # another peer
        assert limits.refused == 1
        assert await admitted(limits, 1) == 1
        async with AsyncExitStack() as calls:
            for _ in range(7):
                await calls.enter_async_context(limits.one_call("w0"))
            assert await admitted(limits, 3) == 3  # each ends before the next
            await calls.enter_async_context(limits.one_call("w0"))
            assert await admitted(limits, 1) == 0
        async with AsyncExitStack() as calls:
            for connection in "abcd":
                await calls.enter_async_context(limits.one_call("w0", connection=connection))
            await calls.enter_async_context(limits.one_call("w0", connection="d"))
            with pytest.raises(Refused):
                await calls.enter_async_context(limits.one_call("w0", connection="e"))
        async with limits.one_call("w0", connection="e"):
            pass
        assert limits.refused == 3

    asyncio.run(scenario())
    assert held == [0.02, 0.02, 0.02]


def test_a_burst_of_300_calls_then_150_in_a_second(held: list[float]) -> None:
    async def scenario() -> None:
        clock = Clock()
        limits = CallLimits(clock=clock)
        assert await admitted(limits, 310) == 300
        clock.now += 0.5
        assert await admitted(limits, 100) == 75
        assert await admitted(limits, 5, peer="w1") == 5
        clock.now += 1000.0
        assert await admitted(limits, 310) == 300
        clock.now += 1.0
        assert await admitted(limits, 20, cost=10.0) == 15
        clock.now += 1000.0
        assert await admitted(limits, 2, cost=1e6) == 1  # as dear as a whole burst, and no dearer

    asyncio.run(scenario())


def test_what_a_call_turned_out_to_cost_is_paid_by_later_ones(held: list[float]) -> None:
    async def scenario() -> None:
        clock = Clock()
        limits = CallLimits(clock=clock)
        limits.charge("w0", 290.0)
        assert await admitted(limits, 20) == 10
        limits.charge("w0", 150.0)
        clock.now += 1.0
        assert await admitted(limits, 5) == 0
        clock.now += 1.0
        assert await admitted(limits, 200) == 150
        limits.charge("w0", 1e9)
        clock.now += 3.0
        assert await admitted(limits, 200) == 150  # nobody owes more than a burst

    asyncio.run(scenario())


def test_held_calls_wait_longer_the_more_there_are_and_have_little_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    ended = asyncio.Event()

    async def sleep(duration: float) -> None:
        waits.append(duration)
        await ended.wait()

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(call_limits, "LONGEST_HOLD_SECONDS", 0.07)
    monkeypatch.setattr(call_limits, "HELD_BYTES_PER_PEER", 5000)
    monkeypatch.setattr(call_limits, "HELD_BYTES", 7000)

    async def scenario() -> None:
        limits = CallLimits(window=1000, at_once=0, clock=Clock())
        async with limits.one_call("w0"), limits.one_call("w1"):
            calls = [asyncio.ensure_future(admitted(limits, 1)) for _ in range(7)]
            calls += [asyncio.ensure_future(admitted(limits, 1, "w1")) for _ in range(4)]
            while sum(call.done() for call in calls) < 4:  # who has no room is refused at once
                await asyncio.wait(calls, timeout=0.01, return_when=asyncio.FIRST_COMPLETED)
            assert limits.refused == 4
            ended.set()
            await asyncio.gather(*calls)
            waits.append(0.0)
            await admitted(limits, 1)
        assert limits.refused == 12

    asyncio.run(scenario())
    assert waits == pytest.approx([0.02, 0.04, 0.06, 0.07, 0.07, 0.02, 0.04, 0.0, 0.02])


def test_the_first_lines_of_a_kind_are_written_and_the_rest_is_counted() -> None:
    clock = Clock()
    throttle = LogThrottle(lines=3, seconds=60.0, clock=clock)
    assert [throttle.admit("a") for _ in range(5)] == [(True, 0)] * 3 + [(False, 0)] * 2
    assert throttle.admit("a", "b") == (True, 0)
    clock.now += 59.0
    assert throttle.admit("a") == (False, 0)
    clock.now += 1.0
    assert throttle.admit("a") == (True, 3)
    assert [throttle.admit("a") for _ in range(3)] == [(True, 0), (True, 0), (False, 0)]
    clock.now += 60.0
    assert throttle.admit("a", "b") == (True, 0)
    assert throttle.admit("a") == (True, 1)
