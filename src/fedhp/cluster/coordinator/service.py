"""The coordinator's counter: every call of a worker or operator is checked here, then handed on.

A refused call ends with a gRPC status whose details are "reason: text"; bad ones count against
their sender. Nothing here decides anything about rounds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

import grpc
import grpc.aio

from fedhp.cluster.coordinator.conductor import Member
from fedhp.cluster.protocol import limits, message_checks
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.guard import RULES, Guard, Refused
from fedhp.cluster.security.tls import AllowList, peer_of

T = TypeVar("T")
LOG = logging.getLogger("fedhp.coordinator")
CODES = {
    "unknown": grpc.StatusCode.PERMISSION_DENIED,
    "role": grpc.StatusCode.PERMISSION_DENIED,
    "sender": grpc.StatusCode.PERMISSION_DENIED,
    "quarantined": grpc.StatusCode.PERMISSION_DENIED,
    "joined": grpc.StatusCode.FAILED_PRECONDITION,
    "full": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "epoch": grpc.StatusCode.FAILED_PRECONDITION,
    "run": grpc.StatusCode.FAILED_PRECONDITION,
}


class CallHandlers(Protocol):
    """What the coordinator does with a call that passed the counter."""

    @property
    def guard(self) -> Guard:
        """Judges envelopes."""

    def join(self, name: str, request: wire.JoinRequest) -> wire.JoinReply:
        """A worker is there."""

    def member(self, name: str) -> Member:
        """The member of this name, or Refused("joined")."""

    async def next(self, member: Member, request: wire.NextRequest) -> wire.Order:
        """Something to do, at the latest after limits.POLL_SECONDS."""

    def report(self, member: Member, report: wire.RoundReport) -> None:
        """What it measured, or Refused."""

    def expected(self, member: Member) -> Expected:
        """What a report of this member must belong to."""

    def beat(self, member: Member, phase: str) -> wire.BeatReply:
        """It is alive."""

    def leave(self, member: Member, why: str) -> None:
        """It goes."""

    def status(self) -> wire.StatusReply:
        """How it stands."""

    def command(self, request: wire.CommandRequest) -> str:
        """Do what the operator wants; what was done, in words."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a report must belong to: the attempt, and the peers its order named."""

    workers: int
    attempt: Attempt
    asked: frozenset[int]


class CoordinatorService:
    """The Coordinator service of wire.proto."""

    def __init__(self, office: CallHandlers, allowed: AllowList) -> None:
        self.office = office
        self.allowed = allowed

    async def Join(self, request: wire.JoinRequest, context: Any) -> wire.JoinReply:
        """A worker joins, for the first time or again."""
        return await self._answer(
            context,
            "Join",
            request,
            message_checks.check_join,
            lambda name: self.office.join(name, request),
        )

    async def Next(self, request: wire.NextRequest, context: Any) -> wire.Order:
        """A worker wants something to do."""
        member = await self._answer(
            context, "Next", request, message_checks.check_next, self.office.member
        )
        return await self.office.next(member, request)

    async def Report(self, request: wire.RoundReport, context: Any) -> wire.Receipt:
        """A worker tells what it measured. Being late is an answer, not an error."""

        def take(name: str) -> wire.Receipt:
            member = self.office.member(name)
            try:
                expected = self.office.expected(member)
                message_checks.check_report(
                    request,
                    workers=expected.workers,
                    worker=member.worker,
                    attempt=expected.attempt,
                    asked=expected.asked,
                )
                self.office.report(member, request)
            except Refused as refusal:
                if refusal.bad:
                    raise
                return wire.Receipt(accepted=False, why=str(refusal))
            return wire.Receipt(accepted=True)

        return await self._answer(context, "Report", request, None, take)

    async def Beat(self, request: wire.BeatRequest, context: Any) -> wire.BeatReply:
        """A sign of life."""
        return await self._answer(
            context,
            "Beat",
            request,
            message_checks.check_beat,
            lambda name: self.office.beat(self.office.member(name), request.phase),
        )

    async def Leave(self, request: wire.LeaveRequest, context: Any) -> wire.Receipt:
        """A worker goes."""

        def go(name: str) -> wire.Receipt:
            self.office.leave(self.office.member(name), request.why)
            return wire.Receipt(accepted=True)

        return await self._answer(context, "Leave", request, message_checks.check_leave, go)

    async def Status(self, request: wire.StatusRequest, context: Any) -> wire.StatusReply:
        """Anyone of this federation may look."""
        return await self._answer(
            context,
            "Status",
            request,
            message_checks.check_status,
            lambda _: self.office.status(),
        )

    async def Command(self, request: wire.CommandRequest, context: Any) -> wire.Receipt:
        """An operator's wish."""
        return await self._answer(
            context,
            "Command",
            request,
            message_checks.check_command,
            lambda _: wire.Receipt(accepted=True, why=self.office.command(request)),
        )

    async def _answer(
        self,
        context: Any,
        method: str,
        request: Any,
        check: Callable[[Any], None] | None,
        act: Callable[[str], T],
    ) -> T:
        """Who is it, may it, is it well formed; then act."""
        name = ""
        try:
            peer = peer_of(context)
            name = peer.name
            known = frozenset(() if self.allowed.refusal(name) else peer.roles)
            self.office.guard.check(request.envelope, peer=name, roles=known, rule=RULES[method])
            if check is not None:
                check(request)
            return act(name)
        except Refused as refusal:
            return await self._refuse(context, name, refusal)

    async def _refuse(self, context: Any, name: str, refusal: Refused) -> NoReturn:
        if self.office.guard.strike(name, refusal.reason):
            LOG.warning("quarantined %s", name)
        LOG.info("refused %s: %s", name or "somebody", refusal)
        code = CODES.get(refusal.reason, grpc.StatusCode.INVALID_ARGUMENT)
        await context.abort(code, str(refusal)[: limits.TEXT_LENGTH])
        raise AssertionError("abort does not return")
