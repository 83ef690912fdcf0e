"""KEPT_BOUND is said only of links whose removal would break the bound in the result."""

from __future__ import annotations

import numpy as np

from fedhp.types import LinkVerdict
from paper import reference
from paper.instances import as_links, draw, found


def test_kept_by_the_bound_means_the_bound_holds_it() -> None:
    wrong, links = 0, 0
    for case in range(200):
        problem = draw(np.random.default_rng([41, case]), 8, per="link")
        result = found(problem, "opt")
        kept = as_links(result.topology)
        for link, verdict in zip(as_links(problem.topology), result.verdicts, strict=True):
            if verdict == LinkVerdict.KEPT_BOUND:
                links += 1
                rest = [each for each in kept if each != link]
                apart = reference.mean_distance(problem.present, rest, problem.distances)
                wrong += apart <= problem.bound - 1e-9
    assert wrong == 0, f"{wrong} of {links} links with the verdict KEPT_BOUND"
