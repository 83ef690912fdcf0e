"""What the workers were ordered to do, when, and which peers their orders named."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from fedhp.cluster.coordinator.attempts.deadlines import limit_times
from fedhp.cluster.coordinator.attempts.orders import PeerAddresses
from fedhp.cluster.coordinator.conductor import Member
from fedhp.cluster.coordinator.planning.turn_planner import TurnOrder
from fedhp.cluster.protocol import wire_pb2 as wire

LOG = logging.getLogger("fedhp.coordinator")


class GivenWork:
    """The orders of the running attempt, or the turns that are under way, by worker."""

    def __init__(self, run: str) -> None:
        self.keys: dict[str, bytes] = {}  # with which members check tickets, by name
        self.addresses = PeerAddresses(run, self.keys)
        self.orders: dict[int, wire.Work] = {}
        self.turns: dict[int, TurnOrder] = {}
        self._peers: dict[int, frozenset[int]] = {}  # whose links a report may mention
        self._given: dict[int, tuple[float, int]] = {}  # when, and how many steps

    def begin(self, orders: Mapping[int, wire.Work]) -> None:
        """An attempt begins with these orders; nobody has got one yet."""
        self._given.clear()
        self.orders = dict(orders)
        self._peers = {
            worker: frozenset(
                peer.worker
                for peer in (*work.peers, *work.probes, *work.group.children, work.group.parent)
                if peer.name
            )
            for worker, work in orders.items()
        }

    def begin_turn(self, worker: int, turn: TurnOrder) -> None:
        """A worker gets this turn, for the first time or again."""
        partner = turn.action.partner
        self.turns[worker] = turn
        self._peers[worker] = frozenset(() if partner is None else (partner,))

    def end(self) -> None:
        """The attempt is over."""
        self.orders = {}

    def peers_of(self, worker: int) -> frozenset[int]:
        """Whose links a report of this worker may mention."""
        return self._peers.get(worker, frozenset())

    def give(self, worker: int, *, steps: int, now: float) -> None:
        """A worker gets an order for so many local steps; the first copy of it counts."""
        self._given.setdefault(worker, (now, steps))

    def take(self, worker: int) -> tuple[float, int]:
        """When a worker got its turn, and for how many steps; the turn is over."""
        del self.turns[worker]
        return self._given.pop(worker, (float("-inf"), 0))

    def withdraw(self, worker: int) -> None:
        """The worker is out: it does not get what it has not got yet."""
        self.orders.pop(worker, None)
        self.turns.pop(worker, None)

    def restarted(self, worker: int) -> None:
        """Another process of the worker joined, which knows nothing of its turn."""
        self.turns.pop(worker, None)
        self._given.pop(worker, None)

    def readers(self) -> dict[int, list[int]]:
        """Who was to pull from each worker, in the running attempt."""
        return {
            worker: [reader.worker for reader in work.readers]
            for worker, work in self.orders.items()
        }

    def believable_step_time(self, member: Member, claimed: float, *, now: float) -> float:
        """What a member says of its steps counts before its first report, and after a report that
        was not counted; then it cannot have been slower than the time since its order."""
        if not np.isfinite(member.step_time):
            return claimed
        if not member.misses or member.worker not in self._given:
            return 0.0
        given, steps = self._given[member.worker]
        return min(claimed, (now - given) / max(steps, 1))

    def limit_times(self, member: Member, report: wire.RoundReport, *, now: float) -> None:
        """Lower times in a report that are longer than the time since the order."""
        if member.worker not in self._given:
            return
        given, steps = self._given[member.worker]
        if limit_times(report, elapsed=now - given, steps=steps):
            LOG.info("%s reported longer times than have passed; they are lowered", member.name)
