"""Attempts at the next round: begin, report, give up or seal, commit; and turns, their twin.

conductor.py says what counts, here are the consequences. Every limit of time is a multiple of what
the members need in the middle (the median): one that lies about its speed moves it by little.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import numpy as np

from fedhp.cluster import events
from fedhp.cluster.coordinator.attempts.group_checks import PartSizes
from fedhp.cluster.coordinator.attempts.groups import GroupRounds
from fedhp.cluster.coordinator.attempts.orders import GivenWork
from fedhp.cluster.coordinator.conductor import Failure, Member
from fedhp.cluster.coordinator.context import LeaderContext
from fedhp.cluster.coordinator.planning.planning import Planning
from fedhp.cluster.coordinator.planning.round_planner import (
    LEAST_VALUES,
    STEP_TIME_FACTOR,
    NetworkRound,
)
from fedhp.cluster.coordinator.planning.turn_planner import TurnOrder, usual_turns
from fedhp.cluster.coordinator.reachability import Reachability
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.guard import BAD_REASONS, Refused
from fedhp.cluster.protocol.message_checks import DIGEST_BYTES
from fedhp.config import ClusterConfig
from fedhp.seeds import Purpose, generator
from fedhp.types import Pair

FIRST_DEADLINE = 60.0  # s at least, while no round has been timed
LONGEST_DEADLINE = 86_400.0  # s, whatever was measured
PACE_FACTOR = 5.0  # the slowest that is planned for, in multiples of the median
SLOW_SECONDS = 1.0  # a member that reports within this time is never slow
ROUNDS_KEPT = 5  # whose times are remembered
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # s between two attempts at one round
CLOCK_RATIO, CLOCK_SLACK = 1.1, 0.25  # how far clocks, and the ends of an interval, may differ
# Reasons of a lost link for which the reader waited until the end of the exchange.
WITHHELD = ("deadline", "refused: patience")
MANY_TURNS = "many_turns"  # key of a warning
LOG = logging.getLogger("fedhp.coordinator")
WHOLE_TRIES, HALF_TRIES = 3, 3  # attempts with all, then with a half; then without a group
ATTEMPTS_TO_WARN = 10  # of one round, until an operator is warned
ATTEMPTS, ACCURACY_FELL = "attempts", "accuracy_fell"  # keys of warnings


class RoundDeadlines:
    """Limits for the next attempt, from the rounds that were committed under this coordinator."""

    def __init__(self, cluster: ClusterConfig) -> None:
        self._cluster = cluster
        self.last_round = 0.0  # s; 0: none was timed yet
        self._middles: deque[float] = deque(maxlen=ROUNDS_KEPT)
        self.usual = 0.0  # s until the member in the middle reports; 0: not known yet

    def round_ended(self, seconds: float, arrivals: Iterable[float]) -> None:
        """A round was committed; arrivals: seconds until each report."""
        self.last_round = seconds
        times = list(arrivals)
        if times:
            self._middles.append(median(times))
            self.usual = median(self._middles)

    def deadline(self, *, slowest: float, middle: float) -> float:
        """Seconds that an attempt may take. slowest and middle: what the plan predicts for the
        slowest member and for the one in the middle."""
        cluster = self._cluster
        least = cluster.least_deadline if self.last_round else FIRST_DEADLINE
        expected = max(slowest, self.last_round)
        expected = min(expected, PACE_FACTOR * max(middle, self.usual))
        return min(LONGEST_DEADLINE, max(least, cluster.patience * expected))

    def longest_wait(self) -> float:
        """Seconds to wait at most for a worker that catches up: as long as for a report."""
        cluster = self._cluster
        expected = min(self.last_round, PACE_FACTOR * self.usual)
        return min(LONGEST_DEADLINE, max(cluster.least_deadline, cluster.patience * expected))

    def slow_members(self, arrivals: Mapping[int, float]) -> set[int]:
        """Workers that reported far later than the one in the middle."""
        if len(arrivals) < 3:
            return set()  # of two, nobody knows which one is usual
        limit = self._cluster.patience * PACE_FACTOR * median(arrivals.values())
        limit = max(limit, SLOW_SECONDS)
        return {worker for worker, seconds in arrivals.items() if seconds > limit}


def attempt_pause(tries: int) -> float:
    """Seconds between an attempt that failed and the next one, after so many at this round."""
    return min(FIRST_PAUSE * 2.0 ** (tries - 1), LONGEST_PAUSE) if tries else 0.0


def shortest_turn(steps: int, step_times: Iterable[float]) -> float:
    """Seconds that so many steps take on the fastest machine that there may be. step_times: of
    all members; with fewer than three, nobody knows which one is usual."""
    known = [seconds for seconds in step_times if seconds > 0]  # NaN: not measured
    return steps * median(known) / STEP_TIME_FACTOR if len(known) >= 3 else 0.0


def withholding_members(
    readers: Mapping[int, Iterable[int]], reports: Mapping[int, wire.RoundReport]
) -> set[int]:
    """Workers whose model most of their readers waited for in vain: at least two, so that one
    reader cannot accuse anybody. readers: by worker, who was to pull from it."""
    lost = {
        (worker, link.worker)
        for worker, report in reports.items()
        for link in report.links
        if not link.probe and link.lost in WITHHELD
    }
    withholding = set()
    for worker, named in readers.items():
        witnesses = [reader for reader in named if reader in reports]
        waited = sum((reader, worker) in lost for reader in witnesses)
        if waited >= 2 and 2 * waited > len(witnesses):
            withholding.add(worker)
    return withholding


def limit_times(report: wire.RoundReport, *, elapsed: float, steps: int) -> bool:
    """Lower times that cannot be true, since only `elapsed` seconds passed here in between;
    whether there were any. Clocks are not compared, only durations."""
    most = CLOCK_RATIO * elapsed + CLOCK_SLACK
    limited = False
    for message, name, limit in (
        (report, "step_time", most / max(steps, 1)),
        (report, "compute_seconds", most),
        (report, "exchange_seconds", most),
        (report, "other_seconds", most),
        *((link, name, most) for link in report.links for name in ("seconds", "started")),
    ):
        if getattr(message, name) > limit:
            setattr(message, name, limit)
            limited = True
    return limited


class GivenTurns:
    """Gives turns to members, ends them, and judges partners that nobody could swap with."""

    def __init__(
        self,
        context: LeaderContext,
        planning: Planning,
        work: GivenWork,
        reachability: Reachability,
    ) -> None:
        self._context, self._conductor = context, context.conductor
        self._planning, self._work, self._reachability = planning, work, reachability
        self._waited_in_vain: dict[int, set[int]] = {}  # partners of a swap, and who waited

    def turn_of(self, member: Member, *, round_index: int, now: float) -> TurnOrder:
        """The turn of a member: a new one, or the one that it was given and never ended."""
        turn = self._work.turns.get(member.worker)
        if turn is None:
            alive = [other.worker for other in self._conductor.alive(now)]
            turn = self._planning.turns.next_turn(
                member.worker,
                round_index=round_index,
                present=np.isin(np.arange(self._context.experiment.workers), alive),
                epoch_steps=self._planning.epoch_steps(),
                avoid=self._reachability.refused(round_index=self._context.round_index, now=now),
            )
        partner, worker = turn.action.partner, member.worker
        self._work.turns[worker] = turn
        self._work.peers[worker] = frozenset(() if partner is None else (partner,))
        return turn

    def is_complete(self, now: float) -> bool:
        """Whether enough turns of the round have ended."""
        alive = [member.worker for member in self._conductor.alive(now)]
        return self._planning.turns.is_complete(alive)

    def end(self, member: Member, report: wire.RoundReport, *, now: float) -> None:
        """A member reports its turn; Refused if it is not under way."""
        turn = self._work.turns.get(member.worker)
        if turn is None or turn.number != report.turn:
            raise Refused("attempt", f"turn {report.turn} is over or was never given")
        del self._work.turns[member.worker]
        given, steps = self._work.given.pop(member.worker, (-math.inf, 0))
        times = [other.step_time for other in self._conductor.members.values()]
        if now - given < shortest_turn(steps, times):
            self._context.missed(member, "its turns are shorter than is possible")
            return
        self._planning.turns.end_turn(turn, report)
        self._context.was_punctual(member)
        self.judge_partner(member, report)

    def judge_partner(self, member: Member, report: wire.RoundReport) -> None:
        """A partner that two members waited for in vain, since its last swap, is put aside."""
        for link in report.links:
            if link.lost not in WITHHELD:
                self._waited_in_vain.pop(link.worker, None)
                continue
            callers = self._waited_in_vain.setdefault(link.worker, set())
            callers.add(member.worker)
            partner = self._conductor.members.get(link.worker)
            if len(callers) >= 2 and partner is not None:
                self._waited_in_vain.pop(link.worker)
                self._context.missed(partner, "others waited for a swap with it in vain")

    def end_round(self, *, now: float) -> None:
        """A round of turns is over. Of a member with far more turns than the others no more than
        theirs count, but an operator should know."""
        turns = self._planning.turns.turns_by_worker()
        usual = usual_turns(turns, [member.worker for member in self._conductor.alive(now)])
        warnings = self._context.warnings
        for worker, member in self._conductor.members.items():
            own = turns[worker]
            if own > PACE_FACTOR * max(1, usual):
                text = (
                    f"{member.name} ended {own} turns in one round, the member in the middle "
                    f"{usual}: only so many of each member count"
                )
                warnings.set(MANY_TURNS, members=(member.name,), value=own, text=text)
            else:
                warnings.end(MANY_TURNS, members=(member.name,))


class ModelDigests:
    """Digests of the models of the committed round, by worker, for those that catch up; of late
    reports too."""

    def __init__(self, context: LeaderContext) -> None:
        self._conductor = context.conductor
        self.by_worker: dict[int, bytes] = dict(context.taken_over.digests)
        self.took_part: frozenset[int] = frozenset()  # in the committed round, if this one led it

    def after_commit(self) -> dict[int, bytes]:
        """Of the models that the running attempt made."""
        running = self._conductor.running
        reports = {} if running is None else running.reports
        return {worker: report.digest for worker, report in reports.items() if report.digest}

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
        took_part = member.worker in self.took_part
        if committed and took_part and len(report.digest) == DIGEST_BYTES:
            self.by_worker.setdefault(member.worker, report.digest)


class Attempts:
    """The running attempt and its consequences. Made of parts that handlers use as well: the
    work that was given, turns, group averages, digests, deadlines, links that do not work."""

    def __init__(self, context: LeaderContext, planning: Planning) -> None:
        self._context, self._conductor = context, context.conductor
        self.planning = planning
        self.reachability = Reachability(context.conductor, context.history.note)
        self.work = GivenWork(context.taken_over.run, context.conductor)
        self.deadlines = RoundDeadlines(context.experiment.cluster)
        self.digests = ModelDigests(context)
        self.groups = GroupRounds(context, planning)
        self.turns = GivenTurns(context, planning, self.work, self.reachability)
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
        if self.reachability.failures:
            avoided = self.reachability.refused(round_index=round_index, now=now)
        spoiled = self.groups.blame.avoided(round_index + 1) if self._context.groups else ()
        return avoided.union(spoiled)

    def evaluation_plan(self, round_index: int) -> dict[str, bool]:
        """Whether models are tested after this round, and on the whole test set too."""
        experiment = self._context.experiment
        last, evaluation = round_index == experiment.rounds, experiment.evaluation
        return {
            "evaluate": last or round_index % evaluation.every == 0,
            "whole_test": last and evaluation.whole_at_end,
        }

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
        sizes: dict[int, PartSizes] = {}
        for tree in trees:
            size = PartSizes.of(tree, self.groups.norms, self.planning.step_times(), participants)
            sizes |= dict.fromkeys(tree.required, size)
        self.work.begin(
            planned,
            attempt,
            evaluation=self.evaluation_plan(attempt.round_index),
            probes=self.planning.rounds.probes(planned),
            deadline=deadline,
            sizes=sizes,
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
        if self.reachability.failures or any(link.lost for link in report.links):
            self.reachability.tried(member, report.links, attempt.round_index, now=now)
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
        running = self._conductor.running
        if report.diverged and running is not None and member.worker not in running.required:
            self._conductor.release(member)  # it is not in the group: it has no report
        else:
            failure = Failure(tuple(lost), late, now, diverged=report.diverged)
            self._conductor.fail(member.worker, attempt, failure)
        self._context.history.note(
            events.Failed(attempt, member.worker, sorted(lost), report.failed)
        )
        for worker, why in lost.items():
            if why.removeprefix("refused: ") in BAD_REASONS:
                self.groups.note_wrong_part(member.worker, worker)
        timed = {member.worker: report.links}
        self.planning.rounds.learn_links(timed, round_index=attempt.round_index)
        self.reachability.tried(member, report.links, attempt.round_index, now=now)
        self._context.round_loop.notify()

    # --- an attempt ends -------------------------------------------------------------------

    def give_up(self, attempt: Attempt, *, now: float) -> bool:
        """Too few reported in time, or the run is to stop and not all did. Returns whether
        everyone goes back to an earlier round, which has to be committed."""
        running, stopping = self._conductor.running, self._context.phase.stopping
        lost, returns = running is not None and bool(running.required), False
        if running is not None and lost and not stopping:
            returns = self.groups.average_lost(running, now)
        else:
            self._judge_members({}, now)
        tries, coming = self._conductor.tries, self._context.round_index + 1
        if tries >= ATTEMPTS_TO_WARN:
            text = f"round {coming} was tried {tries} times: see the log for the reasons"
            self._context.warnings.set(ATTEMPTS, value=tries, text=text)
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

    def seal(self, *, started: float, now: float) -> dict[int, wire.RoundReport]:
        """No further report counts; returns those that are going to be committed."""
        running = self._conductor.running
        assert running is not None
        reports = self._conductor.seal()
        self._judge_members(reports, now)
        self.deadlines.round_ended(now - started, running.arrivals.values())
        self.work.orders = {}
        for worker, report in reports.items():
            if report.step_time > 0:
                self._conductor.members[worker].step_time = report.step_time
        return reports

    def _judge_members(self, reports: Mapping[int, wire.RoundReport], now: float) -> None:
        """Who kept the others waiting in the running attempt is put aside for some rounds, if it
        was not the first time. Where most were late, the cause is not one of them."""
        running, conductor = self._conductor.running, self._conductor
        if running is None or self._context.phase.stopping:
            return
        if 2 * len(running.reports) < len(running.participants):
            return
        overdue = conductor.overdue(now) if running.awaited else ()
        causes = {member.worker: "it did not report in time" for member in overdue}
        if any(link.lost for report in reports.values() for link in report.links):
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
                self._context.was_punctual(member)
            elif member.was_slow():
                causes[worker] = "it is far slower than the others"
        for worker, why in causes.items():
            self._context.missed(conductor.members[worker], why)

    def committed(self, attempt: Attempt, *, reported: Sequence[int]) -> None:
        """The attempt is durable."""
        self.digests.by_worker = self.digests.after_commit()
        if self._conductor.running is not None and not self._context.asynchronous:
            self.digests.took_part = self._conductor.running.participants
        if self._context.groups:
            self.groups.committed(attempt)
        self._conductor.commit()
        if self._context.warnings.current:
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
