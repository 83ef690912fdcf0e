"""One member lies about its speed, never reports, dawdles, or holds back its model."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attacks.members import command, events, start_attacker
from faults.in_process import experiment, in_process_federation, run, until
from faults.test_guards import leading
from fedhp.cluster.coordinator import coordinator
from fedhp.cluster.coordinator.attempts import attempts
from fedhp.cluster.coordinator.attempts.attempts import (
    LONGEST_DEADLINE,
    RoundDeadlines,
    limit_times,
    withholding_members,
)
from fedhp.cluster.coordinator.conductor import Conductor, ConductorSettings, MemberStatus
from fedhp.cluster.coordinator.context import Phase
from fedhp.cluster.coordinator.members import members
from fedhp.cluster.coordinator.planning import round_planner
from fedhp.cluster.coordinator.planning.round_planner import (
    limit_to_median,
    set_aside_large,
    set_aside_odd_metrics,
    usual_count,
)
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.guard import Envelopes, Refused
from fedhp.cluster.protocol.message_checks import ANY_METRIC, SHARE, check_next, check_report
from fedhp.config import ClusterConfig
from fedhp.engine.testing import StopCondition
from fedhp.types import Evaluation
from net.federation import experiment as worker_experiment
from net.federation import start_federation
from net.good_messages import GOOD, SCENE

HONEST = ("w0", "w1", "w2")


@pytest.fixture(autouse=True)
def _short_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first round may take a minute; these tests do not want to wait for it."""
    monkeypatch.setattr(attempts, "FIRST_DEADLINE", 0.5)
    monkeypatch.setattr(round_planner, "SLOWEST_GUESS", 1e9)
    for module in (members, coordinator):
        monkeypatch.setattr(module, "STOP_SECONDS", 0.5)


def settings(**changes: Any) -> Any:
    cluster = {"min_workers": 2, "least_deadline": 0.5, **changes.pop("cluster", {})}
    return experiment(workers=4, rounds=changes.pop("rounds", 5), cluster=cluster, **changes)


