"""A member with a worker's certificate tries to be followed as the coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from fedhp.cluster.coordinator.process.finders import FEDERATION, leader_finder
from fedhp.cluster.ledger.etcd import EtcdLedger
from fedhp.cluster.ops import operator
from fedhp.cluster.ops.operator import Target
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL
from fedhp.cluster.protocol.stubs import CoordinatorStub
from fedhp.cluster.security import signatures
from fedhp.cluster.security.certificates import init_authority, issue
from fedhp.cluster.security.identity import load_identity
from fedhp.cluster.security.leader_proof import PURPOSE, check_proof, prove
from fedhp.cluster.security.tls import cause_of, open_channel
from fedhp.cluster.worker.coordinator_client import Finder
from fedhp.cluster.worker.worker import WorkerSettings, run_worker
from fedhp.errors import FedhpError, IdentityError, RunError
from net.etcd_support import running_etcd
from net.fake_coordinator import RUN, FakeCoordinator
from net.federation import experiment, run
from net.identities import LONG_AGO, knock, make_certificates, serving, sign
from waiting import PATIENCE

NONCE = bytes(range(16))
SOON = 2.0  # s in which a worker gives up that finds no coordinator


class Thief(FakeCoordinator):
    """A worker that answers as a coordinator; with `real` it passes joins on to that one."""

    def __init__(self, certificates: Path, *, real: str = "") -> None:
        super().__init__(experiment(), certificates, name="w2")
        self._real = real
        self.calls = 0

    async def Join(self, request: wire.JoinRequest, context: Any) -> wire.JoinReply:
        self.calls += 1
        if not self._real:
            return await super().Join(request, context)
        async with open_channel(self.identity, self._real, name=None, coordinator=True) as channel:
            request.envelope.sender = self.name
            stub: Any = CoordinatorStub(channel)
            reply: wire.JoinReply = await stub.Join(request, timeout=PATIENCE)
        return reply

    async def Status(self, request: wire.StatusRequest, context: Any) -> wire.StatusReply:
        self.calls += 1
        await context.abort(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"standby: w2 waits for the lead; the leader is w2 at {self.address}",
        )
        raise AssertionError("abort does not return")


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
    finally:
        writer.transport.abort()


@asynccontextmanager
async def switchboard(choose: Callable[[int], str]) -> AsyncIterator[str]:
    """A port whose owner passes each connection on to the address that it chooses."""
    count = 0
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        host, _, port = choose(count).rpartition(":")
        count += 1
        reader_there, writer_there = await asyncio.open_connection(host, int(port))
        tasks.add(asyncio.create_task(_pump(reader, writer_there)))
        tasks.add(asyncio.create_task(_pump(reader_there, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def victim(
    certificates: Path, folder: Path, address: str, *, finder: Finder | None = None
) -> int:
    """A worker that is sent to this address, as by what somebody wrote into etcd."""

    async def find() -> str:
        return address

    settings = WorkerSettings(
        name="w0",
        coordinator="",
        certificates=certificates,
        state=folder / "w0",
        listen="127.0.0.1:0",
        finder=finder or find,
        give_up=SOON,
    )
    return await asyncio.wait_for(run_worker(settings), PATIENCE)


@pytest.mark.parametrize("attack", ["takes the port", "turns", "relays"])
def test_a_worker_is_not_followed(attack: str, certificates: Path, tmp_path: Path) -> None:
    """It shows its own certificate, or lets every other connection reach the coordinator, or
    ends TLS itself and passes the messages on."""

    async def test() -> None:
        async with FakeCoordinator(experiment(), certificates) as boss:
            thief = Thief(certificates, real=boss.address if attack == "relays" else "")
            async with (
                thief,
                switchboard(
                    lambda count: boss.address if attack == "turns" and count % 2 else thief.address
                ) as address,
            ):
                boss.finish(0, INITIAL)
                ended = asyncio.gather(
                    victim(certificates, tmp_path, address), return_exceptions=True
                )
                (end,) = await ended
                # A connection that reaches the coordinator itself is a good one.
                assert isinstance(end, FedhpError) or (attack == "turns" and end == 0)
                if attack != "turns":
                    assert "by its certificate it is worker, not a coordinator" in str(end)
                assert thief.calls == 0
                assert not thief.stored

    run(test())


def test_a_worker_that_writes_its_address_into_etcd_is_not_followed(
    certificates: Path, tmp_path: Path
) -> None:
    async def test(url: str) -> None:
        async with Thief(certificates) as thief:
            ledger = EtcdLedger(url, FEDERATION, lease_seconds=60.0, insecure=True)
            await ledger.lead(name=thief.name, address=thief.address)
            try:
                finder = leader_finder(url, insecure=True)
                assert await finder() == thief.address
                with pytest.raises(FedhpError, match="is worker, not a coordinator"):
                    await victim(certificates, tmp_path, "", finder=finder)
                target = Target("", certificates, etcd=url, insecure_etcd=True, run=RUN)
                with pytest.raises(RunError, match="is worker, not a coordinator"):
                    await asyncio.to_thread(operator.command, target, stop=True)
            finally:
                await ledger.close()
            assert thief.calls == 0

    with running_etcd(tmp_path, 1) as etcd:
        run(test(etcd.url))


def test_passing_packets_on_to_the_coordinator_is_no_attack(
    certificates: Path, tmp_path: Path
) -> None:
    async def test() -> None:
        async with (
            FakeCoordinator(experiment(), certificates) as boss,
            switchboard(lambda count: boss.address) as address,
        ):
            boss.finish(0, INITIAL)
            assert await victim(certificates, tmp_path, address) == 0
            assert boss.finished == {"w0"}

    run(test())


def test_a_worker_is_not_obeyed_by_operators(certificates: Path) -> None:
    async def test() -> None:
        async with Thief(certificates) as thief:
            for name in (None, "w2", "boss"):
                target = Target(thief.address, certificates, coordinator=name, run=RUN)
                with pytest.raises(RunError, match="is worker, not a coordinator"):
                    await asyncio.to_thread(operator.leader_status, target)
                with pytest.raises(RunError, match="is worker, not a coordinator"):
                    await asyncio.to_thread(operator.command, target, stop=True)
            assert thief.calls == 0

    run(test())


def test_a_coordinator_of_another_name_is_refused_where_the_name_is_known(
    certificates: Path,
) -> None:
    async def test() -> None:
        async with FakeCoordinator(experiment(), certificates) as boss:
            target = Target(boss.address, certificates, coordinator="chief")
            with pytest.raises(RunError, match="is boss, not chief"):
                await asyncio.to_thread(operator.leader_status, target)

    run(test())


# --- the proof in the reply to a join --------------------------------------------------------


def join_reply() -> wire.JoinReply:
    leaders = [wire.Leadership(epoch=3, token=bytes(16), start=wire.Stand())]
    return wire.JoinReply(
        run=RUN, epoch=3, worker=1, experiment="workers = 3\n", key=bytes(32), leaders=leaders
    )


def proven(certificates: Path, name: str = "boss", *, caller: str = "w0") -> wire.JoinReply:
    reply = join_reply()
    identity = load_identity(certificates, name)
    prove(identity, reply, caller=caller, nonce=NONCE, address="10.0.0.1:7700")
    return reply


def check(certificates: Path, reply: wire.JoinReply, *, nonce: bytes = NONCE) -> str:
    authority = (certificates / "ca.crt").read_bytes()
    return check_proof(reply, authority=authority, caller="w0", nonce=nonce)


def test_a_reply_is_believed_for_one_worker_and_one_request(certificates: Path) -> None:
    reply = proven(certificates)
    assert check(certificates, reply) == "10.0.0.1:7700"
    with pytest.raises(IdentityError, match="another worker or request"):
        check(certificates, reply, nonce=bytes(16))  # it was recorded, and is sent again
    with pytest.raises(IdentityError, match="another worker or request"):
        check(certificates, proven(certificates, caller="w2"))  # what a relay gets, by its name


@pytest.mark.parametrize("field", ["run", "epoch", "worker", "experiment", "key", "leaders"])
def test_nothing_in_a_reply_can_be_changed(field: str, certificates: Path) -> None:
    reply = proven(certificates)
    if field == "leaders":
        reply.leaders[0].token = b"x" * 16
    else:
        value = getattr(reply, field)
        setattr(reply, field, value + (1 if isinstance(value, int) else value[:1]))
    with pytest.raises(IdentityError, match=f"differently .{field}"):
        check(certificates, reply)


def test_only_a_coordinator_of_this_authority_proves_anything(
    certificates: Path, tmp_path: Path
) -> None:
    with pytest.raises(IdentityError, match="w2 is worker, not coordinator"):
        check(certificates, proven(certificates, "w2"))
    with pytest.raises(IdentityError, match="another authority"):
        check(certificates, proven(make_certificates(tmp_path / "theirs", 1)))
    with pytest.raises(IdentityError, match="not signed"):
        check(certificates, join_reply())
    state = signatures.sign(load_identity(certificates, "boss"), b"{}", purpose="a state")
    with pytest.raises(IdentityError, match="signed as 'a state'"):
        check(certificates, wire.JoinReply(proof=state))


def test_a_proof_needs_a_certificate_that_is_valid_now(tmp_path: Path) -> None:
    """The time of a signature is the signer's word: a key that was stolen long ago must not do."""
    init_authority(tmp_path, now=LONG_AGO)
    issue(tmp_path, "boss", roles=["coordinator"])
    issue(tmp_path, "old", roles=["coordinator"], days=30, now=LONG_AGO)
    reply = proven(tmp_path)
    content = reply.proof.partition(signatures.MAGIC)[2].partition(b"\n")[2]
    for name, moment in (("boss", None), ("old", LONG_AGO + timedelta(days=2))):
        identity = load_identity(tmp_path, name, now=moment)
        signed_at = None if moment is None else moment.timestamp()
        reply.proof = signatures.sign(identity, content, purpose=PURPOSE, now=signed_at)
        if name == "boss":
            assert check(tmp_path, reply)
    with pytest.raises(IdentityError, match="expired"):
        check(tmp_path, reply)


