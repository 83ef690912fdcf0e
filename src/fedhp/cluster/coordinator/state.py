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
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy as np

from fedhp import __version__
from fedhp.algorithms import Algorithm, load_algorithm
from fedhp.algorithms.base import averages_groups
from fedhp.cluster.coordinator import orders
from fedhp.cluster.coordinator.blame import REMEMBERED_ROUNDS, Blame
from fedhp.cluster.coordinator.checkpoints import Checkpoints, GroupCheckpoint
from fedhp.cluster.coordinator.committed_state import CommittedState
from fedhp.cluster.coordinator.conductor import Conductor, Failure, Member, MemberStatus
from fedhp.cluster.coordinator.deadlines import (
    PACE_FACTOR,
    WITHHELD,
    RoundDeadlines,
    limit_times,
    shortest_turn,
    withholding_members,
)
from fedhp.cluster.coordinator.dial_back import DialBacks
from fedhp.cluster.coordinator.group_checks import (
    Norms,
    PartSizes,
    WrongParts,
    disputed_links,
    norms_after,
)
from fedhp.cluster.coordinator.link_estimates import LinkSurvey
from fedhp.cluster.coordinator.outliers import LEAST_VALUES, usual_count
from fedhp.cluster.coordinator.planner import Planner
from fedhp.cluster.coordinator.reachability import Reachability
from fedhp.cluster.coordinator.round_planner import NetworkRound, RoundPlanner
from fedhp.cluster.coordinator.run_record import RunRecordWriter
from fedhp.cluster.coordinator.setup_checks import SetupChecks
from fedhp.cluster.coordinator.turn_planner import TurnOrder, TurnPlanner, usual_turns
from fedhp.cluster.coordinator.waiting import WaitingMembers
from fedhp.cluster.coordinator.warnings import Warnings
from fedhp.cluster.history import History
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.guard import BAD_REASONS, Guard, Refused
from fedhp.cluster.protocol.message_checks import DIGEST_BYTES
from fedhp.cluster.protocol.setup import Setup, SetupPart
from fedhp.cluster.protocol.succession import Line
from fedhp.cluster.protocol.tickets import new_key
from fedhp.cluster.protocol.versions import works_with
from fedhp.cluster.security.name_bindings import NameBindings
from fedhp.cluster.security.tls import AllowList
from fedhp.config import Experiment, to_tables
from fedhp.engine.context import epoch_steps_of, planning_context
from fedhp.engine.until import StopCondition
from fedhp.exchange import GroupAverage
from fedhp.seeds import Purpose, generator
from fedhp.types import FloatArray, IntArray, Pair

