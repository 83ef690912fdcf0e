"""The order in which the planner's walk examines links, and what it shows without deciding."""

from __future__ import annotations

import numpy as np
import pytest

from fedhp.algorithms.forest import Forest
from fedhp.algorithms.walk import Bound, Walk, _joined, slowest_first
from fedhp.graph import topology_from

SQUARE = topology_from(4, [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]])
TIMES = np.array([6.0, 5.0, 4.0, 3.0, 2.0, 1.0])


def walk(*, limit: float = 1e9) -> Walk:
    """A full graph of four workers; its links are in the order of their times."""
    return Walk(
        SQUARE,
        link_time=TIMES,
        link_distance=np.ones(6),
        absent_distance=0.0,
        bound=Bound(16, limit),
    )


@pytest.mark.parametrize("values", [1, 2, 3, 60])
@pytest.mark.parametrize("links", [1, 2, 3, 4, 5, 40, 300])
def test_the_order_of_links(values: int, links: int) -> None:
    """Slowest first, ties by smaller distance, then as given, however many ties there are."""
    rng = np.random.default_rng([values, links])
    for _ in range(10):
        times = rng.integers(values, size=links).astype(np.float64)
        distances = rng.integers(values, size=links).astype(np.float64)
        expected = np.lexsort((distances, -times)).tolist()
        if len(set(times.tolist())) < links:
            assert slowest_first(times, distances).tolist() == expected
        else:
            assert times[slowest_first(times, distances)].tolist() == sorted(times, reverse=True)


def test_one_tie_is_decided_by_distance() -> None:
    times, distances = np.array([1.0, 3.0, 2.0, 2.0]), np.array([0.0, 0.0, 9.0, 8.0])
    assert slowest_first(times, distances).tolist() == [1, 3, 2, 0]


def test_looking_decides_nothing() -> None:
    looked = walk()
    removed, stayed, _ = looked.look(2)
    assert (removed.tolist(), stayed.tolist()) == ([0, 1], [])
    assert looked.slowest(2).tolist() == [4.0, 3.0, 3.0, 4.0]
    assert looked.slowest(0).tolist() == [6.0, 6.0, 5.0, 4.0]
    assert looked.present.all()
    assert (looked.links_left, looked.absent_distance) == (6, 0.0)
    assert looked.look(1)[0].tolist() == [0]
    assert looked.look(9)[0].tolist() == [0, 1, 3]  # the others are needed
    looked.commit(2)
    assert looked.present.tolist() == [False, False, True, True, True, True]
    assert (looked.links_left, looked.absent_distance) == (4, 4.0)


def test_what_a_look_would_show_can_be_removed_without_it() -> None:
    fresh = walk()
    fresh.commit(1)
    assert fresh.present.tolist() == [False, True, True, True, True, True]
    assert (fresh.links_left, fresh.absent_distance) == (5, 2.0)


def test_the_bound_holds_at_exactly_its_limit() -> None:
    """Two removals add four to the sum over ordered pairs: four sixteenths are allowed."""
    assert walk(limit=4 / 16).look(9)[0].tolist() == [0, 1]
    assert walk(limit=3.9 / 16).look(9)[0].tolist() == [0]


def test_twins_of_a_forest_do_not_see_each_other() -> None:
    """A link that is kept for good may push another one out, in this twin alone."""
    ends = np.array([[0, 1], [0, 2], [1, 2], [2, 3], [1, 3], [0, 3]])
    forest = Forest(ends, 4)
    before = forest.inside(0, 6).tolist()
    assert before == [False, False, False, True, True, True]
    twin = forest.twin()
    twin.keep_one(0)
    after = twin.inside(1, 6).tolist()
    assert forest.inside(0, 6).tolist() == before
    assert sum(before) == 3
    assert sum(after) == 2  # and the link that was kept


def test_some_links_that_do_not_connect_all_are_not_enough() -> None:
    """Every second link is looked at first: those between the two halves are the others."""
    links = np.array([[0, 1], [1, 2], [2, 3], [1, 2]] * 40)
    assert len(set(_joined(links, 4).tolist())) == 1
    assert len(set(_joined(links[::2], 4).tolist())) == 2
