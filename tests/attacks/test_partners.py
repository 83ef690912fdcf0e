"""Workers with good certificates call other workers that are not their partners."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faults.in_process import (
    SOON,
    InProcessFederation,
    experiment,
    in_process_federation,
    run,
    until,
)
from fedhp import __version__
from fedhp.cluster.coordinator.service import CoordinatorState
from fedhp.cluster.history import read_history
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.guard import (
    Envelopes,
    Refused,
    TicketChecker,
    TicketPurpose,
    make_ticket,
    new_key,
)
from fedhp.cluster.protocol.stubs import CoordinatorStub, PeerStub
from fedhp.cluster.security.identity import load_identity
from fedhp.cluster.security.tls import open_channel
from fedhp.cluster.worker.worker import WorkerSettings, run_worker
from fedhp.config import Experiment

RUN = "0123456789abcdef" * 2
NOW = Attempt(3, 7, 1)


def endless(**changes: Any) -> Experiment:
    cluster: dict[str, Any] = {"min_workers": 2, "gather": 0.5, "beat": 0.1, "probe_bytes": 1000}
    cluster |= changes.pop("cluster", {})
    return experiment(
        workers=4,
        rounds=100_000,
        evaluation={"images": 10, "every": 1000},
        cluster=cluster,
        **changes,
    )


@asynccontextmanager
async def federation_of_workers(
    settings: Experiment,
    certificates: Path,
    folder: Path,
    *,
    names: tuple[str, ...] = ("w0", "w1", "w2"),
    allowed: Path | None = None,
) -> AsyncIterator[tuple[InProcessFederation, CoordinatorState]]:
    """A real coordinator and real workers in one process."""
    async with in_process_federation(settings, certificates, folder) as federation:
        federation.allowed = allowed
        leader = await federation.start_coordinator()
        for name in names:
            worker = WorkerSettings(
                name=name,
                coordinator=federation.address,
                certificates=certificates,
                state=folder / name,
                listen="127.0.0.1:0",
            )
            federation.worker_tasks[name] = asyncio.create_task(_work(worker))
        yield federation, leader


async def _work(settings: WorkerSettings) -> None:
    await run_worker(settings)


class Caller:
    """A worker's certificate in the wrong hands: it knows everything that a member knows."""

    def __init__(
        self, federation: InProcessFederation, leader: CoordinatorState, name: str
    ) -> None:
        self.federation, self.leader, self.name = federation, leader, name
        # Its own process may be running: this one is later.
        self.envelopes = Envelopes(name)

    def envelope(self, attempt: Attempt) -> wire.Envelope:
        return self.envelopes.make(run=self.leader.run, attempt=attempt, token=self.leader.token)

    async def pull(self, victim: str, wanted: wire.Wanted, *, ticket: bytes = b"") -> str:
        """What a worker answers to a pull; empty if it gives what was asked for."""
        conductor = self.leader.conductor
        if wanted == wire.TRAINED:
            await until(lambda: conductor.running is not None)
        committed = conductor.committed
        attempt = Attempt.after(committed, epoch=conductor.epoch)
        if wanted == wire.TRAINED and conductor.running is not None:
            attempt = conductor.running.attempt
        request = wire.PullRequest(
            envelope=self.envelope(attempt),
            wanted=wanted,
            stand=committed.to_wire(),
            bytes=1000,
            patience=0.5,
            ticket=ticket,
        )
        return await self._answer(victim, lambda stub: stub.Pull(request, timeout=10))

    async def average(self, victim: str, attempt: Attempt, ticket: bytes) -> str:
        """What a worker answers to a piece of a sum."""
        chunk = wire.Chunk(
            envelope=self.envelope(attempt),
            total=1040,
            encoding="sum",
            data=bytes(1040),
            ticket=ticket,
        )

        async def chunks() -> AsyncIterator[wire.Chunk]:
            yield chunk

        return await self._answer(victim, lambda stub: stub.Average(chunks(), timeout=10))

    async def swap(self, victim: str, attempt: Attempt, ticket: bytes, width: int) -> str:
        """What a worker answers to a swap."""
        chunk = wire.Chunk(
            envelope=self.envelope(attempt),
            total=4 * width,
            encoding="raw",
            data=np.zeros(width, np.float32).tobytes(),
            ticket=ticket,
        )

        async def chunks() -> AsyncIterator[wire.Chunk]:
            yield chunk

        return await self._answer(victim, lambda stub: stub.Swap(chunks(), timeout=10))

    async def _answer(self, victim: str, call: Any) -> str:
        import grpc.aio

        member = self.leader.conductor.by_name.get(victim)
        assert member is not None
        identity = load_identity(self.federation.certificates, self.name)
        async with open_channel(identity, member.address, name=victim) as channel:
            stub: Any = PeerStub(channel)
            try:
                async for _ in call(stub):
                    pass
            except grpc.aio.AioRpcError as error:
                return str(error.details()).partition(":")[0]
        return ""


