"""Algorithm 3, the planner, whole against the reference (see README.md).

The reference tries every topology in the same order, so the two are compared candidate by
candidate, not only by their result.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from paper.agreement import MODES, agree
from paper.instances import connected_graphs, draw, random_base


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_alg3_equals_the_reference_on_all_connected_graphs(workers: int, mode: str) -> None:
    """Every connected base topology, with every setting, with and without ties."""
    settings = list(
        product(("worker", "link"), (False, True), ("zero", "finite", "infinite"), (False, True))
    )
    for number, base in enumerate(connected_graphs(workers)):
        for choice, (per, sharing, bound, ties) in enumerate(settings):
            rng = np.random.default_rng([workers, number, choice])
            agree(
                draw(
                    rng,
                    workers,
                    base=base,
                    per=per,
                    sharing=sharing,
                    bound=bound,
                    ties=ties,
                    tolerance=(None, 0.05)[(number + choice) % 2],
                ),
                mode,
                links=(number + choice) % 4 == 0,
            )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("per", ["worker", "link"])
@pytest.mark.parametrize("sharing", [False, True])
def test_alg3_equals_the_reference_at_random(mode: str, per: str, sharing: bool) -> None:
    """N up to 12: full and sparse base, ties, away workers, latency, waiting constraint."""
    cuts = 0
    for case in range(64):
        rng = np.random.default_rng([7, case])
        workers = int(rng.integers(5, 13))
        problem = draw(
            rng,
            workers,
            base=None if case % 2 else random_base(rng, workers, float(rng.uniform(0, 0.8))),
            per=per,
            sharing=sharing,
            latency=(0.0, 0.3)[case % 4 == 3],
            ties=case % 3 == 0,
            bound=("finite", "finite", "infinite", "zero")[case // 2 % 4],
            away=(0, 0, 1, 3)[case // 4 % 4],
            tolerance=(None, 0.05)[case // 8 % 2],
        )
        result = agree(problem, mode, links=case % 4 == 1)
        cuts += len(problem.base_present) - len(result.topology.links)
    assert cuts > 0


# Full meshes are what the reference is slow at: one combination of settings each.
LARGER = [
    (50, 1.0, "infinite", False, "link", "opt"),
    (40, 1.0, "infinite", False, "worker", "fill"),
    (30, 1.0, "finite", False, "worker", "opt"),
    (30, 1.0, "finite", False, "link", "fill"),
    (20, 1.0, "infinite", True, "worker", "opt"),
    (20, 1.0, "finite", True, "link", "fill"),
    *(
        (*case, per, mode)
        for case in ((60, 0.1, "finite", False), (50, 0.2, "infinite", False))
        for per, mode in product(("worker", "link"), ("opt", "fill"))
    ),
    *(
        (*case, per, mode)
        for case in ((60, 0.03, "infinite", True), (30, 0.15, "infinite", True))
        for per, mode in product(("worker", "link"), ("opt", "fill"))
    ),
]


@pytest.mark.parametrize(("workers", "share", "bound", "sharing", "per", "mode"), LARGER)
def test_alg3_equals_the_reference_on_larger_federations(
    workers: int, share: float, bound: str, sharing: bool, per: str, mode: str
) -> None:
    """Batches of many links, bridges and bound in their midst."""
    rng = np.random.default_rng([71, workers, int(100 * share)])
    problem = draw(
        rng,
        workers,
        base=None if share == 1 else random_base(rng, workers, share),
        per=per,
        sharing=sharing,
        bound=bound,
        ties=per == "link" and mode == "fill",
    )
    result = agree(problem, mode)
    assert result.iterations > 1


@pytest.mark.parametrize("depth", [1, 4, 20])
def test_alg3_the_beginning_of_the_order_is_enough(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With sharing only so many of the slowest links are put in order, more where needed."""
    monkeypatch.setattr("fedhp.algorithms.search._depth", lambda _: depth)
    for case in range(72):
        rng = np.random.default_rng([72, case])
        workers = int(rng.integers(5, 15))
        problem = draw(
            rng,
            workers,
            base=None if case % 2 else random_base(rng, workers, float(rng.uniform(0.1, 0.8))),
            per=("worker", "link")[case // 2 % 2],
            sharing=True,
            ties=case % 3 == 0,
            bound=("finite", "infinite")[case // 4 % 2],
            away=(0, 0, 2)[case % 3],
        )
        agree(problem, ("opt", "fill")[case // 8 % 2])


@pytest.mark.parametrize("case", [2387, 2506, 3172, 4754, 5824, 5913])
def test_alg3_a_rejected_candidate_leaves_no_trace(case: int) -> None:
    """Rare (1 in 1000): a rejected candidate met the bound, and the search came by again."""
    rng = np.random.default_rng([77, case])
    workers = int(rng.integers(5, 13))
    base = None if case % 2 else random_base(rng, workers, 0.5)
    agree(draw(rng, workers, base=base, per="link", ties=case % 3 == 0), "fill", links=True)
