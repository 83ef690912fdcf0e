"""No member halts the others: vetoes, restarts, turns that take no time, quarrels between two."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attacks import liveness
from attacks.members import Attacker, command, events, start_attacker
from attacks.test_partners import Caller, federation_of_workers
from faults.in_process import InProcessFederation, experiment, in_process_federation, run, until
from faults.test_guards import leading
from fedhp.algorithms.group_tree import build_tree
from fedhp.cluster.audit.committed_rounds import read_committed_rounds
from fedhp.cluster.audit.invariants import check_invariants
from fedhp.cluster.audit.timeline import read_timeline
from fedhp.cluster.audit.verify import verify
from fedhp.cluster.coordinator.attempts import attempts
from fedhp.cluster.coordinator.attempts.attempts import (
    LONGEST_PAUSE,
    Attempts,
    attempt_pause,
    shortest_turn,
)
from fedhp.cluster.coordinator.attempts.blame import ATTEMPTS_TO_BLAME, FIRST_AVOIDED, Blame
from fedhp.cluster.coordinator.conductor import (
    AttemptVerdict,
    Conductor,
    ConductorSettings,
    Failure,
)
from fedhp.cluster.coordinator.planning import round_planner
from fedhp.cluster.coordinator.planning.planning import create_planner
from fedhp.cluster.coordinator.planning.round_planner import RoundPlanner
from fedhp.cluster.coordinator.planning.turn_planner import TurnPlanner
from fedhp.cluster.history import read_history
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.guard import Envelopes
from fedhp.config import Experiment, parse
from fedhp.exchange import GroupAverage, NeighborMixing
from fedhp.timing import Network
from fedhp.types import Pair
from net.identities import make_certificates
from waiting import emulate_work

HONEST = ("w0", "w1", "w2")
BAD = "w3"
ROUNDS = 40


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "FIRST_DEADLINE", 1.0)
    monkeypatch.setattr(round_planner, "SLOWEST_GUESS", 1e9)


@dataclass
class Scripted(Attacker):
    """Reports rounds with group averages, and turns; may have another answer to an order."""

    answer: Callable[[wire.Order], wire.RoundReport | None] = lambda order: None

    async def _obey(self, order: wire.Order) -> bool:
        self.order = order
        if order.WhichOneof("what") != "act":
            return await super()._obey(order)
        self.attempt = attempt = Attempt(order.epoch, order.act.round, 1)
        report = self.answer(order)
        if report is None:
            await emulate_work(order.act.local_steps * self.step_seconds)
            report = self._made_up(attempt, ())
        report.turn = order.act.turn
        await self._report(attempt, report)
        return False

    async def _report(self, attempt: Attempt, report: wire.RoundReport) -> None:
        if self.order.HasField("work"):
            report.steps, report.consensus = 1, report.digest
            report = self.answer(self.order) or report
        await super()._report(attempt, report)


def veto(order: wire.Order, *, names: bool) -> wire.RoundReport | None:
    group = order.work.group
    if not group.members:
        return None
    neighbors = [child.worker for child in group.children]
    neighbors += [group.parent.worker] if group.HasField("parent") else []
    links = [
        wire.LinkReport(worker=peer, distance=float("nan"), lost="unreachable")
        for peer in sorted(neighbors)
    ]
    return wire.RoundReport(failed="a link broke", step_time=0.001, links=links if names else [])


def settings(algorithm: str, **changes: Any) -> Any:
    cluster = {"min_workers": 2, "least_deadline": 1.0, "beat": 0.05, **changes.pop("cluster", {})}
    part: dict[str, Any] = {"name": algorithm}
    if algorithm == "fedhp_plus":
        part |= {"first_deadline": 0.01, "fragments": 1}
    return experiment(workers=4, rounds=100_000, algorithm=part, cluster=cluster, **changes)


def group_rounds(*, workers: int, rounds: int, fragments: int = 1) -> Experiment:
    """Short rounds of FedHP+, for real workers."""
    return experiment(
        workers=workers,
        rounds=rounds,
        algorithm={"name": "fedhp_plus", "first_deadline": 0.05, "fragments": fragments},
        model={"name": "mlp", "hidden": [16]},
        evaluation={"images": 10, "every": 1000},
        world={"profile": "uniform", "device": {"xavier_nx": {"step_time": 0.01, "sd": 0.0}}},
        cluster={"emulate": True, "min_workers": 2, "gather": 3.0, "beat": 0.1},
    )


def outcome(
    tables: Any,
    certificates: Path,
    folder: Path,
    bad: Callable[[InProcessFederation], Any],
    *,
    rounds: int = ROUNDS,
) -> wire.StatusReply:
    """The status after some rounds of three honest members and a bad one."""
    replies = []

    async def scenario() -> None:
        async with in_process_federation(tables, certificates, folder) as federation:
            leader = await federation.start_coordinator()
            for name in HONEST:
                start_attacker(federation, name, Scripted, step_seconds=0.01)
            bad(federation)
            await until(lambda: leader.round_index >= rounds)
            replies.append(leader.status())

    run(scenario())
    return replies[0]


def named(status: wire.StatusReply) -> set[str]:
    return {name for warning in status.warnings for name in warning.members}


# --- members that want to halt the run -----------------------------------------------------


@pytest.mark.parametrize("names", [True, False])
def test_a_veto_costs_its_member_and_not_the_others(
    names: bool, certificates: Path, tmp_path: Path
) -> None:
    status = outcome(
        settings("fedhp_plus"),
        certificates,
        tmp_path,
        lambda federation: start_attacker(
            federation, BAD, Scripted, answer=lambda order: veto(order, names=names)
        ),
    )
    assert named(status) == {BAD}
    aside = [event["workers"] for event in events(tmp_path, "left_aside")]
    assert aside
    assert all(workers == [3] for workers in aside)
    # One attempt for each time that it was let in again, and one more at the first.
    assert len(events(tmp_path, "gave_up")) <= len(aside) + 2 <= 12
    assert {event["worker"] for event in events(tmp_path, "suspended")} == {3}


def test_a_member_that_joins_again_and_again_is_put_aside(
    certificates: Path, tmp_path: Path
) -> None:
    @dataclass
    class Rejoining(Scripted):
        async def _report(self, attempt: Attempt, report: wire.RoundReport) -> None:
            if self.order.work.group.members:
                self.envelopes = Envelopes(BAD)
                await self._join()
            else:
                await super()._report(attempt, report)

    def bad(federation: InProcessFederation) -> None:
        start_attacker(federation, BAD, Rejoining)

    status = outcome(settings("fedhp_plus"), certificates, tmp_path, bad)
    assert named(status) == {BAD}
    assert len(events(tmp_path, "gave_up")) <= 12
    assert {event["worker"] for event in events(tmp_path, "suspended")} == {3}


def test_turns_that_take_no_time_do_not_use_up_the_run(certificates: Path, tmp_path: Path) -> None:
    def at_once(order: wire.Order) -> wire.RoundReport:
        return worker._made_up(Attempt(1, order.act.round, 1), ())

    worker: Attacker

    def bad(federation: InProcessFederation) -> None:
        nonlocal worker
        worker = start_attacker(federation, BAD, Scripted, answer=at_once)

    tables = settings("adpsgd", training={"local_steps": 20})
    status = outcome(tables, certificates, tmp_path, bad, rounds=10)
    assert named(status) == {BAD}
    turns = [event["worker"] for event in events(tmp_path, "report")]
    honest = [turns.count(worker) for worker in range(3)]
    # About one per round of each, whatever the other one does; a slow one may have fewer.
    assert sum(honest) >= 25
    assert min(honest) >= 5


def test_a_round_counts_as_many_turns_of_each_as_of_the_one_in_the_middle() -> None:
    tables = {"workers": 4, "rounds": 5, "algorithm": {"name": "adpsgd"}}
    planner = create_planner(parse(tables), model_bytes=1000)
    assert isinstance(planner, TurnPlanner)

    def ended(*workers: int) -> None:
        for worker in workers:
            turn = planner.next_turn(worker, round_index=1, present=np.ones(4, dtype=np.bool_))
            planner.end_turn(turn, wire.RoundReport())

    everyone = range(4)
    assert not planner.is_complete(everyone)
    ended(3, 3, 3, 3, 3, 3, 0, 1)
    assert not planner.is_complete(everyone)  # 1 + 1 + 1
    ended(0, 1)
    assert planner.is_complete(everyone)  # 2 + 2 + 2, and worker 2 is slow
    assert planner.is_complete([3])
    planner.ended = []
    assert not planner.is_complete([])
    ended(0)
    assert planner.is_complete([])


def test_how_short_a_turn_can_be() -> None:
    assert shortest_turn(5, [0.3, 0.6, 0.9]) == pytest.approx(5 * 0.6 / 30)
    assert shortest_turn(5, [0.3, 0.6, 0.6, 1e-9]) == pytest.approx(5 * 0.45 / 30)
    assert shortest_turn(5, [0.3, 0.6, float("nan")]) == 0.0  # of two, nobody knows


# --- who is the cause ----------------------------------------------------------------------


def judged(blame: Blame, failures: dict[int, tuple[int, ...]], **about: Any) -> set[int]:
    late = {worker: Failure(lost, late=True) for worker, lost in failures.items()}
    settings = {"absent": (), "misses": {}, "round_index": 5, **about}
    return blame.judge(late, **settings)


def test_a_quarrel_counts_for_both_ends_and_the_link_is_avoided() -> None:
    blame = Blame()
    assert judged(blame, {3: (1,)}) == set()  # either of the two may be the cause
    assert blame.avoided(5) == {(1, 3)}
    assert judged(blame, {3: (0,)}) == {3}  # it is at the end of both
    assert blame.avoided(5) == {(0, 3), (1, 3)}
    assert blame.avoided(5 + FIRST_AVOIDED) == {(0, 3), (1, 3)}
    assert blame.avoided(6 + FIRST_AVOIDED) == set()
    assert judged(blame, {3: (2,)}, round_index=70) == {3}  # it is remembered
    blame.forgive(3)
    assert blame.avoided(70) == set()
    assert judged(blame, {3: (2,)}, round_index=70) == {2}  # which was accused before


def test_a_link_that_breaks_again_is_avoided_for_longer() -> None:
    blame = Blame()
    for times, rounds in enumerate((16, 32, 64, 64, 64), start=1):
        last = 1000 * times  # so much later that nothing else is remembered
        judged(blame, {1: (0,)}, round_index=last)
        assert blame.avoided(last + rounds) == {(0, 1)}
        assert blame.avoided(last + rounds + 1) == set()
    assert blame.avoided(last + 100) == set()
    judged(blame, {1: (0,)}, round_index=last + 100)
    assert blame.avoided(last + 100 + 64) == {(0, 1)}
    assert blame.avoided(last + 100 + 101) == set()  # and the link is forgotten
    judged(blame, {1: (0,)}, round_index=last + 300)
    assert blame.avoided(last + 300 + 16) == {(0, 1)}
    assert blame.avoided(last + 300 + 17) == set()


def test_attempts_of_long_ago_do_not_count() -> None:
    for later, cause in ((104, {3}), (105, set())):
        blame = Blame()
        assert judged(blame, {3: (1,)}, round_index=5) == set()
        assert judged(blame, {3: (0,)}, round_index=later) == cause


def test_the_accused_does_not_pay_for_the_accuser() -> None:
    blame = Blame()
    for accused in (0, 1, 2, 0, 1, 2):
        assert judged(blame, {3: (accused,)}) <= {3}
    assert ATTEMPTS_TO_BLAME == 2


def test_of_two_the_one_that_was_waited_for_before_is_the_cause() -> None:
    assert judged(Blame(), {3: (1,)}, misses={3: 1}) == {3}
    assert judged(Blame(), {3: (1,)}, misses={1: 1}) == {1}
    assert judged(Blame(), {3: (1,)}, misses={1: 1, 3: 1}) == set()


def test_who_names_nobody_accuses_itself_and_who_is_absent_is_the_cause() -> None:
    blame = Blame()
    assert judged(blame, {3: (), 0: (1,)}) == {3}
    assert judged(blame, {0: (1,), 2: (1,)}, absent={1}) == {1}
    assert blame.avoided(5) == set()


def test_who_waits_for_another_one_passes_the_blame_on() -> None:
    # 0 above 1 above 2 above 3: all wait, and the last two for each other.
    blame = Blame()
    judged(blame, {0: (1,), 1: (2,), 2: (3,), 3: (2,)})
    assert blame.avoided(5) == {(2, 3)}


def test_an_accused_member_has_a_moment_for_a_sign_of_life() -> None:
    limits = ConductorSettings(4, 2, 30.0, 60.0, groups=True, hearing=1.5)
    conductor: Conductor[str] = Conductor(limits, epoch=1)
    for worker in range(4):
        conductor.join(f"w{worker}", "h:1", incarnation=1, models=(), now=0.0)

    def quarrel() -> Attempt:
        attempt = conductor.begin(range(4), deadline=20.0, required=range(3))
        conductor.fail(0, attempt, Failure((1,), late=False, at=2.0))
        return attempt

    attempt = quarrel()
    assert conductor.verdict(2.1) is AttemptVerdict.WAIT
    assert conductor.verdict(3.5) is AttemptVerdict.GIVE_UP
    assert conductor.absent(3.5) == {1}  # it has stopped
    conductor.give_up()
    quarrel()
    conductor.members[1].beat("training", 2.2)
    assert conductor.verdict(2.3) is AttemptVerdict.GIVE_UP
    assert conductor.absent(2.3) == set()  # both are alive
    conductor.give_up()
    attempt = conductor.begin(range(4), deadline=20.0, required=range(3))
    for worker in (0, 1):
        conductor.report(worker, attempt, "done")
    assert conductor.absent(19.0) == set()
    assert conductor.absent(20.0) == {2}  # it had until the end
    conductor.join("w0", "h:1", incarnation=2, models=(), now=1.0)
    assert conductor.absent(19.0) == set()  # its report is there
    conductor.join("w2", "h:1", incarnation=2, models=(), now=1.0)
    assert conductor.absent(19.0) == {2}


def test_where_most_say_nothing_the_cause_is_not_one_of_them() -> None:
    limits = ConductorSettings(4, 2, 30.0, 60.0, groups=True)
    conductor: Conductor[str] = Conductor(limits, epoch=1)
    for worker in range(4):
        conductor.join(f"w{worker}", "h:1", incarnation=1, models=(), now=0.0)
    attempt = conductor.begin(range(4), deadline=20.0, required=range(3))
    conductor.report(0, attempt, "done")
    assert conductor.absent(20.0) == set()


# --- attempts at one round -----------------------------------------------------------------


def test_attempts_follow_each_other_more_and_more_slowly() -> None:
    pauses = [attempt_pause(tries) for tries in range(20)]
    assert pauses[0] == 0.0
    assert pauses == sorted(pauses)
    assert pauses[2] == 2 * pauses[1]
    assert pauses[-1] == LONGEST_PAUSE


def test_a_round_that_is_tried_ten_times_is_a_warning(tmp_path: Path) -> None:
    with leading(tmp_path, dead_after=1e9) as leader:
        for index in range(3):
            leader.conductor.join(f"w{index}", "h:1", incarnation=1, models=(), now=0.0)
        for number in range(1, 12):
            attempt = leader.conductor.begin(range(3), deadline=1.0)
            leader.attempts.give_up(attempt, now=1.0)
            warned = [(warning.key, warning.value) for warning in leader.context.warnings.on_wire()]
            assert warned == ([("attempts", number)] if number >= 10 else [])
        attempt = leader.conductor.begin(range(3), deadline=1.0)
        leader.attempts.seal(started=0.0, now=1.0)
        leader.attempts.committed(attempt, reported=[])
        assert leader.context.warnings.on_wire() == []
    assert len(events(tmp_path, "warning")) == 1


def test_rounds_of_a_half_and_without_a_group_are_repeated_by_the_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after many attempts that failed."""
    monkeypatch.setattr(attempts, "WHOLE_TRIES", 0)
    alone = Attempts.goes_without_group
    monkeypatch.setattr(
        Attempts,
        "goes_without_group",
        lambda self: self._context.round_index % 3 == 2 or alone(self),
    )
    certificates, folder = make_certificates(tmp_path / "certs", 4), tmp_path / "run"
    folder.mkdir()
    tables = group_rounds(workers=4, rounds=12, fragments=2)

    async def scenario() -> None:
        names = ("w0", "w1", "w2", "w3")
        async with federation_of_workers(tables, certificates, folder, names=names) as (members, _):
            await members.finish()

    run(scenario())
    assert check_invariants(folder, rounds=12) == []
    verification = verify(folder)
    assert verification.equal
    assert verification.whole
    rounds = list(read_committed_rounds(read_timeline(folder)))
    sizes = [0 if done.averaged is None else len(done.averaged.required) for done in rounds]
    assert sizes[2::3] == [0] * 4
    assert max(sizes) == 2
    halves = {done.participants for done in rounds if len(done.participants) == 2}
    assert len(halves) > 1


