"""Asynchronous methods that deliver or gather: the same bits everywhere, and AGP (examples/) as a
plain event loop computes it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from heapq import heappop, heappush
from importlib.util import find_spec
from math import floor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import fedhp
from equality.test_kill import kill_and_resume
from equality.test_rules import EXAMPLES, LINEAR, SIZE, Naive
from fedhp import Action, Delivery, Federation, Gathering, Observation
from fedhp.algorithms import Traits
from fedhp.algorithms.adpsgd import ADPSGD
from fedhp.cluster.audit.invariants import check_invariants
from fedhp.cluster.coordinator.process.network_checks import check_network
from fedhp.cluster.ops.launch import Cluster
from fedhp.config import Experiment, parse
from fedhp.config.origins import Origins
from fedhp.engine.events import EventLoop
from fedhp.engine.executor import LocalTraining
from fedhp.engine.prepare import Prepared, prepare
from fedhp.engine.runs.run import checkpoint_of, loop_of, restore
from fedhp.engine.shard.turns import MASS_UNIT
from fedhp.engine.sharded import LocalExecutor
from fedhp.errors import ConfigError, RunError
from fedhp.exchange.base import Unusable
from fedhp.exchange.mailbox import Here, check_action
from fedhp.rule import PushSum, Rows, Rule, Step, Vector, Vectors
from fedhp.tables import merge_tables
from unit.engine.runs import bits, carry_out

HERE = "equality.test_boxes"
IMPORTS = """from typing import ClassVar
from fedhp.algorithms.adpsgd import ADPSGD
from fedhp.rule import Rows, Rule, Step, Vector, Vectors
"""
AGP = "agp:AGP"
RING: dict[str, Any] = {"topology": {"name": "ring"}}
SLOW: dict[str, Any] = {"world": {"profile": "slow_links", "model_megabits": 2}}


@dataclass(frozen=True, slots=True)
class Count:
    """What an action needs to know."""

    workers: int
    steps: int


class Turns:
    """The start of all methods here."""

    def start(self, federation: Federation) -> Count:
        return Count(federation.workers, federation.local_steps)


class Swift(Turns):
    """The newest models of both neighbors on a ring."""

    traits: ClassVar = Traits(mailbox="newest", plans_by="world")

    def act(self, state: Count, worker: int, seen: Observation, *, turn: int) -> Any:
        peers = ((worker - 1) % state.workers, (worker + 1) % state.workers)
        return state, Action(state.steps, mail=Delivery(to=peers, weights=(1 / 3, 1 / 3)))


class Pieces(Turns):
    """A third of the model each to two others; what has come is averaged once. The sender waits."""

    traits: ClassVar = Traits(mailbox="once", fragments=3, plans_by="world")

    def act(self, state: Count, worker: int, seen: Observation, *, turn: int) -> Any:
        to = tuple((worker + hop) % state.workers for hop in (1, 2, 1))
        pieces = tuple((turn + part) % 3 for part in (0, 1, 2))
        mail = Delivery(to=to, fragments=pieces, overlap=False)
        return state, Action(state.steps, mail=mail)


class Partial(Turns):
    """Whoever has trained averages with the next two that have (Prague)."""

    traits: ClassVar = Traits(mailbox="group", plans_by="world")

    def act(self, state: Count, worker: int, seen: Observation, *, turn: int) -> Any:
        return state, Action(state.steps, mail=Gathering(size=3))


class Buffer(Rule):
    """Workers send their change; worker 0 has not moved, and sends its model."""

    vectors: ClassVar = (Vector("still", scalar=True),)

    def send(self, x0: Rows, x: Rows, v: Vectors, step: Step) -> Rows:
        v["still"] = (x == x0).all(dim=1, keepdim=True).to(x.dtype)
        return x - (1 - v["still"]) * x0

    def receive(self, x0: Rows, x: Rows, v: Vectors, mixed: Rows, step: Step) -> Rows:
        return mixed - (1 - v["still"]) * x


class FedBuff(Turns):
    """Worker 0 is the server: it adds the changes of two others, and answers them."""

    traits: ClassVar = Traits(mailbox="sum", plans_by="world")

    def rule(self) -> Rule:
        return Buffer()

    def act(self, state: Count, worker: int, seen: Observation, *, turn: int) -> Any:
        if worker:
            mail = Delivery(to=(0,), weights=(0.5,))
            return state, Action(state.steps, mail=mail, wait=1)
        to = seen.received
        answer = Delivery(to=to, weights=(1.0,) * len(to), overlap=False)
        return state, Action(0, mail=answer, wait=2)


class Anchor(Rule):
    """Steps are pulled towards a vector that travels with the model."""

    vectors: ClassVar = (Vector("anchor", start="model", travels=True),)

    def gradient(self, g: Rows, x: Rows, v: Vectors, step: Step) -> Rows:
        v["anchor"] = 0.9 * v["anchor"] + 0.1 * x
        return g + 0.01 * (x - v["anchor"])


class Anchored(ADPSGD):
    """Meetings of two, with a rule that steers."""

    def rule(self) -> Rule:
        return Anchor()


METHODS = [
    AGP,
    *(f"{HERE}:{name}" for name in ("Swift", "Pieces", "Partial", "FedBuff", "Anchored")),
]
ALL = pytest.mark.parametrize("method", METHODS)


def settings(method: str, *changes: dict[str, Any]) -> Experiment:
    tables = merge_tables(SIZE, {"algorithm": {"name": method}, "workers": 7})
    for change in (RING, SLOW, *changes):
        tables = merge_tables(tables, change)
        for part in ("model", "evaluation"):
            tables[part] = change.get(part, tables[part])
    return parse(tables, origins=Origins.of_file(EXAMPLES / "agp.toml"))


@ALL
@pytest.mark.parametrize("kernel", ["worker", "auto"])
def test_three_shards_and_a_resumed_run_are_one(method: str, kernel: str) -> None:
    prepared = prepare(settings(method, {"training": {"kernel": kernel}}))
    records, end = carry_out(LocalExecutor(prepared))
    assert np.isfinite(end["models"]).all()
    assert sum(record.bytes_sent for record in records) > 0
    result, state = carry_out(LocalExecutor(prepared, shards=3))
    assert bits(result) == bits(records)
    assert bits(state) == bits(end)
    for stop in (1, 3):
        first = LocalExecutor(prepared)
        loop = loop_of(first)
        rounds = loop.rounds()
        for _ in range(stop):
            next(rounds)
        saved = checkpoint_of(loop, first)
        first.close()
        engine = LocalExecutor(prepared, shards=2)
        resumed = loop_of(engine)
        restore(resumed, engine, saved)
        assert bits(list(resumed.rounds())) == bits(records[saved.round_index :])
        assert bits(engine.state()) == bits(end)
        engine.close()


@ALL
@pytest.mark.parametrize("seconds", [None, 0.5])
def test_who_is_away_does_not_stop_the_others(method: str, seconds: float | None) -> None:
    away = {"world": {"away": [{"worker": 2, "first": 2, "last": 3}]}}
    timed = {"evaluation": {"every": 1} if seconds is None else {"seconds": seconds}}
    experiment = settings(method, away, timed)
    records, end = carry_out(LocalExecutor(prepare(experiment)))
    assert len(records) == 5
    assert np.isfinite(end["models"]).all()


# --- AGP -------------------------------------------------------------------------------------


def masses(loop: EventLoop, engine: LocalExecutor) -> float:
    """Of all workers, in boxes and on their way."""
    turns, rows = engine.shard.turns, engine.shard.rows
    column = engine.prepared.layout.columns("push_weight")
    assert column is not None
    there = turns._turns[:, 3] == 1
    own = torch.where(there[:, None], rows.mixed[:, column], rows.models[:, column])
    boxes = [content[column] for box in turns._boxes for content, _ in box.values()]
    flying = [turns._part(item.sender, item.weight)[column] for item in loop.post._queue]
    return float(sum(part.double().sum() for part in (own, *boxes, *flying)))


def test_the_mass_of_all_is_kept_exactly_at_every_event(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = LocalExecutor(prepare(settings(AGP, {"rounds": 30})))
    loop = loop_of(engine)
    assert isinstance(loop, EventLoop)
    step, seen = loop._step, []

    def watched() -> int:
        result = step()
        seen.append((masses(loop, engine), len(loop.post._queue)))
        return result

    monkeypatch.setattr(loop, "_step", watched)
    records = list(loop.rounds())
    assert len(seen) > 30 * 7
    assert {mass for mass, _ in seen} == {7.0}
    assert max(count for _, count in seen) > 4
    column = engine.prepared.layout.columns("push_weight")
    weights = engine.state()["models"][:, column]
    assert len(np.unique(weights)) > 2
    assert len(records) == 30
    engine.close()


@dataclass
class Pushing:
    """A worker of the plain event loop, in float64."""

    z: NDArray[np.float64]
    w: float = 1.0
    n: NDArray[np.float64] | None = None  # its message, between two turns
    box: list[tuple[NDArray[np.float64], float]] = field(default_factory=list)
    turn: int = -1
    pushes: bool = True
    flying: int = 0


def plain_agp(prepared: Prepared, naive: Naive, events: int) -> NDArray[np.float64]:
    """The models when so many turns have ended."""
    world, count, steps = prepared.world, naive.workers, naive.steps
    size, ring = naive.x.shape[1], prepared.federation.base_topology.links.tolist()
    workers = [Pushing(row.copy()) for row in naive.x]
    heap: list[tuple[float, int, str, tuple[Any, ...]]] = []
    flying: list[tuple[int, int]] = []
    serial = iter(range(10**9))

    def begin(i: int, clock: float) -> None:
        me = workers[i]
        me.turn += 1
        me.pushes = me.turn == 0 or bool(me.box)
        if me.n is not None:
            n, me.w = me.n + sum(part for part, _ in me.box), me.w + sum(w for _, w in me.box)
            me.z, me.n, me.box = n / me.w, None, []
        times = world.step_times(i, me.turn + 1, steps=steps, time=clock)
        heappush(heap, (clock + float(times.sum()), next(serial), "trained", (i,)))

    def trained(i: int, clock: float) -> None:
        me = workers[i]
        x = me.z.copy()
        for batch in naive.engine.shard.trainer.batches(
            i, LocalTraining(me.turn + 1, steps, naive.rate)
        ).numpy():
            x -= naive.rate * naive.gradient(x, batch)
        me.n = me.w * me.z + (x - me.z)
        if me.pushes and not me.flying:
            peers = sorted({a + b - i for a, b in ring if i in (a, b)})
            leaving = floor(me.w * (1 / 3) / MASS_UNIT) * MASS_UNIT
            part = me.n * (leaving / me.w)
            for peer in peers:
                flying.append((i, peer))
            links = np.array([(peer, i) for peer in peers])
            lines = np.bincount(np.array(flying).ravel(), minlength=count)
            times = world.link_time(
                links,
                lines,
                clock=clock,
                ready=np.zeros(count),
                size=(size + 1) / size,
                directed=True,
                event=me.turn,
            )
            for peer, time in zip(peers, times, strict=True):
                me.n, me.w, me.flying = me.n - part, me.w - leaving, me.flying + 1
                heappush(heap, (clock + time, next(serial), "landed", (i, peer, part, leaving)))

    for i in range(count):
        begin(i, 0.0)
    while events:
        clock, _, kind, facts = heappop(heap)
        if kind == "landed":
            i, peer, part, mass = facts
            workers[i].flying -= 1
            flying.remove((i, peer))
            workers[peer].box.append((part, mass))
        else:
            (i,) = facts
            trained(i, clock)
            events -= 1
            begin(i, clock)
    return np.array([worker.z for worker in workers])


def test_agp_has_the_numbers_of_a_plain_event_loop() -> None:
    prepared = prepare(settings(AGP, LINEAR, {"rounds": 8, "evaluation": {"every": 8}}))
    naive = Naive(prepared)
    records, end = carry_out(LocalExecutor(prepared))
    found = end["models"][:, : prepared.layout.trainable]
    assert np.abs(found - naive.x).max() > 0.01
    expected = plain_agp(prepared, naive, 8 * 7)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    share = (prepared.layout.trainable + 1) / prepared.layout.trainable
    assert {
        int(sent) % round(share * prepared.model_bytes) for r in records for sent in r.link_bytes
    } == {0}
    naive.engine.close()


def test_agp_is_killed_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    more = '[topology]\nname = "ring"\n'
    assert kill_and_resume(tmp_path, AGP, rounds=40, kills=2, seed=5, more=more) > 0


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.parametrize("method", [AGP])
def test_ray_has_the_same_bits(method: str, tmp_path: Path) -> None:
    digests = set()
    for engine in ("local", "ray"):
        with fedhp.run(settings(method, {"engine": engine}), tmp_path / engine) as run:
            digests.add(run.digest())
    assert len(digests) == 1


# --- groups, newest messages, a server -------------------------------------------------------


def test_a_group_sets_its_members_to_their_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = LocalExecutor(prepare(settings(f"{HERE}:Partial")))
    average, groups = engine.average_group, []

    def watched(members: Any) -> None:
        before = engine.shard.rows.models.double().numpy().copy()
        average(members)
        after = engine.shard.rows.models.double().numpy()
        groups.append(list(members))
        mean = before[members].mean(axis=0)
        np.testing.assert_allclose(after[members], np.tile(mean, (len(members), 1)), atol=1e-6)
        others = np.setdiff1d(np.arange(7), members)
        assert np.array_equal(after[others], before[others])

    monkeypatch.setattr(engine, "average_group", watched)
    records, _ = carry_out(engine)
    assert {len(members) for members in groups} == {3}
    ring = round(4 / 3 * engine.prepared.model_bytes)
    assert sum(r.bytes_sent for r in records) == 3 * ring * len(groups)
    assert max(record.timing.waiting_time.max() for record in records) > 0


def test_the_server_of_fedbuff_adds_half_of_two_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = LocalExecutor(prepare(settings(f"{HERE}:FedBuff", {"rounds": 10})))
    rows, trained = engine.shard.rows, slice(engine.prepared.layout.trainable)
    snapshot, deliver, changes, sizes, answers = engine.snapshot, engine.deliver, [], set(), {}

    def delivered(sender: int, receiver: int, **how: Any) -> None:
        deliver(sender, receiver, **how)
        if receiver == 0:
            start, end = rows.after[sender, trained], rows.models[sender, trained]
            changes.append((end - start).double())
        else:
            outbox = engine.shard.turns._outbox
            assert outbox is not None
            answers[receiver] = outbox[0, trained].clone()

    def begun(worker: int) -> None:
        before = rows.models[worker, trained].double()
        snapshot(worker)
        after = rows.models[worker, trained]
        if worker == 0:
            expected = before + sum((0.5 * change for change in changes), torch.zeros(()))
            torch.testing.assert_close(after.double(), expected, rtol=0, atol=1e-6)
            sizes.add(len(changes))
            changes.clear()
        elif worker in answers:
            torch.testing.assert_close(after, answers[worker], rtol=0, atol=1e-6)

    monkeypatch.setattr(engine, "snapshot", begun)
    monkeypatch.setattr(engine, "deliver", delivered)
    _, end = carry_out(engine)
    assert sizes >= {0, 2}
    assert np.abs(end["models"][0, trained] - rows.initial[trained].numpy()).max() > 0.01


@pytest.mark.parametrize(
    ("mail", "problem"),
    [
        (Delivery(to=(9,)), "unknown worker 9"),
        (Delivery(to=(0,)), "is itself"),
        (Delivery(to=(1, 2), weights=(0.5,)), "2 receivers have 1 weights"),
        (Delivery(to=(1,), weights=(-1.0,)), "its weights are"),
        (Delivery(to=(1,), fragments=(1,)), "its fragments are"),
        (Delivery(to=(1, 1)), "sends the same twice"),
        (Gathering(size=3), "its action is a Gathering"),
    ],
)
def test_what_cannot_be_delivered_is_refused(mail: Any, problem: str) -> None:
    here = Here(0, 7, Rule(), mailbox="newest")
    with pytest.raises(Unusable, match=problem):
        check_action(Action(1, mail=mail), here)


@pytest.mark.parametrize(
    ("action", "mailbox", "problem"),
    [
        (Action(1, 3), "sum", "its action is a Meeting"),
        (Action(1, 3, mail=Gathering(size=2)), "group", "a partner as well"),
        (Action(1, wait=1), "meet", "its class has no box"),
        (Action(1, wait=7), "sum", "it waits for 7 workers"),
        (Action(1, mail=Gathering(size=8)), "group", "joins a group of 8"),
        (Action(1, mail=Gathering(size=2, group=-1)), "group", "the number of its group"),
        (Action(1, mail=Delivery(to=(1,))), "sum", "has no weights"),
        (Action(1, mail=Delivery(to=(1, 2), weights=(0.5, 0.5))), "sum", "nothing of"),
    ],
)
def test_what_does_not_fit_the_class_is_refused(action: Any, mailbox: str, problem: str) -> None:
    with pytest.raises(Unusable, match=problem):
        check_action(action, Here(0, 7, PushSum(), mailbox=mailbox))


class Idle(Turns):
    """Everyone waits for somebody, and nobody delivers."""

    traits: ClassVar = Traits(mailbox="sum")

    def act(self, state: Count, worker: int, seen: Observation, *, turn: int) -> Any:
        return state, Action(state.steps, wait=1)


def test_workers_that_would_wait_for_ever_end_the_run() -> None:
    engine = LocalExecutor(prepare(settings(f"{HERE}:Idle")))
    with pytest.raises(RunError, match="all 7 workers wait for deliveries"):
        list(loop_of(engine).rounds())
    engine.close()


def test_boxes_are_in_the_memory_estimate() -> None:
    plain, added, newest = (
        prepare(settings(name)).memory.total for name in ("adpsgd", f"{HERE}:Idle", f"{HERE}:Swift")
    )
    size = 4 * prepare(settings("adpsgd")).layout.width
    assert added - plain >= 7 * size * 4  # the message, the one on its way; twice
    assert newest - added >= 7 * size * 2  # two boxes instead of one; twice


@pytest.mark.parametrize("method", METHODS[:5])
def test_a_network_refuses_boxes_and_groups_before_it_starts(method: str) -> None:
    experiment = settings(method)
    prepare(experiment)  # which makes the example importable
    with pytest.raises(ConfigError, match=r"Traits\(mailbox=.*workers of a network") as caught:
        check_network(experiment)
    assert caught.value.key == "algorithm.name"


@pytest.mark.slow
def test_workers_of_a_network_meet_with_a_rule_that_steers(tmp_path: Path) -> None:
    sources = "\n\n".join(inspect.getsource(part) for part in (Anchor, Anchored))
    (tmp_path / "anchored.py").write_text(IMPORTS + sources)
    tables = merge_tables(SIZE, {"algorithm": {"name": "anchored:Anchored"}, "workers": 3})
    tables = merge_tables(tables, {"cluster": {"min_workers": 3}, "rounds": 8})
    experiment = parse(tables, origins=Origins.of_file(tmp_path / "experiment.toml"))
    prepare(experiment)  # which makes the module importable
    check_network(experiment)
    with Cluster(experiment, tmp_path / "run", restart=False) as cluster:
        cluster.start()
        cluster.wait(120)
    assert check_invariants(tmp_path / "run", rounds=8) == []
