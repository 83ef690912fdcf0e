"""Which links may go: the slowest first, if the graph stays connected and within the bound.

A link may be removed if its ends stay joined by links that are kept for good or by faster ones.
A spanning forest that prefers exactly these (forest.py) has the answer at once: a link outside
the forest may go, one inside may not. So a whole search costs about one pass over the links.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedhp.algorithms.forest import Forest
from fedhp.types import BoolArray, FloatArray, IntArray, LinkVerdict, Topology

_NOTHING = np.empty(0, dtype=np.int64)
_RUN = 256  # links examined first when the next one within the bound is searched for


@dataclass(frozen=True, slots=True)
class Bound:
    """How far apart the pairs without a link may be: total / squared <= limit."""

    squared: int  # members^2
    limit: float

    def allows(self, total: FloatArray) -> BoolArray:
        """Which of these sums are within the bound."""
        within: BoolArray = total / self.squared <= self.limit
        return within


class Walk:
    """A pass over the links from slowest to fastest, ties by smaller distance.

    A place is a position in this order: 0 is the slowest link. look() shows what the next
    removals would be, commit() makes them. Where every removal changes the order (reorder), only
    its beginning is computed: depth links, or as many as needed.
    """

    def __init__(
        self,
        base: Topology,
        *,
        link_time: FloatArray,
        link_distance: FloatArray,
        absent_distance: float,
        bound: Bound,
        depth: int | None = None,
    ) -> None:
        self.workers = base.workers
        self.present = np.ones(len(base.links), dtype=np.bool_)  # [E]
        self.links_left = len(base.links)
        self._bound = bound
        self._ends = base.links
        self._link_distance = link_distance  # [E]
        self._start(link_time, absent_distance, depth)

    @property
    def absent_distance(self) -> float:
        """The sum of the distances of all ordered pairs without a link."""
        return self._here.total

    def reorder(self, link_time: FloatArray, depth: int) -> None:
        """Start again from the slowest of the remaining links, by their times [E left]."""
        self._start(link_time, self._here.total, depth)

    def _start(self, link_time: FloatArray, total: float, depth: int | None) -> None:
        left = np.flatnonzero(self.present)
        self._link_time, self._depth = link_time, depth
        merged, workers, group = False, self.workers, None
        if depth is not None and 2 * depth < len(left):
            # Include all links as slow as the last one: ties are ordered by distance.
            among_slowest = link_time >= np.partition(link_time, -depth)[-depth]
            rest = self._ends[left[~among_slowest]]
            left, link_time = left[among_slowest], link_time[among_slowest]
            if len(rest):
                merged, group = True, _joined(rest, workers)
                workers = int(group.max()) + 1
        self._partial = merged
        chosen = slowest_first(link_time, self._link_distance[left])
        order = left[chosen]
        ends = self._ends[order]
        self._order = order
        self._time = np.append(link_time[chosen], 0.0)  # the place after the last means no link
        self._kept = np.full(self.workers, len(order))  # [N] each worker's slowest kept link
        self._index: _Index | None = None
        twice = 2 * self._link_distance[order]
        forest = Forest(ends if group is None else group[ends], workers, merged=merged)
        self._here = _Scan(ends, twice, total, self._bound, forest)
        self._ahead: _Scan | None = None

    def look(self, count: int) -> tuple[IntArray, IntArray, IntArray]:
        """What removing up to `count` more links would do; nothing is decided by that. Those that
        could go, those passed on the way that could not, and why: LinkVerdict of each."""
        removed, stayed, reasons, _ = self._look(count)
        return self._order[removed], self._order[stayed], reasons

    def _look(self, count: int) -> tuple[IntArray, IntArray, IntArray, int]:
        while True:
            ahead = self._ahead
            # Fewer links than in the last look: they are its beginning.
            if ahead is None or not (ahead.at_end or ahead.removals >= count):
                ahead = self._ahead = self._here.twin()
                ahead.advance(count)
            if ahead.removals >= count or not self._partial:
                return ahead.since_twin(count)
            # Nothing is decided yet in this order: compute more of it.
            depth = 4 * (self._depth or 1)
            self._start(self._link_time, self._here.total, depth)

    def slowest(self, count: int) -> FloatArray:
        """The longest link time at each worker after look(count), 0 without links, [N]."""
        _, stayed, _, place = self._look(count)
        slowest = self._kept.copy()
        _lower(slowest, self._here.ends, stayed)
        if self._index is None:
            self._index = _Index(self._here.ends, self.workers)
        self._index.lower(slowest, place)
        times: FloatArray = self._time[slowest]
        return times

    def commit(self, count: int) -> None:
        """Remove what look(count) showed."""
        ahead = self._ahead
        if ahead is None or ahead.place != ahead.since_twin(count)[3]:
            ahead = self._here.twin()
            ahead.advance(count)
        removed, stayed, _, _ = ahead.since_twin(count)
        self.present[self._order[removed]] = False
        self.links_left -= len(removed)
        _lower(self._kept, ahead.ends, stayed)
        self._here, self._ahead = ahead, None


class _Index:
    """Each worker's places, slowest first."""

    def __init__(self, ends: IntArray, workers: int) -> None:
        flat, size = ends.ravel(), len(ends)
        counts = np.bincount(flat, minlength=workers)
        everyone = np.arange(workers)
        self._places = np.argsort(flat.astype(_small(workers)), kind="stable") // 2
        # With the worker as first digit the places are one sorted list, so that one bisection
        # finds every worker's next link.
        self._keys = np.repeat(everyone, counts) * size + self._places
        self._first = everyone * size
        self._stop = np.cumsum(counts)

    def lower(self, slowest: IntArray, place: int) -> None:
        """Lower each worker's slowest link to its first one from this place on, in place."""
        next_link = np.searchsorted(self._keys, self._first + place)
        some = next_link < self._stop
        slowest[some] = np.minimum(slowest[some], self._places[next_link[some]])


