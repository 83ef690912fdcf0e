"""The worker's line to the coordinator: Join, Next, Report, Beat, Leave.

A coordinator may start later, restart or move: calls are tried again with growing pauses, over
all addresses in turn. Every reply is checked before it is believed, and a smaller epoch than the
largest one seen is refused, whatever it says.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from fedhp import __version__
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.guard import Refused
from fedhp.cluster.protocol.message_checks import (
    check_beat_reply,
    check_join_reply,
    check_order,
    check_receipt,
)
from fedhp.cluster.protocol.services import call
from fedhp.cluster.security.tls import Cause, cause_of, facts_at, open_channel
from fedhp.cluster.worker.session import WorkerSession
from fedhp.errors import RunError

log = logging.getLogger("fedhp.worker")

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0  # s between two tries
SILENT = 3.0  # s without an answer, not even to a beat, until a call is tried elsewhere
GIVE_UP = 60.0  # s without a coordinator before the first join; later ones are waited for
# What can pass: the coordinator is not there, not leading, or busy.
PASSING = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
    }
)

Finder = Callable[[], Awaitable[str]]


class MustJoin(Exception):
    """The coordinator does not take this worker for a member (any more)."""


class NoCoordinator(Exception):
    """Nobody is there, or somebody who must not coordinate."""

    def __init__(self, why: str, *, final: bool = False) -> None:
        super().__init__(why)
        self.final = final


class Uplink:
    """Calls to whoever coordinates."""

    def __init__(
        self,
        member: WorkerSession,
        addresses: Sequence[str],
        *,
        name: str | None = None,
        finder: Finder | None = None,
        give_up: float = GIVE_UP,
    ) -> None:
        self._member = member
        self._addresses = list(addresses)
        self._name = name  # of the coordinator; none: whoever may serve the host
        self._finder = finder
        self._give_up = give_up
        self._turn = 0
        self._channel: grpc.aio.Channel | None = None
        self.address = addresses[0] if addresses else ""
        self.joined = False  # at least once
        self._vetted = False  # that who answers over this connection may coordinate
        self._pending: Any = None  # the call that waits for its answer
        self._sign = 0.0  # when it was made, or since then something was heard

    async def close(self) -> None:
        """Close the connection."""
        self._vetted = False
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    async def join(
        self, address: str, *, samples: int, step_time: float, stands: Sequence[Attempt]
    ) -> wire.JoinReply:
        """Take part; told until somebody answers, or an error says why that is hopeless."""
        request = wire.JoinRequest(
            address=address,
            fedhp=__version__,
            samples=samples,
            step_time=step_time,
            stands=[stand.to_wire() for stand in stands[-limits.STANDS :]],
        )
        reply: wire.JoinReply = await self._until_answered("Join", request, limits.JOIN_SECONDS)
        try:
            check_join_reply(reply)
            self._member.guard.obey(reply.epoch)
        except Refused as error:
            raise RunError(
                f"{self.address}: the coordinator's answer makes no sense: {error}",
                fix="use the same version of fedhp everywhere",
            ) from None
        self.joined = True
        return reply

    async def next_order(
        self,
        stands: Sequence[Attempt],
        *,
        step_time: float,
        model_bytes: int,
        samples: int,
        surveyed: Sequence[wire.LinkReport] = (),
    ) -> wire.Order:
        """What to do next. Refused: an order that must not be obeyed."""
        request = wire.NextRequest(
            stands=[stand.to_wire() for stand in stands[-limits.STANDS :]],
            step_time=step_time,
            model_bytes=model_bytes,
            samples=samples,
            surveyed=surveyed,
        )
        order: wire.Order = await self._until_answered(
            "Next", request, limits.POLL_SECONDS + limits.POLL_SLACK
        )
        check_order(order, workers=self._member.workers, worker=self._member.worker)
        self._member.guard.obey(order.epoch)
        return order

    async def report(self, report: wire.RoundReport, attempt: Attempt) -> wire.Receipt:
        """Tell what an attempt gave; the same report again where no answer came."""
        receipt: wire.Receipt = await self._until_answered(
            "Report", report, limits.REPORT_SECONDS, attempt=attempt
        )
        check_receipt(receipt)
        return receipt

    async def beat(self, seconds: float) -> wire.BeatReply:
        """A sign of life, once: the next one comes anyway."""
        if self._channel is None:
            # To call the last address again would keep the finder from being asked.
            raise Refused("attempt", "who coordinates is just being found out")
        request = wire.BeatRequest(envelope=self._member.envelope(), phase=self._member.phase)
        timeout = min(limits.BEAT_SECONDS, max(seconds, 0.5))
        reply: wire.BeatReply = await self._call("Beat")(request, timeout=timeout)
        try:
            await self._vet()
        except NoCoordinator as error:
            raise Refused("role", str(error)) from None
        check_beat_reply(reply, workers=self._member.workers or limits.WORKERS)
        self._sign = time.monotonic()
        return reply

    def break_silence(self) -> None:
        """Give up a call to one that does not even answer beats: it may be frozen, and another
        one lead."""
        if self._pending is not None and time.monotonic() - self._sign > SILENT:
            self._pending.cancel()

    async def leave(self, why: str, *, within: float) -> None:
        """Say goodbye, if there is somebody to hear it."""
        request = wire.LeaveRequest(envelope=self._member.envelope(), why=why[: limits.TEXT_LENGTH])
        with contextlib.suppress(grpc.aio.AioRpcError, TimeoutError):
            await self._call("Leave")(request, timeout=within)

    # --- inside ----------------------------------------------------------------------------

    def _call(self, method: str) -> Any:
        if self._channel is None:
            self._channel = open_channel(self._member.identity, self.address, name=self._name)
        return call(self._channel, "Coordinator", method)

    async def _until_answered(
        self, method: str, request: Any, timeout: float, *, attempt: Attempt | None = None
    ) -> Any:
        pause, started = FIRST_PAUSE, time.monotonic()
        while True:
            try:
                await self._find()
                # Every sending is a message of its own: an envelope is never used twice.
                request.envelope.CopyFrom(self._envelope(method, attempt))
                return await self._answer(self._call(method)(request, timeout=timeout))
            except grpc.aio.AioRpcError as error:
                self._judge(method, error)
                why = await self._cause(error)
            except NoCoordinator as error:
                why = Cause(str(error), error.final)
            except OSError as error:  # of the finder
                why = Cause(str(error))
            log.warning(
                "coordinator not reached",
                extra={"call": method, "address": self.address, "why": why.text},
            )
            waited = time.monotonic() - started
            in_vain = why.final and len(self._addresses) <= 1 and self._finder is None
            if not self.joined and in_vain:
                raise RunError(why.text, fix="mend that certificate, and start this worker again")
            if not self.joined and waited + pause > self._give_up:
                raise RunError(
                    f"no coordinator answered within {waited:.0f} s: {why.text}",
                    allowed="the host and port of a coordinator that is running",
                    fix="start it, or mend what is said above, and start this worker again",
                )
            await self._move_on()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _answer(self, call: Any) -> Any:
        self._pending, self._sign = call, time.monotonic()
        try:
            reply = await call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling() or not call.cancelled():
                raise
            raise NoCoordinator(f"{self.address} is silent") from None
        finally:
            self._pending = None
        await self._vet()
        return reply

    def _envelope(self, method: str, attempt: Attempt | None) -> wire.Envelope:
        if method == "Join":
            # The run is not known before; afterwards naming it would bind the worker to it.
            return self._member.envelopes.make(attempt=Attempt(self._member.guard.epoch, 0, 0))
        return self._member.envelope(attempt)

    def _judge(self, method: str, error: grpc.aio.AioRpcError) -> None:
        """Return if trying again may help."""
        if error.code() in PASSING:
            return
        if method != "Join":
            raise MustJoin(error.details() or error.code().name)
        raise RunError(
            f"{self.address}: the coordinator refused this worker: "
            f"{error.details() or error.code().name.lower()}",
            fix="see the reason; the coordinator's log has more",
        )

    async def _find(self) -> None:
        """With a finder: whoever coordinates now."""
        if self._finder is None or self._channel is not None:
            return
        self.address = await self._finder()

    async def _vet(self) -> None:
        """Nobody's answer is believed who is no coordinator by its certificate: gRPC looks only
        for the host in it."""
        if self._vetted:
            return
        facts = await facts_at(self._member.identity, self.address)
        if facts is None:
            raise NoCoordinator(f"{self.address} does not show its certificate again")
        if "coordinator" not in facts.roles:
            has = " and ".join(facts.roles) or "nothing"
            raise NoCoordinator(
                f"{self.address} is {facts.name}, {has} by its certificate, but no coordinator",
                final=True,
            )
        self._vetted = True

    async def distrust(self) -> None:
        """Ask another one: this one is not, or not any more, who coordinates."""
        await self._move_on()
        await asyncio.sleep(FIRST_PAUSE)

    async def _move_on(self) -> None:
        """The next address, over a new connection."""
        await self.close()
        if self._addresses and self._finder is None:
            self._turn += 1
            self.address = self._addresses[self._turn % len(self._addresses)]

    async def _cause(self, error: grpc.aio.AioRpcError) -> Cause:
        """The true one: gRPC says the same of a wrong certificate and of a closed port."""
        if self.joined or error.code() != grpc.StatusCode.UNAVAILABLE:
            return Cause(f"{self.address}: {error.details() or error.code().name.lower()}")
        identity = self._member.identity
        return await cause_of(identity, self.address, name=self._name, error=error)
