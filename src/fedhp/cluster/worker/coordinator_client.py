"""A worker's calls to the coordinator: Join, Next, Report, Beat, Leave.

A coordinator may start later, restart or move: calls are tried again with growing pauses, over
all addresses in turn. Every reply is checked before it is used. One with a smaller epoch than
the largest seen is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import grpc
import grpc.aio

from fedhp import __version__
from fedhp.cluster.ledger.base import RunStopped
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.guard import Refused
from fedhp.cluster.protocol.message_checks import (
    check_beat_reply,
    check_join_reply,
    check_order,
    one_line,
)
from fedhp.cluster.protocol.setup import CORRECTION
from fedhp.cluster.protocol.stubs import CoordinatorStub, Stub
from fedhp.cluster.security.leader_proof import new_nonce
from fedhp.cluster.security.tls import Cause, cause_of, open_channel
from fedhp.cluster.worker.session import WorkerSession
from fedhp.errors import FedhpError, RunError, TryAgain

log = logging.getLogger("fedhp.worker")

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0  # s between two tries
SILENT_SECONDS = 3.0  # without any answer, even to a beat, until a call is tried elsewhere
DIAGNOSIS_SECONDS = 30.0  # between two diagnoses of why a worker lost its coordinator
JOIN_PATIENCE = 60.0  # s without a coordinator before the first join, unless --give-up says more
ALONE_SECONDS = 10.0  # without an answer until the log and the phase say that this worker waits
REMINDER_SECONDS = 60.0  # between two lines of the log about a coordinator that does not come back
ALONE = "waiting for a coordinator"  # the phase of a worker that lost its coordinator
# Errors that may pass: the coordinator is not there, not leading, or busy.
TRANSIENT = frozenset(
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
# Refusals of a join that depend on what the coordinator knows at that moment.
PASSING_REASONS = frozenset({"epoch", "run", "joined", "incarnation"})

Finder: TypeAlias = Callable[[], Awaitable[str]]  # returns the address of the current leader


class MustJoin(Exception):
    """To the coordinator this worker is not a member, or no longer."""


class NoCoordinator(Exception):
    """Nobody answers."""


class CoordinatorClient:
    """Calls to the current coordinator."""

    def __init__(
        self,
        session: WorkerSession,
        addresses: Sequence[str],
        *,
        name: str | None = None,
        finder: Finder | None = None,
        give_up: float | None = None,
    ) -> None:
        """give_up: s without a coordinator; None: a minute before the first join, then forever."""
        self._session = session
        self._addresses = list(addresses)
        self._name = name  # that its certificate must have; None: any that is valid for the host
        self._finder = finder
        self._give_up = give_up
        self._tries = 0
        self._channel: grpc.aio.Channel | None = None
        self._stub: Stub | None = None  # of this channel
        self._shown = session.certificates.current()  # with which the channel was opened
        self._diagnosis: asyncio.Task[None] | None = None
        self._diagnosed = -math.inf  # when, last
        self._reminded = -math.inf  # when the log said last that this worker waits
        self.address = addresses[0] if addresses else ""
        self.joined = False  # at least once
        self.answered = math.nan  # when a coordinator answered last
        self._pending: Any = None  # the call that waits for its answer
        self._last_heard = 0.0  # when the pending call began, or a beat was answered since then

    async def end(self) -> None:
        """Close the connection for good."""
        if self._diagnosis is not None:
            self._diagnosis.cancel()
            await asyncio.gather(self._diagnosis, return_exceptions=True)
        await self.close()

    async def close(self) -> None:
        """Close the connection; the next call opens another one."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = self._stub = None

    async def join(
        self,
        address: str,
        *,
        samples: int,
        step_time: float,
        stored: Sequence[Attempt],
        setup: wire.Setup | None = None,
    ) -> wire.JoinReply:
        """Join the run: tried until a coordinator answers, or an error says why it never will."""
        request = wire.JoinRequest(
            address=address,
            fedhp=__version__,
            samples=samples,
            step_time=step_time,
            stands=[attempt.to_wire() for attempt in stored[-limits.MODEL_VERSIONS :]],
            setup=setup,
        )
        pause, started = FIRST_PAUSE, time.monotonic()
        while True:
            reply: wire.JoinReply = await self._until_answered("Join", request, limits.JOIN_SECONDS)
            try:
                check_join_reply(reply)
            except Refused as error:
                raise RunError(
                    f"{self.address}: the coordinator's answer is not valid: {error}",
                    fix="use the same version of fedhp everywhere",
                ) from None
            try:
                self._session.follow(reply, nonce=request.nonce)
            except Refused as error:
                await self._refuse_leader(reply, error, waited=time.monotonic() - started)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                self.joined = True
                return reply

    async def next_order(
        self,
        stored: Sequence[Attempt],
        *,
        step_time: float,
        model_bytes: int,
        samples: int,
        surveyed: Sequence[wire.LinkReport] = (),
        report: tuple[Attempt, wire.RoundReport] | None = None,
        setup: wire.Setup | None = None,
    ) -> wire.Order:
        """Wait for the next order, and report the last attempt if that was not done before;
        Refused if the order must not be obeyed."""
        request = wire.NextRequest(
            stands=[attempt.to_wire() for attempt in stored[-limits.MODEL_VERSIONS :]],
            step_time=step_time,
            model_bytes=model_bytes,
            samples=samples,
            surveyed=surveyed,
            report=None if report is None else report[1],
            setup=setup,
        )
        order: wire.Order = await self._until_answered(
            "Next",
            request,
            limits.POLL_SECONDS + limits.POLL_SLACK,
            attempt=None if report is None else report[0],
        )
        check_order(order, workers=self._session.workers, worker=self._session.worker)
        committed = Attempt.from_wire(order.committed)
        self._session.leader.follower.check_reply(order.epoch, order.token, committed)
        self._session.guard.obey(order.epoch)
        return order

    async def beat(
        self, seconds: float, *, dialed: Sequence[wire.DialResult] = ()
    ) -> wire.BeatReply:
        """Send one heartbeat; it is not repeated, since the next one comes anyway.

        dialed: what came of the addresses that an earlier reply asked to try.
        """
        if self._channel is None:
            # Calling the last address again would keep the finder from being asked.
            raise Refused("attempt", "the coordinator's address is being looked up")
        request = wire.BeatRequest(
            envelope=self._session.envelope(), phase=self._session.phase, dialed=dialed
        )
        timeout = min(limits.BEAT_SECONDS, max(seconds, 0.5))
        reply: wire.BeatReply = await self._call("Beat")(request, timeout=timeout)
        check_beat_reply(reply, workers=self._session.workers or limits.MAX_WORKERS)
        self._last_heard = self.answered = time.monotonic()
        return reply

    def cancel_if_silent(self) -> None:
        """Cancel a call to a coordinator that does not answer heartbeats either: it may be
        frozen, and another one may lead."""
        if self._pending is not None and time.monotonic() - self._last_heard > SILENT_SECONDS:
            self._pending.cancel()

    async def leave(self, why: str, *, within: float) -> None:
        """Leave the run, if a coordinator can be reached."""
        text = one_line(why)
        request = wire.LeaveRequest(envelope=self._session.envelope(), why=text)
        with contextlib.suppress(grpc.aio.AioRpcError, TimeoutError):
            await self._call("Leave")(request, timeout=within)

    async def say_finished(self, why: str, *, within: float) -> None:
        """Say that the last order was carried out: until then the coordinator repeats it, and one
        that is started later waits for this worker."""
        request = wire.LeaveRequest(why=one_line(why), finished=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while True:
                    request.envelope.CopyFrom(self._session.envelope())
                    try:
                        await self._call("Leave")(request, timeout=within)
                        return
                    except grpc.aio.AioRpcError as error:
                        if error.code() not in TRANSIENT:
                            return  # it does not count this worker as a member any more
                    await asyncio.sleep(FIRST_PAUSE)

    async def try_another(self) -> None:
        """Leave this coordinator, which must not be obeyed, for the next address."""
        await self._next_address()
        await asyncio.sleep(FIRST_PAUSE)

    # --- inside ----------------------------------------------------------------------------

    async def _refuse_leader(self, reply: wire.JoinReply, error: Refused, *, waited: float) -> None:
        """Do not follow this coordinator: tell it why, and look for the right one."""
        self._session.note_refusal("coordinator", error, what="leader")
        envelope = self._session.envelopes.make(run=reply.run, attempt=Attempt(reply.epoch, 0, 0))
        request = wire.LeaveRequest(envelope=envelope, why=one_line(f"refused: {error.text}"))
        with contextlib.suppress(grpc.aio.AioRpcError, TimeoutError):
            await self._call("Leave")(request, timeout=limits.BEAT_SECONDS)
        alone = len(self._addresses) <= 1 and self._finder is None
        if waited > self._patience() or (alone and not self.joined):
            raise TryAgain(
                f"{self.address}: this worker does not follow that coordinator: {error.text}",
                allowed="the coordinator that led the run before, or one that took over from it",
                fix="start the right coordinator, or give its address; to join another run, use "
                "another --state",
            )
        await self._next_address()

    def _call(self, method: str) -> Any:
        if self._channel is None:
            self._shown = self._session.certificates.current()
            self._channel = open_channel(
                self._shown, self.address, name=self._name, coordinator=True
            )
            self._stub = CoordinatorStub(self._channel)
        return getattr(self._stub, method)

    async def _until_answered(
        self, method: str, request: Any, timeout: float, *, attempt: Attempt | None = None
    ) -> Any:
        pause, started = FIRST_PAUSE, time.monotonic()
        while True:
            if self._shown is not self._session.certificates.current():
                await self.close()  # a renewed certificate is shown over a new connection
            try:
                if self._finder is not None and self._channel is None:
                    self.address = await self._finder()
                # One is never used twice, also where the message is the same.
                session = self._session
                if method == "Join":
                    # The run is not known before; naming it now would bind the worker to it.
                    first = Attempt(session.guard.epoch, 0, 0)
                    request.envelope.CopyFrom(session.envelopes.make(attempt=first))
                    request.nonce = new_nonce()
                else:
                    request.envelope.CopyFrom(session.envelope())
                if attempt is not None:
                    request.report.envelope.CopyFrom(session.envelope(attempt))
                call = self._pending = self._call(method)(request, timeout=timeout)
                self._last_heard = time.monotonic()
                try:
                    reply = await call
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    if task is None or task.cancelling() or not call.cancelled():
                        raise
                    raise NoCoordinator(f"{self.address} is silent") from None
                finally:
                    self._pending = None
                self.answered = time.monotonic()
                if session.phase == ALONE:
                    session.enter("waiting")
                return reply
            except grpc.aio.AioRpcError as error:
                self._raise_unless_transient(method, error)
                cause = await self._cause(error)
            except NoCoordinator as error:
                cause = Cause(str(error))
            except RunStopped as error:
                if self.joined and error.run == self._session.run:
                    raise
                cause = Cause(str(error))
            except OSError as error:  # of the finder
                cause = Cause(str(error))
            except FedhpError as error:  # of the finder: what etcd refuses to everybody
                if not self.joined:
                    raise
                cause = Cause(error.problem)
            log.warning(
                "coordinator not reached",
                extra={"call": method, "address": self.address, "why": cause.text},
            )
            self._check_hope(cause, time.monotonic() - started, pause)
            await self._next_address()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _check_hope(self, cause: Cause, waited: float, pause: float) -> None:
        """Return if a coordinator may still answer and this worker is to wait for it."""
        alone = len(self._addresses) <= 1 and self._finder is None
        if cause.final and alone and not self.joined:
            raise RunError(cause.text, fix="correct that certificate, then start this worker again")
        if waited + pause > self._patience():
            raise TryAgain(
                f"no coordinator answered within {waited:.0f} s: {cause.text}",
                allowed="the host and port of a coordinator that is running",
                fix="start it, or correct the cause above, then start this worker again",
            )
        now = time.monotonic()
        if self.joined and waited > ALONE_SECONDS and now - self._reminded > REMINDER_SECONDS:
            self._reminded = now
            self._session.enter(ALONE)
            until = "without a limit (--give-up SECONDS sets one)"
            if self._give_up is not None:
                until = f"for {self._give_up - waited:.0f} s more"
            log.warning(
                "no coordinator for %.0f s: this worker waits %s. If the run ended meanwhile, only "
                "a coordinator can say so: start it again with the same command",
                waited,
                until,
            )

    def _patience(self) -> float:
        """Seconds without a coordinator after which this worker ends."""
        if self._give_up is not None:
            return self._give_up
        return math.inf if self.joined else JOIN_PATIENCE

    def _raise_unless_transient(self, method: str, error: grpc.aio.AioRpcError) -> None:
        if error.code() in TRANSIENT:
            return
        details = error.details() or error.code().name.lower()
        reason = details.partition(":")[0]
        if method != "Join" and reason != "setup":  # which joining again does not change
            raise MustJoin(error.details() or error.code().name)
        kind = TryAgain if reason in PASSING_REASONS else RunError
        problem, _, fix = details.partition(CORRECTION)
        raise kind(
            f"{self.address}: the coordinator refused this worker: {problem}",
            fix=fix or "see the reason above; the coordinator's log has more",
        )

    async def _next_address(self) -> None:
        """Close the connection; the next one goes to the next address."""
        await self.close()
        if self._addresses and self._finder is None:
            self._tries += 1
            self.address = self._addresses[self._tries % len(self._addresses)]

    async def _cause(self, error: grpc.aio.AioRpcError) -> Cause:
        """The true cause: gRPC reports a wrong certificate and a closed port alike."""
        details = error.details() or error.code().name.lower()
        cause = Cause(f"{self.address}: {details}")
        if error.code() != grpc.StatusCode.UNAVAILABLE or details.startswith("standby: "):
            return cause
        if not self.joined:
            return await self._true_cause(self.address, error)
        # Another coordinator may lead already: looking for the cause must not delay the next try.
        idle = self._diagnosis is None or self._diagnosis.done()
        if idle and time.monotonic() - self._diagnosed > DIAGNOSIS_SECONDS:
            self._diagnosed = time.monotonic()
            self._diagnosis = asyncio.ensure_future(self._diagnose(self.address))
        return cause

    async def _diagnose(self, address: str) -> None:
        cause = await self._true_cause(address)
        log.warning("why the coordinator is not reached", extra={"why": cause.text})

    async def _true_cause(self, address: str, error: grpc.aio.AioRpcError | None = None) -> Cause:
        identity = self._session.certificates.current()
        return await cause_of(identity, address, name=self._name, coordinator=True, error=error)
