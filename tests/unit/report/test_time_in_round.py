"""Time in a round, from one source: who finished last, transfers, turns; in every view the same."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fedhp.record.reader import RunReader
from fedhp.record.store import PHASES_PER_WORKER, RECORD_FILE, Store
from fedhp.record.timeline import (
    most_often_last,
    plan_hits,
    read_pace,
    read_paces,
    read_turns,
    transfer_times,
    transfers_of_pairs,
)
from fedhp.report.explain import explain_round
from fedhp.report.figures.run import read_links, timeline
from fedhp.report.rounds import pace_words, paces_words
from fedhp.report.show import round_json, show_parts
from fedhp.types import RoundRecord, Timing, TurnPhase
from unit.record.rounds import mesh, planned_round
from unit.report.conftest import Runs
from unit.report.runs import make_run, query, seal
from unit.report.test_figures import bars

WORKERS = 4


def hand_made(folder: Path, *rounds: RoundRecord) -> Path:
    """A real run's description with these rounds."""
    make_run(folder, "fedhp", rounds=1)
    store = Store.open(folder, write=True)
    store.truncate(0)
    store.set_meta("workers", WORKERS)
    store.set_meta("rounds", len(rounds))
    store.set_meta("devices", ["laptop"] * WORKERS)
    for record in rounds:
        store.commit(record)
    store.seal()
    store.close()
    return folder


def a_round(
    index: int, computing: list[float], link_times: dict[tuple[int, int], float], *, planned: int
) -> RoundRecord:
    """Each worker computes so long, and then waits for the slowest of its links."""
    links = np.array(sorted(link_times), dtype=np.int64)
    times = np.array([link_times[a, b] for a, b in links.tolist()])
    slowest = np.zeros(WORKERS)
    for end in (0, 1):
        np.maximum.at(slowest, links[:, end], times)
    compute = np.array(computing)
    done = compute + slowest
    base = planned_round(WORKERS, mesh(WORKERS), round_index=index, cut=0.0)
    return replace(
        base,
        timing=Timing(compute, slowest, done, done.max() - done, float(done.max())),
        links=links,
        link_time=times,
        link_bytes=np.full(len(links), 3_000_000, dtype=np.int64),
        link_distance=np.ones(len(links)),
        local_steps=np.full(WORKERS, 38),
        decision=replace(
            base.decision,
            links=links,
            verdicts=np.zeros(len(links), dtype=np.int64),
            link_time=times / 2,  # as the planner saw them
            distance=np.ones(len(links)),
            pace_setter=planned,
            facts={"planned_round_time": 7.4, "deadline": 7.4},
        ),
    )


