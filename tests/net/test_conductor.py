"""The conductor step by step: counts, times and their limits, each on both sides."""

from __future__ import annotations

import math

import pytest

from fedhp.cluster.coordinator.conductor import (
    AttemptVerdict,
    Conductor,
    ConductorSettings,
    Failure,
    Member,
    MemberStatus,
)
from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.guard import Refused

TIMES = ConductorSettings(workers=4, min_workers=2, suspect_after=3.0, dead_after=8.0)
GROUPS = ConductorSettings(4, 2, 30.0, 60.0, groups=True, hearing=1.5)


def conductor_of(
    count: int, settings: ConductorSettings = TIMES, *, committed: Attempt = INITIAL
) -> Conductor[str]:
    conductor: Conductor[str] = Conductor(settings, epoch=committed.epoch + 1, committed=committed)
    for worker in range(count):
        conductor.join(f"w{worker}", "h:1", incarnation=1, models=(), now=0.0)
    return conductor


def workers(members: list[Member]) -> list[int]:
    return [member.worker for member in members]


# --- one member ------------------------------------------------------------------------------


def test_a_member_that_was_restored_has_left_until_it_joins() -> None:
    conductor: Conductor[str] = Conductor(TIMES, epoch=1)
    conductor.restore([(2, "c"), (0, "a")])
    assert list(conductor.members) == [0, 2]
    member = conductor.by_name["c"]
    assert conductor.status(member, 0.0) is MemberStatus.LEFT
    assert math.isnan(member.step_time)
    assert math.isnan(member.accuracy)
    assert (member.misses, member.punctual, member.slow, member.suspended_to) == (0, 0, 0, 0)
    assert member.seen == -math.inf
    assert not member.draining
    assert conductor.join("c", "h:9", incarnation=0, models=(), now=1.0, step_time=0.5) is member
    assert (member.address, member.phase, member.seen) == ("h:9", "joined", 1.0)
    assert member.step_time == 0.5
    assert conductor.status(member, 1.0) is MemberStatus.READY
    again = conductor.join("c", "h:8", incarnation=0, models=(), now=2.0)
    assert again.address == "h:8"
    assert math.isnan(again.step_time)


def test_a_sign_of_life_counts_from_the_newest_on_and_only_of_members() -> None:
    member = Member(0, "a", left=False)
    member.beat("training", 5.0)
    member.beat("mixing", 4.0)  # which was on its way for longer
    assert (member.seen, member.phase) == (5.0, "mixing")
    member.left = True
    with pytest.raises(Refused, match="join again") as caught:
        member.beat("training", 6.0)
    assert caught.value.reason == "joined"
    assert member.seen == 5.0


def test_one_miss_is_forgiven_after_fifty_reports_in_a_row() -> None:
    member = Member(0, "a", misses=2, slow=2)
    member.was_punctual()
    assert (member.punctual, member.slow) == (1, 0)
    for _ in range(48):
        member.was_punctual()
    assert (member.misses, member.punctual) == (2, 49)
    member.was_punctual()
    assert (member.misses, member.punctual) == (1, 0)
    for _ in range(100):
        member.was_punctual()
    assert member.misses == 0  # and never below


def test_slow_in_three_rounds_in_a_row_counts_as_a_miss() -> None:
    member = Member(0, "a")
    assert [member.was_slow() for _ in range(4)] == [False, False, True, True]
    member.was_punctual()
    assert not member.was_slow()


def test_a_miss_ends_what_was_in_a_row() -> None:
    conductor = conductor_of(2, committed=Attempt(1, 7, 1))
    member = conductor.members[1]
    member.punctual, member.slow = 49, 2
    assert conductor.missed(member) == 0
    assert (member.misses, member.punctual, member.slow) == (1, 0, 0)
    assert member.suspended_to == 0
    assert conductor.missed(member) == 1
    assert member.suspended_to == 9  # the round under way is 8, and it misses one more


def test_who_is_let_in_again_starts_with_a_clean_sheet() -> None:
    conductor = conductor_of(1)
    member = conductor.members[0]
    member.misses, member.slow, member.suspended_to = 3, 2, 9
    conductor.remove(member, "it lied")
    assert (member.removed, member.left) == ("it lied", True)
    with pytest.raises(Refused, match="it lied") as caught:
        conductor.join("w0", "h:1", incarnation=2, models=(), now=1.0)
    assert caught.value.reason == "removed"
    member.readmit()
    assert (member.removed, member.misses, member.slow, member.suspended_to) == ("", 0, 0, 0)
    conductor.join("w0", "h:1", incarnation=2, models=(), now=1.0)
    assert conductor.status(member, 1.0) is MemberStatus.READY


