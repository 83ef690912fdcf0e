"""Which links of a round are recorded: all of them, or a selection if there are very many.

A full mesh has N^2/2 links, and the record would grow with them. Above LINKS_PER_WORKER * N links
it has those that explain the round: the ones that set each worker's time, that were cut, and that
had to stay. The counts per verdict always cover all links.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedhp.types import BoolArray, FloatArray, IntArray, LinkVerdict, RoundRecord

Columns = list[Sequence[Any]]

LINKS_PER_WORKER = 64  # up to which all links of a round are recorded
SELECTED_PER_WORKER = 4  # links of a selection, about: slowest, fastest, cut, bridges
NAMED_LINKS = 4  # slowest links of each verdict in a selection, which reports name


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

    def take(self, rows: IntArray) -> LinkTable:
        """Only these rows."""
        arrays = {name: getattr(self, name)[rows] for name in self.__slots__[:-1]}
        return LinkTable(**arrays, directed=self.directed)

    def columns(self) -> Columns:
        """The columns of the table `links`, without the round."""
        columns = {name: getattr(self, name).tolist() for name in self.__slots__[:-1]}
        if (self.verdict < 0).any():
            verdicts = columns["verdict"]
            columns["verdict"] = [None if verdict == -1 else verdict for verdict in verdicts]
        return list(columns.values())

    def verdict_columns(self) -> Columns:
        """Each verdict that occurs, how many links have it, and how many of these are used."""
        judged = self.verdict >= 0
        links = np.bincount(self.verdict[judged])
        used = np.bincount(self.verdict[judged & self.used], minlength=len(links))
        verdicts = np.flatnonzero(links)
        return [verdicts.tolist(), links[verdicts].tolist(), used[verdicts].tolist()]

    def peers(self, workers: int) -> IntArray:
        """With how many other workers each one exchanged a model, in either direction, [N]."""
        used = self.used & (self.a != self.b)  # a link to itself is one to the server
        low, high = np.minimum(self.a, self.b)[used], np.maximum(self.a, self.b)[used]
        if self.directed:
            low, high = np.divmod(np.unique(low * workers + high), workers)
        counts = np.bincount(low, minlength=workers) + np.bincount(high, minlength=workers)
        return counts.astype(np.int64)


def link_table(record: RoundRecord) -> LinkTable:
    """Links used, with their cost, joined with links considered, with their verdict."""
    decision, workers = record.decision, len(record.local_steps)
    used = record.links[:, 0] * workers + record.links[:, 1]
    considered = decision.links[:, 0] * workers + decision.links[:, 1]
    keys = np.sort(np.concatenate([used, considered]), kind="stable")  # two sorted runs: a merge
    keys = keys[np.append(True, keys[1:] != keys[:-1])] if len(keys) else keys
    used_rows, considered_rows = np.searchsorted(keys, used), np.searchsorted(keys, considered)

    def spread(rows: IntArray, values: Any, missing: Any) -> Any:
        column = np.full(len(keys), missing)
        column[rows] = values
        return column

    estimated = np.nan if decision.distance is None else decision.distance
    a, b = np.divmod(keys, max(1, workers))
    return LinkTable(
        a=a,
        b=b,
        used=spread(used_rows, True, False),
        size=spread(used_rows, record.link_bytes, 0),
        link_time=spread(used_rows, record.link_time, np.nan),
        distance=spread(used_rows, record.link_distance, np.nan),
        verdict=spread(considered_rows, decision.verdicts, -1),
        planned=spread(considered_rows, decision.link_time, np.nan),
        estimated=spread(considered_rows, estimated, np.nan),
        directed=bool((record.links[:, 0] > record.links[:, 1]).any()),
    )


def to_record(table: LinkTable, workers: int, *, pace_setter: int | None = None) -> LinkTable:
    """The links to record: all up to LINKS_PER_WORKER * N, else the selection."""
    if len(table.a) <= LINKS_PER_WORKER * workers:
        return table
    return table.take(_selection(table, workers, pace_setter))


def round_bytes(workers: int, links: int) -> int:
    """About how many bytes one round takes on disk, with an evaluation in it."""
    whole = links <= LINKS_PER_WORKER * workers
    return 1_000 + 150 * workers + 60 * (links if whole else SELECTED_PER_WORKER * workers)


def _selection(table: LinkTable, workers: int, pace_setter: int | None) -> IntArray:
    # An unknown time counts as 0, as in the reports.
    times, planned = np.nan_to_num(table.link_time), np.nan_to_num(table.planned)
    used = np.flatnonzero(table.used)
    cut = np.flatnonzero(~table.used & (table.verdict == LinkVerdict.CUT))
    waiting = (table.a,) if table.directed else (table.a, table.b)
    selected = [
        _extremes(used, times, waiting, workers),
        _extremes(used, -times, waiting, workers),
        _extremes(cut, planned, (table.a, table.b), workers),
        np.flatnonzero(table.verdict == LinkVerdict.KEPT_BRIDGE),
    ]
    for verdict in LinkVerdict:
        selected.append(_largest(np.flatnonzero(table.verdict == verdict), planned))
    if pace_setter is not None:
        its_own = np.any([end[used] == pace_setter for end in waiting], axis=0)
        selected.append(_largest(used[its_own], planned)[:1])
    return np.unique(np.concatenate(selected))


def _extremes(
    rows: IntArray, value: FloatArray, ends: tuple[IntArray, ...], workers: int
) -> IntArray:
    """At each worker the row with the largest value, the first of equal ones."""
    best = np.full(workers, -np.inf)
    for end in ends:
        np.maximum.at(best, end[rows], value[rows])
    first = np.full(workers, len(value))
    for end in ends:
        tops = rows[value[rows] == best[end[rows]]]
        np.minimum.at(first, end[tops], tops)
    return first[first < len(value)]


def _largest(rows: IntArray, value: FloatArray) -> IntArray:
    """The NAMED_LINKS rows with the largest values, largest first, then in order."""
    if len(rows) <= NAMED_LINKS:
        return rows[np.argsort(-value[rows], kind="stable")]
    least = np.partition(value[rows], -NAMED_LINKS)[-NAMED_LINKS]
    above, equal = rows[value[rows] > least], rows[value[rows] == least]
    above = above[np.argsort(-value[above], kind="stable")]
    return np.concatenate([above, equal[: NAMED_LINKS - len(above)]])
