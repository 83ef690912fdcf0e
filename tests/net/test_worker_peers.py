"""What passes between two workers: swaps, poisoned models, readers and strangers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np

from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.codec import ModelCodec
from fedhp.cluster.protocol.guard import Envelopes
from fedhp.cluster.protocol.stubs import PeerStub
from fedhp.cluster.security.identity import load_identity
from fedhp.cluster.security.tls import open_channel, server_credentials
from fedhp.config import Experiment
from fedhp.engine.executor import LocalTraining
from fedhp.engine.prepare import prepare
from fedhp.engine.sharded import LocalExecutor
from net.fake_coordinator import SOON, FakeCoordinator
from net.federation import digests, experiment, final_model, run, start_federation
from net.servicers import add_service

FIRST = Attempt(1, 1, 1)
RUN = "0123456789abcdef" * 2


def acting() -> Experiment:
    return experiment(workers=2, algorithm={"name": "adpsgd"})


def act(coordinator: FakeCoordinator, worker: int, *, turn: int, partner: int) -> None:
    order = wire.Order(epoch=1, committed=INITIAL.to_wire())
    order.act.CopyFrom(
        wire.Act(round=1, turn=turn, local_steps=3, learning_rate=0.1, deadline=20.0)
    )
    order.act.partner.CopyFrom(coordinator.peer(partner))
    coordinator.order(worker, order)


def test_a_swap_leaves_both_with_the_mean(certificates: Path, tmp_path: Path) -> None:
    settings = acting()
    engine = LocalExecutor(prepare(settings))
    engine.keep()
    engine.snapshot(0)
    engine.train_snapshots({0: LocalTraining(1, 3, 0.1)})
    engine.apply(0)
    before = engine.shard.rows.models.mean(dim=0).numpy()
    engine.average(0, 1)
    assert digests(engine)[0] == digests(engine)[1]

    async def test() -> None:
        async with start_federation(settings, certificates, tmp_path) as federation:
            await federation.ready([0, 1])
            act(federation.coordinator, 0, turn=0, partner=1)
            report = await federation.coordinator.report(0)
            assert report.digest == digests(engine)[0]
            (link,) = report.links
            assert (link.worker, link.lost) == (1, "")
            assert link.distance > 0
            for worker in range(2):
                federation.coordinator.finish(worker, INITIAL)
                assert await federation.running[worker] == 0

    run(test())
    first, second = (final_model(tmp_path / f"w{worker}") for worker in range(2))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(np.sort(first), np.sort(before), rtol=1e-6, atol=1e-7)
    engine.close()


def test_two_that_swap_with_each_other_at_once_both_get_through(
    certificates: Path, tmp_path: Path
) -> None:
    async def test() -> None:
        async with start_federation(acting(), certificates, tmp_path) as federation:
            await federation.ready([0, 1])
            for turn in range(4):
                for worker in range(2):
                    act(federation.coordinator, worker, turn=turn, partner=1 - worker)
                for worker in range(2):
                    (link,) = (await federation.coordinator.report(worker)).links
                    assert not link.lost

    run(test())


def test_a_partner_that_is_not_there_is_a_lost_link(
    certificates: Path, tmp_path: Path, log_lines: list[str]
) -> None:
    """And the log has one line when the link breaks and one when it works again."""

    def logged() -> list[str]:
        return [line for line in log_lines if line.startswith("peer ")]

    async def test() -> None:
        async with start_federation(acting(), certificates, tmp_path) as federation:
            await federation.ready([0])
            for turn in (0, 1):
                act(federation.coordinator, 0, turn=turn, partner=1)
                (link,) = (await federation.coordinator.report(0)).links
                assert link.lost == "unreachable"
            assert logged() == ["peer lost"]
            await federation.ready([1])
            for turn in (2, 3):
                act(federation.coordinator, 0, turn=turn, partner=1)
                (link,) = (await federation.coordinator.report(0)).links
                assert not link.lost
            assert logged() == ["peer lost", "peer is back"]

    run(test())


class Crossing:
    """A partner that itself begins a swap before it answers: both ask each other at once."""

    def __init__(self, coordinator: FakeCoordinator, codec: ModelCodec) -> None:
        self._coordinator = coordinator
        self._codec = codec
        self.refusal = ""

    async def Swap(self, chunks: AsyncIterator[wire.Chunk], context: Any) -> None:
        sent = [chunk async for chunk in chunks]
        first = sent[0].envelope
        mine = Envelopes("w1")

        def envelope() -> wire.Envelope:
            return mine.make(run=first.run, attempt=Attempt.from_wire(first))

        model = self._codec.encode(np.zeros(self._codec.width, np.float32))
        identity = load_identity(self._coordinator.certificates, "w1")
        async with open_channel(identity, self._coordinator.addresses["w0"], name="w0") as channel:
            mine_too = model.chunks(envelope())
            swap = PeerStub(channel).Swap(mine_too)
            try:
                _ = [chunk async for chunk in swap]
            except grpc_error() as error:
                self.refusal = str(error.details())
        for chunk in model.chunks(envelope()):
            await context.write(chunk)


def test_a_model_that_was_sent_to_be_averaged_does_not_change_meanwhile(
    certificates: Path, tmp_path: Path
) -> None:
    settings = acting()
    engine = LocalExecutor(prepare(settings))
    engine.keep()
    engine.snapshot(0)
    engine.train_snapshots({0: LocalTraining(1, 3, 0.1)})
    engine.apply(0)
    engine.shard.turns.average(0, np.zeros(engine.prepared.layout.mixed, np.float32))

    async def test() -> None:
        async with start_federation(settings, certificates, tmp_path) as federation:
            crossing = Crossing(federation.coordinator, ModelCodec(engine.prepared.layout))
            async with in_place_of_one(federation.coordinator, crossing):
                await federation.ready([0])
                act(federation.coordinator, 0, turn=0, partner=1)
                report = await federation.coordinator.report(0)
                assert crossing.refusal.startswith("busy: ")
                assert [link.lost for link in report.links] == [""]
                assert report.digest == digests(engine)[0]

    run(test())
    engine.close()


def grpc_error() -> Any:
    import grpc.aio  # after fedhp.cluster, which tells it to speak TLS 1.3 alone

    return grpc.aio.AioRpcError


class Poisoner:
    """A worker with a good certificate that serves a model of NaN."""

    def __init__(self, codec: ModelCodec) -> None:
        self._codec = codec
        self._envelopes = Envelopes("w1")

    async def Pull(self, request: wire.PullRequest, context: Any) -> None:
        row = np.full(self._codec.width, np.nan, dtype=np.float32)
        asked = request.envelope
        envelope = self._envelopes.make(run=asked.run, attempt=Attempt.from_wire(asked))
        # The public way refuses to send such a model.
        for chunk in self._codec._encoded("raw", [row]).chunks(envelope):
            await context.write(chunk)


@contextlib.asynccontextmanager
async def in_place_of_one(coordinator: FakeCoordinator, service: object) -> AsyncIterator[None]:
    """A service that takes the place of worker 1, with its certificate.

    Calls that it has no method for are answered as gRPC answers what it does not know.
    """
    import grpc.aio

    server = grpc.aio.server()
    add_service(server, service)
    identity = load_identity(coordinator.certificates, "w1")
    port = server.add_secure_port("127.0.0.1:0", server_credentials(identity))
    await server.start()
    coordinator.addresses["w1"] = f"127.0.0.1:{port}"
    try:
        yield
    finally:
        await server.stop(grace=None)


def test_a_poisoned_model_is_refused_and_its_sender_quarantined(
    certificates: Path, tmp_path: Path
) -> None:
    settings = experiment()
    engine = LocalExecutor(prepare(settings))
    engine.train(np.full(3, 3), round_index=1, learning_rate=0.1)
    engine.shard.rows.mixed.copy_(engine.shard.rows.after)
    engine.advance()

    async def test() -> None:
        async with (
            start_federation(settings, certificates, tmp_path) as federation,
            in_place_of_one(federation.coordinator, Poisoner(ModelCodec(engine.prepared.layout))),
        ):
            await federation.ready([0])
            lost = []
            for number in range(1, 7):
                order = federation.coordinator.work(
                    0,
                    peers=[1],
                    weights=[0.4],
                    own_weight=0.6,
                    readers=[],
                    committed=INITIAL,
                    attempt=Attempt(1, 1, number),
                )
                federation.coordinator.order(0, order)
                report = await federation.coordinator.report(0)
                assert report.digest == digests(engine)[0]  # its own model, bit for bit
                lost += [link.lost for link in report.links]
            assert lost == 5 * ["refused: nan"] + ["refused: quarantined"]
            quarantined = [event["quarantined"] for event in federation.events(0, "refused")]
            assert quarantined == [False, False, False, False, True]

    run(test())
    engine.close()


def test_a_worker_that_is_late_asks_nobody_and_keeps_its_good_name(
    certificates: Path, tmp_path: Path
) -> None:
    """One that was suspended, or is slow, may miss the exchange in any number of rounds."""

    async def test() -> None:
        async with start_federation(experiment(), certificates, tmp_path) as federation:
            await federation.ready([0, 1])
            coordinator = federation.coordinator
            for number in range(1, 8):
                late = {"exchange_deadline": 1e-6 if number < 7 else SOON}
                attempt = Attempt(1, 1, number)
                for worker in range(2):
                    order = coordinator.work(
                        worker,
                        peers=[] if worker else [1],
                        weights=[] if worker else [0.4],
                        own_weight=1.0 if worker else 0.6,
                        readers=[0] if worker else [],
                        committed=INITIAL,
                        attempt=attempt,
                        changes={} if worker else late,
                    )
                    coordinator.order(worker, order)
                (link,) = (await coordinator.report(0)).links
                await coordinator.report(1)
                assert link.lost == ("late" if number < 7 else "")
            assert not federation.events(1, "refused")

    run(test())


def test_models_go_to_the_readers_of_the_order_alone(certificates: Path, tmp_path: Path) -> None:
    import grpc.aio

    async def test() -> None:
        async with start_federation(experiment(), certificates, tmp_path) as federation:
            await federation.ready([0])
            order = federation.coordinator.work(
                0,
                peers=[],
                weights=[],
                own_weight=1.0,
                readers=[1],
                committed=INITIAL,
                attempt=FIRST,
            )
            federation.coordinator.order(0, order)
            await federation.coordinator.report(0)
            assert await refusal(federation.coordinator, "w1", FIRST) == ""
            code = await refusal(federation.coordinator, "w2", FIRST)
            assert code.startswith("role: ")
            assert (await refusal(federation.coordinator, "w1", FIRST, run="f" * 32)).startswith(
                "run: "
            )
            assert (await refusal(federation.coordinator, "w1", Attempt(1, 1, 2))).startswith(
                "patience: "
            )
            early = await refusal(
                federation.coordinator, "w1", Attempt(1, 9, 1), wanted=wire.COMMITTED
            )
            assert early.startswith("stand: ")
            strikes = [
                (event["peer"], event["reason"]) for event in federation.events(0, "refused")
            ]
            assert strikes == [("w2", "role"), ("w1", "run")]

    async def refusal(
        coordinator: FakeCoordinator,
        name: str,
        attempt: Attempt,
        *,
        run: str = RUN,
        wanted: wire.Wanted = wire.TRAINED,
    ) -> str:
        """What worker 0 says to a pull; empty if it gives the model."""
        request = wire.PullRequest(
            envelope=Envelopes(name).make(run=run, attempt=attempt),
            wanted=wanted,
            stand=attempt.to_wire(),
            patience=0.05,
        )
        identity = load_identity(coordinator.certificates, name)
        async with open_channel(identity, coordinator.addresses["w0"], name="w0") as channel:
            try:
                chunks = [chunk async for chunk in PeerStub(channel).Pull(request)]
            except grpc.aio.AioRpcError as error:
                return str(error.details())
            assert chunks[-1].digest
            return ""

    run(test())
