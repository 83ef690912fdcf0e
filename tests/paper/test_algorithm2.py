"""Algorithm 2, the coordinator's side, and SPEC 2 to 5: FedHP.plan against the reference.

The reference coordinator and fedhp's get the same random reports for several rounds and have
to agree on everything they keep and on every plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from fedhp.algorithms import Federation, Observation
from fedhp.algorithms.fedhp import FedHP, FedHPState
from fedhp.exchange import NeighborMixing
from fedhp.graph import topology_from
from fedhp.types import Reports
from paper.compare import leaves
from paper.instances import as_links, connected_graphs, network_of, random_base
from paper.plays import NAN, Play, Seen, numbers, reports_of
from paper.reference import Wires
from paper.reference_fedhp import ReportedNumbers, Rules


def same(mine: float, theirs: float | None) -> None:
    assert mine == pytest.approx(NAN if theirs is None else theirs, rel=1e-10, nan_ok=True)


def agree(seen: Seen) -> None:
    """Everything the two keep and plan is the same."""
    state, theirs, plan = seen.state, seen.coordinator, seen.plan
    np.testing.assert_allclose(state.step_time, numbers(theirs.step_time), rtol=1e-12)
    known = np.array([numbers(row) for row in theirs.distances])
    np.testing.assert_allclose(state.distance, known, rtol=1e-10)
    same(state.distance_bound, theirs.bound)
    same(state.smoothness, theirs.smoothness)
    same(state.gradient_variance, theirs.gradient_variance)
    same(state.initial_loss, theirs.initial_loss)
    same(state.first_raw_pace, theirs.first_raw)
    same(plan.decision.facts["raw_pace"], theirs.raw())
    same(plan.decision.facts["pace_steps"], theirs.pace_steps())
    assert isinstance(plan.exchange, NeighborMixing)
    assert as_links(plan.exchange.topology) == seen.expected.links
    assert plan.local_steps is not None
    assert plan.local_steps[plan.local_steps > 0].tolist() == seen.expected.assigned.steps
    same(plan.deadline or NAN, seen.expected.assigned.deadline)
    same(plan.decision.facts["objective"], seen.expected.assigned.cost)
    same(plan.decision.facts["base_objective"], seen.expected.base_cost)
    same(plan.decision.facts["planned_round_time"], seen.expected.assigned.round_time)
    assert plan.decision.facts["iterations"] == len(seen.expected.search_steps)


RULES = {
    "opt": Rules(),
    "opt, waiting constraint": Rules(waiting_tolerance=0.05),
    "opt, no bound": Rules(bound="none"),
    "fill": Rules(deadline="fill"),
    "fill, waiting constraint": Rules(deadline="fill", waiting_tolerance=0.05, max_steps=40),
    "fill, formula": Rules(deadline="fill", pace="formula"),
    "fill, fixed": Rules(deadline="fill", pace="fixed", initial_steps=12),
    "fill, smoothings": Rules(
        deadline="fill", smoothing=0.3, distance_smoothing=0.2, bound_smoothing=0.9
    ),
    "paper's bound": Rules(deadline="fill", bound="gradient", bound_scale=1.0),
    "opt, bound 0": Rules(bound_scale=0.0),
    "literal": Rules(planner="literal"),
}


@pytest.mark.parametrize("name", RULES)
def test_alg2_line6_plans_equal_the_reference(name: str) -> None:
    """Full and sparse base, both kinds of bandwidth, sharing, workers away, ties."""
    cuts = 0
    for case in range(16):
        rng = np.random.default_rng([list(RULES).index(name), case])
        workers = int(rng.integers(1, 13)) if case else 1
        base = random_base(rng, workers, (1.0, 0.3)[case % 2])
        play = Play(
            rng,
            rules=RULES[name],
            workers=workers,
            base=base,
            per=("worker", "link")[case // 2 % 2],
            sharing=bool(case // 4 % 2),
            away=(0.0, 0.25)[case // 8 % 2],
            ties=case % 3 == 0,
        )
        for _ in range(5):
            seen = play.step()
            agree(seen)
            cuts += len(seen.plan.decision.links) - len(seen.expected.links)
    assert (cuts > 0) == (name != "opt, bound 0")


@pytest.mark.parametrize("name", ["opt", "fill", "literal"])
def test_alg2_line6_plans_equal_the_reference_on_all_connected_graphs(name: str) -> None:
    for workers in (1, 2, 3, 4):
        for number, base in enumerate(connected_graphs(workers)):
            play = Play(
                np.random.default_rng([8, workers, number]),
                rules=RULES[name],
                workers=workers,
                base=base,
                per=("worker", "link")[number % 2],
                sharing=number // 2 % 2 == 1,
                away=(0.0, 0.2)[number % 5 == 4],
            )
            for _ in range(3):
                agree(play.step())


@pytest.fixture
def play() -> Play:
    """Six workers, a full graph, the rule that uses the pace."""
    full = [(i, j) for i in range(6) for j in range(i + 1, 6)]
    return Play(np.random.default_rng(5), rules=Rules(deadline="fill"), workers=6, base=full)


def test_alg2_line2_everyone_present_gets_steps_and_neighbors(play: Play) -> None:
    for _ in range(4):
        plan = play.step().plan
        assert plan.local_steps is not None
        assert plan.local_steps.min() >= 1
        assert isinstance(plan.exchange, NeighborMixing)
        assert plan.exchange.topology.degrees.min() >= 1


def test_alg2_line3_step_times_are_smoothed(play: Play) -> None:
    first = play.step().state.step_time
    reported = numbers(play.reported.step_time)
    second = play.step().state.step_time
    np.testing.assert_allclose(second, 0.5 * first + 0.5 * reported, rtol=1e-12)


def test_alg2_line4_smoothness_is_the_median_smoothed(play: Play) -> None:
    """The paper's mean is replaced by the median (SPEC 6); then a moving average of 0.5."""
    play.step()
    play.reported.smoothness = [1.0, 2.0, 3.0, 4.0, 100.0, math.inf]
    state = play.step().state
    assert state.smoothness == 3.0
    play.reported.smoothness = [5.0, 5.0, 5.0, None, None, None]
    assert play.step().state.smoothness == 0.5 * 3.0 + 0.5 * 5.0


