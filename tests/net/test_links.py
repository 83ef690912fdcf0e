"""What is known of the links, and what the planner is told where nothing is."""

from __future__ import annotations

import numpy as np
import pytest

from fedhp.cluster.links import Links


def test_a_time_becomes_a_bandwidth_and_is_smoothed() -> None:
    links = Links.unknown(3)
    links.learn(0, 1, bits=8e6, seconds=2.0, shares=1, round_index=4)
    assert links.bandwidth[0, 1] == links.bandwidth[1, 0] == 4e6
    links.learn(1, 0, bits=8e6, seconds=1.0, shares=1, round_index=5)
    assert links.bandwidth[0, 1] == pytest.approx(6e6)
    assert links.measured[1, 0] == 5


def test_a_shared_transfer_tells_what_one_alone_would_get() -> None:
    links = Links.unknown(3)
    links.learn(0, 1, bits=8e6, seconds=2.0, shares=3, round_index=1)
    assert links.bandwidth[0, 1] == 12e6


def test_an_unknown_link_is_guessed_from_its_slower_end() -> None:
    links = Links.unknown(4)
    links.learn(0, 1, bits=1e6, seconds=1.0, shares=1, round_index=1)
    links.learn(2, 1, bits=5e6, seconds=1.0, shares=1, round_index=1)
    network = links.network(model_bits=1.0, sharing=False, otherwise=7.0)
    assert network.bandwidth[0, 2] == 1e6  # worker 0 is the slower end
    assert network.bandwidth[0, 1] == 1e6
    assert not np.isnan(network.bandwidth).any()
    nothing = Links.unknown(2).network(model_bits=1.0, sharing=False, otherwise=7.0)
    assert nothing.bandwidth[0, 1] == 7.0


def test_probes_go_to_the_links_that_were_not_timed_for_long_each_worker_once() -> None:
    links = Links.unknown(5)
    for a in range(5):
        for b in range(a + 1, 5):
            links.learn(a, b, bits=1.0, seconds=1.0, shares=1, round_index=10)
    links.measured[0, 1] = links.measured[1, 0] = 2
    links.measured[1, 2] = links.measured[2, 1] = 3
    links.measured[3, 4] = links.measured[4, 3] = 4
    everyone = np.ones(5, dtype=np.bool_)
    assert links.stale(everyone, round_index=11, every=5) == [(0, 1), (3, 4)]
    assert links.stale(everyone, round_index=11, every=20) == []
    assert links.stale(everyone & (np.arange(5) != 0), round_index=11, every=5) == [(1, 2), (3, 4)]


def test_packing_keeps_what_is_known() -> None:
    links = Links.unknown(3)
    links.learn(0, 2, bits=8e6, seconds=2.0, shares=1, round_index=4)
    again = Links.unpack(links.pack())
    assert np.array_equal(again.bandwidth, links.bandwidth, equal_nan=True)
    assert np.array_equal(again.measured, links.measured)
