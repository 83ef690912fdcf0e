"""Topologies in runs: exact averages, the same bits on every engine, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedhp
from fedhp.algorithms import Federation, Observation, Traits
from fedhp.algorithms.dpsgd import RingState
from fedhp.cluster.audit.invariants import check_invariants
from fedhp.cluster.audit.verify import verify
from fedhp.cluster.ops.launch import Cluster
from fedhp.config import Experiment, parse
from fedhp.engine.loop import RoundLoop
from fedhp.engine.prepare import prepare
from fedhp.engine.replay.whatif import whatif
from fedhp.engine.runs.run import loop_of, start_run
from fedhp.engine.sharded import LocalExecutor
from fedhp.errors import ConfigError
from fedhp.exchange import NeighborMixing
from fedhp.graph import among
from fedhp.record.reader import RunReader
from fedhp.types import Decision, LinkVerdict, Plan, Reports

CHANGING: dict[str, dict[str, Any]] = {
    "one_peer_exponential": {},
    "base_k": {"k": 2},
    "random_regular": {"degree": 1, "redraw": True},
    "small_world": {"redraw": True, "neighbors": 2},
}
FIXED: dict[str, dict[str, Any]] = {
    "exponential": {},
    "torus": {},
    "hypercube": {},
    "small_world": {},
    "star": {"center": 2},
}


def experiment(
    name: str, topology: str, settings: dict[str, Any], *, workers: int = 8, **changes: Any
) -> Experiment:
    tables: dict[str, Any] = {
        "workers": workers,
        "rounds": 6,
        "algorithm": {"name": name},
        "topology": {"name": topology, **settings},
        "model": {"name": "mlp", "hidden": [8]},
        "data": {"skew": 0.6},
        "training": {"local_steps": 3, "batch_size": 8},
        "evaluation": {"every": 6, "images": 50},
        "world": {"profile": "slow_links", "model_megabits": 12},
    }
    for key, value in changes.items():
        tables[key] = {**tables.get(key, {}), **value} if isinstance(value, dict) else value
    return parse(tables)


def on_base(name: str, topology: str, settings: dict[str, Any], **more: Any) -> Experiment:
    return experiment(name, topology, settings, **more, algorithm={"neighbors": "base"})


def spread(rows: np.ndarray[Any, np.dtype[np.float32]]) -> float:
    return float(np.abs(rows - rows.mean(axis=0)).max())


@pytest.mark.parametrize(
    ("topology", "settings", "workers", "cycle"),
    [("one_peer_exponential", {}, 8, 3), ("base_k", {"k": 2}, 7, 4), ("base_k", {}, 5, 5)],
)
def test_models_are_equal_after_a_cycle_without_training_in_between(
    topology: str, settings: dict[str, Any], workers: int, cycle: int
) -> None:
    """The mixing of a real run: different models go in, one and the same comes out."""
    prepared = prepare(on_base("dpsgd", topology, settings, workers=workers))
    changing = prepared.federation.changing
    assert changing is not None
    assert changing.period == cycle
    engine = LocalExecutor(prepared)
    try:
        steps = np.full(workers, 5, dtype=np.int64)
        engine.train(steps, round_index=1, learning_rate=0.5)
        for round_index in range(1, cycle + 1):
            if round_index > 1:
                engine.train(0 * steps, round_index=round_index, learning_rate=0.5)
            exchange = NeighborMixing(prepared.federation.topology_at(round_index))
            exchange.carry_out(engine, round_index=round_index)
            engine.advance()
            after = spread(engine.state()["models"])
            assert (after < 1e-6) == (round_index == cycle)
    finally:
        engine.close()


@pytest.mark.parametrize("algorithm", ["dpsgd", "ldsgd"])
@pytest.mark.parametrize("topology", CHANGING)
def test_the_links_of_a_round_are_those_of_its_topology(
    algorithm: str, topology: str, tmp_path: Path
) -> None:
    settings = on_base(algorithm, topology, CHANGING[topology])
    prepared = prepare(settings)
    with fedhp.run(settings, tmp_path / "run") as run:
        for round_index in range(1, 7):
            table = run.table("links", round_index=round_index)
            pairs = np.stack([table["a"], table["b"]], axis=1)
            expected = prepared.federation.topology_at(round_index).links
            assert pairs.tolist() == expected.tolist()
            assert set(table["verdict"]) <= {"scheduled"}
    text = " ".join(fedhp.explain(tmp_path / "run", 2).split())
    assert "The topology changes over rounds: this one has" in text


def test_a_run_that_is_resumed_and_one_on_two_executors_have_the_same_bits(tmp_path: Path) -> None:
    settings = on_base("dpsgd", "base_k", {"k": 1}, workers=7, world={"away_probability": 0.2})
    with fedhp.run(settings, tmp_path / "whole") as run:
        whole = run.digest()
    for record in start_run(settings, tmp_path / "part").rounds():
        if record.round_index == 3:
            break
    with fedhp.run(settings, tmp_path / "part", resume=True) as run:
        assert run.digest() == whole
    model = {"hidden": [1600]}  # large enough for two threads
    digests = []
    for executors in (1, 2):
        changed = on_base("dpsgd", "base_k", {"k": 1}, workers=7, model=model, executors=executors)
        assert prepare(changed).executors == executors
        with fedhp.run(changed, tmp_path / str(executors)) as run:
            digests.append(run.digest())
    assert digests[0] == digests[1]


@pytest.mark.parametrize(("topology", "workers"), [("base_k", 5), ("one_peer_exponential", 4)])
def test_the_network_has_the_bits_of_the_simulation(
    topology: str, workers: int, tmp_path: Path
) -> None:
    settings = on_base(
        "dpsgd",
        topology,
        {},
        workers=workers,
        cluster={"min_workers": workers, "suspect_after": 20.0, "dead_after": 60.0},
    )
    with Cluster(settings, tmp_path / "run", restart=False) as cluster:
        cluster.start()
        cluster.wait(120)
    assert check_invariants(tmp_path / "run", rounds=6) == []
    verification = verify(tmp_path / "run")
    assert [verdict.compared for verdict in verification.rounds] == [workers] * 6
    assert verification.equal
    prepared = prepare(settings)
    with RunReader(tmp_path / "run") as run:
        for round_index in range(1, 7):
            table = run.table("links", round_index=round_index)
            pairs = np.stack([table["a"], table["b"]], axis=1)
            expected = prepared.federation.topology_at(round_index).links
            assert pairs.tolist() == expected.tolist()


@pytest.mark.parametrize("topology", FIXED)
def test_fedhp_starts_from_every_fixed_topology(topology: str) -> None:
    """Round 1 has all links of the base; later ones have some of them, and stay connected."""
    prepared = prepare(experiment("fedhp", topology, FIXED[topology]))
    base = set(map(tuple, prepared.federation.base_topology.links.tolist()))
    for algorithm in ("fedhp", "adpsgd", "pens", "dpsgd"):
        changes: dict[str, Any] = (
            {"algorithm": {"neighbors": "base"}} if algorithm == "dpsgd" else {}
        )
        prepare(experiment(algorithm, topology, FIXED[topology], **changes))
    engine = LocalExecutor(prepared)
    try:
        for record in RoundLoop(prepared, engine).rounds():
            used = set(map(tuple, record.links.tolist()))
            assert used == base if record.round_index == 1 else used <= base
            assert fedhp.graph.is_connected(fedhp.Topology(8, record.links))
    finally:
        engine.close()


def test_what_if_replays_runs_on_topologies(tmp_path: Path) -> None:
    for topology, algorithm in (("base_k", "dpsgd"), ("torus", "ldsgd"), ("torus", "fedhp")):
        folder = tmp_path / f"{topology}-{algorithm}"
        changes: dict[str, Any] = {}
        if algorithm != "fedhp":
            changes = {"algorithm": {"neighbors": "base"}}
        with fedhp.run(experiment(algorithm, topology, {}, **changes), folder):
            pass
        answer = whatif(folder)
        assert answer.first_difference is None
        planners = {outcome.planner: outcome for outcome in answer.planners}
        both = {"dpsgd:neighbors=base", "ldsgd:neighbors=base"}
        following = both - {f"{algorithm}:neighbors=base"}
        if topology == "base_k":
            assert planners.keys() == following
        else:
            assert following < planners.keys()
            assert not {"dpsgd", "ldsgd"} & planners.keys()
        assert all(planners[name].sure == "exact" for name in following)
        # Another topology, without training; D-PSGD and LD-SGD keep the base as neighbors.
        ring = whatif(folder, overrides=["topology.name=ring"], planners=[algorithm])
        assert ring.planners[0].mean_links <= 8


REFUSED: list[tuple[str, str, dict[str, Any], dict[str, Any], str, str]] = [
    ("dpsgd", "torus", {}, {}, "algorithm.neighbors", "'base'"),
    ("ldsgd", "base_k", {}, {}, "algorithm.neighbors", "ldsgd:neighbors=base"),
    ("dpsgd", "random", {"redraw": True}, {}, "algorithm.neighbors", "'base'"),
    ("fedhp", "base_k", {}, {}, "topology.name", "'exponential'"),
    ("fedhp", "one_peer_exponential", {}, {}, "topology.name", "'hypercube'"),
    ("adpsgd", "random", {"redraw": True}, {}, "topology.name", "redraw = false"),
    ("pens", "base_k", {}, {}, "topology.name", "'exponential'"),
    (
        "dpsgd",
        "base_k",
        {},
        {"algorithm": {"neighbors": "base", "weights": "metropolis"}},
        "algorithm.weights",
        "remove algorithm.weights",
    ),
    (
        "fedhp",
        "star",
        {"center": 3},
        {"world": {"away": [{"worker": 3, "first": 2, "last": 4}]}},
        "world.away",
        "topology.center",
    ),
    ("adpsgd", "star", {}, {"world": {"away_probability": 0.1}}, "world.away_probability", "away"),
]


@pytest.mark.parametrize(("algorithm", "topology", "settings", "changes", "key", "fix"), REFUSED)
def test_what_would_have_no_effect_or_fall_apart_is_refused(
    algorithm: str,
    topology: str,
    settings: dict[str, Any],
    changes: dict[str, Any],
    key: str,
    fix: str,
) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(experiment(algorithm, topology, settings, **changes))
    assert caught.value.key == key
    assert fix in caught.value.fix


class Follower:
    """An algorithm of one's own that mixes on the topology of the round."""

    traits = Traits(follows_changes=True)

    def start(self, federation: Federation) -> RingState:
        return RingState(np.arange(federation.workers), 2)

    def plan(
        self, state: RingState, observation: Observation, reports: Reports
    ) -> tuple[RingState, Plan]:
        assert observation.topology is not None
        topology = among(observation.topology, observation.available)
        links = topology.links
        decision = Decision(
            links,
            np.full(len(links), LinkVerdict.SCHEDULED, dtype=np.int64),
            observation.network.link_time(links, topology.degrees),
            "as the topology says",
        )
        steps = np.where(observation.available, state.steps, 0)
        return state, Plan(NeighborMixing(topology), decision, local_steps=steps)


