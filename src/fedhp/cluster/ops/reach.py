"""Whether this machine and the other workers can reach each other, in both directions.

This machine connects to the others. The others connect to it, because the coordinator asks them
to (coordinator/dial_back.py); meanwhile something must listen here, so this module does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence

import grpc.aio

from fedhp.cluster.ops import operator
from fedhp.cluster.ops.check import Check
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.addresses import HostPort, own_address, parse_address, parse_listen
from fedhp.cluster.security.identity import Identity
from fedhp.cluster.security.tls import handshake_problem, server_credentials
from fedhp.errors import FedhpError

PRESENT = ("ready", "behind", "suspended", "draining")
MOST_PEERS = 32  # to which this machine connects
DIALS_AT_ONCE = 8
MOST_NAMES = 8  # in one line


async def check_reach(
    target: operator.Target,
    identity: Identity,
    status: operator.LeaderStatus,
    *,
    listen: str | None,
    advertise: str | None,
) -> list[Check]:
    """Both directions, each with the names of the others.

    listen: None if a worker listens already. advertise: None, found out from `listen` and the way
    to the coordinator.
    """
    members = [
        member
        for member in status.reply.members
        if member.status in PRESENT and member.name != identity.name and member.address
    ]
    async with _listening(listen, identity) as port:
        if advertise is None:
            assert listen is not None
            here = parse_listen(listen, key="--listen")
            leader = parse_address(status.leader.address, key="address")
            advertise = str(own_address(HostPort(here.host, port or here.port), towards=leader))
        try:
            reply = await operator.dial_back(target, advertise)
            incoming = list(_incoming_checks(reply, advertise))
        except FedhpError as error:
            fix = error.fix or (
                "give the address that others can use: --advertise HOST:PORT; behind address "
                "translation, that of the router, which must forward the port to this machine"
            )
            incoming = [Check("reached by", "wrong", error.problem, fix)]
    return [*incoming, *await _outgoing(members, identity)]


@contextlib.asynccontextmanager
async def _listening(listen: str | None, identity: Identity) -> AsyncIterator[int]:
    """Accept connections as a worker would, but no calls; the port, 0 if that is not possible."""
    if listen is None:
        yield 0
        return
    server, port = grpc.aio.server(options=limits.WORKER_LIMITS.options()), 0
    with contextlib.suppress(RuntimeError):  # in use: if it is this worker, it answers itself
        port = server.add_secure_port(listen, server_credentials(identity))
        await server.start()
    try:
        yield port
    finally:
        await server.stop(grace=None)


def _incoming_checks(reply: wire.DialBackReply, address: str) -> Iterator[Check]:
    port = parse_address(reply.address, key="address").port
    fix = (
        f"open port {port} in the firewall of this machine for the other workers; behind address "
        "translation, forward it and add --advertise HOST:PORT"
    )
    reached = [result.name or "the coordinator" for result in reply.results if not result.why]
    if reached:
        yield Check("reached by", "ok", f"{_names(reached)} can connect to {address}")
    for result in reply.results:
        if result.verdict == "untested":
            message = f"{result.name} could not test whether it reaches {address}: {result.why}"
            yield Check(f"reached by {result.name}", "warning", message, "try again later")
        elif result.why and result.name:
            message = f"{result.name} cannot connect to this machine: {address} {result.why}"
            yield Check(f"reached by {result.name}", "wrong", message, fix)
        elif result.why:
            message = (
                "no other worker is there to test it, and the coordinator cannot connect to this "
                f"machine: {address} {result.why}"
            )
            yield Check("reached by the coordinator", "warning", message, fix)


async def _outgoing(members: list[wire.MemberStatus], identity: Identity) -> list[Check]:
    free = asyncio.Semaphore(DIALS_AT_ONCE)

    async def problem(member: wire.MemberStatus) -> str:
        async with free:
            address = parse_address(member.address, key="address")
            return await handshake_problem(identity, address, name=member.name)

    tried = members[:MOST_PEERS]
    problems = await asyncio.gather(*map(problem, tried))
    reached, checks = list[str](), list[Check]()
    for member, why in zip(tried, problems, strict=True):
        if not why:
            reached.append(member.name)
            continue
        port = parse_address(member.address, key="address").port
        message = f"this machine cannot connect to {member.name}: {member.address} {why}"
        fix = (
            f"open port {port} in the firewall of {member.name}'s machine; if others "
            f"cannot reach it either, restart {member.name} with --advertise HOST:PORT"
        )
        checks.append(Check(f"reaches {member.name}", "wrong", message, fix))
    if reached:
        message = f"this machine can connect to {_names(reached)}"
        checks.insert(0, Check("reaches", "ok", message))
    return checks


def _names(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    text = ", ".join(names[:MOST_NAMES])
    return f"{text} and {more} more" if more > 0 else text
