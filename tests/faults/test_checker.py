"""The offline checker finds what is planted in a history, and nothing in a good one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from faults.fault_run import longest_pause
from faults.invented_run import DEADLINE, RUN, InventedRun
from fedhp.cluster.audit import invariants
from fedhp.cluster.audit.invariants import check_invariants, find_pauses
from fedhp.cluster.audit.timeline import read_timeline
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.errors import RunError


def broken_rules(run: InventedRun, folder: Path, *, rounds: int | None = None) -> set[str]:
    """The rules that a run breaks."""
    return {violation.rule for violation in check_invariants(run.write(folder), rounds=rounds)}


def good() -> InventedRun:
    """Two rounds under one coordinator."""
    run = InventedRun()
    run.lead(1)
    run.round()
    run.round()
    return run


def test_a_run_without_a_fault_keeps_every_promise(tmp_path: Path) -> None:
    assert broken_rules(good(), tmp_path, rounds=2) == set()


def test_a_run_with_every_fault_it_may_have_keeps_them_too(tmp_path: Path) -> None:
    run = good()
    run.note("faults", "fault", kind="kill", target="w2")
    facts = run.begin()  # the third worker dies, the others go on
    run.report(0, facts)
    run.report(1, facts)
    run.note(run.coordinator, "gone", workers=[2])
    run.commit(facts, [0, 1])
    lost = run.begin(participants=[0, 1])  # given up: only one reported
    run.report(0, lost)
    run.note(run.coordinator, "gave_up", **lost)
    again = run.begin(2, participants=[0, 1])
    run.report(0, again)
    run.report(1, again)  # committed, and the coordinator dies before it can say so
    run.committed = again["epoch"], again["round"], again["attempt"]
    run.lead(4, who="other")
    run.catch_up(2)
    run.round()
    assert broken_rules(run, tmp_path, rounds=5) == set()


def test_a_folder_without_a_coordinator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no history"):
        check_invariants(tmp_path)


def test_the_longest_pause_is_measured(tmp_path: Path) -> None:
    run = good()
    run.clock += 30
    run.round()
    assert longest_pause(run.write(tmp_path)) == pytest.approx(30, abs=1)


# --- each promise, broken ------------------------------------------------------------------


def a_lost_round(run: InventedRun) -> None:
    run.committed = 1, 3, 1
    run.models = dict.fromkeys(range(3), (1, 3, 1))
    run.round()


def a_round_forgotten_by_the_next_coordinator(run: InventedRun) -> None:
    run.lead(2, stand=[1, 1, 1])


def a_round_made_twice(run: InventedRun) -> None:
    run.committed = 1, 1, 1
    facts = run.begin(2)
    for worker in range(3):
        run.report(worker, facts)
    run.commit(facts, [0, 1, 2])


def a_round_that_never_was(run: InventedRun) -> None:
    run.lead(2, stand=[1, 3, 1])


def too_few_rounds(run: InventedRun) -> None:
    pass


def a_commit_nobody_began(run: InventedRun) -> None:
    facts = {"epoch": 1, "round": 3, "attempt": 1}
    run.commit(facts, [0, 1])


def two_coordinators_in_one_epoch(run: InventedRun) -> None:
    run.lead(1, who="other", stand=[1, 2, 1])


def a_coordinator_that_goes_back(run: InventedRun) -> None:
    run.files["coordinator"][0]["epoch"] = 9
    run.lead(2)


def another_run(run: InventedRun) -> None:
    run.lead(2, run="1" * 32)


def a_smaller_epoch_obeyed(run: InventedRun) -> None:
    run.lead(2)
    run.round()
    run.note("w0", "order", kind="work", epoch=1, round=2, attempt=1)


def an_order_of_nobody(run: InventedRun) -> None:
    run.note("w0", "order", kind="work", epoch=7, round=3, attempt=1)


def a_model_never_committed(run: InventedRun) -> None:
    run.take_model(0, (1, 3, 1))


def a_peer_model_never_committed(run: InventedRun) -> None:
    run.take_model(0, (1, 3, 1), "caught_up")


def with_group(run: InventedRun, participants: list[int]) -> None:
    """The attempt that was begun last has a group average."""
    for event in reversed(run.files[run.coordinator]):
        if event["event"] == "attempt":
            event["group"] = {"participants": participants}
            return


def an_average_without_a_member(run: InventedRun) -> None:
    facts = run.begin()
    with_group(run, [0, 2])
    run.report(0, facts)
    run.report(1, facts)
    run.commit(facts, [0, 1])


def trained_from_a_round_that_others_made(run: InventedRun) -> None:
    facts = run.begin()
    with_group(run, [0, 1])
    run.report(0, facts)
    run.report(1, facts)
    run.commit(facts, [0, 1])
    facts = run.begin()  # worker 2 takes over what it was not counted in
    run.report(2, facts)


def trained_from_an_old_model(run: InventedRun) -> None:
    facts = run.begin()
    run.take_model(0, (1, 1, 1))
    run.report(0, facts)


def trained_from_the_first_model_in_a_new_process(run: InventedRun) -> None:
    facts = run.begin()
    run.note("w0", "trained", process=2, **facts, steps=3)


def counted_twice(run: InventedRun) -> None:
    facts = run.begin()
    for worker in (0, 1, 1):
        run.report(worker, facts)
    run.commit(facts, [0, 1])


def counted_without_a_part(run: InventedRun) -> None:
    facts = run.begin(participants=[0, 1])
    for worker in (0, 1):
        run.report(worker, facts)
    run.note("coordinator", "report", **facts, worker=2, digest="2")
    run.commit(facts, [0, 1, 2])


def counted_after_the_commit(run: InventedRun) -> None:
    run.note("coordinator", "report", epoch=1, round=2, attempt=1, worker=9, digest="9")


def a_commit_that_names_others(run: InventedRun) -> None:
    facts = run.begin()
    run.report(0, facts)
    run.report(1, facts)
    run.commit(facts, [0, 1, 2])


def another_model_than_was_kept(run: InventedRun) -> None:
    run.files["coordinator"][-2]["digest"] = "other"


def too_few_reports(run: InventedRun) -> None:
    facts = run.begin()
    run.report(0, facts)
    run.commit(facts, [0])


def an_attempt_beyond_its_deadline(run: InventedRun) -> None:
    facts = run.begin()
    run.report(0, facts)
    run.report(1, facts)
    run.clock += DEADLINE + 2.5
    run.commit(facts, [0, 1])


def an_attempt_given_up_too_late(run: InventedRun) -> None:
    facts = run.begin()
    run.clock += DEADLINE + 2.5
    run.note("coordinator", "gave_up", **facts)


def nothing_to_do_for_long(run: InventedRun) -> None:
    run.clock += 5
    run.round()


def not_taken_back(run: InventedRun) -> None:
    run.round([0, 1])
    run.catch_up(2)
    for _ in range(4):
        run.round([0, 1])


def not_taken_back_after_a_stop(run: InventedRun) -> None:
    run.note("faults", "fault", kind="stop", target="w2")
    run.round([0, 1])
    run.note("faults", "fault", kind="cont", target="w2")
    run.note("w2", "order", kind="wait", epoch=1, round=3, attempt=1)
    for _ in range(4):
        run.round([0, 1])


def not_taken_back_after_a_restart(run: InventedRun) -> None:
    run.note("coordinator", "join", worker=2, name="w2")
    run.note("w2", "join", process=2, run=RUN, epoch=1, worker=2)
    run.note("w2", "order", process=2, kind="wait", epoch=1, round=2, attempt=1)
    for _ in range(4):
        run.round([0, 1])


PLANTED: list[tuple[Callable[[InventedRun], None], set[str]]] = [
    (a_lost_round, {"lost", "model"}),
    (a_round_forgotten_by_the_next_coordinator, {"lost"}),
    (a_round_made_twice, {"doubled"}),
    (a_round_that_never_was, {"unknown"}),
    (too_few_rounds, {"lost"}),
    (a_commit_nobody_began, {"unknown", "report"}),
    (two_coordinators_in_one_epoch, {"epoch"}),
    (a_coordinator_that_goes_back, {"epoch"}),
    (another_run, {"epoch"}),
    (a_smaller_epoch_obeyed, {"obedience"}),
    (an_order_of_nobody, {"obedience"}),
    (a_model_never_committed, {"model"}),
    (a_peer_model_never_committed, {"model"}),
    (an_average_without_a_member, {"average"}),
    (trained_from_a_round_that_others_made, {"model"}),
    (trained_from_an_old_model, {"model"}),
    (trained_from_the_first_model_in_a_new_process, {"model"}),
    (counted_twice, {"report"}),
    (counted_without_a_part, {"report"}),
    (counted_after_the_commit, {"report"}),
    (a_commit_that_names_others, {"report"}),
    (another_model_than_was_kept, {"report"}),
    (too_few_reports, {"quorum"}),
    (an_attempt_beyond_its_deadline, {"pause"}),
    (an_attempt_given_up_too_late, {"pause"}),
    (nothing_to_do_for_long, {"pause"}),
    (not_taken_back, {"return"}),
    (not_taken_back_after_a_stop, {"return"}),
    (not_taken_back_after_a_restart, {"return"}),
]


@pytest.mark.parametrize(
    ("plant", "rules"), PLANTED, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_planted_violation_is_found(
    plant: Callable[[InventedRun], None], rules: set[str], tmp_path: Path
) -> None:
    run = good()
    plant(run)
    assert broken_rules(run, tmp_path, rounds=9 if plant is too_few_rounds else None) >= rules


# --- what looks like a breach, and is none -------------------------------------------------


def test_a_stopped_coordinator_is_not_blamed_for_the_time_it_was_stopped(tmp_path: Path) -> None:
    run = good()
    facts = run.begin()
    run.note("faults", "fault", kind="stop", target="coordinator")
    run.clock += DEADLINE + 20
    run.note("faults", "fault", kind="cont", target="coordinator")
    run.report(0, facts)
    run.report(1, facts)
    run.commit(facts, [0, 1])
    assert broken_rules(run, tmp_path) == set()


def test_the_time_that_a_coordinator_is_stopped(tmp_path: Path) -> None:
    """In parts, and to the end if it is not continued."""
    run = good()
    moments = []
    for kind in ("stop", "cont", "stop"):
        run.clock += 10
        moments.append(run.note("faults", "fault", kind=kind, target="coordinator")["at"])
        run.note("faults", "fault", kind=kind, target="w0")
    timeline = read_timeline(run.write(tmp_path))
    stopped, continued, again = moments
    term = timeline.terms[-1]
    assert timeline.idle_seconds(term, stopped, continued) == pytest.approx(continued - stopped)
    assert timeline.idle_seconds(term, continued, again) == 0.0
    end = again + 7.0
    seconds = timeline.idle_seconds(term, stopped + 1.0, end)
    assert seconds == pytest.approx(continued - stopped - 1.0 + 7.0)


@pytest.mark.parametrize("where", ["in a round", "between rounds"])
@pytest.mark.parametrize("kind", ["full disk", "suspended"])
def test_a_pause_that_the_coordinator_noted_breaks_no_promise(
    kind: str, where: str, tmp_path: Path
) -> None:
    def pause(run: InventedRun, *, noted: float) -> None:
        since = run.clock
        if kind == "full disk":
            run.note("coordinator", "paused", why="disk full at run, 0.0 MB free")
        run.clock += 60.0
        if kind == "full disk":
            run.clock += noted - 60.0
            run.note("coordinator", "resumed", round=2)
            run.clock += 60.0 - noted
        else:
            run.note("coordinator", "frozen", since=since, seconds=noted)

    def run_with_pause(noted: float) -> InventedRun:
        run = good()
        if where == "in a round":
            facts = run.begin()
            for worker in range(3):
                run.report(worker, facts)
            pause(run, noted=noted)
            run.commit(facts, [0, 1, 2])
        else:
            pause(run, noted=noted)
        run.round()
        return run

    assert broken_rules(run_with_pause(60.0), tmp_path) == set()
    (pause_found,) = find_pauses(tmp_path)
    assert pause_found.end - pause_found.start == pytest.approx(60.0, abs=1.0)
    # Only the time that it noted is free: a coordinator that then does nothing is still found.
    assert broken_rules(run_with_pause(20.0), tmp_path) == {"pause"}


def test_a_takeover_after_a_long_time_breaks_no_promise(tmp_path: Path) -> None:
    run = good()
    run.begin()  # its coordinator dies
    run.clock += 300.0
    run.lead(2, who="standby")
    run.round()
    assert broken_rules(run, tmp_path) == set()


def test_waiting_for_workers_is_no_pause_if_there_really_are_too_few(tmp_path: Path) -> None:
    run = good()
    run.note("coordinator", "waiting", why="too few", ready=[0])
    run.clock += 20
    run.round()
    assert broken_rules(run, tmp_path) == set()
    run.note("coordinator", "waiting", why="too few", ready=[0, 1, 2])
    run.clock += 20
    run.round()
    assert broken_rules(run, tmp_path) == {"pause"}


def test_waiting_for_who_catches_up_has_an_end(tmp_path: Path) -> None:
    run = good()
    run.note("coordinator", "waiting", ready=[0, 1], late=[2])
    run.clock += DEADLINE
    run.round()
    assert broken_rules(run, tmp_path) == set()
    run.note("coordinator", "waiting", ready=[0, 1], late=[2])
    run.clock += DEADLINE + 2.5
    run.round()
    assert broken_rules(run, tmp_path) == {"pause"}


def test_with_group_averages_everyone_continues_from_its_own_last_round(tmp_path: Path) -> None:
    run = good()
    facts = run.begin()
    with_group(run, [0, 1])
    run.report(0, facts)
    run.report(1, facts)
    run.commit(facts, [0, 1])
    facts = run.begin()
    run.take_model(2, (1, 2, 1))
    for worker in range(3):
        run.report(worker, facts)
    run.commit(facts, [0, 1, 2])
    assert broken_rules(run, tmp_path) == set()


def test_an_order_to_wait_need_not_name_an_attempt_that_was_begun(tmp_path: Path) -> None:
    run = good()
    run.note("w1", "order", kind="wait", epoch=1, round=3, attempt=0)
    run.note("w1", "order", kind="wait", epoch=0, round=0, attempt=0)
    run.round()
    assert broken_rules(run, tmp_path) == set()


def test_without_rounds_nobody_is_late_to_take_part(tmp_path: Path) -> None:
    for asynchronous in (False, True):
        run = InventedRun()
        run.lead(1, asynchronous=asynchronous)
        run.round()
        not_taken_back(run)
        folder = tmp_path / str(asynchronous)
        folder.mkdir()
        assert ("return" in broken_rules(run, folder)) is not asynchronous


def test_a_worker_that_went_again_need_not_take_part(tmp_path: Path) -> None:
    run = good()
    run.round([0, 1])
    run.catch_up(2)
    run.note("coordinator", "gone", workers=[2])
    for _ in range(4):
        run.round([0, 1])
    assert broken_rules(run, tmp_path) == set()


@pytest.mark.parametrize("invariant", invariants.INVARIANTS, ids=lambda value: value[0].__name__)
def test_no_invariant_is_idle(
    invariant: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = tuple(other for other in invariants.INVARIANTS if other is not invariant)
    monkeypatch.setattr(invariants, "INVARIANTS", others)
    missed = 0
    for index, (plant, rules) in enumerate(PLANTED):
        run = good()
        plant(run)
        (tmp_path / str(index)).mkdir()
        missed += not broken_rules(run, tmp_path / str(index)) >= rules - {"lost"}
    assert missed


# --- what a timeline answers ----------------------------------------------------------------


def test_of_many_attempts_at_one_round_only_a_range_is_noted(tmp_path: Path) -> None:
    run = good()
    run.note("coordinator", "left_out", epoch=1, round=3, first=4, last=9, lines=30)
    is_begun = read_timeline(run.write(tmp_path)).begun()
    begun = [number for number in range(1, 12) if is_begun(Attempt(1, 3, number))]
    assert begun == [4, 5, 6, 7, 8, 9]
    assert is_begun(Attempt(1, 2, 1))
    assert not is_begun(Attempt(1, 2, 5))
    assert not is_begun(Attempt(2, 3, 5))


def test_the_last_round_that_was_committed_at_a_moment(tmp_path: Path) -> None:
    run = InventedRun()
    run.lead(1)
    before = run.clock
    facts = run.begin()
    run.report(0, facts)
    run.report(1, facts)
    commit = run.commit(facts, [0, 1])["at"]
    run.committed = 1, 5, 1
    run.lead(2, who="other")
    timeline = read_timeline(run.write(tmp_path))
    taken = timeline.terms[1].at
    moments = (before - 100, before, commit - 1e-6, commit, taken - 1e-6, taken)
    assert [timeline.last_committed_round(moment) for moment in moments] == [0, 0, 0, 1, 1, 5]


def test_pauses_are_counted_once_where_they_overlap(tmp_path: Path) -> None:
    run = good()
    for since, seconds in ((2000.0, 10.0), (2004.0, 2.0), (2008.0, 4.0), (2030.0, 5.0)):
        run.note("coordinator", "frozen", since=since, seconds=seconds)
    timeline = read_timeline(run.write(tmp_path))
    (term,) = timeline.terms
    assert [pause.start for pause in term.pauses()] == [2000.0, 2004.0, 2008.0, 2030.0]
    for start, end, idle in (
        (1990.0, 2050.0, 17.0),
        (2005.0, 2009.0, 4.0),
        (2012.0, 2030.0, 0.0),
        (2011.0, 2032.0, 3.0),
        (1990.0, 2000.0, 0.0),
    ):
        assert timeline.idle_seconds(term, start, end) == pytest.approx(idle)


@pytest.mark.parametrize(
    ("ready", "noted", "announced"),
    [([0], 0.0, True), ([0, 1], 0.0, False), ([], 5.0, True), ([], 5.1, False), ([], -0.1, False)],
)
def test_who_waits_for_too_few_workers_says_so(
    ready: list[int], noted: float, announced: bool, tmp_path: Path
) -> None:
    """Two are needed here; what counts is said from the start to the end, both included."""
    run = good()
    run.note("coordinator", "waiting", why="too few", ready=ready)["at"] = 3000.0 + noted
    timeline = read_timeline(run.write(tmp_path))
    assert timeline.is_pause_announced(timeline.terms[0], 3000.0, 3005.0) is announced


def test_what_says_that_a_worker_was_away(tmp_path: Path) -> None:
    run = good()
    times = [
        run.note(who, event, **facts)["at"]
        for who, event, facts in (
            ("coordinator", "gone", {"workers": [0, 2]}),
            ("coordinator", "leave", {"worker": 1}),
            ("faults", "fault", {"kind": "kill", "target": ["w0", "w1"]}),
        )
    ]
    timeline = read_timeline(run.write(tmp_path))
    away = [
        [name for name in ("w0", "w1", "w2") if timeline.was_away(name, moment, moment)]
        for moment in times
    ]
    assert away == [["w0", "w2"], ["w1"], ["w0", "w1"]]
    for start, end in ((times[0] + 0.001, times[1] - 0.001), (0.0, times[0] - 0.001)):
        assert not any(timeline.was_away(name, start, end) for name in ("w0", "w1", "w2"))


def test_a_worker_that_has_two_processes_in_a_time_was_away(tmp_path: Path) -> None:
    run = good()
    first = run.note("w0", "beat")["at"]
    second = run.note("w0", "beat", process=2)["at"]
    timeline = read_timeline(run.write(tmp_path))
    assert timeline.was_away("w0", first, second)
    assert not timeline.was_away("w0", second, second)
    assert not timeline.was_away("w0", first, first)


def test_what_a_violation_says() -> None:
    assert str(invariants.Violation("lost", "round 3")) == "lost: round 3"