# --- links that do not work ----------------------------------------------------------------


def test_a_tree_goes_around_links_that_do_not_work() -> None:
    tables = {"workers": 5, "rounds": 20, "algorithm": {"name": "fedhp_plus", "min_share": 1.0}}
    everyone = np.ones(5, dtype=np.bool_)
    for sharing in (True, False):
        world = {"profile": "uniform", "bandwidth": {"sharing": sharing}}
        planner = create_planner(parse({**tables, "world": world}), model_bytes=400_000)
        assert isinstance(planner, RoundPlanner)
        free = planner.plan(2, everyone, np.full(5, 0.1)).plan.exchange
        assert isinstance(free, GroupAverage)
        assert len(free.participants) == 5
        for a, b in free.links.tolist():
            broken = frozenset([(a, b)])
            around = planner.plan(2, everyone, np.full(5, 0.1), avoid=broken).plan.exchange
            assert isinstance(around, GroupAverage)
            assert len(around.participants) == 5
            assert [a, b] not in around.links.tolist()
        lonely = frozenset((a, b) for a in range(5) for b in range(a + 1, 5) if 2 in (a, b))
        without = planner.plan(2, everyone, np.full(5, 0.1), avoid=lonely).plan.exchange
        assert isinstance(without, GroupAverage)
        assert without.participants.tolist() == [0, 1, 3, 4]
        nobody = planner.plan(2, everyone, np.full(5, 0.1), grouped=False)
        assert isinstance(nobody.plan.exchange, GroupAverage)
        assert len(nobody.plan.exchange.participants) == 0
        assert nobody.slowest == nobody.plan.deadline
        assert nobody.planned.state is planner.planner.state  # to the algorithm, nothing happened