def test_alg2_line5_variance_is_the_mean_smoothed(play: Play) -> None:
    play.step()
    play.reported.gradient_variance = [1.0, 2.0, 3.0, 6.0, None, math.inf]
    assert play.step().state.gradient_variance == 3.0
    play.reported.gradient_variance = [5.0, 5.0, 5.0, None, None, None]
    assert play.step().state.gradient_variance == 4.0
    play.reported.gradient_variance = [None] * 6
    assert play.step().state.gradient_variance == 4.0


def test_spec2_round_1_uses_the_base_topology_and_the_initial_steps(play: Play) -> None:
    seen = play.step()
    assert isinstance(seen.plan.exchange, NeighborMixing)
    assert as_links(seen.plan.exchange.topology) == play.base
    assert seen.plan.decision.facts["pace_steps"] == 30
    assert seen.plan.estimate is not None
    assert seen.plan.estimate.all()


def test_spec3_pace_is_the_ratio_to_round_1(play: Play) -> None:
    """Equal estimates: only the learning rate moves the ratio, by 1 / 0.98 per round."""
    play.step()
    for round_index in range(2, 6):
        play.reported.smoothness = [4.0] * 6
        play.reported.gradient_variance = [2.0] * 6
        play.reported.start_loss = [2.3] * 6
        facts = play.step().plan.decision.facts
        assert facts["pace_steps"] == pytest.approx(30 / 0.98 ** (round_index - 1))
        raw = math.sqrt(6 * 2.3 / (4.0 * 20 * (0.1 * 0.98 ** (round_index - 1)) ** 2 * 2.0))
        assert facts["raw_pace"] == pytest.approx(raw)


@pytest.mark.parametrize(("variance", "pace"), [(1e-9, 100.0), (1e9, 1.0)])
def test_spec3_pace_is_clipped(play: Play, variance: float, pace: float) -> None:
    play.step()
    play.reported.smoothness = [4.0] * 6
    play.reported.gradient_variance = [2.0] * 6
    play.step()
    for _ in range(3):
        play.reported.smoothness = [4.0 * variance] * 6
        play.reported.gradient_variance = [2.0 * variance] * 6
        facts = play.step().plan.decision.facts
    assert facts["pace_steps"] == pace


def test_spec3_the_pace_does_not_enter_opt() -> None:
    full = [(i, j) for i in range(6) for j in range(i + 1, 6)]
    plans = []
    for pace in ("ratio", "fixed", "formula"):
        rules = Rules(deadline="opt", pace=pace)
        play = Play(np.random.default_rng(6), rules=rules, workers=6, base=full)
        plans.append([play.step() for _ in range(4)])
    for same_round in zip(*plans, strict=True):
        assert len({tuple(seen.expected.links) for seen in same_round}) == 1
        steps = [seen.plan.local_steps for seen in same_round]
        assert all(each is not None and (each == steps[0]).all() for each in steps)


def test_spec5_bound_is_half_the_mean_update_norm_smoothed(play: Play) -> None:
    assert math.isnan(play.step().state.distance_bound)
    play.reported.update_norm = [2.0, 4.0, 6.0, 2.0, 4.0, 6.0]
    assert play.step().state.distance_bound == 2.0
    play.reported.update_norm = [1.0, 1.0, None, 1.0, 1.0, 1.0]
    assert play.step().state.distance_bound == 0.5 * 2.0 + 0.5 * 0.5


