"""Link times, steps within a deadline, round times and the learning rate, case by case."""

from __future__ import annotations

import numpy as np
import pytest

from fedhp.graph import topology_from
from fedhp.timing import Lines, Network, slowest_link, steps_within, timing

LINKS = np.array([[0, 1], [0, 2], [1, 2]])


def test_a_link_is_as_fast_as_its_slower_end() -> None:
    network = Network(np.array([1e6, 2e6, 4e6]), 8e6)
    assert network.link_time(LINKS).tolist() == [8.0, 8.0, 4.0]


def test_bandwidth_per_link() -> None:
    bandwidth = np.array([[9e6, 1e6, 2e6], [1e6, 9e6, 4e6], [2e6, 4e6, 9e6]])
    assert Network(bandwidth, 8e6).link_time(LINKS).tolist() == [8.0, 4.0, 2.0]


def test_latency_is_added_once() -> None:
    network = Network(np.array([1e6, 2e6, 4e6]), 8e6, latency=0.5)
    assert network.link_time(LINKS).tolist() == [8.5, 8.5, 4.5]


def test_sharing_divides_by_the_transfers_of_each_end() -> None:
    """Worker 0 has three transfers at once, worker 1 one, worker 2 two."""
    network = Network(np.array([3e6, 2e6, 4e6]), 8e6, sharing=True)
    link_times = network.link_time(LINKS, np.array([3, 1, 2]))
    assert link_times.tolist() == [8 / min(1, 2), 8 / min(1, 2), 8 / min(2, 2)]


def test_without_sharing_the_transfers_do_not_count() -> None:
    network = Network(np.array([3e6, 2e6, 4e6]), 8e6)
    assert network.link_time(LINKS, np.array([9, 9, 9])).tolist() == [4.0, 8 / 3, 4.0]


def test_sharing_counts_a_worker_without_transfers_as_one() -> None:
    """A link that is only considered is timed as if it were alone."""
    network = Network(np.array([2e6, 2e6, 4e6]), 8e6, sharing=True)
    assert network.link_time(LINKS, np.zeros(3, dtype=np.int64)).tolist() == [4.0, 4.0, 4.0]


def test_communication_time_is_that_of_the_slowest_link() -> None:
    network = Network(np.array([1e6, 2e6, 4e6, 8e6]), 8e6)
    assert network.communication_time(topology_from(4, [(0, 1), (1, 2)])).tolist() == [8, 8, 4, 0]
    shared = Network(np.array([4e6, 4e6, 4e6, 8e6]), 8e6, sharing=True)
    star = topology_from(4, [(0, 1), (0, 2), (0, 3)])
    assert shared.communication_time(star).tolist() == [6, 6, 6, 6]


def test_slowest_link_without_links() -> None:
    empty = np.empty((0, 2), dtype=np.int64)
    assert slowest_link(3, empty, np.empty(0)).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("deadline", "steps"),
    [(0.0, 1), (1.05, 1), (1.1, 1), (1.2, 2), (1.29, 2), (1.3, 3), (6.0, 50), (99.0, 50)],
)
def test_steps_within(deadline: float, steps: int) -> None:
    counts = steps_within(deadline, np.array([0.1]), np.array([1.0]), max_steps=50)
    assert counts.tolist() == [steps]
    assert counts.dtype == np.int64


def test_steps_within_several_deadlines_at_once() -> None:
    counts = steps_within(
        np.array([[1.0], [2.0]]), np.array([0.25, 0.5]), np.array([0.0, 0.5]), max_steps=100
    )
    assert counts.tolist() == [[4, 1], [8, 3]]


def test_timing_of_a_round() -> None:
    round_timing = timing(np.array([1.0, 3.0]), np.array([4.0, 1.0]), np.ones(2, dtype=np.bool_))
    assert round_timing.worker_time.tolist() == [5.0, 4.0]
    assert round_timing.waiting_time.tolist() == [0.0, 1.0]
    assert (round_timing.round_time, round_timing.mean_waiting_time) == (5.0, 0.5)


def test_timing_without_workers() -> None:
    round_timing = timing(np.ones(2), np.ones(2), np.zeros(2, dtype=np.bool_))
    assert (round_timing.round_time, round_timing.mean_waiting_time) == (0.0, 0.0)
    assert np.isnan(round_timing.worker_time).all()


PULLS = np.array([[0, 1], [0, 2], [1, 2]])  # (receiver, sender)
LINES = Lines(up=np.array([1.0, 2.0, 4.0]), down=np.array([8.0, 2.0, 4.0]))


def test_a_pull_uses_the_senders_uplink_and_the_receivers_downlink() -> None:
    """Both directions at once go at 1, 2 and 4 Mbit/s: the uplink of worker 0 is its slower one,
    so it receives at 8 Mbit/s."""
    network = Network(np.array([1e6, 2e6, 4e6]), 8e6, lines=LINES)
    assert network.link_rate(PULLS, directed=True).tolist() == [2e6, 4e6, 2e6]
    assert network.link_rate(PULLS[:, ::-1], directed=True).tolist() == [1e6, 1e6, 2e6]
    assert network.link_rate(PULLS).tolist() == [1e6, 1e6, 2e6]


def test_pulls_share_only_the_direction_that_they_use() -> None:
    """Worker 0 receives twice, worker 2 sends twice."""
    network = Network(np.array([1e6, 2e6, 4e6]), 8e6, sharing=True, lines=LINES)
    assert network.link_rate(PULLS, directed=True).tolist() == [2e6, 2e6, 2e6]
    slow = Network(np.array([0.25e6, 2e6, 4e6]), 8e6, sharing=True, lines=LINES)
    assert slow.link_rate(PULLS, directed=True).tolist() == [1e6, 1e6, 2e6]


def test_a_pull_over_a_line_of_its_own() -> None:
    """The factor of the slower end of a link is in its bandwidth already."""
    bandwidth = np.array([[9.0, 1.0, 3.0], [1.0, 9.0, 6.0], [3.0, 6.0, 9.0]]) * 1e6
    network = Network(bandwidth, 8e6, lines=LINES)
    assert network.link_rate(PULLS, directed=True).tolist() == [2e6, 12e6, 6e6]
