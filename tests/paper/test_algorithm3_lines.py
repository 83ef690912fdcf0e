"""Algorithm 3, the planner, line by line, and SPEC 4 (see README.md)."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, pairwise, repeat

import networkx
import numpy as np
import pytest

from fedhp.algorithms.pace import fill, literal, objective, opt
from fedhp.algorithms.search import SearchResult
from fedhp.types import LinkVerdict
from paper import reference, reference_fedhp
from paper.agreement import MODES, agree
from paper.instances import (
    Instance,
    as_links,
    assigner,
    draw,
    expected,
    found,
    random_base,
    revealed,
    scripted,
)
from paper.reference import Link


def constant(problem: Instance) -> tuple[SearchResult, list[list[Link]]]:
    """The search with an objective that no removal improves."""
    steps = np.ones(len(problem.present), dtype=np.int64)
    return revealed(problem, "opt", assign=scripted(steps, repeat(1.0)))


def fewer_is_better(problem: Instance) -> tuple[SearchResult, list[list[Link]]]:
    """The search with an objective that every removal improves."""
    steps = np.ones(len(problem.present), dtype=np.int64)
    return revealed(problem, "opt", assign=scripted(steps, map(float, range(10_000, 0, -1))))


def removed(tried: list[list[Link]]) -> list[int]:
    """How many links each candidate lacks of the one it was made from (the base here)."""
    return [len(tried[0]) - len(links) for links in tried[1:]]


def test_alg3_line1_starts_from_the_base_topology() -> None:
    rng = np.random.default_rng(1)
    for workers in (2, 5, 9):
        base = random_base(rng, workers, 0.3)
        _, tried = revealed(draw(rng, workers, base=base), "opt")
        assert tried[0] == base


def test_alg3_lines2_3_the_fastest_worker_literally() -> None:
    """T_i = tau mu_i + b_i for all, l the least, T = T_l: what the literal reading minimises."""
    step_time, communication = np.array([0.1, 0.3, 0.05]), np.array([2.0, 1.0, 6.0])
    result = literal(step_time, communication, pace_steps=10.7, max_steps=100)
    assert result.deadline == result.objective == pytest.approx(10 * 0.1 + 2.0)
    assert result.local_steps.tolist() == [10, 6, 1]


def test_alg3_line6_search_step() -> None:
    """isqrt of the sum over ordered pairs: 29 of a full graph of 30, then of what is left."""
    problem = draw(np.random.default_rng(2), 30, per="link", bound="infinite")
    result, tried = fewer_is_better(problem)
    sizes = [len(links) for links in tried]
    assert sizes[0] == 435
    assert sizes[1] == 435 - 29
    for before, after in pairwise(sizes[:5]):
        assert before - after == int(np.sqrt(2 * before))
    assert len(result.topology.links) == 29  # a spanning tree: nothing more can go


def test_alg3_line8_halving_and_lines21_22_stop() -> None:
    """Without success: 29, 14, 7, 3, 1, then the end; the base topology stays."""
    problem = draw(np.random.default_rng(3), 30, per="link", bound="infinite")
    result, tried = constant(problem)
    assert removed(tried) == [29, 14, 7, 3, 1]
    assert result.iterations == 5
    assert as_links(result.topology) == problem.base


def test_alg3_lines5_8_the_step_grows_again_after_an_improvement() -> None:
    problem = draw(np.random.default_rng(4), 10, per="link", bound="infinite")
    steps = np.ones(10, dtype=np.int64)
    answers = chain([9.0, 9.0, 8.0], repeat(9.0))  # base, a failure, a success, failures
    result, tried = revealed(problem, "opt", assign=scripted(steps, answers))
    sizes = [len(links) for links in tried]
    assert sizes[:3] == [45, 45 - 9, 45 - 4]
    assert sizes[3] == 41 - 9  # isqrt(82) = 9, from the accepted topology
    assert [41 - size for size in sizes[3:]] == [9, 4, 2, 1]
    assert len(result.topology.links) == 41


def test_alg3_line9_slowest_links_first() -> None:
    for seed in range(10):
        problem = draw(np.random.default_rng([5, seed]), 9, per="link", bound="infinite")
        _, tried = constant(problem)
        gone = set(tried[0]) - set(tried[1])
        slowest = sorted(tried[0], key=lambda link: -problem.wires.time(link, tried[0]))
        assert gone == set(slowest[:8])  # a full graph of nine stays connected without them


def test_alg3_line9_ties_by_smaller_distance() -> None:
    rng = np.random.default_rng(6)
    problem = draw(rng, 6, per="link", bound="infinite")
    same = dict.fromkeys(problem.wires.of_link, 1e6)
    problem = replace(problem, wires=replace(problem.wires, of_link=same))
    _, tried = constant(problem)
    near = sorted(tried[0], key=lambda link: problem.distances[link[0]][link[1]])
    assert set(tried[0]) - set(tried[1]) == set(near[:5])


def test_alg3_line9_eq42_links_beyond_the_bound_are_skipped() -> None:
    """The slowest link is far apart: it stays, the next ones go instead."""
    problem = draw(np.random.default_rng(7), 6, per="link", bound="infinite")
    slow = max(problem.base, key=lambda link: problem.wires.time(link, problem.base))
    apart = [list(row) for row in problem.distances]
    apart[slow[0]][slow[1]] = apart[slow[1]][slow[0]] = 1000.0
    problem = replace(problem, distances=apart, bound=10.0)
    result, tried = constant(problem)
    assert slow in tried[1]
    assert len(tried[1]) == len(tried[0]) - 5
    verdict = dict(zip(as_links(problem.topology), result.verdicts.tolist(), strict=True))
    assert verdict[slow] == LinkVerdict.KEPT_BOUND


def test_alg3_line9_eq42_a_sum_equal_to_the_bound_is_within_it() -> None:
    for case in range(80):
        rng = np.random.default_rng([8, case])
        loose = draw(rng, int(rng.integers(3, 9)), per="link", ties=True, bound="infinite")
        attained = reference.mean_distance(
            loose.present, expected(loose, "opt").links, loose.distances
        )
        result = agree(replace(loose, bound=attained), "opt")
        assert result.mean_distance <= attained + 1e-12


def test_alg3_line9_eq36_links_absent_from_the_base_count() -> None:
    """Beyond the bound from the start: nothing is removed."""
    rng = np.random.default_rng(9)
    ring = [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)]
    problem = draw(rng, 5, base=ring, per="link")
    absent = reference.mean_distance(problem.present, ring, problem.distances)
    result, tried = revealed(replace(problem, bound=absent * 0.999), "opt")
    assert as_links(result.topology) == sorted(ring)
    assert len(tried) == 1
    assert set(result.verdicts.tolist()) == {LinkVerdict.KEPT_ALL}
    loose, tried = constant(replace(problem, bound=absent + 10))
    assert len(tried) > 1
    assert as_links(loose.topology) == sorted(ring)


def test_alg3_lines11_14_the_topology_stays_connected() -> None:
    for seed in range(20):
        rng = np.random.default_rng([10, seed])
        workers = int(rng.integers(2, 12))
        base = random_base(rng, workers, float(rng.uniform(0, 1)))
        problem = draw(rng, workers, base=base, per="link", bound="infinite")
        result, tried = fewer_is_better(problem)
        for links in tried:
            assert networkx.is_connected(reference.graph_of(range(workers), links))
        assert len(result.topology.links) == workers - 1
        assert set(as_links(result.topology)) <= set(base)


def test_alg3_lines13_14_a_bridge_is_skipped_not_counted() -> None:
    """The slowest link is a bridge: s others go."""
    triangle_and_tail = [(0, 1), (0, 2), (1, 2), (2, 3)]
    problem = draw(
        np.random.default_rng(11), 4, base=triangle_and_tail, per="link", bound="infinite"
    )
    speeds = {(2, 3): 1e6, (0, 1): 2e6, (0, 2): 3e6, (1, 2): 4e6, (0, 3): 1e6, (1, 3): 1e6}
    problem = replace(problem, wires=replace(problem.wires, of_link=speeds))
    result, tried = constant(problem)
    assert tried[1] == [(0, 2), (1, 2), (2, 3)]
    verdicts = dict(zip(triangle_and_tail, result.verdicts.tolist(), strict=True))
    assert verdicts[2, 3] == LinkVerdict.KEPT_BRIDGE
    assert verdicts[0, 1] == LinkVerdict.KEPT_NO_GAIN


@pytest.mark.parametrize("mode", MODES)
def test_alg3_lines15_18_accepted_only_if_the_objective_falls(mode: str) -> None:
    """Along the candidates, the kept ones are exactly those that beat all before them."""
    for seed in range(20):
        rng = np.random.default_rng([12, seed])
        problem = draw(rng, 8, per="link", bound=("finite", "infinite")[seed % 2])
        result, tried = revealed(problem, mode)
        decide = assigner(problem, mode)
        network = problem.network
        prices = []
        for links in tried:
            topology = problem.topology.keep(
                np.array([link in links for link in as_links(problem.topology)])
            )
            prices.append(decide(network.communication_time(topology)).objective)
        assert result.assignment.objective == min(prices)
        assert as_links(result.topology) == tried[int(np.argmin(prices))]
        assert result.base_objective == prices[0]


@pytest.mark.parametrize("mode", MODES)
def test_alg3_line16_steps_are_those_of_the_accepted_topology(mode: str) -> None:
    """A rejected candidate leaves no trace in the steps (the paper's line 16 would)."""
    for seed in range(20):
        problem = draw(np.random.default_rng([13, seed]), 7, per="link")
        result = found(problem, mode)
        again = assigner(problem, mode)(problem.network.communication_time(result.topology))
        assert result.assignment.local_steps.tolist() == again.local_steps.tolist()
        assert result.assignment.deadline == again.deadline


def test_alg3_line23_steps_that_fit_the_deadline() -> None:
    rng = np.random.default_rng(14)
    for _ in range(50):
        workers = int(rng.integers(1, 9))
        step_time, communication = rng.uniform(0.02, 0.4, workers), rng.uniform(0, 6, workers)
        for result in (
            opt(step_time, communication, max_steps=100),
            fill(step_time, communication, pace_steps=30.0, max_steps=100),
        ):
            times = result.local_steps * step_time + communication
            assert (times <= result.deadline + 1e-6).all()
            more = times + step_time > result.deadline
            assert (more | (result.local_steps == 100)).all()


@pytest.mark.parametrize("tolerance", [None, 0.0, 0.05, 1.0])
def test_spec4_objective(tolerance: float | None) -> None:
    rng = np.random.default_rng(15)
    steps = rng.integers(1, 101, (20, 6))
    times = rng.uniform(1, 9, (20, 6))
    expected_costs = [
        reference_fedhp.objective(s, t, tolerance)
        for s, t in zip(steps.tolist(), times.tolist(), strict=True)
    ]
    np.testing.assert_allclose(objective(steps, times, tolerance), expected_costs, rtol=1e-12)


def test_spec4_fill_gives_time_to_everyone() -> None:
    """The slowest needs b + mu anyway: the paper's deadline would be shorter than that."""
    step_time, communication = np.array([0.03, 0.3]), np.array([1.0, 8.0])
    result = fill(step_time, communication, pace_steps=10.0, max_steps=1000)
    assert result.deadline == 8.3
    assert result.local_steps.tolist() == [243, 1]
    printed = literal(step_time, communication, pace_steps=10.0, max_steps=1000)
    assert printed.deadline == pytest.approx(1.3)
    assert printed.round_time == 8.3  # it takes that long all the same


def test_alg3_decisions_name_every_link() -> None:
    """CUT exactly where the link is gone."""
    for seed in range(20):
        rng = np.random.default_rng([16, seed])
        problem = draw(rng, 8, base=random_base(rng, 8, 0.6), per="link")
        result = found(problem, "opt")
        kept = set(as_links(result.topology))
        links = [(int(a), int(b)) for a, b in result.base_links]
        for link, verdict in zip(links, result.verdicts.tolist(), strict=True):
            assert (verdict == LinkVerdict.CUT) == (link not in kept)
