"""One member calls as often as it can: what is refused, and that the rounds of the others go on."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attacks import flood
from attacks.members import start_attacker
from faults.in_process import (
    InProcessFederation,
    experiment,
    in_process_federation,
    run,
    service_of,
    until,
)
from fedhp.cluster.coordinator import service
from fedhp.cluster.coordinator.context import WaitingMembers
from fedhp.cluster.protocol import calls as call_limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.calls import CallLimits
from fedhp.cluster.protocol.guard import Envelopes, Refused
from fedhp.cluster.protocol.limits import LOG_LINES, LogThrottle
from fedhp.cluster.protocol.message_checks import check_next
from fedhp.cluster.protocol.stubs import CoordinatorStub
from fedhp.cluster.security.identity import load_identity
from fedhp.cluster.security.tls import AllowList, open_channel

CALLS = 30


async def call_in_parallel(
    federation: InProcessFederation,
    name: str,
    method: str,
    request: Any,
    *,
    count: int,
    seconds: float,
) -> Counter[str]:
    """Many calls at once over one connection; how often each answer came."""
    import grpc.aio

    identity, envelopes = load_identity(federation.certificates, name), Envelopes(name)
    outcomes: Counter[str] = Counter()
    async with open_channel(identity, federation.address, name=None) as channel:
        call = getattr(CoordinatorStub(channel), method)
        run_id = federation.workers["w0"].run

        async def once() -> None:
            try:
                await call(request(envelopes.make(run=run_id)), timeout=seconds)
                outcomes["answered"] += 1
            except grpc.aio.AioRpcError as error:
                outcomes[str(error.details()).partition(":")[0]] += 1

        await once()  # from here on the caller knows how many streams a connection has
        await asyncio.gather(*(once() for _ in range(count - 1)))
    return outcomes


def test_a_flood_is_refused_and_rounds_go_on(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As many as one connection carries: beyond that the transport refuses without a word.
    monkeypatch.setitem(service.COSTS, "Status", 100.0)

    async def scenario() -> None:
        settings = experiment(workers=4, rounds=100_000, cluster={"gather": 0.2})
        async with in_process_federation(settings, certificates, tmp_path) as federation:
            leader = await federation.start_coordinator()
            for name in ("w0", "w1", "w2"):
                federation.start_worker(name)
            await until(lambda: leader.round_index >= 1)
            before = leader.round_index
            outcomes = await call_in_parallel(
                federation,
                "w3",
                "Status",
                lambda e: wire.StatusRequest(envelope=e),
                count=CALLS,
                seconds=60.0,
            )
            assert outcomes["streams"] >= CALLS / 2
            assert outcomes["streams"] + outcomes["answered"] == CALLS
            await until(lambda: leader.round_index > before)
            counts = leader.guard.counts()
            refused = sum(n for (_, reason), n in counts.items() if reason == "streams")
            assert refused == outcomes["streams"]

    run(scenario())


def test_a_later_next_ends_the_earlier_one(certificates: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = experiment(workers=4, rounds=100_000, cluster={"min_workers": 4})
        async with in_process_federation(settings, certificates, tmp_path) as federation:
            leader = await federation.start_coordinator()
            federation.start_worker("w0")
            await until(lambda: leader.context.waiting.workers() == [0])
            attacker = start_attacker(federation, "w3")
            await until(lambda: leader.context.waiting.workers() == [0, 3])
            await federation.stop_worker("w3")
            outcomes = await call_in_parallel(
                federation,
                "w3",
                "Next",
                lambda e: wire.NextRequest(envelope=e, model_bytes=400_000),
                count=5,
                seconds=0.8,
            )
            assert attacker.run
            assert outcomes["replaced"] >= 3  # the last one waits, until its caller gives up
            await until(lambda: leader.context.waiting.workers() == [0])

    run(scenario())


def test_only_those_are_woken_whose_order_may_have_changed() -> None:
    async def scenario() -> None:
        waiting = WaitingMembers()
        woken: list[int] = []

        async def wait(worker: int) -> None:
            with waiting.begin(worker) as call:
                await call.until_changed(60.0)
                woken.append(worker)

        tasks = [asyncio.create_task(wait(worker)) for worker in range(3)]
        await until(lambda: waiting.workers() == [0, 1, 2])
        waiting.wake([1, 7])
        await tasks[1]
        assert woken == [1]
        waiting.wake_all()
        await asyncio.gather(*tasks)
        assert waiting.workers() == []

    asyncio.run(scenario())


def test_a_peer_has_a_number_of_open_calls_and_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(call_limits, "HOLD_SECONDS", 0.0)

    async def scenario() -> None:
        limits = CallLimits(at_once=2, clock=lambda: now[0])
        async with limits.one_call("w0"), limits.one_call("w0"), limits.one_call("w1"):
            with pytest.raises(Refused, match="streams"):
                async with limits.one_call("w0"):
                    pass
        for _ in range(int(call_limits.CALLS_IN_A_BURST) - 2):
            async with limits.one_call("w0"):
                pass
        with pytest.raises(Refused, match="streams"):
            async with limits.one_call("w0"):
                pass
        now[0] = 1.0
        async with limits.one_call("w0", cost=call_limits.CALLS_PER_SECOND):
            pass
        assert limits.refused == 2

    asyncio.run(scenario())


def test_a_dear_call_uses_up_more_of_the_budget() -> None:
    crowd: Any = SimpleNamespace(
        guard=None,
        admission=SimpleNamespace(allowed=AllowList(None)),
        conductor=SimpleNamespace(members=range(1000)),
        reachability=range(5000),
    )
    limited = service_of(crowd)
    assert limited._cost("Beat") == 1.0
    assert limited._cost("Next") == 2.0
    assert limited._cost("Status") == 105.0


def test_more_links_than_a_survey_has_are_refused() -> None:
    request = wire.NextRequest(envelope=Envelopes("w0").make())
    request.surveyed.extend(wire.LinkReport(worker=index) for index in range(65))
    with pytest.raises(Refused, match="size"):
        check_next(request)


def test_refusals_are_logged_a_few_times_and_then_counted() -> None:
    now = [0.0]
    throttle = LogThrottle(lines=3, seconds=60.0, clock=lambda: now[0])
    assert [throttle.admit("w0", "nan")[0] for _ in range(5)] == [True] * 3 + [False] * 2
    assert throttle.admit("w0", "range") == (True, 0)
    now[0] = 61.0
    assert throttle.admit("w0", "nan") == (True, 2)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("kind", flood.KINDS)
def test_two_thousand_calls_of_one_member(kind: str, tmp_path: Path, record_property: Any) -> None:
    started = time.monotonic()
    outcome = flood.measure(tmp_path, kind=kind)
    record_property(
        f"figure: {flood.CALLS} parallel {kind} calls of one member",
        f"{100 * outcome.ratio:.0f} % of the rounds of the others, "
        f"{outcome.answers['resource_exhausted']} refused in {time.monotonic() - started:.0f} s",
    )
    assert outcome.answers["resource_exhausted"] > 0
    assert outcome.answers["refusals logged"] <= 2 * LOG_LINES
    assert min(outcome.flooded) > 0
