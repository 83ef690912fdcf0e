"""Several exchanges in one round: what they compute, what they cost, and where they are refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from fedhp import (
    Decision,
    DirectedMixing,
    ExchangeSequence,
    Federation,
    GroupAverage,
    NeighborMixing,
    Observation,
    PeerScoring,
    Plan,
    Reports,
    WeightedMixing,
)
from fedhp.algorithms.base import rule_of
from fedhp.cluster.coordinator.attempts.orders import _exchanges
from fedhp.config import Experiment, parse
from fedhp.engine.prepare import prepare
from fedhp.engine.runs.run import loop_of
from fedhp.engine.sharded import LocalExecutor
from fedhp.errors import BadPlan, RunError
from fedhp.exchange import Exchange, Mixing
from fedhp.exchange.facts import from_facts
from fedhp.graph import directed_weights, mixing_matrix, topology_from
from fedhp.rounds.planner import next_plan
from fedhp.rule import PushSum, Rule
from fedhp.timing import Network
from fedhp.types import RoundRecord

N = 5
RING = topology_from(N, [(worker, (worker + 1) % N) for worker in range(N)])
NEXT = np.array([[(worker + 1) % N] for worker in range(N)])
MIXING = NeighborMixing(RING)
PULL = DirectedMixing(NEXT)


@dataclass(frozen=True, slots=True)
class Nothing:
    """There is nothing to remember."""


class Planned:
    """Plans the exchange of the moment in every round."""

    exchange: ClassVar[Exchange] = MIXING

    def start(self, federation: Federation) -> Nothing:
        return Nothing()

    def plan(
        self, state: Nothing, observation: Observation, reports: Reports
    ) -> tuple[Nothing, Plan]:
        none = np.empty(0)
        decision = Decision(np.empty((0, 2), dtype=np.int64), none.astype(np.int64), none, "own")
        return state, Plan(self.exchange, decision, local_steps=np.full(N, 2))


def experiment(**changes: Any) -> Experiment:
    tables: dict[str, Any] = {
        "workers": N,
        "rounds": 3,
        "algorithm": {"name": f"{__name__}:Planned"},
        "model": {"name": "mlp", "hidden": [6]},
        "training": {"local_steps": 2, "batch_size": 4, "mixing": "ordered"},
        "evaluation": {"every": 3, "images": 50},
    }
    return parse({**tables, **changes})


def run(
    monkeypatch: pytest.MonkeyPatch, planned: Exchange, *, shards: int = 1, **changes: Any
) -> tuple[list[RoundRecord], Any]:
    monkeypatch.setattr(Planned, "exchange", planned)
    engine = LocalExecutor(prepare(experiment(**changes)), shards=shards)
    records = list(loop_of(engine).rounds())
    models = engine.state()["models"].copy()
    engine.close()
    return records, models


def test_each_begins_with_what_the_one_before_left() -> None:
    engine = LocalExecutor(prepare(experiment()))
    engine.train(np.full(N, 2), round_index=1, learning_rate=0.1)
    width = engine.prepared.layout.mixed
    after = engine.shard.rows.after[:, :width].double().numpy().copy()
    exchange = ExchangeSequence((NeighborMixing(RING, times=2), PULL))
    exchanged = exchange.carry_out(engine, round_index=1)
    weights, pulled = mixing_matrix(RING), directed_weights(NEXT).toarray()
    expected = pulled @ weights @ weights @ after
    np.testing.assert_allclose(engine.shard.rows.mixed[:, :width].numpy(), expected, atol=1e-6)
    # Pulled links have a direction: those of the ring are there in both.
    both = {(int(a), int(b)) for a, b in RING.links} | {(int(b), int(a)) for a, b in RING.links}
    assert exchanged.directed
    assert set(map(tuple, exchanged.links.tolist())) == both
    trainable = engine.prepared.layout.trainable
    for (a, b), distance in zip(exchanged.links, exchanged.distance, strict=True):
        before = np.linalg.norm(after[a, :trainable] - after[b, :trainable])
        assert distance == pytest.approx(before, rel=1e-5)
    engine.close()


def test_once_is_once(monkeypatch: pytest.MonkeyPatch) -> None:
    once, models = run(monkeypatch, MIXING)
    alone, same = run(monkeypatch, ExchangeSequence((MIXING,)))
    assert models.tobytes() == same.tobytes()
    for left, right in zip(once, alone, strict=True):
        assert left.clock == right.clock
        assert left.link_bytes.tolist() == right.link_bytes.tolist()


def test_times_and_bytes_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    once, _ = run(monkeypatch, MIXING)
    thrice, models = run(monkeypatch, NeighborMixing(RING, times=3))
    other, same = run(monkeypatch, ExchangeSequence((MIXING, NeighborMixing(RING, times=2))))
    assert models.tobytes() == same.tobytes()
    first, last = once[0], thrice[0]
    assert last.links.tolist() == first.links.tolist()
    assert last.link_bytes.tolist() == (3 * first.link_bytes).tolist()
    np.testing.assert_allclose(last.link_time, 3 * first.link_time)
    np.testing.assert_allclose(last.timing.communication_time, 3 * first.timing.communication_time)
    assert [each.clock for each in other] == pytest.approx([each.clock for each in thrice])


def test_a_link_in_both_directions_counts_once_in_each(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed, _ = run(monkeypatch, MIXING)
    pulled, _ = run(monkeypatch, PULL)
    both, _ = run(monkeypatch, ExchangeSequence((MIXING, PULL)))
    assert both[0].bytes_sent == mixed[0].bytes_sent + pulled[0].bytes_sent
    np.testing.assert_allclose(
        both[0].timing.communication_time,
        mixed[0].timing.communication_time + pulled[0].timing.communication_time,
    )


@pytest.mark.parametrize("compression", ["none", "int8"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_shards_give_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, compression: str, optimizer: str
) -> None:
    scored = PeerScoring(NEXT, keep=1, samples=4, cost_per_candidate=0.5)
    exchange = ExchangeSequence((NeighborMixing(RING, "metropolis", times=2), scored))
    training = {"local_steps": 2, "batch_size": 4, "mixing": "ordered", "optimizer": optimizer}
    changes: dict[str, Any] = {"exchange": {"compression": compression}, "training": training}
    one, models = run(monkeypatch, exchange, **changes)
    three, same = run(monkeypatch, exchange, shards=3, **changes)
    assert models.tobytes() == same.tobytes()
    assert [each.clock for each in one] == [each.clock for each in three]


def test_with_topk_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match="topk"):
        run(monkeypatch, NeighborMixing(RING, times=2), exchange={"compression": "topk"})


def ask(exchange: Any, *, on_network: bool = False, algorithm: Any = None) -> None:
    nothing: Any = None
    observation = Observation(1, 0.0, 0.1, np.ones(N, dtype=np.bool_), nothing)
    before = Planned.exchange
    try:
        Planned.exchange = exchange
        next_plan(
            algorithm or Planned(),
            Nothing(),
            rule=rule_of(algorithm or Planned()),
            observation=observation,
            reports=nothing,
            on_network=on_network,
        )
    finally:
        Planned.exchange = before


GROUP = GroupAverage(np.array([0, 1]), np.array([-1, 0]), np.zeros(2, dtype=np.bool_))


@pytest.mark.parametrize(
    ("exchange", "problem"),
    [
        (ExchangeSequence(()), "exchanges of its ExchangeSequence is"),
        (ExchangeSequence([MIXING]), "exchanges of its ExchangeSequence is"),  # type: ignore[arg-type]
        (ExchangeSequence((MIXING, GROUP)), "its ExchangeSequence has a GroupAverage"),
        (ExchangeSequence((MIXING, 3)), "its ExchangeSequence has a int"),  # type: ignore[arg-type]
        (ExchangeSequence((MIXING, DirectedMixing(NEXT[:2]))), "sources is int64"),
        (NeighborMixing(RING, times=0), "times of its NeighborMixing is 0"),
        (NeighborMixing(RING, times=1.5), "times of its NeighborMixing is 1.5"),  # type: ignore[arg-type]
        (NeighborMixing(RING, times=1001), "times of its NeighborMixing is 1001"),
    ],
)
def test_what_cannot_be_carried_out_is_refused(exchange: Exchange, problem: str) -> None:
    with pytest.raises(BadPlan, match=problem.replace("(", r"\(")):
        ask(exchange)


class Pushing(Planned):
    def rule(self) -> Rule:
        return PushSum()


@pytest.mark.parametrize("sequence", [True, False])
def test_push_sum_is_mixed_once(sequence: bool) -> None:
    links = np.stack([NEXT[:, 0], np.arange(N)], axis=1)
    weights = WeightedMixing(links, np.full(N, 0.5), np.full(N, 0.5), push_sum=True)
    twice: Exchange = ExchangeSequence((weights, weights))
    if not sequence:
        twice = WeightedMixing(links, weights.weights, weights.own_weights, push_sum=True, times=2)
    ask(weights, algorithm=Pushing())
    with pytest.raises(BadPlan, match="mixes 2 times"):
        ask(twice, algorithm=Pushing())


SCORED = PeerScoring(NEXT, keep=1, samples=4, cost_per_candidate=0.5)


@pytest.mark.parametrize("exchange", [ExchangeSequence((MIXING, SCORED)), replace(SCORED, times=2)])
def test_a_network_refuses_scores_in_several_before_any_work(exchange: Exchange) -> None:
    ask(exchange)
    ask(ExchangeSequence((SCORED,)), on_network=True)
    ask(ExchangeSequence((NeighborMixing(RING, times=2), PULL)), on_network=True)
    with pytest.raises(BadPlan, match="2 exchanges in one round"):
        ask(exchange, on_network=True)


@pytest.mark.parametrize(
    "exchange",
    [
        NeighborMixing(RING, times=3),
        ExchangeSequence((MIXING, NeighborMixing(RING, "metropolis", times=2), PULL)),
    ],
)
def test_facts_hold_every_part(exchange: Exchange) -> None:
    facts = json.loads(json.dumps(exchange.to_facts()))
    again = from_facts(facts)
    assert again is not None
    assert again.parts(N) == exchange.parts(N)
    assert [1 + len(part.then) for part in exchange.parts(N)] == [exchange.in_a_row] * N


def test_an_order_says_once_what_is_repeated() -> None:
    sequence = ExchangeSequence((NeighborMixing(RING, times=3), PULL))
    for worker, works in enumerate(_exchanges(sequence.parts(N))):
        assert [work.times for work in works] == [3, 1]
        assert list(works[0].readers) == list(works[0].peers)
        assert list(works[1].peers) == [(worker + 1) % N]
        assert list(works[1].readers) == [(worker - 1) % N]


def test_what_is_connected_together_gets_no_links() -> None:
    halves = [topology_from(N, RING.links[part::2]) for part in (0, 1)]
    sequence = ExchangeSequence(tuple(NeighborMixing(half) for half in halves))
    network = Network(np.full(N, 1e6), 8e6)
    assert sequence.connected(np.ones(N, dtype=np.bool_), network, avoid=()) is sequence


def test_the_planners_forecast_is_the_sum() -> None:
    network = Network(np.array([1e6, 2e6, 3e6, 4e6, 5e6]), 8e6)
    once = MIXING.communication_time(network, N)
    repeated: Mixing = NeighborMixing(RING, times=4)
    np.testing.assert_allclose(repeated.communication_time(network, N), 4 * once)
    both = ExchangeSequence((MIXING, PULL)).communication_time(network, N)
    np.testing.assert_allclose(both, once + PULL.communication_time(network, N))


def test_workers_without_enough_peers_get_them_in_each() -> None:
    network = Network(np.full(N, 1e6), 8e6)
    everyone = np.ones(N, dtype=np.bool_)
    sequence = ExchangeSequence((MIXING, PULL))
    more = sequence.with_min_peers(everyone, network, least=3, round_index=1)
    assert (np.bincount(more.links[:, 0], minlength=N) >= 3).all()
    apart = sequence.without_links({(0, 1), (0, 4)})
    assert (0 in apart.connected(everyone, network, avoid=()).links) is True
