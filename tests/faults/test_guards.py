"""Real coordinators over TLS: with their guards every promise is kept; without, it is noticed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from faults.scripted import make_certificates
from faults.together import Office, experiment, office, run, until
from fedhp.cluster.audit.invariants import check_invariants
from fedhp.cluster.coordinator.committed_state import CommittedState
from fedhp.cluster.coordinator.conductor import AttemptVerdict, Conductor, ConductorSettings
from fedhp.cluster.coordinator.handlers import CoordinatorHandlers
from fedhp.cluster.coordinator.run_record import RunRecordWriter
from fedhp.cluster.coordinator.state import CoordinatorState
from fedhp.cluster.history import History
from fedhp.cluster.ledger.local import LocalLedger
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.guard import CALL_RULES, Envelopes, Guard, Refused

NAMES = ["w0", "w1", "w2"]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certs"), NAMES)


def broken(folder: Path, rounds: int | None = 3) -> set[str]:
    return {each.rule for each in check_invariants(folder, rounds=rounds)}


def hire_all(there: Office) -> None:
    for name in NAMES:
        there.hire(name)


def test_three_rounds_keep_every_promise(certificates: Path, tmp_path: Path) -> None:
    async def scene() -> None:
        async with office(experiment(), certificates, tmp_path) as there:
            await there.open()
            hire_all(there)
            await there.finish()

    run(scene())
    assert broken(tmp_path) == set()


# --- a report counts once ------------------------------------------------------------------


def all_report_twice(certificates: Path, folder: Path) -> list[str]:
    """Three rounds; what the refused receipts say."""
    said: list[str] = []

    async def scene() -> None:
        async with office(experiment(), certificates, folder) as there:
            await there.open()
            hire_all(there)
            for worker in there.workers.values():
                worker.times = 2
            # The round is still open when the others say it again.
            there.workers[NAMES[2]].step_seconds = 0.05
            await there.finish()
            for worker in there.workers.values():
                said.extend(each.why for each in worker.receipts if not each.accepted)

    run(scene())
    return said


def test_a_report_sent_twice_counts_once_and_is_no_strike(
    certificates: Path, tmp_path: Path
) -> None:
    said = all_report_twice(certificates, tmp_path)
    assert len(said) == 9
    assert broken(tmp_path) == set()


def test_without_the_guard_a_doubled_report_is_noticed(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Conductor.report

    def report(self: Conductor[Any], worker: int, attempt: Attempt, body: Any) -> None:
        try:
            real(self, worker, attempt, body)
        except Refused as refusal:
            if refusal.reason != "doubled":
                raise

    monkeypatch.setattr(Conductor, "report", report)
    all_report_twice(certificates, tmp_path)
    assert "report" in broken(tmp_path)


def test_a_report_that_comes_while_the_round_is_made_durable_is_late() -> None:
    boss: Conductor[str] = Conductor(
        ConductorSettings(2, min_workers=1, suspect_after=1, dead_after=9), epoch=1
    )
    for name in NAMES[:2]:
        boss.join(name, "h:1", incarnation=1, models=(), now=0.0)
    attempt = boss.begin([0, 1], deadline=0.5)
    boss.report(0, attempt, "a")
    assert boss.verdict(0.6) is AttemptVerdict.COMMIT
    assert boss.seal() == {0: "a"}
    with pytest.raises(Refused, match="being committed") as refused:
        boss.report(1, attempt, "b")
    assert not refused.value.bad
    boss.commit()
    assert boss.members[1].models == ()


# --- a round needs enough reports ----------------------------------------------------------


def one_of_two_dies(certificates: Path, folder: Path) -> None:
    settings = experiment(workers=2, rounds=2)

    async def scene() -> None:
        async with office(settings, certificates, folder) as there:
            boss = await there.open()
            there.hire("w0")
            slow = there.hire("w1")
            slow.step_seconds = 30.0  # it never reports
            await until(lambda: any(kind == "work" for kind, _ in slow.orders))
            await until(lambda: there.workers["w0"].receipts)
            await there.fire("w1")
            await until(lambda: boss.round_index or "at least" in boss.why)
            there.hire("w1")
            await there.finish()

    run(scene())


def test_too_few_reports_are_waited_for(certificates: Path, tmp_path: Path) -> None:
    one_of_two_dies(certificates, tmp_path)
    assert broken(tmp_path, rounds=2) == set()


def test_without_the_guard_a_commit_with_too_few_reports_is_noticed(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Conductor.verdict

    def judged(self: Conductor[Any], now: float) -> AttemptVerdict:
        found = real(self, now)
        return AttemptVerdict.COMMIT if found is AttemptVerdict.GIVE_UP else found

    monkeypatch.setattr(Conductor, "verdict", judged)
    one_of_two_dies(certificates, tmp_path)
    assert broken(tmp_path, rounds=2) == {"quorum"}


def test_a_process_that_came_anew_does_not_lower_how_many_must_report() -> None:
    boss: Conductor[str] = Conductor(
        ConductorSettings(3, min_workers=3, suspect_after=1, dead_after=9), epoch=1
    )
    for name in NAMES:
        boss.join(name, "h:1", incarnation=1, models=(), now=0.0)
    attempt = boss.begin([0, 1, 2], deadline=9.0)
    boss.report(0, attempt, "a")
    boss.report(1, attempt, "b")
    boss.join("w2", "h:1", incarnation=2, models=(), now=0.5)
    assert boss.verdict(0.5) is AttemptVerdict.GIVE_UP


# --- who is late is not bad ----------------------------------------------------------------


@contextmanager
def leading(folder: Path, *, dead_after: float) -> Iterator[CoordinatorState]:
    """The state of a coordinator that has just taken the lead, without a network."""
    settings = ConductorSettings(3, min_workers=2, suspect_after=1, dead_after=dead_after)
    committed = CommittedState("0" * 32, experiment(), INITIAL)
    history = History(folder, "boss")
    record = RunRecordWriter.open(folder, committed, asynchronous=False)
    try:
        yield CoordinatorState(
            committed.experiment,
            run=committed.run,
            conductor=Conductor(settings, epoch=1),
            planner=None,
            model_bytes=0,
            record=record,
            history=history,
            leads=lambda: True,
        )
    finally:
        record.close()
        history.close()


def test_a_report_of_an_attempt_that_was_given_up_is_late_and_no_strike(tmp_path: Path) -> None:
    with leading(tmp_path, dead_after=9.0) as state:
        member = state.conductor.join("w0", "h:1", incarnation=1, models=(), now=0.0)
        state.conductor.begin([0], deadline=9.0)
        assert CoordinatorHandlers(state).expected(member).attempt == Attempt(1, 1, 1)
        state.conductor.give_up()
        with pytest.raises(Refused, match="given up") as refused:
            CoordinatorHandlers(state).expected(member)
        assert not refused.value.bad


def test_who_is_silent_just_now_may_still_hear_that_the_run_is_over(tmp_path: Path) -> None:
    with leading(tmp_path, dead_after=60.0) as state:
        now = time.monotonic()
        for name, silent in (("w0", 0.0), ("w1", 30.0), ("w2", 90.0)):
            state.conductor.join(name, "h:1", incarnation=1, models=(), now=now - silent)
        assert [member.name for member in state.alive()] == ["w0"]
        assert [member.name for member in state.expected_back()] == ["w0", "w1"]
        state.conductor.leave(state.conductor.members[1])
        assert [member.name for member in state.expected_back()] == ["w0"]


@pytest.mark.parametrize("reason", ["joined", "doubled", "participant", "full", "attempt"])
def test_nobody_is_shut_out_for_what_an_honest_worker_may_say(reason: str) -> None:
    guard = Guard(run=None)
    guard.check(
        Envelopes("w0").make(),
        peer="w0",
        roles=frozenset({"worker"}),
        rule=CALL_RULES["Join"],
    )
    assert not any(guard.strike("w0", reason) for _ in range(100))


# --- what is committed stays committed -----------------------------------------------------


def restarted(certificates: Path, folder: Path) -> None:
    async def scene() -> None:
        async with office(experiment(rounds=4), certificates, folder) as there:
            boss = await there.open()
            hire_all(there)
            await until(lambda: boss.round_index >= 2)
            await there.close()
            await there.open()
            await there.finish()

    run(scene())


def test_a_coordinator_that_comes_back_goes_on(certificates: Path, tmp_path: Path) -> None:
    restarted(certificates, tmp_path)
    assert broken(tmp_path, rounds=4) == set()


def test_a_commit_that_was_not_durable_is_noticed(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits: list[bytes] = []

    async def commit(self: LocalLedger, state: bytes) -> None:
        commits.append(state)
        if len(commits) < 3:  # the second round and all later ones never reach the disk
            await real(self, state)

    real = LocalLedger.commit
    monkeypatch.setattr(LocalLedger, "commit", commit)

    async def scene() -> None:
        async with office(experiment(), certificates, tmp_path) as there:
            boss = await there.open()
            hire_all(there)
            await until(lambda: boss.round_index >= 2)
            await there.close()
            await there.open()

    run(scene())
    assert "lost" in broken(tmp_path, None)


# --- nobody obeys an earlier coordinator ---------------------------------------------------


def an_old_coordinator_wakes_up(certificates: Path, folder: Path) -> list[str]:
    """The ledger of a first term is brought back from a backup, and with it its epoch."""
    said: list[str] = []

    async def scene() -> None:
        async with office(experiment(), certificates, folder) as there:
            boss = await there.open()
            await there.close()
            shutil.copytree(folder / "ledger", folder / "backup")
            boss = await there.open()
            await there.close()
            boss = await there.open()
            hire_all(there)
            await until(lambda: boss.round_index >= 1)
            await there.close()
            (folder / "record.sqlite").unlink()
            old = await there.open("backup")
            workers = there.workers.values()
            await until(lambda: old.round_index >= 1 or all(w.stale for w in workers))
            said.extend(f"{old.conductor.epoch}: {w.stale}" for w in workers)

    run(scene())
    return said


def test_an_earlier_epoch_is_not_obeyed(certificates: Path, tmp_path: Path) -> None:
    said = an_old_coordinator_wakes_up(certificates, tmp_path)
    assert len(said) == 3
    assert "obedience" not in broken(tmp_path, None)


def test_without_the_guard_obeying_an_earlier_epoch_is_noticed(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Guard, "obey", lambda self, epoch: None)
    an_old_coordinator_wakes_up(certificates, tmp_path)
    assert "obedience" in broken(tmp_path, None)
