"""Estimates of links from transfers, and guesses where nothing was measured."""

from __future__ import annotations

import numpy as np
import pytest

from fedhp.cluster.coordinator.link_estimates import LinkEstimates, Transfer, least_capacities


def test_a_time_becomes_a_bandwidth_and_is_smoothed() -> None:
    links = LinkEstimates.unknown(3)
    links.learn(0, 1, bits=8e6, seconds=2.0, round_index=4)
    assert links.bandwidth[0, 1] == links.bandwidth[1, 0] == 4e6
    links.learn(1, 0, bits=8e6, seconds=1.0, round_index=5)
    assert links.bandwidth[0, 1] == pytest.approx(6e6)
    assert links.measured[1, 0] == 5


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
    links = LinkEstimates.unknown(3)
    for bits, capacity in ((4.0, 4.0), (10.0, 10.0), (4.0, 7.0)):
        links.learn_shared([Transfer(0, 1, bits, 0.0, 1.0)], round_index=6)
        assert links.capacity[:2].tolist() == [capacity, capacity]
    assert np.isnan(links.capacity[2])
    assert links.measured[0, 1] == links.measured[1, 0] == 6
    assert links.bandwidth[0, 1] == links.bandwidth[1, 0] == 7.0
    network = links.network(model_bits=14.0, sharing=True, otherwise=1.0)
    pairs = np.array([[0, 1]])
    assert network.link_time(pairs, np.array([2, 1, 0])).tolist() == [4.0]


def test_an_unknown_link_is_guessed_from_its_slower_end() -> None:
    links = LinkEstimates.unknown(4)
    links.learn(0, 1, bits=1e6, seconds=1.0, round_index=1)
    links.learn(2, 1, bits=5e6, seconds=1.0, round_index=1)
    network = links.network(model_bits=1.0, sharing=False, otherwise=7.0)
    assert network.bandwidth[0, 2] == 1e6  # worker 0 is the slower end
    assert network.bandwidth[0, 1] == 1e6
    assert not np.isnan(network.bandwidth).any()
    nothing = LinkEstimates.unknown(2).network(model_bits=1.0, sharing=False, otherwise=7.0)
    assert nothing.bandwidth[0, 1] == 7.0


def test_probes_go_to_the_links_that_were_not_timed_for_long_each_worker_once() -> None:
    links = LinkEstimates.unknown(5)
    for a in range(5):
        for b in range(a + 1, 5):
            links.learn(a, b, bits=1.0, seconds=1.0, round_index=10)
    links.measured[0, 1] = links.measured[1, 0] = 2
    links.measured[1, 2] = links.measured[2, 1] = 3
    links.measured[3, 4] = links.measured[4, 3] = 4
    everyone = np.ones(5, dtype=np.bool_)
    assert links.stale(everyone, round_index=11, every=5) == [(0, 1), (3, 4)]
    assert links.stale(everyone, round_index=11, every=20) == []
    assert links.stale(everyone & (np.arange(5) != 0), round_index=11, every=5) == [(1, 2), (3, 4)]


def test_packing_keeps_the_estimates() -> None:
    links = LinkEstimates.unknown(3)
    links.learn(0, 2, bits=8e6, seconds=2.0, round_index=4)
    again = LinkEstimates.unpack(links.pack())
    assert np.array_equal(again.bandwidth, links.bandwidth, equal_nan=True)
    assert np.array_equal(again.measured, links.measured)
    assert np.array_equal(again.capacity, links.capacity, equal_nan=True)
