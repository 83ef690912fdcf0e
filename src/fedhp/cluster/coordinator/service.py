"""The Coordinator service of wire.proto: checks every call, then hands it to the handlers.

A refused call ends with a gRPC status whose details are "reason: text"; bad ones count against
their sender. Nothing here decides anything about rounds.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio

from fedhp.cluster.coordinator.dial_back import source_of
from fedhp.cluster.coordinator.handlers import CoordinatorHandlers
from fedhp.cluster.protocol import limits, message_checks
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.addresses import HostPort
from fedhp.cluster.protocol.call_limits import CallLimits, LogThrottle
from fedhp.cluster.protocol.guard import CALL_RULES, Refused
from fedhp.cluster.protocol.wire_pb2_grpc import CoordinatorServicer
from fedhp.cluster.security.renewal import ExpiryWatch, RenewableIdentity
from fedhp.cluster.security.tls import (
    AllowList,
    PeerIdentity,
    handshake_problem,
    identify_caller,
)

T = TypeVar("T")
LOG = logging.getLogger("fedhp.coordinator")
CODES = {
    "unknown": grpc.StatusCode.PERMISSION_DENIED,
    "role": grpc.StatusCode.PERMISSION_DENIED,
    "sender": grpc.StatusCode.PERMISSION_DENIED,
    "quarantined": grpc.StatusCode.PERMISSION_DENIED,
    "removed": grpc.StatusCode.PERMISSION_DENIED,
    "certificate": grpc.StatusCode.PERMISSION_DENIED,
    "setup": grpc.StatusCode.FAILED_PRECONDITION,
    "joined": grpc.StatusCode.FAILED_PRECONDITION,
    "full": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "streams": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "busy": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "elsewhere": grpc.StatusCode.FAILED_PRECONDITION,
    "replaced": grpc.StatusCode.ABORTED,
    "epoch": grpc.StatusCode.FAILED_PRECONDITION,
    "run": grpc.StatusCode.FAILED_PRECONDITION,
}

# Calls that are dear: a join is written down and gets the whole experiment, a status names all
# members. Large requests cost more than small ones.
COSTS = {"Join": 50.0, "DialBack": 50.0, "Status": 5.0, "Next": 2.0}
STATUS_MEMBERS = 20  # or broken links that a status names for the cost of one more call
REQUEST_BYTES = 1 << 16  # of a request for the cost of one more call

# Calls of members, for which a name has one certificate. A status may be asked by a second process.
BOUND_CALLS = frozenset({"Join", "Next", "Report", "Beat", "Leave"})

# A report is checked by its handler, which knows what is expected of the worker.
CHECKS: Mapping[str, Callable[[Any], None]] = {
    "Join": message_checks.check_join,
    "Next": message_checks.check_next,
    "Beat": message_checks.check_beat,
    "Leave": message_checks.check_leave,
    "Status": message_checks.check_status,
    "Command": message_checks.check_command,
    "DialBack": message_checks.check_dial_back,
}


class CoordinatorService(CoordinatorServicer):
    """The calls of workers and operators."""

    def __init__(
        self,
        handlers: CoordinatorHandlers,
        allowed: AllowList,
        expiry: ExpiryWatch | None = None,
        identity: RenewableIdentity | None = None,
    ) -> None:
        self.handlers = handlers
        self.allowed = allowed
        self._expiry = expiry
        self._identity = identity
        self._limits = CallLimits()
        self._log_throttle = LogThrottle()

    async def Join(self, request: wire.JoinRequest, context: Any) -> wire.JoinReply:
        """A worker joins, for the first time or again."""
        return await self._answer(
            "Join", request, context, lambda name: self.handlers.join(name, request)
        )

    async def Next(self, request: wire.NextRequest, context: Any) -> wire.Order:
        """A worker asks for something to do."""

        async def next_order(name: str) -> wire.Order:
            member = self.handlers.member(name)
            if not request.HasField("report"):
                return await self.handlers.next(member, request)
            receipt = self._receipt(name, request.report)
            order = await self.handlers.next(member, request)
            order.receipt.CopyFrom(receipt)
            return order

        return await self._answer("Next", request, context, next_order)

    async def Report(self, request: wire.RoundReport, context: Any) -> wire.Receipt:
        """A worker reports what it measured. Being late is an answer, not an error."""

        return await self._answer(
            "Report", request, context, lambda name: self._receipt(name, request)
        )

    def _receipt(self, name: str, report: wire.RoundReport) -> wire.Receipt:
        member = self.handlers.member(name)
        try:
            self.handlers.report(member, report)
        except Refused as refusal:
            if refusal.bad:
                raise
            return wire.Receipt(accepted=False, why=str(refusal))
        return wire.Receipt(accepted=True)

    async def Beat(self, request: wire.BeatRequest, context: Any) -> wire.BeatReply:
        """A sign of life."""

        def beat(name: str) -> wire.BeatReply:
            member = self.handlers.member(name)
            reply = self.handlers.beat(member, request.phase)
            source = source_of(context.peer()) if self.handlers.state.dial_backs else None
            reply.dial.extend(self.handlers.dial_targets(member, request, source))
            return reply

        return await self._answer("Beat", request, context, beat)

    async def Leave(self, request: wire.LeaveRequest, context: Any) -> wire.Receipt:
        """A worker leaves."""

        def leave(name: str) -> wire.Receipt:
            self.handlers.leave(self.handlers.member(name), request.why)
            return wire.Receipt(accepted=True)

        return await self._answer("Leave", request, context, leave)

    async def Status(self, request: wire.StatusRequest, context: Any) -> wire.StatusReply:
        """Any worker or operator of this federation may look."""
        return await self._answer("Status", request, context, lambda _: self._status())

    def _status(self) -> wire.StatusReply:
        reply = self.handlers.status()
        expiring = self._expiry.expiring() if self._expiry is not None else {}
        for name in list(expiring)[: message_checks.MAX_EXPIRING]:
            reply.expiring.add(name=name, seconds=expiring[name])
        return reply

    async def Command(self, request: wire.CommandRequest, context: Any) -> wire.Receipt:
        """An operator's command."""

        def command(_: str) -> wire.Receipt:
            return wire.Receipt(accepted=True, why=self.handlers.command(request))

        receipt = await self._answer("Command", request, context, command)
        if request.stop and not await self.handlers.stop_is_durable():
            receipt.why += "; not durable yet: do not end the coordinator before the run is over"
        if (request.remove or request.allow) and not await self.handlers.removal_is_durable():
            receipt.why += "; not durable yet: repeat it if another coordinator takes over soon"
        return receipt

    async def DialBack(self, request: wire.DialBackRequest, context: Any) -> wire.DialBackReply:
        """A worker asks whether others can connect to it, before it joins."""

        async def handshake(target: HostPort, name: str) -> str:
            if self._identity is None:
                return "the coordinator does not try it"
            return await handshake_problem(self._identity.current(), target, name=name)

        def dial_back(name: str) -> Awaitable[wire.DialBackReply]:
            source = source_of(context.peer())
            return self.handlers.dial_back(
                name, request.address, source=source, handshake=handshake
            )

        return await self._answer("DialBack", request, context, dial_back)

    async def _answer(
        self, method: str, request: Any, context: Any, handle: Callable[[str], T | Awaitable[T]]
    ) -> T:
        """Check who calls, whether it may, and the message; then handle it."""
        name = ""
        try:
            peer = await identify_caller(context)
            name = peer.name
            roles = frozenset(() if self.allowed.refusal(name) else peer.roles)
            cost = self._cost(method, request)
            if method in BOUND_CALLS and CALL_RULES[method].allowed & roles:
                await self._check_certificate(peer, cost)
            async with self._limits.one_call(name, cost=cost):
                self._admit(request, method, name=name, roles=roles)
                if isinstance(request, wire.NextRequest) and request.HasField("report"):
                    self._admit(request.report, "Report", name=name, roles=roles)
                if self._expiry is not None:
                    self._expiry.see(name, peer.certificate)
                if method in CHECKS:
                    CHECKS[method](request)
                answer = handle(name)
                return await answer if isinstance(answer, Awaitable) else answer
        except Refused as refusal:
            return await self._refuse(context, name, refusal)

    async def _check_certificate(self, peer: PeerIdentity, cost: float) -> None:
        try:
            self.handlers.state.certificate_shown(peer.name, peer.certificate)
        except Refused:
            # The machine that has the name now does not share its budget with the one before.
            async with self._limits.one_call(f"replaced {peer.name}", cost=cost):
                raise

    def _admit(self, message: Any, method: str, *, name: str, roles: frozenset[str]) -> None:
        self.handlers.guard.check(message.envelope, peer=name, roles=roles, rule=CALL_RULES[method])

    def _cost(self, method: str, request: Any) -> float:
        cost = COSTS.get(method, 1.0) + float(request.ByteSize()) / REQUEST_BYTES
        if method == "Status":
            state = self.handlers.state
            broken = min(len(state.reachability), message_checks.MAX_BROKEN_LINKS)
            cost += (len(state.conductor.members) + broken) / STATUS_MEMBERS
        return cost

    async def _refuse(self, context: Any, name: str, refusal: Refused) -> NoReturn:
        guard = self.handlers.guard
        known = guard.is_quarantined(name)
        if guard.strike(name, refusal.reason) and not known:
            LOG.warning("quarantined %s", name)
            self.handlers.state.quarantined(name)
        log, left_out = self._log_throttle.admit(name, refusal.reason)
        if log:
            more = f" ({left_out} more like it before)" if left_out else ""
            LOG.info("refused %s: %s%s", name or "an unknown caller", refusal, more)
            self.handlers.state.call_refused(name, f"{refusal}{more}"[: limits.TEXT_LENGTH])
        code = CODES.get(refusal.reason, grpc.StatusCode.INVALID_ARGUMENT)
        await context.abort(code, str(refusal)[: limits.TEXT_LENGTH])
        raise AssertionError("abort does not return")