def test_a_worker_may_hang_below_one_that_is_added_later() -> None:
    network = Network(np.array([4.0, 3.0, 2.0]), model_bits=1e6, sharing=True)
    tree = build_tree(network, root=0, others=[1, 2], leaves=[], avoid=frozenset([(0, 1)]))
    assert tree.workers.tolist() == [0, 2, 1]
    assert tree.parents.tolist() == [-1, 0, 2]


def test_a_tree_of_the_fastest_links_goes_around_them_too() -> None:
    speeds = np.random.default_rng(3).uniform(1.0, 9.0, (6, 6))
    network = Network(np.maximum(speeds, speeds.T), model_bits=1e6)

    def links(avoid: frozenset[Pair]) -> dict[int, int]:
        tree = build_tree(network, root=0, others=[1, 2, 3], leaves=[4, 5], avoid=avoid)
        return dict(zip(tree.workers.tolist(), tree.parents.tolist(), strict=True))

    free = links(frozenset())
    for worker, parent in free.items():
        if parent >= 0:
            around = links(frozenset([(min(worker, parent), max(worker, parent))]))
            assert around.keys() == free.keys()
            assert around[worker] != parent
            assert around.get(parent) != worker
    cut = frozenset((worker, 4) for worker in range(4)) | {(0, 2), (1, 2), (2, 3)}
    assert links(cut).keys() == {0, 1, 3, 5}


