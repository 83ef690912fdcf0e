"""The Coordinator service of wire.proto: checks every call, then answers it from the state.

Who calls and how often is checked before anything of the call is read. A refused call ends with a
gRPC status whose details are "reason: text"; bad ones count against their sender. The
state is made when the lead is taken, so it is always whole; coordinator.py drives the rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partialmethod
from typing import Any

import grpc
import grpc.aio
import numpy as np

from fedhp.cluster import events
from fedhp.cluster.coordinator.attempts.attempts import Attempts
from fedhp.cluster.coordinator.committed_state import CommittedState
from fedhp.cluster.coordinator.conductor import Member, MemberStatus
from fedhp.cluster.coordinator.context import STOP_SECONDS, LeaderContext, Phase
from fedhp.cluster.coordinator.members import dial_back
from fedhp.cluster.coordinator.members.catch_up import CatchUp
from fedhp.cluster.coordinator.members.dial_back import DialBacks, source_of
from fedhp.cluster.coordinator.members.members import BY_OPERATOR, Admission, Members
from fedhp.cluster.coordinator.members.setup_checks import SetupChecks
from fedhp.cluster.coordinator.planning.link_estimates import SURVEY_SECONDS
from fedhp.cluster.coordinator.planning.planning import Planning
from fedhp.cluster.ledger.base import Ledger
from fedhp.cluster.protocol import limits, message_checks
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.calls import REFUSAL_COST, CallLimits, Messages
from fedhp.cluster.protocol.guard import CALL_RULES, Guard, Refused, TicketPurpose, extended
from fedhp.cluster.protocol.limits import LogThrottle
from fedhp.cluster.protocol.message_checks import (
    ANY_METRIC,
    MAX_DIAL_TEXT,
    SHARE,
    check_report,
    one_line,
)
from fedhp.cluster.protocol.versions import installed
from fedhp.cluster.security.leader_proof import prove
from fedhp.cluster.security.renewal import ExpiryWatch, RenewableIdentity
from fedhp.cluster.security.tls import AllowList, PeerIdentity, handshake_problem, identify_caller
from fedhp.config import to_tables

TURN_DEADLINE = 60.0  # s at least, for one turn of an asynchronous algorithm
MOST_HELPERS = 8  # peers offered to a worker that is behind
COMPARED_MODELS = 3  # of them, where mixing is robust: one of three can be wrong
LOG = logging.getLogger("fedhp.coordinator")
_DENIED, _TOO_MANY = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED
_NOT_NOW = grpc.StatusCode.FAILED_PRECONDITION
CODES = {
    **dict.fromkeys(
        ("unknown", "role", "sender", "quarantined", "removed", "certificate"), _DENIED
    ),
    **dict.fromkeys(("setup", "joined", "elsewhere", "epoch", "run"), _NOT_NOW),
    **dict.fromkeys(("full", "streams", "busy"), _TOO_MANY),
    "patience": grpc.StatusCode.DEADLINE_EXCEEDED,
    "method": grpc.StatusCode.UNIMPLEMENTED,
    "replaced": grpc.StatusCode.ABORTED,
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
    "Join": message_checks.check_fields,
    "Next": message_checks.check_next,
    "Beat": message_checks.check_fields,
    "Leave": message_checks.check_fields,
    "Status": message_checks.check_fields,
    "Command": message_checks.check_command,
    "DialBack": message_checks.check_fields,
}


class CoordinatorState:
    """The state of a coordinator that leads."""

    def __init__(
        self,
        context: LeaderContext,
        ledger: Ledger,
        *,
        allowed: AllowList | None = None,
        compares: bool = False,
    ) -> None:
        """compares: the workers' data and models with those of this machine."""
        committed = context.taken_over
        self.context, self.conductor, self.phase = context, context.conductor, context.phase
        self.experiment, self.run = committed.experiment, committed.run
        self._tables = to_tables(committed.experiment)
        self.leads, self.place = ledger.leads, ledger.place()
        epoch = self.conductor.epoch
        self.leaders = extended(committed.leaders, epoch, start=committed.attempt)
        self.guard = Guard(run=committed.run, epoch=epoch)
        self.guard.token = self.token = self.leaders[-1].token  # of this epoch
        self.dial_backs = DialBacks()
        self.planning = Planning(context)
        self.attempts = Attempts(context, self.planning)
        self.reachability = self.attempts.reachability
        self._checkpoints = self.attempts.groups.checkpoints.pack()  # none, without group averages
        self.catch_up = CatchUp(context, self.attempts)
        self.admission = Admission(context, self.attempts, self.guard, allowed or AllowList(None))
        setups = SetupChecks(
            committed.setup,
            private=committed.private,
            awaits_own=compares and not committed.setup,
        )
        self.members = Members(context, self.attempts, self.admission, setups)

    @property
    def round_index(self) -> int:
        return self.context.round_index

    def committed_state(self, attempt: Attempt | None = None) -> CommittedState:
        """What the ledger is to hold once this attempt, or the last one, is committed."""
        groups, digests = self.attempts.groups, self.attempts.digests
        grouped = self.context.groups
        planner, allowed = self.planning.planner, self.admission.allowed.names
        return CommittedState(
            run=self.run,
            experiment=self.experiment,
            attempt=attempt or self.conductor.committed,
            **self.admission.named(),
            model_bytes=self.planning.model_bytes,
            allowed=None if allowed is None else tuple(sorted(allowed)),
            planner=b"" if planner is None else planner.pack(),
            bytes_sent=self.phase.stop_condition.bytes_sent,
            ended=self.phase.stop_condition.reason,
            stopped=self.phase.stopping,
            informed=tuple(sorted(self.members.informed)),
            digests=digests.by_worker if attempt is None else digests.after_commit(),
            versions=groups.versions_after(attempt) if attempt and grouped else groups.versions,
            norms=groups.norms_after() if attempt and grouped else groups.norms,
            checkpoints=groups.checkpoints.pack() if grouped else self._checkpoints,
            certificates=self.admission.bindings.pack(),
            setup=dict(self.members.setups.reference),
            private=tuple(sorted(self.members.setups.private)),
            leaders=self.leaders,
            place=self.place,
            tables=self._tables,
        )

    def status(self) -> wire.StatusReply:
        """The run and its members, for an operator."""
        now = time.monotonic()
        reply = wire.StatusReply(
            run=self.run,
            epoch=self.conductor.epoch,
            round=self.round_index,
            rounds=self.experiment.rounds,
            state=self.phase.current,
            why=one_line(self.phase.why),
            versions=installed(),
            clock=time.time(),
            round_seconds=self.attempts.deadlines.last_round,
        )
        broken = self.reachability.broken(round_index=self.round_index)
        reply.broken.extend(broken[: message_checks.MAX_BROKEN_LINKS])
        reply.broken_links = len(broken)
        reply.warnings.extend(self.context.warnings.on_wire())
        for worker in sorted(self.conductor.members):
            member = self.conductor.members[worker]
            status = self.members.status_of(member, now=now)
            work = self.attempts.work.orders.get(worker)
            reply.members.add(
                worker=worker,
                name=member.name,
                address=member.address,
                status="draining" if member.draining and status is MemberStatus.READY else status,
                phase=member.phase,
                round=max((model.round_index for model in member.models), default=0),
                silent_seconds=min(now - member.seen, limits.FOREVER),
                step_time=float(np.nan_to_num(member.step_time)),
                local_steps=work.local_steps if work is not None else 0,
                accuracy=member.accuracy,
            )
        return reply


