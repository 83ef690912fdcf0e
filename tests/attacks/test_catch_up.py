"""A worker that was away asks a peer for the committed model, and gets another one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from faults.in_process import experiment as scripted_experiment
from faults.in_process import in_process_federation, service_of, until
from faults.in_process import run as run_scenario
from fedhp.cluster.coordinator.committed_state import CommittedState
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.codec import ModelCodec, row_digest
from fedhp.cluster.protocol.guard import Envelopes
from fedhp.cluster.worker.rounds import _middle_of
from fedhp.engine.prepare import prepare
from fedhp.engine.sharded import LocalExecutor
from net.federation import experiment, run, start_federation
from net.test_worker_peers import in_place_of_one

FIRST = Attempt(1, 1, 1)


class Forger:
    """A worker with a good certificate that gives a model which no round made."""

    def __init__(self, codec: ModelCodec) -> None:
        self._codec = codec
        self._envelopes = Envelopes("w1")

    async def Pull(self, request: wire.PullRequest, context: Any) -> None:
        asked = request.envelope
        envelope = self._envelopes.make(run=asked.run, attempt=Attempt.from_wire(asked))
        row = np.full(self._codec.width, 0.25, dtype=np.float32)  # a good model in every other way
        for chunk in self._codec.encode(row).chunks(envelope):
            await context.write(chunk)


def test_a_forged_model_is_refused_by_its_digest_and_another_peer_is_asked(
    certificates: Path, tmp_path: Path
) -> None:
    settings = experiment()
    engine = LocalExecutor(prepare(settings))
    codec = ModelCodec(engine.prepared.layout)
    engine.close()

    async def test() -> None:
        async with (
            start_federation(settings, certificates, tmp_path) as federation,
            in_place_of_one(federation.coordinator, Forger(codec)),
        ):
            coordinator = federation.coordinator
            await federation.ready([0, 2])
            work = coordinator.work(
                0,
                peers=[],
                weights=[],
                own_weight=1.0,
                readers=[],
                committed=INITIAL,
                attempt=FIRST,
            )
            coordinator.order(0, work)
            digest = (await coordinator.report(0)).digest
            behind = wire.Order(epoch=1, committed=FIRST.to_wire())
            behind.catch_up.peers.extend([coordinator.peer(1), coordinator.peer(0)])
            behind.catch_up.digests.append(digest)
            coordinator.order(2, behind)
            await coordinator.until(lambda: FIRST in coordinator.stored["w2"])
            (caught,) = federation.events(2, "caught_up")
            assert caught["peer"] == "w0"
            (refused,) = federation.events(2, "refused")
            assert (refused["peer"], refused["reason"]) == ("w1", "digest")
            coordinator.finish(2, FIRST)
            assert await federation.running[2] == 0

    run(test())


def test_of_three_models_the_middle_one_is_taken(certificates: Path, tmp_path: Path) -> None:
    """One that a member has reported, and that no training makes, is left alone."""
    settings = experiment(workers=4)
    engine = LocalExecutor(prepare(settings))
    codec = ModelCodec(engine.prepared.layout)
    forged = row_digest(np.full(codec.width, 0.25, dtype=np.float32))
    engine.close()

    async def test() -> None:
        async with (
            start_federation(settings, certificates, tmp_path) as federation,
            in_place_of_one(federation.coordinator, Forger(codec)),
        ):
            coordinator = federation.coordinator
            await federation.ready([0, 2, 3])
            digests = {forged}
            for worker in (0, 3):
                work = coordinator.work(
                    worker,
                    peers=[],
                    weights=[],
                    own_weight=1.0,
                    readers=[],
                    committed=INITIAL,
                    attempt=FIRST,
                )
                coordinator.order(worker, work)
                digests.add((await coordinator.report(worker)).digest)
            behind = wire.Order(epoch=1, committed=FIRST.to_wire())
            behind.catch_up.peers.extend(map(coordinator.peer, (1, 0, 3)))
            behind.catch_up.digests.extend(sorted(digests))
            behind.catch_up.compare = 3
            coordinator.order(2, behind)
            await coordinator.until(lambda: FIRST in coordinator.stored["w2"])
            (caught,) = federation.events(2, "caught_up")
            assert caught["peer"] in ("w0", "w3")
            coordinator.finish(2, FIRST)
            assert await federation.running[2] == 0

    run(test())


def test_the_middle_of_some_models() -> None:
    values = {"a": 9, "b": 1, "c": 2}
    rows = {name: np.full(4, value, dtype=np.float32) for name, value in values.items()}
    assert _middle_of(rows) == "c"
    assert _middle_of({"a": rows["a"], "b": rows["b"]}) == "a"


def test_no_member_decides_from_whom_others_catch_up(certificates: Path, tmp_path: Path) -> None:
    settings = scripted_experiment(workers=4, rounds=100_000, exchange={"robust": "median"})

    async def scenario() -> None:
        async with in_process_federation(settings, certificates, tmp_path) as federation:
            leader = await federation.start_coordinator()
            for name in ("w0", "w1", "w2", "w3"):
                federation.start_worker(name)
            await until(
                lambda: leader.round_index >= 1 and len(leader.attempts.digests.by_worker) == 4
            )
            for name in ("w0", "w1", "w2", "w3"):
                await federation.stop_worker(name)
            members, planner = leader.conductor.members, leader.planning.planner
            assert planner is not None
            for other in (0, 2, 3):  # worker 1 says that it is very fast
                planner.links.learn(other, 1, bits=1e9, seconds=1e-7, round_index=1)
            first: set[str] = set()
            for index in range(2, 40):
                committed = leader.conductor.committed = Attempt(1, index, 1)
                now = time.monotonic()
                for member in members.values():
                    member.models, member.left, member.seen = (committed,), False, now
                members[0].models = ()
                order = service_of(leader)._order(members[0], now)
                first.add(order.catch_up.peers[0].name)
                assert {peer.name for peer in order.catch_up.peers} == {"w1", "w2", "w3"}
                assert order.catch_up.compare == 3
            assert first == {"w1", "w2", "w3"}

            # Where most have the same model, another one is not a model of the round.
            common, forged = bytes(32), bytes([7] * 32)
            leader.attempts.digests.by_worker = {1: forged, 2: common, 3: common}
            order = service_of(leader)._order(members[0], now)
            assert {peer.name for peer in order.catch_up.peers} == {"w2", "w3"}
            assert list(order.catch_up.digests) == [common]

    run_scenario(scenario())


def test_the_coordinator_names_the_digests_that_the_round_committed(
    certificates: Path, tmp_path: Path
) -> None:
    settings = scripted_experiment(rounds=100_000)

    async def scenario() -> None:
        async with in_process_federation(settings, certificates, tmp_path) as federation:
            leader = await federation.start_coordinator()
            for name in ("w0", "w1", "w2"):
                federation.start_worker(name)
            await until(lambda: leader.round_index >= 2)
            for name in ("w0", "w1", "w2"):
                await federation.stop_worker(name)
            await federation.stop_coordinator()

            after = await federation.start_coordinator()  # as another one that takes over
            committed, reported = after.conductor.committed, after.attempts.digests
            assert len(reported.by_worker) == 3
            assert (
                CommittedState.from_bytes(after.committed_state().to_bytes()).digests
                == reported.by_worker
            )
            for name in ("w0", "w1"):
                federation.start_worker(name)
            members = after.conductor.members
            await until(lambda: not members[0].left and not members[1].left)
            members[0].models, members[1].models = (), (committed,)
            order = service_of(after)._order(members[0], time.monotonic())
            assert [peer.name for peer in order.catch_up.peers] == ["w1"]
            assert set(order.catch_up.digests) == set(reported.by_worker.values())

            # Who has a model of the round that was never reported is not asked, unless it says
            # which one, once.
            own = reported.by_worker.pop(1)
            members[2].models, members[2].left, members[2].seen = (
                (committed,),
                False,
                members[1].seen,
            )
            order = service_of(after)._order(members[0], time.monotonic())
            assert [peer.name for peer in order.catch_up.peers] == ["w2"]
            reported.took_part = frozenset({1})
            for digest in (own, bytes(32)):
                envelope = Envelopes("w1").make(run=after.run, attempt=committed)
                reported.late_report(members[1], wire.RoundReport(envelope=envelope, digest=digest))
            assert reported.by_worker[1] == own
            stranger = wire.RoundReport(envelope=envelope, digest=own)
            del reported.by_worker[0]
            reported.late_report(members[0], stranger)  # it had no part in the round
            assert 0 not in reported.by_worker
            order = service_of(after)._order(members[0], time.monotonic())
            assert {peer.name for peer in order.catch_up.peers} == {"w1", "w2"}

    run_scenario(scenario())
