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

from fedhp.cluster.coordinator.handlers import CoordinatorHandlers
from fedhp.cluster.protocol import limits, message_checks
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.call_limits import CallLimits, LogThrottle
from fedhp.cluster.protocol.guard import CALL_RULES, Refused
from fedhp.cluster.protocol.wire_pb2_grpc import CoordinatorServicer
from fedhp.cluster.security.tls import AllowList, identify_caller

T = TypeVar("T")
LOG = logging.getLogger("fedhp.coordinator")
CODES = {
    "unknown": grpc.StatusCode.PERMISSION_DENIED,
    "role": grpc.StatusCode.PERMISSION_DENIED,
    "sender": grpc.StatusCode.PERMISSION_DENIED,
    "quarantined": grpc.StatusCode.PERMISSION_DENIED,
    "removed": grpc.StatusCode.PERMISSION_DENIED,
    "joined": grpc.StatusCode.FAILED_PRECONDITION,
    "full": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "streams": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "replaced": grpc.StatusCode.ABORTED,
    "epoch": grpc.StatusCode.FAILED_PRECONDITION,
    "run": grpc.StatusCode.FAILED_PRECONDITION,
}

# Calls that are dear: a join is written down and gets the whole experiment, a status names all
# members. Large requests cost more than small ones.
COSTS = {"Join": 50.0, "Status": 5.0, "Next": 2.0}
STATUS_MEMBERS = 20  # that a status names for the cost of one more call
REQUEST_BYTES = 1 << 16  # of a request for the cost of one more call

# A report is checked by its handler, which knows what is expected of the worker.
CHECKS: Mapping[str, Callable[[Any], None]] = {
    "Join": message_checks.check_join,
    "Next": message_checks.check_next,
    "Beat": message_checks.check_beat,
    "Leave": message_checks.check_leave,
    "Status": message_checks.check_status,
    "Command": message_checks.check_command,
}


class CoordinatorService(CoordinatorServicer):
    """The calls of workers and operators."""

    def __init__(self, handlers: CoordinatorHandlers, allowed: AllowList) -> None:
        self.handlers = handlers
        self.allowed = allowed
        self._limits = CallLimits()
        self._log_throttle = LogThrottle()

    async def Join(self, request: wire.JoinRequest, context: Any) -> wire.JoinReply:
        """A worker joins, for the first time or again."""
        return await self._answer(
            "Join", request, context, lambda name: self.handlers.join(name, request)
        )

    async def Next(self, request: wire.NextRequest, context: Any) -> wire.Order:
        """A worker asks for something to do."""

        def next_order(name: str) -> Awaitable[wire.Order]:
            return self.handlers.next(self.handlers.member(name), request)

        return await self._answer("Next", request, context, next_order)

    async def Report(self, request: wire.RoundReport, context: Any) -> wire.Receipt:
        """A worker reports what it measured. Being late is an answer, not an error."""

        def report(name: str) -> wire.Receipt:
            member = self.handlers.member(name)
            try:
                self.handlers.report(member, request)
            except Refused as refusal:
                if refusal.bad:
                    raise
                return wire.Receipt(accepted=False, why=str(refusal))
            return wire.Receipt(accepted=True)

        return await self._answer("Report", request, context, report)

    async def Beat(self, request: wire.BeatRequest, context: Any) -> wire.BeatReply:
        """A sign of life."""

        def beat(name: str) -> wire.BeatReply:
            return self.handlers.beat(self.handlers.member(name), request.phase)

        return await self._answer("Beat", request, context, beat)

    async def Leave(self, request: wire.LeaveRequest, context: Any) -> wire.Receipt:
        """A worker leaves."""

        def leave(name: str) -> wire.Receipt:
            self.handlers.leave(self.handlers.member(name), request.why)
            return wire.Receipt(accepted=True)

        return await self._answer("Leave", request, context, leave)

    async def Status(self, request: wire.StatusRequest, context: Any) -> wire.StatusReply:
        """Any worker or operator of this federation may look."""
        return await self._answer("Status", request, context, lambda _: self.handlers.status())

    async def Command(self, request: wire.CommandRequest, context: Any) -> wire.Receipt:
        """An operator's command."""

        def command(_: str) -> wire.Receipt:
            return wire.Receipt(accepted=True, why=self.handlers.command(request))

        receipt = await self._answer("Command", request, context, command)
        if request.stop and not await self.handlers.stop_is_durable():
            receipt.why += "; not durable yet: do not end the coordinator before the run is over"
        return receipt

    async def _answer(
        self, method: str, request: Any, context: Any, handle: Callable[[str], T | Awaitable[T]]
    ) -> T:
        """Check who calls, whether it may, and the message; then handle it."""
        name = ""
        try:
            peer = await identify_caller(context)
            name = peer.name
            async with self._limits.one_call(name, cost=self._cost(method, request)):
                roles = frozenset(() if self.allowed.refusal(name) else peer.roles)
                self.handlers.guard.check(
                    request.envelope, peer=name, roles=roles, rule=CALL_RULES[method]
                )
                if method in CHECKS:
                    CHECKS[method](request)
                answer = handle(name)
                return await answer if isinstance(answer, Awaitable) else answer
        except Refused as refusal:
            return await self._refuse(context, name, refusal)

    def _cost(self, method: str, request: Any) -> float:
        cost = COSTS.get(method, 1.0) + float(request.ByteSize()) / REQUEST_BYTES
        if method == "Status":
            cost += len(self.handlers.state.conductor.members) / STATUS_MEMBERS
        return cost

    async def _refuse(self, context: Any, name: str, refusal: Refused) -> NoReturn:
        guard = self.handlers.guard
        known = guard.is_quarantined(name)
        if guard.strike(name, refusal.reason) and not known:
            LOG.warning("quarantined %s", name)
        log, left_out = self._log_throttle.admit(name, refusal.reason)
        if log:
            more = f" ({left_out} more like it before)" if left_out else ""
            LOG.info("refused %s: %s%s", name or "an unknown caller", refusal, more)
        code = CODES.get(refusal.reason, grpc.StatusCode.INVALID_ARGUMENT)
        await context.abort(code, str(refusal)[: limits.TEXT_LENGTH])
        raise AssertionError("abort does not return")
