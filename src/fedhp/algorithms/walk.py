"""Which links may go: the slowest first, if the graph stays connected and near enough.

A link may be removed if its ends stay joined by links that are kept for good or by faster
ones. A spanning forest that prefers exactly these (kept ones, then fastest first) knows the
answer at once: a link outside the forest may go, one inside may not. So a whole search costs
about one pass over the links instead of a graph search per link.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np

from fedhp.types import FloatArray, IntArray, LinkVerdict, Topology


class Walk:
    """A pass over the links from slowest to fastest, ties by smaller distance."""

    def __init__(
        self,
        base: Topology,
        *,
        link_time: FloatArray,
        link_distance: FloatArray,
        absent_distance: float,
        allowed_distance: Callable[[float], bool],
    ) -> None:
        self.workers = base.workers
        self.present = np.ones(len(base.links), dtype=np.bool_)  # [E]
        self.links_left = len(base.links)
        self.absent_distance = absent_distance  # over ordered pairs without a link
        self._allowed = allowed_distance
        self._ends = base.links
        self._link_distance = link_distance  # [E]
        self.reorder(link_time)

    def reorder(self, link_time: FloatArray) -> None:
        """Start again from the slowest of the links that are left, by these times."""
        order = np.lexsort((self._link_distance, -link_time))
        order = order[self.present[order]]
        # Everything below counts in places of this order: 0 is the slowest link.
        self._order = order
        self._left: list[int] = self._ends[order, 0].tolist()
        self._right: list[int] = self._ends[order, 1].tolist()
        self._twice: list[float] = (2 * self._link_distance[order]).tolist()
        self._time: list[float] = link_time[order].tolist()
        self._here = bytearray(b"\1" * len(order))  # what is present, by place
        self._place = 0
        self._kept = _Groups(self.workers)
        self._grow_forest()
        # The places of each worker's links, slowest first, end to end.
        ends = self._ends[order].ravel()
        self._incident: list[int] = (np.argsort(ends, kind="stable") // 2).tolist()
        counts = np.bincount(ends, minlength=self.workers)
        self._stop: list[int] = np.cumsum(counts).tolist()
        self._slowest: list[int] = (np.cumsum(counts) - counts).tolist()

    def copy(self) -> Walk:
        """An independent walk at the same place; what never changes is shared."""
        twin = copy.copy(self)
        twin.present = self.present.copy()
        twin._here = self._here.copy()
        twin._kept = self._kept.copy()
        twin._forest = [branches.copy() for branches in self._forest]
        twin._in_forest = self._in_forest.copy()
        twin._slowest = self._slowest.copy()
        return twin

    def remove(self, count: int, verdicts: IntArray) -> IntArray:
        """Remove up to `count` links [E']; writes why the others on the way had to stay."""
        removed: list[int] = []
        stayed: list[int] = []
        reasons: list[int] = []
        place, total = self._place, self.absent_distance
        while len(removed) < count and place < len(self._order):
            step = self._twice[place]
            if not self._allowed(total + step):
                reasons.append(LinkVerdict.KEPT_BOUND)
            elif place in self._in_forest:
                reasons.append(LinkVerdict.KEPT_BRIDGE)
            else:
                removed.append(place)
                self._here[place] = 0
                total += step
                place += 1
                continue
            stayed.append(place)
            self._keep(place)
            place += 1
        self._place, self.absent_distance = place, total
        verdicts[self._order[stayed]] = reasons
        gone = self._order[removed]
        self.present[gone] = False
        self.links_left -= len(removed)
        return gone

    def slowest_links(self) -> FloatArray:
        """The longest link time at each worker, 0 without links, [N]."""
        times = np.zeros(self.workers)
        for worker, (first, stop) in enumerate(zip(self._slowest, self._stop, strict=True)):
            while first < stop and not self._here[self._incident[first]]:
                first += 1
            self._slowest[worker] = first
            if first < stop:
                times[worker] = self._time[self._incident[first]]
        return times

    def _grow_forest(self) -> None:
        """Kruskal, from fastest to slowest."""
        groups = _Groups(self.workers)
        self._forest: list[dict[int, int]] = [{} for _ in range(self.workers)]  # neighbor -> place
        self._in_forest: set[int] = set()
        for place in reversed(range(len(self._order))):
            if groups.join(self._left[place], self._right[place]):
                self._plant(place)
                if len(self._in_forest) == self.workers - 1:
                    break

    def _plant(self, place: int) -> None:
        a, b = self._left[place], self._right[place]
        self._forest[a][b] = self._forest[b][a] = place
        self._in_forest.add(place)

    def _keep(self, place: int) -> None:
        """A link stays for good: from now on it carries others."""
        a, b = self._left[place], self._right[place]
        if not self._kept.join(a, b) or place in self._in_forest:
            return
        # It closes a cycle; of the links there that may still go, the slowest leaves the forest.
        # Links slower than this one have had their turn: what is left of them is kept.
        weakest = min(other for other in self._path(a, b) if other > place)
        left, right = self._left[weakest], self._right[weakest]
        del self._forest[left][right], self._forest[right][left]
        self._in_forest.discard(weakest)
        self._plant(place)

    def _path(self, start: int, goal: int) -> list[int]:
        """The places of the forest's links between two workers."""
        came: dict[int, tuple[int, int]] = {start: (-1, -1)}
        stack = [start]
        while stack and goal not in came:
            node = stack.pop()
            for neighbor, place in self._forest[node].items():
                if neighbor not in came:
                    came[neighbor] = (node, place)
                    stack.append(neighbor)
        path = []
        while goal != start:
            goal, place = came[goal]
            path.append(place)
        return path


class _Groups:
    """Union-find."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))

    def copy(self) -> _Groups:
        twin = copy.copy(self)
        twin._parent = self._parent.copy()
        return twin

    def join(self, a: int, b: int) -> bool:
        """Join two groups; whether they were apart."""
        left, right = self._root(a), self._root(b)
        self._parent[left] = right
        return left != right

    def _root(self, node: int) -> int:
        parent = self._parent
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node
