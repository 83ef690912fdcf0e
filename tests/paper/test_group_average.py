"""FedHP+ (SPEC 7) against naive references: the sum, the momentum, the tree's time, the choice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import networkx
import numpy as np
import pytest

from contract.rounds import federation, observe, report
from fedhp.algorithms import Observation, fedhp_plus
from fedhp.algorithms.fedhp_plus import FedHPPlus, FedHPPlusState
from fedhp.algorithms.group_tree import _prim, build_tree, fastest_first
from fedhp.exchange import GroupAverage
from fedhp.exchange.group import CHUNKS
from fedhp.learn.group import fragment_columns, group_step, next_momentum, received
from fedhp.learn.quantize import INT8_LEVELS, from_int8_blocks, to_int8_blocks
from fedhp.timing import INT8_BLOCK, Network
from fedhp.types import GroupRole, Plan, Reports

MEGABIT = 1e6
WIDTH = 700
CHAIN = GroupAverage(  # 4 - 2 - 7 - {1, 9}, and 9 returns
    participants=np.array([1, 2, 4, 7, 9]),
    parents=np.array([7, 4, -1, 2, 7]),
    returning=np.array([False, False, False, False, True]),
)


def with_compression(compression: str, momentum: float = 0.7) -> GroupAverage:
    return GroupAverage(
        CHAIN.participants,
        CHAIN.parents,
        CHAIN.returning,
        momentum=momentum,
        compression=compression,
    )


def rows(seed: int, count: int = 5, scale: float = 1.0) -> Any:
    values = scale * np.random.default_rng(seed).normal(size=(count, WIDTH))
    return values.astype(np.float32)


def step(exchange: GroupAverage, **known: Any) -> Any:
    nothing = np.zeros(WIDTH, dtype=np.float32)
    given = {
        "residuals": np.zeros((5, WIDTH), dtype=np.float32),
        "plain": np.zeros((5, 0), dtype=np.float32),
        "consensus": {7: nothing},
        "momentum": nothing,
        "root_residual": nothing,
    }
    return group_step(exchange, **{**given, **known})


# --- the arithmetic --------------------------------------------------------------------------


def test_without_compression_it_is_the_plain_mean_with_nesterov_momentum() -> None:
    """m = k m + u and c = c + u + k m, round by round, in float64."""
    exchange = with_compression("none")
    consensus = momentum = np.zeros(WIDTH, dtype=np.float32)
    naive_consensus = naive_momentum = np.zeros(WIDTH)
    for round_index in range(6):
        changes = rows(round_index)
        done = step(exchange, changes=changes, consensus={7: consensus}, momentum=momentum)
        mean = changes.astype(np.float64).mean(axis=0)
        naive_momentum = 0.7 * naive_momentum + mean
        naive_consensus = naive_consensus + mean + 0.7 * naive_momentum
        consensus = consensus + done.change
        momentum = next_momentum(done.change, momentum, 0.7)
        np.testing.assert_allclose(consensus, naive_consensus, atol=2e-5)
        np.testing.assert_allclose(momentum, naive_momentum, atol=2e-5)
        assert not done.residuals.any()
        assert not done.root_residual.any()
        np.testing.assert_array_equal(done.wholes[9], consensus)


@pytest.mark.parametrize(("momentum", "rate"), [(0.7, 0.5), (0.0, 1.5), (0.9, 2.0)])
def test_an_outer_rate_scales_the_step_of_the_consensus_alone(momentum: float, rate: float) -> None:
    """m = k m + u and c = c + r (u + k m), round by round, in float64."""
    exchange = replace(with_compression("none", momentum), rate=rate)
    consensus = own = np.zeros(WIDTH, dtype=np.float32)
    naive_consensus = naive_momentum = np.zeros(WIDTH)
    for round_index in range(6):
        changes = rows(round_index)
        done = step(exchange, changes=changes, consensus={7: consensus}, momentum=own)
        mean = changes.astype(np.float64).mean(axis=0)
        naive_momentum = momentum * naive_momentum + mean
        naive_consensus = naive_consensus + rate * (mean + momentum * naive_momentum)
        consensus = consensus + done.change
        own = next_momentum(done.change, own, momentum, rate=rate)
        np.testing.assert_allclose(consensus, naive_consensus, atol=4e-5)
        np.testing.assert_allclose(own, naive_momentum, atol=4e-5)


def test_without_momentum_it_is_the_mean() -> None:
    changes = rows(1)
    done = step(with_compression("none", momentum=0.0), changes=changes)
    np.testing.assert_allclose(done.change, changes.astype(np.float64).mean(axis=0), atol=1e-6)


def test_what_int8_leaves_out_is_kept() -> None:
    """Changes + old residuals = what reaches the root + new residuals, to float rounding."""
    exchange = with_compression("int8", momentum=0.0)
    changes, residuals = rows(2), rows(3, scale=0.01)
    root_residual = rows(4, count=1, scale=0.01)[0]
    done = step(exchange, changes=changes, residuals=residuals, root_residual=root_residual)
    total = (changes.astype(np.float64) + residuals).sum(axis=0)
    reached = total - done.residuals.astype(np.float64).sum(axis=0)
    np.testing.assert_allclose(
        done.change + done.root_residual, reached / 5 + root_residual, atol=1e-5
    )
    assert done.residuals[[0, 1, 3, 4]].any(axis=1).all()
    assert not done.residuals[2].any()  # the root sends no message upwards
    assert np.abs(done.residuals).max() < 20 / INT8_LEVELS  # half a step of the largest sums


def test_nothing_is_lost_over_many_rounds() -> None:
    """Error feedback: the consensus follows the exact one, the distance does not grow."""
    exchange = with_compression("int8", momentum=0.0)
    residuals = np.zeros((5, WIDTH), dtype=np.float32)
    consensus = root_residual = np.zeros(WIDTH, dtype=np.float32)
    exact = np.zeros(WIDTH)
    for round_index in range(40):
        changes = rows(round_index)
        done = step(exchange, changes=changes, residuals=residuals, root_residual=root_residual)
        exact += changes.astype(np.float64).mean(axis=0)
        consensus = consensus + done.change
        residuals, root_residual = done.residuals, done.root_residual
    held_back = residuals.astype(np.float64).sum(axis=0) / 5 + root_residual
    np.testing.assert_allclose(consensus + held_back, exact, atol=2e-5)


def test_a_returning_worker_gets_the_consensus_in_8_bits() -> None:
    consensus = rows(5, count=1)[0]
    done = step(with_compression("int8"), changes=rows(6), consensus={7: consensus})
    new = consensus + done.change
    np.testing.assert_array_equal(done.wholes[9], from_int8_blocks(*to_int8_blocks(new)))
    largest = np.abs(new).max()
    assert 0 < np.abs(done.wholes[9] - new).max() <= 0.51 * largest / INT8_LEVELS


def test_plain_columns_get_the_mean_of_the_values() -> None:
    values = np.full((5, 3), 0.1, dtype=np.float32)
    values[:, 2] = [1, 2, 3, 4, 5]
    done = step(with_compression("int8"), changes=rows(7), plain=values)
    assert done.plain.tolist() == [np.float32(0.1), np.float32(0.1), 3.0]


def test_int8_blocks() -> None:
    """The nearest of 255 levels of each block; a naive loop gives the same."""
    row = rows(8, count=1)[0]
    row[INT8_BLOCK : 2 * INT8_BLOCK] = 0
    codes, scales = to_int8_blocks(row)
    assert len(scales) == 3
    for block, scale in enumerate(scales):
        part = slice(block * INT8_BLOCK, min((block + 1) * INT8_BLOCK, WIDTH))
        assert scale == np.float32(np.abs(row[part]).max() / INT8_LEVELS)
        levels = np.zeros(0) if not scale else np.rint(row[part] / np.float64(scale))
        assert codes[part].tolist() == (levels if len(levels) else 0 * row[part]).tolist()
    back = from_int8_blocks(codes, scales)
    np.testing.assert_array_equal(back, received(row, "int8"))
    assert np.abs(back - row).max() <= scales.max() / 2 * (1 + 1e-5)
    assert len(to_int8_blocks(row[:0])[0]) == len(to_int8_blocks(row[:0])[1]) == 0


def test_fragments_cover_the_model() -> None:
    for columns, fragments in ((10, 3), (7, 7), (6442, 2)):
        parts = [fragment_columns(columns, part, fragments) for part in range(fragments)]
        assert parts[0][0] == 0
        assert parts[-1][1] == columns
        assert all(one[1] == other[0] for one, other in pairwise(parts))
        sizes = [stop - start for start, stop in parts]
        assert max(sizes) - min(sizes) <= 1


# --- the tree and its time -------------------------------------------------------------------


def random_network(seed: int, workers: int, per: str, **more: Any) -> Network:
    rng = np.random.default_rng(seed)
    bandwidth = rng.uniform(1, 10, (workers, workers) if per == "link" else workers) * MEGABIT
    if per == "link":
        bandwidth = np.minimum(bandwidth, bandwidth.T)
    return Network(bandwidth, 12 * MEGABIT, **more)


def group_of(network: Network, members: list[int], leaves: list[int], root: int) -> GroupAverage:
    tree = build_tree(network, root=root, others=members, leaves=leaves)
    order = np.argsort(tree.workers)
    return GroupAverage(
        tree.workers[order],
        tree.parents[order],
        np.isin(tree.workers[order], leaves),
        fragments=2,
    )


@pytest.mark.parametrize("per", ["worker", "shared", "link"])
@pytest.mark.parametrize("seed", range(4))
def test_the_time_of_a_transfer(per: str, seed: int) -> None:
    """SPEC's three formulas, when nobody returns."""
    network = random_network(seed, 12, per, sharing=per == "shared", latency=0.25)
    order = fastest_first(network, np.ones(12, dtype=np.bool_)).tolist()
    group = group_of(network, order[1:], [], order[0])
    message = 12 * MEGABIT / 2 * (1 / 4 + 1 / 256)
    graph = networkx.Graph(group.links.tolist())
    assert networkx.is_tree(graph)
    bandwidth = network.bandwidth
    if per == "worker":
        rate = bandwidth.min()
    elif per == "shared":
        rate = min(bandwidth[worker] / degree for worker, degree in graph.degree)
    else:
        complete = networkx.Graph()
        complete.add_weighted_edges_from(
            (a, b, bandwidth[a, b]) for a in range(12) for b in range(a)
        )
        best = networkx.maximum_spanning_edges(complete, data=True)
        rate = min(data["weight"] for _, _, data in best)
    depth = max(networkx.single_source_shortest_path_length(graph, group.root).values())
    assert group.depth == depth
    expected = message / rate * (1 + 2 * depth / CHUNKS) + 2 * depth * 0.25
    assert group.transfer_time(network) == pytest.approx(expected, rel=1e-12)
    # 2 (n - 1) messages: a byte for each of 187,500 values and 733 scales, the last block's too.
    assert group.link_bytes(12 * MEGABIT).sum() == 2 * 11 * (187_500 + 4 * 733)


