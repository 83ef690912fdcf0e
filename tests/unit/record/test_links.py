"""Which links are recorded: all of few, the telling ones of very many, and exact counts always."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhp.record.links import (
    LINKS_PER_WORKER,
    NAMED_LINKS,
    LinkTable,
    link_table,
    round_bytes,
    to_record,
)
from fedhp.record.reader import RunReader
from fedhp.record.store import RECORD_FILE, Store
from fedhp.types import LinkVerdict, RoundRecord
from unit.record.rounds import mesh, planned_round

Row = tuple[Any, ...]


def naive_rows(record: RoundRecord) -> list[Row]:
    """The join of used and considered links as it was first written, with a dictionary."""

    def plain(value: float) -> float | None:
        return None if value != value else float(value)

    decision = record.decision
    estimated = np.full(len(decision.links), np.nan)
    if decision.distance is not None:
        estimated = decision.distance
    considered = {
        (int(a), int(b)): (LinkVerdict(verdict).word, plain(planned), plain(far))
        for (a, b), verdict, planned, far in zip(
            decision.links, decision.verdicts, decision.link_time, estimated, strict=True
        )
    }
    rows: list[Row] = []
    for i, (a, b) in enumerate(record.links.tolist()):
        cost = (plain(record.link_time[i]), plain(record.link_distance[i]))
        reasons = considered.pop((a, b), (None, None, None))
        rows.append((a, b, 1, int(record.link_bytes[i]), *cost, *reasons))
    rows += [(a, b, 0, 0, None, None, *reasons) for (a, b), reasons in considered.items()]
    return sorted(rows, key=lambda row: row[:2])


def stored(folder: Path, record: RoundRecord) -> RunReader:
    folder.mkdir()
    store = Store.create(folder)
    store.set_meta("workers", len(record.local_steps))
    store.commit(record)
    store.leave_wal_mode()
    store.close()
    return RunReader(folder)


def table_rows(run: RunReader) -> list[Row]:
    table = run.table("links")
    del table["round"]
    return list(zip(*table.values(), strict=True))


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 7, 128])
def test_few_links_are_all_recorded_as_ever(workers: int, directed: bool, tmp_path: Path) -> None:
    record = planned_round(workers, mesh(workers), directed=directed)
    with stored(tmp_path / "run", record) as run:
        assert table_rows(run) == naive_rows(record)
        assert run.links_kept() == (len(mesh(workers)), len(mesh(workers)))


def test_links_that_nobody_considered_have_no_verdict(tmp_path: Path) -> None:
    record = planned_round(4, mesh(4), cut=0.0)
    record.decision.links[:] = record.decision.links[:, ::-1]
    with stored(tmp_path / "run", record) as run:
        assert table_rows(run) == naive_rows(record)
        assert run.links_kept() == (12, 12)
        assert sum(run.table("verdicts")["used"]) == 0
        assert run.table("rounds")["links"] == [6]
        assert run.table("workers")["links"] == [3, 3, 3, 3]


def at(table: LinkTable, worker: int) -> Any:
    """The links for which this worker waits."""
    return (table.a == worker) | (~np.bool_(table.directed) & (table.b == worker))


def keys(table: LinkTable) -> set[tuple[int, int]]:
    return set(zip(table.a.tolist(), table.b.tolist(), strict=True))


@settings(max_examples=25, deadline=None)
@given(
    workers=st.integers(140, 190),
    share=st.floats(0.0, 1.0),
    seed=st.integers(0, 10_000),
    ties=st.booleans(),
    directed=st.booleans(),
)
def test_a_selection_tells_the_reasons(
    workers: int, share: float, seed: int, ties: bool, directed: bool
) -> None:
    record = planned_round(
        workers, mesh(workers), round_index=seed, cut=share, ties=ties, directed=directed
    )
    whole = link_table(record)
    assert len(whole.a) > LINKS_PER_WORKER * workers
    setter = record.decision.pace_setter
    kept = to_record(whole, workers, pace_setter=setter)
    assert len(kept.a) <= 4 * workers
    assert keys(kept) <= keys(whole)
    times, planned = np.nan_to_num(whole.link_time), np.nan_to_num(whole.planned)
    found = keys(kept)

    def is_kept(mask: Any, value: Any) -> bool:
        """The first of the links with the largest value is there."""
        rows = np.flatnonzero(mask)
        if not len(rows):
            return True
        row = rows[np.argmax(value[rows])]
        return (int(whole.a[row]), int(whole.b[row])) in found

    cut = whole.verdict == LinkVerdict.CUT
    for worker in range(workers):
        assert is_kept(whole.used & at(whole, worker), times)
        assert is_kept(whole.used & at(whole, worker), -times)
        assert is_kept(cut & ((whole.a == worker) | (whole.b == worker)), planned)
    assert setter is not None
    assert is_kept(whole.used & at(whole, setter), planned)
    bridges = whole.verdict == LinkVerdict.KEPT_BRIDGE
    assert (kept.verdict == LinkVerdict.KEPT_BRIDGE).sum() == bridges.sum()
    for verdict in LinkVerdict:
        mine = np.flatnonzero(whole.verdict == verdict)
        slowest = mine[np.lexsort((mine, -planned[mine]))][:NAMED_LINKS]
        assert keys(whole.take(slowest)) <= found


@pytest.mark.parametrize("directed", [False, True])
def test_counts_are_of_all_links(directed: bool, tmp_path: Path) -> None:
    record = planned_round(200, mesh(200), cut=0.4, directed=directed)
    rows = naive_rows(record)
    with stored(tmp_path / "run", record) as run:
        recorded, known = run.links_kept(1)
        assert known == len(rows) == 19_900
        assert recorded == len(run.table("links")["a"]) < 4 * 200
        found = run.table("verdicts", round_index=1)
        for verdict, links, used in zip(
            found["verdict"], found["links"], found["used"], strict=True
        ):
            mine = [row for row in rows if row[6] == verdict]
            assert links == len(mine)
            assert used == sum(row[2] for row in mine)
        assert sum(found["links"]) == known
        [row] = zip(*(run.table("rounds")[n] for n in ("links", "bytes_sent")), strict=True)
        assert row == (len(record.links), 3_000_000 * len(record.links))
        assert run.table("rounds")["directed"] == [int(directed)]
        degrees = np.bincount(record.links.ravel(), minlength=200)
        assert run.table("workers")["links"] == degrees.tolist()
        # A row that is kept is the row as it is.
        assert set(table_rows(run)) <= set(rows)


def test_a_pair_that_exchanges_both_ways_counts_as_one_peer(tmp_path: Path) -> None:
    both = np.concatenate([mesh(3), mesh(3)[:, ::-1]])
    record = planned_round(3, both, cut=0.0)
    with stored(tmp_path / "run", record) as run:
        assert run.table("workers")["links"] == [2, 2, 2]
        assert run.table("rounds")["links"] == [6]


def test_a_full_mesh_of_a_thousand_takes_less_than_a_megabyte_a_round(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    links = mesh(1000)
    for index in (1, 2, 3):
        store.commit(planned_round(1000, links, round_index=index))
    store.leave_wal_mode()
    store.close()
    each = (tmp_path / RECORD_FILE).stat().st_size / 3
    assert each < 1e6
    assert 0.5 * each < round_bytes(1000, len(links)) < 2 * each


@pytest.mark.parametrize(("workers", "links"), [(30, 435), (500, 5000)])
def test_the_estimate_of_a_round_is_near(workers: int, links: int, tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    chosen = np.sort(np.random.default_rng(0).permutation(len(mesh(workers)))[:links])
    for index in range(1, 21):
        store.commit(planned_round(workers, mesh(workers)[chosen], round_index=index))
    store.leave_wal_mode()
    store.close()
    each = (tmp_path / RECORD_FILE).stat().st_size / 20
    assert 0.6 * each < round_bytes(workers, links) < 1.7 * each


def test_half_a_million_links_are_reduced_quickly() -> None:
    record = planned_round(1000, mesh(1000))
    spent = []
    for _ in range(3):
        start = time.process_time()
        to_record(link_table(record), 1000, pace_setter=0)
        spent.append(time.process_time() - start)
    assert min(spent) < 0.6, "a loop over half a million links in Python takes seconds"
