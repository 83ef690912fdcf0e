"""The coordinator's orders to a worker, made from plans and turns (wire.proto); who got which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedhp.cluster.coordinator.attempts.group_checks import PartSizes
from fedhp.cluster.coordinator.conductor import Member
from fedhp.cluster.coordinator.planning.link_estimates import SURVEY_SECONDS, LinkSurvey
from fedhp.cluster.coordinator.planning.round_planner import NetworkRound
from fedhp.cluster.coordinator.planning.turn_planner import TurnOrder
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.guard import TicketPurpose, make_ticket
from fedhp.exchange.base import GroupPart, Part


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """Whether models are tested after a round, and on the whole test set too."""

    evaluate: bool
    whole_test: bool


class PeerAddresses:
    """How a worker reaches the peers of its order, and the tickets that it has to show them."""

    def __init__(self, run: str, keys: Mapping[str, bytes]) -> None:
        self._run = run
        self._keys = keys  # by name of the member

    def address(
        self,
        peer: Member,
        caller: Member,
        purpose: TicketPurpose,
        *,
        attempt: Attempt,
        version: Attempt = INITIAL,
        serial: int = 0,
    ) -> wire.PeerAddress:
        """The address of a peer, for one caller and purpose."""
        address = peer_address(peer)
        key = self._keys.get(peer.name)
        if key is not None:
            address.ticket = make_ticket(
                key,
                run=self._run,
                caller=caller.name,
                purpose=purpose,
                attempt=attempt,
                version=version,
                serial=serial,
            )
        return address


class GivenWork:
    """The orders of the running attempt, or the turns that are under way, by worker."""

    def __init__(self, run: str) -> None:
        self.keys: dict[str, bytes] = {}  # with which members check tickets, by name
        self.addresses = PeerAddresses(run, self.keys)
        self.orders: dict[int, wire.Work] = {}
        self.turns: dict[int, TurnOrder] = {}
        self.peers: dict[int, frozenset[int]] = {}  # whose links a report may mention
        # When, and for how many steps; the first copy of an order counts.
        self.given: dict[int, tuple[float, int]] = {}

    def begin(self, orders: Mapping[int, wire.Work]) -> None:
        """An attempt begins with these orders; nobody has got one yet."""
        self.given.clear()
        self.orders = dict(orders)
        self.peers = {
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
        self.peers[worker] = frozenset(() if partner is None else (partner,))

    def take(self, worker: int) -> tuple[float, int]:
        """When a worker got its turn, and for how many steps; the turn is over."""
        del self.turns[worker]
        return self.given.pop(worker, (float("-inf"), 0))

    def withdraw(self, worker: int) -> None:
        """The worker is out: it does not get what it has not got yet."""
        self.orders.pop(worker, None)
        self.turns.pop(worker, None)

    def restarted(self, worker: int) -> None:
        """Another process of the worker joined, which knows nothing of its turn."""
        self.turns.pop(worker, None)
        self.given.pop(worker, None)

    def believable_step_time(self, member: Member, claimed: float, *, now: float) -> float:
        """What a member says of its steps counts before its first report, and after a report that
        was not counted; then it cannot have been slower than the time since its order."""
        if not np.isfinite(member.step_time):
            return claimed
        if not member.misses or member.worker not in self.given:
            return 0.0
        given, steps = self.given[member.worker]
        return min(claimed, (now - given) / max(steps, 1))


def work_orders(
    planned: NetworkRound,
    attempt: Attempt,
    members: Mapping[int, Member],
    *,
    addresses: PeerAddresses,
    evaluation: EvaluationPlan,
    probes: Iterable[tuple[int, int]],
    deadline: float,
    parts: Mapping[int, PartSizes] | None = None,
) -> dict[int, wire.Work]:
    """The orders of all participants, by worker. parts: how large those of the group average can
    be in which a worker takes part."""
    plan = planned.plan
    participants = np.flatnonzero(planned.observation.available).tolist()
    shares = plan.exchange.parts(len(planned.observation.available))
    # Whose models each pulls, ascending.
    sources = {
        worker: sorted(
            {source for part in (shares[worker], *shares[worker].then) for source in part.sources}
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
    addresses_of_readers = {worker: peer_address(members[worker]) for worker in participants}
    orders = {}
    for worker in participants:
        caller, share = members[worker], shares[worker]
        work = wire.Work(
            round=attempt.round_index,
            attempt=attempt.number,
            local_steps=int(planned.local_steps[worker]),
            learning_rate=planned.observation.learning_rate,
            estimate=plan.estimate is not None and bool(plan.estimate[worker]),
            evaluate=evaluation.evaluate,
            whole_test=evaluation.whole_test,
            peers=[
                addresses.address(members[peer], caller, TicketPurpose.TRAINED, attempt=attempt)
                for peer in sources[worker]
            ],
            readers=[addresses_of_readers[reader] for reader in readers[worker]],
            probes=[
                addresses.address(members[peer], caller, TicketPurpose.PROBE, attempt=attempt)
                for peer in probed.get(worker, ())
            ],
            deadline=deadline,
            exchange_deadline=0.9 * deadline,
            own_weight=share.own_weight,
            weights=() if exchanges else share.weights,
            push_sum=share.push_sum,
        )
        if exchanges:
            work.exchanges.extend(exchanges[worker])
        if share.group is not None:
            work.group.CopyFrom(
                _group_work(
                    planned, share.group, caller, members, addresses=addresses, attempt=attempt
                )
            )
            sizes = (parts or {}).get(worker) or PartSizes.unknown(share.group.group)
            work.group.largest_sums.extend(sizes.sums[peer.worker] for peer in work.group.children)
            work.group.largest_mean = sizes.mean
        if share.score is not None:
            work.keep = min(share.score.keep, len(work.peers))
            work.samples = share.score.samples
        orders[worker] = work
    return orders


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


def _group_work(
    planned: NetworkRound,
    part: GroupPart,
    worker: Member,
    members: Mapping[int, Member],
    *,
    addresses: PeerAddresses,
    attempt: Attempt,
) -> wire.GroupWork:
    """A worker's part in a round with a group average."""
    assert planned.plan.deadline is not None
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
        work.parent.CopyFrom(
            addresses.address(members[part.parent], worker, TicketPurpose.AVERAGE, attempt=attempt)
        )
    return work