@pytest.mark.parametrize("per", ["worker", "shared", "link"])
def test_returning_workers_are_leaves_and_cost_no_more_than_others(per: str) -> None:
    network = random_network(9, 10, per, sharing=per == "shared")
    order = fastest_first(network, np.ones(10, dtype=np.bool_)).tolist()
    leaves = order[4:]
    group = group_of(network, order[1:4], leaves, order[0])
    assert not set(leaves) & set(group.parents.tolist())
    without = GroupAverage(group.participants, group.parents, group.returning & False, fragments=2)
    assert group.transfer_time(network) == without.transfer_time(network)
    message = 187_500 + 4 * 733
    assert group.link_bytes(12 * MEGABIT).tolist() == [2 * message] * 9


def test_who_has_no_link_is_not_reached() -> None:
    speeds = np.full((4, 4), -np.inf)
    speeds[0, 1] = speeds[1, 0] = 2.0
    order, above = _prim(speeds, 0)
    assert (order.tolist(), above.tolist()) == ([0, 1], [0, 0])


def test_bytes_are_those_of_the_coded_fragments() -> None:
    """What the codes and scales of each fragment of a real row take, also where neither the
    fragments nor the blocks divide the row."""
    row = np.random.default_rng(3).normal(size=1_003).astype(np.float32)
    for fragment in range(3):
        start, stop = fragment_columns(len(row), fragment, 3)
        codes, scales = to_int8_blocks(row[start:stop])
        message = codes.nbytes + scales.nbytes
        chain = GroupAverage(
            np.arange(3), np.array([-1, 0, 0]), np.array([False, False, True]), fragment, 3
        )
        assert chain.link_bytes(32 * len(row)).tolist() == [2 * message] * 2
        plain = replace(chain, compression="none")
        assert plain.link_bytes(32 * len(row)).tolist() == [2 * row[start:stop].nbytes] * 2