LOG = logging.getLogger("fedhp.coordinator")
MOST_CATCH_UP_WAITS = 3  # attempts that wait for a worker which does not catch up
CATCH_UP_SECONDS = 1.5  # the least time that an attempt waits for it
STOP_SECONDS = 3.0  # that a running round has to end, once the run or a member is to stop
ALLOW_LIST_SECONDS = 0.5  # between two looks at the allow-list
GONE_SECONDS = 0.1  # that the list of absent workers may be old
WHOLE_TRIES, HALF_TRIES = 3, 3  # attempts with all, then with a half; then without a group
BEATS_TO_PARDON = 2.5  # heartbeats until every worker has heard whom the operator allowed
ATTEMPTS_TO_WARN = 10  # of one round, until an operator is warned
# Keys of warnings.
ATTEMPTS, PUT_ASIDE, MANY_TURNS = "attempts", "put_aside", "many_turns"
NOT_ALLOWED = "it is no longer on the allow-list"
WRONG_PARTS, ACCURACY_FELL, WENT_BACK = "wrong_parts", "accuracy_fell", "went_back"  # warnings
BY_OPERATOR = "the operator removed it"
LARGEST_LINK_SHARE = 4  # bytes over a link at most, in models: a swap has two, with some overhead


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
        allowed: AllowList | None = None,
        stopped: str = "",
        informed: Iterable[int] = (),
        digests: Mapping[int, bytes] | None = None,
        bindings: NameBindings | None = None,
        leaders: Line = (),
        place: str = "",
        versions: Mapping[int, Attempt] | None = None,
        norms: Norms | None = None,
        checkpoints: Mapping[str, Any] | None = None,
        setups: SetupChecks | None = None,
    ) -> None:
        self.experiment = experiment
        self._tables = to_tables(experiment)
        self.run = run
        self.conductor = conductor
        self.asynchronous = conductor.settings.asynchronous
        self.record = record
        self.history = history
        self.leads = leads  # ask before giving an order
        self.guard = Guard(run=run, epoch=conductor.epoch)
        self.leaders, self.place = leaders, place
        self.guard.token = self.token
        self.planner = planner  # None until a worker says how large a model is
        self.model_bytes = model_bytes
        self.phase, self.why = Phase.STARTING, ""
        self.stopping = stopped  # why an operator ends the run
        self.stop_requested, self.stop_committed = asyncio.Event(), asyncio.Event()
        self.removals_changed, self.removals_committed = asyncio.Event(), asyncio.Event()
        self.has_begun = False  # a round under this coordinator
        self.informed = set(informed)  # workers that said that they know that the run is over
        self._dismissed = set[int]()  # workers that got their last order
        self.counts_shares = experiment.task.name == "classification"  # results of tests
        self.stop_condition = StopCondition(experiment, tested=True, by_middle=True)
        self.stop_condition.resume(self.round_index, 0.0, bytes_sent, None)
        if ended:
            self.stop_condition.end(self.round_index, ended)
        self.survey: LinkSurvey | None = None  # while it runs
        self.work_orders: dict[int, wire.Work] = {}  # of the running attempt, by worker
        self.turns: dict[int, TurnOrder] = {}  # under way, by worker
        self.named_peers: dict[int, frozenset[int]] = {}  # whose links a report may mention
        self.deadlines = RoundDeadlines(experiment.cluster)
        self.keys: dict[str, bytes] = {}  # with which members check tickets, by name
        self.addresses = orders.PeerAddresses(run, self.keys)
        # Of the models of the committed round, by worker; of late reports too.
        self.digests: dict[int, bytes] = dict(digests or {})
        # Group averages: what each worker continues from, by worker; INITIAL for all others.
        self.versions: dict[int, Attempt] = dict(versions or {})
        self.norms: Norms = dict(norms or {})  # of what each brings into the next averages
        self.checkpoints = Checkpoints(checkpoints)
        self._went_back = 0  # in which round, the last time
        self._return: GroupCheckpoint | None = (
            None  # to which everyone goes back with the next commit
        )
        self._tree: GroupAverage | None = None  # of the running attempt
        self._own: dict[int, Attempt] = {}  # the same, as the running attempt was planned
        self._blame = Blame()
        self._wrong_parts, self._suspects = WrongParts(), set[tuple[str, ...]]()
        self._best_accuracy = 0.0  # the best mean of the workers so far
        self._forgiven_at: dict[int, float] = {}  # when allowed members' links may be used
        # Workers that lost a group average: in which round, and when.
        self._left_aside: dict[int, tuple[int, float]] = {}
        self._took_part: frozenset[int] = frozenset()  # in the committed round, if this one led it
        self.setups = setups or SetupChecks()
        self.bindings = bindings or NameBindings()
        self.readmitted: dict[str, int] = {}  # how often a name went to another process, by name
        self.pardoned: dict[str, int] = {}  # how often the operator let a name in again
        self._replaceable: set[str] = set()  # names whose next process need not be a later one
        self.barred: tuple[str, ...] = ()  # names whose calls nobody should accept
        self.allowed = allowed or AllowList(None)
        self._looked_at = 0.0  # when the allow-list was read last
        self._drained_at: dict[int, float] = {}  # when the operator said so, by worker
        self._ordered: dict[int, tuple[float, int]] = {}  # when, and how many steps, by worker
        self._model_sizes: dict[int, int] = {}  # bytes, as each worker says
        self._samples: dict[int, int] = {}  # likewise
        self._waited_in_vain: dict[int, set[int]] = {}  # partners of a swap, and who waited
        self._catch_up_waits: dict[int, int] = {}  # of workers that were ordered to catch up
        self._interrupted_phase: Phase | None = None
        self.waiting = WaitingMembers()
        self.reachability = Reachability()
        self.warnings = Warnings(history)
        self.dial_backs = DialBacks()
        self._changed = asyncio.Event()
        self._gone: tuple[float, list[int]] = (float("-inf"), [])  # as of when, and who

    @property
    def round_index(self) -> int:
        """The last committed round."""
        return self.conductor.committed.round_index

    @property
    def round_seconds(self) -> float:
        """Of the last round; 0: none was timed yet."""
        return self.deadlines.last_round

    @property
    def largest_transfer(self) -> int:
        """Bytes that one link can have carried in one report."""
        if not self.model_bytes:
            return limits.MODEL_BYTES
        return max(LARGEST_LINK_SHARE * self.model_bytes, limits.PROBE_BYTES)

    @property
    def token(self) -> bytes:
        """Of this leadership."""
        return self.leaders[-1].token if self.leaders else b""

    def committed_state(self, attempt: Attempt | None = None) -> CommittedState:
        """What the ledger is to hold once this attempt, or the last one, is committed."""
        return CommittedState(
            run=self.run,
            experiment=self.experiment,
            attempt=attempt or self.conductor.committed,
            members=self.named_members(),
            model_bytes=self.model_bytes,
            allowed=None if self.allowed.names is None else tuple(sorted(self.allowed.names)),
            removed=self.removed_names(),
            planner=b"" if self.planner is None else self.planner.pack(),
            bytes_sent=self.stop_condition.bytes_sent,
            ended=self.stop_condition.reason,
            stopped=self.stopping,
            informed=tuple(sorted(self.informed)),
            digests=self.digests if attempt is None else self._reported_digests(),
            versions=self.versions if attempt is None else self._versions_after(attempt),
            norms=self.norms if attempt is None else self._norms_after(),
            checkpoints=self.checkpoints.pack(),
            certificates=self.bindings.pack(),
            setup=self.setups.reference(),
            private=tuple(sorted(self.setups.private)),
            leaders=self.leaders,
            place=self.place,
            tables=self._tables,
        )

    def _reported_digests(self) -> dict[int, bytes]:
        """Of the models that the running attempt made, for those that catch up later."""
        running = self.conductor.running
        reports = {} if running is None else running.reports
        return {worker: report.digest for worker, report in reports.items() if report.digest}

    # --- group averages: everyone continues from its own last round ------------------------

    def own_version(self, member: Member) -> Attempt:
        """What a member continues from: the last round in which it was counted, or the initial
        model if it has lost that."""
        if member.worker in self._own:
            return self._own[member.worker]
        version = self.versions.get(member.worker, INITIAL)
        return version if version in member.models else INITIAL

    def settle_versions(self, workers: Iterable[int]) -> None:
        """Before an attempt is planned: what everyone is going to continue from."""
        self._own = {}
        if self.conductor.settings.groups:
            members = self.conductor.members
            self._own = {worker: self.own_version(members[worker]) for worker in workers}

    def restarting(self) -> list[int]:
        """Workers that have lost what they had, and begin again in the attempt that is planned."""
        return [
            worker
            for worker, version in sorted(self._own.items())
            if version != self.versions.get(worker, INITIAL)
        ]

    def _versions_after(self, attempt: Attempt) -> dict[int, Attempt]:
        """What everyone continues from once the running attempt is committed."""
        running = self.conductor.running
        if self._return is not None:
            return self._return.versions
        if running is None or not self.conductor.settings.groups:
            return self.versions
        return {**self.versions, **self._own, **dict.fromkeys(running.reports, attempt)}

    def _norms_after(self) -> Norms:
        """What everyone brings into the next averages once the running attempt is committed."""
        running = self.conductor.running
        if self._return is not None:
            return self._return.norms
        return norms_after(self.norms, {} if running is None else running.reports, self._tree)

    def judge_losses(self, attempt: Attempt, reports: Mapping[int, wire.RoundReport]) -> None:
        """Before a round is committed: everyone goes back if most losses explode."""
        if not self.conductor.settings.groups:
            return
        if self.checkpoints.explode(reports):
            self._go_back(attempt, "the losses of most workers exploded")
            return
        assert isinstance(self.planner, RoundPlanner)
        versions, norms = self._versions_after(attempt), self._norms_after()
        checkpoint = GroupCheckpoint(attempt, versions, norms, self.planner.pack_state())
        self.checkpoints.round_ended(reports, checkpoint)
        if attempt.round_index > self._went_back + REMEMBERED_ROUNDS:
            self.warnings.end(WENT_BACK)

    def _go_back(self, attempt: Attempt, why: str) -> None:
        """Everyone continues from a checkpoint, with the next commit."""
        self._return = self.checkpoints.go_back()
        if self._return is None:
            return
        assert isinstance(self.planner, RoundPlanner)
        self.planner.go_back(self._return.plan)
        to, self._went_back = self._return.attempt, attempt.round_index
        self.history.note("went_back", {**attempt.to_facts(), "to": to.to_list(), "why": why})
        self.warnings.set(
            WENT_BACK,
            value=self.checkpoints.returns,
            text=f"in round {attempt.round_index} {why}: everyone went back to the models of round "
            f"{to.round_index}. Either a member poisons the averages, or the learning rate is too "
            "high",
        )

    def _returned(self) -> None:
        """The return is committed."""
        if self._return is not None:
            self.versions, self.norms = self._return.versions, self._return.norms
            self._return = None

    def dispute_results(self) -> bool:
        """Whether the members of the group do not have the same result: then there is no average,
        and each end of a link where the difference begins blames the other."""
        running, tree = self.conductor.running, self._tree
        if running is None or tree is None or not running.required <= running.reports.keys():
            return False
        disputed = disputed_links(tree, running.reports)
        for above, below in disputed:
            self.conductor.dispute(above, below)
            facts = {**running.attempt.to_facts(), "above": above, "below": below}
            self.history.note("disputed", facts)
            self._note_wrong_part(above, below)
        return bool(disputed)

    def _note_wrong_part(self, one: int, other: int) -> None:
        """Two neighbors in a tree contradict each other."""
        self._wrong_parts.add(one, other, round_index=self.round_index + 1)
        self._warn_of_wrong_parts()

    def _warn_of_wrong_parts(self) -> None:
        members, before = self.conductor.members, self._suspects
        self._suspects = {
            tuple(members[worker].name for worker in suspects)
            for suspects in self._wrong_parts.suspects()
        }
        for names in before - self._suspects:
            self.warnings.end(WRONG_PARTS, members=names)
        for names in sorted(self._suspects):
            whose = f"{names[0]} sends" if len(names) == 1 else f"{names[0]} or {names[1]} sends"
            self.warnings.set(
                WRONG_PARTS,
                members=names,
                value=self.round_index + 1,
                text=f"{whose} wrong parts of group averages, which others refused or contradict",
            )

    def _leave_aside(self) -> None:
        """The round is tried again without the members that are taken for the cause."""
        running, conductor = self.conductor.running, self.conductor
        assert running is not None
        now, coming = time.monotonic(), self.round_index + 1
        guilty = self._blame.judge(
            running.failed,
            absent=conductor.absent(now),
            misses={worker: member.misses for worker, member in conductor.members.items()},
            round_index=coming,
        )
        for worker in guilty & conductor.members.keys():
            self._left_aside[worker] = coming, now
        if guilty:
            self.history.note("left_aside", {"workers": sorted(guilty)})

    def left_aside(self) -> list[int]:
        """Workers without which the next round is tried: they lost an average in this round, or
        in an earlier one and gave no sign of life since. Who did has kept the others waiting."""
        for worker, (round_index, when) in list(self._left_aside.items()):
            member = self.conductor.members[worker]
            if round_index <= self.round_index and member.seen > when:
                self._end_left_aside(member)
        return sorted(self._left_aside)

    def end_left_aside(self) -> None:
        """Without them there are too few."""
        for worker in list(self._left_aside):
            self._end_left_aside(self.conductor.members[worker])

    def _end_left_aside(self, member: Member) -> None:
        del self._left_aside[member.worker]
        self._suspend(member, "group averages failed because of it")

    def avoided_links(self) -> frozenset[Pair]:
        """Links that no plan should use: one end refuses the other, or they spoiled averages."""
        refused = self.reachability.refused(round_index=self.round_index, now=time.monotonic())
        return refused | self._blame.avoided(self.round_index + 1)

    def chosen(self, ready: list[int]) -> list[int]:
        """Those of the ready workers that are to take part in the next attempt: all, or a random
        half after some attempts in which group averages failed."""
        tries, count = self.conductor.tries, len(ready)
        least = max(-(-count // 2), self.experiment.cluster.min_workers)
        if not self.conductor.settings.groups or tries < WHOLE_TRIES or self.goes_without_group():
            return ready
        rng = generator(self.experiment.seed, Purpose.ATTEMPTS, self.round_index + 1, tries)
        return sorted(rng.permutation(ready)[:least].tolist())

    def goes_without_group(self) -> bool:
        """Whether the next attempt averages nothing, since too many averages failed in a row."""
        return self.conductor.tries >= WHOLE_TRIES + HALF_TRIES

    def committed_digests(self) -> list[bytes]:
        """Of the models of the committed round, as reported: the one that most have, where there
        is a common model; else all."""
        digest, count = max(
            Counter(self.digests.values()).items(), key=lambda each: each[1], default=(b"", 0)
        )
        common = 2 * count > len(self.digests) and len(self.digests) >= LEAST_VALUES
        return [digest] if common else sorted(set(self.digests.values()))

    def late_report(self, member: Member, report: wire.RoundReport) -> None:
        """A report that does not count any more: the member may still hold a model of the round,
        which others may take if nobody else has one. The first digest that it names stays."""
        committed = Attempt.from_envelope(report.envelope) == self.conductor.committed
        took_part = member.worker in self._took_part
        if committed and took_part and len(report.digest) == DIGEST_BYTES:
            self.digests.setdefault(member.worker, report.digest)

    def named_members(self) -> tuple[tuple[int, str], ...]:
        """Index and name of all members, for the ledger."""
        return tuple((member.worker, member.name) for member in self.conductor.members.values())

    def removed_names(self) -> tuple[str, ...]:
        """The members that an operator removed, for the ledger."""
        members = self.conductor.members.values()
        return tuple(sorted(member.name for member in members if member.removed == BY_OPERATOR))

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

    @property
    def is_interrupted(self) -> bool:
        """Whether nothing can be written or committed at the moment."""
        return self._interrupted_phase is not None

    def pause(self, why: str) -> None:
        """Nothing can be written or committed at the moment."""
        if self._interrupted_phase is None:
            self._interrupted_phase = self.phase
        self.phase, self.why = Phase.PAUSED, why

    def resume(self) -> None:
        """Something was written: continue where the pause, if there was one, began."""
        self.phase, self.why = self._interrupted_phase or self.phase, ""
        self._interrupted_phase = None

    def stop(self, why: str) -> None:
        """End the run after its present round, or in a few seconds if that takes longer."""
        self.stopping = why
        self.stop_requested.set()
        self.notify()

    def finish(self) -> None:
        """The run ends here: with all its rounds, by a condition, or because it was stopped."""
        reached = self.stop_condition.reason
        ended = self.round_index >= self.stop_condition.last_round
        self.record.finish(
            "finished" if ended else "interrupted",
            reached=reached,
            stopped="" if ended else self.stopping,
        )
        self.phase = Phase.FINISHED
        self.why = reached or f"all {self.experiment.rounds} rounds are done"
        if self.stopping and not ended:
            self.why = self.stopping
        self._interrupted_phase = None
        self.history.note("finished", {"round": self.round_index, "why": self.why})
        self.notify()
        self.waiting.wake_all()

    # --- members ---------------------------------------------------------------------------

    def member_joined(self, name: str, request: wire.JoinRequest) -> Member:
        """A worker joins, for the first time or again; Refused if it cannot."""
        self._check_release(request.fedhp)
        setup = Setup.from_wire(request.setup) if request.HasField("setup") else None
        if setup is not None and (why := self.setups.difference(setup)):
            raise self._setup_refused(name, None, why)
        self._replace_process(name, request.envelope.incarnation)
        incarnation = request.envelope.incarnation
        restarted = self.conductor.loses_report(name, incarnation=incarnation)
        before = self.conductor.by_name(name)
        replaced = before is not None and not before.left and incarnation != before.incarnation
        member = self.conductor.join(
            name,
            request.address,
            incarnation=incarnation,
            models=tuple(map(Attempt.from_wire, request.stands)),
            # A new process is not ready before it has timed a step.
            step_time=request.step_time if request.step_time > 0 else float("nan"),
            now=time.monotonic(),
        )
        if replaced:
            self.reachability.replaced(member, note=self.history.note)
        self.reachability.forget(member.worker)
        self.turns.pop(member.worker, None)
        self._ordered.pop(member.worker, None)
        self._drained_at.pop(member.worker, None)
        self._dismissed.discard(member.worker)
        # The same for the whole epoch: tickets for its peers are under way.
        self.keys.setdefault(name, new_key())
        self._note_samples(member, request.samples)
        self.warnings.end("setup", members=[name])
        self.setups.forget(name, member.worker)
        if setup is not None:
            self._note_setup(member, setup)
        self.history.note("join", {"worker": member.worker, "name": name})
        LOG.info("%s joined as worker %d", name, member.worker)
        if restarted:
            self._suspend(member, "it joined again during a round")
        if request.fedhp != __version__:
            LOG.warning("%s has fedhp %s, not %s: update it", name, request.fedhp, __version__)
        self.notify()
        if self.conductor.holds(member):
            self.waiting.wake_without_model()
        return member

    def certificate_shown(self, name: str, pem: bytes) -> None:
        """A worker calls with this certificate; Refused if another one has its name now."""
        if pem and self.bindings.admit(name, pem):
            self._expect_another_process(name)
            self.history.note("certificate", {"name": name})
            LOG.info("%s has a new certificate; the one before is refused from now on", name)

    def _expect_another_process(self, name: str) -> None:
        self.guard.restart(name)
        self._replaceable.add(name)

    def _replace_process(self, name: str, incarnation: int) -> None:
        """Let a process of another machine join whose clock is behind, and tell the peers."""
        member = self.conductor.by_name(name)
        if name not in self._replaceable or member is None or member.removed:
            return
        self._replaceable.discard(name)
        if incarnation < member.incarnation:
            self.conductor.replace_process(member)
            self.readmitted[name] = self.readmitted.get(name, 0) + 1

    def _check_release(self, release: str) -> None:
        if not works_with(release):
            raise Refused(
                "version",
                f"the worker has fedhp {release}, the coordinator {__version__}; a release works "
                "with itself, the one before and the one after: update the older one",
            )

    def member_polled(self, member: Member, request: wire.NextRequest) -> None:
        """A member asks for an order, and says what it has and has measured. A member that only
        asks again wakes nobody."""
        before = (member.models, member.step_time, member.seen)
        now = time.monotonic()
        self.conductor.poll(
            member,
            models=tuple(map(Attempt.from_wire, request.stands)),
            step_time=self._believable_step_time(member, request.step_time),
            now=now,
        )
        held_before = before[0] == member.models
        quiet = now - before[2] > self.experiment.cluster.suspect_after
        if not held_before or before[1] != member.step_time or quiet:
            self.notify()
        if not held_before and self.conductor.holds(member):
            self.waiting.wake_without_model()
        if request.model_bytes and member.worker not in self._model_sizes:
            self._model_sizes[member.worker] = request.model_bytes
            self.notify()
        self._note_samples(member, request.samples)
        if request.HasField("setup"):
            self._note_setup(member, Setup.from_wire(request.setup))
        if self.survey is not None and request.surveyed:
            self.survey.add(member.worker, request.surveyed)
            self._links_tried(member, request.surveyed, round_index=self.round_index + 1)
            self.notify()

    def _note_setup(self, member: Member, setup: Setup) -> None:
        """What a member is going to train; what it differs in is refused with its next order."""
        self.setups.say(member.worker, setup)
        self.history.note("setup", {"worker": member.worker, "private": setup.private})
        if setup.private:
            LOG.info("%s trains on its own samples (--data)", member.name)
        self.record.note_private(sorted(self.setups.private))
        self.notify()

    def check_setup(self, member: Member) -> None:
        """Refuse a member whose data, modules or model are not those of the run."""
        why = self.setups.refusal(member.worker)
        if why:
            refusal = self._setup_refused(member.name, member.worker, why)
            self._model_sizes.pop(member.worker, None)
            self._samples[member.worker] = 0
            self.record.note_samples(member.worker, 0)
            self.record.note_private(sorted(self.setups.private))
            self.member_left(member, "its setup is not that of the run")
            raise refusal
        if self.setups.scaling:
            self.record.note_scaling(*self.setups.scaling)

    def _setup_refused(self, name: str, worker: int | None, why: str) -> Refused:
        self.setups.refuse(name, worker, why)
        self.warnings.set("setup", members=[name], value=1.0, text=f"{name} is refused: {why}")
        return Refused("setup", why)

    def own_setup_known(self, parts: Sequence[SetupPart]) -> None:
        """What this machine has itself, with which the workers are compared."""
        self.setups.take_own(parts)
        self.notify()
        self.waiting.wake_all()

    def settle_setup(self, ready: Sequence[int]) -> bool:
        """Whether something is known now that the workers must have in common."""
        settled = self.setups.settle(ready)
        if settled:
            self.waiting.wake_all()
        return settled

    def call_broke_off(self, member: Member) -> None:
        """The call of a member that waited for an order ended from its side."""
        self.reachability.closed(member, time.monotonic())

    def _note_samples(self, member: Member, samples: int) -> None:
        """How much data a member has; 0 in the Join of a process that has not read it yet."""
        if samples or member.worker not in self._samples:
            self._samples[member.worker] = samples
            self.record.note_samples(member.worker, samples)

    def epoch_steps(self) -> IntArray | None:
        """The steps of training.local_epochs, [N]. Who has a step time has said its samples."""
        workers = range(self.experiment.workers)
        return epoch_steps_of(self.experiment, [self._samples.get(worker, 0) for worker in workers])

    def _believable_step_time(self, member: Member, claimed: float) -> float:
        """What a member says of its steps counts before its first report, and after a report that
        was not counted; then it cannot have been slower than the time since its order."""
        if not np.isfinite(member.step_time):
            return claimed
        if not member.misses or member.worker not in self._ordered:
            return 0.0
        ordered, steps = self._ordered[member.worker]
        return min(claimed, (time.monotonic() - ordered) / max(steps, 1))

    def settle_model_size(self, ready: Sequence[int]) -> None:
        """The first plan needs the size of a model: what most of the ready workers say counts."""
        if self.planner is not None:
            return
        size = usual_count(
            self._model_sizes[worker] for worker in ready if worker in self._model_sizes
        )
        if size:
            self.model_bytes = size
            self.planner = create_planner(self.experiment, model_bytes=size)
            self.record.note_model(size)

    def has_usual_model(self, member: Member) -> bool:
        """Whether the model of a member has the size of the others', as far as is known."""
        own = self._model_sizes.get(member.worker, self.model_bytes)
        return not self.model_bytes or own == self.model_bytes

    def work_ordered(self, member: Member, *, steps: int) -> None:
        """A member gets an order for so many local steps; the first copy of it counts."""
        self._ordered.setdefault(member.worker, (time.monotonic(), steps))

    def member_reported(self, member: Member, report: wire.RoundReport) -> None:
        """A member's report of its round or turn; Refused if it does not count."""
        attempt = Attempt.from_envelope(report.envelope)
        facts = {**attempt.to_facts(), "worker": member.worker, "digest": report.digest.hex()}
        self._limit_times(member, report)
        if self.asynchronous:
            self._end_turn(member, report)
            facts["turn"] = report.turn
        elif report.failed:
            self._average_failed(member, attempt, report)
            return
        else:
            self._check_group_report(report)
            self.conductor.report(member.worker, attempt, report, now=time.monotonic())
        if self.conductor.settings.groups:
            facts["steps"], facts["during"] = report.steps, report.steps_during
            facts["consensus"] = report.consensus.hex()
        lost = [link.worker for link in report.links if link.lost and not link.probe]
        if lost:
            facts["lost"] = lost
        self.history.note("report", facts)
        self._links_tried(member, report.links, round_index=attempt.round_index)
        self.conductor.reported(member, accuracy=report.accuracy, now=time.monotonic())
        self.notify()

    def _check_group_report(self, report: wire.RoundReport) -> None:
        """A round of group averages has the digests that its audit needs."""
        if not self.conductor.settings.groups:
            return
        if not report.consensus or not report.digest:
            raise Refused("digest", "the report has no digest of the model or of the consensus")

    def _average_failed(self, member: Member, attempt: Attempt, report: wire.RoundReport) -> None:
        """A member of the group has no average; the attempt cannot be committed."""
        lost = {link.worker: link.lost for link in report.links if link.lost}
        # Of those whose model diverged it counts how many they are: all of them are waited for.
        waits = bool(lost) or report.diverged
        late = waits and all(why == "deadline" for why in lost.values())
        failure = Failure(tuple(lost), late, time.monotonic(), diverged=report.diverged)
        self._fail(member, attempt, failure)
        facts = {**attempt.to_facts(), "worker": member.worker, "lost": sorted(lost)}
        self.history.note("failed", {**facts, "why": report.failed})
        for worker, why in lost.items():
            if why.removeprefix("refused: ") in BAD_REASONS:
                self._note_wrong_part(member.worker, worker)
        if isinstance(self.planner, RoundPlanner):
            timed = {member.worker: report.links}
            self.planner.learn_failed(timed, round_index=attempt.round_index)
        self._links_tried(member, report.links, round_index=attempt.round_index)
        self.notify()

    def _fail(self, member: Member, attempt: Attempt, failure: Failure) -> None:
        """Count it. One that is not in the group and whose model diverged has no report."""
        running = self.conductor.running
        if failure.diverged and running is not None and member.worker not in running.required:
            self.conductor.release(member)
        else:
            self.conductor.fail(member.worker, attempt, failure)

    def _links_tried(
        self, member: Member, links: Sequence[wire.LinkReport], *, round_index: int
    ) -> None:
        members = self.conductor.members
        self.reachability.tried(member, links, members=members, round_index=round_index)

    def _limit_times(self, member: Member, report: wire.RoundReport) -> None:
        if member.worker not in self._ordered:
            return
        ordered, steps = self._ordered[member.worker]
        if limit_times(report, elapsed=time.monotonic() - ordered, steps=steps):
            LOG.info("%s reported longer times than have passed; they are lowered", member.name)

    def member_left(self, member: Member, why: str) -> None:
        """A member leaves by its own decision."""
        self.conductor.leave(member)
        self.reachability.forget(member.worker)
        self.history.note("leave", {"worker": member.worker, "why": why})
        LOG.info("%s left: %s", member.name, why)
        self.notify()

    def member_dismissed(self, member: Member) -> None:
        """A member gets the order that it has finished. At the end of the run it stays a member
        until it says that the order arrived: one that did not get it asks again."""
        if member.worker not in self._dismissed:
            self._dismissed.add(member.worker)
            self.history.note("dismissed", {"worker": member.worker})
        if self.phase is not Phase.FINISHED:
            self.conductor.leave(member)
            self.reachability.forget(member.worker)

    def was_dismissed(self, member: Member) -> bool:
        """Whether a member got its last order since it joined, if not from this coordinator."""
        return member.worker in self._dismissed or self.phase is Phase.FINISHED

    def member_finished(self, member: Member) -> None:
        """A member has carried out its last order, and ends."""
        self.conductor.leave(member)
        self.reachability.forget(member.worker)
        if self.phase is Phase.FINISHED:
            self.informed.add(member.worker)
        self.notify()

    def call_refused(self, name: str, why: str) -> None:
        """A call was refused; for the history, which gets as many as the log."""
        self.history.note("refused", {"name": name, "why": why})

    def quarantined(self, name: str) -> None:
        """The guard refuses everything of this caller from now on."""
        member = self.conductor.by_name(name)
        facts = {} if member is None else {"worker": member.worker}
        self.history.note("quarantined", {"name": name, **facts})

    def drain(self, member: Member) -> None:
        """A member is to leave after its present round, or in a few seconds if that takes longer;
        the rounds of the others go on."""
        self.conductor.drain(member)
        self._drained_at.setdefault(member.worker, time.monotonic())
        self.history.note("drain", {"worker": member.worker})
        self.notify()
        self.waiting.wake([member.worker])

    def remove(self, member: Member, why: str) -> None:
        """A member is out at once, and may not come back before it is allowed again."""
        self.conductor.remove(member, why)
        self.reachability.forget(member.worker)
        self.work_orders.pop(member.worker, None)
        self.turns.pop(member.worker, None)
        self.history.note("removed", {"worker": member.worker, "why": why})
        LOG.warning("%s is removed: %s", member.name, why)
        if why == BY_OPERATOR:
            self._change_removals()
        self._bar()
        self.notify()
        self.waiting.wake([member.worker])

    def _change_removals(self) -> None:
        self.removals_committed.clear()
        self.removals_changed.set()

    def allow(self, member: Member) -> None:
        """A member may join, send and take part again, also from another machine."""
        self.guard.pardon(member.name)
        self.pardoned[member.name] = self.pardoned.get(member.name, 0) + 1
        # The other workers hear of it with their next heartbeat: its links are used after that.
        wait = BEATS_TO_PARDON * self.experiment.cluster.beat
        self._forgiven_at[member.worker] = time.monotonic() + wait
        self._left_aside.pop(member.worker, None)
        self.warnings.end(PUT_ASIDE, members=(member.name,))
        self.bindings.reopen(member.name)
        self._expect_another_process(member.name)
        self.conductor.readmit(member)
        self.history.note("allowed", {"worker": member.worker})
        self._change_removals()
        self._bar()
        self.notify()
        self.waiting.wake([member.worker])

    def supervise(self) -> None:
        """What has to happen soon although nobody calls: the allow-list may have changed, and
        members that leave are waited for no longer than a few seconds. Logs who is silent."""
        now = time.monotonic()
        for worker, since in list(self._drained_at.items()):
            if now - since > STOP_SECONDS:
                del self._drained_at[worker]
                self.work_orders.pop(worker, None)
                if self.conductor.release(self.conductor.members[worker]):
                    self.history.note("released", {"worker": worker})
                    self.notify()
        for worker, when in list(self._forgiven_at.items()):
            if now >= when:
                del self._forgiven_at[worker]
                self.reachability.forget(worker)
                self._blame.forgive(worker)
        if now - self._looked_at > ALLOW_LIST_SECONDS:
            self._looked_at = now
            self.reachability.watch(self.conductor, now, note=self.history.note)
            self._follow_allow_list()

    def _follow_allow_list(self) -> None:
        for member in self.conductor.members.values():
            allowed = not self.allowed.refusal(member.name)
            if not allowed and not member.removed:
                self.remove(member, NOT_ALLOWED)
            elif allowed and member.removed == NOT_ALLOWED:
                self.conductor.readmit(member)
        self._bar()

    def _bar(self) -> None:
        names = {member.name for member in self.conductor.members.values() if member.removed}
        self.barred = tuple(sorted(names | self.guard.quarantined()))

    def must_leave(self, member: Member) -> bool:
        """Whether a member should give up what it does and ask for its next order."""
        if self.phase is Phase.FINISHED:
            return not self.asynchronous or bool(self.stopping)
        return member.draining and not self.asynchronous and member.worker not in self.work_orders

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
        gone = (
            MemberStatus.LEFT,
            MemberStatus.DEAD,
            MemberStatus.REMOVED,
            MemberStatus.QUARANTINED,
        )
        members = self.conductor.members.values()
        return [member for member in members if self.status_of(member) not in gone]

    def uninformed(self) -> list[Member]:
        """Members that do not know yet that the run is over, wherever they are."""
        members = self.conductor.members.values()
        return [
            member
            for member in members
            if member.worker not in self.informed and not member.removed
        ]

    def step_times(self) -> FloatArray:
        """Everyone's last step time, [N]."""
        times = np.full(self.experiment.workers, np.nan)
        for worker, member in self.conductor.members.items():
            times[worker] = member.step_time
        return times

    # --- members that catch up -------------------------------------------------------------

    def catch_up_ordered(self, member: Member) -> None:
        """A member gets the order to take the committed model from a peer."""
        if member.worker not in self._catch_up_waits:
            self.history.note("behind", {"worker": member.worker})
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
        slowest = planner.links.slowest(receivers, holders)
        pull = 8.0 * self.model_bytes / slowest if np.isfinite(slowest) else 0.0
        wait = max(CATCH_UP_SECONDS, cluster.patience * pull)
        return min(self.deadlines.longest_wait(), wait)

    def waited_for(self, late: Sequence[Member], *, ready: Sequence[int]) -> None:
        """An attempt begins with the ready workers; the late ones have had one more chance."""
        for member in late:
            self._catch_up_waits[member.worker] += 1
        for worker in ready:
            self._catch_up_waits.pop(worker, None)

    # --- the survey ------------------------------------------------------------------------

    def begin_survey(self, participants: Sequence[int]) -> LinkSurvey:
        """Have links timed before the first plan."""
        assert self.planner is not None
        self.survey = LinkSurvey(participants, self.planner.stage.federation.base_topology.links)
        self.why = "the links are being timed"
        self.waiting.wake(participants)
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
        self, planned: NetworkRound, participants: Sequence[int], *, started: float, deadline: float
    ) -> Attempt:
        """Begin an attempt at the next round; deadline in seconds from its start."""
        assert isinstance(self.planner, RoundPlanner)
        exchange = planned.plan.exchange
        tree = exchange.group
        attempt = self.conductor.begin(
            participants,
            deadline=started + deadline,
            started=started,
            required=exchange.required,
        )
        self._tree = tree
        self._ordered.clear()
        self.work_orders = orders.work_orders(
            planned,
            attempt,
            self.conductor.members,
            addresses=self.addresses,
            evaluation=self.evaluation_plan(attempt.round_index),
            probes=self.planner.probes(planned),
            deadline=deadline,
            parts=None
            if tree is None
            else PartSizes.of(tree, self.norms, self.step_times(), participants),
        )
        self.named_peers = {
            worker: frozenset(
                peer.worker
                for peer in (*work.peers, *work.probes, *work.group.children, work.group.parent)
                if peer.name
            )
            for worker, work in self.work_orders.items()
        }
        about = exchange.to_facts()
        if tree is not None:
            about["restarted"] = self.restarting()
            if self.checkpoints.returned is not None:
                about["back_to"] = self.checkpoints.returned.to_list()
        self._note_attempt(attempt, participants, deadline, **about)
        return attempt

    def begin_turns(self) -> Attempt:
        """Begin a round of an asynchronous algorithm: it ends when enough turns have."""
        attempt = self.conductor.begin(range(self.experiment.workers), deadline=np.inf)
        self._note_attempt(attempt, sorted(self.conductor.members), 0.0)
        return attempt

    def give_up_attempt(self, attempt: Attempt) -> bool:
        """Too few reported in time, or the run is to stop and not all did. Returns whether
        everyone goes back to an earlier round, which has to be committed."""
        running, returns = self.conductor.running, self.checkpoints.returns
        if running is not None and running.required and not self.stopping:
            diverged = [each for each in running.failed.values() if each.diverged]
            if 2 * len(diverged) > len(running.required):
                self._go_back(attempt, "the models of most workers diverged")
                self._returned()
            else:
                self._leave_aside()
        else:
            self._judge_members({})
        self._warn_of_attempts()
        self.work_orders, self._own = {}, {}
        self.history.note("gave_up", attempt.to_facts())
        if self.stopping:
            LOG.warning("round %d is given up: %s", attempt.round_index, self.stopping)
        else:
            lost = running is not None and running.required
            why = "a group average did not come" if lost else "too few reports"
            LOG.warning("round %d: %s; planning it again", attempt.round_index, why)
        self.conductor.give_up()
        return self.checkpoints.returns > returns

    def _warn_of_attempts(self) -> None:
        """An operator should look at a round that does not come to an end."""
        tries, coming = self.conductor.tries, self.round_index + 1
        if tries >= ATTEMPTS_TO_WARN:
            text = f"round {coming} was tried {tries} times: see the log for the reasons"
            self.warnings.set(ATTEMPTS, value=tries, text=text)

    def seal_attempt(self, *, seconds: float) -> dict[int, wire.RoundReport]:
        """No further report counts; returns those that are going to be committed."""
        running = self.conductor.running
        assert running is not None
        reports = self.conductor.seal()
        self._judge_members(reports)
        self.deadlines.round_ended(seconds, running.arrivals.values())
        self.work_orders = {}
        for worker, report in reports.items():
            self.conductor.step_measured(self.conductor.members[worker], report.step_time)
        return reports

    def _judge_members(self, reports: Mapping[int, wire.RoundReport]) -> None:
        """Who kept the others waiting in the running attempt is put aside for some rounds, if it
        was not the first time. Where most were late, the cause is not one of them."""
        running, conductor = self.conductor.running, self.conductor
        if running is None or self.stopping or 2 * len(running.reports) < len(running.participants):
            return
        guilty: dict[int, str] = {
            member.worker: "it did not report in time"
            for member in conductor.overdue(time.monotonic())
        }
        readers = {
            worker: [reader.worker for reader in work.readers]
            for worker, work in self.work_orders.items()
        }
        for worker in withholding_members(readers, reports):
            guilty.setdefault(worker, "its readers waited for its model in vain")
        slow = self.deadlines.slow_members(running.arrivals)
        for worker in reports.keys() - guilty.keys():
            member = conductor.members[worker]
            if worker not in slow:
                self._was_punctual(member)
            elif conductor.slow(member):
                guilty[worker] = "it is far slower than the others"
        for worker, why in guilty.items():
            self._suspend(conductor.members[worker], why)

    def _suspend(self, member: Member, why: str) -> None:
        """Count a miss; from the second one on, the member is put aside for some rounds."""
        rounds = self.conductor.missed(member)
        if rounds:
            facts = {"worker": member.worker, "rounds": rounds, "why": why}
            self.history.note("suspended", facts)
            LOG.warning("%s is put aside for %d rounds: %s", member.name, rounds, why)
            times = "once" if member.misses == 2 else f"{member.misses - 1} times"
            self.warnings.set(
                PUT_ASIDE,
                members=(member.name,),
                value=member.misses,
                text=f"{member.name} was put aside {times}, last for {rounds} rounds: {why}",
            )

    def _was_punctual(self, member: Member) -> None:
        """It did its part in time; after many such rounds a miss is forgiven."""
        self.conductor.punctual(member)
        if member.misses < 2:
            self.warnings.end(PUT_ASIDE, members=(member.name,))

    def attempt_committed(self, attempt: Attempt, *, reported: Sequence[int]) -> None:
        """The attempt is durable."""
        running = self.conductor.running
        if running is not None and not self.asynchronous:
            self._took_part = running.participants
        self.digests = self._reported_digests()
        if self.conductor.settings.groups:
            self.norms = self._norms_after()
            self._wrong_parts.forget(round_index=attempt.round_index)
            self._warn_of_wrong_parts()
        self.versions, self._own = self._versions_after(attempt), {}
        self._return = None
        self.conductor.commit()
        self.warnings.end(ATTEMPTS)
        self.history.note("commit", {**attempt.to_facts(), "reported": reported})

    def accuracy_tested(self, accuracy: float | None) -> None:
        """The mean of the workers after a round; a fall by half is worth a look."""
        if accuracy is None:
            return
        self._best_accuracy = best = max(self._best_accuracy, accuracy)
        if accuracy >= best / 2 or best == 0:
            self.warnings.end(ACCURACY_FELL)
            return
        text = (
            f"the mean accuracy of the workers is {accuracy:.3g} after round {self.round_index}, "
            f"and was {best:.3g}: a member may send wrong models, or the learning rate is too high"
        )
        self.warnings.set(ACCURACY_FELL, value=accuracy, text=text)

    def evaluation_plan(self, round_index: int) -> orders.EvaluationPlan:
        """Whether models are tested after this round."""
        last = round_index == self.experiment.rounds
        evaluation = self.experiment.evaluation
        return orders.EvaluationPlan(
            evaluate=last or round_index % evaluation.every == 0,
            whole_test=last and evaluation.whole_at_end,
        )

    def _note_attempt(
        self, attempt: Attempt, participants: Sequence[int], deadline: float, **about: object
    ) -> None:
        facts = {"participants": participants, "deadline": deadline, **about}
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
                epoch_steps=self.epoch_steps(),
                avoid=self.avoided_links(),
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
        ordered, steps = self._ordered.pop(member.worker, (float("-inf"), 0))
        times = [other.step_time for other in self.conductor.members.values()]
        if time.monotonic() - ordered < shortest_turn(steps, times):
            self._suspend(member, "its turns are shorter than is possible")
            return
        self.planner.end_turn(turn, report)
        self._was_punctual(member)
        self._judge_partner(member, report)

    def end_turns(self, *, seconds: float) -> None:
        """A round of turns is over. Of a member with far more turns than the others no more than
        theirs count, but an operator should know."""
        assert isinstance(self.planner, TurnPlanner)
        self.deadlines.round_ended(seconds, ())
        turns = self.planner.turns_by_worker()
        usual = usual_turns(turns, [member.worker for member in self.alive()])
        for worker, member in self.conductor.members.items():
            own = turns[worker]
            if own > PACE_FACTOR * max(1, usual):
                text = (
                    f"{member.name} ended {own} turns in one round, the member in the middle "
                    f"{usual}: only so many of each member count"
                )
                self.warnings.set(MANY_TURNS, members=(member.name,), value=own, text=text)
            else:
                self.warnings.end(MANY_TURNS, members=(member.name,))

    def _judge_partner(self, member: Member, report: wire.RoundReport) -> None:
        """A partner that two members waited for in vain, since its last swap, is put aside."""
        for link in report.links:
            if link.lost not in WITHHELD:
                self._waited_in_vain.pop(link.worker, None)
                continue
            callers = self._waited_in_vain.setdefault(link.worker, set())
            callers.add(member.worker)
            partner = self.conductor.members.get(link.worker)
            if len(callers) >= 2 and partner is not None:
                self._waited_in_vain.pop(link.worker)
                self._suspend(partner, "others waited for a swap with it in vain")

    # --- waiting ---------------------------------------------------------------------------

    def notify(self) -> None:
        """Wake the round loop: it may have to go on."""
        self._changed.set()

    async def wait_for_change(self, seconds: float) -> None:
        """In the round loop: wait until something changes, at most so long."""
        with contextlib.suppress(TimeoutError):
            # wait_for would lose a cancellation that comes together with the event.
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()

    def wake_behind(self) -> None:
        """Wake the members that wait for a model that somebody may have now."""
        members = self.conductor.members
        self.waiting.wake(
            worker for worker in self.waiting.workers() if not self.conductor.holds(members[worker])
        )

    def gone(self, now: float) -> list[int]:
        """Workers that nobody should wait for, as of a moment ago: every heartbeat asks."""
        if now - self._gone[0] > GONE_SECONDS:
            self._gone = now, self.conductor.gone(now)
        return self._gone[1]


def averages_in_groups(experiment: Experiment) -> bool:
    """Whether the algorithm averages groups of workers."""
    part = experiment.algorithm
    return averages_groups(load_algorithm(part.name, part.settings))


def is_asynchronous(experiment: Experiment) -> bool:
    """Whether the algorithm has turns instead of rounds."""
    part = experiment.algorithm
    return not isinstance(load_algorithm(part.name, part.settings), Algorithm)


def create_planner(experiment: Experiment, *, model_bytes: int, packed: bytes = b"") -> Planner:
    """A planner for models of this size, as new or as another coordinator packed it."""
    # The recorded world is a path that another machine may have named; plans do not need it.
    world = experiment.world.without_files()
    stage = planning_context(
        experiment.model_copy(update={"world": world}), model_bits=8.0 * model_bytes
    )
    synchronous = isinstance(stage.algorithm, Algorithm)
    planner: Planner = RoundPlanner(stage) if synchronous else TurnPlanner(stage)
    if packed:
        planner.unpack(packed)
    return planner
