"""Rounds with a group average: they count for all members of the group or for none, and everyone
continues from the last round in which it was counted."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attacks.test_partners import federation_of_workers
from faults.in_process import experiment, run, until
from fedhp.cluster.audit.committed_rounds import read_committed_rounds
from fedhp.cluster.audit.invariants import check_invariants
from fedhp.cluster.audit.timeline import read_timeline
from fedhp.cluster.audit.verify import verify
from fedhp.cluster.coordinator.conductor import (
    AttemptVerdict,
    Conductor,
    ConductorSettings,
    Failure,
)
from fedhp.cluster.coordinator.planning.planning import create_planner
from fedhp.cluster.coordinator.planning.round_planner import RoundPlanner
from fedhp.cluster.coordinator.process.network_checks import check_network
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.guard import Refused
from fedhp.cluster.worker.worker import WorkerSettings, run_worker
from fedhp.config import parse
from fedhp.errors import ConfigError
from fedhp.exchange import GroupAverage
from net.identities import make_certificates

WORKERS = 5
GROUP = frozenset({0, 1, 3})
SETTINGS = ConductorSettings(
    workers=WORKERS, min_workers=2, suspect_after=3.0, dead_after=8.0, groups=True
)


def conductor_with_group() -> tuple[Conductor[str], Attempt]:
    conductor: Conductor[str] = Conductor(SETTINGS, epoch=1)
    for worker in range(WORKERS):
        conductor.join(f"w{worker}", "h:1", incarnation=1, models=(), now=0.0)
    return conductor, conductor.begin(range(WORKERS), deadline=10.0, required=GROUP)


# --- what counts ---------------------------------------------------------------------------


def test_without_a_member_there_is_no_average() -> None:
    conductor, attempt = conductor_with_group()
    for worker in (0, 1, 2, 4):
        conductor.report(worker, attempt, "done")
        conductor.members[worker].seen = 4.0
    assert conductor.verdict(2.0) is AttemptVerdict.WAIT
    assert conductor.verdict(4.0) is AttemptVerdict.GIVE_UP  # worker 3 is silent


def test_a_member_that_starts_again_has_lost_the_average() -> None:
    conductor, attempt = conductor_with_group()
    for worker in (0, 1):
        conductor.report(worker, attempt, "done")
    conductor.join("w3", "h:1", incarnation=2, models=(), now=1.0)
    assert conductor.verdict(1.0) is AttemptVerdict.GIVE_UP


def test_others_may_be_missing() -> None:
    conductor, attempt = conductor_with_group()
    for worker in GROUP:
        conductor.report(worker, attempt, "done")
    assert conductor.verdict(1.0) is AttemptVerdict.WAIT
    for member in conductor.members.values():
        member.seen = 11.0
    assert conductor.verdict(11.0) is AttemptVerdict.COMMIT
    conductor.seal()
    conductor.commit()
    assert conductor.members[3].models == (attempt,)
    assert conductor.members[2].models == ()
    assert {member.worker for member in conductor.ready(11.0)} == set(range(WORKERS))


def test_a_broken_link_ends_the_attempt_at_once_and_a_wait_in_vain_with_the_last() -> None:
    conductor, attempt = conductor_with_group()
    conductor.fail(0, attempt, Failure((3,), late=True))
    assert conductor.verdict(1.0) is AttemptVerdict.WAIT  # the others may know who it is
    conductor.fail(1, attempt, Failure((3,), late=False))
    assert conductor.verdict(1.0) is AttemptVerdict.GIVE_UP
    with pytest.raises(Refused, match="doubled"):
        conductor.report(0, attempt, "done after all")
    with pytest.raises(Refused, match="kind"):
        conductor.fail(2, attempt, Failure((3,), late=False))


def test_when_all_have_waited_in_vain_it_is_over() -> None:
    conductor, attempt = conductor_with_group()
    for worker in GROUP:
        assert conductor.verdict(1.0) is AttemptVerdict.WAIT
        conductor.fail(worker, attempt, Failure((), late=True))
    assert conductor.verdict(1.0) is AttemptVerdict.GIVE_UP


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["report", "broken", "late", "restart", "leave", "time"]),
            st.integers(0, WORKERS - 1),
        ),
        max_size=14,
    )
)
def test_a_commit_always_has_the_whole_group(steps: list[tuple[str, int]]) -> None:
    conductor, attempt = conductor_with_group()
    now = 0.0
    for action, worker in steps:
        member = conductor.members[worker]
        try:
            if action == "report":
                conductor.report(worker, attempt, "done")
            elif action in ("broken", "late"):
                conductor.fail(worker, attempt, Failure((), late=action == "late"))
            elif action == "restart":
                later = member.incarnation + 1
                conductor.join(member.name, "h:1", incarnation=later, models=(), now=now)
            elif action == "leave":
                member.left = True
            else:
                now += 2.0
        except Refused:
            continue
        verdict = conductor.verdict(now)
        if verdict is AttemptVerdict.COMMIT:
            assert conductor.seal().keys() >= GROUP
            return
        if verdict is AttemptVerdict.GIVE_UP:
            return
    # Nothing has happened that ends it: when the rest reports, it counts.
    assert conductor.running is not None
    for worker in sorted(conductor.running.awaited):
        conductor.members[worker].seen = now
        conductor.report(worker, attempt, "done")
    waited = bool(conductor.running.failed.keys() & GROUP)
    assert conductor.verdict(now) is (AttemptVerdict.GIVE_UP if waited else AttemptVerdict.COMMIT)
    if not waited:
        assert conductor.seal().keys() >= GROUP


# --- plans ---------------------------------------------------------------------------------


def planner() -> RoundPlanner:
    settings = parse(
        {"workers": WORKERS, "rounds": 20, "algorithm": {"name": "fedhp_plus", "fragments": 1}}
    )
    made = create_planner(settings, model_bytes=400_000)
    assert isinstance(made, RoundPlanner)
    return made


def finish(made: RoundPlanner, round_index: int, present: set[int]) -> GroupAverage:
    """Plan a round and commit it."""
    mask = np.isin(np.arange(WORKERS), list(present))
    planned = made.plan(round_index, mask, np.full(WORKERS, 0.1))
    exchange = planned.plan.exchange
    assert isinstance(exchange, GroupAverage)
    assert planned.transfer_time is not None
    assert planned.slowest == pytest.approx(planned.transfer_time + (planned.plan.deadline or 0.0))
    reports = {
        worker: wire.RoundReport(step_time=0.1, steps=7, exchange_seconds=0.5, compute_seconds=1.0)
        for worker in present
    }
    record = made.finish(planned, reports, seconds=1.5)
    assert record.local_steps.tolist() == [7 * (worker in present) for worker in range(WORKERS)]
    if len(exchange.participants):
        assert record.decision.facts["transfer_time"] == 0.5
    return exchange


def test_a_plan_that_is_given_up_leaves_no_trace() -> None:
    made = planner()
    everyone = set(range(WORKERS))
    for round_index in (1, 2, 3):
        finish(made, round_index, everyone)
    before = made.pack()
    first = made.plan(4, np.ones(WORKERS, dtype=np.bool_), np.full(WORKERS, 0.1))
    without = made.plan(4, np.arange(WORKERS) != 2, np.full(WORKERS, 0.1))
    assert made.pack() == before
    assert 2 in first.plan.exchange.required
    assert 2 not in without.plan.exchange.required
    finish(made, 4, everyone - {2})
    back = finish(made, 5, everyone)
    assert back.participants[back.returning].tolist() == [2]


def test_a_worker_that_lost_its_models_returns_like_a_new_one() -> None:
    made = planner()
    everyone = np.ones(WORKERS, dtype=np.bool_)
    for round_index in (1, 2, 3):
        root = finish(made, round_index, set(range(WORKERS))).root
    planned = made.plan(4, everyone, np.full(WORKERS, 0.1), restarted=[root])
    exchange = planned.plan.exchange
    assert isinstance(exchange, GroupAverage)
    assert exchange.root != root
    assert exchange.participants[exchange.returning].tolist() == [root]
    # All that hold a consensus are away: the newest that is left counts.
    alone = made.plan(4, everyone, np.full(WORKERS, 0.1), restarted=list(range(WORKERS)))
    assert isinstance(alone.plan.exchange, GroupAverage)
    assert not alone.plan.exchange.returning.any()


def test_the_next_coordinator_plans_the_same() -> None:
    made, other = planner(), planner()
    for round_index in (1, 2, 3):
        finish(made, round_index, set(range(WORKERS)) - {round_index})
    other.unpack(made.pack())
    mine, theirs = (finish(each, 4, set(range(WORKERS))) for each in (made, other))
    assert mine.participants.tolist() == theirs.participants.tolist()
    assert mine.parents.tolist() == theirs.parents.tolist()
    assert mine.returning.tolist() == theirs.returning.tolist()


@pytest.mark.parametrize(("key", "value"), [("compression", "int8"), ("robust", "median")])
def test_what_a_sum_cannot_have_is_refused(key: str, value: str) -> None:
    settings = parse({"algorithm": {"name": "fedhp_plus"}, "exchange": {key: value}})
    with pytest.raises(ConfigError, match="sends sums, not models") as caught:
        check_network(settings)
    assert caught.value.key == f"exchange.{key}"


# --- real workers --------------------------------------------------------------------------


def test_workers_that_leave_and_lose_their_disk_come_back(tmp_path: Path) -> None:
    """One returns with what it had, one without: the simulation repeats all rounds."""
    certificates, folder = make_certificates(tmp_path / "certs", 4), tmp_path / "run"
    folder.mkdir()
    settings = experiment(
        workers=4,
        rounds=24,
        algorithm={"name": "fedhp_plus", "first_deadline": 0.2, "fragments": 3},
        model={"name": "mlp", "hidden": [16]},
        evaluation={"images": 10, "every": 8},
        world={"profile": "uniform", "device": {"xavier_nx": {"step_time": 0.1, "sd": 0.0}}},
        cluster={"emulate": True, "min_workers": 2, "gather": 3.0, "beat": 0.1},
    )

    async def scenario() -> None:
        names = ("w0", "w1", "w2", "w3")
        async with federation_of_workers(settings, certificates, folder, names=names) as (
            members,
            leader,
        ):

            async def back(name: str) -> None:
                worker = WorkerSettings(
                    name=name,
                    coordinator=members.address,
                    certificates=certificates,
                    state=folder / name,
                    listen="127.0.0.1:0",
                )
                await run_worker(worker)

            await until(lambda: leader.round_index >= 5)
            await members.stop_worker("w1")
            await members.stop_worker("w3")
            shutil.rmtree(folder / "w3")
            left = leader.round_index
            await until(lambda: leader.round_index >= left + 3)
            for name in ("w1", "w3"):
                members.worker_tasks[name] = asyncio.create_task(back(name))
            await members.finish()

    run(scenario())
    assert check_invariants(folder, rounds=24) == []
    verification = verify(folder)
    assert verification.equal
    assert verification.whole
    rounds = list(read_committed_rounds(read_timeline(folder)))
    assert {worker for done in rounds for worker in done.restarted} == {3}
    later = [done for done in rounds if done.attempt.round_index > 10]
    assert any(1 in done.digests for done in later)
    assert any(3 in done.digests for done in later)
