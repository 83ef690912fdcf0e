"""Algorithm 3 both ways: the search of fedhp against the reference, candidate by candidate."""

from __future__ import annotations

import numpy as np
import pytest

from fedhp.algorithms.search import SearchResult
from paper import reference
from paper.instances import Instance, as_links, expected, revealed, watched

MODES = ("opt", "fill", "literal")


def agree(problem: Instance, mode: str, *, links: bool = False) -> SearchResult:
    """The same communication times of the candidates, in the same order, and the same result;
    with `links`, also the same links of every candidate."""
    theirs = expected(problem, mode)
    mine, seen = watched(problem, mode)
    np.testing.assert_allclose([times for times, _ in seen], theirs.communication, rtol=1e-12)
    if links:
        assert revealed(problem, mode)[1] == theirs.tried
    assert as_links(mine.topology) == theirs.links
    assert mine.assignment.local_steps.tolist() == theirs.assigned.steps
    assert mine.assignment.deadline == pytest.approx(theirs.assigned.deadline, rel=1e-12)
    assert mine.assignment.objective == pytest.approx(theirs.assigned.cost, rel=1e-12)
    assert mine.assignment.round_time == pytest.approx(theirs.assigned.round_time, rel=1e-12)
    assert mine.base_objective == pytest.approx(theirs.base_cost, rel=1e-12)
    assert mine.iterations == len(theirs.search_steps)
    left = reference.mean_distance(problem.present, theirs.links, problem.distances)
    assert mine.mean_distance == pytest.approx(left, rel=1e-12)
    return mine
