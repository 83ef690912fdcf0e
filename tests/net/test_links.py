"""Estimates of links from transfers, and guesses where nothing was measured."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from fedhp.cluster.coordinator.planning.link_estimates import (
    LinkEstimates,
    Transfer,
    least_capacities,
)
from fedhp.graph import full
from fedhp.timing import Network, mean_bandwidth


def test_a_time_becomes_a_bandwidth_and_is_smoothed() -> None:
    links = LinkEstimates(3)
    links.learn(0, 1, bits=8e6, seconds=2.0, round_index=4)
    assert links.bandwidth(0, 1) == links.bandwidth(1, 0) == 4e6
    links.learn(1, 0, bits=8e6, seconds=1.0, round_index=5)
    assert links.bandwidth(0, 1) == pytest.approx(6e6)
    assert links.measured(1, 0) == 5


def test_transfers_that_shared_a_connection_show_its_capacity() -> None:
    """Worker 0 has 10, 1 has 2 and 2 has 9 bits per second; 0 pulls 12 bits from 1 and from 2."""
    slow = Transfer(receiver=0, sender=1, bits=12.0, started=3.0, seconds=6.0)
    quick = Transfer(receiver=0, sender=2, bits=12.0, started=5.0, seconds=1.5)  # 8: what is left
    capacities = least_capacities([slow, quick], workers=4)
    assert capacities[:3].tolist() == pytest.approx([10.0, 2.0, 8.0])
    assert np.isnan(capacities[3])


def test_an_uneven_share_does_not_make_a_connection_look_faster() -> None:
    """Three transfers through worker 0, which has 6 bits per second: 4, 1 and 1 of them."""
    transfers = [Transfer(0, peer, 2.0 * rate, 0.0, 2.0) for peer, rate in ((1, 4), (2, 1), (3, 1))]
    assert least_capacities(transfers, workers=4).tolist() == pytest.approx([6.0, 4.0, 1.0, 1.0])


def test_transfers_one_after_the_other_do_not_add_up() -> None:
    transfers = [Transfer(1, 0, 6.0, start, 1.0) for start in (0.0, 1.0, 5.0)]
    assert least_capacities(transfers, workers=2).tolist() == pytest.approx([6.0, 6.0])


def test_a_faster_connection_counts_at_once_and_a_slower_one_gradually() -> None:
    links = LinkEstimates(3)
    for bits, capacity in ((4.0, 4.0), (10.0, 10.0), (4.0, 7.0)):
        links.learn_shared([Transfer(0, 1, bits, 0.0, 1.0)], round_index=6)
        assert links.capacity[:2].tolist() == [capacity, capacity]
    assert np.isnan(links.capacity[2])
    assert links.measured(0, 1) == links.measured(1, 0) == 6
    assert links.bandwidth(0, 1) == links.bandwidth(1, 0) == 7.0
    network = links.network(model_bits=14.0, sharing=True, otherwise=1.0)
    pairs = np.array([[0, 1]])
    assert network.link_time(pairs, np.array([2, 1, 0])).tolist() == [4.0]


def rates(network: Network, *pairs: tuple[int, int]) -> list[float]:
    return [float(rate) for rate in network.link_rate(np.array(pairs))]


def test_an_unknown_link_is_guessed_from_its_slower_end() -> None:
    links = LinkEstimates(4)
    links.learn(0, 1, bits=1e6, seconds=1.0, round_index=1)
    links.learn(2, 1, bits=5e6, seconds=1.0, round_index=1)
    network = links.network(model_bits=1.0, sharing=False, otherwise=7.0)
    # Worker 0 is the slower end of 0 - 2; worker 3 was never measured, and counts as the median.
    assert rates(network, (0, 2), (1, 0), (1, 2), (2, 3)) == [1e6, 1e6, 5e6, 3e6]
    nothing = LinkEstimates(2).network(model_bits=1.0, sharing=False, otherwise=7.0)
    assert rates(nothing, (0, 1)) == [7.0]


def test_the_network_is_that_of_a_matrix_of_all_pairs() -> None:
    """The rule in the obvious way: a matrix, and a median for each of its rows."""
    workers, rng = 9, np.random.default_rng(3)
    links, matrix = LinkEstimates(workers), np.full((workers, workers), np.nan)
    for a, b in [(0, 1), *rng.integers(workers, size=(30, 2)).tolist()]:
        if a != b and 7 not in (a, b):  # nothing is known of worker 7
            links.learn(a, b, bits=float(rng.uniform(1e6, 9e6)), seconds=1.0, round_index=1)
            matrix[a, b] = matrix[b, a] = links.bandwidth(a, b)
    row_medians = np.array(
        [
            np.median(row[np.isfinite(row)]) if np.isfinite(row).any() else np.nanmedian(matrix)
            for row in matrix
        ]
    )
    guess = np.minimum(row_medians[:, None], row_medians)
    expected = np.where(np.isnan(matrix), guess, matrix)
    network = links.network(model_bits=1.0, sharing=False, otherwise=7.0)
    pairs = np.array([(a, b) for a in range(workers) for b in range(workers) if a != b])
    assert network.link_rate(pairs).tolist() == expected[tuple(pairs.T)].tolist()
    mean = [np.nanmean(matrix[worker]) if worker != 7 else row_medians[7] for worker in range(9)]
    assert (8 * mean_bandwidth(network)).tolist() == pytest.approx(mean)


def timed_links(rounds: dict[tuple[int, int], int]) -> LinkEstimates:
    links = LinkEstimates(5)
    for (a, b), round_index in rounds.items():
        links.learn(a, b, bits=1.0, seconds=1.0, round_index=round_index)
    return links


def test_probes_go_to_the_links_that_were_not_timed_for_long_each_worker_once() -> None:
    links = timed_links(
        dict.fromkeys(combinations(range(5), 2), 10) | {(0, 1): 2, (1, 2): 3, (3, 4): 4}
    )
    everyone, base = np.ones(5, dtype=np.bool_), full(5, seed=0)
    assert links.stale(base, everyone, round_index=11, every=5) == [(0, 1), (3, 4)]
    assert links.stale(base, everyone, round_index=11, every=20) == []
    without_0 = everyone & (np.arange(5) != 0)
    assert links.stale(base, without_0, round_index=11, every=5) == [(1, 2), (3, 4)]


def test_only_links_of_the_base_topology_are_probed() -> None:
    links, everyone = LinkEstimates(5), np.ones(5, dtype=np.bool_)
    base = np.array([(0, 3), (1, 2), (2, 3)])
    assert links.stale(base, everyone, round_index=9, every=5) == [(0, 3), (1, 2)]


def test_the_slowest_link_between_two_groups() -> None:
    links = LinkEstimates(5)
    for a, b, bits in ((0, 1, 4.0), (3, 0, 2.0), (1, 2, 1.0)):
        links.learn(a, b, bits=bits, seconds=1.0, round_index=1)
    assert links.slowest([0], [1, 3]) == 2.0
    assert links.slowest([1, 3], [0]) == 2.0
    assert np.isnan(links.slowest([4], [0, 1, 2, 3]))


def test_packing_keeps_the_estimates_and_grows_with_the_links() -> None:
    links = LinkEstimates(300)
    links.learn(0, 2, bits=8e6, seconds=2.0, round_index=4)
    links.learn(299, 1, bits=8e6, seconds=4.0, round_index=5)
    packed = links.pack()
    again = LinkEstimates.unpack(packed)
    assert (again.bandwidth(2, 0), again.measured(2, 0)) == (4e6, 4)
    assert (again.bandwidth(1, 299), again.measured(1, 299)) == (2e6, 5)
    assert not np.isfinite(again.bandwidth(0, 1))
    assert np.array_equal(again.capacity, links.capacity, equal_nan=True)
    assert sum(array.nbytes for name, array in packed.items() if name != "links.capacity") < 50
    assert not LinkEstimates.unpack(LinkEstimates(3).pack()).known()


def test_a_state_that_held_all_pairs_is_read() -> None:
    """As states of earlier versions were packed."""
    bandwidth = np.full((3, 3), np.nan, dtype=np.float32)
    measured = np.full((3, 3), -1, dtype=np.int32)
    bandwidth[0, 2] = bandwidth[2, 0] = 4e6
    measured[0, 2] = measured[2, 0] = 4
    bandwidth[1, 2] = bandwidth[2, 1] = 3e6
    measured[1, 2] = measured[2, 1] = 0  # before the first round
    links = LinkEstimates.unpack(
        {
            "links.bandwidth": bandwidth,
            "links.capacity": np.array([1.0, np.nan, 2.0], dtype=np.float32),
            "links.measured": measured,
        }
    )
    assert (links.bandwidth(0, 2), links.measured(0, 2)) == (4e6, 4)
    assert (links.bandwidth(1, 2), links.measured(1, 2)) == (3e6, 0)
    assert links.measured(0, 1) == -1
    assert links.capacity[2] == 2.0