# --- who can take part -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("silent", "status"),
    [
        (3.0, MemberStatus.READY),
        (3.5, MemberStatus.SUSPECT),
        (8.0, MemberStatus.SUSPECT),
        (8.5, MemberStatus.DEAD),
    ],
)
def test_silence_has_two_limits(silent: float, status: MemberStatus) -> None:
    conductor = conductor_of(1)
    member = conductor.members[0]
    member.beat("training", 100.0)
    now = 100.0 + silent
    assert conductor.status(member, now) is status
    alive = status is MemberStatus.READY
    assert conductor.is_alive(member, now) is alive
    assert conductor.alive(now) == ([member] if alive else [])
    assert conductor.ready(now) == ([member] if alive else [])
    dead_first = ConductorSettings(1, 1, suspect_after=9.0, dead_after=3.0)
    assert conductor_of(1, dead_first).is_alive(member, now) is alive


def test_a_suspension_ends_with_its_last_round() -> None:
    for to, alive in ((3, False), (2, True), (1, True)):
        conductor = conductor_of(1, committed=Attempt(1, 2, 1))
        member = conductor.members[0]
        member.models, member.suspended_to = (Attempt(1, 2, 1),), to
        assert conductor.is_alive(member, 0.0) is alive
        expected = MemberStatus.READY if alive else MemberStatus.SUSPENDED
        assert conductor.status(member, 0.0) is expected
        assert conductor.end_suspensions(0.0) == ([] if alive else [member])
        assert member.suspended_to == (to if alive else 0)


@pytest.mark.parametrize(
    ("settings", "held", "status"),
    [
        (TIMES, (), MemberStatus.BEHIND),
        (TIMES, (Attempt(1, 2, 1),), MemberStatus.READY),
        (TIMES, (Attempt(1, 2, 2),), MemberStatus.BEHIND),
        (GROUPS, (), MemberStatus.READY),
        (ConductorSettings(4, 2, 3.0, 8.0, asynchronous=True), (), MemberStatus.READY),
    ],
)
def test_who_has_a_model_to_continue_from(
    settings: ConductorSettings, held: tuple[Attempt, ...], status: MemberStatus
) -> None:
    conductor = conductor_of(1, settings, committed=Attempt(1, 2, 1))
    member = conductor.members[0]
    member.models = held
    assert conductor.status(member, 0.0) is status
    assert conductor.is_alive(member, 0.0)  # whoever is behind too
    assert conductor.ready(0.0) == ([member] if status is MemberStatus.READY else [])


def test_who_is_to_leave_ends_its_attempt_first() -> None:
    conductor = conductor_of(3)
    conductor.members[2].draining = conductor.members[1].draining = True
    assert workers(conductor.ready(0.0)) == [0]
    conductor.begin([0, 1], deadline=5.0)
    assert workers(conductor.overdue(0.0)) == [0, 1]
    conductor.members[0].left = True
    assert workers(conductor.overdue(0.0)) == [1]
    conductor.give_up()
    assert conductor.overdue(0.0) == []


def test_a_report_is_lost_with_the_process_that_had_it() -> None:
    conductor = conductor_of(3)
    assert not conductor.loses_report("w0", incarnation=2)  # no attempt
    attempt = conductor.begin([0, 1, 2], deadline=5.0, required=[1])
    conductor.report(2, attempt, "done")
    assert conductor.loses_report("w0", incarnation=2)
    assert not conductor.loses_report("w0", incarnation=1)
    assert not conductor.loses_report("w1", incarnation=2)  # judged with its group
    assert not conductor.loses_report("w2", incarnation=2)  # its report is there
    assert not conductor.loses_report("unknown", incarnation=2)
    conductor.members[0].incarnation = 0  # it was restored, and never joined
    assert not conductor.loses_report("w0", incarnation=2)
    # The same process that joins again still has it.
    conductor.join("w1", "h:1", incarnation=1, models=(), now=1.0)
    assert conductor.running is not None
    assert conductor.running.awaited == {0, 1}
    conductor.join("w1", "h:1", incarnation=2, models=(), now=1.0)
    assert conductor.running.awaited == {0}
    assert conductor.running.participants == {0, 2}
    conductor.running.release(2)  # it has reported
    assert conductor.running.participants == {0, 2}


