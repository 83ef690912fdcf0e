"""Do others reach this machine, and it them: `fedhp doctor`, and what cannot be done with it."""

from __future__ import annotations

import asyncio
import ipaddress
from pathlib import Path
from typing import Any

import grpc
import pytest

from attacks.places import Place, worker
from faults.in_process import experiment, in_process_federation, run, until
from fedhp.cluster.coordinator.members import dial_back
from fedhp.cluster.coordinator.members.dial_back import DialBacks, caller_address, source_of
from fedhp.cluster.ops import operator, reach
from fedhp.cluster.ops.check import Check
from fedhp.cluster.ops.doctor import run_checks
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.addresses import HostPort
from fedhp.cluster.protocol.guard import Envelopes, Refused
from fedhp.cluster.protocol.stubs import CoordinatorStub
from fedhp.cluster.security.identity import load_identity
from fedhp.cluster.security.tls import open_channel

HERE = ipaddress.ip_address("10.0.0.7")
LOCAL = ipaddress.ip_address("127.0.0.1")


@pytest.mark.parametrize(
    ("peer", "source"),
    [
        ("ipv4:10.0.0.7:50000", "10.0.0.7"),
        ("ipv6:%5Bfd00::7%5D:50000", "fd00::7"),
        ("ipv6:[::ffff:10.0.0.7]:50000", "10.0.0.7"),
        ("unix:", None),
        ("", None),
    ],
)
def test_where_a_call_comes_from(peer: str, source: str | None) -> None:
    assert source_of(peer) == (None if source is None else ipaddress.ip_address(source))


def test_only_the_machine_that_asks_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"node7.lan": {HERE}, "inside.lan": {ipaddress.ip_address("10.0.0.1")}}

    async def resolve(host: str) -> Any:
        return names.get(host, set())

    monkeypatch.setattr(dial_back, "_resolve", resolve)

    async def scenario() -> None:
        for advertised in ("10.0.0.7:7710", "node7.lan:7710"):
            # By number, so that nobody looks the name up again.
            assert await caller_address(advertised, HERE) == HostPort("10.0.0.7", 7710)
        for advertised, word in (
            ("10.0.0.1:22", "come from 10.0.0.7"),
            ("127.0.0.1:2379", "come from 10.0.0.7"),
            ("169.254.169.254:80", "come from 10.0.0.7"),
            ("inside.lan:22", "which is 10.0.0.1 there"),
            ("nowhere.lan:22", "does not know the host nowhere.lan"),
        ):
            with pytest.raises(Refused, match=word) as refused:
                await caller_address(advertised, HERE)
            assert not refused.value.bad  # a mistake, not an attack
        with pytest.raises(Refused):
            await caller_address("10.0.0.7:7710", None)

    asyncio.run(scenario())


def test_tests_are_few() -> None:
    now = [100.0]
    tests = DialBacks(clock=lambda: now[0])
    tests.admit("w1")
    with pytest.raises(Refused, match="too many"):
        tests.admit("w1")
    tests.admit("w2")
    now[0] += dial_back.NEXT_TEST_SECONDS
    tests.admit("w1")


def test_a_test_is_told_once_and_only_those_who_were_asked_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dial_back, "TEST_SECONDS", 0.2)

    async def scenario() -> None:
        tests = DialBacks()
        running = asyncio.create_task(
            tests.run("w9", HostPort("10.0.0.9", 7710), ("w0", "w1", "w2"))
        )
        await until(lambda: bool(tests))
        (asked,) = tests.targets("w0", HERE)
        assert (asked.name, asked.address) == ("w9", "10.0.0.9:7710")
        assert not tests.targets("w0", HERE)
        good = wire.DialResult(test=asked.test, verdict="reached")
        tests.reported("w5", [good])  # a stranger
        tests.reported("w1", [good])  # it has not heard of it yet
        tests.reported("w0", [good])
        tests.reported("w0", [good])
        results = {result.name: result.verdict for result in await running}
        assert results == {"w0": "reached", "w1": "untested", "w2": "untested"}
        assert not tests

    asyncio.run(scenario())


def test_loopback_is_tried_on_the_same_machine_only() -> None:
    async def scenario() -> None:
        tests = DialBacks()
        running = asyncio.create_task(tests.run("w9", HostPort("127.0.0.1", 22), ("w0", "w1")))
        await until(lambda: bool(tests))
        assert tests.targets("w0", HERE) == []
        (asked,) = tests.targets("w1", LOCAL)
        tests.reported("w1", [wire.DialResult(test=asked.test, verdict="failed", why="no")])
        results = {result.name: result.verdict for result in await running}
        assert results == {"w0": "untested", "w1": "failed"}

    asyncio.run(scenario())