class Replaying(FakeCoordinator):
    """Answers with a reply that was made for another join, or with one that is not signed."""

    recorded: wire.JoinReply | None = None

    async def Join(self, request: wire.JoinRequest, context: Any) -> wire.JoinReply:
        reply = await super().Join(request, context)
        if self.recorded is None:
            self.recorded = wire.JoinReply()
            self.recorded.CopyFrom(reply)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "lost")
        return self.recorded


def test_a_worker_refuses_a_reply_that_was_recorded(certificates: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with Replaying(experiment(), certificates) as replaying:
            with pytest.raises(FedhpError, match="does not prove that a coordinator sent it"):
                await victim(certificates, tmp_path, replaying.address)
            assert len(replaying.joins) > 1
            assert not replaying.stored

    run(test())
    lines = (tmp_path / "w0" / "history-w0.jsonl").read_text().splitlines()
    refused = [json.loads(line) for line in lines if '"refused"' in line]
    assert {event["reason"] for event in refused} == {"proof"}
    assert not any('"event": "join"' in line for line in lines)


# --- certificates ----------------------------------------------------------------------------


def test_a_certificate_without_the_host_name_of_a_coordinator_is_issued_again(
    tmp_path: Path,
) -> None:
    folder = make_certificates(tmp_path, 1)
    sign(folder, "past", uris=["fedhp://past", "fedhp-role:coordinator"])
    with pytest.raises(IdentityError, match="an older version of fedhp issued it") as caught:
        load_identity(folder, "past")
    assert "fedhp certs issue past --role coordinator --replace" in str(caught.value.fix)

    async def test() -> None:
        known = load_identity(folder, "boss")
        certificate, key = ((folder / f"past.{kind}").read_bytes() for kind in ("crt", "key"))
        past = replace(known, name="past", certificate=certificate, key=key)
        async with serving(past) as (address, door):
            worker = load_identity(folder, "w0")
            with pytest.raises(grpc.aio.AioRpcError):
                async with open_channel(worker, address, name=None, coordinator=True) as channel:
                    await knock(channel, "w0")
            assert door.calls == 0
            cause = await cause_of(worker, address, name=None, coordinator=True)
            assert "an older version of fedhp issued it; to renew it: fedhp certs" in cause.text
            assert cause.final

    run(test())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("w9", {"hosts": ["coordinator.fedhp.invalid"]}),
        ("w9", {"hosts": ["Boss.Coordinator.FEDHP.invalid"]}),
        ("w9", {"hosts": ["fedhp.invalid"]}),
        ("coordinator.fedhp.invalid", {}),
        ("w9.fedhp.Invalid", {"roles": ["coordinator"]}),
    ],
)
def test_nobody_gets_the_host_name_of_a_coordinator(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    folder = make_certificates(tmp_path, 0)
    with pytest.raises(IdentityError, match="is reserved"):
        issue(folder, name, **options)


def test_one_certificate_is_not_that_of_a_coordinator_and_a_worker(tmp_path: Path) -> None:
    folder = make_certificates(tmp_path, 0)
    with pytest.raises(IdentityError, match="a coordinator and of a worker"):
        issue(folder, "both", roles=["worker", "coordinator"])
    sign(folder, "both", uris=["fedhp://both", "fedhp-role:coordinator", "fedhp-role:worker"])
    with pytest.raises(IdentityError, match="a coordinator and of a worker"):
        load_identity(folder, "both")
