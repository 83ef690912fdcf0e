"""What one member adds to a group average, or makes of its result: the others go on without it."""

from __future__ import annotations

import json
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attacks.members import events
from attacks.test_partners import federation_of_workers
from faults.in_process import experiment, run, until
from fedhp.cluster.audit.invariants import check_invariants
from fedhp.cluster.audit.verify import verify
from fedhp.cluster.coordinator.attempts.checkpoints import Checkpoints, GroupCheckpoint
from fedhp.cluster.coordinator.attempts.group_checks import (
    REMEMBERED_SHARE,
    PartSizes,
    WrongParts,
    disputed_links,
    norms_after,
)
from fedhp.cluster.coordinator.committed_state import Norms, norms_of
from fedhp.cluster.coordinator.service import CoordinatorState
from fedhp.cluster.history import read_history
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.cluster.protocol.codec import BadModel
from fedhp.cluster.protocol.group_codec import LARGEST_RATIO, FragmentCodec, PieceWriter
from fedhp.cluster.worker import rounds as worker_rounds
from fedhp.cluster.worker.tree_node import NodeRows, TreeNode
from fedhp.config import Experiment
from fedhp.exchange import GroupAverage
from fedhp.learn.group_state import Columns

NAMES = ("w0", "w1", "w2", "w3")
EVIL, FIRST = "w2", 6  # the member that misbehaves, and from which round on
WIDTH = 4096
TREE = GroupAverage(
    participants=np.array([0, 1, 2, 3]),
    parents=np.array([-1, 0, 1, 0]),
    returning=np.array([False, False, False, True]),
)


def settings(rounds: int) -> Experiment:
    return experiment(
        workers=4,
        rounds=rounds,
        algorithm={"name": "fedhp_plus", "first_deadline": 0.2, "fragments": 2},
        model={"name": "mlp", "hidden": [16]},
        evaluation={"images": 200, "every": 1},
        world={"profile": "uniform", "device": {"xavier_nx": {"step_time": 0.02, "sd": 0.0}}},
        cluster={"emulate": True, "min_workers": 2, "gather": 20.0, "beat": 0.1},
    )


# --- a member that misbehaves --------------------------------------------------------------

_joining: ContextVar[str] = ContextVar("joining", default="")


class EvilNode(TreeNode):
    """The node of a member that brings something else than it learned."""

    def __init__(self, attempt: Attempt, group: Any, codec: FragmentCodec, rows: NodeRows) -> None:
        if self.begins(attempt):
            rows = replace(rows, change=self.change(rows.change))
        super().__init__(attempt, group, codec, rows)

    def begins(self, attempt: Attempt) -> bool:
        return attempt.round_index >= FIRST

    def change(self, honest: Any) -> Any:
        return honest


class Largest(EvilNode):
    def change(self, honest: Any) -> Any:
        return np.full_like(honest, 3e38)


class Flipped(EvilNode):
    def change(self, honest: Any) -> Any:
        return -20 * honest


class Ruinous(EvilNode):
    """For one round, far beyond what the limits would let pass."""

    def begins(self, attempt: Attempt) -> bool:
        return attempt.round_index == 8

    def change(self, honest: Any) -> Any:
        return -300 * honest


class Overflowing(EvilNode):
    def begins(self, attempt: Attempt) -> bool:
        return attempt.round_index == 8 and attempt.number == 1

    def change(self, honest: Any) -> Any:
        return np.full_like(honest, 3e37)


class TwoFaced(EvilNode):
    """Has one result, and gives every child another."""

    def _take_result(self, number: int, values: Any, data: bytes) -> None:
        super()._take_result(number, values, data)
        piece = self.codec.pieces[number]
        if not self.begins(self.attempt) or piece.plain:
            return
        for place, (worker, queue) in enumerate(self._down.items()):
            queue._queue.pop()  # type: ignore[attr-defined]
            other = values * np.float32(1.3 + place)
            queue.put_nowait(self.codec.encode(self.kind_for(worker), piece, other))