@pytest.fixture
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial_back, "NEXT_TEST_SECONDS", 0.0)


async def checks_of(certificates: Path, coordinator: str, **options: Any) -> dict[str, Check]:
    """What the doctor finds out about the reach of w1."""
    chosen = {"certificates": certificates, "name": "w1", "coordinator": coordinator, **options}
    checks = await asyncio.to_thread(lambda: list(run_checks(**chosen)))
    return {check.name: check for check in checks if check.name.startswith("reache")}


@pytest.mark.usefixtures("_no_pause")
def test_the_doctor_tests_both_ways(certificates: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            Place(tmp_path / "run", certificates).leading() as place,
            worker(certificates, tmp_path / "w0", place.coordinator.address),
        ):
            await place.rounds(1)
            address = place.coordinator.address
            checks = await checks_of(certificates, address, listen="127.0.0.1:0")
            assert {name: check.verdict for name, check in checks.items()} == {
                "reached by": "ok",
                "reaches": "ok",
            }
            assert "w0 can connect to 127.0.0.1:" in checks["reached by"].message
            assert "can connect to w0" in checks["reaches"].message

            closed = await checks_of(certificates, address, advertise="127.0.0.1:1")
            assert closed["reached by w0"].verdict == "wrong"
            assert "nothing listens there" in closed["reached by w0"].message
            assert "open port 1 in the firewall" in closed["reached by w0"].fix

            member = place.state.conductor.by_name.get("w0")
            assert member is not None
            other = await checks_of(certificates, address, advertise=member.address)
            assert "is w0, not w1" in other["reached by w0"].message

            away = await checks_of(certificates, address, advertise="192.168.1.5:7710")
            assert away["reached by"].verdict == "wrong"
            assert "come from 127.0.0.1" in away["reached by"].message
            assert "--advertise HOST:PORT" in away["reached by"].fix

            # With the name of a worker that runs, the doctor does not get in its way.
            own = await checks_of(certificates, address, name="w0", advertise=member.address)
            assert own["reached by"].verdict == "ok"
            await place.rounds(2)
            assert not place.state.guard.counts().get(("w0", "incarnation"))

            gone = wire.MemberStatus(name="w2", address="127.0.0.1:1", status="ready")
            status = operator.LeaderStatus(
                wire.StatusReply(members=[gone]), operator.CoordinatorAddress(address)
            )
            target = operator.Target(address, certificates, "w1")
            identity = load_identity(certificates, "w1")
            outgoing = (
                await reach.check_reach(target, identity, status, listen=None, advertise="[::1]:1")
            )[-1]
            assert (outgoing.name, outgoing.verdict) == ("reaches w2", "wrong")
            assert "open port 1 in the firewall of w2's machine" in outgoing.fix

    run(scenario())


@pytest.mark.usefixtures("_no_pause")
def test_without_members_the_coordinator_tries_it(certificates: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with in_process_federation(experiment(), certificates, tmp_path) as federation:
            await federation.start_coordinator()
            address = federation.address
            checks = await checks_of(certificates, address, listen="127.0.0.1:0")
            assert list(checks) == ["reached by"]
            assert "the coordinator can connect to" in checks["reached by"].message
            checks = await checks_of(certificates, address, advertise="127.0.0.1:1")
            check = checks["reached by the coordinator"]
            assert check.verdict == "warning"  # it need not: workers connect to each other

    run(scenario())


def test_who_may_ask(certificates: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with in_process_federation(experiment(), certificates, tmp_path) as federation:
            state = await federation.start_coordinator()
            federation.start_worker("w2")
            await until(lambda: state.conductor.by_name.get("w2"))
            member = state.conductor.by_name.get("w2")
            assert member is not None
            state.admission.remove(member, "it was bad")

            async def refusal(name: str, address: str) -> str:
                identity = load_identity(certificates, name)
                async with open_channel(identity, federation.address, name=None) as channel:
                    stub: Any = CoordinatorStub(channel)
                    request = wire.DialBackRequest(envelope=Envelopes(name).make(), address=address)
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await stub.DialBack(request, timeout=60)
                return str(caught.value.details())

            assert "role" in await refusal("operator", "127.0.0.1:7710")
            assert "was removed" in await refusal("w2", "127.0.0.1:7710")
            assert "elsewhere" in await refusal("w1", "10.0.0.1:22")
            assert "busy" in await refusal("w1", "10.0.0.1:23")  # ports cannot be scanned quickly
            assert not state.guard.quarantined()

    run(scenario())
