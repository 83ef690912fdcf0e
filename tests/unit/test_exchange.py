"""What every form of exchange answers about itself: facts, parts, times and limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from fedhp import DisjointGroups, ExchangeSequence, GroupAverage, WeightedMixing
from fedhp.exchange import DirectedMixing, NeighborMixing, PeerScoring
from fedhp.exchange.base import (
    Cost,
    Exchange,
    Exchanged,
    Executor,
    Moment,
    Part,
    Unusable,
    check_links,
    is_number,
    is_whole,
)
from fedhp.exchange.facts import from_facts, participants_in, rule_in
from fedhp.exchange.mailbox import INT8_SIZE, Mail, Meeting, Shared, stored_mail
from fedhp.graph import topology_from
from fedhp.rule import Rows, Rule, Step, Vectors
from fedhp.timing import INT8_BLOCK, Network
from fedhp.types import BoolArray, Decision, FloatArray, IntArray, Plan
from fedhp.world import World

N = 4
NETWORK = Network(np.array([1e6, 2e6, 4e6, 8e6]), 32e6, latency=0.25)
NOTHING = np.empty((0, 2), dtype=np.int64)
PLAN = Plan(
    NeighborMixing(topology_from(N, [[0, 1]])),
    Decision(NOTHING, np.empty(0, dtype=np.int64), np.empty(0), "own"),
    local_steps=np.ones(N, dtype=np.int64),
)


def tree(members: list[int], parents: list[int], **changes: Any) -> GroupAverage:
    returning = np.zeros(len(members), dtype=np.bool_)
    return GroupAverage(np.array(members), np.array(parents), returning, **changes)


CHAIN = tree([0, 1, 3], [1, -1, 0], compression="none")


class Least(Exchange):
    """A form that answers only what it must."""

    __slots__ = ()

    @property
    def links(self) -> IntArray:
        return NOTHING

    def check(self, plan: Plan, workers: int) -> None: ...
    def check_present(self, here: BoolArray) -> None: ...

    def carry_out(self, executor: Executor, *, round_index: int) -> Exchanged:
        raise NotImplementedError

    def parts(self, workers: int) -> list[Part]:
        raise NotImplementedError

    def cost(self, exchanged: Exchanged, at: Moment) -> Cost:
        raise NotImplementedError


def test_a_form_that_says_nothing_changes_and_costs_nothing() -> None:
    least, here = Least(), np.ones(N, dtype=np.bool_)
    assert (least.name, least.directed, least.required) == ("Least", False, ())
    least.check_network()
    assert least.with_min_peers(here, NETWORK, least=3, round_index=1) is least
    assert least.without_links([(0, 1)]) is least
    assert least.connected(here, NETWORK, avoid=()) is least
    assert least.without_group(PLAN) is PLAN
    assert least.selected({0: [1]}, N).shape == (N, 0)
    assert least.extra_steps(N).tolist() == [0.0] * N
    assert least.communication_time(NETWORK, N).tolist() == [0.0] * N
    assert least.lead_time(NETWORK) is None
    assert least.lead_time_in(world_of(NETWORK), clock=0.0, event=1) is None
    assert least.to_facts() == {}


@pytest.mark.parametrize("push_sum", [False, True])
def test_weights_are_read_from_the_history_as_they_were(push_sum: bool) -> None:
    mixing = WeightedMixing(
        np.array([[0, 1], [2, 0], [3, 2]]),
        np.array([0.25, 0.5, 0.125]),
        np.array([0.75, 1.0, 0.5, 0.875]),
        push_sum=push_sum,
    )
    again = from_facts(mixing.to_facts())
    assert isinstance(again, WeightedMixing)
    assert again.push_sum is push_sum
    for name in ("links", "weights", "own_weights"):
        assert getattr(again, name).tolist() == getattr(mixing, name).tolist()
    alone = WeightedMixing(NOTHING, np.empty(0), np.ones(N))
    assert from_facts(alone.to_facts()).links.shape == (0, 2)  # type: ignore[union-attr]
    assert participants_in(mixing.to_facts()) is None


def test_a_tree_is_read_from_the_history_as_it_was() -> None:
    returning = np.array([False, False, True])
    group = replace(CHAIN, returning=returning, fragment=2, fragments=3, momentum=0.25)
    again = from_facts(group.to_facts())
    assert isinstance(again, GroupAverage)
    assert again.to_facts() == group.to_facts()
    assert again.returning.tolist() == returning.tolist()
    assert (again.fragment, again.fragments, again.momentum) == (2, 3, 0.25)
    assert again.compression == "none"
    assert participants_in(group.to_facts()) == frozenset({0, 1, 3})


def test_facts_of_a_rule_hold_no_exchange() -> None:
    assert from_facts({"rule": "max_degree"}) is None
    assert rule_in({"rule": "max_degree"}) == "max_degree"
    assert rule_in({}) == ""


def test_who_is_not_in_the_group_has_no_part_in_it() -> None:
    parts = [part.group for part in CHAIN.parts(N)]
    assert [part.members for part in parts if part] == [3, 3, 0, 3]
    assert [part.parent for part in parts if part] == [1, -1, -1, 0]
    assert [part.children for part in parts if part] == [(3,), (0,), (), ()]


def test_defaults_of_a_group_average() -> None:
    group = tree([0, 1], [-1, 0])
    assert (group.fragment, group.fragments, group.momentum, group.rate) == (0, 1, 0.7, 1.0)
    assert group.compression == "int8"
    assert group.root == 0
    assert tree([], []).root == -1


class Links:
    """A simulated network that may follow a trace: every transfer takes twice as long then."""

    workers = N

    def __init__(self, network: Network, *, follows_trace: bool = False) -> None:
        self.latency, self.follows_trace = network.latency, follows_trace
        self.jitter = self.server = None
        self._network = network

    def network(self, time: float) -> Network:
        return self._network

    def transfer_time(
        self,
        bits: float | FloatArray,
        rate: Callable[[Network], FloatArray],
        *,
        starts: FloatArray,
    ) -> FloatArray:
        return np.asarray(2 * bits / rate(self._network)) + 0 * starts

    def link_time(self, *_arguments: Any, **_options: Any) -> FloatArray:
        raise NotImplementedError


def world_of(network: Network, *, follows_trace: bool = False) -> World:
    return cast(World, Links(network, follows_trace=follows_trace))


def test_a_tree_takes_its_slowest_link_the_pieces_in_flight_and_the_latencies() -> None:
    """Depth 2: 32 s for the 32 Mbit at 1 Mbit/s, four more pieces of 128, four latencies."""
    streaming = 32.0 * (1 + 4 / 128)
    assert CHAIN.depth == 2
    assert CHAIN.streaming_time(NETWORK) == pytest.approx(streaming)
    assert CHAIN.lead_time(NETWORK) == pytest.approx(streaming + 4 * 0.25)
    still, moving = world_of(NETWORK), world_of(NETWORK, follows_trace=True)
    assert CHAIN.lead_time_in(still, clock=0.0, event=1) == pytest.approx(streaming + 1)
    assert CHAIN.lead_time_in(moving, clock=0.0, event=1) == pytest.approx(2 * streaming + 1)


@pytest.mark.parametrize("members", [[], [2]])
@pytest.mark.parametrize("follows_trace", [False, True])
def test_without_two_participants_nothing_travels(members: list[int], follows_trace: bool) -> None:
    group, world = (
        tree(members, [-1] * len(members)),
        world_of(NETWORK, follows_trace=follows_trace),
    )
    assert group.lead_time_in(world, clock=0.0, event=1) == 0.0
    assert group.lead_time(NETWORK) == 0.0
    assert group.links.shape == (0, 2)


def test_two_participants_do_transfer() -> None:
    pair, world = tree([0, 1], [-1, 0], compression="none"), world_of(NETWORK, follows_trace=True)
    seconds = 32 * (1 + 2 / 128)
    assert pair.lead_time(NETWORK) == pytest.approx(seconds + 0.5)
    assert pair.lead_time_in(world, clock=0.0, event=1) == pytest.approx(2 * seconds + 0.5)


@pytest.mark.parametrize(("compression", "share"), [("none", 1.0), ("int8", 1 / 4 + 1 / 256)])
def test_bits_and_bytes_of_a_fragment(compression: str, share: float) -> None:
    """Of 1000 values the third part of three has 334: up and down, and a scale per block."""
    group = tree([0, 1], [-1, 0], compression=compression, fragment=2, fragments=3)
    assert INT8_BLOCK == 256
    assert group.message_bits(32_000.0) == pytest.approx(32_000 / 3 * share)
    message = 4 * 334 if compression == "none" else 334 + 4 * 2
    assert group.link_bytes(32_000.0).tolist() == [2 * message]


def test_several_groups_take_as_long_as_the_slowest() -> None:
    slow, fast = tree([0, 1], [-1, 0]), tree([2, 3], [-1, 2])
    for groups in ((slow, fast), (fast, slow)):
        both = DisjointGroups(groups)
        assert both.lead_time(NETWORK) == slow.transfer_time(NETWORK)
        world = world_of(NETWORK)
        assert both.lead_time_in(world, clock=0.0, event=1) == slow.transfer_time(NETWORK)
        assert both.required == [0, 1, 2, 3]
        assert both.links.tolist() == [[0, 1], [2, 3]]
    assert fast.transfer_time(NETWORK) < slow.transfer_time(NETWORK)


def test_a_sequence_of_one_is_that_one() -> None:
    scoring = PeerScoring(np.array([[1], [2], [3], [0]]), 1, 8, 0.5)
    one = ExchangeSequence((scoring,))
    assert one.parts(N) == scoring.parts(N)
    kept = {0: [1], 2: [3]}
    assert one.selected(kept, N).tolist() == scoring.selected(kept, N).tolist()
    assert one.selected(kept, N).tolist() == [[1], [-1], [3], [-1]]
    one.check_network()
    with pytest.raises(Unusable, match="has 2 exchanges"):
        ExchangeSequence((scoring, scoring)).check_network()


def test_a_rule_that_receives_has_one_mixing_in_a_round() -> None:
    class Kept(Rule):
        def receive(self, x0: Rows, x: Rows, v: Vectors, mixed: Rows, step: Step) -> Rows:
            return x

    ring = DirectedMixing(np.array([[1], [2], [3], [0]]))
    ExchangeSequence((ring,)).check_rule(Kept())
    with pytest.raises(Unusable, match="mixes 2 times"):
        ExchangeSequence((ring, ring)).check_rule(Kept())


def test_scoring_costs_by_the_models_that_are_scored() -> None:
    scoring = PeerScoring(np.array([[1, 2], [2, -1], [-1, -1], [0, 1]]), 1, 8, 0.5)
    assert scoring.extra_steps(N).tolist() == [1.0, 0.5, 0.0, 1.0]
    assert scoring.directed
    assert DirectedMixing(np.array([[1], [2], [3], [0]])).extra_steps(N).tolist() == [0.0] * N


def test_weights_of_an_own_algorithm_are_not_completed() -> None:
    links = np.array([[0, 1], [0, 2], [1, 0]])
    weights = WeightedMixing(links, np.full(3, 0.25), np.array([0.5, 0.75, 1.0, 1.0]))
    here = np.ones(N, dtype=np.bool_)
    assert weights.with_min_peers(here, NETWORK, least=1, round_index=3) is weights
    with pytest.raises(Exception, match="gives worker 1 1"):
        weights.with_min_peers(here, NETWORK, least=2, round_index=3)


def test_what_is_sent_in_a_turn() -> None:
    alone, everyone = Mail(), stored_mail(-2, False, False)
    assert (alone.partner, alone.overlap, alone.int8) == (-1, False, False)
    assert isinstance(everyone, Shared)
    assert (list(alone.moved(3)), list(everyone.moved(3))) == ([], [0, 1, 2])
    meeting = stored_mail(0, True, False)
    assert isinstance(meeting, Meeting)
    assert (meeting.size, meeting.sent_bytes(4000)) == (1.0, 8000)
    coded = stored_mail(3, False, True)
    assert coded.size == INT8_SIZE == 1 / 4 + 1 / 256
    assert coded.sent_bytes(4000) == 2 * (1000 + 4 * 4)


def test_links_of_known_workers() -> None:
    assert check_links([[0, 3]], "x", 4).tolist() == [[0, 3]]
    assert check_links(NOTHING, "x", 4).shape == (0, 2)
    for links, worker in (([[0, 4]], 4), ([[-1, 0]], -1)):
        with pytest.raises(Unusable, match=f"unknown worker {worker}"):
            check_links(links, "x", 4)
    for shape in ([[0, 1, 2]], [0, 1], [[0.0, 1.0]]):
        with pytest.raises(Unusable, match="of the shape"):
            check_links(shape, "x", 4)
    with pytest.raises(Unusable, match="is not an array"):
        check_links([[0], [0, 1]], "x", 4)


def test_what_counts_as_a_number() -> None:
    assert [is_whole(value) for value in (1, np.int64(1), True, 1.0, "1")] == [
        *(True, True, False, False, False)
    ]
    assert [is_number(value) for value in (1, 1.5, np.float64(1), True, "1", None)] == [
        *(True, True, True, False, False, False)
    ]
