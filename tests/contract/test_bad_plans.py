"""Bad plans and actions are refused before anything acts on them, with the user's file and line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract.rounds import federation, observe, report
from fedhp.errors import BadPlan
from fedhp.exchange import DirectedMixing, GroupAverage, NeighborMixing, PeerScoring, WeightedMixing
from fedhp.graph import topology_from
from fedhp.rounds.planner import MOST_STEPS, next_action, next_plan
from fedhp.types import Action, Decision, LinkVerdict, Plan, Topology

N = 4
WORDS: Any = {"a": "b"}
NOTHING = np.empty((0, 2), dtype=np.int64)
RING = topology_from(N, [[0, 1], [1, 2], [2, 3], [0, 3]])
GOOD = Plan(
    NeighborMixing(RING),
    Decision(NOTHING, np.empty(0, dtype=np.int64), np.empty(0), "own"),
    local_steps=np.full(N, 2),
)


@dataclass(frozen=True)
class State:
    """Nothing to remember."""

    round_index: int = 0


class Own:
    """An algorithm that answers whatever it was given."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def start(self, _known: Any) -> State:
        return State()

    def plan(self, _state: Any, _observation: Any, _reports: Any) -> Any:
        return self.answer

    def act(self, _state: Any, _worker: int, _observation: Any, *, turn: int) -> Any:
        return self.answer


def sources(*rows: Any) -> DirectedMixing:
    return DirectedMixing(np.array(rows))


def topology(*pairs: list[int]) -> NeighborMixing:
    return NeighborMixing(Topology(N, np.array(pairs)))


def weighted(
    links: list[list[int]] | None = None,
    weights: list[float] | None = None,
    own: list[float] | None = None,
    *,
    push_sum: bool = False,
) -> WeightedMixing:
    """Worker 0 takes half of worker 1's model, unless something else is asked for."""
    return WeightedMixing(
        np.array([[0, 1]] if links is None else links, dtype=np.int64),
        np.array([0.5] if weights is None else weights),
        np.array([0.5, 1.0, 1.0, 1.0] if own is None else own),
        push_sum=push_sum,
    )


def scoring(**changes: Any) -> DirectedMixing:
    good = {"keep": 1, "samples": 8, "cost_per_candidate": 0.1}
    return PeerScoring(**{"candidates": np.array([[1], [2], [3], [0]]), **good, **changes})


def ask(answer: Any) -> Any:
    return next_plan(
        Own(answer), State(), observation=observe(N, 1, away=False), reports=report(None, N, 0)
    )


def group(members: list[int], parents: list[int], **changes: Any) -> dict[str, Any]:
    """The changes of a plan with a group average."""
    average = GroupAverage(np.array(members), np.array(parents), np.zeros(len(members), np.bool_))
    exchange = replace(average, **changes)
    return {"exchange": exchange, "local_steps": None, "deadline": 1.0}


def verdict(number: int) -> Decision:
    """A decision about one link."""
    link, verdicts = np.array([[0, 1]]), np.array([number])
    return replace(GOOD.decision, links=link, verdicts=verdicts, link_time=np.ones(1))