def test_a_worker_that_is_not_a_partner_gets_nothing(certificates: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with federation_of_workers(endless(), certificates, tmp_path) as (members, leader):
            await until(lambda: leader.round_index >= 2)
            stranger = Caller(members, leader, "w3")  # certified, but it never joined
            for wanted in (wire.COMMITTED, wire.PROBE, wire.TRAINED):
                assert await stranger.pull("w0", wanted) == "ticket"
            assert await stranger.pull("w0", wire.COMMITTED, ticket=bytes(24)) == "ticket"
            before = leader.round_index
            await until(lambda: leader.round_index >= before + 2)

    run(scenario())
    for name in ("w0", "w1", "w2"):
        lines = list(read_history(tmp_path / name / f"history-{name}.jsonl"))
        refused = [line for line in lines if line["event"] == "refused"]
        assert {line["peer"] for line in refused} <= {"w3"}  # partners are never refused


def test_a_name_taken_off_the_list_is_refused_by_everyone(
    certificates: Path, tmp_path: Path
) -> None:
    allowed = tmp_path / "allowed.txt"
    allowed.write_text("operator\nw0\nw1\nw2\n")

    async def scenario() -> None:
        async with federation_of_workers(endless(), certificates, tmp_path, allowed=allowed) as (
            members,
            leader,
        ):
            await until(lambda: leader.round_index >= 2)
            allowed.write_text("operator\nw0\nw1\n")
            await until(lambda: list(leader.admission.barred) == ["w2"])
            before = leader.round_index
            await until(lambda: leader.round_index >= before + 2)
            assert "w2" not in {m.name for m in leader.conductor.alive(time.monotonic())}
            removed = Caller(members, leader, "w2")
            async with asyncio.timeout(SOON):  # the next heartbeat says so
                for victim in ("w0", "w1"):
                    while await removed.pull(victim, wire.COMMITTED) != "removed":
                        pass
            assert await _join(members, "w2") == "unknown"
            allowed.write_text("operator\nw0\nw1\nw2\n")
            await until(lambda: list(leader.admission.barred) == [])

    run(scenario())


async def _join(
    federation: InProcessFederation,
    name: str,
    *,
    release: str = __version__,
    nonce: bytes = bytes(16),
) -> str:
    """What a coordinator answers to a join; empty if it lets the worker in."""
    import grpc.aio

    identity = load_identity(federation.certificates, name)
    async with open_channel(identity, federation.address, name=None) as channel:
        stub: Any = CoordinatorStub(channel)
        request = wire.JoinRequest(
            envelope=Envelopes(name).make(),
            address="127.0.0.1:1",
            fedhp=release,
            nonce=nonce,
        )
        try:
            await stub.Join(request, timeout=10)
        except grpc.aio.AioRpcError as error:
            return str(error.details()).partition(":")[0]
    return ""


def test_the_next_coordinator_enforces_the_list_and_what_was_removed(
    certificates: Path, tmp_path: Path
) -> None:
    allowed = tmp_path / "allowed.txt"
    allowed.write_text("operator\nw0\nw1\nw2\n")

    async def scenario() -> None:
        settings = endless(cluster={"probe_bytes": 0})
        async with in_process_federation(settings, certificates, tmp_path) as federation:
            federation.allowed = allowed
            leader = await federation.start_coordinator()
            for name in ("w0", "w1", "w2"):
                federation.start_worker(name)
            await until(lambda: leader.round_index >= 1)
            member = leader.conductor.by_name.get("w2")
            assert member is not None
            leader.admission.remove(member, "the operator removed it")
            before = leader.round_index
            await until(lambda: leader.round_index > before + 1)
            await federation.stop_coordinator()
            federation.allowed = None  # a standby that was started without --allow
            await federation.start_coordinator()
            assert await _join(federation, "w3") == "unknown"
            assert await _join(federation, "w2") == "removed"
            assert await _join(federation, "w1") in ("", "incarnation", "sender")

    run(scenario())


def test_only_the_partner_of_a_turn_may_swap_and_once(certificates: Path, tmp_path: Path) -> None:
    settings = endless(algorithm={"name": "adpsgd"})

    async def scenario() -> None:
        async with federation_of_workers(settings, certificates, tmp_path) as (members, leader):
            await until(lambda: leader.round_index >= 2)
            width = leader.planning.model_bytes // 4
            attempt = Attempt(leader.conductor.epoch, leader.round_index + 1, 1)
            stranger = Caller(members, leader, "w3")
            assert await stranger.swap("w0", attempt, b"", width) == "ticket"
            key = leader.attempts.work.keys["w0"]
            ticket = make_ticket(
                key,
                run=leader.run,
                caller="w3",
                purpose=TicketPurpose.SWAP,
                attempt=attempt,
                serial=4,
            )
            other = make_ticket(
                key,
                run=leader.run,
                caller="w2",
                purpose=TicketPurpose.SWAP,
                attempt=attempt,
                serial=4,
            )
            assert await stranger.swap("w0", attempt, other, width) == "ticket"
            answer = await _patient_swap(stranger, attempt, ticket, width)
            assert answer not in ("ticket", "removed")
            before = leader.round_index
            await until(lambda: leader.round_index >= before + 2)

    run(scenario())


def test_only_the_children_of_the_tree_may_send_or_read_a_piece(
    certificates: Path, tmp_path: Path
) -> None:
    """Neither a stranger nor another member gets into a group average: not without a ticket, not
    with that of another, and not with one for another worker or attempt."""
    settings = endless(
        algorithm={"name": "fedhp_plus", "first_deadline": 0.2}, cluster={"min_workers": 3}
    )

    async def scenario() -> None:
        async with federation_of_workers(settings, certificates, tmp_path) as (members, leader):
            await until(lambda: leader.round_index >= 2)
            await until(lambda: any(_parents(leader)))
            stranger = Caller(members, leader, "w3")
            for victim in ("w0", "w1", "w2"):
                attempt = Attempt(leader.conductor.epoch, leader.round_index + 1, 1)
                assert await stranger.average(victim, attempt, b"") == "ticket"
                for caller, purpose, named in (
                    ("w2", TicketPurpose.AVERAGE, attempt),
                    ("w3", TicketPurpose.TRAINED, attempt),
                    ("w3", TicketPurpose.AVERAGE, Attempt(attempt.epoch, 1, 1)),
                ):
                    ticket = make_ticket(
                        leader.attempts.work.keys[victim],
                        run=leader.run,
                        caller=caller,
                        purpose=purpose,
                        attempt=named,
                    )
                    assert await stranger.average(victim, attempt, ticket) == "ticket"
            # A coordinator that errs: the worker still lets in nobody whom its order does not name.
            await until(lambda: leader.conductor.running is not None)
            running = leader.conductor.running
            assert running is not None
            ticket = make_ticket(
                leader.attempts.work.keys["w0"],
                run=leader.run,
                caller="w3",
                purpose=TicketPurpose.AVERAGE,
                attempt=running.attempt,
            )
            assert await stranger.average("w0", running.attempt, ticket) in ("role", "attempt")
            before = leader.round_index
            await until(lambda: leader.round_index >= before + 2)

    run(scenario())


def _parents(leader: CoordinatorState) -> list[bool]:
    return [work.group.HasField("parent") for work in leader.attempts.work.orders.values()]


def test_open_streams_that_send_nothing_are_limited_too(certificates: Path, tmp_path: Path) -> None:
    streams = 20  # less than one connection carries

    async def scenario() -> None:
        async with federation_of_workers(endless(), certificates, tmp_path) as (members, leader):
            await until(lambda: leader.round_index >= 1)
            idle = asyncio.Event()

            async def nothing() -> AsyncIterator[wire.Chunk]:
                await idle.wait()
                yield wire.Chunk()

            attacker = Caller(members, leader, "w3")
            calls = [
                asyncio.create_task(
                    attacker._answer("w0", lambda stub: stub.Swap(nothing(), timeout=60))
                )
                for _ in range(streams)
            ]
            await until(lambda: sum(call.done() for call in calls) == streams - 4)
            assert {call.result() for call in calls if call.done()} == {"streams"}
            before = leader.round_index
            await until(lambda: leader.round_index >= before + 2)
            idle.set()
            await asyncio.gather(*calls)

    run(scenario())


async def _patient_swap(caller: Caller, attempt: Attempt, ticket: bytes, width: int) -> str:
    """With a ticket the call is accepted; what is refused then is the made-up model."""
    while True:
        answer = await caller.swap("w0", attempt, ticket, width)
        if answer != "busy":
            return answer


# --- tickets -------------------------------------------------------------------------------


def test_a_ticket_is_for_one_caller_purpose_attempt_and_version() -> None:
    checker = TicketChecker()
    checker.key = new_key()
    good: dict[str, Any] = {
        "run": RUN,
        "caller": "w1",
        "purpose": TicketPurpose.COMMITTED,
        "attempt": NOW,
        "version": Attempt(3, 6, 1),
    }
    ticket = make_ticket(checker.key, **good)
    checker.check(ticket, **good)
    for change in (
        {"run": "f" * 32},
        {"caller": "w2"},
        {"purpose": TicketPurpose.TRAINED},
        {"attempt": Attempt(3, 8, 1)},
        {"version": INITIAL},
    ):
        with pytest.raises(Refused, match="ticket"):
            checker.check(ticket, **{**good, **change})
    for wrong in (b"", bytes(24), ticket[:-1], ticket + b"\0", b"\1" + ticket[1:]):
        with pytest.raises(Refused, match="ticket"):
            checker.check(wrong, **good)
    other = TicketChecker()
    other.key = new_key()
    with pytest.raises(Refused, match="ticket"):
        other.check(ticket, **good)
    checker.barred = frozenset({"w1"})
    with pytest.raises(Refused, match="removed"):
        checker.check(ticket, **good)


def test_tickets_of_other_releases_are_understood() -> None:
    """Fixed examples: a coordinator and workers of different releases talk to each other."""
    key = bytes(range(32))
    plain = make_ticket(key, run=RUN, caller="w1", purpose=TicketPurpose.TRAINED, attempt=NOW)
    assert plain.hex() == "000000000000000041831d22513e4bd1d9aacfdaf68259dd"
    swap = make_ticket(
        key,
        run=RUN,
        caller="w2",
        purpose=TicketPurpose.SWAP,
        attempt=NOW,
        version=Attempt(3, 6, 2),
        serial=258,
    )
    assert swap.hex() == "00000000000001025fa85abae09f210dd2c5699155e49c2c"


def test_a_ticket_to_swap_is_used_once_and_no_earlier_one_afterwards() -> None:
    checker = TicketChecker()
    checker.key = new_key()

    def ticket(serial: int) -> bytes:
        return make_ticket(
            checker.key,
            run=RUN,
            caller="w1",
            purpose=TicketPurpose.SWAP,
            attempt=NOW,
            serial=serial,
        )

    def check(serial: int) -> None:
        checker.check(ticket(serial), run=RUN, caller="w1", purpose=TicketPurpose.SWAP, attempt=NOW)

    check(0)
    check(0)  # a swap that found its partner busy comes again
    checker.swapped("w1", NOW, ticket(5))
    for used in (0, 5):
        with pytest.raises(Refused, match="used"):
            check(used)
    check(6)


def test_an_older_coordinator_gives_no_key_and_then_no_ticket_is_asked_for() -> None:
    TicketChecker().check(b"", run=RUN, caller="w1", purpose=TicketPurpose.PROBE, attempt=NOW)


def test_no_worker_gets_models_without_tickets_by_saying_that_it_is_old(
    certificates: Path, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with in_process_federation(endless(), certificates, tmp_path) as federation:
            await federation.start_coordinator()
            assert await _join(federation, "w0", release="9.1.0") == "version"
            # A release that knows no tickets cannot check who leads either, and does not say so.
            assert await _join(federation, "w0", release="0.1.0", nonce=b"") == "size"
            assert await _join(federation, "w0", release="0.1.0") == ""

    run(scenario())
    checker = TicketChecker()
    checker.key = new_key()
    with pytest.raises(Refused, match="did not name w0"):
        checker.check(b"", run=RUN, caller="w0", purpose=TicketPurpose.TRAINED, attempt=NOW)