class CoordinatorService:
    """The calls of workers and operators."""

    def __init__(
        self,
        state: CoordinatorState,
        identity: RenewableIdentity,
        *,
        address: str,
        expiry: ExpiryWatch | None = None,
    ) -> None:
        self.state, self.guard, self.allowed = state, state.guard, state.admission.allowed
        self._identity, self._address, self._expiry = identity, address, expiry
        self._limits = CallLimits()
        self._log_throttle = LogThrottle()

    # --- answers to calls that were checked ------------------------------------------------

    def join(self, name: str, request: wire.JoinRequest, _: Any = None) -> wire.JoinReply:
        member = self.state.members.join(name, request, now=time.monotonic())
        reply = wire.JoinReply(
            run=self.state.run,
            epoch=self.state.conductor.epoch,
            worker=member.worker,
            experiment=self.state.context.record.experiment_text,
            beat_seconds=self.state.experiment.cluster.beat,
            key=self.state.attempts.work.keys[name],
            leaders=[leader.to_wire() for leader in self.state.leaders],
            committed=self.state.conductor.committed.to_wire(),
        )
        identity = self._identity.current()
        prove(identity, reply, caller=name, nonce=request.nonce, address=self._address)
        return reply

    def member(self, name: str) -> Member:
        """The member of this name, or Refused("joined")."""
        conductor = self.state.conductor
        member = conductor.by_name.get(name)
        if member is not None and member.removed:
            raise Refused("removed", f"{name} was removed: {member.removed}")
        silent = 0.0 if member is None else time.monotonic() - member.seen
        if member is None or member.left or silent > conductor.settings.dead_after:
            raise Refused("joined", f"{name} is not a member: join again")
        return member

    async def next(self, name: str, request: wire.NextRequest, _: Any = None) -> wire.Order:
        """Something to do, at the latest after limits.POLL_SECONDS; a worker mostly asks with its
        report. A later call of the same member ends this one with Refused."""
        receipt = self.report(name, request.report) if request.HasField("report") else None
        member, members, now = self.member(name), self.state.members, time.monotonic()
        members.poll(member, request, now=now)
        until = now + limits.POLL_SECONDS
        with self.state.context.waiting.begin(member.worker) as wait:
            while True:
                if members.setups.differing or members.setups.scaling is None:
                    members.check_setup(member)
                order = self._order(member, now)
                left = until - now
                if not order.HasField("wait") or left <= 0:
                    break
                try:
                    await wait.until_changed(left)
                except asyncio.CancelledError:
                    self.state.reachability.closed(member, time.monotonic())
                    raise
                now = time.monotonic()
        if receipt is not None:
            order.receipt.CopyFrom(receipt)
        return order

    def _order(self, member: Member, now: float) -> wire.Order:
        state, conductor = self.state, self.state.conductor
        phase, attempts, worker = state.phase, state.attempts, member.worker
        between = Attempt.after(conductor.committed, epoch=conductor.epoch)
        order = wire.Order(
            epoch=conductor.epoch, committed=conductor.committed.to_wire(), token=state.token
        )
        if conductor.settings.groups:
            order.own.CopyFrom(attempts.groups.own_version(member).to_wire())
            kept = attempts.groups.checkpoints.versions_of(worker)
            order.keep.extend(version.to_wire() for version in kept)
        if not state.leads():
            order.wait.why = "this coordinator does not lead any more"
            return order
        drained = member.draining and worker not in attempts.work.orders
        if phase.current is Phase.FINISHED or drained or member.removed:
            state.members.dismiss(member)
            order.finished.why = member.removed or phase.why or "drained"
            order.finished.removed = bool(member.removed)
            return order
        if conductor.status(member, now) is MemberStatus.SUSPENDED:
            order.wait.why = (
                f"put aside up to round {member.suspended_to}: the others waited for it in vain"
            )
            return order
        if not conductor.holds(member):
            holders = state.catch_up.holders(member, now=now)
            if holders:
                state.catch_up.order(member)
                peers = attempts.work.addresses(
                    [holder.worker for holder in holders[:MOST_HELPERS]],
                    worker,
                    TicketPurpose.COMMITTED,
                    attempt=between,
                    version=conductor.committed,
                )
                order.catch_up.peers.extend(peers)
                order.catch_up.digests.extend(attempts.digests.wanted())
                if state.experiment.exchange.robust != "none":
                    order.catch_up.compare = COMPARED_MODELS
                return order
            state.context.waiting.without_model.add(worker)
        survey = state.planning.survey
        if survey is not None and (wanted := survey.wanted(worker)):
            peers = attempts.work.addresses(wanted, worker, TicketPurpose.PROBE, attempt=between)
            order.survey.peers.extend(peers)
            order.survey.deadline = SURVEY_SECONDS
            return order
        running = conductor.running
        if running is not None and phase.current is not Phase.PAUSED:
            if state.context.asynchronous:
                order.act.CopyFrom(self._turn_order(member, running.attempt, now))
                return order
            work = attempts.work.orders.get(worker)
            if work is not None and worker in running.awaited:
                attempts.work.given.setdefault(worker, (now, work.local_steps))
                order.work.CopyFrom(work)
                return order
        order.wait.why = phase.why or "for the others"
        if not state.planning.has_usual_model(member):
            order.wait.why = "its model has another size than those of the others"
        return order

    def _turn_order(self, member: Member, attempt: Attempt, now: float) -> wire.Act:
        """A turn mostly ends in the next round: that one decides whether its model is tested."""
        state, attempts = self.state, self.state.attempts
        turn = attempts.turns.turn_of(member, round_index=attempt.round_index, now=now)
        attempts.work.given.setdefault(member.worker, (now, turn.action.local_steps))
        tested = attempts.evaluation_plan(min(turn.round_index + 1, state.experiment.rounds))
        order = wire.Act(
            round=turn.round_index,
            turn=turn.number,
            local_steps=turn.action.local_steps,
            learning_rate=turn.learning_rate,
            evaluate=tested["evaluate"],
            whole_test=tested["whole_test"],
            deadline=max(TURN_DEADLINE, state.experiment.cluster.least_deadline),
        )
        if turn.action.partner is not None:
            (partner,) = attempts.work.addresses(
                [turn.action.partner],
                member.worker,
                TicketPurpose.SWAP,
                attempt=Attempt(state.conductor.epoch, turn.round_index, 1),
                serial=turn.number,
            )
            order.partner.CopyFrom(partner)
        return order

    def expected(self, member: Member) -> tuple[Attempt, frozenset[int], int]:
        """What a report of this member must belong to: the attempt, the peers of its order and how
        many exchanges that has; Refused if none is expected."""
        running, work = self.state.conductor.running, self.state.attempts.work
        turn = work.turns.get(member.worker)
        if turn is not None:  # a turn counts whenever it ends
            attempt = Attempt(self.state.conductor.epoch, turn.round_index, 1)
        elif running is not None:
            attempt = running.attempt
        else:
            raise Refused("attempt", "no attempt is running: it was given up, or is over")
        order = work.orders.get(member.worker, wire.Work())
        exchanges = max(1, sum(int(mix.times) for mix in order.exchanges))
        return attempt, work.peers.get(member.worker, frozenset()), exchanges

    def report(self, name: str, report: wire.RoundReport, _: Any = None) -> wire.Receipt:
        """What a worker measured. Being late is an answer, not an error."""
        member, state = self.member(name), self.state
        try:
            try:
                attempt, peers, exchanges = self.expected(member)
                shares = state.experiment.task.name == "classification"
                check_report(
                    report,
                    workers=state.experiment.workers,
                    worker=member.worker,
                    attempt=attempt,
                    asked=peers,
                    most_bytes=exchanges * state.planning.largest_transfer,
                    metric=SHARE if shares else ANY_METRIC,
                )
            except Refused:
                state.attempts.digests.late_report(member, report)
                raise
            state.attempts.report(member, report, now=time.monotonic())
        except Refused as refusal:
            if refusal.bad:
                raise
            return wire.Receipt(accepted=False, why=str(refusal))
        return wire.Receipt(accepted=True)

    def beat(self, name: str, request: wire.BeatRequest, context: Any) -> wire.BeatReply:
        """A member is alive; it may hear of addresses to try, and says how earlier ones did."""
        member, now, conductor = self.member(name), time.monotonic(), self.state.conductor
        members, admission = self.state.members, self.state.admission
        member.beat(request.phase, now)
        running, dial_backs = conductor.running, self.state.dial_backs
        attempt = running.attempt if running is not None else conductor.committed
        reply = wire.BeatReply(
            epoch=conductor.epoch,
            round=attempt.round_index,
            attempt=attempt.number,
            gone=members.gone(now),
            leave=members.must_leave(member),
            barred=admission.barred,
            readmitted=admission.readmitted,
            pardoned=admission.pardoned,
            token=self.state.token,
        )
        if dial_backs:
            dial_backs.reported(name, request.dialed)
            reply.dial.extend(dial_backs.targets(name, source_of(context.peer())))
        return reply

    async def dialback(
        self, name: str, request: wire.DialBackRequest, context: Any
    ) -> wire.DialBackReply:
        """Whether others can connect to the machine that asks, before it joins. Members try it;
        without members the coordinator does."""
        own = self.state.conductor.by_name.get(name)
        if own is not None and own.removed:
            raise Refused("removed", f"{name} was removed: {own.removed}")
        self.state.dial_backs.admit(name)
        target = await dial_back.caller_address(request.address, source_of(context.peer()))
        alive = self.state.conductor.alive(time.monotonic())
        testers = [member.name for member in alive if member.name != name]
        testers = testers[:: -(-len(testers) // dial_back.TESTERS) or 1]
        reply = wire.DialBackReply(address=str(target))
        if testers:
            reply.results.extend(await self.state.dial_backs.run(name, target, testers))
        else:
            why = await handshake_problem(self._identity.current(), target, name=name)
            why = one_line(why, most=MAX_DIAL_TEXT)
            reply.results.add(verdict="failed" if why else "reached", why=why)
        return reply

    def leave(self, name: str, request: wire.LeaveRequest, _: Any = None) -> wire.Receipt:
        """A member leaves; or it has carried out the last order that it got, perhaps as one that
        was silent for long meanwhile, or was drained."""
        member, members = self.state.conductor.by_name.get(name), self.state.members
        if request.finished and member is not None and members.was_dismissed(member):
            members.finished(member)
        else:
            members.leave(self.member(name), request.why)
        return wire.Receipt(accepted=True)

    def status(self, *_: Any) -> wire.StatusReply:
        """The run and its members: any worker or operator of this federation may look."""
        reply = self.state.status()
        expiring = self._expiry.expiring() if self._expiry is not None else {}
        for name in list(expiring)[: message_checks.MAX_EXPIRING]:
            reply.expiring.add(name=name, seconds=expiring[name])
        return reply

    async def command(self, _: str, request: wire.CommandRequest, __: Any = None) -> wire.Receipt:
        """Carry out an operator's command; what is going to happen, in words."""
        state, what = self.state, request.WhichOneof("what")
        if what == "stop":
            state.phase.stop("stopped by the operator")
            state.context.round_loop.notify()
            why = (
                f"the run ends after round {state.round_index + 1}, "
                f"or in {STOP_SECONDS:g} s if that takes longer"
            )
            if not await _is_set_soon(state.phase.stop_committed):
                why += "; not durable yet: do not end the coordinator before the run is over"
            return wire.Receipt(accepted=True, why=why)
        name = getattr(request, str(what))
        member = state.conductor.by_name.get(name)
        if member is None:
            members = state.conductor.members.values()
            names = ", ".join(sorted(member.name for member in members))
            raise Refused("member", f"there is no worker {name}; there are {names or 'none'}")
        if what == "drain":
            state.members.drain(member, now=time.monotonic())
            why = f"{name} leaves after this round, or in {STOP_SECONDS:g} s if that takes longer"
            return wire.Receipt(accepted=True, why=why)
        if what == "remove":
            state.admission.remove(member, BY_OPERATOR)
            why = f"{name} is removed; to let it in again: fedhp cluster allow {name}"
        else:
            state.admission.allow(member, now=time.monotonic())
            why = f"{name} may join and send again, also from another machine"
        over = state.phase.is_finished  # nobody takes over any more
        if not over and not await _is_set_soon(state.admission.removals_committed):
            why += "; not durable yet: repeat it if another coordinator takes over soon"
        return wire.Receipt(accepted=True, why=why)

    # --- checks ----------------------------------------------------------------------------

    async def refuse_method(self, refusal: Refused, context: Any) -> None:
        """A call of something that no coordinator offers."""
        async with self._admitted("", context):
            raise refusal

    async def _answer(self, method: str, messages: Messages[Any], context: Any) -> Any:
        """Check who calls, whether it may, and the message; then handle it."""
        async with self._admitted(method, context) as caller:
            name = caller.name
            request = await messages.only()
            self._limits.charge(name, messages.size / REQUEST_BYTES)
            said = [(request, CALL_RULES[method])]
            if isinstance(request, wire.NextRequest) and request.HasField("report"):
                said.append((request.report, CALL_RULES["Report"]))
            for message, rule in said:
                self.guard.check(message.envelope, peer=name, roles=caller.roles, rule=rule)
            if self._expiry is not None:
                self._expiry.see(name, caller.certificate)
            if method in CHECKS:
                CHECKS[method](request)
            answer = getattr(self, method.lower())(name, request, context)
            return await answer if isinstance(answer, Awaitable) else answer
        raise AssertionError("a refused call does not get here")

    Join, Next = partialmethod(_answer, "Join"), partialmethod(_answer, "Next")
    Report, Beat = partialmethod(_answer, "Report"), partialmethod(_answer, "Beat")
    Leave, Status = partialmethod(_answer, "Leave"), partialmethod(_answer, "Status")
    Command, DialBack = partialmethod(_answer, "Command"), partialmethod(_answer, "DialBack")

    @asynccontextmanager
    async def _admitted(self, method: str, context: Any) -> AsyncIterator[PeerIdentity]:
        """Who calls, if it may; nothing of the call is read yet. What is refused in the block
        ends the call and counts against its sender."""
        caller = await identify_caller(context)
        name = caller.name
        try:
            refusal: Refused | None = None
            try:
                if self.allowed.names is not None and (why := self.allowed.refusal(name)):
                    raise Refused("unknown", why)
                self.guard.enter(name)
                if method in BOUND_CALLS and CALL_RULES[method].allowed & caller.roles:
                    self.state.admission.certificate_shown(name, caller.certificate)
            except Refused as refused:
                refusal = refused
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

    def _cost(self, method: str) -> float:
        cost = COSTS.get(method, 1.0)
        if method == "Status":
            broken = min(len(self.state.reachability), message_checks.MAX_BROKEN_LINKS)
            cost += (len(self.state.conductor.members) + broken) / STATUS_MEMBERS
        return cost

    async def _refuse(self, context: Any, name: str, refusal: Refused) -> None:
        known = self.guard.is_quarantined(name)
        if self.guard.strike(name, refusal.reason) and not known:
            LOG.warning("quarantined %s", name)
            member = self.state.conductor.by_name.get(name)
            worker = None if member is None else member.worker
            self.state.context.history.note(events.Quarantined(name, worker))
        log, left_out = self._log_throttle.admit(name, refusal.reason)
        if log:
            more = f" ({left_out} more like it before)" if left_out else ""
            LOG.info("refused %s: %s%s", name, refusal, more)
            why = f"{refusal}{more}"[: limits.TEXT_LENGTH]
            self.state.context.history.note(events.CallRefused(name, why))
        code = CODES.get(refusal.reason, grpc.StatusCode.INVALID_ARGUMENT)
        await context.abort(code, str(refusal)[: limits.TEXT_LENGTH])


async def _is_set_soon(event: asyncio.Event) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limits.COMMAND_SECONDS / 2):
            await event.wait()
    return event.is_set()