PLANS: list[tuple[dict[str, Any], str]] = [
    ({"exchange": NeighborMixing(RING, "average")}, "unknown weights 'average'"),
    ({"exchange": NeighborMixing(topology_from(9, [[0, 8]]))}, "for 9 workers"),
    ({"exchange": NeighborMixing([[0, 1]])}, "its topology is a list"),  # type: ignore[arg-type]
    ({"exchange": topology([0, 1], [1, 99])}, "unknown worker 99"),
    ({"exchange": topology([0, 1], [1, N])}, f"unknown worker {N}"),
    ({"exchange": topology([0, 1], [-1, 2])}, "unknown worker -1"),
    (
        {"exchange": NeighborMixing(Topology(N, RING.links, np.array([0.5, 0.2, 0.1, 0.0])))},
        "the weight 0 is not above 0",
    ),
    (
        {"exchange": NeighborMixing(Topology(N, RING.links, np.array([0.6, 0.5, 0.1, 0.1])))},
        "the weights of worker 0 add up to 1.1",
    ),
    (
        {"exchange": NeighborMixing(Topology(N, RING.links, np.array([0.5])))},
        "4 links, but weights float64 of (1,)",
    ),
    ({"exchange": topology([0, 1], [2, 2])}, "links worker 2 to itself"),
    ({"exchange": topology([0, 1], [1, 0])}, "the link 0 - 1 more than once"),
    ({"exchange": topology([0, 1, 2])}, "of the shape"),
    ({"exchange": sources([1], [2], [3], [99])}, "worker 3 pulls from the unknown worker 99"),
    ({"exchange": sources([1], [2], [3], [N])}, f"worker 3 pulls from the unknown worker {N}"),
    ({"exchange": sources([1], [2], [2], [-7])}, "worker 3 pulls from the unknown worker -7"),
    ({"exchange": sources([1], [2], [2], [0])}, "worker 2 pulls from itself"),
    ({"exchange": sources([1], [2])}, "sources is int64 of the shape"),
    ({"exchange": sources([1.5], [2], [3], [0])}, "sources is float64"),
    (
        {"exchange": scoring(candidates=np.array([[0], [2], [3], [0]]))},
        "worker 0 pulls from itself",
    ),
    ({"exchange": scoring(keep=0)}, "keep of its PeerScoring is 0"),
    ({"exchange": scoring(samples=1.5)}, "samples of its PeerScoring is 1.5"),
    ({"exchange": scoring(cost_per_candidate=np.nan)}, "cost_per_candidate"),
    ({"exchange": weighted(links=[[0, 9]])}, "a link of the unknown worker 9"),
    ({"exchange": weighted(links=[[1, 1]])}, "links worker 1 to itself"),
    (
        {"exchange": weighted(links=[[0, 1], [0, 1]], weights=[0.2, 0.3])},
        "the link 0 - 1 more than once",
    ),
    ({"exchange": weighted(weights=[np.nan])}, "weights[0] of its WeightedMixing is nan"),
    ({"exchange": weighted(weights=[0.5, 0.5])}, "of the shape (2,)"),
    ({"exchange": weighted(weights=[-0.5])}, "worker 1 has the weight -0.5 at worker 0"),
    ({"exchange": weighted(weights=[0.4])}, "the weights of worker 0 sum to 0.9"),
    ({"exchange": weighted(own=[1.5, 1.0, 1.0, 1.0], weights=[0.5])}, "sum to 2"),
    ({"exchange": weighted(own=[0.5, -1.0, 1.0, 1.0])}, "worker 1 has the own weight -1"),
    ({"exchange": weighted(push_sum=True)}, "the weights sent by worker 0 sum to 0.5"),
    (
        {"exchange": weighted(own=[1.0, 0.5, 1.0, 1.0], push_sum=True)},
        "with push_sum, but the mass of its rule is ''",
    ),
    (
        {"exchange": weighted(own=[1.0, 0.0, 1.0, 1.0], weights=[1.0], push_sum=True)},
        "worker 1 keeps nothing of its own model",
    ),
    ({"exchange": weighted(weights=[0.0], own=[1.0] * N)}, "the weight 0 at worker 0"),
    ({"exchange": None}, "the exchange of its plan is None"),
    (group([0, 1, 9], [-1, 0, 0]), "participants of its GroupAverage are [0, 1, 9]"),
    (group([1, 0], [-1, 1]), "participants of its GroupAverage are [1, 0]"),
    (group([0, 1], [-1, -1]), "has the roots [0, 1]"),
    (group([0, 1, 2], [-1, 2, 1]), "worker 1 is below 2"),
    (group([0, 1], [-1, 3]), "worker 1 is below 3"),
    (group([0, 1, 2], [-1, 0, 1], returning=np.array([0, 1, 0], np.bool_)), "worker 2 is below 1"),
    (group([0, 1], [-1, 0], returning=np.array([1, 0], np.bool_)), "the root 0"),
    (group([0, 1], [-1, 0], returning=np.zeros(3, np.bool_)), "returning of its GroupAverage"),
    (group([0, 1], [-1, 0], fragment=2, fragments=2), "fragment 2 of 2"),
    (group([0, 1], [-1, 0], fragment=-1, fragments=2), "fragment -1 of 2"),
    (group([0, N], [-1, 0]), f"participants of its GroupAverage are [0, {N}]"),
    (group([0, 1], [-1, 0], momentum=-0.1), "momentum of its GroupAverage is -0.1"),
    (group([0, 1], [-1, 0], fragment=0.5), "fragment 0.5 of 1"),
    (group([0, 1], [-1, 0], momentum=1.0), "momentum of its GroupAverage is 1.0"),
    (group([0, 1], [-1, 0], rate=0.0), "rate of its GroupAverage is 0.0"),
    (group([0, 1], [-1, 0], rate=101.0), "rate of its GroupAverage is 101.0"),
    (group([0, 1], [-1, 0], rate=float("nan")), "rate of its GroupAverage is nan"),
    (group([0, 1], [-1, 0], compression="int4"), "compression of its GroupAverage is 'int4'"),
    ({**group([0, 1], [-1, 0]), "local_steps": np.ones(N, np.int64)}, "and local_steps"),
    ({"overlap": True}, "its plan has overlap and a NeighborMixing"),
    ({"local_steps": np.array([1, np.nan, 1, 1])}, "holds nan for worker 1"),
    ({"local_steps": np.array([1, -3, 1, 1])}, "-3 steps for worker 1"),
    ({"local_steps": np.array([1, 1, MOST_STEPS + 1, 1])}, "1000001 steps for worker 2"),
    ({"local_steps": [[1], [1, 2]]}, "local_steps is not an array"),
    ({"local_steps": None, "deadline": 0.0}, "the deadline 0.0"),
    ({"local_steps": None, "deadline": np.inf}, "the deadline inf"),
    ({"estimate": np.ones(N + 1, np.bool_)}, "estimate is bool of the shape (5,)"),
    ({"local_steps": np.array([1, 1, 1])}, "of the shape"),
    ({"local_steps": np.array([1.0, 1, 1, 1])}, "local_steps is float64"),
    ({"local_steps": "many"}, "local_steps is <U4"),
    ({"local_steps": None}, "no local_steps, and the deadline None"),
    ({"local_steps": None, "deadline": np.nan}, "the deadline nan"),
    ({"local_steps": None, "deadline": "soon"}, "the deadline soon"),
    ({"estimate": np.ones(N)}, "estimate is float64"),
    ({"decision": None}, "the decision of its plan is None"),
    ({"decision": replace(GOOD.decision, links=np.array([[0, 99]]))}, "unknown worker 99"),
    ({"decision": replace(GOOD.decision, link_time=np.ones(3))}, "link_time of its decision"),
    ({"decision": replace(GOOD.decision, pace_setter=N)}, "pace_setter of its decision is 4"),
    ({"decision": replace(GOOD.decision, pace_setter=-1)}, "pace_setter of its decision is -1"),
    ({"decision": replace(GOOD.decision, pace_setter=True)}, "pace_setter of its decision is True"),
    ({"decision": verdict(len(LinkVerdict))}, f"unknown verdict {len(LinkVerdict)}"),
    ({"decision": verdict(-1)}, "unknown verdict -1"),
    ({"decision": replace(GOOD.decision, pace_setter=99)}, "pace_setter of its decision is 99"),
    ({"decision": replace(GOOD.decision, facts=WORDS)}, "facts of its decision"),
    (
        {
            "decision": replace(
                GOOD.decision,
                links=np.array([[0, 1]]),
                verdicts=np.array([77]),
                link_time=np.ones(1),
            )
        },
        "unknown verdict 77",
    ),
]


