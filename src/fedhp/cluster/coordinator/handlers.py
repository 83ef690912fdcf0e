"""What the coordinator answers when it is called: orders, receipts, signs of life, status."""

from __future__ import annotations

import logging
import time

import numpy as np

from fedhp import __version__
from fedhp.cluster.coordinator import orders
from fedhp.cluster.coordinator.conductor import Member, Status
from fedhp.cluster.coordinator.service import Expected
from fedhp.cluster.coordinator.state import CoordinatorState
from fedhp.cluster.coordinator.turns import Turns
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.guard import Guard, Refused
from fedhp.cluster.protocol.versions import installed

LOG = logging.getLogger("fedhp.coordinator")
TURN_DEADLINE = 60.0  # s at least, for one turn of an asynchronous algorithm
HELPERS = 8  # peers offered to a worker that is behind


class CoordinatorHandlers:
    """Answers calls that passed the desk (desk.Office)."""

    def __init__(self, term: CoordinatorState) -> None:
        self.term = term

    @property
    def guard(self) -> Guard:
        """Judges envelopes."""
        return self.term.guard

    def join(self, name: str, request: wire.JoinRequest) -> wire.JoinReply:
        """A worker is there."""
        if request.fedhp != __version__:
            raise Refused(
                "version", f"fedhp {request.fedhp} at the worker, {__version__} here: update one"
            )
        member = self.term.conductor.join(
            name,
            request.address,
            incarnation=request.envelope.incarnation,
            stands=tuple(map(Attempt.from_wire, request.stands)),
            now=time.monotonic(),
        )
        # A new process is not ready before it has timed a step.
        member.step_time = request.step_time if request.step_time > 0 else float("nan")
        self.term.turns.pop(member.worker, None)
        self.term.catching.pop(member.worker, None)
        self.term.book.note_samples(member.worker, request.samples)
        self.term.history.note("join", {"worker": member.worker, "name": name})
        LOG.info("%s joined as worker %d", name, member.worker)
        self.term.notify()
        return wire.JoinReply(
            run=self.guard.run or "",
            epoch=self.term.conductor.epoch,
            worker=member.worker,
            experiment=self.term.book.experiment_text,
            beat_seconds=self.term.experiment.cluster.beat,
        )

    def member(self, name: str) -> Member:
        """The member of this name, or Refused("joined")."""
        member = self.term.conductor.by_name(name)
        now = time.monotonic()
        if member is None or self.term.conductor.status(member, now) in (Status.LEFT, Status.DEAD):
            raise Refused("joined", f"{name} is no member: join again")
        return member

    async def next(self, member: Member, request: wire.NextRequest) -> wire.Order:
        """Something to do, at the latest after limits.POLL_SECONDS."""
        member.stands = tuple(map(Attempt.from_wire, request.stands))
        if request.step_time > 0:
            member.step_time = request.step_time
        if request.model_bytes:
            self.term.create_planner(request.model_bytes)
            self.term.book.note_model(request.model_bytes)
            self.term.book.note_samples(member.worker, request.samples)
        if self.term.survey is not None:
            self.term.survey.tell(member.worker, request.surveyed)
        member.seen = time.monotonic()
        self.term.notify()
        until = time.monotonic() + limits.POLL_SECONDS
        while True:
            order = self._order(member)
            left = until - time.monotonic()
            if not order.HasField("wait") or left <= 0:
                return order
            await self.term.wait(left)

    def _order(self, member: Member) -> wire.Order:
        order = wire.Order(
            epoch=self.term.conductor.epoch, committed=self.term.conductor.committed.to_wire()
        )
        if not self.term.leads():
            order.wait.why = "this coordinator leads no more"
            return order
        if self.term.state == "finished" or (
            member.draining and member.worker not in self.term.works
        ):
            member.left = True
            order.finished.why = self.term.why or "drained"
            return order
        if not self.term.conductor.holds(member):
            ready = self._fastest(member)
            if ready:
                self.term.catching.setdefault(member.worker, 0)
                order.catch_up.peers.extend(orders.address(each) for each in ready[:HELPERS])
                return order
        if self.term.survey is not None and self.term.survey.wanted(member.worker):
            order.survey.CopyFrom(
                orders.survey(self.term.survey, member.worker, self.term.conductor.members)
            )
            return order
        running = self.term.conductor.running
        if running is not None and self.term.state != "paused":
            if self.term.asynchronous:
                self._give_turn(member, running.attempt, order)
                return order
            work = self.term.works.get(member.worker)
            wanted = member.worker in running.participants - running.reports.keys()
            if work is not None and wanted:
                order.work.CopyFrom(work)
                return order
        order.wait.why = self.term.why or "for the others"
        return order

    def _give_turn(self, member: Member, attempt: Attempt, order: wire.Order) -> None:
        """A turn that was given and never ended is given again as it was.

        A turn mostly ends in the round after: that one says whether its model is tested.
        """
        assert isinstance(self.term.planner, Turns)
        turn = self.term.turns.get(member.worker)
        alive = [each.worker for each in self.term.alive()]
        if turn is None:
            turn = self.term.planner.next(
                member.worker,
                round_index=attempt.round_index,
                clock=self.term.planner.clock,
                present=np.isin(np.arange(self.term.experiment.workers), alive),
            )
            self.term.turns[member.worker] = turn
        partner = turn.action.partner
        self.term.asked[member.worker] = frozenset(() if partner is None else (partner,))
        order.act.CopyFrom(
            orders.act(
                turn,
                self.term.conductor.members,
                round_index=turn.round_index,
                tests=self.term.tests(min(turn.round_index + 1, self.term.experiment.rounds)),
                deadline=max(TURN_DEADLINE, self.term.experiment.cluster.least_deadline),
            )
        )

    def expected(self, member: Member) -> Expected:
        """What a report of this member must belong to, or Refused if nothing is expected."""
        running, turn = self.term.conductor.running, self.term.turns.get(member.worker)
        if turn is not None:  # a turn counts whenever it ends
            attempt = Attempt(self.term.conductor.epoch, turn.round_index, 1)
        elif running is not None:
            attempt = running.attempt
        else:
            raise Refused("attempt", "no attempt is running: it was given up, or is over")
        return Expected(
            self.term.experiment.workers, attempt, self.term.asked.get(member.worker, frozenset())
        )

    def report(self, member: Member, report: wire.RoundReport) -> None:
        """What it measured, or Refused."""
        attempt = Attempt.from_envelope(report.envelope)
        if self.term.asynchronous:
            turn = self.term.turns.get(member.worker)
            if turn is None or turn.number != report.turn:
                raise Refused("attempt", f"turn {report.turn} is over or was never given")
            assert isinstance(self.term.planner, Turns)
            del self.term.turns[member.worker]
            self.term.planner.end(turn, report)
        else:
            self.term.conductor.report(member.worker, attempt, report)
        if np.isfinite(report.accuracy):
            member.accuracy = report.accuracy
        told = {**attempt.to_facts(), "worker": member.worker, "digest": report.digest.hex()}
        if self.term.asynchronous:
            told["turn"] = report.turn
        lost = [link.worker for link in report.links if link.lost and not link.probe]
        if lost:
            told["lost"] = lost
        self.term.history.note("report", told)
        member.seen = time.monotonic()
        self.term.notify()

    def beat(self, member: Member, phase: str) -> wire.BeatReply:
        """It is alive."""
        now = time.monotonic()
        self.term.conductor.beat(member, phase, now)
        running = self.term.conductor.running
        attempt = running.attempt if running is not None else self.term.conductor.committed
        return wire.BeatReply(
            epoch=self.term.conductor.epoch,
            round=attempt.round_index,
            attempt=attempt.number,
            gone=self.term.conductor.gone(now),
        )

    def leave(self, member: Member, why: str) -> None:
        """It goes."""
        self.term.conductor.leave(member)
        self.term.history.note("leave", {"worker": member.worker, "why": why})
        LOG.info("%s left: %s", member.name, why)
        self.term.notify()

    def status(self) -> wire.StatusReply:
        """How it stands."""
        now = time.monotonic()
        reply = wire.StatusReply(
            run=self.guard.run or "",
            epoch=self.term.conductor.epoch,
            round=self.term.round_index,
            rounds=self.term.experiment.rounds,
            state=self.term.state,
            why=self.term.why,
            versions=installed(),
            clock=time.time(),
            round_seconds=self.term.round_seconds,
        )
        for worker in sorted(self.term.conductor.members):
            member = self.term.conductor.members[worker]
            status = self.term.conductor.status(member, now)
            work = self.term.works.get(worker)
            reply.members.add(
                worker=worker,
                name=member.name,
                address=member.address,
                status="draining" if member.draining and status is Status.READY else status,
                phase=member.phase,
                round=max((each.round_index for each in member.stands), default=0),
                silent_seconds=min(now - member.seen, limits.FOREVER),
                step_time=float(np.nan_to_num(member.step_time)),
                local_steps=work.local_steps if work is not None else 0,
                accuracy=member.accuracy,
            )
        return reply

    def command(self, request: wire.CommandRequest) -> str:
        """Do what the operator wants; what was done, in words."""
        what = request.WhichOneof("what")
        if what == "stop":
            self.term.stopping = "stopped by the operator"
            self.term.notify()
            return f"the run ends after round {self.term.round_index + 1}"
        name = request.drain if what == "drain" else request.allow
        member = self.term.conductor.by_name(name)
        if member is None:
            there = ", ".join(sorted(each.name for each in self.term.conductor.members.values()))
            raise Refused("member", f"there is no worker {name}; there are {there or 'none'}")
        if what == "drain":
            member.draining = True
            self.term.notify()
            return f"{name} leaves after this round"
        self.guard.pardon(name)
        return f"{name} may send again"

    def _fastest(self, member: Member) -> list[Member]:
        """Members that hold the committed model, the fastest link first."""
        now = time.monotonic()
        holders = [
            each
            for each in self.term.conductor.alive(now)
            if each.worker != member.worker and self.term.conductor.holds(each)
        ]
        if self.term.planner is None:
            return holders
        speed = self.term.planner.links.bandwidth[member.worker]
        return sorted(holders, key=lambda each: -np.nan_to_num(speed[each.worker]))
