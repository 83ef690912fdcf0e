"""Before the first plan: how fast the links are, found by timing a few of everyone's.

Nothing is known of a network on which no model has travelled yet, and a plan made from nothing
lets everybody wait for the slowest link once. Probing is short, and never fails a run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from fedhp.cluster.protocol import wire_pb2 as wire

PEERS = 8  # whose links one worker times at most
SECONDS = 10.0  # until the first plan is made with what is known


class Survey:
    """Who times which links, and what they found."""

    def __init__(self, participants: Sequence[int]) -> None:
        there = sorted(participants)
        count = min(PEERS, len(there) - 1)
        self.peers = {
            worker: tuple(there[(place + step) % len(there)] for step in range(1, count + 1))
            for place, worker in enumerate(there)
        }
        self.found: dict[int, list[wire.LinkReport]] = {}

    def wanted(self, worker: int) -> tuple[int, ...]:
        """The links that a worker is still to time."""
        return () if worker in self.found else self.peers.get(worker, ())

    def tell(self, worker: int, links: Iterable[wire.LinkReport]) -> None:
        """What a worker found; of links that it was not asked for nothing is taken."""
        asked = self.wanted(worker)
        mine = [link for link in links if link.worker in asked]
        if mine:
            self.found[worker] = mine

    def over(self, alive: Collection[int]) -> bool:
        """Whether all have told that still can."""
        return not any(self.wanted(worker) for worker in alive)
