"""Rounds made by hand, of any size, for the tests of records and of what reads them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedhp.types import Decision, Evaluation, IntArray, LinkVerdict, RoundRecord, Timing

KEPT = (LinkVerdict.KEPT_BOUND, LinkVerdict.KEPT_NO_GAIN, LinkVerdict.KEPT_UNTRIED)


def mesh(workers: int) -> IntArray:
    """Every pair."""
    return np.stack(np.triu_indices(workers, 1), axis=1).astype(np.int64)


def planned_round(
    workers: int,
    links: IntArray,
    *,
    round_index: int = 1,
    cut: float = 0.5,
    ties: bool = False,
    directed: bool = False,
) -> RoundRecord:
    """A round of a planner that considered these links; the seed is the round."""
    rng = np.random.default_rng(round_index)
    number = len(links)
    if directed:
        links = links[:, ::-1].copy() if number and rng.random() < 0.5 else links
        flip = rng.random(number) < 0.5
        links = np.where(flip[:, None], links[:, ::-1], links)
    planned = rng.integers(1, 4, number) / 4 if ties else rng.uniform(0.1, 9.0, number)
    used = rng.random(number) >= cut
    verdicts = np.where(used, rng.choice(KEPT, number), LinkVerdict.CUT)
    bridges = rng.permutation(np.flatnonzero(used))[: workers // 8]
    verdicts[bridges] = LinkVerdict.KEPT_BRIDGE
    kept = links[used]
    times = planned[used] * rng.choice([0.5, 1.0, 2.0], len(kept))
    times[rng.random(len(kept)) < 0.01] = np.nan
    communication = np.zeros(workers)
    for end in (0,) if directed else (0, 1):
        np.maximum.at(communication, kept[:, end], np.nan_to_num(times))
    compute = rng.uniform(1, 2, workers)
    finished = compute + communication
    longest = float(finished.max())

    def draw() -> Any:
        return rng.uniform(0, 1, workers)

    return RoundRecord(
        round_index=round_index,
        clock=10.0 * round_index,
        learning_rate=0.1,
        local_steps=rng.integers(1, 50, workers),
        step_time=draw(),
        timing=Timing(compute, communication, finished, longest - finished, longest),
        links=kept,
        link_time=times,
        link_bytes=np.full(len(kept), 3_000_000, dtype=np.int64),
        link_distance=rng.uniform(0, 1, len(kept)),
        decision=Decision(
            links=links,
            verdicts=verdicts.astype(np.int64),
            link_time=planned,
            rule="as the battery allows",
            distance=rng.uniform(0, 1, number),
            pace_setter=int(finished.argmax()),
            facts={"deadline": 3.0, "iterations": 7.0},
        ),
        train_loss=draw(),
        update_norm=draw(),
        smoothness=np.full(workers, np.nan),
        gradient_variance=draw(),
        bandwidth=draw(),
        evaluation=Evaluation(draw(), 0.5, 100, 0.01),
        wall={"train": 0.1},
    )
