"""What the coordinator checks of group averages: how large a part can be, who has which result.

It sees no model. Norms and digests are what the workers report; none of them counts alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedhp.cluster.coordinator.attempts.blame import REMEMBERED_ROUNDS
from fedhp.cluster.coordinator.committed_state import Norms
from fedhp.cluster.coordinator.planning.round_planner import LEAST_VALUES, STEP_TIME_FACTOR
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.group_codec import LARGEST_RATIO
from fedhp.exchange import GroupAverage
from fedhp.learn.group import tree_order
from fedhp.types import FloatArray

NOTHING = (0.0, 0.0)
# Of what was usual before an average: norms may shrink faster than a flaky machine comes back.
REMEMBERED_SHARE = 0.9


def norms_after(
    before: Norms, reports: Mapping[int, wire.RoundReport], trees: Sequence[GroupAverage]
) -> Norms:
    """What each worker brings: the last norm that it reported; one that has learned nothing since
    its last average still has the one before, as slow devices do most of the time.

    Who takes part in no average gathers changes, in different directions: what is usual in each
    of those rounds adds up as squares. So its part may be as large as it was when all of them
    were, though those of the others have become small. trees: the averages of the round.
    """
    after = dict(before)
    averaged = {worker: tree.fragment for tree in trees for worker in tree.required}
    for worker, report in reports.items():
        fresh = report.change_norms
        known = [*before.get(worker, ()), *[NOTHING] * len(fresh)]
        after[worker] = tuple(
            (norm or old, usual) for norm, (old, usual) in zip(fresh, known, strict=False)
        )
    usual_now = [
        usual_norm(after, list(reports), fragment)
        for fragment in range(max((len(after[worker]) for worker in reports), default=0))
    ]
    for worker in reports:
        rounds = len(after[worker]) or 1  # between two averages of a fragment
        begins_again = averaged.get(worker, -1)
        after[worker] = tuple(
            # After its average a worker trains on in the same round, and may be away next.
            (
                norm,
                math.hypot(
                    (REMEMBERED_SHARE if fragment == begins_again else 1.0) * usual,
                    usual_now[fragment] / math.sqrt(rounds),
                ),
            )
            for fragment, (norm, usual) in enumerate(after[worker])
        )
    return after


def usual_norm(norms: Norms, workers: Sequence[int], fragment: int) -> float:
    """The median of what these workers bring; 0 where too few have learned anything to tell."""
    named = [norms[each][fragment][0] for each in workers if fragment < len(norms.get(each, ()))]
    changed = [norm for norm in named if norm > 0]
    # At first only the fastest have learned something, and they are no measure for the others.
    enough = len(changed) >= LEAST_VALUES and 2 * len(changed) >= len(workers)
    return float(np.median(changed)) if enough else 0.0


@dataclass(frozen=True, slots=True)
class PartSizes:
    """How large the parts of a group average can be, as norms; 0: nothing is known."""

    sums: dict[int, float]  # by participant: what it sends to the worker above it
    mean: float  # of the parts of all

    @classmethod
    def unknown(cls, tree: GroupAverage) -> PartSizes:
        """Where too few have learned anything to tell."""
        return cls(dict.fromkeys(tree.participants.tolist(), 0.0), 0.0)

    @classmethod
    def of(
        cls, tree: GroupAverage, norms: Norms, step_time: FloatArray, workers: Sequence[int]
    ) -> PartSizes:
        """From what all that are there say they bring: the middle of many cannot be moved by one.
        A fast worker brings more, as the square root of its speed (it takes more steps, in
        different directions). step_time: [N]."""
        fragment, members = tree.fragment, tree.participants.tolist()
        usual = usual_norm(norms, workers, fragment)
        if not usual or not members:
            return cls.unknown(tree)
        then = [norms[each][fragment][1] if norms.get(each) else 0.0 for each in members]
        speed = np.nan_to_num(np.nanmedian(step_time[workers]) / step_time, nan=1.0)
        weights = np.sqrt(np.clip(speed, 1.0, STEP_TIME_FACTOR))[members]
        limits = LARGEST_RATIO * np.maximum(usual, then) * weights
        sums = dict(zip(members, limits.tolist(), strict=True))
        for index in tree_order(tree):
            above = int(tree.parents[index])
            if above >= 0:
                sums[above] += sums[members[index]]
        return cls(sums, sums[tree.root] / len(members))


class WrongParts:
    """Pairs of members of which one refused what the other sent, or has another result. Which of
    the two is wrong nobody knows: who is in most pairs is taken for the cause."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, int], int] = {}  # the round of the last time

    def add(self, one: int, other: int, *, round_index: int) -> None:
        """It happened in this round."""
        self._pairs[min(one, other), max(one, other)] = round_index

    def forget(self, *, round_index: int) -> None:
        """What was long ago does not count any more."""
        since = round_index - REMEMBERED_ROUNDS
        self._pairs = {pair: last for pair, last in self._pairs.items() if last > since}

    def suspects(self) -> list[tuple[int, ...]]:
        """One worker that is in several pairs; of a pair that is left, both."""
        pairs, suspects = set(self._pairs), list[tuple[int, ...]]()
        while pairs:
            counts = Counter(worker for pair in pairs for worker in pair)
            worker, count = min(counts.items(), key=lambda each: (-each[1], each[0]))
            if count == 1:
                return [*suspects, *sorted(pairs)]
            suspects.append((worker,))
            pairs = {pair for pair in pairs if worker not in pair}
        return suspects


def disputed_links(
    tree: GroupAverage, reports: Mapping[int, wire.RoundReport]
) -> list[tuple[int, int]]:
    """Links of the tree whose ends do not have the same result: (above, below). One of the two
    does not tell the truth; where all say the same there are none."""
    return [
        (above, below)
        for below, above, returning in zip(
            tree.participants.tolist(), tree.parents.tolist(), tree.returning, strict=True
        )
        if above >= 0
        and reports[below].result != (reports[above].whole if returning else reports[above].result)
    ]
