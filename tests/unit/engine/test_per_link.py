"""Messages that depend on their receiver, as RelaySGD has them (examples/relaysgd.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedhp.algorithms.base import traits_of
from fedhp.cluster.coordinator.process.network_checks import check_network
from fedhp.config import Experiment, parse
from fedhp.config.origins import Origins
from fedhp.engine.memory import count_copies
from fedhp.engine.prepare import prepare
from fedhp.engine.sharded import LocalExecutor
from fedhp.errors import ConfigError
from fedhp.exchange import ExchangeSequence, NeighborMixing, ServerAverage
from fedhp.exchange.base import Unusable
from fedhp.learn.params import layout_of, row_of
from fedhp.learn.vectors import receive_from, send_to, try_rule
from fedhp.rule import LastMessages, Rows, Rule, Step, Vector, Vectors
from fedhp.tables import merge_tables

EXAMPLES = Path(__file__).parents[3] / "examples"
CHAIN = [[0, 3], [3, 1], [1, 4], [4, 2]]
TREE = {"name": "links", "pairs": CHAIN}
DIAMETER = 4


class PerLink(Rule):
    """The simplest one."""

    vectors = (Vector("kept"),)

    def send_to(self, x: Rows, v: Vectors, heard: LastMessages, step: Step) -> Rows:
        return x + heard.x.sum(0, keepdim=True)


def settings(*changes: dict[str, Any]) -> Experiment:
    tables: dict[str, Any] = {
        "workers": 5,
        "rounds": 6,
        "algorithm": {"name": "relaysgd:RelaySGD"},
        "model": {"name": "logistic"},
        "training": {"local_steps": 1, "mixing": "ordered"},
        "data": {"name": "digits"},
        "topology": TREE,
    }
    for change in changes:
        tables = merge_tables(tables, change)
        tables["topology"] = change.get("topology", tables["topology"])
    return parse(tables, origins=Origins.of_file(EXAMPLES / "relaysgd.toml"))


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_without_steps_all_have_the_mean_after_as_many_rounds_as_the_tree_is_wide(
    shards: int,
) -> None:
    prepared = prepare(settings())
    engine, layout = LocalExecutor(prepared, shards=shards), prepared.layout
    state = {name: rows.copy() for name, rows in engine.state().items()}
    brought = np.random.default_rng(3).standard_normal((5, layout.trainable)).astype(np.float32)
    state["models"][:, : layout.trainable] = brought
    start = state["models"][0, layout.columns("start")].copy()
    exchange = NeighborMixing(prepared.federation.topology_at(1))
    for round_index in range(1, DIAMETER + 1):
        engine.load({**engine.state(), "models": state["models"].copy()})  # all bring the same
        steps = np.zeros(5, dtype=np.int64)
        engine.train(steps, round_index=round_index, learning_rate=0.1)
        engine.mix(exchange, round_index=round_index)
        engine.advance()
        found = engine.state()["models"][:, : layout.trainable]
        # Worker 0 is at the end of the chain 0 3 1 4 2: it has heard of so many others.
        near = [0, 3, 1, 4, 2][: round_index + 1]
        expected = (brought[near].sum(axis=0) + (5 - len(near)) * start) / 5
        np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(found, np.tile(brought.mean(axis=0), (5, 1)), rtol=0, atol=1e-6)
    pairs = engine.state()["copy_pairs"]
    assert sorted(map(tuple, pairs[:, :2].tolist())) == sorted(
        {(a, b) for a, b in CHAIN} | {(b, a) for a, b in CHAIN}
    )
    engine.close()


def test_equal_models_stay_as_they_are() -> None:
    """The weights of a worker sum to 1, however many models have come."""
    prepared = prepare(settings())
    engine = LocalExecutor(prepared)
    before = engine.state()["models"].copy()
    exchange = NeighborMixing(prepared.federation.topology_at(1))
    for round_index in range(1, 7):
        engine.train(np.zeros(5, dtype=np.int64), round_index=round_index, learning_rate=0.1)
        engine.mix(exchange, round_index=round_index)
        engine.advance()
        np.testing.assert_allclose(engine.state()["models"], before, rtol=0, atol=1e-6)
    engine.close()


def test_messages_are_in_the_memory_estimate() -> None:
    experiment = settings()
    traits = traits_of(prepare(experiment).algorithm)
    assert count_copies(experiment, traits, per_link=False) == 0
    assert count_copies(experiment, traits, per_link=True) == 2 * len(CHAIN)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"topology": {"name": "ring"}}, "topology.name"),
        ({"topology": {"name": "full"}}, "topology.name"),
        ({"workers": 4, "topology": {"name": "one_peer_exponential"}}, "topology.name"),
        ({"algorithm": {"neighbors": "ring"}}, "algorithm.neighbors"),
        *(
            ({"exchange": {"compression": kind}}, "exchange.compression")
            for kind in ("fp16", "int8", "topk")
        ),
        ({"exchange": {"robust": "median"}}, "exchange.robust"),
        ({"attack": {"kind": "sign_flip"}}, "attack.kind"),
        ({"attack": {"kind": "noise"}}, "attack.kind"),
        ({"world": {"away": [{"worker": 2, "first": 2, "last": 3}]}}, "world.away"),
        ({"world": {"away_probability": 0.2}}, "world.away_probability"),
        (
            {"training": {"momentum": 0.9, "optimizer_state": "mix"}},
            "training.optimizer_state",
        ),
    ],
)
def test_what_cannot_hold_is_refused_before_work(change: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        prepare(settings(change))
    assert refused.value.key == key
    assert refused.value.allowed
    assert refused.value.fix


def test_a_topology_that_changes_is_refused_as_such() -> None:
    changing = {"workers": 4, "topology": {"name": "one_peer_exponential"}}
    with pytest.raises(ConfigError, match="links would come and go"):
        prepare(settings(changing))


def test_a_network_refuses_it_before_it_starts() -> None:
    with pytest.raises(ConfigError, match=r"send_to\(\), but a worker of a network") as refused:
        check_network(settings({"cluster": {"min_workers": 5}}))
    assert refused.value.key == "algorithm.name"


def test_exchanges_that_it_does_not_fit_are_refused() -> None:
    mixing = NeighborMixing(prepare(settings()).federation.topology_at(1))
    rule = PerLink()
    mixing.check_rule(rule)
    with pytest.raises(Unusable):
        ServerAverage(np.ones(5)).check_rule(rule)
    with pytest.raises(Unusable):
        ExchangeSequence((mixing, mixing)).check_rule(rule)
    with pytest.raises(Unusable):
        NeighborMixing(mixing.topology, times=2).check_rule(rule)


class SetsWhatStays(PerLink):
    def send_to(self, x: Rows, v: Vectors, heard: LastMessages, step: Step) -> Rows:
        v["kept"] = x
        return x


class ReadsWhatStays(PerLink):
    def send_to(self, x: Rows, v: Vectors, heard: LastMessages, step: Step) -> Rows:
        return x + heard["kept"].sum(0, keepdim=True)


class WrongRows(PerLink):
    def send_to(self, x: Rows, v: Vectors, heard: LastMessages, step: Step) -> Rows:
        return x + heard.x


class NeedsNeighbors(PerLink):
    def receive_from(self, x0: Rows, x: Rows, v: Vectors, heard: LastMessages, step: Step) -> Rows:
        return x + heard.x[:1]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (SetsWhatStays(), "send_to sets 'kept'; allowed: vectors that travel"),
        (ReadsWhatStays(), "no vector 'kept'; declared: none"),
        (WrongRows(), r"send_to returned \(0, 6\)"),
        (NeedsNeighbors(), r"receive_from returned \(0, 6\)"),
    ],
)
def test_a_mistake_is_found_before_the_run(rule: Rule, words: str) -> None:
    module = nn.Linear(2, 2)
    layout = layout_of(module, batch_norm="mixed", vectors=rule.vectors)
    with pytest.raises(ConfigError, match=words):
        try_rule(rule, layout, row_of(module, layout)[0], rate=0.1)


def test_what_is_not_trained_is_sent_as_it_is_and_mixed_by_the_weights() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    layout = layout_of(module, batch_norm="mixed", vectors=PerLink.vectors)
    own = row_of(module, layout)[0][None]
    before, mixed = own.clone(), torch.full_like(own, 7.0)
    step = Step(1, 0.1, torch.ones(1, 1), lambda rows: rows, 2)
    first = send_to(PerLink(), layout, own, [], step)
    second = send_to(PerLink(), layout, own, [first, first], step)
    trained, statistics = slice(layout.trainable), layout.untrained[1]
    assert torch.equal(second[trained], 3 * own[0, trained])
    assert torch.equal(second[statistics], own[0, statistics])
    receive_from(PerLink(), layout, before, own, mixed, [first], step)
    assert torch.equal(mixed[:, trained], own[:, trained])
    assert (mixed[:, statistics] == 7).all()
    assert torch.equal(own, before)
