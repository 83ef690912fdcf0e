"""Several groups that average in one round, and an outer rate: a simulation against NumPy."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pytest

from fedhp import Decision, DisjointGroups, Federation, GroupAverage, Observation, Plan, Reports
from fedhp.algorithms.traits import Traits
from fedhp.config import parse
from fedhp.engine.prepare import prepare
from fedhp.engine.runs.run import loop_of
from fedhp.engine.sharded import LocalExecutor
from fedhp.errors import BadPlan
from fedhp.exchange import Exchange
from fedhp.exchange.facts import from_facts, participants_in
from fedhp.rounds.planner import next_plan
from fedhp.types import RoundRecord

N = 7


def tree(*members: int, **changes: Any) -> GroupAverage:
    """A star whose first member is the root."""
    order = np.argsort(members)
    parents = np.array([-1, *[members[0]] * (len(members) - 1)])[order]
    settings: dict[str, Any] = {"compression": "none", "momentum": 0.5, **changes}
    return GroupAverage(
        np.array(members)[order], parents, np.zeros(len(members), dtype=np.bool_), **settings
    )


LEFT, RIGHT = tree(2, 0, 4), tree(1, 5, 6)
BOTH = DisjointGroups((LEFT, RIGHT))


@dataclass(frozen=True, slots=True)
class Nothing:
    """There is nothing to remember."""


class Planned:
    """Plans the exchange of the moment in every round."""

    traits: ClassVar[Traits] = Traits(group_average=True)
    exchange: ClassVar[Exchange] = BOTH

    def start(self, federation: Federation) -> Nothing:
        return Nothing()

    def plan(
        self, state: Nothing, observation: Observation, reports: Reports
    ) -> tuple[Nothing, Plan]:
        none = np.empty(0)
        decision = Decision(np.empty((0, 2), dtype=np.int64), none.astype(np.int64), none, "own")
        return state, Plan(self.exchange, decision, deadline=0.5)


def run(
    monkeypatch: pytest.MonkeyPatch, planned: Exchange, *, shards: int = 1, rounds: int = 4
) -> tuple[list[RoundRecord], list[dict[str, Any]]]:
    """The records, and the state after every round."""
    monkeypatch.setattr(Planned, "exchange", planned)
    experiment = parse(
        {
            "workers": N,
            "rounds": rounds,
            "algorithm": {"name": f"{__name__}:Planned"},
            "model": {"name": "mlp", "hidden": [6]},
            "training": {"batch_size": 4},
            "world": {"bandwidth": {"jitter": 0.2, "sharing": True}},
            "evaluation": {"every": rounds, "images": 50},
        }
    )
    engine = LocalExecutor(prepare(experiment), shards=shards)
    states = [{name: rows.copy() for name, rows in engine.state().items()}]
    records = []
    for record in loop_of(engine).rounds():
        records.append(record)
        states.append({name: rows.copy() for name, rows in engine.state().items()})
    engine.close()
    return records, states


@pytest.mark.parametrize(("momentum", "rate"), [(0.5, 1.0), (0.0, 0.5), (0.7, 1.5)])
def test_each_group_has_a_consensus_of_its_own(
    monkeypatch: pytest.MonkeyPatch, momentum: float, rate: float
) -> None:
    settings = {"momentum": momentum, "rate": rate}
    groups = (tree(2, 0, 4, **settings), tree(1, 5, 6, **settings))
    _, states = run(monkeypatch, DisjointGroups(groups))
    width = states[0]["momentum"].shape[1]
    naive_momentum = [np.zeros(width), np.zeros(width)]
    for before, after in pairwise(states):
        for index, group in enumerate(groups):
            members = group.participants
            models = before["models"][members, :width].astype(np.float64)
            consensus = before["consensus"][members[0], :width].astype(np.float64)
            mean = (models - before["consensus"][members, :width]).mean(axis=0)
            naive_momentum[index] = momentum * naive_momentum[index] + mean
            expected = consensus + rate * (mean + momentum * naive_momentum[index])
            for worker in members:
                np.testing.assert_allclose(after["consensus"][worker, :width], expected, atol=1e-5)
        # Worker 3 is in no group.
        assert (after["consensus"][3] == states[0]["consensus"][3]).all()
    left, right = (states[-1]["consensus"][group.root] for group in groups)
    assert np.abs(left - right).max() > 1e-4


def test_shards_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    coded = DisjointGroups((tree(2, 0, 4, compression="int8"), tree(1, 5, 6, compression="int8")))
    one, states = run(monkeypatch, coded)
    three, same = run(monkeypatch, coded, shards=3)
    for name, rows in states[-1].items():
        assert rows.tobytes() == same[-1][name].tobytes(), name
    assert [record.clock for record in one] == [record.clock for record in three]


def test_one_group_alone_is_a_group_average(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, states = run(monkeypatch, LEFT)
    alone, same = run(monkeypatch, DisjointGroups((LEFT,)))
    assert states[-1]["models"].tobytes() == same[-1]["models"].tobytes()
    for first, second in zip(plain, alone, strict=True):
        assert first.clock == second.clock
        assert first.link_bytes.tolist() == second.link_bytes.tolist()
        assert first.link_time.tolist() == second.link_time.tolist()


def test_they_travel_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    left, _ = run(monkeypatch, LEFT, rounds=1)
    right, _ = run(monkeypatch, RIGHT, rounds=1)
    both, _ = run(monkeypatch, BOTH, rounds=1)
    assert both[0].bytes_sent == left[0].bytes_sent + right[0].bytes_sent
    assert both[0].clock == max(left[0].clock, right[0].clock)
    assert left[0].clock != right[0].clock
    assert both[0].links.tolist() == [[0, 2], [1, 5], [1, 6], [2, 4]]
    times = dict(zip(map(tuple, both[0].links.tolist()), both[0].link_time, strict=True))
    for alone in (left[0], right[0]):
        for link, seconds in zip(map(tuple, alone.links.tolist()), alone.link_time, strict=True):
            assert times[link] == seconds


def ask(exchange: Any, *, on_network: bool = False) -> None:
    nothing: Any = None
    available = np.arange(N) != 3
    before = Planned.exchange
    try:
        Planned.exchange = exchange
        next_plan(
            Planned(),
            Nothing(),
            observation=Observation(1, 0.0, 0.1, available, nothing),
            reports=nothing,
            on_network=on_network,
        )
    finally:
        Planned.exchange = before


@pytest.mark.parametrize(
    ("groups", "problem"),
    [
        ((), "groups of its DisjointGroups is"),
        ((LEFT, tree(4, 5)), "worker 4 is in two groups"),
        ((LEFT, tree(1, 3)), "worker 3 takes part in its GroupAverage, and is away"),
        ((LEFT, tree(1, 5, fragments=2)), "has the fragments"),
        ((LEFT, tree(1, 5, momentum=1.0)), "momentum of its GroupAverage is 1.0"),
        ((LEFT, 3), "its DisjointGroups has a int"),
    ],
)
def test_what_cannot_be_carried_out_is_refused(groups: Any, problem: str) -> None:
    ask(BOTH)
    with pytest.raises(BadPlan, match=problem):
        ask(DisjointGroups(groups))


def test_a_history_says_all_of_them() -> None:
    both = DisjointGroups((tree(2, 0, 4, rate=0.5), tree(1, 5, momentum=0.0, compression="int8")))
    ask(both, on_network=True)
    for exchange in (both, *both.groups):
        facts = json.loads(json.dumps(exchange.to_facts()))
        again = from_facts(facts)
        assert again is not None
        assert type(again) is type(exchange)
        assert again.to_facts() == facts
        assert participants_in(facts) == frozenset(exchange.required)
    assert [group.rate for group in both.groups] == [0.5, 1.0]


def test_each_worker_has_its_place_in_its_own_tree() -> None:
    parts = BOTH.parts(N)
    groups = [part.group for part in parts if part.group is not None]
    assert [group.members for group in groups] == [3, 3, 3, 0, 3, 3, 3]
    assert [group.parent for group in groups] == [2, -1, -1, -1, 2, 1, 1]
    assert groups[1].children == (5, 6)
    assert groups[1].group is RIGHT
    assert groups[2].children == (0, 4)


def test_a_round_without_the_averages_has_nobody_in_them() -> None:
    plan = Plan(BOTH, Decision.without_links("own"), deadline=0.5)
    alone = plan.exchange.without_group(plan)
    assert alone.deadline == 0.5
    assert list(alone.exchange.required) == []