def test_numbers_of_new_members() -> None:
    conductor = conductor_of(0)
    for name, worker in (("w4", 0), ("w3", 3), ("v3", 1), ("x", 2)):
        joined = conductor.join(name, "h:1", incarnation=1, models=(), now=0.0)
        assert (joined.worker, joined.name) == (worker, name)
    assert list(conductor.members) == [0, 1, 2, 3]
    with pytest.raises(Refused, match="all 4 places are taken") as caught:
        conductor.join("y", "h:1", incarnation=1, models=(), now=0.0)
    assert caught.value.reason == "full"


# --- one attempt -----------------------------------------------------------------------------


def test_attempts_are_counted_from_one_in_each_round() -> None:
    conductor = conductor_of(2, committed=Attempt(3, 5, 2))
    assert conductor.begin([0, 1], deadline=5.0) == Attempt(4, 6, 1)
    conductor.give_up()
    attempt = conductor.begin([0, 1], deadline=5.0, started=2.0)
    assert attempt == Attempt(4, 6, 2)
    conductor.report(0, attempt, "a", now=2.5)
    conductor.report(1, attempt, "b", now=3.25)
    assert conductor.running is not None
    assert conductor.running.arrivals == {0: 0.5, 1: 1.25}
    assert not conductor.running.sealed
    assert conductor.seal() == {0: "a", 1: "b"}
    assert conductor.running.sealed
    assert conductor.commit() == conductor.committed == attempt
    assert conductor.running is None
    assert conductor.begin([0, 1], deadline=5.0) == Attempt(4, 7, 1)
    assert conductor.running is not None
    assert conductor.running.started == 0.0


def test_without_an_attempt_nothing_is_sealed_or_committed() -> None:
    conductor = conductor_of(2)
    for step in (conductor.seal, conductor.commit):
        with pytest.raises(AssertionError):
            step()
    assert conductor.verdict(0.0) is AttemptVerdict.WAIT
    assert conductor.absent(0.0) == set()
    assert conductor.committed == INITIAL


def test_those_that_reported_hold_the_new_model_and_the_last_ones_before() -> None:
    conductor = conductor_of(2)
    made = []
    for _ in range(limits.MODEL_VERSIONS + 2):
        attempt = conductor.begin([0, 1], deadline=5.0)
        conductor.report(0, attempt, "")
        made.append(conductor.commit())
    assert conductor.members[0].models == tuple(made[-limits.MODEL_VERSIONS :])
    assert conductor.members[1].models == ()


def test_what_is_refused_of_reports() -> None:
    conductor = conductor_of(3)

    def refusal(worker: int, attempt: Attempt) -> str:
        with pytest.raises(Refused) as caught:
            conductor.report(worker, attempt, "")
        return caught.value.reason

    assert refusal(0, Attempt(1, 1, 1)) == "attempt"  # none is running
    attempt = conductor.begin([0, 1], deadline=5.0)
    assert refusal(0, Attempt(1, 1, 2)) == "attempt"
    assert refusal(2, attempt) == "participant"
    conductor.report(0, attempt, "a")
    assert refusal(0, attempt) == "doubled"
    with pytest.raises(Refused) as caught:
        conductor.fail(1, attempt, Failure((0,), late=True))
    assert caught.value.reason == "kind"  # there is no group
    conductor.seal()
    assert refusal(1, attempt) == "attempt"  # too late
    assert refusal(0, attempt) == "doubled"
    assert not conductor.release(conductor.members[1])  # as well
    assert conductor.running is not None
    assert conductor.running.awaited == {1}


@pytest.mark.parametrize("least", [0, 1, 2])
def test_at_the_deadline_enough_reports_are_committed(least: int) -> None:
    settings = ConductorSettings(4, least, 30.0, 60.0)
    for count in range(3):
        conductor = conductor_of(3, settings)
        attempt = conductor.begin([0, 1, 2], deadline=5.0)
        for worker in range(count):
            conductor.report(worker, attempt, "")
        assert conductor.verdict(4.9) is AttemptVerdict.WAIT
        enough = count >= max(1, least)  # a round of nobody is none
        expected = AttemptVerdict.COMMIT if enough else AttemptVerdict.GIVE_UP
        assert conductor.verdict(5.0) is expected


# --- group averages --------------------------------------------------------------------------


def grouped() -> tuple[Conductor[str], Attempt]:
    """Members 0, 1 and 2 of a group; the deadline is 20."""
    conductor = conductor_of(4, GROUPS)
    return conductor, conductor.begin(range(4), deadline=20.0, required=range(3))


