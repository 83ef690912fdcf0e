"""The rivals of SPEC 8 against the reference: D-PSGD, LD-SGD, AD-PSGD event by event, PENS."""

from __future__ import annotations

from typing import Any

import networkx
import numpy as np
import pytest
import torch
from torch.nn import functional

from fedhp.algorithms import Federation, Observation, load_algorithm
from fedhp.algorithms.adpsgd import ADPSGD
from fedhp.algorithms.base import Algorithm
from fedhp.algorithms.pens import PENS
from fedhp.engine.events import EventLoop
from fedhp.engine.executor import LocalTraining
from fedhp.engine.sharded import LocalExecutor
from fedhp.exchange import DirectedMixing, NeighborMixing, Scoring
from fedhp.graph import mixing_matrix, topology_from
from fedhp.learn.params import Replica
from fedhp.learn.task import initial_model
from fedhp.seeds import Purpose, generator
from fedhp.timing import Network
from fedhp.types import BoolArray, IntArray, Plan, Reports, StepReason, StepRule, Topology
from paper import reference, reference_rivals
from paper.instances import as_links
from paper.reference import Link
from paper.tiny import engine_of, loop_of, tiny


def full(workers: int) -> Topology:
    pairs = [(i, j) for i in range(workers) for j in range(i + 1, workers)]
    return topology_from(workers, pairs)


def federation(workers: int, *, rounds: int = 40, seed: int = 0) -> Federation:
    return Federation(workers, rounds, seed, 30, full(workers))


def observation(round_index: int, available: BoolArray) -> Observation:
    network = Network(np.full(len(available), 5e6), 12e6)
    return Observation(round_index, 0.0, 0.1, available, network)


def nothing(workers: int, round_index: int, selected: IntArray | None = None) -> Reports:
    missing = np.full(workers, np.nan)
    return Reports(
        round_index=round_index,
        step_time=np.full(workers, 0.1),
        update_norm=missing,
        links=np.empty((0, 2), dtype=np.int64),
        distance=np.empty(0),
        smoothness=missing,
        gradient_variance=missing,
        start_loss=missing,
        selected=np.empty((workers, 0), dtype=np.int64) if selected is None else selected,
    )


def plans(
    name: str, workers: int, rounds: int, *, seed: int = 0, away: int = -1, **settings: Any
) -> list[Plan]:
    """The plans of a ring algorithm."""
    algorithm = load_algorithm(name, settings)
    assert isinstance(algorithm, Algorithm)
    state = algorithm.start(federation(workers, rounds=rounds, seed=seed))
    made = []
    for round_index in range(1, rounds + 1):
        there = np.arange(workers) != away
        state, plan = algorithm.plan(
            state, observation(round_index, there), nothing(workers, round_index - 1)
        )
        made.append(plan)
    return made


# --- D-PSGD and LD-SGD -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dpsgd", "ldsgd"])
def test_spec8_the_ring(name: str) -> None:
    """A ring over a random permutation, w = 1/3, the same every round."""
    made = plans(name, 30, 4)
    rings = set()
    for plan in made:
        assert isinstance(plan.exchange, NeighborMixing)
        topology = plan.exchange.topology
        assert topology.degrees.tolist() == [2] * 30
        assert networkx.is_connected(reference.graph_of(range(30), as_links(topology)))
        weights = mixing_matrix(topology, plan.exchange.weights)
        assert set(weights[topology.adjacency].round(12)) == {round(1 / 3, 12)}
        np.testing.assert_allclose(np.diag(weights), 1 / 3)
        rings.add(tuple(as_links(topology)))
    assert len(rings) == 1
    side_by_side = sum((b - a) in (1, 29) for a, b in next(iter(rings)))
    assert side_by_side < 10  # not in index order
    other = plans(name, 30, 1, seed=1)[0].exchange
    assert isinstance(other, NeighborMixing)
    assert tuple(as_links(other.topology)) not in rings


