"""Histories and logs that have grown: parts, what is summed, what is dropped and who says so."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from faults.invented_run import InventedRun
from fedhp.cluster import history as histories
from fedhp.cluster.audit.invariants import check_invariants
from fedhp.cluster.audit.merge import gather
from fedhp.cluster.audit.timeline import read_timeline
from fedhp.cluster.events import LeftOut
from fedhp.cluster.history import History, history_parts, read_history
from fedhp.cluster.ops import logs
from fedhp.cluster.protocol.attempt import INITIAL
from fedhp.dash.history import Histories
from net.leaders import Leader

PART = 4_000  # bytes


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Files become parts when they have a few dozen lines."""
    monkeypatch.setattr(histories, "PART_BYTES", PART)
    return monkeypatch


def write(run: InventedRun, folder: Path) -> Path:
    """The lines of a run as its processes would have written them."""
    for who, lines in run.files.items():
        history = History(folder, who)
        for line in lines:
            history.append(line["event"], line)
        history.close()
    return folder


def size_of(folder: Path, who: str) -> int:
    return sum(part.stat().st_size for part in history_parts(folder / f"history-{who}.jsonl"))


@pytest.mark.usefixtures("small_parts")
def test_parts_are_read_in_their_order(tmp_path: Path) -> None:
    for _ in range(2):  # also by the next process of this name
        history = History(tmp_path, "boss")
        for number in range(300):
            history.append("counted", {"number": number})
        history.close()
    file = tmp_path / "history-boss.jsonl"
    assert len(history_parts(file)) > 11
    assert [line["number"] for line in read_history(file)] == [*range(300)] * 2
    assert not any(part.stat().st_mode & 0o077 for part in history_parts(file))
    assert all(part.stat().st_size < 2 * PART for part in history_parts(file))


def test_attempts_without_end_are_summed_and_break_no_promise(
    tmp_path: Path, small_parts: pytest.MonkeyPatch
) -> None:
    small_parts.setattr(histories, "PART_BYTES", 10 * PART)
    run = InventedRun()
    run.lead(1)
    run.round()
    for number in range(1, 1500):
        facts = run.begin(number)
        run.note(run.coordinator, "left_aside", workers=[1])
        run.note(run.coordinator, "gave_up", **facts)
    facts = run.begin(1500)
    for worker in range(run.workers):
        run.report(worker, facts)
    run.commit(facts, [0, 1, 2])
    run.round()
    write(run, tmp_path)
    lines = sum(map(len, run.files.values()))
    kept = sum(len(list(read_history(file))) for file in tmp_path.glob("history-*.jsonl"))
    assert kept < lines / 2
    assert read_timeline(tmp_path).dropped == INITIAL
    assert check_invariants(tmp_path, rounds=3) == []
    # Parts of the usual size have room for far more attempts than they keep.
    summed = list(histories.compacted(run.files["coordinator"]))
    assert len(summed) < 100
    (left_out,) = (line for line in summed if line["event"] == LeftOut.event)
    assert (left_out["round"], left_out["first"], left_out["last"]) == (2, 11, 1490)
    assert left_out["lines"] == 3 * 1480
    assert [line["event"] for line in summed].count("commit") == 3


def test_the_oldest_part_is_dropped_and_the_audit_says_so(
    tmp_path: Path, small_parts: pytest.MonkeyPatch
) -> None:
    small_parts.setattr(histories, "PARTS", 4)
    run = InventedRun()
    run.lead(1)
    for _ in range(150):
        run.round()
    run.lead(2, who="other")
    for _ in range(150):
        run.round()
    write(run, tmp_path)
    for who in run.files:
        assert size_of(tmp_path, who) < 9 * PART
    timeline = read_timeline(tmp_path)
    first = timeline.dropped.round_index + 1
    assert 200 < first < 300
    assert min(attempt.round_index for attempt in timeline.committed) == first
    assert check_invariants(tmp_path, rounds=300) == []
    # What is left is still checked.
    history = History(tmp_path, "other")
    history.append("commit", {**run.begin(), "reported": [0]})
    history.close()
    assert check_invariants(tmp_path) != []