def test_a_shared_tree_spares_slow_workers() -> None:
    network = Network(np.array([10.0, 9, 8, 1.2, 1.1, 1.0]) * MEGABIT, 12 * MEGABIT, sharing=True)
    group = group_of(network, [1, 2, 3, 4, 5], [], 0)
    degrees = np.bincount(group.links.ravel())
    assert degrees[3:].tolist() == [1, 1, 1]


# --- who takes part --------------------------------------------------------------------------


def play(
    rounds: int, workers: int = 12, *, away: bool = False, per: str = "worker", **settings: Any
) -> Iterator[tuple[FedHPPlusState, Observation, Plan]]:
    algorithm = FedHPPlus(**settings)
    state = algorithm.start(federation(workers))
    reports: Reports = report(None, workers, 0)
    for round_index in range(1, rounds + 1):
        observation = observe(workers, round_index, away=away, per=per)
        before = state
        state, plan = algorithm.plan(state, observation, reports)
        yield before, observation, plan
        reports = report(plan, workers, round_index)


def group(plan: Plan) -> GroupAverage:
    assert isinstance(plan.exchange, GroupAverage)
    return plan.exchange


@pytest.mark.parametrize("per", ["worker", "link"])
@pytest.mark.parametrize(("fragments", "patience"), [(1, 3), (2, 3), (3, 1)])
def test_nobody_is_left_out_for_longer_than_allowed(
    per: str, fragments: int, patience: int
) -> None:
    missed = np.zeros((fragments, 12), dtype=np.int64)
    most = 0
    for _, _, plan in play(60, per=per, fragments=fragments, patience=patience):
        exchange = group(plan)
        assert exchange.fragment < fragments
        if not len(exchange.participants):
            continue
        missed[exchange.fragment] += 1
        missed[exchange.fragment, exchange.participants] = 0
        most = max(most, int(missed.max()))
        roles = plan.decision.participation
        assert roles is not None
        assert [role is not GroupRole.LEFT_OUT for role in roles.roles] == np.isin(
            np.arange(12), exchange.participants
        ).tolist()
    assert most <= patience
    assert most == patience or per == "link"


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("min_share", [0.0, 0.4])
def test_the_root_holds_the_current_consensus(away: bool, min_share: float) -> None:
    """Or the newest that is present: then a round later it is the current one."""
    newest = [0, 0]
    returned = 0
    for before, observation, plan in play(120, away=away, min_share=min_share, patience=9):
        exchange = group(plan)
        if not len(exchange.participants):
            continue
        held = before.held[exchange.fragment]
        present = observation.available
        assert held[exchange.root] == held[present].max()
        if not away:
            assert held[exchange.root] == newest[exchange.fragment]
        holds = held[exchange.participants] == held[exchange.root]
        assert exchange.returning.tolist() == (~holds).tolist()
        holders = exchange.participants[holds]
        since = before.since[exchange.fragment]
        assert since[exchange.root] == since[holders].min()
        newest[exchange.fragment] = observation.round_index
        returned += int(exchange.returning.sum())
    assert returned