def let_one_misbehave(monkeypatch: pytest.MonkeyPatch, kind: type[EvilNode]) -> list[str]:
    """Returns the name of the member: for a two-faced one, the first with two children."""
    evil = [] if kind is TwoFaced else [EVIL]
    join_tree = worker_rounds.OrderExecutor._join_tree

    async def join(self: Any, *args: Any, **named: Any) -> TreeNode | None:
        token = _joining.set(self._session.name)
        try:
            return await join_tree(self, *args, **named)
        finally:
            _joining.reset(token)

    def node(attempt: Attempt, group: wire.GroupWork, *others: Any) -> TreeNode:
        name = _joining.get()
        if not evil and attempt.round_index >= FIRST and len(group.children) > 1:
            evil.append(name)
        return (kind if name in evil else TreeNode)(attempt, group, *others)

    monkeypatch.setattr(worker_rounds.OrderExecutor, "_join_tree", join)
    monkeypatch.setattr(worker_rounds, "TreeNode", node)
    return evil


def accuracies(leader: CoordinatorState, evil: list[str]) -> list[float]:
    members = leader.conductor.members.values()
    return [member.accuracy for member in members if member.name not in evil]


@pytest.mark.parametrize("kind", [Largest, pytest.param(Flipped, marks=pytest.mark.slow), TwoFaced])
def test_a_wrong_part_does_not_reach_the_others_and_its_member_is_named(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[EvilNode]
) -> None:
    evil = let_one_misbehave(monkeypatch, kind)

    async def scenario() -> None:
        async with federation_of_workers(
            settings(100_000), certificates, tmp_path, names=NAMES
        ) as (members, leader):
            named: set[str] = set()

            def suspects() -> set[str]:
                for warning in leader.context.warnings.on_wire():
                    if warning.key == "wrong_parts":
                        named.update(warning.members)
                return named

            await until(
                lambda: evil and suspects() >= set(evil) and leader.round_index >= FIRST + 12
            )
            assert not any(task.done() for task in members.worker_tasks.values())
            assert min(accuracies(leader, evil)) > 0.8

    run(scenario())
    committed = {Attempt.from_facts(event) for event in events(tmp_path, "commit")}
    by_round: dict[Attempt, set[str]] = {}
    for event in events(tmp_path, "report"):
        attempt = Attempt.from_facts(event)
        if attempt in committed and f"w{event['worker']}" not in evil:
            by_round.setdefault(attempt, set()).add(event["consensus"])
    # Nobody was given another result that counted.
    assert all(len(digests) == 1 for digests in by_round.values())


# --- going back ----------------------------------------------------------------------------


