"""Which link rows of a round are kept: all of them, or a selection where they are very many.

A full mesh has N^2/2 links; the record would grow with them. Above LINKS_PER_WORKER * N rows it
keeps those that tell the reasons: what sets each worker's time, what was cut, what had to stay.
The counts per verdict are of all links in every case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedhp.types import BoolArray, FloatArray, IntArray, LinkVerdict, RoundRecord

Columns = list[Sequence[Any]]

LINKS_PER_WORKER = 64  # rows up to which a round's links are recorded one and all
SELECTED_PER_WORKER = 4  # rows per worker of a selection, about: slowest, fastest, cut, bridges
NAMED = 4  # slowest links of each verdict that a selection holds, to be named in sentences


@dataclass(frozen=True, slots=True)
class LinkTable:
    """Links used or considered, sorted by (a, b); one entry per link in every array."""

    a: IntArray  # the receiver where directed
    b: IntArray
    used: BoolArray
    size: IntArray  # bytes
    link_time: FloatArray  # NaN where not used
    distance: FloatArray
    verdict: IntArray  # -1: not considered
    planned: FloatArray  # s, as the planner saw it; NaN where not considered
    estimated: FloatArray
    directed: bool

    def __len__(self) -> int:
        return len(self.a)

    def take(self, rows: IntArray) -> LinkTable:
        """Only these rows."""
        arrays = {name: getattr(self, name)[rows] for name in self.__slots__[:-1]}
        return LinkTable(**arrays, directed=self.directed)

    def columns(self) -> Columns:
        """As the links table has them, without the round."""
        verdicts: list[int | None] = self.verdict.tolist()
        if (self.verdict < 0).any():
            verdicts = [None if verdict == -1 else verdict for verdict in verdicts]
        return [
            self.a.tolist(),
            self.b.tolist(),
            self.used.astype(np.int64).tolist(),
            self.size.tolist(),
            self.link_time.tolist(),
            self.distance.tolist(),
            verdicts,
            self.planned.tolist(),
            self.estimated.tolist(),
        ]

    def verdict_columns(self) -> Columns:
        """Every verdict that was given, how many links got it, and how many of these are used."""
        judged = self.verdict >= 0
        links = np.bincount(self.verdict[judged])
        used = np.bincount(self.verdict[judged & self.used], minlength=len(links))
        given = np.flatnonzero(links)
        return [given.tolist(), links[given].tolist(), used[given].tolist()]

    def peers(self, workers: int) -> IntArray:
        """With how many others each worker exchanged a model, either way, [N]."""
        low, high = np.minimum(self.a, self.b)[self.used], np.maximum(self.a, self.b)[self.used]
        if self.directed:
            low, high = np.divmod(np.unique(low * workers + high), workers)
        counts = np.bincount(low, minlength=workers) + np.bincount(high, minlength=workers)
        return counts.astype(np.int64)


def link_table(record: RoundRecord) -> LinkTable:
    """Links used, with their cost, joined with links considered, with their verdict."""
    decision, workers = record.decision, len(record.local_steps)
    used, considered = _keys(record.links, workers), _keys(decision.links, workers)
    keys = np.sort(np.concatenate([used, considered]), kind="stable")  # two sorted runs: a merge
    keys = keys[np.append(True, keys[1:] != keys[:-1])] if len(keys) else keys
    mine, theirs = np.searchsorted(keys, used), np.searchsorted(keys, considered)

    def spread(places: IntArray, values: Any, missing: Any) -> Any:
        column = np.full(len(keys), missing)
        column[places] = values
        return column

    estimated = np.nan if decision.distance is None else decision.distance
    a, b = np.divmod(keys, max(1, workers))
    return LinkTable(
        a=a,
        b=b,
        used=spread(mine, True, False),
        size=spread(mine, record.link_bytes, 0),
        link_time=spread(mine, record.link_time, np.nan),
        distance=spread(mine, record.link_distance, np.nan),
        verdict=spread(theirs, decision.verdicts, -1),
        planned=spread(theirs, decision.link_time, np.nan),
        estimated=spread(theirs, estimated, np.nan),
        directed=bool((record.links[:, 0] > record.links[:, 1]).any()),
    )


def to_record(table: LinkTable, workers: int, *, pace_setter: int | None = None) -> LinkTable:
    """The rows to keep: all up to LINKS_PER_WORKER * N, else the selection."""
    if len(table) <= LINKS_PER_WORKER * workers:
        return table
    return table.take(_selection(table, workers, pace_setter))


def round_bytes(workers: int, links: int) -> int:
    """About how many bytes one round takes on disk, with an evaluation in it."""
    whole = links <= LINKS_PER_WORKER * workers
    return 1_000 + 150 * workers + 60 * (links if whole else SELECTED_PER_WORKER * workers)


def _selection(table: LinkTable, workers: int, pace_setter: int | None) -> IntArray:
    # A time that is unknown counts as none, as the readers take it.
    times, planned = np.nan_to_num(table.link_time), np.nan_to_num(table.planned)
    used = np.flatnonzero(table.used)
    cut = np.flatnonzero(~table.used & (table.verdict == LinkVerdict.CUT))
    waiting = (table.a,) if table.directed else (table.a, table.b)
    kept = [
        _extremes(used, times, waiting, workers),
        _extremes(used, -times, waiting, workers),
        _extremes(cut, planned, (table.a, table.b), workers),
        np.flatnonzero(table.verdict == LinkVerdict.KEPT_BRIDGE),
    ]
    for verdict in LinkVerdict:
        kept.append(_largest(np.flatnonzero(table.verdict == verdict), planned))
    if pace_setter is not None:
        mine = np.any([end[used] == pace_setter for end in waiting], axis=0)
        kept.append(_largest(used[mine], planned)[:1])
    return np.unique(np.concatenate(kept))


def _extremes(
    rows: IntArray, value: FloatArray, ends: tuple[IntArray, ...], workers: int
) -> IntArray:
    """Of these rows the one with the largest value at each worker, the first among equals."""
    best = np.full(workers, -np.inf)
    for end in ends:
        np.maximum.at(best, end[rows], value[rows])
    first = np.full(workers, len(value))
    for end in ends:
        tops = rows[value[rows] == best[end[rows]]]
        np.minimum.at(first, end[tops], tops)
    return first[first < len(value)]


def _largest(rows: IntArray, value: FloatArray) -> IntArray:
    """The NAMED rows of largest value, largest first, then in order."""
    if len(rows) <= NAMED:
        return rows[np.argsort(-value[rows], kind="stable")]
    least = np.partition(value[rows], -NAMED)[-NAMED]
    above, equal = rows[value[rows] > least], rows[value[rows] == least]
    above = above[np.argsort(-value[above], kind="stable")]
    return np.concatenate([above, equal[: NAMED - len(above)]])


def _keys(links: IntArray, workers: int) -> IntArray:
    return links[:, 0] * workers + links[:, 1]