def test_one_who_holds_the_consensus_is_added() -> None:
    """The fast workers change completely from one average to the next."""
    algorithm = FedHPPlus(min_share=0.0, fragments=1, patience=9)
    state, added = algorithm.start(federation(12)), []
    for round_index in range(2, 5):
        bandwidth = np.full(12, 1e3)
        first, last = 4 * (round_index % 3), 4 * ((round_index - 1) % 3)
        bandwidth[last] = 5e6
        bandwidth[first : first + 4] = 1e7
        network = Network(bandwidth, 12e6)
        here = np.ones(12, dtype=np.bool_)
        observation = Observation(round_index, 0.0, 0.3, here, network)
        before = state
        state, plan = algorithm.plan(state, observation, report(None, 12, 0))
        assert plan.decision.participation is not None
        roles = plan.decision.participation.roles
        added.append([worker for worker in range(12) if roles[worker] is GroupRole.ADDED])
        assert before.held[0, group(plan).root] == before.held.max()
    assert added[0] == []
    assert [len(workers) for workers in added[1:]] == [1, 1]


@pytest.mark.parametrize("sharing", [False, True])
def test_the_choice_is_the_best_of_all_sizes(sharing: bool) -> None:
    """All prefixes of the workers by bandwidth, tried here one by one."""
    algorithm = FedHPPlus()
    state = algorithm.start(federation(12))
    observation = observe(12, 2, away=False)
    network = Network(observation.network.bandwidth, 12e6, sharing=sharing)
    observation = Observation(2, 10.0, 0.3, observation.available, network)
    _, plan = algorithm.plan(state, observation, report(None, 12, 0))
    order = np.argsort(-network.bandwidth)
    costs = {}
    for size in range(5, 13):  # max(3, 0.4 N) to N
        tried = group_of(network, order[1:size].tolist(), [], int(order[0]))
        costs[size] = (algorithm.first_deadline + tried.transfer_time(network)) / size
    best = min(costs, key=lambda size: costs[size])
    assert sorted(order[:best].tolist()) == group(plan).participants.tolist()
    assert plan.decision.facts["objective"] == pytest.approx(costs[best])


