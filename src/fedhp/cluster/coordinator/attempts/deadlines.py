"""How long an attempt may take, and who was too slow, so that no single member decides it.

Every limit is a multiple of what the members need in the middle (the median): one member that
lies about its speed, or dawdles, moves it by little. Members that keep the others waiting are put
aside for some rounds.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from statistics import median

from fedhp.cluster import events
from fedhp.cluster.coordinator.conductor import Member
from fedhp.cluster.coordinator.context import LeaderContext
from fedhp.cluster.coordinator.planning.planner import STEP_TIME_FACTOR
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.config import ClusterConfig

LOG = logging.getLogger("fedhp.coordinator")
FIRST_DEADLINE = 60.0  # s at least, while no round has been timed
LONGEST_DEADLINE = 86_400.0  # s, whatever was measured
PACE_FACTOR = 5.0  # the slowest that is planned for, in multiples of the median
SLOW_SECONDS = 1.0  # a member that reports within this time is never slow
ROUNDS_KEPT = 5  # whose times are remembered
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # s between two attempts at one round
CLOCK_RATIO, CLOCK_SLACK = 1.1, 0.25  # how far clocks, and the ends of an interval, may differ
# Reasons of a lost link for which the reader waited until the end of the exchange.
WITHHELD = ("deadline", "refused: patience")
PUT_ASIDE = "put_aside"  # key of a warning


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


class Suspensions:
    """Counts misses, and says so in the history, the log and a warning."""

    def __init__(self, context: LeaderContext) -> None:
        self._context = context

    def missed(self, member: Member, why: str) -> None:
        """Count a miss; from the second one on, the member is put aside for some rounds."""
        rounds = self._context.conductor.missed(member)
        if rounds:
            self._context.history.note(events.Suspended(member.worker, rounds, why))
            LOG.warning("%s is put aside for %d rounds: %s", member.name, rounds, why)
            times = "once" if member.misses == 2 else f"{member.misses - 1} times"
            self._context.warnings.set(
                PUT_ASIDE,
                members=(member.name,),
                value=member.misses,
                text=f"{member.name} was put aside {times}, last for {rounds} rounds: {why}",
            )

    def was_punctual(self, member: Member) -> None:
        """It did its part in time; after many such rounds a miss is forgiven."""
        member.was_punctual()
        if member.misses < 2:
            self._context.warnings.end(PUT_ASIDE, members=(member.name,))

    def end_warning(self, member: Member) -> None:
        """Nothing is unusual about this member any more."""
        self._context.warnings.end(PUT_ASIDE, members=(member.name,))