def test_neighbors_whose_link_does_not_work_do_not_mix() -> None:
    tables = {"workers": 4, "rounds": 5, "algorithm": {"name": "dpsgd"}}
    planner = create_planner(parse({**tables, "topology": {"name": "ring"}}), model_bytes=400_000)
    assert isinstance(planner, RoundPlanner)
    everyone = np.ones(4, dtype=np.bool_)
    before = planner.plan(1, everyone, np.full(4, 0.1)).plan.exchange
    assert isinstance(before, NeighborMixing)
    first = frozenset([(int(a), int(b)) for a, b in before.topology.links[:1]])
    two = frozenset([(int(a), int(b)) for a, b in before.topology.links[[0, 2]]])
    for avoid, count in ((first, 3), (two, 3)):  # without two, another link connects the halves
        exchange = planner.plan(1, everyone, np.full(4, 0.1), avoid=avoid).plan.exchange
        assert isinstance(exchange, NeighborMixing)
        links = {(a, b) for a, b in exchange.topology.links.tolist()}
        assert len(links) == count
        assert not links & avoid


def test_a_partner_that_refuses_is_not_chosen() -> None:
    tables = {"workers": 3, "rounds": 5, "algorithm": {"name": "adpsgd"}}
    planner = create_planner(parse(tables), model_bytes=1000)
    assert isinstance(planner, TurnPlanner)
    everyone = np.ones(3, dtype=np.bool_)
    turns = [
        planner.next_turn(0, round_index=1, present=everyone, avoid=frozenset([(0, 2)]))
        for _ in range(20)
    ]
    assert {turn.action.partner for turn in turns} == {1}
    others = [
        planner.next_turn(1, round_index=1, present=everyone, avoid=frozenset([(0, 2)]))
        for _ in range(20)
    ]
    assert {turn.action.partner for turn in others} == {0, 2}


