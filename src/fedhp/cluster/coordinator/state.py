"""What a coordinator knows while it leads: members, orders, the survey, the phase of the run.

Made when the lead is taken, so it is always whole. coordinator.py drives the rounds, handlers.py
answers calls; both read the attributes and change them only through the methods here. Both run
in one event loop, so nothing needs a lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from enum import StrEnum

import numpy as np

from fedhp import __version__
from fedhp.algorithms import Algorithm, load_algorithm
from fedhp.cluster.coordinator import orders
from fedhp.cluster.coordinator.committed_state import CommittedState
from fedhp.cluster.coordinator.conductor import Conductor, Member, MemberStatus
from fedhp.cluster.coordinator.link_estimates import LinkSurvey
from fedhp.cluster.coordinator.planner import Planner
from fedhp.cluster.coordinator.round_planner import PlannedRound, RoundPlanner
from fedhp.cluster.coordinator.run_record import RunRecordWriter
from fedhp.cluster.coordinator.turn_planner import TurnOrder, TurnPlanner
from fedhp.cluster.history import History
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.guard import Guard, Refused
from fedhp.config import Experiment
from fedhp.engine.context import planning_context
from fedhp.engine.until import StopCondition
from fedhp.types import FloatArray

LOG = logging.getLogger("fedhp.coordinator")
MOST_CATCH_UP_WAITS = 3  # attempts that wait for a worker which does not catch up
CATCH_UP_SECONDS = 1.5  # the least time that an attempt waits for it


class Phase(StrEnum):
    """What a coordinator is doing, in the words that operators see."""

    WAITING = "waiting"  # for the lead
    STARTING = "starting"  # it leads, and is about to prove that with a first commit
    GATHERING = "gathering"
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"


class CoordinatorState:
    """The state of a coordinator that leads."""

    def __init__(
        self,
        experiment: Experiment,
        *,
        run: str,
        conductor: Conductor[wire.RoundReport],
        planner: Planner | None,
        model_bytes: int,
        record: RunRecordWriter,
        history: History,
        leads: Callable[[], bool],
        bytes_sent: int = 0,
        ended: str = "",
    ) -> None:
        self.experiment = experiment
        self.run = run
        self.conductor = conductor
        self.asynchronous = conductor.settings.asynchronous
        self.record = record
        self.history = history
        self.leads = leads  # ask before giving an order
        self.guard = Guard(run=run, epoch=conductor.epoch)
        self.planner = planner  # None until a worker says how large a model is
        self.model_bytes = model_bytes
        self.phase, self.why = Phase.STARTING, ""
        self.stopping = ""  # why an operator ends the run
        self.stop_condition = StopCondition(experiment, tested=True)
        self.stop_condition.resume(self.round_index, 0.0, bytes_sent, None)
        if ended:
            self.stop_condition.end(self.round_index, ended)
        self.survey: LinkSurvey | None = None  # while it runs
        self.work_orders: dict[int, wire.Work] = {}  # of the running attempt, by worker
        self.turns: dict[int, TurnOrder] = {}  # under way, by worker
        self.named_peers: dict[int, frozenset[int]] = {}  # whose links a report may mention
        self.round_seconds = 0.0  # of the last round; 0: none was timed yet
        self._catch_up_waits: dict[int, int] = {}  # of workers that were ordered to catch up
        self._interrupted_phase: Phase | None = None
        self._changed = asyncio.Event()

    @property
    def round_index(self) -> int:
        """The last committed round."""
        return self.conductor.committed.round_index

    def committed_state(self, attempt: Attempt | None = None) -> CommittedState:
        """What the ledger is to hold once this attempt, or the last one, is committed."""
        members = self.conductor.members.values()
        return CommittedState(
            run=self.run,
            experiment=self.experiment,
            attempt=attempt or self.conductor.committed,
            members=tuple((member.worker, member.name) for member in members),
            model_bytes=self.model_bytes,
            planner=b"" if self.planner is None else self.planner.pack(),
            bytes_sent=self.stop_condition.bytes_sent,
            ended=self.stop_condition.reason,
        )

    # --- the phase -------------------------------------------------------------------------

    def start(self) -> None:
        """The lead is proven; workers may come."""
        self.phase = Phase.GATHERING

    def wait_for_workers(self, why: str) -> None:
        """Too few workers are ready for the next attempt."""
        self.phase = Phase.GATHERING if self.round_index == 0 else Phase.PAUSED
        self.why = why

    def proceed(self) -> None:
        """Enough workers are ready."""
        self.phase, self.why = Phase.RUNNING, ""

    def pause(self, why: str) -> None:
        """Nothing can be committed at the moment."""
        if self._interrupted_phase is None:
            self._interrupted_phase = self.phase
        self.phase, self.why = Phase.PAUSED, why

    def resume(self) -> None:
        """Something was committed: continue where the pause, if there was one, began."""
        self.phase, self.why = self._interrupted_phase or self.phase, ""
        self._interrupted_phase = None

    def stop(self, why: str) -> None:
        """End the run after its present round."""
        self.stopping = why
        self.notify()

    def finish(self) -> None:
        """The run ends here: with all its rounds, by a condition, or because it was stopped."""
        self.phase = Phase.FINISHED
        reached = self.stop_condition.reason
        ended = self.round_index >= self.stop_condition.last_round
        self.why = reached or f"all {self.experiment.rounds} rounds are done"
        if self.stopping and not ended:
            self.why = self.stopping
        self.record.finish("finished" if ended else "interrupted", reached=reached)
        self.history.note("finished", {"round": self.round_index, "why": self.why})
        self.notify()

    # --- members ---------------------------------------------------------------------------

    def member_joined(self, name: str, request: wire.JoinRequest) -> Member:
        """A worker joins, for the first time or again; Refused if it cannot."""
        if request.fedhp != __version__:
            raise Refused(
                "version", f"fedhp {request.fedhp} at the worker, {__version__} here: update one"
            )
        member = self.conductor.join(
            name,
            request.address,
            incarnation=request.envelope.incarnation,
            models=tuple(map(Attempt.from_wire, request.stands)),
            # A new process is not ready before it has timed a step.
            step_time=request.step_time if request.step_time > 0 else float("nan"),
            now=time.monotonic(),
        )
        self.turns.pop(member.worker, None)
        self._catch_up_waits.pop(member.worker, None)
        self.record.note_samples(member.worker, request.samples)
        self.history.note("join", {"worker": member.worker, "name": name})
        LOG.info("%s joined as worker %d", name, member.worker)
        self.notify()
        return member

    def member_polled(self, member: Member, request: wire.NextRequest) -> None:
        """A member asks for an order, and says what it has and has measured."""
        self.conductor.poll(
            member,
            models=tuple(map(Attempt.from_wire, request.stands)),
            step_time=request.step_time,
            now=time.monotonic(),
        )
        if request.model_bytes:
            if self.planner is None:  # now that the size of a model is known, there can be plans
                self.model_bytes = request.model_bytes
                self.planner = create_planner(self.experiment, model_bytes=request.model_bytes)
            self.record.note_model(request.model_bytes)
            self.record.note_samples(member.worker, request.samples)
        if self.survey is not None:
            self.survey.add(member.worker, request.surveyed)
        self.notify()

    def member_reported(self, member: Member, report: wire.RoundReport) -> None:
        """A member's report of its round or turn; Refused if it does not count."""
        attempt = Attempt.from_envelope(report.envelope)
        facts = {**attempt.to_facts(), "worker": member.worker, "digest": report.digest.hex()}
        if self.asynchronous:
            self._end_turn(member, report)
            facts["turn"] = report.turn
        else:
            self.conductor.report(member.worker, attempt, report)
        lost = [link.worker for link in report.links if link.lost and not link.probe]
        if lost:
            facts["lost"] = lost
        self.history.note("report", facts)
        self.conductor.reported(member, accuracy=report.accuracy, now=time.monotonic())
        self.notify()

    def member_left(self, member: Member, why: str) -> None:
        """A member leaves by its own decision."""
        self.conductor.leave(member)
        self.history.note("leave", {"worker": member.worker, "why": why})
        LOG.info("%s left: %s", member.name, why)
        self.notify()

    def member_dismissed(self, member: Member) -> None:
        """A member gets the order that it has finished."""
        self.conductor.leave(member)

    def drain(self, member: Member) -> None:
        """A member is to leave after its present round."""
        self.conductor.drain(member)
        self.notify()

    def status_of(self, member: Member) -> MemberStatus:
        """Whether a member can take part now."""
        if self.guard.is_quarantined(member.name):
            return MemberStatus.QUARANTINED
        return self.conductor.status(member, time.monotonic())

    def alive(self) -> list[Member]:
        """Members from which something may be expected."""
        return self.conductor.alive(time.monotonic())

    def expected_back(self) -> list[Member]:
        """Members that may still call: neither gone for good nor silent for too long."""
        gone = (MemberStatus.LEFT, MemberStatus.DEAD, MemberStatus.QUARANTINED)
        members = self.conductor.members.values()
        return [member for member in members if self.status_of(member) not in gone]

    def step_times(self) -> FloatArray:
        """Everyone's last step time, [N]."""
        times = np.full(self.experiment.workers, np.nan)
        for worker, member in self.conductor.members.items():
            times[worker] = member.step_time
        return times

    # --- members that catch up -------------------------------------------------------------

    def catch_up_ordered(self, member: Member) -> None:
        """A member gets the order to take the committed model from a peer."""
        self._catch_up_waits.setdefault(member.worker, 0)

    def late_members(self) -> list[Member]:
        """Members that will soon have the committed model: the next attempt may wait for them.

        Otherwise a worker that was away would never be back: whenever it has caught up, the
        others have begun the next round.
        """
        return [
            member
            for member in self.alive()
            if self._catch_up_waits.get(member.worker, MOST_CATCH_UP_WAITS) < MOST_CATCH_UP_WAITS
            and not self.conductor.holds(member)
            and not member.draining
        ]

    def catch_up_seconds(self, late: Sequence[Member]) -> float:
        """How long to wait for them: as long as a model takes, with patience, but no longer than
        for a report."""
        cluster, planner = self.experiment.cluster, self.planner
        if planner is None or not late:
            return 0.0
        receivers = [member.worker for member in late]
        holders = [member.worker for member in self.alive() if self.conductor.holds(member)]
        bandwidth = planner.links.bandwidth[np.ix_(receivers, holders)]
        known = bandwidth[np.isfinite(bandwidth)]
        pull = 8.0 * self.model_bytes / float(known.min()) if known.size else 0.0
        longest = max(cluster.least_deadline, cluster.patience * self.round_seconds)
        return min(longest, max(CATCH_UP_SECONDS, cluster.patience * pull))

    def waited_for(self, late: Sequence[Member], *, ready: Sequence[int]) -> None:
        """An attempt begins with the ready workers; the late ones have had one more chance."""
        for member in late:
            self._catch_up_waits[member.worker] += 1
        for worker in ready:
            self._catch_up_waits.pop(worker, None)

    # --- the survey ------------------------------------------------------------------------

    def begin_survey(self, participants: Sequence[int]) -> LinkSurvey:
        """Have links timed before the first plan."""
        self.survey = LinkSurvey(participants)
        self.why = "the links are being timed"
        self.notify()
        return self.survey

    def end_survey(self, *, seconds: float) -> None:
        """The first plan is made with what was timed until now."""
        assert self.survey is not None
        assert isinstance(self.planner, RoundPlanner)
        timed = self.survey.timed
        self.survey, self.why = None, ""
        self.planner.learn_survey(timed)
        self.history.note("survey", {"told": sorted(timed), "seconds": seconds})

    # --- attempts --------------------------------------------------------------------------

    def begin_attempt(
        self, planned: PlannedRound, participants: Sequence[int], *, started: float, deadline: float
    ) -> Attempt:
        """Begin an attempt at the next round; deadline in seconds from its start."""
        assert isinstance(self.planner, RoundPlanner)
        attempt = self.conductor.begin(participants, deadline=started + deadline)
        self.work_orders = orders.work_orders(
            planned,
            attempt,
            self.conductor.members,
            evaluation=self.evaluation_plan(attempt.round_index),
            probes=self.planner.probes(planned),
            deadline=deadline,
        )
        self.named_peers = {
            worker: frozenset(peer.worker for peer in (*work.peers, *work.probes))
            for worker, work in self.work_orders.items()
        }
        self._note_attempt(attempt, participants, deadline)
        return attempt

    def begin_turns(self) -> Attempt:
        """Begin a round of an asynchronous algorithm: it ends when enough turns have."""
        attempt = self.conductor.begin(range(self.experiment.workers), deadline=np.inf)
        self._note_attempt(attempt, sorted(self.conductor.members), 0.0)
        return attempt

    def give_up_attempt(self, attempt: Attempt) -> None:
        """Too few reported in time."""
        self.work_orders = {}
        self.history.note("gave_up", attempt.to_facts())
        LOG.warning("round %d: too few reports; planning it again", attempt.round_index)
        self.conductor.give_up()

    def seal_attempt(self, *, seconds: float) -> dict[int, wire.RoundReport]:
        """No further report counts; returns those that are going to be committed."""
        self.work_orders = {}
        self.round_seconds = seconds
        reports = self.conductor.seal()
        for worker, report in reports.items():
            self.conductor.step_measured(self.conductor.members[worker], report.step_time)
        return reports

    def attempt_committed(self, attempt: Attempt, *, reported: Sequence[int]) -> None:
        """The attempt is durable."""
        self.conductor.commit()
        self.history.note("commit", {**attempt.to_facts(), "reported": reported})

    def evaluation_plan(self, round_index: int) -> orders.EvaluationPlan:
        """Whether models are tested after this round."""
        last = round_index == self.experiment.rounds
        evaluation = self.experiment.evaluation
        return orders.EvaluationPlan(
            evaluate=last or round_index % evaluation.every == 0,
            whole_test=last and evaluation.whole_at_end,
        )

    def _note_attempt(self, attempt: Attempt, participants: Sequence[int], deadline: float) -> None:
        facts = {"participants": participants, "deadline": deadline}
        self.history.note("attempt", {**attempt.to_facts(), **facts})

    # --- turns of an asynchronous algorithm ------------------------------------------------

    def turn_of(self, member: Member, *, round_index: int) -> TurnOrder:
        """The turn of a member: a new one, or the one that it was given and never ended."""
        turn = self.turns.get(member.worker)
        if turn is None:
            assert isinstance(self.planner, TurnPlanner)
            alive = [other.worker for other in self.alive()]
            turn = self.planner.next_turn(
                member.worker,
                round_index=round_index,
                present=np.isin(np.arange(self.experiment.workers), alive),
            )
            self.turns[member.worker] = turn
        partner = turn.action.partner
        self.named_peers[member.worker] = frozenset(() if partner is None else (partner,))
        return turn

    def _end_turn(self, member: Member, report: wire.RoundReport) -> None:
        turn = self.turns.get(member.worker)
        if turn is None or turn.number != report.turn:
            raise Refused("attempt", f"turn {report.turn} is over or was never given")
        assert isinstance(self.planner, TurnPlanner)
        del self.turns[member.worker]
        self.planner.end_turn(turn, report)

    # --- waiting ---------------------------------------------------------------------------

    def notify(self) -> None:
        """Wake everyone who waits for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for_change(self, seconds: float) -> None:
        """Wait until something changes, at most so long."""
        event = self._changed
        with contextlib.suppress(TimeoutError):
            # wait_for would lose a cancellation that comes together with the event.
            async with asyncio.timeout(seconds):
                await event.wait()


def is_asynchronous(experiment: Experiment) -> bool:
    """Whether the algorithm has turns instead of rounds."""
    part = experiment.algorithm
    return not isinstance(load_algorithm(part.name, part.settings), Algorithm)


def create_planner(experiment: Experiment, *, model_bytes: int, packed: bytes = b"") -> Planner:
    """A planner for models of this size, as new or as another coordinator packed it."""
    # The recorded world is a path that another machine may have named; plans do not need it.
    world = experiment.world.model_copy(update={"trace": None})
    stage = planning_context(
        experiment.model_copy(update={"world": world}), model_bits=8.0 * model_bytes
    )
    synchronous = isinstance(stage.algorithm, Algorithm)
    planner: Planner = RoundPlanner(stage) if synchronous else TurnPlanner(stage)
    if packed:
        planner.unpack(packed)
    return planner
