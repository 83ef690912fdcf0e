"""Real coordinators over TLS: with their guards every promise is kept; without, it is noticed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from faults.in_process import (
    InProcessFederation,
    experiment,
    in_process_federation,
    run,
    service_of,
    until,
)
from fedhp.cluster.audit.invariants import check_invariants
from fedhp.cluster.coordinator.committed_state import CommittedState, RunRecordWriter
from fedhp.cluster.coordinator.conductor import AttemptVerdict, Conductor, ConductorSettings
from fedhp.cluster.coordinator.context import LeaderContext
from fedhp.cluster.coordinator.service import CoordinatorState
from fedhp.cluster.history import History
from fedhp.cluster.ledger.local import LocalLedger
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.guard import CALL_RULES, Envelopes, Guard, Refused
from net.identities import make_certificates

NAMES = ["w0", "w1", "w2"]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certs"), len(NAMES))


def broken(folder: Path, rounds: int | None = 3) -> set[str]:
    return {violation.rule for violation in check_invariants(folder, rounds=rounds)}


def start_workers(federation: InProcessFederation) -> None:
    for name in NAMES:
        federation.start_worker(name)


def test_three_rounds_keep_every_promise(certificates: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with in_process_federation(experiment(), certificates, tmp_path) as federation:
            await federation.start_coordinator()
            start_workers(federation)
            await federation.finish()

    run(scenario())
    assert broken(tmp_path) == set()


# --- a report counts once ------------------------------------------------------------------


def all_report_twice(certificates: Path, folder: Path) -> list[str]:
    """Three rounds; what the refused receipts say."""
    refusals: list[str] = []

    async def scenario() -> None:
        async with in_process_federation(experiment(), certificates, folder) as federation:
            await federation.start_coordinator()
            start_workers(federation)
            for worker in federation.workers.values():
                worker.times = 2
            # The round is still open when the others say it again.
            federation.workers[NAMES[2]].step_seconds = 0.05
            await federation.finish()
            for worker in federation.workers.values():
                refusals.extend(receipt.why for receipt in worker.receipts if not receipt.accepted)

    run(scenario())
    return refusals


def test_a_report_sent_twice_counts_once_and_is_not_bad(certificates: Path, tmp_path: Path) -> None:
    refusals = all_report_twice(certificates, tmp_path)
    assert len(refusals) == 9
    assert broken(tmp_path) == set()


def test_without_the_guard_a_doubled_report_is_noticed(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Conductor.report

    def report(
        self: Conductor[Any], worker: int, attempt: Attempt, body: Any, *, now: float = 0.0
    ) -> None:
        try:
            real(self, worker, attempt, body, now=now)
        except Refused as refusal:
            if refusal.reason != "doubled":
                raise

    monkeypatch.setattr(Conductor, "report", report)
    all_report_twice(certificates, tmp_path)
    assert "report" in broken(tmp_path)


def test_a_report_that_comes_while_the_round_is_made_durable_is_late() -> None:
    conductor: Conductor[str] = Conductor(
        ConductorSettings(2, min_workers=1, suspect_after=1, dead_after=9), epoch=1
    )
    for name in NAMES[:2]:
        conductor.join(name, "h:1", incarnation=1, models=(), now=0.0)
    attempt = conductor.begin([0, 1], deadline=0.5)
    conductor.report(0, attempt, "a")
    assert conductor.verdict(0.6) is AttemptVerdict.COMMIT
    assert conductor.seal() == {0: "a"}
    with pytest.raises(Refused, match="being committed") as refused:
        conductor.report(1, attempt, "b")
    assert not refused.value.bad
    conductor.commit()
    assert conductor.members[1].models == ()


# --- a round needs enough reports ----------------------------------------------------------


def one_of_two_dies(certificates: Path, folder: Path) -> None:
    settings = experiment(workers=2, rounds=2)

    async def scenario() -> None:
        async with in_process_federation(settings, certificates, folder) as federation:
            coordinator = await federation.start_coordinator()
            federation.start_worker("w0")
            slow = federation.start_worker("w1")
            slow.step_seconds = 30.0  # it never reports
            await until(lambda: any(kind == "work" for kind, _ in slow.orders))
            await until(lambda: federation.workers["w0"].receipts)
            await federation.stop_worker("w1")
            await until(lambda: coordinator.round_index or "at least" in coordinator.phase.why)
            federation.start_worker("w1")
            await federation.finish()

    run(scenario())


def test_too_few_reports_are_waited_for(certificates: Path, tmp_path: Path) -> None:
    one_of_two_dies(certificates, tmp_path)
    assert broken(tmp_path, rounds=2) == set()


def test_without_the_guard_a_commit_with_too_few_reports_is_noticed(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Conductor.verdict

    def too_lenient(self: Conductor[Any], now: float) -> AttemptVerdict:
        verdict = real(self, now)
        return AttemptVerdict.COMMIT if verdict is AttemptVerdict.GIVE_UP else verdict

    monkeypatch.setattr(Conductor, "verdict", too_lenient)
    one_of_two_dies(certificates, tmp_path)
    assert broken(tmp_path, rounds=2) == {"quorum"}


def test_a_restarted_process_does_not_lower_how_many_must_report() -> None:
    conductor: Conductor[str] = Conductor(
        ConductorSettings(3, min_workers=3, suspect_after=1, dead_after=9), epoch=1
    )
    for name in NAMES:
        conductor.join(name, "h:1", incarnation=1, models=(), now=0.0)
    attempt = conductor.begin([0, 1, 2], deadline=9.0)
    conductor.report(0, attempt, "a")
    conductor.report(1, attempt, "b")
    conductor.join("w2", "h:1", incarnation=2, models=(), now=0.5)
    assert conductor.verdict(0.5) is AttemptVerdict.GIVE_UP


# --- being late is not bad -----------------------------------------------------------------


@contextmanager
def leading(folder: Path, *, dead_after: float, groups: bool = False) -> Iterator[CoordinatorState]:
    """The state of a coordinator that has just taken the lead, without a network."""
    settings = ConductorSettings(
        3, min_workers=2, suspect_after=1, dead_after=dead_after, groups=groups
    )
    algorithm = {"name": "fedhp_plus" if groups else "dpsgd"}
    committed = CommittedState("0" * 32, experiment(algorithm=algorithm), INITIAL)
    history = History(folder, "boss")
    record = RunRecordWriter.open(folder, committed, asynchronous=False)
    try:
        conductor: Conductor[wire.RoundReport] = Conductor(settings, epoch=1)
        context = LeaderContext(committed, conductor, record=record, history=history)
        ledger: Any = SimpleNamespace(leads=lambda: True, place=str)
        yield CoordinatorState(context, ledger)
    finally:
        record.close()
        history.close()


def test_a_report_of_an_attempt_that_was_given_up_is_late_but_not_bad(tmp_path: Path) -> None:
    with leading(tmp_path, dead_after=9.0) as state:
        member = state.conductor.join("w0", "h:1", incarnation=1, models=(), now=0.0)
        state.conductor.begin([0], deadline=9.0)
        assert service_of(state).expected(member)[0] == Attempt(1, 1, 1)
        state.conductor.give_up()
        with pytest.raises(Refused, match="given up") as refused:
            service_of(state).expected(member)
        assert not refused.value.bad


def test_with_group_averages_a_report_names_the_model_and_the_consensus(tmp_path: Path) -> None:
    """The audit compares both."""
    with leading(tmp_path, dead_after=9.0, groups=True) as state:
        member = state.conductor.join("w0", "h:1", incarnation=1, models=(), now=0.0)
        attempt = state.conductor.begin([0], deadline=9.0)
        report = wire.RoundReport(envelope=Envelopes("w0").make(attempt=attempt))
        for digest, consensus in ((b"", b""), (b"d" * 32, b""), (b"", b"c" * 32)):
            report.digest, report.consensus = digest, consensus
            with pytest.raises(Refused, match="no digest") as refused:
                state.attempts.report(member, report, now=1.0)
            assert refused.value.reason == "digest"
            assert state.conductor.running is not None
            assert state.conductor.running.reports == {}
        report.digest = b"d" * 32
        report.consensus = b"c" * 32
        state.attempts.report(member, report, now=1.0)
        assert state.conductor.running is not None
        assert state.conductor.running.reports == {0: report}


def test_a_worker_that_is_silent_may_still_hear_that_the_run_is_over(tmp_path: Path) -> None:
    with leading(tmp_path, dead_after=60.0) as state:
        now = time.monotonic()
        for name, silent in (("w0", 0.0), ("w1", 30.0), ("w2", 90.0)):
            state.conductor.join(name, "h:1", incarnation=1, models=(), now=now - silent)
        assert [member.name for member in state.conductor.alive(now)] == ["w0"]
        assert [member.name for member in state.members.expected_back(now)] == ["w0", "w1"]
        state.conductor.members[1].left = True
        assert [member.name for member in state.members.expected_back(now)] == ["w0"]


@pytest.mark.parametrize("reason", ["joined", "doubled", "participant", "full", "attempt"])
def test_nobody_is_quarantined_for_what_an_honest_worker_may_send(reason: str) -> None:
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
    async def scenario() -> None:
        async with in_process_federation(experiment(rounds=4), certificates, folder) as federation:
            coordinator = await federation.start_coordinator()
            start_workers(federation)
            await until(lambda: coordinator.round_index >= 2)
            await federation.stop_coordinator()
            await federation.start_coordinator()
            await federation.finish()

    run(scenario())


def test_a_restarted_coordinator_continues(certificates: Path, tmp_path: Path) -> None:
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

    async def scenario() -> None:
        async with in_process_federation(experiment(), certificates, tmp_path) as federation:
            coordinator = await federation.start_coordinator()
            start_workers(federation)
            await until(lambda: coordinator.round_index >= 2)
            await federation.stop_coordinator()
            await federation.start_coordinator()

    run(scenario())
    assert "lost" in broken(tmp_path, None)


# --- nobody obeys an earlier coordinator ---------------------------------------------------


def an_old_coordinator_wakes_up(certificates: Path, folder: Path) -> list[str]:
    """The ledger of the first coordinator is restored from a backup, and with it its epoch."""
    outcomes: list[str] = []

    async def scenario() -> None:
        async with in_process_federation(experiment(), certificates, folder) as federation:
            await federation.start_coordinator()
            await federation.stop_coordinator()
            shutil.copytree(folder / "ledger", folder / "backup")
            await federation.start_coordinator()
            await federation.stop_coordinator()
            coordinator = await federation.start_coordinator()
            start_workers(federation)
            await until(lambda: coordinator.round_index >= 1)
            await federation.stop_coordinator()
            (folder / "record.sqlite").unlink()
            old = await federation.start_coordinator("backup")
            workers = federation.workers.values()
            await until(lambda: old.round_index >= 1 or all(w.stale for w in workers))
            outcomes.extend(f"{old.conductor.epoch}: {w.stale}" for w in workers)

    run(scenario())
    return outcomes


def test_an_earlier_epoch_is_not_obeyed(certificates: Path, tmp_path: Path) -> None:
    outcomes = an_old_coordinator_wakes_up(certificates, tmp_path)
    assert len(outcomes) == 3
    assert "obedience" not in broken(tmp_path, None)


def test_without_the_guard_obeying_an_earlier_epoch_is_noticed(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Guard, "obey", lambda self, epoch: None)
    an_old_coordinator_wakes_up(certificates, tmp_path)
    assert "obedience" in broken(tmp_path, None)
