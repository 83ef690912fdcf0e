"""Estimates of consensus distances and the bound, case by case."""

from __future__ import annotations

import numpy as np

from fedhp.distance import (
    complete,
    mean_distance,
    paths,
    unknown,
    update_bound,
    update_distance,
)
from fedhp.graph import topology_from

LINE = np.array([[0, 1], [1, 2]])
NO_LINKS = np.empty((0, 2), dtype=np.int64)


def test_no_distance_is_known_at_first() -> None:
    distances = unknown(3)
    assert np.isnan(distances[~np.eye(3, dtype=np.bool_)]).all()
    assert np.diag(distances).tolist() == [0, 0, 0]


def test_the_first_estimate_is_the_path() -> None:
    distances = update_distance(unknown(3), LINE, np.array([1.0, 2.0]), smoothing=0.5)
    assert distances.tolist() == [[0, 1, 3], [1, 0, 2], [3, 2, 0]]


def test_measured_pairs_overwrite_and_others_move_half_way() -> None:
    old = update_distance(unknown(3), LINE, np.array([1.0, 2.0]), smoothing=0.5)
    new = update_distance(old, LINE, np.array([2.0, 5.0]), smoothing=0.5)
    assert new.tolist() == [[0, 2, 5], [2, 0, 5], [5, 5, 0]]


def test_a_measured_pair_keeps_its_value_even_if_a_path_is_shorter() -> None:
    links = np.array([[0, 1], [0, 2], [1, 2]])
    distances = update_distance(unknown(3), links, np.array([1.0, 9.0, 1.0]), smoothing=0.5)
    assert distances[0, 2] == 9.0


def test_pairs_without_a_path_keep_their_value() -> None:
    old = update_distance(unknown(3), LINE, np.array([1.0, 2.0]), smoothing=0.5)
    new = update_distance(old, np.array([[0, 1]]), np.array([4.0]), smoothing=0.5)
    assert new.tolist() == [[0, 4, 3], [4, 0, 2], [3, 2, 0]]
    assert np.isnan(update_distance(unknown(3), LINE[:1], np.array([4.0]), smoothing=0.5)[0, 2])


def test_a_distance_of_zero_is_a_measurement() -> None:
    distances = update_distance(unknown(3), LINE, np.array([0.0, 2.0]), smoothing=0.5)
    assert distances[0, 1] == 0.0
    assert distances[0, 2] == 2.0


def test_the_old_estimate_is_left_alone() -> None:
    old = unknown(3)
    update_distance(old, LINE, np.array([1.0, 2.0]), smoothing=0.5)
    assert np.isnan(old[0, 1])


def test_paths_without_measurements() -> None:
    distances = paths(2, NO_LINKS, np.empty(0))
    assert distances.tolist() == [[0, np.inf], [np.inf, 0]]


def test_unknown_pairs_count_as_the_farthest_known() -> None:
    known = update_distance(unknown(4), LINE, np.array([1.0, 2.0]), smoothing=0.5)
    distances = complete(known)
    assert distances[0, 3] == distances[3, 1] == 3.0
    assert distances[0, 1] == 1.0
    assert complete(unknown(2)).tolist() == [[0, 0], [0, 0]]


def test_mean_distance_counts_both_orders() -> None:
    apart = np.array([[0, 1, 3], [1, 0, 2], [3, 2, 0]], dtype=np.float64)
    all_workers = np.ones(3, dtype=np.bool_)
    assert mean_distance(topology_from(3, LINE), apart, all_workers) == 2 * 3 / 9
    assert mean_distance(topology_from(3, NO_LINKS), apart, all_workers) == 2 * 6 / 9
    two = np.array([True, True, False])
    assert mean_distance(topology_from(3, NO_LINKS), apart, two) == 2 * 1 / 4
    assert mean_distance(topology_from(3, LINE), apart, np.zeros(3, dtype=np.bool_)) == 0.0


def test_bound() -> None:
    first = update_bound(None, np.array([1.0, 3.0]), smoothing=0.25, scale=0.5)
    assert first == 1.0
    assert update_bound(first, np.array([5.0, 5.0]), smoothing=0.25, scale=0.5) == 1.375
    assert update_bound(first, np.array([np.nan, np.inf]), smoothing=0.25, scale=0.5) == 1.0


def test_no_warning_without_a_path() -> None:
    old = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 3.0], [2.0, 3.0, 0.0]])
    new = update_distance(old, np.array([[0, 1]]), np.array([1.5]), smoothing=0.0)
    assert new.tolist() == [[0.0, 1.5, 2.0], [1.5, 0.0, 3.0], [2.0, 3.0, 0.0]]