def test_spec8_dpsgd_fixed_steps() -> None:
    for plan in plans("dpsgd", 5, 3):
        assert plan.local_steps is not None
        assert plan.local_steps.tolist() == [30] * 5
    for plan in plans("dpsgd", 5, 3, steps=7):
        assert plan.local_steps is not None
        assert plan.local_steps.tolist() == [7] * 5


def test_spec8_the_ring_closes_over_a_worker_that_is_away() -> None:
    plan = plans("dpsgd", 6, 1, away=2)[0]
    assert isinstance(plan.exchange, NeighborMixing)
    assert plan.exchange.topology.degrees.tolist() == [2, 2, 0, 2, 2, 2]
    assert plan.local_steps is not None
    assert plan.local_steps.tolist() == [30, 30, 0, 30, 30, 30]


@pytest.mark.parametrize(("local", "communicating"), [(30, 2), (5, 1), (0, 3), (7, 4)])
def test_spec8_ldsgd_schedule(local: int, communicating: int) -> None:
    made = plans("ldsgd", 4, 11, steps=local, communications=communicating)
    found = [plan.local_steps.tolist() for plan in made if plan.local_steps is not None]
    expected = reference_rivals.ldsgd_schedule(local, communicating, 11)
    assert found == [[steps] * 4 for steps in expected]
    reasons = [plan.decision.rule for plan in made]
    assert [isinstance(reason, StepReason) and reason.rule for reason in reasons] == [
        StepRule.COMMUNICATING_PHASE if index % communicating else StepRule.LOCAL_PHASE
        for index in range(11)
    ]
    if (local, communicating) == (30, 2):
        assert expected[:4] == [31, 1, 31, 1]


# --- AD-PSGD ---------------------------------------------------------------------------------


def events_of(engine: LocalExecutor) -> EventLoop:
    return EventLoop(engine.prepared, engine, tester=engine)


