"""The share of the limit that each algorithm reaches: the same training on links that cost nothing.

The limit's time to a target (the algorithm `free_links`) divided by the run's, seed by seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedhp.record.reader import RunSummary
from fedhp.record.statistics import interval
from fedhp.report.formatting import is_limit
from fedhp.report.paired import finished_by_label, telling_target


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit of a comparison; of several variants, the one with the least mean time."""

    label: str
    target: str
    times: dict[int, float]  # by seed

    def share(self, run: RunSummary) -> float | None:
        """Which part of the limit's speed a run has; None if either did not reach the target."""
        time, limit = run.time_to_target.get(self.target), self.times.get(run.seed)
        return None if limit is None or not time else limit / time

    def as_json(self, summaries: Sequence[RunSummary]) -> dict[str, Any]:
        """Plain values: the share of every other label, with its interval."""
        shares = {}
        for label, runs in finished_by_label(summaries).items():
            if not is_limit(label):
                spread = interval([s for run in runs if (s := self.share(run)) is not None])
                shares[label] = spread.as_json() if spread else None
        return {"algorithm": self.label, "target": self.target, "shares": shares}


def find_limit(summaries: Sequence[RunSummary]) -> Limit | None:
    """The limit among these runs, at the target that `fedhp compare` judges by."""
    target = telling_target(summaries)
    if target is None or all(is_limit(run.algorithm) for run in summaries):
        return None
    limits = []
    for label, runs in finished_by_label(summaries).items():
        if is_limit(label):
            times = {r.seed: t for r in runs if (t := r.time_to_target.get(target)) is not None}
            if times:
                limits.append(Limit(label, target, times))
    return min(limits, key=lambda limit: float(np.mean([*limit.times.values()])), default=None)
