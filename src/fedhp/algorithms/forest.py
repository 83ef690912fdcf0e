"""A spanning forest that prefers links that are kept for good, then faster ones.

Links are given from slowest to fastest and decided in this order; a link outside the forest
can be done without. What was decided before the current link is either kept or gone.
"""

from __future__ import annotations

import copy

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import minimum_spanning_tree

from fedhp.types import BoolArray, IntArray

_CHUNK = 1024  # links searched at once for the next that joins two groups


class Forest:
    """Places count the links from the slowest, 0."""

    def __init__(self, ends: IntArray, workers: int, *, merged: bool = False) -> None:
        """merged: workers are groups here, so a link may join one to itself, or two twice."""
        self._ends = ends  # [E, 2] by place
        self._workers = workers
        self._merged = merged
        self._group = np.arange(workers)  # [N] workers joined by kept links share a number
        self._carrying: list[int] = []  # kept links that joined two groups
        self._pending: list[int] = []  # those of them that the forest lacks so far
        self._branches: list[dict[int, int]] | None = None  # neighbor -> place, once needed
        self._shared = False  # whether a twin looks at the same branches and members
        self._grow(0)
        self._to_join = int(self._inside.sum())  # joins that are left until nobody is apart

    def twin(self) -> Forest:
        """An independent forest at the same point; what never changes is shared."""
        self._shared = True
        twin = copy.copy(self)
        twin._group = self._group.copy()
        twin._carrying = self._carrying.copy()
        twin._pending = self._pending.copy()
        return twin

    def inside(self, first: int, stop: int) -> BoolArray:
        """Which of these links are in the forest; all before `first` are decided."""
        if self._pending:
            self._mend(first)
        return self._inside[first:stop]

    def keep(self, first: int, stop: int) -> None:
        """The links of these places stay for good: from now on they carry others."""
        for start in range(first, stop, _CHUNK):
            place, end = start, min(start + _CHUNK, stop)
            while self._to_join:
                left, right = self._ends[place:end].T
                apart = self._group[left] != self._group[right]
                ahead = int(apart.argmax()) if len(apart) else 0
                if not len(apart) or not apart[ahead]:
                    break
                self.keep_one(place + ahead)
                place += ahead + 1
            if not self._to_join:
                return

    def keep_one(self, place: int) -> None:
        """A link that joins two groups of kept links stays for good."""
        a, b = self._ends[place]
        mine, other = self._group[a], self._group[b]
        self._group[self._group == mine] = other
        self._carrying.append(place)
        self._to_join -= 1
        if not self._inside[place]:
            self._pending.append(place)

    def _mend(self, first: int) -> None:
        """Take in the kept links that are missing: one by one if they are few."""
        if len(self._pending) * self._workers > len(self._ends) - first:
            self._grow(first)
        else:
            self._own()
            for place in self._pending:
                self._plant(place)
        self._pending = []

    def _grow(self, first: int) -> None:
        """The forest anew: what carries already, then fastest first."""
        size = len(self._ends)
        carrying = np.array(self._carrying, dtype=np.int64)
        places = np.concatenate([carrying, np.arange(size - 1, first - 1, -1)])
        weights = np.concatenate([np.ones(len(carrying)), size + 1.0 - places[len(carrying) :]])
        if self._merged:
            # The first of several links between the same two is the one that is preferred.
            low, high = np.sort(self._ends[places], axis=1).T
            once = np.unique(low * self._workers + high, return_index=True)[1]
            once = once[low[once] != high[once]]
            places, weights = places[once], weights[once]
        left, right = self._ends[places].T
        shape = (self._workers, self._workers)
        tree = minimum_spanning_tree(csr_array((weights, (left, right)), shape=shape))
        chosen = tree.data[tree.data > 1]
        self._inside = np.zeros(size, dtype=np.bool_)
        self._inside[self._carrying] = True
        self._inside[size + 1 - chosen.astype(np.int64)] = True
        self._branches = None
        self._shared = False

    def _own(self) -> list[dict[int, int]]:
        """The branches, to be changed by this twin only."""
        if self._branches is None:
            self._branches = [{} for _ in range(self._workers)]
            places = np.flatnonzero(self._inside)
            for place, (a, b) in zip(places.tolist(), self._ends[places].tolist(), strict=True):
                self._branches[a][b] = self._branches[b][a] = place
            self._inside = self._inside.copy()
        elif self._shared:
            self._branches = [each.copy() for each in self._branches]
            self._inside = self._inside.copy()
        self._shared = False
        return self._branches

    def _plant(self, place: int) -> None:
        """Put a kept link in, and take out the slowest of its cycle that may still go."""
        branches = self._own()
        a, b = self._ends[place].tolist()
        # Links slower than this one have had their turn: what is left of them is kept.
        weakest = min(other for other in self._path(a, b) if other > place)
        left, right = self._ends[weakest].tolist()
        del branches[left][right], branches[right][left]
        branches[a][b] = branches[b][a] = place
        self._inside[weakest] = False
        self._inside[place] = True

    def _path(self, start: int, goal: int) -> list[int]:
        """The places of the forest's links between two workers."""
        branches = self._own()
        came: dict[int, tuple[int, int]] = {start: (-1, -1)}
        stack = [start]
        while stack and goal not in came:
            node = stack.pop()
            for neighbor, place in branches[node].items():
                if neighbor not in came:
                    came[neighbor] = (node, place)
                    stack.append(neighbor)
        path = []
        while goal != start:
            goal, place = came[goal]
            path.append(place)
        return path
