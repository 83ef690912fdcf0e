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
from functools import partialmethod
from typing import Any

import grpc
import grpc.aio

from fedhp.cluster.ledger.etcd import Leader
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol.addresses import HostPort, is_name, split_host_port
from fedhp.cluster.protocol.calls import (
    COORDINATOR_SERVICE,
    REFUSAL_COST,
    CallLimits,
    ServiceMethods,
)
from fedhp.cluster.protocol.guard import Refused
from fedhp.cluster.protocol.limits import LogThrottle
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


class StandbyService:
    """Refuses every call and says who leads; it reads nothing of any."""

    def __init__(
        self, name: str, address: str, *, lookup: LeaderLookup, allowed: AllowList
    ) -> None:
        self._name, self._address = name, address
        self._lookup, self._allowed = lookup, allowed
        self._limits = CallLimits()
        self._log_throttle = LogThrottle()
        self._looking = asyncio.Lock()
        self._known: tuple[float, Leader | None] = (float("-inf"), None)  # as of when

    async def refuse_method(self, refusal: Refused, context: Any) -> None:
        """A call of something that no coordinator offers."""
        await self._refuse(None, context, code=grpc.StatusCode.UNIMPLEMENTED, why=refusal)

    async def _refuse(
        self,
        _: Any,
        context: Any,
        *,
        code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE,
        why: Refused | None = None,
    ) -> None:
        """End the call: because it waits for the lead, or why it would be refused anyway."""
        caller = (await identify_caller(context)).name
        if refusal := self._allowed.refusal(caller):
            code, why = grpc.StatusCode.PERMISSION_DENIED, Refused("unknown", refusal)
        try:
            cost = 1.0 if why is None else REFUSAL_COST
            async with self._limits.one_call(caller, connection=context.peer(), cost=cost):
                if why is not None:
                    raise why
                details = standby_refusal(self._name, await self._leader())
        except Refused as error:
            if error.reason == "streams":
                code = grpc.StatusCode.RESOURCE_EXHAUSTED
            details = str(error)
            log, left_out = self._log_throttle.admit(caller, error.reason)
            if log:
                more = f" ({left_out} more like it before)" if left_out else ""
                LOG.info("refused %s: %s%s", caller, error, more)
        await context.abort(code, details)

    # A worker tries its next address.
    Join = Next = Report = Beat = Leave = _refuse
    # Only the leader knows the members, and obeys an operator.
    Status = Command = DialBack = partialmethod(_refuse, code=grpc.StatusCode.FAILED_PRECONDITION)

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
    server = grpc.aio.server(options=limits.STANDBY_LIMITS.options())
    methods = ServiceMethods(service, COORDINATOR_SERVICE, limits.STANDBY_LIMITS)
    server.add_generic_rpc_handlers((methods,))
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
