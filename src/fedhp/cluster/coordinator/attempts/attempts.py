"""Attempts at the next round: begin, report, give up or seal, commit; who kept the others waiting.

conductor.py says what counts. Here are the consequences: orders, the history, warnings, and
which members are put aside.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from fedhp.cluster import events
from fedhp.cluster.coordinator.attempts import orders
from fedhp.cluster.coordinator.attempts.deadlines import (
    RoundDeadlines,
    Suspensions,
    limit_times,
    withholding_members,
)
from fedhp.cluster.coordinator.attempts.group_checks import PartSizes
from fedhp.cluster.coordinator.attempts.groups import GroupRounds
from fedhp.cluster.coordinator.attempts.turns import GivenTurns
from fedhp.cluster.coordinator.committed_state import CommittedState
from fedhp.cluster.coordinator.conductor import Conductor, Failure, Member
from fedhp.cluster.coordinator.context import LeaderContext
from fedhp.cluster.coordinator.phase import RunPhase
from fedhp.cluster.coordinator.planning.planner import LEAST_VALUES
from fedhp.cluster.coordinator.planning.planning import Planning
from fedhp.cluster.coordinator.planning.round_planner import NetworkRound
from fedhp.cluster.coordinator.reachability import Reachability
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.guard import BAD_REASONS, Refused
from fedhp.cluster.protocol.message_checks import DIGEST_BYTES
from fedhp.seeds import Purpose, generator
from fedhp.types import Pair

LOG = logging.getLogger("fedhp.coordinator")
WHOLE_TRIES, HALF_TRIES = 3, 3  # attempts with all, then with a half; then without a group
ATTEMPTS_TO_WARN = 10  # of one round, until an operator is warned
ATTEMPTS, ACCURACY_FELL = "attempts", "accuracy_fell"  # keys of warnings


class ModelDigests:
    """Digests of the models of the committed round, by worker, for those that catch up; of late
    reports too."""

    def __init__(self, conductor: Conductor[wire.RoundReport], committed: CommittedState) -> None:
        self._conductor = conductor
        self.by_worker: dict[int, bytes] = dict(committed.digests)
        self._took_part: frozenset[int] = frozenset()  # in the committed round, if this one led it

    def after_commit(self) -> dict[int, bytes]:
        """Of the models that the running attempt made."""
        running = self._conductor.running
        reports = {} if running is None else running.reports
        return {worker: report.digest for worker, report in reports.items() if report.digest}

    def committed(self) -> None:
        """The running attempt is durable."""
        running = self._conductor.running
        if running is not None and not self._conductor.settings.asynchronous:
            self._took_part = running.participants
        self.by_worker = self.after_commit()

    def wanted(self) -> list[bytes]:
        """What a worker that catches up may take: the model that most have, where there is a
        common one; else any that was reported."""
        digests = self.by_worker
        digest, count = max(
            Counter(digests.values()).items(), key=lambda each: each[1], default=(b"", 0)
        )
        common = 2 * count > len(digests) and len(digests) >= LEAST_VALUES
        return [digest] if common else sorted(set(digests.values()))

    def late_report(self, member: Member, report: wire.RoundReport) -> None:
        """A report that does not count any more: the member may still hold a model of the round,
        which others may take if nobody else has one. The first digest that it names stays."""
        committed = Attempt.from_wire(report.envelope) == self._conductor.committed
        took_part = member.worker in self._took_part
        if committed and took_part and len(report.digest) == DIGEST_BYTES:
            self.by_worker.setdefault(member.worker, report.digest)


class Attempts:
    """The running attempt and its consequences. Made of parts that handlers use as well: the
    work that was given, turns, group averages, digests, deadlines."""

    def __init__(
        self,
        context: LeaderContext,
        committed: CommittedState,
        *,
        phase: RunPhase,
        planning: Planning,
        reachability: Reachability,
    ) -> None:
        self._context, self._conductor, self._phase = context, context.conductor, phase
        self._planning, self._reachability = planning, reachability
        self.work = orders.GivenWork(committed.run)
        self.deadlines = RoundDeadlines(context.experiment.cluster)
        self.suspensions = Suspensions(context)
        self.digests = ModelDigests(context.conductor, committed)
        self.groups = GroupRounds(context, committed, planning, self.suspensions)
        self.turns = GivenTurns(
            context,
            planning=planning,
            work=self.work,
            suspensions=self.suspensions,
            reachability=reachability,
            deadlines=self.deadlines,
        )
        self._best_accuracy = 0.0  # the best mean of the workers so far

    # --- before an attempt -----------------------------------------------------------------

    def chosen(self, ready: list[int]) -> list[int]:
        """Those of the ready workers that are to take part in the next attempt at a round of
        group averages: all, or a random half after some attempts in which these failed."""
        tries, experiment = self._conductor.tries, self._context.experiment
        least = max(-(-len(ready) // 2), experiment.cluster.min_workers)
        if tries < WHOLE_TRIES or self.goes_without_group():
            return ready
        coming = self._context.round_index + 1
        rng = generator(experiment.seed, Purpose.ATTEMPTS, coming, tries)
        return sorted(rng.permutation(ready)[:least].tolist())

    def goes_without_group(self) -> bool:
        """Whether the next attempt averages nothing, since too many averages failed in a row."""
        return self._conductor.tries >= WHOLE_TRIES + HALF_TRIES

    def avoided_links(self, now: float) -> frozenset[Pair]:
        """Links that no plan should use: one end refuses the other, or they spoiled averages."""
        round_index = self._conductor.committed.round_index
        avoided = frozenset[Pair]()
        if self._reachability.failures:
            avoided = self._reachability.refused(round_index=round_index, now=now)
        return avoided | self.groups.avoided_links() if self._context.groups else avoided

    def evaluation_plan(self, round_index: int) -> orders.EvaluationPlan:
        """Whether models are tested after this round."""
        experiment = self._context.experiment
        last, evaluation = round_index == experiment.rounds, experiment.evaluation
        return orders.EvaluationPlan(
            evaluate=last or round_index % evaluation.every == 0,
            whole_test=last and evaluation.whole_at_end,
        )

    # --- an attempt begins -----------------------------------------------------------------

    def begin(
        self, planned: NetworkRound, participants: Sequence[int], *, started: float
    ) -> Attempt:
        """Begin an attempt at the next round; the workers that wait can get their orders."""
        exchange = planned.plan.exchange
        trees = exchange.groups
        deadline = self.deadlines.deadline(slowest=planned.slowest, middle=planned.middle)
        attempt = self._conductor.begin(
            participants,
            deadline=started + deadline,
            started=started,
            required=exchange.required,
        )
        self.groups.trees = trees
        sizes = [
            PartSizes.of(tree, self.groups.norms, self._planning.step_times(), participants)
            for tree in trees
        ]
        self.work.begin(
            orders.work_orders(
                planned,
                attempt,
                self._conductor.members,
                addresses=self.work.addresses,
                evaluation=self.evaluation_plan(attempt.round_index),
                probes=self._planning.rounds.probes(planned),
                deadline=deadline,
                parts={
                    worker: size
                    for tree, size in zip(trees, sizes, strict=True)
                    for worker in tree.required
                },
            )
        )
        returned = self.groups.checkpoints.returned if trees else None
        self._context.history.note(
            events.Began(
                attempt,
                participants,
                deadline,
                exchange.to_facts(),
                restarted=self.groups.restarting() if trees else None,
                back_to=None if returned is None else returned.to_list(),
            )
        )
        return attempt

    def begin_turns(self) -> Attempt:
        """Begin a round of an asynchronous algorithm: it ends when enough turns have."""
        workers = range(self._context.experiment.workers)
        attempt = self._conductor.begin(workers, deadline=np.inf)
        participants = sorted(self._conductor.members)
        self._context.history.note(events.Began(attempt, participants, 0.0, {}))
        return attempt

    # --- reports ---------------------------------------------------------------------------

    def report(self, member: Member, report: wire.RoundReport, *, now: float) -> None:
        """A member's report of its round or turn; Refused if it does not count."""
        attempt = Attempt.from_wire(report.envelope)
        asynchronous, groups = self._context.asynchronous, self._context.groups
        given = self.work.given.get(member.worker)
        if given is not None and limit_times(report, elapsed=now - given[0], steps=given[1]):
            LOG.info("%s reported longer times than have passed; they are lowered", member.name)
        if asynchronous:
            self.turns.end(member, report, now=now)
        elif report.failed:
            self._average_failed(member, attempt, report, now)
            return
        else:
            if groups and not (report.consensus and report.digest):  # the audit needs them
                raise Refused("digest", "the report has no digest of the model or of the consensus")
            self._conductor.report(member.worker, attempt, report, now=now)
        lost = {link.worker: link.lost_at for link in report.links if link.lost and not link.probe}
        self._context.history.note(
            events.Reported(
                attempt,
                member.worker,
                report.digest.hex(),
                turn=report.turn if asynchronous else None,
                steps=report.steps if groups else None,
                during=report.steps_during if groups else None,
                consensus=report.consensus.hex() if groups else None,
                lost=list(lost) or None,
                lost_at=list(lost.values()) if any(lost.values()) else None,
            )
        )
        if self._reachability.failures or any(link.lost for link in report.links):
            self._reachability.tried(
                member,
                report.links,
                members=self._conductor.members,
                round_index=attempt.round_index,
                now=now,
            )
        if math.isfinite(report.accuracy):  # NaN: nothing was tested
            member.accuracy = report.accuracy
        member.seen = now
        self._context.round_loop.notify()

    def _average_failed(
        self, member: Member, attempt: Attempt, report: wire.RoundReport, now: float
    ) -> None:
        """A member of the group has no average; the attempt cannot be committed."""
        lost = {link.worker: link.lost for link in report.links if link.lost}
        # Of those whose model diverged it counts how many they are: all of them are waited for.
        waits = bool(lost) or report.diverged
        late = waits and all(why == "deadline" for why in lost.values())
        self._fail(member, attempt, Failure(tuple(lost), late, now, diverged=report.diverged))
        self._context.history.note(
            events.Failed(attempt, member.worker, sorted(lost), report.failed)
        )
        for worker, why in lost.items():
            if why.removeprefix("refused: ") in BAD_REASONS:
                self.groups.note_wrong_part(member.worker, worker)
        timed = {member.worker: report.links}
        self._planning.rounds.learn_links(timed, round_index=attempt.round_index)
        self._reachability.tried(
            member,
            report.links,
            members=self._conductor.members,
            round_index=attempt.round_index,
            now=now,
        )
        self._context.round_loop.notify()

    def _fail(self, member: Member, attempt: Attempt, failure: Failure) -> None:
        """Count it. One that is not in the group and whose model diverged has no report."""
        running = self._conductor.running
        if failure.diverged and running is not None and member.worker not in running.required:
            self._conductor.release(member)
        else:
            self._conductor.fail(member.worker, attempt, failure)

    # --- an attempt ends -------------------------------------------------------------------

    def give_up(self, attempt: Attempt, *, now: float) -> bool:
        """Too few reported in time, or the run is to stop and not all did. Returns whether
        everyone goes back to an earlier round, which has to be committed."""
        running, stopping = self._conductor.running, self._phase.stopping
        lost, returns = running is not None and bool(running.required), False
        if running is not None and lost and not stopping:
            returns = self.groups.average_lost(running, now)
        else:
            self._judge_members({}, now)
        self._warn_of_attempts()
        self.work.orders = {}
        self.groups.gave_up()
        self._context.history.note(events.GaveUp(attempt))
        if stopping:
            LOG.warning("round %d is given up: %s", attempt.round_index, stopping)
        else:
            why = "a group average did not come" if lost else "too few reports"
            LOG.warning("round %d: %s; planning it again", attempt.round_index, why)
        self._conductor.give_up()
        return returns

    def _warn_of_attempts(self) -> None:
        """An operator should look at a round that does not come to an end."""
        tries, coming = self._conductor.tries, self._context.round_index + 1
        if tries >= ATTEMPTS_TO_WARN:
            text = f"round {coming} was tried {tries} times: see the log for the reasons"
            self._context.warnings.set(ATTEMPTS, value=tries, text=text)

    def seal(self, *, started: float, now: float) -> dict[int, wire.RoundReport]:
        """No further report counts; returns those that are going to be committed."""
        running = self._conductor.running
        assert running is not None
        reports = self._conductor.seal()
        self._judge_members(reports, now)
        self.deadlines.round_ended(now - started, running.arrivals.values())
        self.work.orders = {}
        for worker, report in reports.items():
            self._conductor.members[worker].step_measured(report.step_time)
        return reports

    def _judge_members(self, reports: Mapping[int, wire.RoundReport], now: float) -> None:
        """Who kept the others waiting in the running attempt is put aside for some rounds, if it
        was not the first time. Where most were late, the cause is not one of them."""
        running, conductor = self._conductor.running, self._conductor
        if running is None or self._phase.stopping:
            return
        if 2 * len(running.reports) < len(running.participants):
            return
        overdue = conductor.overdue(now) if running.awaited else ()
        causes = {member.worker: "it did not report in time" for member in overdue}
        readers = {
            worker: [reader.worker for reader in work.readers]
            for worker, work in self.work.orders.items()
        }
        for worker in withholding_members(readers, reports):
            causes.setdefault(worker, "its readers waited for its model in vain")
        slow = self.deadlines.slow_members(running.arrivals)
        for worker in reports.keys() - causes.keys():
            member = conductor.members[worker]
            if worker not in slow:
                self.suspensions.was_punctual(member)
            elif member.was_slow():
                causes[worker] = "it is far slower than the others"
        for worker, why in causes.items():
            self.suspensions.missed(conductor.members[worker], why)

    def committed(self, attempt: Attempt, *, reported: Sequence[int]) -> None:
        """The attempt is durable."""
        self.digests.committed()
        if self._context.groups:
            self.groups.committed(attempt)
        self._conductor.commit()
        self._context.warnings.end(ATTEMPTS)
        self._context.history.note(events.Committed(attempt, reported))

    def accuracy_tested(self, accuracy: float) -> None:
        """The mean of the workers after a round; a fall by half is worth a look."""
        self._best_accuracy = best = max(self._best_accuracy, accuracy)
        if accuracy >= best / 2 or best == 0:
            self._context.warnings.end(ACCURACY_FELL)
            return
        text = (
            f"the mean accuracy of the workers is {accuracy:.3g} after round "
            f"{self._context.round_index}, and was {best:.3g}: a member may send wrong models, "
            "or the learning rate is too high"
        )
        self._context.warnings.set(ACCURACY_FELL, value=accuracy, text=text)
