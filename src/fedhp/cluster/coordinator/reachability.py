"""Which members are lost or silent, and which could not get a model from which peer.

Members say in their reports what they could not get. Each change is logged once, with the names;
what lasts is shown by `fedhp cluster status` and the metrics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from fedhp.cluster import events
from fedhp.cluster.coordinator.conductor import Conductor, Member, MemberStatus
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.limits import LogThrottle
from fedhp.cluster.protocol.message_checks import MAX_CAUSE, one_line
from fedhp.types import Pair

LOG = logging.getLogger("fedhp.coordinator")
RECENT_ROUNDS = 100  # without another try, until a broken link is no longer shown
# Why an exchange may fail although both ends can reach each other: nobody waits for the peer, the
# worker that says so was itself late, or the peer is at another attempt, not ready yet, or answered
# enough probes.
NOT_BROKEN = frozenset(
    {
        "gone",
        "late",
        *(f"refused: {word}" for word in ("attempt", "epoch", "stand", "starting", "probes")),
    }
)
QUARANTINED = "refused: quarantined"
SILENT = (MemberStatus.SUSPECT, MemberStatus.DEAD)
CALL_AGAIN_SECONDS = 1.0  # for a member whose call broke off: alive, it calls again
CLOSED = "its connection closed"
REPLACED = "its process ended without leaving; another one joined"


class Reachability:
    """What the members say about their links, and who is silent."""

    def __init__(
        self,
        conductor: Conductor[wire.RoundReport],
        note: Callable[[events.Event], None] = lambda event: None,
    ) -> None:
        self._conductor, self._note = conductor, note
        # By worker and peer, where the model of the peer did not come at the last try: since which
        # round, and in which one last. And when that was.
        self.failures: dict[tuple[int, int], wire.BrokenLink] = {}
        self._failed_at: dict[tuple[int, int], float] = {}
        self._silent: dict[int, MemberStatus] = {}
        self._closed: dict[int, float] = {}  # by worker: when its call broke off
        self._lost: set[int] = set()  # those of whom this was noted
        self._throttle = LogThrottle()

    def __len__(self) -> int:
        return len(self.failures)

    def broken(self, *, round_index: int) -> list[wire.BrokenLink]:
        """The links that are broken, as far as they were tried lately; by worker and peer."""
        old = [
            ends for ends, link in self.failures.items() if link.last < round_index - RECENT_ROUNDS
        ]
        for ends in old:
            del self.failures[ends]
        return [self.failures[ends] for ends in sorted(self.failures)]

    def refused(self, *, round_index: int, now: float) -> frozenset[Pair]:
        """Links that no plan should use: one end has the other in quarantine."""
        return frozenset(
            (min(link.worker, link.peer), max(link.worker, link.peer))
            for link in self.broken(round_index=round_index)
            if link.why == QUARANTINED
            and now - self._failed_at[link.worker, link.peer] < limits.PEER_QUARANTINE_SECONDS
        )

    def tried(
        self, member: Member, links: Iterable[wire.LinkReport], round_index: int, *, now: float
    ) -> None:
        """A member says which of its links worked in this round."""
        for link in links:
            if link.lost:
                # A probe has little time, and is made while the others train.
                if link.lost in NOT_BROKEN or (link.probe and link.lost == "deadline"):
                    continue
                self._failed(member, link, round_index, now)
            elif failure := self.failures.pop((member.worker, link.worker), None):
                times = "once" if failure.failures == 1 else f"{failure.failures} times"
                self._log(
                    logging.INFO,
                    f"link works again: {member.name} got a model from {self._name(failure.peer)} "
                    f"in round {round_index}; it failed {times} since round {failure.since}",
                    kind=("works", str(failure.peer)),
                )

    def forget(self, worker: int) -> None:
        """A member joined, perhaps with another address, or left: its links start over."""
        self._silent.pop(worker, None)
        self._closed.pop(worker, None)
        self._lost.discard(worker)
        for ends in [ends for ends in self.failures if worker in ends]:
            del self.failures[ends]

    def closed(self, member: Member, now: float) -> None:
        """A call of a member broke off while it waited: the member or its connection is gone."""
        self._closed[member.worker] = now

    def replaced(self, member: Member) -> None:
        """Another process of a member joined, though the one before had not left."""
        if member.worker not in self._lost and self._silent.get(member.worker) != MemberStatus.DEAD:
            self._lose(member, REPLACED)

    def _lose(self, member: Member, why: str) -> None:
        self._lost.add(member.worker)
        self._note(events.Lost(member.worker, why))
        LOG.warning("%s at %s is lost: %s", member.name, member.address, why)

    def watch(self, now: float) -> None:
        """Log and note who is lost, who has become silent, and who sends heartbeats again."""
        conductor = self._conductor
        for worker, closed in list(self._closed.items()):
            member = conductor.members[worker]
            if member.left or member.seen > closed:
                del self._closed[worker]
                if worker in self._lost:
                    self._lost.discard(worker)
                    if not member.left and worker not in self._silent:
                        self._note(events.Heard(worker))
            elif worker not in self._lost and now - closed > CALL_AGAIN_SECONDS:
                self._lose(member, CLOSED)
        suspect_after = conductor.settings.suspect_after
        for worker, member in conductor.members.items():
            silent = now - member.seen
            if silent <= suspect_after and worker not in self._silent:
                continue
            status, before = conductor.status(member, now), self._silent.get(worker)
            if status in SILENT and status is not before:
                self._silent[worker] = status
                dead = status is MemberStatus.DEAD
                self._note((events.Dead if dead else events.Suspect)(worker, silent))
                LOG.warning(
                    "no heartbeat of %s at %s for %.0f s: it is %s and %s",
                    *(member.name, member.address, silent, status),
                    "must join again" if dead else "nobody waits for it",
                )
            elif before is not None and status not in SILENT:
                del self._silent[worker]
                if not member.left:
                    self._note(events.Heard(worker))
                    LOG.info("%s sends heartbeats again", member.name)

    def _failed(self, member: Member, link: wire.LinkReport, round_index: int, now: float) -> None:
        ends, why = (member.worker, link.worker), one_line(link.lost, most=MAX_CAUSE)
        self._failed_at[ends] = now
        if ends in self.failures:
            failure = self.failures[ends]
            failure.why, failure.last = why, round_index
            failure.failures += 1
            return
        self.failures[ends] = wire.BrokenLink(
            worker=ends[0], peer=ends[1], why=why, since=round_index, last=round_index, failures=1
        )
        peer = self._conductor.members.get(link.worker)
        self._log(
            logging.WARNING,
            f"broken link: {member.name} gets no model from {self._name(link.worker)}"
            f"{f' at {peer.address}' if peer is not None and peer.address else ''}: {why}, "
            f"in round {round_index}",
            kind=("broken", str(link.worker)),
        )

    def _name(self, worker: int) -> str:
        member = self._conductor.members.get(worker)
        return f"worker {worker}" if member is None else member.name

    def _log(self, level: int, text: str, *, kind: tuple[str, str]) -> None:
        """Many links of one worker may break at once, or again and again: then only count."""
        write, left_out = self._throttle.admit(*kind)
        if write:
            more = f" ({left_out} more like it before)" if left_out else ""
            LOG.log(level, "%s%s", text, more)