@pytest.mark.parametrize(("changes", "problem"), PLANS, ids=[problem for _, problem in PLANS])
def test_a_bad_plan_is_named_with_its_place(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadPlan) as caught:
        ask((State(), replace(GOOD, **changes)))
    error = caught.value
    assert problem in error.problem
    assert "Own, round 1" in error.problem
    line = Own.plan.__code__.co_firstlineno
    assert f"plan() is at {Path(__file__)}, line {line}" in error.problem
    assert error.allowed
    assert error.fix


@pytest.mark.parametrize("answer", [None, GOOD, (GOOD, State()), (State(), Action(1, None))])
def test_an_answer_that_is_not_a_plan_is_named(answer: Any) -> None:
    with pytest.raises(BadPlan, match=r"plan\(\) returned"):
        ask(answer)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"local_steps": np.full(N, 2), "exchange": sources([-1], [-1], [-1], [-1])},
            "2 steps for worker",
        ),
        ({}, "is linked to"),
        ({"exchange": sources([-1], [2], [-1], [-1])}, "worker 1 takes from 2, and 2 is away"),
        ({"exchange": scoring()}, "PeerScoring worker 1 takes from 2, and 2 is away"),
        ({"exchange": weighted([[0, 2]])}, "worker 0 takes from 2, and 2 is away"),
        (group([0, 2], [-1, 0]), "worker 2 takes part in its GroupAverage, and is away"),
    ],
)
def test_absent_workers_neither_train_nor_exchange(changes: dict[str, Any], problem: str) -> None:
    observation = observe(N, 1, away=False)
    observation = replace(observation, available=np.array([True, True, False, True]))
    plan = replace(GOOD, **{"local_steps": np.array([2, 2, 0, 2]), **changes})
    with pytest.raises(BadPlan, match=problem):
        next_plan(
            Own((State(), plan)), State(), observation=observation, reports=report(None, N, 0)
        )