@pytest.mark.parametrize("sharing", [False, True])
def test_spec8_adpsgd_event_by_event(sharing: bool) -> None:
    """Snapshot, steps, the change added to the current model, both average on arrival."""
    workers, rounds, steps = 4, 3, 2
    more = {
        "workers": workers,
        "rounds": rounds,
        "model": {"hidden": [3]},
        "world": {"bandwidth": {"sharing": sharing}},
    }
    experiment = tiny("adpsgd", more, steps=steps)
    with engine_of(experiment) as engine:
        initial = engine.shard.rows.models.double().tolist()
        world = engine.prepared.world
        loop = events_of(engine)
        algorithm, state = loop.algorithm, loop.planner.state
        everyone = np.ones(workers, dtype=np.bool_)

        def train(worker: int, turn: int, snapshot: list[float], events: int) -> list[float]:
            rate = 0.1 * 0.98 ** (events // workers)
            with engine_of(experiment) as apart:
                apart.shard.rows.after[worker] = torch.tensor(snapshot)
                apart.train_snapshots({worker: LocalTraining(turn + 1, steps, rate)})
                change = apart.shard.rows.after[worker].tolist()
            return [start + moved for start, moved in zip(snapshot, change, strict=True)]

        def compute(worker: int, turn: int, now: float) -> float:
            return float(world.step_times(worker, turn + 1, steps=steps, time=now).sum())

        def transfer(worker: int, partner: int, now: float, active: list[Link]) -> float:
            bandwidth = dict(enumerate(world.bandwidth.at(now).tolist()))
            wires = reference.Wires(12e6, bandwidth, sharing=sharing)
            return wires.time((worker, partner), active)

        def partner(worker: int, turn: int) -> int:
            _, action = algorithm.act(state, worker, observation(1, everyone), turn=turn)
            assert action.partner is not None
            assert action.local_steps == steps
            return action.partner

        for done, record in enumerate(loop.rounds(), start=1):
            expected, log = reference_rivals.adpsgd(
                initial,
                events=done * workers,
                train=train,
                compute=compute,
                transfer=transfer,
                partner=partner,
            )
            np.testing.assert_allclose(
                engine.shard.rows.models.numpy(), expected, rtol=1e-3, atol=1e-5
            )
            assert record.clock == pytest.approx(log[-1].time, rel=1e-9)
            pairs = {
                (min(each.worker, each.partner), max(each.worker, each.partner))
                for each in log[-workers:]
            }
            assert {(int(a), int(b)) for a, b in record.links} == pairs
            assert record.link_bytes.sum() == workers * 2 * engine.prepared.model_bytes
            assert record.timing.mean_waiting_time == 0.0
            assert record.learning_rate == pytest.approx(0.1 * 0.98 ** (done - 1))
    assert done == rounds


def test_spec11_adpsgd_an_averaging_event_preserves_the_mean() -> None:
    with engine_of(tiny("adpsgd", {"rounds": 2})) as engine:
        loop = events_of(engine)
        seen = 0
        average = engine.average

        def watched(worker: int, partner: int, *, compression: str = "none") -> float:
            nonlocal seen
            before = engine.shard.rows.models.double()
            distance = average(worker, partner, compression=compression)
            after = engine.shard.rows.models.double()
            assert torch.equal(after[worker], after[partner])
            others = [i for i in range(5) if i not in (worker, partner)]
            assert torch.equal(after[others], before[others])
            change = (after.mean(dim=0) - before.mean(dim=0)).norm()
            assert float(change / before.mean(dim=0).norm()) <= 1e-6
            seen += 1
            return distance

        engine.average = watched  # type: ignore[method-assign]
        list(loop.rounds())
        assert seen == 10  # a round is N events


def test_spec8_adpsgd_partners_are_drawn_evenly() -> None:
    """Full graph by default; ring selectable."""
    workers = 6
    everyone = np.ones(workers, dtype=np.bool_)
    counts: dict[str, np.ndarray[Any, np.dtype[np.int64]]] = {}
    for kind in ("base", "ring"):
        algorithm = ADPSGD(neighbors=kind)
        state = algorithm.start(federation(workers))
        counts[kind] = np.zeros((workers, workers), dtype=np.int64)
        for worker in range(workers):
            for turn in range(200):
                _, action = algorithm.act(state, worker, observation(1, everyone), turn=turn)
                assert action.partner is not None
                counts[kind][worker, action.partner] += 1
    assert np.diag(counts["base"]).sum() == 0
    assert counts["base"][~np.eye(workers, dtype=np.bool_)].min() > 15
    assert ((counts["ring"] > 0).sum(axis=1) == 2).all()
    assert (counts["ring"] > 60).sum() == 2 * workers


# --- PENS ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rounds", "stage"), [(100, 25), (40, 10), (4, 1), (8, 2)])
def test_spec8_pens_first_stage_is_a_quarter_of_the_rounds(rounds: int, stage: int) -> None:
    made = plans("pens", 12, rounds)
    kinds = [plan.exchange.name for plan in made]
    assert kinds == ["PeerScoring"] * stage + ["DirectedMixing"] * (rounds - stage)


def test_spec8_pens_defaults() -> None:
    plan = plans("pens", 30, 40)[0]
    exchange = plan.exchange
    assert isinstance(exchange, DirectedMixing)
    assert exchange.score == Scoring(keep=3, samples=64, cost_per_candidate=0.67)
    assert exchange.sources.shape == (30, 10)
    for worker, row in enumerate(exchange.sources.tolist()):
        assert len(set(row) - {worker}) == 10
        assert min(row) >= 0
    assert plan.local_steps is not None
    assert plan.local_steps.tolist() == [30] * 30


def test_spec8_pens_first_stage_in_a_run() -> None:
    """Scored on own samples, the best averaged with one's own; transfers and scoring paid for."""
    settings = {"peers": 4, "keep": 2, "samples": 16, "steps": 2}
    experiment = tiny("pens", {"workers": 6, "rounds": 8}, **settings)
    with engine_of(experiment) as engine:
        loop, prepared, world = loop_of(engine), engine.prepared, engine.prepared.world
        replica = Replica(initial_model(prepared.task, experiment.seed), prepared.layout)
        started = 0.0
        for record in loop.rounds():
            if record.round_index > 2:
                break
            trained = engine.shard.rows.after.double().tolist()
            sources: dict[int, list[int]] = {i: [] for i in range(6)}
            for receiver, sender in record.links.tolist():
                sources[receiver].append(sender)
            times = []
            for worker, part in enumerate(prepared.parts):
                rng = generator(experiment.seed, Purpose.SCORING, worker, record.round_index)
                own = part[rng.integers(len(part), size=16)]
                losses = []
                for peer in sources[worker]:
                    replica.bind(
                        engine.shard.rows.after[peer], engine.shard.rows.after_counters[peer]
                    )
                    with torch.no_grad():
                        outputs = replica.module(engine.shard.rows.samples.inputs[own])
                    targets = engine.shard.rows.samples.targets[own]
                    losses.append(float(functional.cross_entropy(outputs, targets)))
                best = reference_rivals.pens_selection(sources[worker], losses, 2)
                assert set(loop.planner.last_reports.selected[worker].tolist()) == best
                expected = reference_rivals.average_of(trained, [worker, *best])
                np.testing.assert_allclose(
                    engine.shard.rows.models[worker].numpy(), expected, rtol=1e-4, atol=1e-5
                )
                took = world.step_times(worker, record.round_index, steps=2, time=started)
                bandwidth = world.bandwidth.at(started)
                pulls = [12e6 / min(bandwidth[worker], bandwidth[j]) for j in sources[worker]]
                scoring = 4 * 0.67 * float(took.mean())
                times.append(float(took.sum()) + scoring + max(pulls))
            np.testing.assert_allclose(record.timing.worker_time, times, rtol=1e-9)
            assert record.link_bytes.tolist() == [prepared.model_bytes] * 24
            started += max(times)


@pytest.mark.parametrize("symmetric", [False, True])
def test_spec8_pens_second_stage_draws_from_those_kept_more_often_than_by_chance(
    symmetric: bool,
) -> None:
    workers, rounds = 12, 80
    algorithm = PENS(symmetric=symmetric)
    state = algorithm.start(federation(workers, rounds=rounds))
    rng = np.random.default_rng(1)
    counts = np.zeros((workers, workers), dtype=np.int64)
    everyone = np.ones(workers, dtype=np.bool_)
    selected: IntArray | None = None
    drawn: dict[int, set[int]] = {i: set() for i in range(workers)}

    def proved(worker: int) -> set[int]:
        others = [j for j in range(workers) if j != worker]
        return reference_rivals.pens_proved(
            counts[worker].tolist(), others, keep=3, stage_rounds=rounds // 4
        )

    for round_index in range(1, rounds + 1):
        state, plan = algorithm.plan(
            state, observation(round_index, everyone), nothing(workers, round_index - 1, selected)
        )
        selected = None
        if isinstance(plan.exchange, DirectedMixing) and plan.exchange.score is not None:
            # Everyone likes workers of its own parity better, but not always.
            rows = []
            for worker, row in enumerate(plan.exchange.sources.tolist()):
                ranked = sorted(row, key=lambda j: (j - worker) % 2 + 3 * rng.random())
                rows.append(ranked[:3])
                for peer in ranked[:3]:
                    counts[worker, peer] += 1
            selected = np.array(rows, dtype=np.int64)
            continue
        assert round_index > rounds // 4
        for worker, peer in plan.decision.links.tolist():
            drawn[worker].add(peer)
        if symmetric:
            assert isinstance(plan.exchange, NeighborMixing)
            weights = mixing_matrix(plan.exchange.topology, plan.exchange.weights)
            np.testing.assert_allclose(weights, weights.T)
        else:
            assert isinstance(plan.exchange, DirectedMixing)
            for worker, row in enumerate(plan.exchange.sources.tolist()):
                chosen = [peer for peer in row if peer >= 0]
                assert len(chosen) == min(3, len(proved(worker)))
                assert set(chosen) <= proved(worker)
    assert len({len(proved(worker)) for worker in range(workers)}) > 1
    for worker in range(workers):
        assert drawn[worker] == proved(worker)