def test_the_deadline() -> None:
    """0.2 of the smoothed transfer time, at least five steps of the fastest worker."""
    plans = [plan for _, _, plan in play(3)]
    assert plans[0].deadline == 0.3
    facts = plans[1].decision.facts
    assert facts["smoothed_transfer_time"] == facts["planned_transfer_time"]
    assert plans[1].deadline is not None
    assert plans[1].deadline >= 0.2 * facts["planned_transfer_time"]
    most = FedHPPlus(deadline_ratio=1000.0, max_steps=7)
    state, observation = most.start(federation(12)), observe(12, 2, away=False)
    _, plan = most.plan(state, observation, report(None, 12, 0))
    step_time = report(None, 12, 0).step_time
    assert plan.deadline == pytest.approx(7 * step_time.min())
    least = FedHPPlus(deadline_ratio=0.0, min_steps=3)
    _, plan = least.plan(state, observation, report(None, 12, 0))
    assert plan.deadline == pytest.approx(3 * step_time.min())


def test_a_round_without_an_average_keeps_the_smoothed_transfer_time() -> None:
    """Measured times count by 0.3, missing ones not at all."""
    algorithm = FedHPPlus()
    observation = observe(12, 1, away=False)  # the first round averages nothing
    state = algorithm.start(federation(12))
    smoothed = []
    for measured in (np.nan, 4.0, np.nan, 2.0, np.nan):
        reports = replace(report(None, 12, 0), transfer_time=measured)
        state, _ = algorithm.plan(state, observation, reports)
        smoothed.append(state.transfer_time)
    np.testing.assert_allclose(smoothed, [np.nan, 4.0, 4.0, 3.4, 3.4])


def test_of_equally_fast_links_the_one_to_the_earlier_worker_is_taken() -> None:
    """Who is already in the tree stays the parent: no deeper than it has to be."""
    speeds = np.full((5, 5), 4 * MEGABIT)
    tree = build_tree(Network(speeds, 12 * MEGABIT), root=2, others=[0, 1, 3, 4], leaves=[])
    assert tree.workers.tolist() == [2, 0, 1, 3, 4]
    assert tree.parents.tolist() == [-1, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("budget", "sizes"), [(11, [5, 12]), (12, [5, 8, 12]), (24, [5, 7, 10, 12])]
)
def test_so_many_sizes_are_tried(
    budget: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smallest and the largest always, others as far as they are affordable."""
    monkeypatch.setattr(fedhp_plus, "WORKERS_TRIED", budget)
    tried = []

    class Counting(FedHPPlus):
        def _exchange(self, fragment: int, observation: Observation, **chosen: Any) -> GroupAverage:
            tried.append(len(chosen["holders"]) + len(chosen["returning"]))
            return super()._exchange(fragment, observation, **chosen)

    algorithm = Counting()
    algorithm.plan(algorithm.start(federation(12)), observe(12, 2, away=False), report(None, 12, 0))
    assert tried == sizes


def test_thousands_of_workers_are_planned() -> None:
    """Not every size is tried."""
    algorithm = FedHPPlus()
    workers = 3000
    known = federation(30)
    state = algorithm.start(type(known)(workers, 5, 0, 5, known.base_topology))
    available = np.ones(workers, dtype=np.bool_)
    bandwidth = np.random.default_rng(0).uniform(1e6, 1e7, workers)
    observation = Observation(2, 1.0, 0.3, available, Network(bandwidth, 12e6, sharing=True))
    reports = report(None, workers, 0)
    _, plan = algorithm.plan(state, observation, reports)
    assert 1200 <= len(group(plan).participants) <= workers