def refusals(folder: Path, name: str) -> list[dict[str, Any]]:
    lines = read_history(folder / name / f"history-{name}.jsonl")
    return [line for line in lines if line["event"] == "refused"]


def test_streams_that_end_early_are_no_strike(certificates: Path, tmp_path: Path) -> None:
    async def empty() -> AsyncIterator[wire.Chunk]:
        chunks: tuple[wire.Chunk, ...] = ()
        for chunk in chunks:
            yield chunk

    async def scenario() -> None:
        async with federation_of_workers(
            group_rounds(workers=3, rounds=100_000), certificates, tmp_path
        ) as (
            members,
            leader,
        ):
            await until(lambda: leader.round_index >= 5)
            caller = Caller(members, leader, "w1")
            for _ in range(6):
                for call in ("Average", "Swap"):
                    answer = await caller._answer(
                        "w0", lambda stub, call=call: getattr(stub, call)(empty(), timeout=10)
                    )
                    assert answer == "attempt"
            before = leader.round_index
            await until(lambda: leader.round_index >= before + 5)

    run(scenario())
    assert refusals(tmp_path, "w0") == []


def test_a_quarrel_of_two_workers_stops_nobody_and_allow_ends_it(
    certificates: Path, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with federation_of_workers(
            group_rounds(workers=3, rounds=100_000), certificates, tmp_path
        ) as (
            members,
            leader,
        ):
            await until(lambda: leader.round_index >= 5)
            caller = Caller(members, leader, "w1")

            async def bad() -> str:
                async def chunks() -> AsyncIterator[wire.Chunk]:
                    yield wire.Chunk()

                return await caller._answer("w0", lambda stub: stub.Swap(chunks(), timeout=10))

            await until_answers(bad, "quarantined")
            w0, w1 = (leader.conductor.by_name.get(name) for name in ("w0", "w1"))
            assert w0 is not None
            assert w1 is not None
            pair = (min(w0.worker, w1.worker), max(w0.worker, w1.worker))
            await until(lambda: pair in leader.attempts.avoided_links(time.monotonic()))
            before, failed = leader.round_index, len(events(tmp_path, "gave_up"))
            await until(lambda: leader.round_index >= before + 10)
            assert len(events(tmp_path, "gave_up")) <= failed + 2
            await command(members, allow="w1")
            await until_answers(bad, "missing")
            await until(lambda: pair not in leader.attempts.avoided_links(time.monotonic()))
            before = leader.round_index
            await until(lambda: leader.round_index >= before + 5)

    run(scenario())


async def until_answers(ask: Callable[[], Any], word: str) -> None:
    """Ask again and again."""
    async with asyncio.timeout(60):
        while await ask() != word:
            await emulate_work(0.05)


# --- with real processes -------------------------------------------------------------------


@pytest.mark.slow
def test_a_flaky_machine_does_not_set_the_others_against_each_other(tmp_path: Path) -> None:
    flaky = liveness.measure(tmp_path, "flaky", seconds=570.0)
    healthy = [pair for pair in flaky.quarantined if liveness.BAD not in pair]
    assert healthy == []
    assert flaky.longest_pause <= 2 * flaky.longest_deadline + 5.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["veto", "veto_empty", "rejoin", "greedy"])
def test_one_member_leaves_the_others_most_of_their_rounds(kind: str, tmp_path: Path) -> None:
    undisturbed = "quiet_turns" if liveness.KINDS[kind] == liveness.TURNS else "quiet"
    quiet = liveness.measure(tmp_path / "quiet", undisturbed, seconds=40.0)
    attacked = liveness.measure(tmp_path / "attacked", kind, seconds=40.0)
    assert attacked.rate >= 0.7 * quiet.rate
    assert attacked.named.keys() == {liveness.BAD}
