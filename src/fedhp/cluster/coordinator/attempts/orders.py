"""The coordinator's orders to a worker, made from plans and turns (wire.proto)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fedhp.cluster.coordinator.attempts.group_checks import PartSizes
from fedhp.cluster.coordinator.conductor import Member
from fedhp.cluster.coordinator.planning.link_estimates import SURVEY_SECONDS, LinkSurvey
from fedhp.cluster.coordinator.planning.round_planner import NetworkRound
from fedhp.cluster.coordinator.planning.turn_planner import TurnOrder
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.tickets import TicketPurpose, make_ticket
from fedhp.exchange.base import GroupPart


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


def work_orders(
    planned: NetworkRound,
    attempt: Attempt,
    members: Mapping[int, Member],
    *,
    addresses: PeerAddresses,
    evaluation: EvaluationPlan,
    probes: Iterable[tuple[int, int]],
    deadline: float,
    parts: PartSizes | None = None,
) -> dict[int, wire.Work]:
    """The orders of all participants, by worker. parts: how large those of a group average can
    be."""
    plan = planned.plan
    participants = np.flatnonzero(planned.observation.available).tolist()
    shares = plan.exchange.parts(len(planned.observation.available))
    readers: dict[int, list[int]] = {worker: [] for worker in participants}
    for worker in participants:
        for source in shares[worker].sources:
            if source in readers:
                readers[source].append(worker)
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
                for peer in share.sources
            ],
            readers=[addresses_of_readers[reader] for reader in readers[worker]],
            probes=[
                addresses.address(members[peer], caller, TicketPurpose.PROBE, attempt=attempt)
                for peer in probed.get(worker, ())
            ],
            deadline=deadline,
            exchange_deadline=0.9 * deadline,
            own_weight=share.own_weight,
            weights=share.weights,
            push_sum=share.push_sum,
        )
        if share.group is not None:
            work.group.CopyFrom(
                _group_work(
                    planned, share.group, caller, members, addresses=addresses, attempt=attempt
                )
            )
            parts = parts or PartSizes.unknown(share.group.group)
            work.group.largest_sums.extend(parts.sums[peer.worker] for peer in work.group.children)
            work.group.largest_mean = parts.mean
        if share.score is not None:
            work.keep = min(share.score.keep, len(work.peers))
            work.samples = share.score.samples
        orders[worker] = work
    return orders


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