class _Scan:
    """How far a walk has come, and what it removed and kept since its twin was made, in places."""

    def __init__(
        self, ends: IntArray, twice: FloatArray, total: float, bound: Bound, forest: Forest
    ) -> None:
        self.ends = ends  # [E, 2]
        self.total = total
        self.place = 0
        self._twice = twice  # [E] what removing a link adds: both orders of a pair
        self._bound = bound
        self._forest = forest
        self._forget()

    def twin(self) -> _Scan:
        """An independent scan from the same place."""
        twin = copy.copy(self)
        twin._forest = self._forest.twin()
        twin._forget()
        return twin

    def _forget(self) -> None:
        self.removals = 0
        self._removed: list[IntArray] = []
        self._stayed: list[IntArray] = []
        self._reasons: list[IntArray] = []

    @property
    def at_end(self) -> bool:
        return self.place == len(self.ends)

    def advance(self, count: int) -> None:
        """Continue until `count` links are removed or all links are decided."""
        while self.removals < count and not self.at_end:
            self._stretch(count - self.removals)

    def since_twin(self, count: int) -> tuple[IntArray, IntArray, IntArray, int]:
        """Up to `count` removed links, those that stayed and why, and the place reached."""
        removed, stayed, reasons = (
            np.concatenate([_NOTHING, *parts])
            for parts in (self._removed, self._stayed, self._reasons)
        )
        place = self.place
        if len(removed) >= count:
            removed = removed[:count]
            place = int(removed[-1]) + 1 if count else 0
        on_the_way = int(np.searchsorted(stayed, place))
        return removed, stayed[:on_the_way], reasons[:on_the_way], place

    def _stretch(self, most: int) -> None:
        """Decide the next links, up to the first one that the bound does not allow to remove."""
        first, stop = self.place, min(self.place + 2 * most + 64, len(self.ends))
        bridge = self._forest.inside(first, stop)
        step = self._twice[first:stop]
        # Added one by one, as each removal would.
        totals = np.cumsum(np.concatenate([[self.total], np.where(bridge, 0.0, step)]))
        allowed = self._bound.allows(totals[:-1] + step)
        length = len(step) if allowed.all() else int(allowed.argmin())
        free = np.flatnonzero(~bridge[:length])
        if len(free) > most:
            free = free[:most]
        if len(free) == most:
            length = int(free[-1]) + 1
        bridges = first + np.flatnonzero(bridge[:length])
        for place in bridges.tolist():
            self._forest.keep_one(place)
        self._note(bridges, LinkVerdict.KEPT_BRIDGE)
        self._removed.append(first + free)
        self.removals += len(free)
        self.total = float(totals[length])
        self.place = first + length
        if len(free) < most and self.place < stop:
            self._keep_far_ones()

    def _keep_far_ones(self) -> None:
        """Keep the links whose removal would break the bound, up to the next that may go."""
        first = place = self.place
        width = _RUN
        while place < len(self.ends):
            near = self._bound.allows(self.total + self._twice[place : place + width])
            if near.any():
                place += int(near.argmax())
                break
            place += len(near)
            width *= 2
        self._forest.keep(first, place)
        self._note(np.arange(first, place), LinkVerdict.KEPT_BOUND)
        self.place = place

    def _note(self, places: IntArray, reason: LinkVerdict) -> None:
        self._stayed.append(places)
        self._reasons.append(np.full(len(places), reason, dtype=np.int64))


def slowest_first(link_time: FloatArray, distance: FloatArray) -> IntArray:
    """The order of the links: slowest first, ties by smaller distance, then as given.

    The same as np.lexsort((distance, -link_time)) in a fraction of its time: distance matters
    only where times are equal, and the few times of a per-worker bandwidth sort by counting.
    """
    order = np.argsort(-link_time)
    times = link_time[order]
    new = np.concatenate([[False], times[1:] != times[:-1]])
    groups = int(new.sum()) + 1
    if groups >= len(order):
        return order
    rank = np.empty(len(order), dtype=_small(groups))
    rank[order] = np.cumsum(new)
    nearest = np.argsort(distance)
    sorted_distance = distance[nearest]
    if (sorted_distance[1:] == sorted_distance[:-1]).any():
        nearest = np.argsort(distance, kind="stable")
    return nearest[np.argsort(rank[nearest], kind="stable")]


def _joined(links: IntArray, workers: int) -> IntArray:
    """Which group of connected workers each worker is in, with these links, [N]."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    # Of many links a few nearly always suffice to connect all workers.
    for step in (max(1, len(links) // (16 * workers)), 1):
        left, right = links[::step].T
        weights = np.ones(len(left), dtype=np.int8)
        graph = csr_array((weights, (left, right)), shape=(workers, workers))
        count, group = connected_components(graph, directed=False)
        if count == 1 or step == 1:
            break
    return np.asarray(group, dtype=np.int64)


def _small(count: int) -> np.dtype[Any]:
    """The smallest integer type that holds 0 to count: numpy sorts 16 bits by counting."""
    return np.min_scalar_type(count)


def _lower(slowest: IntArray, ends: IntArray, places: IntArray) -> None:
    """Lower the slowest link of both ends of these places, in place."""
    np.minimum.at(slowest, ends[places, 0], places)
    np.minimum.at(slowest, ends[places, 1], places)
