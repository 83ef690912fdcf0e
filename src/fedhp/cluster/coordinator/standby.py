"""What a coordinator answers while it waits for the lead: who leads, and nothing else.

Workers go on to their next address, operators ask the leader that the refusal names.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import grpc.aio

from fedhp.cluster.ledger.etcd import Leader
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol.addresses import HostPort, is_name, split_host_port
from fedhp.cluster.protocol.call_limits import CallLimits
from fedhp.cluster.protocol.guard import Refused
from fedhp.cluster.protocol.wire_pb2_grpc import (
    CoordinatorServicer,
    add_CoordinatorServicer_to_server,
)
from fedhp.cluster.security.renewal import AnyIdentity
from fedhp.cluster.security.tls import AllowList, identify_caller, server_credentials
from fedhp.errors import FedhpError

LOG = logging.getLogger("fedhp.coordinator")
LEADER_AGE_SECONDS = 1.0  # that the answer who leads may be old: callers must not flood etcd
REASON = "standby"  # the first word of every refusal
_LEADER = re.compile(rf"{REASON}: .*; the leader is (\S+) at (\S+)")

LeaderLookup = Callable[[], Awaitable[Leader | None]]  # FedhpError or OSError: not known


@dataclass(frozen=True, slots=True)
class StandbyAnswer:
    """What the refusal of a standby says; no leader: nobody leads, or it is not known who."""

    text: str
    leader: Leader | None


def standby_refusal(name: str, leader: Leader | None) -> str:
    """The details of a refusal."""
    known = "nobody leads at the moment"
    if leader is not None:
        known = f"the leader is {leader.name} at {leader.address}"
    return f"{REASON}: {name} waits for the lead; {known}"


def read_refusal(details: str) -> StandbyAnswer | None:
    """What a standby said; None if these are not the details of a standby's refusal."""
    if not details.startswith(f"{REASON}: "):
        return None
    leader, match = None, _LEADER.fullmatch(details)
    if match is not None and is_name(match[1]) and split_host_port(match[2]) is not None:
        leader = Leader(match[1], match[2], 0)
    return StandbyAnswer(details.partition(": ")[2], leader)


class StandbyService(CoordinatorServicer):
    """Refuses every call and says who leads."""

    def __init__(
        self, name: str, address: str, *, lookup: LeaderLookup, allowed: AllowList
    ) -> None:
        self._name, self._address = name, address
        self._lookup, self._allowed = lookup, allowed
        self._limits = CallLimits()
        self._looking = asyncio.Lock()
        self._known: tuple[float, Leader | None] = (float("-inf"), None)  # as of when

    async def Join(self, request: Any, context: Any) -> NoReturn:
        """A worker tries its next address."""
        await self._refuse(context, grpc.StatusCode.UNAVAILABLE)

    async def Next(self, request: Any, context: Any) -> NoReturn:
        """A worker tries its next address."""
        await self._refuse(context, grpc.StatusCode.UNAVAILABLE)

    async def Report(self, request: Any, context: Any) -> NoReturn:
        """A worker tries its next address."""
        await self._refuse(context, grpc.StatusCode.UNAVAILABLE)

    async def Beat(self, request: Any, context: Any) -> NoReturn:
        """A worker tries its next address."""
        await self._refuse(context, grpc.StatusCode.UNAVAILABLE)

    async def Leave(self, request: Any, context: Any) -> NoReturn:
        """Nobody left: the worker was not a member here."""
        await self._refuse(context, grpc.StatusCode.UNAVAILABLE)

    async def Status(self, request: Any, context: Any) -> NoReturn:
        """The leader knows."""
        await self._refuse(context, grpc.StatusCode.FAILED_PRECONDITION)

    async def Command(self, request: Any, context: Any) -> NoReturn:
        """Only the leader obeys."""
        await self._refuse(context, grpc.StatusCode.FAILED_PRECONDITION)

    async def DialBack(self, request: Any, context: Any) -> NoReturn:
        """The leader knows the members."""
        await self._refuse(context, grpc.StatusCode.FAILED_PRECONDITION)

    async def _refuse(self, context: Any, code: grpc.StatusCode) -> NoReturn:
        caller = (await identify_caller(context)).name
        try:
            async with self._limits.one_call(caller):
                if refusal := self._allowed.refusal(caller):
                    raise Refused("unknown", refusal)
                details = standby_refusal(self._name, await self._leader())
        except Refused as error:
            flooded = error.reason == "streams"
            code = grpc.StatusCode.PERMISSION_DENIED
            code = grpc.StatusCode.RESOURCE_EXHAUSTED if flooded else code
            details = str(error)
        await context.abort(code, details)
        raise AssertionError("abort does not return")

    async def _leader(self) -> Leader | None:
        async with self._looking:
            if time.monotonic() - self._known[0] > LEADER_AGE_SECONDS:
                try:
                    leader = await self._lookup()
                except (OSError, FedhpError):
                    leader = None
                if leader is not None and leader.address == self._address:
                    leader = None  # the process that this one replaces
                self._known = time.monotonic(), leader
            return self._known[1]


@asynccontextmanager
async def standing_by(
    identity: AnyIdentity, listen: HostPort, service: StandbyService
) -> AsyncIterator[None]:
    """Answer calls during the block; the port is free again afterwards."""
    server = grpc.aio.server(options=limits.SERVER_OPTIONS)
    add_CoordinatorServicer_to_server(service, server)
    try:
        server.add_secure_port(str(listen), server_credentials(identity))
    except RuntimeError:
        LOG.warning("nobody can ask this standby who leads: cannot listen on %s", listen)
        yield
        return
    await server.start()
    try:
        yield
    finally:
        await server.stop(grace=None)
