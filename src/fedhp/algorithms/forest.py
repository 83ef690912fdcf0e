"""A spanning forest that prefers links that are kept for good, then faster ones.

Links are decided from the slowest to the fastest; a link's place is its position in this order.
A link outside the forest is not needed for connectivity. All links before the current one are
decided: kept or removed.
"""

from __future__ import annotations

import copy

import numpy as np

from fedhp.types import BoolArray, IntArray

_CHUNK = 1024  # links searched at once for the next that joins two groups


class Forest:
    """The spanning forest while links are decided; place 0 is the slowest link."""

    def __init__(self, ends: IntArray, workers: int, *, merged: bool = False) -> None:
        """merged: nodes are groups of workers, so there may be loops and parallel links."""
        self._ends = ends  # [E, 2] by place
        self._workers = workers
        self._merged = merged
        self._group = np.arange(workers)  # [N] workers joined by kept links share a number
        self._joining: list[int] = []  # kept links that joined two groups
        self._missing: list[int] = []  # those of them that are not yet in the forest
        self._branches: list[dict[int, int]] | None = None  # neighbor -> place, once needed
        self._shared = False  # whether a twin uses the same branches
        self._rebuild(0)
        self._joins_left = int(self._inside.sum())  # until all groups are one

    def twin(self) -> Forest:
        """An independent forest in the same state; what never changes is shared."""
        self._shared = True
        twin = copy.copy(self)
        twin._group = self._group.copy()
        twin._joining = self._joining.copy()
        twin._missing = self._missing.copy()
        return twin

    def inside(self, first: int, stop: int) -> BoolArray:
        """Which of these links are in the forest; all links before `first` are decided."""
        if self._missing:
            self._take_in_kept(first)
        return self._inside[first:stop]

    def keep(self, first: int, stop: int) -> None:
        """Keep the links of these places for good."""
        for start in range(first, stop, _CHUNK):
            place, end = start, min(start + _CHUNK, stop)
            while self._joins_left:
                left, right = self._ends[place:end].T
                joins = self._group[left] != self._group[right]
                next_join = int(joins.argmax()) if len(joins) else 0
                if not len(joins) or not joins[next_join]:
                    break
                self.keep_one(place + next_join)
                place += next_join + 1
            if not self._joins_left:
                return

    def keep_one(self, place: int) -> None:
        """Keep a link for good that joins two groups of kept links."""
        a, b = self._ends[place]
        group_a, group_b = self._group[a], self._group[b]
        self._group[self._group == group_a] = group_b
        self._joining.append(place)
        self._joins_left -= 1
        if not self._inside[place]:
            self._missing.append(place)

    def _take_in_kept(self, first: int) -> None:
        """Add the kept links that are missing: one by one if they are few."""
        if len(self._missing) * self._workers > len(self._ends) - first:
            self._rebuild(first)
        else:
            self._own_branches()
            for place in self._missing:
                self._insert(place)
        self._missing = []

    def _rebuild(self, first: int) -> None:
        """Build the forest from scratch: kept links that join groups, then the fastest first."""
        size = len(self._ends)
        joining = np.array(self._joining, dtype=np.int64)
        places = np.concatenate([joining, np.arange(size - 1, first - 1, -1)])
        weights = np.concatenate([np.ones(len(joining)), size + 1.0 - places[len(joining) :]])
        if self._merged:
            # Of several links between the same two groups, the first is preferred.
            low, high = np.sort(self._ends[places], axis=1).T
            once = np.unique(low * self._workers + high, return_index=True)[1]
            once = once[low[once] != high[once]]
            places, weights = places[once], weights[once]
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import minimum_spanning_tree

        # Before scipy 1.17, minimum_spanning_tree accepts 32-bit indices only.
        left, right = self._ends[places].T.astype(np.int32)
        shape = (self._workers, self._workers)
        tree = minimum_spanning_tree(csr_array((weights, (left, right)), shape=shape))
        chosen = tree.data[tree.data > 1]
        self._inside = np.zeros(size, dtype=np.bool_)
        self._inside[self._joining] = True
        self._inside[size + 1 - chosen.astype(np.int64)] = True
        self._branches = None
        self._shared = False

    def _own_branches(self) -> list[dict[int, int]]:
        """The branches, for changes in this twin only."""
        if self._branches is None:
            self._branches = [{} for _ in range(self._workers)]
            places = np.flatnonzero(self._inside)
            for place, (a, b) in zip(places.tolist(), self._ends[places].tolist(), strict=True):
                self._branches[a][b] = self._branches[b][a] = place
            self._inside = self._inside.copy()
        elif self._shared:
            self._branches = [branch.copy() for branch in self._branches]
            self._inside = self._inside.copy()
        self._shared = False
        return self._branches

    def _insert(self, place: int) -> None:
        """Insert a kept link, and remove the slowest undecided link of its cycle."""
        branches = self._own_branches()
        a, b = self._ends[place].tolist()
        # Slower links than this one are decided: those in the forest are kept.
        weakest = min(other for other in self._path(a, b) if other > place)
        left, right = self._ends[weakest].tolist()
        del branches[left][right], branches[right][left]
        branches[a][b] = branches[b][a] = place
        self._inside[weakest] = False
        self._inside[place] = True

    def _path(self, start: int, goal: int) -> list[int]:
        """The places of the forest's links between two workers."""
        branches = self._own_branches()
        reached_from: dict[int, tuple[int, int]] = {start: (-1, -1)}
        stack = [start]
        while stack and goal not in reached_from:
            node = stack.pop()
            for neighbor, place in branches[node].items():
                if neighbor not in reached_from:
                    reached_from[neighbor] = (node, place)
                    stack.append(neighbor)
        path = []
        while goal != start:
            goal, place = reached_from[goal]
            path.append(place)
        return path