def test_a_false_step_time_does_not_move_the_deadline(certificates: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with in_process_federation(settings(), certificates, tmp_path) as federation:
            await federation.start_coordinator()
            for name in HONEST:
                federation.start_worker(name)
            start_attacker(federation, "w3", claimed_step_time=3000.0)
            await federation.finish()

    run(scenario())
    limits = [event["deadline"] for event in events(tmp_path, "attempt")]
    assert len(limits) >= 5
    assert max(limits) < 5.0  # two steps of 3,000 s, and patience, would be five hours


def test_a_member_that_never_reports_is_put_aside_and_comes_back(
    certificates: Path, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with in_process_federation(
            settings(rounds=1000), certificates, tmp_path
        ) as federation:
            leader = await federation.start_coordinator()
            for name in HONEST:
                federation.start_worker(name)
            attacker = start_attacker(federation, "w3", reports=False)
            await until(lambda: len(events(tmp_path, "suspended")) >= 3)
            attacker.reports = True
            before = leader.round_index
            await until(lambda: any(receipt.accepted for receipt in attacker.receipts))
            assert leader.round_index - before < 100

    run(scenario())
    rounds = [event["rounds"] for event in events(tmp_path, "suspended")]
    assert rounds[:3] == [1, 2, 4]


def test_a_round_does_not_wait_for_who_is_put_aside() -> None:
    conductor: Conductor[str] = Conductor(ConductorSettings(4, 2, 3.0, 8.0), epoch=1)
    for index in range(4):
        conductor.join(f"w{index}", "h:1", incarnation=1, models=(), now=0.0)
    member = conductor.members[3]
    assert [conductor.missed(member) for _ in range(9)] == [0, 1, 2, 4, 8, 16, 32, 64, 64]
    assert conductor.status(member, 1.0) is MemberStatus.SUSPENDED
    assert [ready.worker for ready in conductor.ready(1.0)] == [0, 1, 2]
    assert conductor.end_suspensions(1.0) == [member]
    assert conductor.status(member, 1.0) is MemberStatus.READY
    for _ in range(50):
        member.was_punctual()
    assert member.misses == 8


def test_a_false_size_of_the_model_does_not_count(certificates: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with in_process_federation(settings(), certificates, tmp_path) as federation:
            leader = await federation.start_coordinator()
            start_attacker(federation, "w3", model_bytes=1 << 33)
            await until(lambda: leader.planning.model_sizes or leader.planning.model_bytes)
            for name in HONEST:
                federation.start_worker(name)
            await until(lambda: leader.round_index >= 2)
            assert leader.planning.model_bytes == 400_000

    run(scenario())


def test_stop_ends_a_round_that_would_take_an_hour(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "FIRST_DEADLINE", 3600.0)

    async def scenario() -> None:
        async with in_process_federation(settings(), certificates, tmp_path) as federation:
            leader = await federation.start_coordinator()
            for name in HONEST:
                federation.start_worker(name)
            start_attacker(federation, "w3", reports=False)
            await until(lambda: leader.conductor.running is not None)
            started = time.monotonic()
            assert "in 3 s" in await command(federation, stop=True)
            await until(lambda: leader.phase.current is Phase.FINISHED)
            assert time.monotonic() - started < 60.0
            await federation.finish()

    run(scenario())
    assert [event["event"] for event in events(tmp_path, "finished")]


@pytest.mark.parametrize("how", ["drain", "remove"])
def test_a_member_leaves_in_the_middle_of_a_round(
    how: str, certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "FIRST_DEADLINE", 3600.0)

    async def scenario() -> None:
        # Long enough that the run is not over when the last command is sent.
        long = settings(rounds=10_000)
        async with in_process_federation(long, certificates, tmp_path) as federation:
            leader = await federation.start_coordinator()
            for name in HONEST:
                federation.start_worker(name)
            attacker = start_attacker(federation, "w3", reports=False)
            await until(lambda: leader.conductor.running is not None)
            await command(federation, **{how: "w3"})
            await until(lambda: leader.round_index >= 2)
            if how == "remove":
                await until(lambda: any("removed: " in text for text in attacker.refused))
                assert list(leader.admission.barred) == ["w3"]
                assert "may join" in await command(federation, allow="w3")
                assert list(leader.admission.barred) == []

    run(scenario())


def test_a_worker_gives_up_a_long_round_when_it_is_to_leave(
    certificates: Path, tmp_path: Path
) -> None:
    async def scenario() -> None:
        settings = worker_experiment()
        async with start_federation(settings, certificates, tmp_path) as federation:
            await federation.ready([0])
            boss = federation.coordinator
            order = boss.work(
                0,
                peers=[],
                weights=[],
                own_weight=1.0,
                readers=[],
                committed=INITIAL,
                attempt=Attempt(1, 1, 1),
                changes={"local_steps": 1_000_000},  # hours
            )
            boss.order(0, order)
            await boss.until(lambda: "training" in boss.phases["w0"])
            boss.leave = True
            await boss.until(lambda: boss.asked["w0"] >= 2, within=60.0)
            boss.finish(0, INITIAL)
            assert await federation.running[0] == 0

    run(scenario())


# --- the rules, one by one -----------------------------------------------------------------


def test_the_deadline_follows_the_member_in_the_middle() -> None:
    times = RoundDeadlines(ClusterConfig(patience=3.0, least_deadline=0.1))
    times.round_ended(100.0, [1.0, 1.1, 0.9, 100.0])  # one dawdled
    assert times.deadline(slowest=1e9, middle=1.0) == pytest.approx(3 * 5 * 1.05)
    assert times.longest_wait() == pytest.approx(3 * 5 * 1.05)
    assert times.deadline(slowest=2.0, middle=2.0) == pytest.approx(3 * 5 * 2.0)
    times.round_ended(2.5, [1.0, 1.1, 2.5])
    assert times.deadline(slowest=2.0, middle=1.0) == pytest.approx(3 * 2.5)  # as honest rounds do
    assert times.deadline(slowest=1e9, middle=1e9) == LONGEST_DEADLINE


def test_a_member_that_is_always_late_is_slow_and_one_liar_does_not_make_others_slow() -> None:
    times = RoundDeadlines(ClusterConfig(patience=3.0))
    assert times.slow_members({0: 0.1, 1: 0.1, 2: 0.1, 3: 9.9}) == {3}
    assert times.slow_members({0: 0.1, 1: 0.1, 2: 0.1, 3: 0.9}) == set()
    assert times.slow_members({0: 1.0, 1: 14.0, 2: 1.0, 3: 0.001}) == set()
    assert times.slow_members({0: 0.1, 1: 50.0}) == set()
    assert times.slow_members({0: 0.1, 1: 0.1, 2: 50.0}) == {2}  # three are enough


def report(lost: dict[int, str]) -> wire.RoundReport:
    return wire.RoundReport(links=[wire.LinkReport(worker=w, lost=why) for w, why in lost.items()])


def test_who_holds_back_its_model_is_named_by_most_of_its_readers_and_never_by_one() -> None:
    readers = {3: [0, 1, 2], 0: [1, 3]}
    late = {3: "deadline"}
    reports = {0: report(late), 1: report(late), 2: report({3: "unreachable"}), 3: report({})}
    assert withholding_members(readers, reports) == {3}
    assert withholding_members(readers, {**reports, 1: report({0: "deadline"})}) == set()
    assert withholding_members({3: [0]}, {0: report(late), 3: report({})}) == set()  # one reader
    # Half of the readers are not most of them, and those that did not report do not count.
    some = {worker: report(late if worker < 2 else {}) for worker in range(4)}
    assert withholding_members({9: [0, 1, 2, 3], 3: [0, 1, 2, 7, 8]}, some) == {3}
    assert withholding_members({3: [0, 1, 2, 4]}, some | {4: report({})}) == set()
    impatient = {worker: report({3: "refused: patience"}) for worker in range(2)}
    assert withholding_members({3: [0, 1]}, impatient) == {3}
    for each in impatient.values():
        each.links[0].probe = True
    assert withholding_members({3: [0, 1]}, impatient) == set()


def test_a_partner_of_swaps_that_two_waited_for_in_vain_is_put_aside(tmp_path: Path) -> None:
    with leading(tmp_path, dead_after=1e9) as leader:
        for index in range(3):
            leader.conductor.join(f"w{index}", "h:1", incarnation=1, models=(), now=0.0)
        callers, partner = leader.conductor.members, leader.conductor.members[2]
        late, good = report({2: "deadline"}), report({2: ""})
        for _ in range(2):
            leader.attempts.turns.judge_partner(callers[0], late)
            leader.attempts.turns.judge_partner(callers[0], late)
            assert partner.misses == 0
        leader.attempts.turns.judge_partner(callers[1], good)
        leader.attempts.turns.judge_partner(callers[1], late)
        assert partner.misses == 0
        for caller in (0, 0, 1):
            leader.attempts.turns.judge_partner(callers[caller], late)
        assert partner.misses == 2
        assert partner.suspended_to == 2


def test_times_longer_than_what_has_passed_are_lowered() -> None:
    false = wire.RoundReport(step_time=1000.0, compute_seconds=2000.0, exchange_seconds=0.5)
    false.links.add(worker=1, seconds=5000.0, started=1.0)
    assert limit_times(false, elapsed=10.0, steps=2)
    assert false.step_time == pytest.approx(5.625)
    assert false.compute_seconds == false.links[0].seconds == pytest.approx(11.25)
    assert (false.exchange_seconds, false.links[0].started) == (0.5, 1.0)
    assert not limit_times(false, elapsed=10.0, steps=2)
    false = wire.RoundReport(exchange_seconds=12.0, other_seconds=13.0)
    false.links.add(worker=1, seconds=11.25, started=14.0)
    assert limit_times(false, elapsed=10.0, steps=2)
    assert (false.exchange_seconds, false.other_seconds) == pytest.approx((11.25, 11.25))
    assert (false.links[0].seconds, false.links[0].started) == pytest.approx((11.25, 11.25))
    one_step = wire.RoundReport(step_time=11.0)
    assert not limit_times(one_step, elapsed=10.0, steps=1)
    assert one_step.step_time == 11.0
    assert limit_times(one_step, elapsed=5.0, steps=0)
    assert one_step.step_time == pytest.approx(5.75)


def test_what_one_member_measured_does_not_dominate_the_plan() -> None:
    honest = np.array([0.01, 0.1, 0.02, np.nan])
    np.testing.assert_array_equal(limit_to_median(honest, 30.0), honest)
    np.testing.assert_allclose(limit_to_median(np.array([1.0, 2.0, 1e6]), 30.0), [1, 2, 60])
    np.testing.assert_allclose(limit_to_median(np.array([1.0, 2.0, 1e-9]), 30.0), [1, 2, 1 / 30])
    np.testing.assert_array_equal(set_aside_large(honest), honest)
    np.testing.assert_array_equal(set_aside_large(np.array([1.0, 2.0, 1e30])), [1, 2, 2])
    np.testing.assert_array_equal(set_aside_large(np.array([1.0, 1e30])), [1, 1e30])
    accuracies = np.array([0.1, 0.9, 0.5, 1.0])
    np.testing.assert_array_equal(set_aside_odd_metrics(accuracies), accuracies)
    odd = set_aside_odd_metrics(np.array([0.1, 0.9, 0.5, 1e9]))
    np.testing.assert_array_equal(odd, [0.1, 0.9, 0.5, np.nan])
    assert usual_count([100, 100, 4_000_000_000]) == 100
    assert usual_count([7, 9, 9, 7]) == 7
    assert usual_count([]) == 0


def test_what_counts_as_far_from_the_others() -> None:
    """At the limit a value is not yet odd, and of two nobody knows which one is."""
    two = np.array([1.0, 1e9, np.nan])
    for limited in (limit_to_median(two, 30.0), set_aside_large(two), set_aside_odd_metrics(two)):
        np.testing.assert_array_equal(limited, two)
    np.testing.assert_array_equal(set_aside_large(np.array([1.0, 2.0, 20.0])), [1, 2, 20])
    np.testing.assert_array_equal(set_aside_large(np.array([1.0, 2.0, 20.1])), [1, 2, 2])
    np.testing.assert_array_equal(set_aside_large(np.array([0.0, 0.0, 5.0])), [0, 0, 5])
    np.testing.assert_array_equal(set_aside_large(np.array([-1.0, -1.0, 5.0])), [-1, -1, 5])
    np.testing.assert_array_equal(set_aside_odd_metrics(np.array([1.0, 1.0, 2.0])), [1, 1, 2])
    np.testing.assert_array_equal(set_aside_odd_metrics(np.array([1.0, 1.0, 2.1])), [1, 1, np.nan])
    spread = np.array([0.0, 5.0, 10.0, 55.0])  # the median is 7.5, the spread 5
    np.testing.assert_array_equal(set_aside_odd_metrics(spread), spread)
    np.testing.assert_array_equal(
        set_aside_odd_metrics(np.array([0.0, 5, 10, 65])), [0, 5, 10, np.nan]
    )


def test_a_mean_accuracy_that_falls_by_half_is_a_warning_until_it_recovers(
    certificates: Path, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with in_process_federation(
            settings(rounds=10_000), certificates, tmp_path
        ) as federation:
            leader = await federation.start_coordinator()
            workers = [start_attacker(federation, name, accuracy=0.8) for name in HONEST]

            def keys() -> list[str]:
                return [warning.key for warning in leader.context.warnings.on_wire()]

            await until(lambda: leader.round_index >= 3)
            assert "accuracy_fell" not in keys()
            for worker in workers:
                worker.accuracy = 0.3
            await until(lambda: "accuracy_fell" in keys())
            (warning,) = (
                each for each in leader.context.warnings.on_wire() if each.key == "accuracy_fell"
            )
            assert warning.value < 0.4
            assert "and was 0.8" in warning.text
            for worker in workers:
                worker.accuracy = 0.5
            await until(lambda: "accuracy_fell" not in keys())

    run(scenario())
    assert [event["key"] for event in events(tmp_path, "warning")].count("accuracy_fell") == 1


def test_an_accuracy_is_a_share_and_the_median_ends_a_run() -> None:
    attempt = Attempt(1, 1, 1)
    envelope = Envelopes("w1").make(run="0" * 32, attempt=attempt)

    def check(accuracy: float, metric: tuple[float, float]) -> None:
        report = wire.RoundReport(envelope=envelope, step_time=0.1, accuracy=accuracy)
        check_report(report, workers=3, worker=1, attempt=attempt, metric=metric)

    for accuracy in (0.0, 1.0, float("nan")):
        check(accuracy, SHARE)
    for accuracy in (1.49, -0.1):
        check(accuracy, ANY_METRIC)  # of a task of one's own it may be anything
        with pytest.raises(Refused, match="range"):
            check(accuracy, SHARE)

    settings = experiment(rounds=50, until={"accuracy": 0.8})
    accuracies = np.array([0.71, 1.0, 0.72, np.nan])  # the mean is 0.81
    for values, by_middle, ends in (
        (accuracies, False, True),
        (accuracies, True, False),
        (accuracies + 0.1, True, True),
        (np.array([0.8, 0.8, 0.8, 0.8]), True, True),
    ):
        evaluation = Evaluation(values, float("nan"), 100, 0.01)
        mean = evaluation.mean_accuracy
        record: Any = SimpleNamespace(
            round_index=1, clock=1.0, bytes_sent=0, accuracy=mean, evaluation=evaluation
        )
        condition = StopCondition(settings, tested=True, by_middle=by_middle)
        assert condition.is_last(record) == ends


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step_time", 1e5),
        ("train_loss", 1e300),
        ("start_loss", -1e300),
        ("update_norm", 1e300),
        ("smoothness", 1e300),
        ("gradient_variance", 1e300),
        ("accuracy", 1e12),
        ("whole_accuracy", -1e12),
        ("images", 4_000_000_000),
    ],
)
def test_a_report_has_bounds_on_every_number(field: str, value: float) -> None:
    message = GOOD["Report"].make(SCENE)
    setattr(message, field, value)
    with pytest.raises(Refused, match="range"):
        check_report(message, workers=SCENE.workers, worker=SCENE.worker, attempt=SCENE.attempt)


def test_more_bytes_than_a_link_can_have_carried_are_refused() -> None:
    message = GOOD["Report"].make(SCENE)
    message.links[0].bytes = 1001
    with pytest.raises(Refused, match="size"):
        check_report(
            message,
            workers=SCENE.workers,
            worker=SCENE.worker,
            attempt=SCENE.attempt,
            most_bytes=1000,
        )


@pytest.mark.parametrize(
    ("field", "value"), [("model_bytes", 1 << 50), ("samples", 4_000_000_000), ("step_time", 1e5)]
)
def test_a_poll_has_bounds_on_every_number(field: str, value: float) -> None:
    message = GOOD["Next"].make(SCENE)
    setattr(message, field, value)
    with pytest.raises(Refused, match="range"):
        check_next(message)
