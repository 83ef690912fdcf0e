"""A worker that was away asks a peer for the committed model, and gets another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from faults.in_process import experiment as scripted_experiment
from faults.in_process import in_process_federation, until
from faults.in_process import run as run_scenario
from fedhp.cluster.coordinator.committed_state import CommittedState
from fedhp.cluster.coordinator.handlers import CoordinatorHandlers
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.codec import ModelCodec
from fedhp.cluster.protocol.guard import Envelopes
from fedhp.cluster.protocol.wire_pb2_grpc import PeerServicer
from fedhp.engine.local import LocalExecutor
from fedhp.engine.prepare import prepare
from net.federation import experiment, run, start_federation
from net.test_worker_peers import in_place_of_one

FIRST = Attempt(1, 1, 1)


class Forger(PeerServicer):
    """A worker with a good certificate that gives a model which no round made."""

    def __init__(self, codec: ModelCodec) -> None:
        self._codec = codec
        self._envelopes = Envelopes("w1")

    async def Pull(self, request: wire.PullRequest, context: Any) -> None:
        asked = request.envelope
        envelope = self._envelopes.make(run=asked.run, attempt=Attempt.from_envelope(asked))
        row = np.full(self._codec.width, 0.25, dtype=np.float32)  # a good model in every other way
        for chunk in self._codec.chunks(self._codec.encode(row), envelope):
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
            committed = after.conductor.committed
            assert len(after.digests) == 3
            assert (
                CommittedState.from_bytes(after.committed_state().to_bytes()).digests
                == after.digests
            )
            for name in ("w0", "w1"):
                federation.start_worker(name)
            members = after.conductor.members
            await until(lambda: not members[0].left and not members[1].left)
            members[0].models, members[1].models = (), (committed,)
            order = CoordinatorHandlers(after)._order(members[0])
            assert [peer.name for peer in order.catch_up.peers] == ["w1"]
            assert set(order.catch_up.digests) == set(after.digests.values())

            # Who has a model of the round that was never reported is not asked, unless it says
            # which one, once.
            own = after.digests.pop(1)
            members[2].models, members[2].left, members[2].seen = (
                (committed,),
                False,
                members[1].seen,
            )
            order = CoordinatorHandlers(after)._order(members[0])
            assert [peer.name for peer in order.catch_up.peers] == ["w2"]
            after._took_part = frozenset({1})
            for digest in (own, bytes(32)):
                envelope = Envelopes("w1").make(run=after.run, attempt=committed)
                after.late_report(members[1], wire.RoundReport(envelope=envelope, digest=digest))
            assert after.digests[1] == own
            stranger = wire.RoundReport(envelope=envelope, digest=own)
            del after.digests[0]
            after.late_report(members[0], stranger)  # it had no part in the round
            assert 0 not in after.digests
            order = CoordinatorHandlers(after)._order(members[0])
            assert {peer.name for peer in order.catch_up.peers} == {"w1", "w2"}

    run_scenario(scenario())