def test_a_good_plan_passes_as_it_is() -> None:
    shuffled = replace(GOOD, exchange=topology([2, 3], [1, 0], [1, 2]))
    for plan in (
        GOOD,
        shuffled,
        replace(GOOD, exchange=scoring()),
        replace(GOOD, exchange=weighted()),
        # At the limits.
        replace(GOOD, local_steps=np.array([0, MOST_STEPS, 1, 1])),
        replace(GOOD, decision=verdict(0)),
        replace(GOOD, decision=verdict(len(LinkVerdict) - 1)),
        replace(GOOD, decision=replace(GOOD.decision, pace_setter=0)),
        replace(GOOD, decision=replace(GOOD.decision, pace_setter=N - 1)),
        replace(GOOD, exchange=weighted(own=[0.0, 1.0, 1.0, 1.0], weights=[1.0])),
        replace(GOOD, **group([0, N - 1], [-1, 0], rate=100.0, momentum=0.0)),
        replace(GOOD, **group([0, 1], [-1, 0], fragment=1, fragments=2)),
        replace(GOOD, exchange=NeighborMixing(Topology(N, RING.links, np.full(N, 0.5)))),
        replace(GOOD, estimate=np.ones(N, np.bool_)),
    ):
        assert ask((State(), plan))[1] is plan
    assert federation(N).workers == N


@pytest.mark.parametrize(
    ("action", "problem"),
    [
        (Action(-1, None), "-1 steps for worker 2"),
        (Action(np.nan, None), "nan steps for worker 2"),  # type: ignore[arg-type]
        (Action(1, 99), "unknown worker 99"),
        (Action(1, N), f"unknown worker {N}"),
        (Action(1, -1), "unknown worker -1"),
        (Action(1, -2), "unknown worker -2"),
        (Action(MOST_STEPS + 1, None), "1000001 steps for worker 2"),
        (Action(1, 1, compression="int4"), "its compression is 'int4'"),
        (Action(1, 2), "partner of worker 2 is itself"),
        (None, "act() returned"),
    ],
)
def test_a_bad_action_is_named_with_its_place(action: Any, problem: str) -> None:
    with pytest.raises(BadPlan) as caught:
        next_action(
            Own((State(), action)), State(), 2, observation=observe(N, 1, away=False), turn=0
        )
    assert problem in caught.value.problem
    assert f"line {Own.act.__code__.co_firstlineno}" in caught.value.problem


@pytest.mark.parametrize("action", [Action(0, 0), Action(MOST_STEPS, N - 1), Action(1, None)])
def test_a_good_action_passes_as_it_is(action: Action) -> None:
    own = Own((State(), action))
    found = next_action(own, State(), 2, observation=observe(N, 1, away=False), turn=0)
    assert found == (State(), action)