def turn_order(
    turn: TurnOrder,
    attempt: Attempt,
    members: Mapping[int, Member],
    *,
    addresses: PeerAddresses,
    evaluation: EvaluationPlan,
    deadline: float,
) -> wire.Act:
    """The order for one turn of an asynchronous algorithm."""
    order = wire.Act(
        round=turn.round_index,
        turn=turn.number,
        local_steps=turn.action.local_steps,
        learning_rate=turn.learning_rate,
        evaluate=evaluation.evaluate,
        whole_test=evaluation.whole_test,
        deadline=deadline,
    )
    if turn.action.partner is not None:
        partner, caller = members[turn.action.partner], members[turn.worker]
        order.partner.CopyFrom(
            addresses.address(
                partner, caller, TicketPurpose.SWAP, attempt=attempt, serial=turn.number
            )
        )
    return order


def survey_order(
    survey: LinkSurvey,
    worker: int,
    members: Mapping[int, Member],
    *,
    addresses: PeerAddresses,
    attempt: Attempt,
) -> wire.Survey:
    """The links that a worker is to time before the first plan."""
    peers = [
        addresses.address(members[peer], members[worker], TicketPurpose.PROBE, attempt=attempt)
        for peer in survey.wanted(worker)
    ]
    return wire.Survey(peers=peers, deadline=SURVEY_SECONDS)


def peer_address(member: Member) -> wire.PeerAddress:
    """How to reach a member."""
    return wire.PeerAddress(worker=member.worker, name=member.name, address=member.address)
