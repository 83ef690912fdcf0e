"""What the coordinator tells a worker to do: plans and turns as orders of wire.proto."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fedhp.cluster.coordinator.conductor import Member
from fedhp.cluster.coordinator.planning import Planned, sources_of
from fedhp.cluster.coordinator.survey import SECONDS as SURVEY_SECONDS
from fedhp.cluster.coordinator.survey import Survey
from fedhp.cluster.coordinator.turns import TurnOrder
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.graph import directed_weights, mixing_weights
from fedhp.types import NeighborMixing, PeerScoring


@dataclass(frozen=True, slots=True)
class Tests:
    """Whether models are tested after this round, and on the whole test set too."""

    some: bool
    whole: bool


def works(
    planned: Planned,
    attempt: Attempt,
    members: Mapping[int, Member],
    *,
    tests: Tests,
    probes: Iterable[tuple[int, int]],
    deadline: float,
) -> dict[int, wire.Work]:
    """The orders of all participants."""
    plan, exchange = planned.plan, planned.plan.exchange
    there = np.flatnonzero(planned.observation.available).tolist()
    sources = {worker: sources_of(plan, worker) for worker in there}
    weights = None
    if isinstance(exchange, NeighborMixing):
        weights = mixing_weights(exchange.topology, exchange.weights)
    elif not isinstance(exchange, PeerScoring):
        weights = directed_weights(exchange.sources)
    probing = [*probes, *((b, a) for a, b in probes)]
    found = {}
    for worker in there:
        work = wire.Work(
            round=attempt.round_index,
            attempt=attempt.number,
            local_steps=int(planned.local_steps[worker]),
            learning_rate=planned.observation.learning_rate,
            estimate=plan.estimate is not None and bool(plan.estimate[worker]),
            evaluate=tests.some,
            whole_test=tests.whole,
            peers=[address(members[each]) for each in sources[worker]],
            readers=[address(members[each]) for each in there if worker in sources[each]],
            probes=[address(members[b]) for a, b in probing if a == worker],
            deadline=deadline,
            exchange_deadline=0.9 * deadline,
            own_weight=1.0,
        )
        if isinstance(exchange, PeerScoring):
            work.keep = min(exchange.keep, len(work.peers))
            work.samples = exchange.samples
        elif weights is not None:
            row = weights[[worker]]
            by_worker = dict(zip(row.indices.tolist(), row.data.tolist(), strict=True))
            work.own_weight = by_worker.get(worker, 0.0)
            work.weights.extend(by_worker[each] for each in sources[worker])
        found[worker] = work
    return found


def survey(going_on: Survey, worker: int, members: Mapping[int, Member]) -> wire.Survey:
    """The links that this worker is to time before the first plan."""
    peers = [address(members[each]) for each in going_on.wanted(worker)]
    return wire.Survey(peers=peers, deadline=SURVEY_SECONDS)


def act(
    turn: TurnOrder,
    members: Mapping[int, Member],
    *,
    round_index: int,
    tests: Tests,
    deadline: float,
) -> wire.Act:
    """The order of one turn."""
    order = wire.Act(
        round=round_index,
        turn=turn.number,
        local_steps=turn.action.local_steps,
        learning_rate=turn.learning_rate,
        evaluate=tests.some,
        whole_test=tests.whole,
        deadline=deadline,
    )
    if turn.action.partner is not None:
        order.partner.CopyFrom(address(members[turn.action.partner]))
    return order


def address(member: Member) -> wire.PeerAddress:
    """How to reach a member."""
    return wire.PeerAddress(worker=member.worker, name=member.name, address=member.address)
