"""The coordinator's orders to a worker, made from plans and turns (wire.proto); who got which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedhp.cluster.coordinator.attempts.group_checks import PartSizes
from fedhp.cluster.coordinator.conductor import Conductor, Member
from fedhp.cluster.coordinator.planning.round_planner import NetworkRound
from fedhp.cluster.coordinator.planning.turn_planner import TurnOrder
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.guard import TicketPurpose, make_ticket
from fedhp.exchange.base import GroupPart, Part


class GivenWork:
    """The orders of the running attempt, or the turns that are under way, by worker."""

    def __init__(self, run: str, conductor: Conductor[wire.RoundReport]) -> None:
        self._run, self._conductor = run, conductor
        self.keys: dict[str, bytes] = {}  # with which members check tickets, by name
        self.orders: dict[int, wire.Work] = {}
        self.turns: dict[int, TurnOrder] = {}
        self.peers: dict[int, frozenset[int]] = {}  # whose links a report may mention
        # When, and for how many steps; the first copy of an order counts.
        self.given: dict[int, tuple[float, int]] = {}

    def addresses(
        self,
        peers: Iterable[int],
        caller: int,
        purpose: TicketPurpose,
        *,
        attempt: Attempt,
        version: Attempt = INITIAL,
        serial: int = 0,
    ) -> list[wire.PeerAddress]:
        """How a worker reaches peers, with the tickets that it has to show them."""
        members, found = self._conductor.members, []
        for peer in peers:
            address = peer_address(members[peer])
            key = self.keys.get(address.name)
            if key is not None:
                address.ticket = make_ticket(
                    key,
                    run=self._run,
                    caller=members[caller].name,
                    purpose=purpose,
                    attempt=attempt,
                    version=version,
                    serial=serial,
                )
            found.append(address)
        return found

    def begin(
        self,
        planned: NetworkRound,
        attempt: Attempt,
        *,
        evaluation: Mapping[str, bool],
        probes: Iterable[tuple[int, int]],
        deadline: float,
        sizes: Mapping[int, PartSizes],
    ) -> None:
        """An attempt begins; nobody has got an order yet. evaluation: whether models are tested;
        sizes: how large the parts of the group average can be in which a worker takes part."""
        plan = planned.plan
        participants = np.flatnonzero(planned.observation.available).tolist()
        shares = plan.exchange.parts(len(planned.observation.available))
        # Whose models each pulls, ascending.
        sources = {
            worker: sorted(
                {s for part in (shares[worker], *shares[worker].then) for s in part.sources}
            )
            for worker in participants
        }
        readers: dict[int, list[int]] = {worker: [] for worker in participants}
        for worker in participants:
            for source in sources[worker]:
                if source in readers:
                    readers[source].append(worker)
        exchanges = _exchanges(shares) if any(share.then for share in shares) else []
        probed: dict[int, list[int]] = {}
        for a, b in probes:
            probed.setdefault(a, []).append(b)
            probed.setdefault(b, []).append(a)
        members = self._conductor.members
        plain = {worker: peer_address(members[worker]) for worker in participants}
        self.given.clear()
        self.orders, self.peers = {}, {}
        for worker in participants:
            share = shares[worker]
            work = self.orders[worker] = wire.Work(
                round=attempt.round_index,
                attempt=attempt.number,
                local_steps=int(planned.local_steps[worker]),
                learning_rate=planned.observation.learning_rate,
                estimate=plan.estimate is not None and bool(plan.estimate[worker]),
                evaluate=evaluation["evaluate"],
                whole_test=evaluation["whole_test"],
                peers=self.addresses(
                    sources[worker], worker, TicketPurpose.TRAINED, attempt=attempt
                ),
                readers=[plain[reader] for reader in readers[worker]],
                probes=self.addresses(
                    probed.get(worker, ()), worker, TicketPurpose.PROBE, attempt=attempt
                ),
                deadline=deadline,
                exchange_deadline=0.9 * deadline,
                own_weight=share.own_weight,
                weights=() if exchanges else share.weights,
                push_sum=share.push_sum,
            )
            if exchanges:
                work.exchanges.extend(exchanges[worker])
            if share.group is not None:
                group = self._group_work(planned, share.group, worker, attempt)
                if size := sizes.get(worker):
                    group.largest_sums.extend(size.sums[child] for child in share.group.children)
                    group.largest_mean = size.mean
                work.group.CopyFrom(group)
            if share.score is not None:
                work.keep = min(share.score.keep, len(work.peers))
                work.samples = share.score.samples
            named = (*work.peers, *work.probes, *work.group.children, work.group.parent)
            self.peers[worker] = frozenset(peer.worker for peer in named if peer.name)

    def _group_work(
        self, planned: NetworkRound, part: GroupPart, worker: int, attempt: Attempt
    ) -> wire.GroupWork:
        """A worker's part in a round with a group average."""
        assert planned.plan.deadline is not None
        members = self._conductor.members
        work = wire.GroupWork(
            fragment=part.group.fragment,
            fragments=part.group.fragments,
            momentum=part.group.momentum,
            compression=part.group.compression,
            rate=part.group.rate,
            transfer_time=planned.transfer_time,
            train_time=planned.plan.deadline,
            overlap=planned.plan.overlap,
            members=part.members,
            returning=part.returning,
            children=[peer_address(members[child]) for child in part.children],
            returning_children=part.returning_children,
        )
        if part.parent >= 0:
            (parent,) = self.addresses(
                [part.parent], worker, TicketPurpose.AVERAGE, attempt=attempt
            )
            work.parent.CopyFrom(parent)
        return work

    def withdraw(self, worker: int) -> None:
        """The worker is out: it does not get what it has not got yet."""
        self.orders.pop(worker, None)
        self.turns.pop(worker, None)

    def restarted(self, worker: int) -> None:
        """Another process of the worker joined, which knows nothing of its turn."""
        self.turns.pop(worker, None)
        self.given.pop(worker, None)


def _exchanges(shares: Sequence[Part]) -> list[list[wire.MixWork]]:
    """Each worker's part in each exchange of a round; what it does again at once is there once."""
    works: list[list[wire.MixWork]] = [[] for _ in shares]
    for parts in zip(*((share, *share.then) for share in shares), strict=True):
        readers: list[list[int]] = [[] for _ in shares]
        for worker, part in enumerate(parts):
            for source in part.sources:
                readers[source].append(worker)
        for worker, part in enumerate(parts):
            mix = wire.MixWork(
                peers=part.sources,
                weights=part.weights,
                own_weight=part.own_weight,
                readers=readers[worker],
            )
            if works[worker]:
                mix.times = works[worker][-1].times
            if works[worker][-1:] != [mix]:
                mix.times = 0
                works[worker].append(mix)
            works[worker][-1].times += 1
    return works


def peer_address(member: Member) -> wire.PeerAddress:
    """How to reach a member."""
    return wire.PeerAddress(worker=member.worker, name=member.name, address=member.address)
