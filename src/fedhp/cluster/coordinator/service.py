"""The Coordinator service of wire.proto: checks every call, then hands it to the handlers.

Who calls and how often is checked before anything of the call is read. A refused call ends with a
gRPC status whose details are "reason: text"; bad ones count against their sender. Nothing here
decides anything about rounds.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc
import grpc.aio

from fedhp.cluster.coordinator.handlers import CoordinatorHandlers
from fedhp.cluster.coordinator.members.dial_back import source_of
from fedhp.cluster.protocol import limits, message_checks
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.addresses import HostPort
from fedhp.cluster.protocol.calls import REFUSAL_COST, CallLimits, Messages
from fedhp.cluster.protocol.guard import CALL_RULES, Refused
from fedhp.cluster.protocol.limits import LogThrottle
from fedhp.cluster.security.leader_proof import prove
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
    "patience": grpc.StatusCode.DEADLINE_EXCEEDED,
    "method": grpc.StatusCode.UNIMPLEMENTED,
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


class CoordinatorService:
    """The calls of workers and operators."""

    def __init__(
        self,
        handlers: CoordinatorHandlers,
        allowed: AllowList,
        identity: RenewableIdentity,
        *,
        address: str,
        expiry: ExpiryWatch | None = None,
    ) -> None:
        self.handlers = handlers
        self.allowed = allowed
        self._expiry = expiry
        self._identity, self._address = identity, address
        self._limits = CallLimits()
        self._log_throttle = LogThrottle()

    async def Join(self, messages: Messages[wire.JoinRequest], context: Any) -> wire.JoinReply:
        """A worker joins, for the first time or again."""

        def join(name: str, request: wire.JoinRequest) -> wire.JoinReply:
            reply = self.handlers.join(name, request)
            prove(
                self._identity.current(),
                reply,
                caller=name,
                nonce=request.nonce,
                address=self._address,
            )
            return reply

        return await self._answer("Join", messages, context, join)

    async def Next(self, messages: Messages[wire.NextRequest], context: Any) -> wire.Order:
        """A worker asks for something to do."""

        async def next_order(name: str, request: wire.NextRequest) -> wire.Order:
            member = self.handlers.member(name)
            if not request.HasField("report"):
                return await self.handlers.next(member, request)
            receipt = self._receipt(name, request.report)
            order = await self.handlers.next(member, request)
            order.receipt.CopyFrom(receipt)
            return order

        return await self._answer("Next", messages, context, next_order)

    async def Report(self, messages: Messages[wire.RoundReport], context: Any) -> wire.Receipt:
        """A worker reports what it measured. Being late is an answer, not an error."""
        return await self._answer("Report", messages, context, self._receipt)

    def _receipt(self, name: str, report: wire.RoundReport) -> wire.Receipt:
        member = self.handlers.member(name)
        try:
            self.handlers.report(member, report)
        except Refused as refusal:
            if refusal.bad:
                raise
            return wire.Receipt(accepted=False, why=str(refusal))
        return wire.Receipt(accepted=True)

    async def Beat(self, messages: Messages[wire.BeatRequest], context: Any) -> wire.BeatReply:
        """A sign of life."""

        def beat(name: str, request: wire.BeatRequest) -> wire.BeatReply:
            member = self.handlers.member(name)
            reply = self.handlers.beat(member, request.phase)
            source = source_of(context.peer()) if self.handlers.state.dial_backs else None
            reply.dial.extend(self.handlers.dial_targets(member, request, source))
            return reply

        return await self._answer("Beat", messages, context, beat)

    async def Leave(self, messages: Messages[wire.LeaveRequest], context: Any) -> wire.Receipt:
        """A worker leaves."""

        def leave(name: str, request: wire.LeaveRequest) -> wire.Receipt:
            self.handlers.leave(name, request)
            return wire.Receipt(accepted=True)

        return await self._answer("Leave", messages, context, leave)

    async def Status(
        self, messages: Messages[wire.StatusRequest], context: Any
    ) -> wire.StatusReply:
        """Any worker or operator of this federation may look."""
        return await self._answer("Status", messages, context, lambda *_: self._status())

    def _status(self) -> wire.StatusReply:
        reply = self.handlers.status()
        expiring = self._expiry.expiring() if self._expiry is not None else {}
        for name in list(expiring)[: message_checks.MAX_EXPIRING]:
            reply.expiring.add(name=name, seconds=expiring[name])
        return reply

    async def Command(self, messages: Messages[wire.CommandRequest], context: Any) -> wire.Receipt:
        """An operator's command."""

        async def command(_: str, request: wire.CommandRequest) -> wire.Receipt:
            why = self.handlers.command(request)
            if request.stop and not await self.handlers.stop_is_durable():
                why += "; not durable yet: do not end the coordinator before the run is over"
            if (request.remove or request.allow) and not await self.handlers.removal_is_durable():
                why += "; not durable yet: repeat it if another coordinator takes over soon"
            return wire.Receipt(accepted=True, why=why)

        return await self._answer("Command", messages, context, command)

    async def DialBack(
        self, messages: Messages[wire.DialBackRequest], context: Any
    ) -> wire.DialBackReply:
        """A worker asks whether others can connect to it, before it joins."""

        async def handshake(target: HostPort, name: str) -> str:
            return await handshake_problem(self._identity.current(), target, name=name)

        def dial_back(name: str, request: wire.DialBackRequest) -> Awaitable[wire.DialBackReply]:
            source = source_of(context.peer())
            return self.handlers.dial_back(
                name, request.address, source=source, handshake=handshake
            )

        return await self._answer("DialBack", messages, context, dial_back)

    async def refuse_method(self, refusal: Refused, context: Any) -> None:
        """A call of something that no coordinator offers."""
        async with self._admitted("", context):
            raise refusal

    async def _answer(
        self,
        method: str,
        messages: Messages[Any],
        context: Any,
        handle: Callable[[str, Any], T | Awaitable[T]],
    ) -> T:
        """Check who calls, whether it may, and the message; then handle it."""
        async with self._admitted(method, context) as caller:
            name = caller.name
            request = await messages.only()
            self._limits.charge(name, messages.size / REQUEST_BYTES)
            said = [(request, CALL_RULES[method])]
            if isinstance(request, wire.NextRequest) and request.HasField("report"):
                said.append((request.report, CALL_RULES["Report"]))
            for message, rule in said:
                self.handlers.guard.check(
                    message.envelope, peer=name, roles=caller.roles, rule=rule
                )
            if self._expiry is not None:
                self._expiry.see(name, caller.certificate)
            if method in CHECKS:
                CHECKS[method](request)
            answer = handle(name, request)
            return await answer if isinstance(answer, Awaitable) else answer
        raise AssertionError("a refused call does not get here")

    @asynccontextmanager
    async def _admitted(self, method: str, context: Any) -> AsyncIterator[PeerIdentity]:
        """Who calls, if it may; nothing of the call is read yet. What is refused in the block
        ends the call and counts against its sender."""
        caller = await identify_caller(context)
        name = caller.name
        try:
            refusal = self._refusal(caller, method)
            # The machine that has the name now does not share its budget with the one before.
            replaced = refusal is not None and refusal.reason == "certificate"
            async with self._limits.one_call(
                f"replaced {name}" if replaced else name,
                connection=context.peer(),
                cost=self._cost(method) if refusal is None else REFUSAL_COST,
            ):
                if refusal is not None:
                    raise refusal
                yield caller
        except Refused as refused:
            if refused.bad:
                self._limits.charge(name, REFUSAL_COST)
            await self._refuse(context, name, refused)

    def _refusal(self, caller: PeerIdentity, method: str) -> Refused | None:
        """Why nothing of this caller is read; None if it is."""
        if self.allowed.names is not None and (refusal := self.allowed.refusal(caller.name)):
            return Refused("unknown", refusal)
        try:
            self.handlers.guard.enter(caller.name)
            if method in BOUND_CALLS and CALL_RULES[method].allowed & caller.roles:
                self.handlers.state.admission.certificate_shown(caller.name, caller.certificate)
        except Refused as refused:
            return refused
        return None

    def _cost(self, method: str) -> float:
        cost = COSTS.get(method, 1.0)
        if method == "Status":
            state = self.handlers.state
            broken = min(len(state.reachability), message_checks.MAX_BROKEN_LINKS)
            cost += (len(state.conductor.members) + broken) / STATUS_MEMBERS
        return cost

    async def _refuse(self, context: Any, name: str, refusal: Refused) -> None:
        guard = self.handlers.guard
        known = guard.is_quarantined(name)
        if guard.strike(name, refusal.reason) and not known:
            LOG.warning("quarantined %s", name)
            self.handlers.state.admission.quarantined(name)
        log, left_out = self._log_throttle.admit(name, refusal.reason)
        if log:
            more = f" ({left_out} more like it before)" if left_out else ""
            LOG.info("refused %s: %s%s", name, refusal, more)
            why = f"{refusal}{more}"[: limits.TEXT_LENGTH]
            self.handlers.state.admission.call_refused(name, why)
        code = CODES.get(refusal.reason, grpc.StatusCode.INVALID_ARGUMENT)
        await context.abort(code, str(refusal)[: limits.TEXT_LENGTH])