class Stubborn(Follower):
    """It does not say that it follows."""

    traits = Traits()


def test_an_own_algorithm_follows_a_topology_if_it_says_so(tmp_path: Path) -> None:
    settings = experiment(f"{__name__}:Follower", "base_k", {}, workers=5, seed=1)
    expected = prepare(settings).federation
    with fedhp.run(settings, tmp_path / "own") as run:
        for round_index in range(1, 7):
            table = run.table("links", round_index=round_index)
            pairs = np.stack([table["a"], table["b"]], axis=1)
            assert pairs.tolist() == expected.topology_at(round_index).links.tolist()
        own = run.array("rounds", "clock")
    same = on_base("dpsgd", "base_k", {}, workers=5, seed=1, training={"local_steps": 2})
    with fedhp.run(same, tmp_path / "dpsgd") as run:
        assert run.array("rounds", "clock").tolist() == own.tolist()
    with pytest.raises(ConfigError, match="changes over rounds") as caught:
        prepare(experiment(f"{__name__}:Stubborn", "base_k", {}, workers=5))
    assert "traits = Traits(follows_changes=True)" in str(caught.value)


def test_algorithms_with_their_own_links_run_beside_any_topology() -> None:
    own: dict[str, dict[str, Any]] = {
        "fedhp_plus": {},
        "free_links": {},
        "dpsgd": {"neighbors": "ring"},
    }
    for algorithm, settings in own.items():
        rounds = {}
        for topology in ("base_k", "full"):
            given = experiment(algorithm, topology, {}, rounds=3, algorithm=settings)
            engine = LocalExecutor(prepare(given))
            records = list(loop_of(engine).rounds())
            rounds[topology] = [(record.clock, record.links.tolist()) for record in records]
            engine.close()
        assert rounds["base_k"] == rounds["full"], algorithm
        assert len(rounds["full"]) == 3
    with_absences = prepare(experiment("dpsgd", "star", {}, world={"away_probability": 0.1}))
    assert with_absences.federation.base_topology.degrees.tolist() == [7] + [1] * 7