def test_everyone_goes_back_together_and_the_run_is_repeated_bit_by_bit(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses that explode are pretended: so all rounds can be compared with the simulation."""
    monkeypatch.setattr(
        Checkpoints, "explode", lambda self, reports: _round_of(reports) in (8, 10, 14)
    )

    async def scenario() -> None:
        async with federation_of_workers(settings(18), certificates, tmp_path, names=NAMES) as (
            members,
            leader,
        ):
            await members.finish()
            assert "went_back" in {warning.key for warning in leader.context.warnings.on_wire()}

    run(scenario())
    went = [(event["round"], event["to"][1]) for event in events(tmp_path, "went_back")]
    assert went == [(8, 6), (10, 1), (14, 11)]
    assert check_invariants(tmp_path, rounds=18) == []
    verification = verify(tmp_path)
    assert verification.equal
    assert verification.whole


def _round_of(reports: Any) -> int:
    return int(next(iter(reports.values())).envelope.round)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Ruinous, Overflowing])
def test_a_poison_that_passed_is_undone_and_nobody_exits(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[EvilNode]
) -> None:
    """Without the limits, as where too few are there to know them."""
    evil = let_one_misbehave(monkeypatch, kind)
    monkeypatch.setattr(PartSizes, "of", lambda tree, *others: PartSizes.unknown(tree))

    async def scenario() -> None:
        async with federation_of_workers(settings(24), certificates, tmp_path, names=NAMES) as (
            members,
            leader,
        ):
            await members.finish()
            assert min(accuracies(leader, evil)) > 0.8

    run(scenario())
    (back, *more) = events(tmp_path, "went_back")
    assert back["round"] in (8, 9, 10)
    assert len(more) <= 2
    assert check_invariants(tmp_path, rounds=24) == []
    verification = verify(tmp_path)
    last = max([event["round"] for event in (back, *more)])
    poisoned = {verdict.round_index for verdict in verification.rounds if verdict.different}
    assert poisoned <= set(range(8, last + 1))
    diverged = [
        event
        for name in NAMES
        for event in read_history(tmp_path / name / f"history-{name}.jsonl")
        if event["event"] == "diverged"
    ]
    assert bool(diverged) == (kind is Overflowing)


def test_what_the_next_coordinator_knows_of_checkpoints() -> None:
    made = Checkpoints()
    reports = {0: wire.RoundReport(steps=3, train_loss=2.0)}
    for index in range(1, 8):
        version = Attempt(1, index, 1)
        made.round_ended(
            reports, GroupCheckpoint(version, {0: version}, {0: ((0.5, 0.4),)}, b"plan")
        )
    other = Checkpoints(json.loads(json.dumps(made.pack())))
    assert other.versions_of(0) == made.versions_of(0) == [Attempt(1, 1, 1), Attempt(1, 6, 1)]
    loud = {worker: wire.RoundReport(steps=3, train_loss=10.1) for worker in (0, 1)}
    quiet = {2: wire.RoundReport(steps=3, train_loss=9.9), 3: wire.RoundReport(train_loss=0.0)}
    assert other.explode({**loud, **quiet})
    assert not other.explode({0: loud[0], **quiet})  # not most of them
    checkpoint = other.go_back()
    assert checkpoint == GroupCheckpoint(
        Attempt(1, 6, 1), {0: Attempt(1, 6, 1)}, {0: ((0.5, 0.4),)}, b"plan"
    )
    again = Checkpoints(json.loads(json.dumps(other.pack())))
    assert again.returned == Attempt(1, 6, 1)
    assert again.returns == 1
    assert again.go_back() is not None
    assert again.returned == Attempt(1, 1, 1)  # the newest one did not help
    assert Checkpoints().go_back() is None


# --- numbers -------------------------------------------------------------------------------


def test_how_large_a_part_can_be_is_decided_by_the_middle_of_all() -> None:
    now = {0: (1.0, 3.0), 1: (2.0, 0.0), 2: (3e38, 1.0), 3: (1.5, 0.0)}
    norms: Norms = {worker: tuple((norm, 0.1) for norm in both) for worker, both in now.items()}
    equal = np.ones(4)
    sizes = PartSizes.of(TREE, norms, equal, [0, 1, 2, 3])
    one = LARGEST_RATIO * 1.75
    assert sizes.sums == pytest.approx({0: 4 * one, 1: 2 * one, 2: one, 3: one})
    assert sizes.mean == pytest.approx(one)
    fast = PartSizes.of(TREE, norms, np.array([1.0, 1.0, 0.01, np.nan]), [0, 1, 2, 3])
    assert fast.sums[2] == pytest.approx(np.sqrt(30.0) * one)
    assert fast.sums[3] == pytest.approx(one)
    # One that was away may bring what was usual when it went.
    back = PartSizes.of(TREE, {**norms, 3: ((1.5, 40.0), (0.0, 0.0))}, equal, [0, 1, 2, 3])
    assert back.sums[3] == pytest.approx(LARGEST_RATIO * 40.0)
    assert back.sums[2] == pytest.approx(one)
    # Of the other fragment only two have learned something: there is no middle.
    other = replace(TREE, fragment=1, fragments=2)
    assert PartSizes.of(other, norms, equal, [0, 1, 2, 3]) == PartSizes.unknown(other)
    assert PartSizes.of(TREE, {}, equal, [0, 1, 2, 3]).sums == dict.fromkeys(range(4), 0.0)


def test_a_worker_that_learned_nothing_has_its_last_norm() -> None:
    before: Norms = {0: ((1.0, 0.5), (2.0, 0.5)), 1: ((4.0, 0.5), (0.0, 0.0))}
    reports = {
        worker: wire.RoundReport(change_norms=norms)
        for worker, norms in {0: [0.0, 5.0], 2: [0.0, 7.0]}.items()
    }
    after = norms_after(before, reports, [])
    assert after[0] == ((1.0, 0.5), (5.0, 0.5))  # too few to say what is usual
    assert after[1] == before[1]
    assert after[2] == ((0.0, 0.0), (7.0, 0.0))
    assert norms_of(json.loads(json.dumps(after))) == after


def test_a_worker_that_is_away_keeps_what_was_usual_when_it_went() -> None:
    norms: Norms = {}
    others = replace(TREE, participants=np.arange(3), parents=np.array([-1, 0, 0]))
    for values, trees in (
        ([8.0, 9.0, 10.0, 9.0], []),
        ([0.2, 0.3, 0.1], [others]),  # worker 3 is away
        ([0.2, 0.3, 0.1, 9.0], [others]),  # it is counted, but in no average
    ):
        reports = {each: wire.RoundReport(change_norms=[norm]) for each, norm in enumerate(values)}
        norms = norms_after(norms, reports, trees)
    assert norms[3][0] == pytest.approx((9.0, np.hypot(9.0, 0.25)))
    # After an average most of what was usual before is remembered.
    before = np.hypot(REMEMBERED_SHARE * 9.0, 0.2)
    after = np.hypot(REMEMBERED_SHARE * before, 0.25)
    assert [norms[worker][0][1] for worker in range(3)] == pytest.approx([after] * 3)
    sizes = PartSizes.of(TREE, norms, np.ones(4), [0, 1, 2, 3])
    assert sizes.sums[3] == pytest.approx(LARGEST_RATIO * norms[3][0][1])
    assert sizes.sums[2] == pytest.approx(LARGEST_RATIO * after)


def node_of(group: wire.GroupWork, momentum: float = 0.0) -> TreeNode:
    zeros = np.zeros(WIDTH, dtype=np.float32)
    rows = NodeRows(zeros, zeros, zeros[:0], zeros, np.full_like(zeros, momentum), zeros)
    codec = FragmentCodec(Columns.of(0, WIDTH, trainable=WIDTH), "none")
    return TreeNode(Attempt(1, 2, 1), group, codec, rows)


def send(node: TreeNode, worker: int, kind: Any, value: float) -> None:
    """All pieces of a stream whose values are all the same."""
    node.reader(worker)
    writer = PieceWriter(node.codec, kind, wire.Envelope(sender="w1"))
    for piece in node.codec.pieces:
        values = np.full(piece.count, value, dtype=np.float32)
        node.take(worker, writer.chunk(node.codec.encode(kind, piece, values)))


def test_a_sum_or_a_result_that_is_too_large_is_refused() -> None:
    norm = np.sqrt(WIDTH)  # of a row of ones
    above = wire.GroupWork(
        fragments=1,
        momentum=0.5,
        compression="none",
        members=3,
        children=[wire.PeerAddress(worker=1, name="w1"), wire.PeerAddress(worker=2, name="w2")],
        largest_sums=[10.0 * norm, 0.0],
        largest_mean=10.0 * norm,
    )
    below = wire.GroupWork(
        fragments=1,
        momentum=0.5,
        compression="none",
        members=2,
        parent=wire.PeerAddress(worker=1, name="w1"),
        largest_mean=10.0 * norm,
    )

    async def scenario() -> None:
        send(node_of(above), 1, "sum", 9.9)
        with pytest.raises(BadModel, match="norm") as caught:
            send(node_of(above), 1, "sum", 10.1)
        assert caught.value.reason == "range"
        send(node_of(above), 2, "sum", 1e30)  # nothing is known of it
        # (1 + 0.5) * 10 + 0.25 * 20: what the root can make of such means at most.
        send(node_of(below), 1, "change", 19.9)
        with pytest.raises(BadModel, match="norm"):
            send(node_of(below), 1, "change", 20.1)
        send(node_of(below, momentum=40.0), 1, "change", 24.9)  # it knows the momentum itself
        below.returning = True
        send(node_of(below), 1, "whole", 1e30)

    run(scenario())


def test_a_difference_is_named_where_it_begins() -> None:
    def report(result: bytes, whole: bytes = b"") -> wire.RoundReport:
        return wire.RoundReport(result=32 * result, whole=32 * whole)

    same = {0: report(b"a", b"w"), 1: report(b"a"), 2: report(b"a"), 3: report(b"w")}
    assert disputed_links(TREE, same) == []
    # Worker 1 gave worker 2 another one, or one of the two says so.
    assert disputed_links(TREE, {**same, 2: report(b"b")}) == [(1, 2)]
    assert disputed_links(TREE, {**same, 1: report(b"b"), 2: report(b"b")}) == [(0, 1)]
    assert disputed_links(TREE, {**same, 3: report(b"a")}) == [(0, 3)]


def test_who_contradicts_several_others_is_named_alone() -> None:
    wrong = WrongParts()
    wrong.add(2, 0, round_index=7)
    assert wrong.suspects() == [(0, 2)]
    wrong.add(3, 2, round_index=8)
    wrong.add(4, 5, round_index=8)
    assert wrong.suspects() == [(2,), (4, 5)]
    wrong.forget(round_index=107)
    assert wrong.suspects() == [(2, 3), (4, 5)]
    wrong.forget(round_index=1000)
    assert wrong.suspects() == []
