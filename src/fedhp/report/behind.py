"""Which workers do not learn: far behind the others at the last test, and how they are linked."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedhp.record.reader import RunReader
from fedhp.report.formatting import ACCURACY, count, from_to, listed, number, score

LEAST_WORKERS = 3
LEAST_GAP = 0.1  # behind the median: of an accuracy; of another metric a share of the median
USUAL_GAPS = 6.0  # median absolute deviations that are no more than the usual spread
POINT_STEP = 5  # a gap is rounded down to this many points
MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class Behind:
    """The workers that are far behind at the last test, the worst first, and a sentence."""

    workers: tuple[int, ...]
    text: str


def workers_behind(run: RunReader) -> Behind | None:
    """Who is far behind the median worker at the last test; None if nobody is."""
    last = run.last_row("worker_evaluations")
    if last is None:
        return None
    tests = run.table("worker_evaluations", round_index=last["round"])
    results = np.array(tests["accuracy"], dtype=np.float64)
    known = np.isfinite(results)
    if known.sum() < LEAST_WORKERS:
        return None
    metric = str(run.meta("metric") or ACCURACY)
    median = float(np.median(results[known]))
    usual = float(np.median(np.abs(results[known] - median)))
    least = LEAST_GAP if metric == ACCURACY else LEAST_GAP * abs(median)
    gaps = np.where(known, median - results, -np.inf)
    rows = np.flatnonzero(gaps > max(least, USUAL_GAPS * usual))
    if not len(rows):
        return None
    rows = rows[np.argsort(-gaps[rows], kind="stable")]
    workers = tuple(int(tests["worker"][row]) for row in rows)
    verb, plural = ("is", "") if len(workers) == 1 else ("are", "s")
    least_gap = float(gaps[rows].min())
    points = math.floor(round(100 * least_gap, 6))
    gap = f"{points - points % POINT_STEP} points" if metric == ACCURACY else number(least_gap)
    # The worst are named if not all can be; their numbers are easier to find in order.
    named = [str(worker) for worker in sorted(workers[:MOST_NAMED])]
    text = (
        f"{len(workers)} of {count(int(known.sum()), 'worker')} {verb} more than "
        f"{gap} behind the median "
        f"({score(median, metric)}) in the test of round {last['round']}: worker{plural} "
        f"{listed(named, most=MOST_NAMED, total=len(workers))}"
        f"{_link_words(run, last['round'], workers)}."
    )
    return Behind(workers, text)


def _link_words(run: RunReader, round_index: int, workers: tuple[int, ...]) -> str:
    table = run.table("workers", round_index=round_index, columns=("worker", "links"))
    links = dict(zip(*table.values(), strict=True))
    own = [links[worker] for worker in workers if worker in links]
    if not own:
        return ""
    text = f"{from_to(own)} link{'' if {*own} == {1} else 's'}"
    usual = f"{np.median(list(links.values())):g}"
    return f"; {'they have' if len(workers) > 1 else 'it has'} {text}, the median worker {usual}"