def test_a_group_average_counts_for_all_or_for_none() -> None:
    conductor, attempt = grouped()
    for worker in (0, 1, 3):
        conductor.report(worker, attempt, "")
    assert conductor.verdict(19.9) is AttemptVerdict.WAIT
    assert conductor.verdict(20.0) is AttemptVerdict.GIVE_UP
    conductor.report(2, attempt, "")
    assert conductor.verdict(19.9) is AttemptVerdict.COMMIT
    assert conductor.verdict(20.0) is AttemptVerdict.COMMIT


def test_without_the_others_a_group_average_can_be_committed() -> None:
    conductor, attempt = grouped()
    for worker in range(3):
        conductor.report(worker, attempt, "")
    assert conductor.verdict(1.0) is AttemptVerdict.WAIT  # for the fourth
    assert conductor.verdict(20.0) is AttemptVerdict.COMMIT


def test_a_member_of_the_group_that_is_gone_ends_the_attempt() -> None:
    conductor, _ = grouped()
    conductor.members[3].left = True
    assert conductor.verdict(1.0) is AttemptVerdict.WAIT
    conductor.members[2].left = True
    assert conductor.verdict(1.0) is AttemptVerdict.GIVE_UP
    assert conductor.absent(1.0) == {2}
    conductor, _ = grouped()
    conductor.join("w1", "h:1", incarnation=2, models=(), now=1.0)
    assert conductor.verdict(1.0) is AttemptVerdict.GIVE_UP
    assert conductor.absent(1.0) == {1}


def test_who_waited_in_vain_lets_the_others_say_for_whom() -> None:
    conductor, attempt = grouped()
    conductor.fail(0, attempt, Failure((1,), late=True, at=18.0))
    assert conductor.verdict(19.0) is AttemptVerdict.WAIT
    conductor.fail(1, attempt, Failure((2,), late=True, at=18.5))
    assert conductor.verdict(19.0) is AttemptVerdict.WAIT
    conductor.fail(2, attempt, Failure((), late=True, at=19.0))
    assert conductor.verdict(19.0) is AttemptVerdict.GIVE_UP
    assert conductor.absent(19.0) == set()
    with pytest.raises(Refused) as caught:
        conductor.fail(2, attempt, Failure((), late=True))
    assert caught.value.reason == "doubled"


def test_how_long_an_accused_member_has_for_a_sign_of_life() -> None:
    for misses, waits in (((0, 0), True), ((1, 1), True), ((1, 0), False), ((0, 1), True)):
        conductor, attempt = grouped()
        conductor.members[0].misses, conductor.members[1].misses = misses
        conductor.fail(0, attempt, Failure((1,), late=False, at=2.0))
        assert (conductor.verdict(3.4) is AttemptVerdict.WAIT) is waits
        assert conductor.verdict(3.5) is AttemptVerdict.GIVE_UP
        assert conductor.absent(3.4) == set()
        assert conductor.absent(3.5) == {1}
    for seen, heard in ((2.0, False), (2.1, True)):
        conductor, attempt = grouped()
        conductor.fail(0, attempt, Failure((1,), late=False, at=2.0))
        conductor.members[1].seen = seen
        assert (conductor.verdict(2.2) is AttemptVerdict.GIVE_UP) is heard
        assert conductor.absent(4.0) == (set() if heard else {1})


def test_nobody_in_particular_need_not_be_waited_for() -> None:
    conductor, attempt = grouped()
    conductor.fail(0, attempt, Failure((), late=False, at=2.0))
    assert conductor.verdict(2.0) is AttemptVerdict.GIVE_UP


def test_at_the_end_those_that_said_nothing_are_the_cause_unless_they_are_most() -> None:
    for reported, owed in (((0, 1), {2}), ((0,), set())):
        conductor, attempt = grouped()
        for worker in reported:
            conductor.report(worker, attempt, "")
        assert conductor.absent(19.9) == set()
        assert conductor.absent(20.0) == owed
    conductor = conductor_of(4, GROUPS)
    attempt = conductor.begin(range(4), deadline=20.0, required=range(4))
    for worker in (0, 1):
        conductor.report(worker, attempt, "")
    assert conductor.absent(20.0) == {2, 3}  # half are not most


def test_two_with_different_results_accuse_each_other() -> None:
    conductor, attempt = grouped()
    for worker in range(3):
        conductor.report(worker, attempt, "")
    conductor.dispute(0, 1)
    conductor.dispute(0, 2)
    assert conductor.running is not None
    assert conductor.running.failed == {
        0: Failure((1, 2), late=False),
        1: Failure((0,), late=False),
        2: Failure((0,), late=False),
    }
    assert conductor.running.reports == {}
    assert not conductor.running.failed[0].diverged
    assert conductor.running.failed[0].at == 0.0