def test_eq43_as_printed_divides_by_the_learning_rate_of_its_round() -> None:
    full = [(i, j) for i in range(4) for j in range(i + 1, 4)]
    rules = Rules(bound="gradient", bound_scale=1.0)
    play = Play(np.random.default_rng(7), rules=rules, workers=4, base=full)
    play.step()
    play.reported.update_norm = [1.0, 2.0, 3.0, 4.0]
    assert play.step().state.distance_bound == pytest.approx(2.5 / 0.1)
    play.reported.update_norm = [1.0] * 4
    expected = 0.5 * 25.0 + 0.5 / (0.1 * 0.98)
    assert play.step().state.distance_bound == pytest.approx(expected)


def estimating(
    algorithm: FedHP, workers: int, round_index: int, there: Sequence[int] | None = None
) -> set[int] | None:
    """Who is asked to measure in this round."""
    base = topology_from(workers, [(i, i + 1) for i in range(workers - 1)])
    state = algorithm.start(Federation(workers, 99, 5, 17, base))
    available = np.isin(np.arange(workers), range(workers) if there is None else there)
    nothing: list[float | None] = [None] * workers
    reported = ReportedNumbers([0.1] * workers, nothing, {}, nothing, nothing, nothing)
    network = network_of(Wires(12e6, dict.fromkeys(range(workers), 1000000.0)), workers)
    observation = Observation(round_index, 0.0, 0.1, available, network)
    asked = algorithm.plan(state, observation, reports_of(reported, 0))[1].estimate
    return None if asked is None else set(np.flatnonzero(asked).tolist())


def test_spec6_who_measures() -> None:
    """Everyone in round 1, then ten at a time; all have had their turn before one comes again."""
    rounds = {h: estimating(FedHP(), 25, h) for h in range(1, 13)}
    assert rounds[1] == set(range(25))
    assert all(rounds[h] is None for h in (2, 4, 6, 8, 10, 12))
    third, fifth, seventh = rounds[3], rounds[5], rounds[7]
    assert third is not None
    assert fifth is not None
    assert seventh is not None
    assert len(third) == len(fifth) == len(seventh) == 10
    assert not third & fifth
    assert third | fifth | seventh == set(range(25))
    assert estimating(FedHP(), 10, 3) == set(range(10))
    assert estimating(FedHP(probe_workers=None), 25, 3) == set(range(25))
    assert rounds[3] == estimating(FedHP(), 25, 3)


def test_spec6_who_measures_is_there() -> None:
    for there in ([3], [0, 7, 8, 20], list(range(12))):
        asked = estimating(FedHP(), 25, 5, there)
        assert asked is not None
        assert asked <= set(there)
        assert len(asked) == min(10, len(there))
        assert estimating(FedHP(), 25, 1, there) == set(there)


def test_spec5_sampled_sources_that_are_all_workers_change_nothing() -> None:
    """And fewer keep the rows they would have had."""
    workers = 30
    rng = np.random.default_rng(9)
    base = topology_from(workers, random_base(rng, workers, 0.2))
    states: list[FedHPState] = []
    for sources in (None, workers, 12):
        algorithm = FedHP(distance_sources=sources, bound="none")
        state = algorithm.start(Federation(workers, 9, 0, 17, base))
        draws = np.random.default_rng(10)
        links = np.empty((0, 2), dtype=np.int64)
        for round_index in range(1, 5):
            nothing = np.full(workers, NAN)
            reported = Reports(
                round_index - 1,
                draws.uniform(0.1, 0.3, workers),
                draws.uniform(1, 2, workers),
                links,
                draws.uniform(0.2, 2, len(links)),
                nothing,
                nothing,
                nothing,
                np.empty((workers, 0), dtype=np.int64),
            )
            network = network_of(
                Wires(12e6, dict(enumerate(draws.uniform(1e6, 1e7, workers).tolist()))), workers
            )
            everyone = np.ones(workers, dtype=np.bool_)
            seen = Observation(round_index, 0.0, 0.1, everyone, network)
            state, plan = algorithm.plan(state, seen, reported)
            assert isinstance(plan.exchange, NeighborMixing)
            links = plan.exchange.topology.links
            assert plan.decision.facts.get("distance_sources") == (12 if sources == 12 else None)
        states.append(state)
    assert leaves(states[0]) == leaves(states[1])
    few = states[2]
    assert few.distance.shape == (12, workers)
    np.testing.assert_allclose(few.distance, states[0].distance[few.sources], rtol=1e-12)
    np.testing.assert_allclose(few.link_distance, states[0].link_distance, rtol=1e-12)