@pytest.fixture(scope="module")
def paced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Worker 2 is last in rounds 1 and 2, worker 0 in round 3; the plan says 1, 2 and 3."""
    slow_link = {(0, 1): 1.0, (1, 2): 0.5, (2, 3): 6.9}
    return hand_made(
        tmp_path_factory.mktemp("paced") / "run",
        a_round(1, [1.0, 1.0, 4.0, 1.0], slow_link, planned=1),
        a_round(2, [1.0, 1.0, 4.0, 1.0], slow_link, planned=2),
        a_round(3, [9.0, 1.0, 1.0, 1.0], {(0, 1): 1.0, (2, 3): 0.5}, planned=3),
    )


def test_who_set_the_pace_is_who_finished_last_over_its_slowest_link(paced: Path) -> None:
    with RunReader(paced) as run:
        first, second, third = read_paces(run)
        assert (first.last_worker, first.link_with, first.link_time) == (2, 3, 6.9)
        assert (first.compute_time, first.waited) == (4.0, 3)
        assert (first.planned_worker, first.plan_was_right) == (1, False)
        assert (second.last_worker, second.plan_was_right) == (2, True)
        assert (third.last_worker, third.link_with, third.plan_was_right) == (0, 1, False)
        assert plan_hits([first, second, third]) == (1, 3)
        assert most_often_last([first, second, third]) == [(2, 2), (0, 1)]
        assert read_pace(run, 2) == second


def test_every_text_names_the_same_worker(paced: Path) -> None:
    with RunReader(paced) as run:
        text = {part.heading: part.text for part in explain_round(run, 1)}
        shown = round_json(run, 1)["pace"]
        words, all_words = (
            pace_words(read_pace(run, 1), ["laptop"] * 4),
            paces_words(read_paces(run), ["laptop"] * 4),
        )
    assert "Everyone waits for worker 2" in text["Waiting"]
    assert (shown["last_worker"], shown["link_with"], shown["planned_worker"]) == (2, 3, 1)
    assert words == (
        "worker 2 (laptop) finished last: its steps took 4.00 s, its link to 3 6.90 s; 3 workers "
        "waited; the plan expected worker 1 (laptop)"
    )
    assert all_words == (
        "most often last: worker 2 (laptop), in 2 of 3 rounds; the plan was right in 1 of 3 rounds"
    )
    assert words in show_parts(paced, 1)
    assert all_words in [getattr(part, "value", "") for part in show_parts(paced)]


def test_explain_says_why_a_round_took_longer_than_planned(paced: Path) -> None:
    with RunReader(paced) as run:
        text = {part.heading: part.text for part in explain_round(run, 1)}["Pace"]
    assert (
        "7.40 s in total. The round actually took 10.9 s, because worker 2 (laptop) finished last "
        "instead: its 38 steps took 4.00 s, its slowest link 6.90 s where the plan had 3.45 s. The "
        "links were slower than when the plan was made." in text
    )


def test_the_figure_marks_the_last_worker_and_the_planned_one(paced: Path) -> None:
    with RunReader(paced) as run:
        axes = timeline(run, 1).axes[0]
    marks = {line.get_label(): line for line in axes.lines}
    rows = [text.get_text().split()[-1] for text in axes.get_yticklabels()]
    for name, worker, end in (("finished last", "2", 10.9), ("planned to be last", "1", 2.0)):
        ((x, row),) = marks[name].get_xydata().tolist()  # type: ignore[union-attr]
        assert rows[int(row)] == worker
        assert x == pytest.approx(end)
    assert marks["planned to be last"].get_markerfacecolor() == "white"


@pytest.mark.parametrize("which", ["dpsgd", "ldsgd", "pens", "fedhp"])
def test_the_pace_is_measured_for_every_algorithm_with_a_barrier(runs: Runs, which: str) -> None:
    folder = getattr(runs, which)
    folder = folder[0] if isinstance(folder, tuple) else folder
    with RunReader(folder) as run:
        times, paces = run.array("workers", "worker_time"), read_paces(run)
    assert [pace.last_worker for pace in paces] == np.argmax(times, axis=1).tolist()
    for pace in paces:
        assert pace.compute_time is not None
        assert pace.communication_time is not None
        assert pace.worker_time == pytest.approx(pace.compute_time + pace.communication_time)
        # Its slowest link is what it communicated over; LD-SGD has rounds without an exchange.
        assert (pace.link_time or 0.0) == pytest.approx(pace.communication_time)


@pytest.mark.parametrize("which", ["adpsgd", "plus"])
def test_nobody_is_last_where_nobody_waits(runs: Runs, which: str) -> None:
    with RunReader(getattr(runs, which)) as run:
        paces = read_paces(run)
        assert {pace.last_worker for pace in paces} == {None}
        assert plan_hits(paces) == (0, 0)
        assert paces_words(paces, run.meta("devices")) == ""


def test_transfers_of_a_group_average_are_the_same_in_every_view(runs: Runs) -> None:
    with RunReader(runs.plus) as run:
        for index in range(2, 7):
            rows = run.table("workers", round_index=index)
            times = transfer_times(run, rows)
            (took,) = query(
                runs.plus,
                "SELECT value FROM facts WHERE name = 'transfer_time' AND round = ?",
                index,
            )[0]
            roles = dict(
                query(runs.plus, "SELECT worker, role FROM participation WHERE round = ?", index)
            )
            outside = {worker for worker, role in roles.items() if role in ("left_out", "away")}
            assert took > 0
            assert times == [0.0 if worker in outside else took for worker in range(6)]
            assert [row["transfer_time"] for row in round_json(run, index)["workers"]] == times
            for worker in range(6):
                alone = run.worker_rows("workers", worker)
                assert transfer_times(run, alone)[index - 1] == times[worker]
        axes = timeline(run, 6).axes[0]
    widths = [round(width, 9) for _, width in bars(axes)]
    assert widths.count(round(took, 9)) == 6 - len(outside)


def test_transfers_that_take_time_of_their_own_are_those_of_the_record(runs: Runs) -> None:
    for folder in (runs.plus_waiting, runs.dpsgd[0], runs.adpsgd):
        with RunReader(folder) as run:
            rows = run.table("workers", round_index=3)
            assert transfer_times(run, rows) == rows["communication_time"]


def test_the_phases_of_a_run_without_a_barrier_add_up(runs: Runs) -> None:
    """A worker trains and transfers without a gap, and each sum is that of the workers table."""
    with RunReader(runs.adpsgd) as run:
        phases = run.table("phases")
        busy = run.array("workers", "compute_time") + run.array("workers", "communication_time")
        windows = [read_turns(run, index) for index in range(1, 7)]
        clocks = [0.0, *run.table("rounds")["clock"]]
    rows = list(zip(*(phases[n] for n in ("worker", "start", "finish", "round")), strict=True))
    for worker in range(6):
        own = [(start, finish) for each, start, finish, _ in rows if each == worker]
        assert own[0][0] == pytest.approx(0.0)
        for (_, before), (start, _) in pairwise(own):
            assert start == pytest.approx(before)
    for index in range(1, 7):
        lengths = [finish - start for _, start, finish, number in rows if number == index]
        assert sum(lengths) == pytest.approx(busy[index - 1].sum())
    for index, window in enumerate(windows, start=1):
        assert (window.began, window.ended) == (clocks[index - 1], clocks[index])
        assert window.left <= window.began < window.ended <= window.right
        assert window.recorded
        assert window.complete
        inside = {
            (worker, start)
            for worker, start, finish, _ in rows
            if finish > window.left and start < window.right
        }
        assert {(phase.worker, phase.start) for phase in window.phases} == inside


def test_a_window_has_the_turns_that_end_later(tmp_path: Path) -> None:
    """A turn of 10 s is seen in each of the three-second rounds that it spans."""
    bare = planned_round(WORKERS, mesh(WORKERS), cut=1.0)
    ended = {
        2: [TurnPhase(0, 0.0, 4.0)],
        3: [TurnPhase(0, 4.0, 8.0, 1)],
        4: [TurnPhase(1, 0.0, 10.0)],
    }
    rounds = []
    for index in range(1, 5):
        phases = ended.get(index, [])
        busy = [
            sum(p.finish - p.start for p in phases if p.worker == worker)
            for worker in range(WORKERS)
        ]
        timing = Timing(
            np.array(busy), np.zeros(WORKERS), np.full(WORKERS, 3.0), np.zeros(WORKERS), 3.0
        )
        rounds.append(
            replace(bare, round_index=index, clock=3.0 * index, timing=timing, phases=tuple(phases))
        )
    folder = hand_made(tmp_path / "run", *rounds)
    store = Store.open(folder, write=True)
    store.set_meta("asynchronous", True)
    store.close()
    with RunReader(folder) as run:
        window = read_turns(run, 1)
        assert (window.began, window.ended, window.left) == (0.0, 3.0, 0.0)
        assert [(p.worker, p.start, p.finish, p.partner) for p in window.phases] == [
            *((0, 0.0, 4.0, None), (0, 4.0, 8.0, 1), (1, 0.0, 10.0, None)),
        ]
        axes = timeline(run, 3).axes[0]
        drawn = {(left, left + width) for left, width in bars(axes)}
        assert {(0.0, 4.0), (4.0, 8.0), (0.0, 10.0), (6.0, 9.0)} <= drawn  # the last: the round
        assert transfers_of_pairs(run, 3) == {(0, 1): 1}


def test_turns_of_a_round_in_which_somebody_was_away(tmp_path: Path) -> None:
    """With a barrier no turns are recorded; a worker that is away has no times at all."""
    round_of_all = a_round(1, [1.0, 2.0, 3.0, 4.0], {(0, 1): 1.0}, planned=3)
    nothing = np.where(np.arange(WORKERS) == 2, np.nan, round_of_all.timing.compute_time)
    timing = replace(round_of_all.timing, compute_time=nothing, communication_time=nothing)
    folder = hand_made(tmp_path / "run", replace(round_of_all, timing=timing))
    with RunReader(folder) as run:
        window = read_turns(run, 1)
    assert (window.phases, window.recorded, window.complete) == ([], False, False)


def without_phases(folder: Path, copy: Path) -> Path:
    """The run as an earlier version recorded it."""
    shutil.copytree(folder, copy)
    with closing(sqlite3.connect(copy / RECORD_FILE)) as connection:
        connection.execute("DROP TABLE phases")
        connection.commit()
    seal(copy)
    return copy


def test_a_record_without_phases_opens_and_says_so(runs: Runs, tmp_path: Path) -> None:
    copy = without_phases(runs.adpsgd, tmp_path / "old")
    with RunReader(copy) as run, RunReader(runs.adpsgd) as new:
        run.check()
        assert run.digest() == new.digest()  # when a turn began is not part of it
        window = read_turns(run, 3)
        assert not window.recorded
        assert window.phases == []
        assert "when turns began is not on record" in [
            text.get_text() for text in timeline(run, 3).axes[0].texts
        ]
        assert transfers_of_pairs(run, 3) is None
        assert np.isnan(read_links(run, 3).speed).all()
        text = " ".join(part.text for part in explain_round(run, 3))
        assert re.search(r"Averagings over \d+ links", text)


def test_a_record_keeps_a_bounded_number_of_phases(tmp_path: Path) -> None:
    most = PHASES_PER_WORKER * WORKERS
    phases = tuple(TurnPhase(0, float(at), at + 1.0) for at in range(most + 10))
    bare = planned_round(WORKERS, mesh(WORKERS), cut=1.0)
    compute = np.array([most + 10.0, 0.0, 0.0, 0.0])
    timing = replace(bare.timing, compute_time=compute, communication_time=np.zeros(WORKERS))
    folder = hand_made(
        tmp_path / "run", replace(bare, clock=most + 10.0, timing=timing, phases=phases)
    )
    with RunReader(folder) as run:
        assert len(run.table("phases")["worker"]) == most
        window = read_turns(run, 1)
        assert window.recorded
        assert not window.complete


@pytest.mark.parametrize("which", ["fedhp", "pens", "adpsgd", "plus", "plus_waiting"])
def test_the_speed_of_a_link_comes_from_the_bytes_that_were_sent(runs: Runs, which: str) -> None:
    """No link is faster than the bandwidths of its two workers, whatever was sent over it."""
    folder = getattr(runs, which)
    folder = folder[0] if isinstance(folder, tuple) else folder
    with RunReader(folder) as run:
        bandwidth = 8 * run.array("workers", "bandwidth")
        network = run.meta("experiment")["world"]["bandwidth"]
        low, high = 1e6 * network["low"], 1e6 * network["high"]
        found = 0
        for index in range(1, run.rounds_done + 1):
            links = read_links(run, index)
            for (a, b), speed in zip(links.pairs, links.speed, strict=True):
                assert low * 0.999 <= speed <= high * 1.001
                if which != "adpsgd":  # whose transfers begin during the round
                    slower = min(bandwidth[index - 1, a], bandwidth[index - 1, b])
                    assert speed == pytest.approx(slower, rel=0.02)
                found += 1
    assert found > 3