def test_a_gathered_run_has_all_rounds_and_says_where_its_histories_begin(
    tmp_path: Path, small_parts: pytest.MonkeyPatch
) -> None:
    small_parts.setattr(histories, "PART_BYTES", 500)
    small_parts.setattr(histories, "PARTS", 2)
    leader = Leader(tmp_path / "a", "c0").lead(3).rounds(1, 6).finish()
    whole = gather([leader.folder], tmp_path / "whole")
    assert [(piece.first, piece.last) for piece in whole.pieces] == [(1, 6)]
    assert whole.missing.startswith("the histories begin at round ")
    assert read_timeline(whole.folder).dropped == read_timeline(leader.folder).dropped
    assert [path.name for path in whole.folder.glob("history-*")] == ["history-c0.jsonl"]


def test_part_zero_stands_for_parts_that_a_kill_left(
    tmp_path: Path, small_parts: pytest.MonkeyPatch
) -> None:
    small_parts.setattr(histories, "PARTS", 2)
    small_parts.setattr(Path, "unlink", lambda _: None)
    history = History(tmp_path, "boss")
    history.append("lead", {})
    for number in range(200):
        history.append("counted", {"number": number})
    history.close()
    lines = list(read_history(tmp_path / "history-boss.jsonl"))
    numbers = [line["number"] for line in lines if line["event"] == "counted"]
    assert numbers == list(range(numbers[0], 200))
    dropped = [line for line in lines if line["event"] == histories.DROPPED]
    assert [line["lines"] for line in dropped] == [numbers[0]]
    assert [line["event"] for line in lines].count("lead") == 1


def test_a_full_disk_does_not_lose_lines_while_a_part_begins(
    tmp_path: Path, small_parts: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    small_parts.setattr(histories.os, "rename", no_space)  # type: ignore[attr-defined]
    history = History(tmp_path, "boss")
    for number in range(300):
        history.append("counted", {"number": number})
    history.close()
    file = tmp_path / "history-boss.jsonl"
    assert history_parts(file) == [file]
    assert [line["number"] for line in read_history(file)] == [*range(300)]
    assert "cannot be divided into parts" in caplog.text


@pytest.mark.usefixtures("small_parts")
def test_the_page_follows_a_history_into_its_parts(tmp_path: Path) -> None:
    history = History(tmp_path, "c")
    history.append("join", {"worker": 0, "name": "w0"})
    page = Histories(tmp_path)
    page.follow()
    for index in range(1, 60):
        facts = {"epoch": 1, "round": index, "attempt": 1}
        history.append("commit", {**facts, "reported": [0]})
    _, replaced = page.follow()
    assert replaced
    page = Histories(tmp_path)
    page.follow()
    assert (page.membership.committed, page.membership.names) == (59, {0: "w0"})
    history.close()


def test_a_log_file_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOG_BYTES", 10_000)
    log = tmp_path / "w0.log"
    with log.open("a") as stream:
        handlers = [logs.set_up(who="w0", stream=stream), logs.SizeBound(log)]
        logging.getLogger(logs.ROOT).addHandler(handlers[1])
        try:
            for number in range(1000):
                logging.getLogger("fedhp.worker").info("line %d", number)
        finally:
            for handler in handlers:
                logging.getLogger(logs.ROOT).removeHandler(handler)
    copy = tmp_path / "w0.log.1"
    assert log.stat().st_size <= 10_000 < copy.stat().st_size < 11_000
    text = copy.read_text() + log.read_text()
    numbers = [int(line.rsplit(" ", 1)[1]) for line in text.splitlines()]
    assert numbers == list(range(numbers[0], 1000))
