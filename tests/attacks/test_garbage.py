"""Messages that cannot be parsed, are too large, or go to methods that do not exist."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from attacks import flood, flood_memory
from attacks.flood_memory import SERVICE, Attack, own_channel
from attacks.members import events
from attacks.test_partners import endless, federation_of_workers
from faults.in_process import experiment, in_process_federation, run, until
from fedhp.cluster.coordinator.process.standby import StandbyService, standing_by
from fedhp.cluster.history import read_history
from fedhp.cluster.protocol import calls as call_limits
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.addresses import parse_listen, reserve_port
from fedhp.cluster.protocol.calls import CallLimits
from fedhp.cluster.protocol.guard import Refused
from fedhp.cluster.security.identity import load_identity
from fedhp.cluster.security.tls import AllowList

GARBAGE = b"\xff" * 64
MOST_GROWTH = 150e6  # bytes of a process under a flood of large messages


async def answers(channel: Any, path: str, messages: Sequence[bytes]) -> list[str]:
    """The first word of the answer to each message, sent one after another."""
    import grpc.aio

    words = []
    for message in messages:
        try:
            await channel.unary_stream(SERVICE + path)(message, timeout=30).read()
            words.append("")
        except grpc.aio.AioRpcError as error:
            words.append(str(error.details()).partition(":")[0])
    return words


def test_garbage_counts_against_its_sender_at_the_coordinator(
    certificates: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fedhp.coordinator")
    large = bytes(limits.coordinator_limits(4).message + 1)

    async def scenario() -> None:
        settings = experiment(workers=4, rounds=100_000, cluster={"gather": 0.2})
        async with in_process_federation(settings, certificates, tmp_path) as federation:
            leader = await federation.start_coordinator()
            # None of these has sent a good message before.
            for name, method, message, word in (
                ("w1", "Beat", GARBAGE, "encoding"),
                ("w2", "Nothing", GARBAGE, "method"),
                ("w3", "Beat", large, "size"),
            ):
                channel = own_channel(certificates, name, federation.address, server="boss")
                async with channel:
                    words = await answers(channel, f"Coordinator/{method}", [message] * 7)
                assert words == [word] * limits.STRIKES + ["quarantined"] * 2
                assert leader.guard.is_quarantined(name)
                assert leader.guard.counts()[name, word] == limits.STRIKES
                assert f"refused {name}: {word}: " in caplog.text
        quarantined = [event["name"] for event in events(federation.folder, "quarantined")]
        assert quarantined == ["w1", "w2", "w3"]

    run(scenario())


def test_garbage_counts_against_its_sender_at_a_worker(certificates: Path, tmp_path: Path) -> None:
    large = bytes(limits.WORKER_LIMITS.message + 1)

    async def scenario() -> None:
        settings = endless(cluster={"min_workers": 1})
        federation = federation_of_workers(settings, certificates, tmp_path, names=("w0",))
        async with federation as (_, leader):
            await until(lambda: leader.round_index >= 1)
            member = leader.conductor.by_name.get("w0")
            assert member is not None
            for name, method, message, word in (
                ("w1", "Pull", GARBAGE, "encoding"),
                ("w2", "Nothing", GARBAGE, "method"),
                ("w3", "Average", large, "size"),
                ("operator", "Swap", GARBAGE, "encoding"),
            ):
                channel = own_channel(certificates, name, member.address, server="w0")
                async with channel:
                    words = await answers(channel, f"Peer/{method}", [message] * 7)
                assert words == [word] * limits.STRIKES + ["quarantined"] * 2
        refused = [
            (event["peer"], event["reason"])
            for event in read_history(tmp_path / "w0" / "history-w0.jsonl")
            if event["event"] == "refused"
        ]
        assert {("w1", "encoding"), ("w2", "method"), ("w3", "size")} <= set(refused)

    run(scenario())


@asynccontextmanager
async def a_standby(certificates: Path, *names: str) -> AsyncIterator[str]:
    """The address of a coordinator that waits for the lead and lets these names call."""
    listen = parse_listen("127.0.0.1:0", key="listen")
    with reserve_port(listen, key="listen") as reserved:
        address = str(reserved)

    async def nobody() -> None:
        return None

    service = StandbyService(
        "boss", address, lookup=nobody, allowed=AllowList(None, frozenset(names))
    )
    identity = load_identity(certificates, "boss")
    async with standing_by(identity, parse_listen(address, key="listen"), service):
        yield address


def test_a_standby_reads_nothing_and_refuses_strangers_first(
    certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fedhp.coordinator")

    async def scenario() -> None:
        async with a_standby(certificates, "w0") as address:
            async with own_channel(certificates, "w0", address, server="boss") as channel:
                assert await answers(channel, "Coordinator/Join", [GARBAGE]) == ["standby"]
                assert await answers(channel, "Coordinator/Nothing", [GARBAGE]) == ["method"]
            async with own_channel(certificates, "w1", address, server="boss") as channel:
                large = bytes(flood_memory.MESSAGE)
                assert await answers(channel, "Coordinator/Join", [large]) == ["unknown"]
        assert "refused w0: method: " in caplog.text
        assert "refused w1: unknown: w1 is not on the allow-list" in caplog.text

    asyncio.run(scenario())


def test_a_name_off_the_list_is_refused_before_its_message_is_read(
    certificates: Path, tmp_path: Path
) -> None:
    """The message is larger than what gRPC reads: had anybody asked for it, gRPC would refuse."""

    async def scenario() -> None:
        settings = experiment(workers=4, rounds=100_000, cluster={"gather": 0.2})
        async with in_process_federation(settings, certificates, tmp_path) as federation:
            federation.allowed = tmp_path / "allowed"
            federation.allowed.write_text("w0\n")
            await federation.start_coordinator()
            channel = own_channel(certificates, "w3", federation.address, server="boss")
            message = flood_memory.large_message("Join", flood_memory.MESSAGE)
            async with channel:
                words = await answers(channel, "Coordinator/Join", [message] * 3)
                assert words == ["unknown"] * 3
                assert await answers(channel, "Coordinator/Nothing", [GARBAGE]) == ["unknown"]

    run(scenario())


def test_what_a_message_cost_is_charged_after_it_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_limits, "HOLD_SECONDS", 0.0)
    now = [0.0]

    async def scenario() -> None:
        limited = CallLimits(clock=lambda: now[0])
        limited.charge("w0", call_limits.CALLS_IN_A_BURST)
        with pytest.raises(Refused, match="streams"):
            async with limited.one_call("w0"):
                pass
        now[0] = 1.0
        async with limited.one_call("w0"), limited.one_call("w1"):
            pass

    asyncio.run(scenario())


def test_a_peer_has_a_number_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_limits, "HOLD_SECONDS", 0.0)

    async def scenario() -> None:
        limited = CallLimits(at_once=100)
        async with AsyncExitStack() as calls:
            for connection in "abcd":
                await calls.enter_async_context(limited.one_call("w0", connection=connection))
            with pytest.raises(Refused, match="4 connections"):
                async with limited.one_call("w0", connection="e"):
                    pass
            async with limited.one_call("w0", connection="a"):
                pass
            async with limited.one_call("w1", connection="e"):
                pass
        async with limited.one_call("w0", connection="e"):
            pass

    asyncio.run(scenario())


def test_the_bytes_of_held_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    window = 1 << 20
    monkeypatch.setattr(call_limits, "HELD_BYTES_PER_PEER", 2 * window)
    monkeypatch.setattr(call_limits, "HELD_BYTES", 3 * window)
    monkeypatch.setattr(call_limits, "HOLD_SECONDS", 60.0)

    async def scenario() -> None:
        limited = CallLimits(window=window, clock=lambda: 0.0)
        for peer in ("w0", "w1", "w2"):
            limited.charge(peer, call_limits.CALLS_IN_A_BURST)

        async def call(peer: str) -> None:
            async with limited.one_call(peer):
                pass

        tasks = {
            peer: [asyncio.create_task(call(peer)) for _ in range(3)] for peer in ("w0", "w1", "w2")
        }
        await until(lambda: limited.refused == 6)
        assert [sum(not task.done() for task in held) for held in tasks.values()] == [2, 1, 0]
        for task in (task for held in tasks.values() for task in held):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())


def test_the_largest_honest_report_fits_in_a_request() -> None:
    workers = limits.MAX_WORKERS
    link = wire.LinkReport(
        worker=workers,
        bytes=limits.MODEL_BYTES,
        seconds=1.5,
        distance=1.5,
        probe=True,
        lost="failed: " + "x" * 80,
        started=1.5,
        timed_bytes=limits.MODEL_BYTES,
        timed_seconds=1.5,
    )
    report = wire.RoundReport(links=[link] * workers, selected=range(workers))
    message = wire.NextRequest(report=report)
    message.surveyed.extend([link] * 64)
    assert message.ByteSize() < limits.coordinator_limits(workers).message


def test_a_short_flood_of_large_messages_does_not_fill_the_memory(tmp_path: Path) -> None:
    attack = Attack("standby", "Join", connections=6, seconds=3.0, after=0.0)
    memory = flood_memory.measure(tmp_path, attack)
    assert memory.growth < MOST_GROWTH


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("attack", flood_memory.ATTACKS, ids=str)
def test_a_flood_of_large_messages_does_not_fill_the_memory(
    attack: Attack, tmp_path: Path, record_property: Any
) -> None:
    memory = flood_memory.measure(tmp_path, attack)
    record_property(f"figure: a flood of large messages at the {attack}", str(memory))
    assert memory.growth < MOST_GROWTH
    assert memory.after - memory.before < MOST_GROWTH


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("kind", flood.BAD_KINDS)
def test_a_flood_of_bad_calls_does_not_stop_the_rounds(
    kind: str, tmp_path: Path, record_property: Any
) -> None:
    outcome = flood.measure(tmp_path, kind=kind)
    record_property(
        f"figure: {flood.BAD_CALLS} parallel calls with {kind}",
        f"{100 * outcome.ratio:.0f} % of the rounds of the others",
    )
    assert outcome.answers["refusals logged"] > 0
    assert min(outcome.flooded) > 0
