"""The round protocol as a model: workers, coordinators and messages in any order, with crashes.

A simple world drives the real Conductor. Messages are delivered late, twice or never; workers
and coordinators die, freeze and come back. The invariants of docs/protocol.md must hold always.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fedhp.cluster.coordinator.conductor import (
    AttemptVerdict,
    Conductor,
    ConductorSettings,
    MemberStatus,
)
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.guard import Refused

WORKERS = 4
SETTINGS = ConductorSettings(workers=WORKERS, min_workers=2, suspect_after=3.0, dead_after=8.0)


@dataclass
class Worker:
    """What a real worker keeps: the committed model, and one mixed but not committed."""

    name: str
    incarnation: int = 0
    alive: bool = False
    epoch: int = 0  # the largest it has obeyed
    model: Attempt = INITIAL
    mixed: Attempt | None = None
    work: Attempt | None = None

    @property
    def models(self) -> tuple[Attempt, ...]:
        return (self.model,) if self.mixed is None else (self.model, self.mixed)


@dataclass
class Report:
    worker: int
    attempt: Attempt
    seen: set[Attempt] = field(default_factory=set)


class Protocol(RuleBasedStateMachine):
    """Every step is one thing that can happen in a network."""

    @initialize()
    def start(self) -> None:
        self.now = 0.0
        self.durable = INITIAL  # what the ledger holds
        self.epochs = 0
        self.names: list[tuple[int, str]] = []
        self.log: list[Attempt] = []  # all commits, in order
        self.workers = [Worker(f"w{index}") for index in range(WORKERS)]
        self.flying: list[Report] = []
        self.counted: dict[Attempt, set[int]] = {}
        self.old: list[Conductor[Attempt]] = []
        self._lead()

    def _lead(self) -> None:
        self.epochs += 1
        self.conductor: Conductor[Attempt] = Conductor(
            SETTINGS, epoch=self.epochs, committed=self.durable
        )
        self.conductor.restore(self.names)

    @rule(seconds=st.sampled_from([0.5, 2.0, 4.0, 9.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(index=st.integers(0, WORKERS - 1))
    def worker_starts(self, index: int) -> None:
        worker = self.workers[index]
        worker.incarnation += 1
        worker.alive, worker.work = True, None
        self._join(worker)

    def _join(self, worker: Worker) -> None:
        member = self.conductor.join(
            worker.name,
            "h:1",
            incarnation=worker.incarnation,
            models=worker.models,
            now=self.now,
        )
        assert member.worker == int(worker.name[1:])
        self.names = [(member.worker, member.name) for member in self.conductor.members.values()]

    @rule(index=st.integers(0, WORKERS - 1))
    def worker_dies(self, index: int) -> None:
        self.workers[index].alive = False

    @rule(index=st.integers(0, WORKERS - 1))
    def beat(self, index: int) -> None:
        worker = self.workers[index]
        member = self.conductor.by_name.get(worker.name)
        if not worker.alive:
            return
        if member is None or self.conductor.status(member, self.now) in (
            MemberStatus.LEFT,
            MemberStatus.DEAD,
        ):
            self._join(worker)
        else:
            member.beat("waiting", self.now)

    @rule(index=st.integers(0, WORKERS - 1))
    def poll(self, index: int) -> None:
        """Next: tell the models, obey the epoch, advance or catch up, take the work."""
        worker = self.workers[index]
        member = self.conductor.by_name.get(worker.name)
        if not worker.alive or member is None or member.left:
            return
        member.models, member.seen = worker.models, self.now
        assert self.conductor.epoch >= worker.epoch, "a worker met an epoch older than it obeyed"
        worker.epoch = self.conductor.epoch
        if worker.mixed == self.conductor.committed and worker.mixed is not None:
            worker.model, worker.mixed = worker.mixed, None
        if worker.model != self.conductor.committed:
            holders = [other for other in self.workers if other.alive and self._holds(other)]
            if holders:
                worker.model, worker.mixed, worker.work = self.conductor.committed, None, None
            return
        running = self.conductor.running
        if running is not None and int(worker.name[1:]) in running.participants:
            worker.work = running.attempt

    def _holds(self, worker: Worker) -> bool:
        return self.conductor.committed in worker.models

    @rule(index=st.integers(0, WORKERS - 1))
    def finish_work(self, index: int) -> None:
        worker = self.workers[index]
        if worker.alive and worker.work is not None:
            worker.mixed = worker.work
            self.flying.append(Report(index, worker.work))
            worker.work = None

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), twice=st.booleans())
    def deliver(self, data: st.DataObject, twice: bool) -> None:
        report = data.draw(st.sampled_from(self.flying))
        if not twice:
            self.flying.remove(report)
        try:
            self.conductor.report(report.worker, report.attempt, report.attempt)
        except Refused:
            return
        who = self.counted.setdefault(report.attempt, set())
        assert report.worker not in who, "a report counted twice"
        who.add(report.worker)

    @rule()
    def begin(self) -> None:
        ready = self.conductor.ready(self.now)
        if self.conductor.running is None and len(ready) >= SETTINGS.min_workers:
            self.conductor.begin([member.worker for member in ready], deadline=self.now + 5.0)

    @rule(dies=st.booleans())
    def decide(self, dies: bool) -> None:
        verdict = self.conductor.verdict(self.now)
        if verdict is AttemptVerdict.GIVE_UP:
            self.conductor.give_up()
        if verdict is AttemptVerdict.COMMIT:
            assert self.conductor.running is not None
            attempt = self.conductor.running.attempt
            assert len(self.conductor.running.reports) >= 1
            self.durable = attempt
            self.log.append(attempt)
            if dies:
                self._lead()
            else:
                self.conductor.commit()

    @rule()
    def coordinator_restarts(self) -> None:
        self._lead()

    @invariant()
    def rounds_are_neither_lost_nor_doubled(self) -> None:
        if hasattr(self, "log"):
            assert [attempt.round_index for attempt in self.log] == list(
                range(1, len(self.log) + 1)
            )

    @invariant()
    def epochs_rise(self) -> None:
        if hasattr(self, "log"):
            assert [attempt.epoch for attempt in self.log] == sorted(
                attempt.epoch for attempt in self.log
            )

    @invariant()
    def nobody_continues_from_a_model_that_was_not_committed(self) -> None:
        for worker in getattr(self, "workers", []):
            assert worker.model == INITIAL or worker.model in self.log

    @invariant()
    def only_holders_take_part(self) -> None:
        if hasattr(self, "conductor") and self.conductor.running is not None:
            assert self.conductor.running.attempt.round_index == self.durable.round_index + 1
            for index in self.conductor.running.reports:
                assert index in self.conductor.running.participants


Protocol.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestProtocol = Protocol.TestCase


def make_conductor(count: int = 3) -> Conductor[str]:
    conductor: Conductor[str] = Conductor(SETTINGS, epoch=1)
    for index in range(count):
        conductor.join(f"w{index}", "h:1", incarnation=1, models=(), now=0.0)
    return conductor


def test_a_round_is_committed_when_all_that_live_have_reported() -> None:
    conductor = make_conductor()
    attempt = conductor.begin([0, 1, 2], deadline=100.0)
    conductor.report(0, attempt, "a")
    conductor.report(1, attempt, "b")
    assert conductor.verdict(1.0) is AttemptVerdict.WAIT
    for index in (0, 1):
        conductor.members[index].beat("waiting", 5.0)
    assert conductor.verdict(5.0) is AttemptVerdict.COMMIT  # the third was silent for too long
    assert conductor.commit() == Attempt(1, 1, 1)
    assert conductor.status(conductor.members[2], 2.0) is MemberStatus.BEHIND


def test_too_few_reports_give_the_attempt_up_and_the_next_has_another_number() -> None:
    conductor = make_conductor()
    attempt = conductor.begin([0, 1, 2], deadline=2.0)
    conductor.report(0, attempt, "a")
    assert conductor.verdict(2.5) is AttemptVerdict.GIVE_UP
    conductor.give_up()
    again = conductor.begin([0, 1, 2], deadline=9.0)
    assert (again.round_index, again.number) == (1, 2)
    with pytest.raises(Refused, match="attempt"):
        conductor.report(1, attempt, "late")


def test_a_report_counts_once_and_only_from_a_participant() -> None:
    conductor = make_conductor()
    attempt = conductor.begin([0, 1], deadline=2.0)
    conductor.report(0, attempt, "a")
    with pytest.raises(Refused, match="doubled"):
        conductor.report(0, attempt, "a")
    with pytest.raises(Refused, match="participant"):
        conductor.report(2, attempt, "a")


def test_a_restarted_process_is_not_waited_for_in_the_attempt_of_its_predecessor() -> None:
    conductor = make_conductor()
    attempt = conductor.begin([0, 1, 2], deadline=100.0)
    conductor.report(0, attempt, "a")
    conductor.report(1, attempt, "b")
    conductor.join("w2", "h:2", incarnation=2, models=(), now=1.0)
    assert conductor.verdict(1.0) is AttemptVerdict.COMMIT


def test_nobody_waits_for_the_report_of_a_removed_member() -> None:
    conductor = make_conductor()
    conductor.begin([0, 1, 2], deadline=100.0)
    assert conductor.running is not None
    conductor.remove(conductor.members[2], "it lied")
    assert conductor.running.awaited == {0, 1}
    assert not conductor.release(conductor.members[2])
    assert conductor.release(conductor.members[1])
    assert conductor.running.awaited == {0}
    assert conductor.status(conductor.members[2], 0.0) is MemberStatus.REMOVED


def test_there_is_one_attempt_at_a_time() -> None:
    conductor = make_conductor()
    attempt = conductor.begin([0, 1, 2], deadline=100.0)
    with pytest.raises(RuntimeError, match="an attempt is running"):
        conductor.begin([0, 1], deadline=100.0)
    assert conductor.running is not None
    assert conductor.running.attempt == attempt
    assert conductor.running.participants == {0, 1, 2}


def test_an_index_belongs_to_its_name() -> None:
    conductor = make_conductor(0)
    assert conductor.join("anna", "h:1", incarnation=1, models=(), now=0.0).worker == 0
    assert conductor.join("w3", "h:1", incarnation=1, models=(), now=0.0).worker == 3
    assert conductor.join("b0", "h:1", incarnation=1, models=(), now=0.0).worker == 1
    assert conductor.join("anna", "h:1", incarnation=2, models=(), now=0.0).worker == 0
    conductor.join("c", "h:1", incarnation=1, models=(), now=0.0)
    with pytest.raises(Refused, match="full"):
        conductor.join("d", "h:1", incarnation=1, models=(), now=0.0)
    with pytest.raises(Refused, match="later process"):
        conductor.join("anna", "h:1", incarnation=1, models=(), now=0.0)


def test_an_epoch_must_be_after_the_committed_one() -> None:
    with pytest.raises(ValueError, match="not after"):
        Conductor(SETTINGS, epoch=3, committed=Attempt(3, 1, 1))
