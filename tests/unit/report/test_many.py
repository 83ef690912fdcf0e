"""Very many workers: sentences about a selection of links are right, or call it a selection."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from rich.console import Console

from fedhp.record.reader import RunReader
from fedhp.report.explain import explain_round
from fedhp.report.figures.run import (
    MOST_LINES,
    MOST_MARKERS,
    save_run_figures,
    timeline,
    topology,
)
from fedhp.report.formatting import seconds
from fedhp.report.rounds import selection_note
from fedhp.report.tables import worker_table
from fedhp.types import LinkVerdict, RoundRecord
from unit.record.rounds import mesh, planned_round
from unit.report.runs import wide_run

WORKERS = 150


@pytest.fixture(scope="module", params=[False, True], ids=["links", "transfers"])
def wide(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wide") / "run"
    return wide_run(folder, WORKERS, directed=request.param)


def truth(folder: Path) -> RoundRecord:
    """What the second round was, with all its links."""
    with RunReader(folder) as run:
        directed = bool(run.table("rounds")["directed"][1])
    return planned_round(WORKERS, mesh(WORKERS), round_index=2, directed=directed)


def test_the_words_count_all_links_and_say_what_is_missing(wide: Path) -> None:
    record = truth(wide)
    verdicts, planned = record.decision.verdicts, record.decision.link_time
    with RunReader(wide) as run:
        text = {part.heading: part.text for part in explain_round(run, 2)}
        recorded, known = run.links_kept(2)
    cut = int((verdicts == LinkVerdict.CUT).sum())
    assert known == len(verdicts) == WORKERS * (WORKERS - 1) // 2
    assert f"{known - cut} of {known} links kept, {cut} cut." in text["Links"]
    assert f"and {cut - 4} more" in text["Links"]
    for verdict in (LinkVerdict.KEPT_BOUND, LinkVerdict.KEPT_NO_GAIN, LinkVerdict.KEPT_UNTRIED):
        mine = np.flatnonzero(verdicts == verdict)
        a, b = record.decision.links[mine[np.argmax(planned[mine])]]
        slowest = seconds(float(planned[mine].max()))
        assert f"{len(mine)} links kept: " in text["Links"]
        assert f"(the slowest: {a}–{b} with {slowest})" in text["Links"]
    slowest_cut = np.argsort(-np.where(verdicts == LinkVerdict.CUT, planned, -1.0))[:4]
    named = re.search(r"the slowest: (.*?) and \d+ more", text["Links"])
    assert named is not None
    assert re.findall(r"(\d+)–(\d+)", named[1]) == [
        (str(a), str(b)) for a, b in record.decision.links[slowest_cut]
    ]
    assert "fall apart" not in text["Links"]
    assert f"The record keeps {recorded:,} of the {known:,} links" in text["Links"]


def test_the_slowest_link_of_those_who_are_named_is_theirs(wide: Path) -> None:
    record = truth(wide)
    with RunReader(wide) as run:
        text = {part.heading: part.text for part in explain_round(run, 2)}
    last = int(record.timing.waiting_time.argmin())
    ends = record.links[:, :1] if (record.links[:, 0] > record.links[:, 1]).any() else record.links
    mine = np.flatnonzero((ends == last).any(axis=1))
    pair = record.links[mine[np.nanargmax(record.link_time[mine])]]
    other = int(pair.sum()) - last
    assert f"Everyone waits for worker {last} " in text["Waiting"]
    assert re.search(
        rf"its slowest link \((to|from) {other}\)", text["Waiting"].split("Everyone")[1]
    )


def test_a_table_has_the_number_of_peers_of_every_worker(wide: Path) -> None:
    degrees = np.bincount(truth(wide).links.ravel(), minlength=WORKERS)
    console = Console(width=120, file=io.StringIO(), record=True)
    with RunReader(wide) as run:
        console.print(worker_table(run, 2))
    rows = [line.split() for line in console.export_text().splitlines()]
    found = {int(row[0]): int(row[2]) for row in rows if row and row[0].isdigit()}
    assert found == dict(enumerate(degrees.tolist()))


def test_pictures_draw_some_lines_and_tell_the_number_of_all(wide: Path) -> None:
    record = truth(wide)
    with RunReader(wide) as run:
        axes = topology(run, [2]).axes[0]
        assert "60 of 150 workers" in timeline(run, 2).axes[0].get_xlabel()
    [text] = axes.texts
    assert text.get_text().startswith(f"round 2: {len(record.links)} ")
    lines = [each for each in axes.collections if isinstance(each, LineCollection)]
    drawn = sum(len(each.get_segments()) for each in lines)
    assert 0 < drawn <= MOST_LINES
    assert f"{drawn} slowest and fastest drawn" in text.get_text()


def test_a_thousand_workers_are_drawn_in_seconds(tmp_path: Path) -> None:
    folder = wide_run(tmp_path / "run", 1200, rounds=1)
    start = time.process_time()
    paths = save_run_figures(folder, tmp_path / "pictures")
    assert time.process_time() - start < 30
    assert max(path.stat().st_size for path in paths) < 1_500_000
    with RunReader(folder) as run:
        axes = topology(run, [1]).axes[0]
        dots = [each for each in axes.collections if not isinstance(each, LineCollection)]
        assert sum(len(np.asarray(each.get_offsets())) for each in dots) == MOST_MARKERS
        assert worker_table(run, 1).row_count == 1000
        assert "1000 of 1200 workers" in str(worker_table(run, 1).caption)


def test_a_whole_record_needs_no_note(wide: Path, tmp_path: Path) -> None:
    with RunReader(wide_run(tmp_path / "run", 12)) as run:
        assert selection_note(run) == ""
        assert "The record keeps" not in str(explain_round(run, 1))
        assert len(topology(run, [1]).axes[0].texts) == 13
    with RunReader(wide) as run:
        assert re.fullmatch(
            r"a selection of [\d,]+ of 22,350 links, see docs/api.md", selection_note(run)
        )
