"""The offline checker finds what is planted in a history, and nothing in a good one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from faults.story import DEADLINE, RUN, Story
from fedhp.cluster.audit import invariants
from fedhp.cluster.audit.invariants import check_invariants, longest_pause
from fedhp.errors import RunError


def found(story: Story, folder: Path, *, rounds: int | None = None) -> set[str]:
    """The rules that a story breaks."""
    return {each.rule for each in check_invariants(story.write(folder), rounds=rounds)}


def good() -> Story:
    """Two rounds under one coordinator."""
    story = Story()
    story.lead(1)
    story.round()
    story.round()
    return story


def test_a_run_without_a_fault_keeps_every_promise(tmp_path: Path) -> None:
    assert found(good(), tmp_path, rounds=2) == set()


def test_a_run_with_every_fault_it_may_have_keeps_them_too(tmp_path: Path) -> None:
    story = good()
    story.tell("faults", "fault", kind="kill", target="w2")
    facts = story.begin()  # the third worker dies, the others go on
    story.report(0, facts)
    story.report(1, facts)
    story.tell(story.boss, "gone", workers=[2])
    story.commit(facts, [0, 1])
    lost = story.begin(participants=[0, 1])  # given up: only one reported
    story.report(0, lost)
    story.tell(story.boss, "gave_up", **lost)
    again = story.begin(2, participants=[0, 1])
    story.report(0, again)
    story.report(1, again)  # committed, and the coordinator dies before it can say so
    story.committed = again["epoch"], again["round"], again["attempt"]
    story.lead(4, who="other")
    story.catch_up(2)
    story.round()
    assert found(story, tmp_path, rounds=5) == set()


def test_a_folder_without_a_coordinator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no history"):
        check_invariants(tmp_path)


def test_the_longest_pause_is_told(tmp_path: Path) -> None:
    story = good()
    story.clock += 30
    story.round()
    assert longest_pause(story.write(tmp_path)) == pytest.approx(30, abs=1)


# --- each promise, broken ------------------------------------------------------------------


def a_lost_round(story: Story) -> None:
    story.committed = 1, 3, 1
    story.stands = dict.fromkeys(range(3), (1, 3, 1))
    story.round()


def a_round_forgotten_by_the_next_coordinator(story: Story) -> None:
    story.lead(2, stand=[1, 1, 1])


def a_round_made_twice(story: Story) -> None:
    story.committed = 1, 1, 1
    facts = story.begin(2)
    for worker in range(3):
        story.report(worker, facts)
    story.commit(facts, [0, 1, 2])


def a_round_that_never_was(story: Story) -> None:
    story.lead(2, stand=[1, 3, 1])


def too_few_rounds(story: Story) -> None:
    pass


def a_commit_nobody_began(story: Story) -> None:
    facts = {"epoch": 1, "round": 3, "attempt": 1}
    story.commit(facts, [0, 1])


def two_coordinators_in_one_epoch(story: Story) -> None:
    story.lead(1, who="other", stand=[1, 2, 1])


def a_coordinator_that_goes_back(story: Story) -> None:
    story.files["boss"][0]["epoch"] = 9
    story.lead(2)


def another_run(story: Story) -> None:
    story.lead(2, run="1" * 32)


def a_smaller_epoch_obeyed(story: Story) -> None:
    story.lead(2)
    story.round()
    story.tell("w0", "order", kind="work", epoch=1, round=2, attempt=1)


def an_order_of_nobody(story: Story) -> None:
    story.tell("w0", "order", kind="work", epoch=7, round=3, attempt=1)


def a_model_never_committed(story: Story) -> None:
    story.stand(0, (1, 3, 1))


def a_peer_model_never_committed(story: Story) -> None:
    story.stand(0, (1, 3, 1), "caught_up")


def trained_from_an_old_model(story: Story) -> None:
    facts = story.begin()
    story.stand(0, (1, 1, 1))
    story.report(0, facts)


def trained_from_the_first_model_in_a_new_process(story: Story) -> None:
    facts = story.begin()
    story.tell("w0", "trained", process=2, **facts, steps=3)


def counted_twice(story: Story) -> None:
    facts = story.begin()
    for worker in (0, 1, 1):
        story.report(worker, facts)
    story.commit(facts, [0, 1])


def counted_without_a_part(story: Story) -> None:
    facts = story.begin(participants=[0, 1])
    for worker in (0, 1):
        story.report(worker, facts)
    story.tell("boss", "report", **facts, worker=2, digest="2")
    story.commit(facts, [0, 1, 2])


def counted_after_the_commit(story: Story) -> None:
    story.tell("boss", "report", epoch=1, round=2, attempt=1, worker=9, digest="9")


def a_commit_that_names_others(story: Story) -> None:
    facts = story.begin()
    story.report(0, facts)
    story.report(1, facts)
    story.commit(facts, [0, 1, 2])


def another_model_than_was_kept(story: Story) -> None:
    story.files["boss"][-2]["digest"] = "other"


def too_few_reports(story: Story) -> None:
    facts = story.begin()
    story.report(0, facts)
    story.commit(facts, [0])


def an_attempt_beyond_its_deadline(story: Story) -> None:
    facts = story.begin()
    story.report(0, facts)
    story.report(1, facts)
    story.clock += DEADLINE + 2.5
    story.commit(facts, [0, 1])


def an_attempt_given_up_too_late(story: Story) -> None:
    facts = story.begin()
    story.clock += DEADLINE + 2.5
    story.tell("boss", "gave_up", **facts)


def nothing_to_do_for_long(story: Story) -> None:
    story.clock += 5
    story.round()


def not_taken_back(story: Story) -> None:
    story.round([0, 1])
    story.catch_up(2)
    for _ in range(4):
        story.round([0, 1])


def not_taken_back_after_a_stop(story: Story) -> None:
    story.tell("faults", "fault", kind="stop", target="w2")
    story.round([0, 1])
    story.tell("faults", "fault", kind="cont", target="w2")
    story.tell("w2", "order", kind="wait", epoch=1, round=3, attempt=1)
    for _ in range(4):
        story.round([0, 1])


def not_taken_back_after_a_restart(story: Story) -> None:
    story.tell("boss", "join", worker=2, name="w2")
    story.tell("w2", "join", process=2, run=RUN, epoch=1, worker=2)
    story.tell("w2", "order", process=2, kind="wait", epoch=1, round=2, attempt=1)
    for _ in range(4):
        story.round([0, 1])


PLANTED: list[tuple[Callable[[Story], None], set[str]]] = [
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
    ("plant", "rules"), PLANTED, ids=lambda each: getattr(each, "__name__", "")
)
def test_it_is_found(plant: Callable[[Story], None], rules: set[str], tmp_path: Path) -> None:
    story = good()
    plant(story)
    assert found(story, tmp_path, rounds=9 if plant is too_few_rounds else None) >= rules


# --- what looks like a breach, and is none -------------------------------------------------


def test_a_stopped_coordinator_is_not_blamed_for_the_time_it_was_stopped(tmp_path: Path) -> None:
    story = good()
    facts = story.begin()
    story.tell("faults", "fault", kind="stop", target="boss")
    story.clock += DEADLINE + 20
    story.tell("faults", "fault", kind="cont", target="boss")
    story.report(0, facts)
    story.report(1, facts)
    story.commit(facts, [0, 1])
    assert found(story, tmp_path) == set()


def test_waiting_for_workers_is_no_pause_if_there_really_are_too_few(tmp_path: Path) -> None:
    story = good()
    story.tell("boss", "waiting", why="too few", ready=[0])
    story.clock += 20
    story.round()
    assert found(story, tmp_path) == set()
    story.tell("boss", "waiting", why="too few", ready=[0, 1, 2])
    story.clock += 20
    story.round()
    assert found(story, tmp_path) == {"pause"}


def test_waiting_for_who_catches_up_has_an_end(tmp_path: Path) -> None:
    story = good()
    story.tell("boss", "waiting", ready=[0, 1], late=[2])
    story.clock += DEADLINE
    story.round()
    assert found(story, tmp_path) == set()
    story.tell("boss", "waiting", ready=[0, 1], late=[2])
    story.clock += DEADLINE + 2.5
    story.round()
    assert found(story, tmp_path) == {"pause"}


def test_a_worker_that_went_again_need_not_take_part(tmp_path: Path) -> None:
    story = good()
    story.round([0, 1])
    story.catch_up(2)
    story.tell("boss", "gone", workers=[2])
    for _ in range(4):
        story.round([0, 1])
    assert found(story, tmp_path) == set()


@pytest.mark.parametrize("rule", invariants.RULES, ids=lambda rule: rule.__name__)
def test_no_rule_is_idle(
    rule: invariants.Rule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = tuple(each for each in invariants.RULES if each is not rule)
    monkeypatch.setattr(invariants, "RULES", others)
    missed = 0
    for index, (plant, rules) in enumerate(PLANTED):
        story = good()
        plant(story)
        (tmp_path / str(index)).mkdir()
        missed += not found(story, tmp_path / str(index)) >= rules - {"lost"}
    assert missed
