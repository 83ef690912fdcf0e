"""What passes between two workers: swaps, poisoned models, strangers; and what a worker keeps."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhp.cli import call as main
from fedhp.cluster import wire_pb2 as wire
from fedhp.cluster.codec import ModelCodec
from fedhp.cluster.guard import Attempt, Envelopes
from fedhp.cluster.identity import load_identity
from fedhp.cluster.keep import INITIAL, Keep, Kept, last_stands, to_wire
from fedhp.cluster.services import call, handler
from fedhp.cluster.share import experiment_of, read_own, share_of
from fedhp.cluster.tls import open_channel, server_credentials
from fedhp.config import Experiment
from fedhp.engine.carrier import Turn
from fedhp.engine.local import LocalEngine
from fedhp.engine.prepare import prepare
from fedhp.errors import DataError, FedhpError
from fedhp.learn.params import layout_of
from fedhp.learn.task import initial_model
from fedhp.seeds import Purpose, generator
from net.fake_coordinator import FakeCoordinator, make_certificates
from net.federation import digests, experiment, federation, final_model, run

FIRST = Attempt(1, 1, 1)
START = 200.0  # s: a new process on a machine that is busy with other things
RUN = "0123456789abcdef" * 2


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("net") / "certs", 3)


def acting() -> Experiment:
    return experiment(workers=2, algorithm={"name": "adpsgd"})


def act(boss: FakeCoordinator, worker: int, *, turn: int, partner: int) -> None:
    order = wire.Order(epoch=1, committed=to_wire(INITIAL))
    order.act.CopyFrom(
        wire.Act(round=1, turn=turn, local_steps=3, learning_rate=0.1, deadline=20.0)
    )
    order.act.partner.CopyFrom(boss.peer(partner))
    boss.order(worker, order)


def test_a_swap_leaves_both_with_the_mean(certificates: Path, tmp_path: Path) -> None:
    settings = acting()
    engine = LocalEngine(prepare(settings))
    engine.fly()
    engine.snapshot(0)
    engine.train_snapshots({0: Turn(1, 3, 0.1)})
    engine.apply(0)
    before = engine.shard.models.mean(dim=0).numpy()
    engine.average(0, 1)
    assert digests(engine)[0] == digests(engine)[1]

    async def test() -> None:
        async with federation(settings, certificates, tmp_path) as there:
            await there.ready([0, 1])
            act(there.boss, 0, turn=0, partner=1)
            report = await there.boss.report(0)
            assert report.digest == digests(engine)[0]
            (link,) = report.links
            assert (link.worker, link.lost) == (1, "")
            assert link.distance > 0
            for worker in range(2):
                there.boss.finish(worker, INITIAL)
                assert await there.running[worker] == 0

    run(test())
    first, second = (final_model(tmp_path / f"w{worker}") for worker in range(2))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(np.sort(first), np.sort(before), rtol=1e-6, atol=1e-7)
    engine.close()


def test_two_that_swap_with_each_other_at_once_both_get_through(
    certificates: Path, tmp_path: Path
) -> None:
    async def test() -> None:
        async with federation(acting(), certificates, tmp_path) as there:
            await there.ready([0, 1])
            for turn in range(4):
                for worker in range(2):
                    act(there.boss, worker, turn=turn, partner=1 - worker)
                for worker in range(2):
                    (link,) = (await there.boss.report(worker)).links
                    assert not link.lost

    run(test())


def test_a_partner_that_is_not_there_is_a_lost_link(certificates: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with federation(acting(), certificates, tmp_path) as there:
            await there.ready([0])
            act(there.boss, 0, turn=0, partner=1)
            (link,) = (await there.boss.report(0)).links
            assert link.lost == "unreachable"

    run(test())


class Poisoner:
    """A worker with a good certificate that serves a model of NaN."""

    def __init__(self, codec: ModelCodec) -> None:
        self._codec = codec
        self._envelopes = Envelopes("w1")

    async def Pull(self, request: wire.PullRequest, context: Any) -> None:
        row = np.full(self._codec.width, np.nan, dtype=np.float32)
        asked = request.envelope
        envelope = self._envelopes.make(
            run=asked.run, epoch=asked.epoch, round_index=asked.round, attempt=asked.attempt
        )
        # The public way refuses to send such a model.
        for chunk in self._codec.chunks(self._codec._encoded("raw", [row]), envelope):
            await context.write(chunk)

    async def Swap(self, chunks: AsyncIterator[wire.Chunk], context: Any) -> None:
        raise NotImplementedError


@contextlib.asynccontextmanager
async def poisoner(boss: FakeCoordinator) -> AsyncIterator[None]:
    """It stands where worker 1 would be."""
    import grpc.aio

    prepared = prepare(boss.experiment)
    model = initial_model(prepared.task, prepared.experiment.seed)
    codec = ModelCodec(layout_of(model, batch_norm="mixed"))
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler("Peer", Poisoner(codec)),))
    identity = load_identity(boss.certificates, "w1")
    port = server.add_secure_port("127.0.0.1:0", server_credentials(identity))
    await server.start()
    boss.addresses["w1"] = f"127.0.0.1:{port}"
    yield
    await server.stop(grace=None)


def test_a_poisoned_model_is_refused_and_its_sender_shut_out(
    certificates: Path, tmp_path: Path
) -> None:
    settings = experiment()
    engine = LocalEngine(prepare(settings))
    engine.train(np.full(3, 3), round_index=1, learning_rate=0.1)
    engine.shard.mixed.copy_(engine.shard.after)
    engine.advance()

    async def test() -> None:
        async with federation(settings, certificates, tmp_path) as there, poisoner(there.boss):
            await there.ready([0])
            lost = []
            for number in range(1, 7):
                order = there.boss.work(
                    0,
                    peers=[1],
                    weights=[0.4],
                    own_weight=0.6,
                    readers=[],
                    committed=INITIAL,
                    attempt=Attempt(1, 1, number),
                )
                there.boss.order(0, order)
                report = await there.boss.report(0)
                assert report.digest == digests(engine)[0]  # its own model, bit for bit
                lost += [link.lost for link in report.links]
            assert lost == 5 * ["refused: nan"] + ["refused: quarantined"]
            shut_out = [each["quarantined"] for each in there.events(0, "refused")]
            assert shut_out == [False, False, False, False, True]

    run(test())
    engine.close()


def test_models_go_to_the_readers_of_the_order_alone(certificates: Path, tmp_path: Path) -> None:
    import grpc.aio

    async def test() -> None:
        async with federation(experiment(), certificates, tmp_path) as there:
            await there.ready([0])
            order = there.boss.work(
                0,
                peers=[],
                weights=[],
                own_weight=1.0,
                readers=[1],
                committed=INITIAL,
                attempt=FIRST,
            )
            there.boss.order(0, order)
            await there.boss.report(0)
            assert await refusal(there.boss, "w1", FIRST) == ""
            code = await refusal(there.boss, "w2", FIRST)
            assert code.startswith("role: ")
            assert (await refusal(there.boss, "w1", FIRST, run="f" * 32)).startswith("run: ")
            assert (await refusal(there.boss, "w1", Attempt(1, 1, 2))).startswith("patience: ")
            early = await refusal(there.boss, "w1", Attempt(1, 9, 1), wanted=wire.COMMITTED)
            assert early.startswith("stand: ")
            strikes = [(each["peer"], each["reason"]) for each in there.events(0, "refused")]
            assert strikes == [("w2", "role"), ("w1", "run")]

    async def refusal(
        boss: FakeCoordinator,
        name: str,
        attempt: Attempt,
        *,
        run: str = RUN,
        wanted: wire.Wanted = wire.TRAINED,
    ) -> str:
        """What worker 0 says to a pull; empty if it gives the model."""
        request = wire.PullRequest(
            envelope=Envelopes(name).make(
                run=run,
                epoch=attempt.epoch,
                round_index=attempt.round_index,
                attempt=attempt.number,
            ),
            wanted=wanted,
            stand=to_wire(attempt),
            patience=0.05,
        )
        identity = load_identity(boss.certificates, name)
        async with open_channel(identity, boss.addresses["w0"], name="w0") as channel:
            try:
                chunks = [chunk async for chunk in call(channel, "Peer", "Pull")(request)]
            except grpc.aio.AioRpcError as error:
                return str(error.details())
            assert chunks[-1].digest
            return ""

    run(test())


def test_a_worker_whose_coordinator_is_nowhere_says_so(certificates: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with federation(experiment(), certificates, tmp_path) as there:
            there.boss.address = "127.0.0.1:1"
            with pytest.raises(FedhpError, match="nobody listens there"):
                await asyncio.wait_for(there.start(0, give_up=0.3), 20)
            there.running.clear()

    run(test())


def test_a_model_that_the_disk_has_damaged_is_not_taken(tmp_path: Path) -> None:
    keep = Keep(tmp_path, RUN)
    models = {
        Attempt(1, index, 1): Kept(np.full(7, index, np.float32), np.arange(2)) for index in (1, 2)
    }
    for stand, model in models.items():
        keep.write(stand, model, beside=Attempt(1, 1, 1))
    keep.write(Attempt(1, 2, 2), models[Attempt(1, 2, 1)], beside=Attempt(1, 1, 1))
    assert keep.stands() == [Attempt(1, 1, 1), Attempt(1, 2, 2)]
    assert last_stands(tmp_path) == (RUN, keep.stands())
    file = next((tmp_path / RUN).glob("round-2-*"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    again = Keep(tmp_path, RUN)
    again.load(width=7, counters=2)
    assert again.stands() == [Attempt(1, 1, 1)]
    kept = again.get(Attempt(1, 1, 1))
    assert kept is not None
    np.testing.assert_array_equal(kept.row, models[Attempt(1, 1, 1)].row)
    other = Keep(tmp_path, RUN)
    other.load(width=8, counters=2)
    assert other.stands() == []


def test_the_command_takes_part_and_leaves_when_it_is_told_to(
    certificates: Path, tmp_path: Path
) -> None:
    async def test() -> None:
        async with FakeCoordinator(experiment(), certificates) as boss:
            arguments = ["worker", "--coordinator", boss.address, "--name", "w0"]
            arguments += ["--certs", str(certificates), "--state", str(tmp_path / "w0")]
            arguments += ["--listen", "127.0.0.1:0"]
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "fedhp", *arguments, stdout=PIPE, stderr=PIPE
            )
            try:
                await follow(boss, process)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()

    async def follow(boss: FakeCoordinator, process: asyncio.subprocess.Process) -> None:
        await boss.until(lambda: "w0" in boss.stands, within=START)
        order = boss.work(
            0, peers=[], weights=[], own_weight=1.0, readers=[], committed=INITIAL, attempt=FIRST
        )
        boss.order(0, order)
        await boss.report(0)
        assert process.stdout is not None
        said = (await process.stdout.readline()).decode()
        assert said.startswith("round 1: 3 steps, ")
        assert ", accuracy 0." in said
        process.terminate()
        _, errors = await asyncio.wait_for(process.communicate(), START)
        assert process.returncode == 130
        assert "w0: left the run" in errors.decode()
        assert boss.left == {"w0": "it was stopped"}

    run(test())


def test_the_command_names_a_certificate_that_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["worker", "--coordinator", "127.0.0.1:1", "--name", "w0"]
    assert main([*given, "--certs", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def own_file(folder: Path, shape: tuple[int, ...], classes: int) -> Path:
    rng = generator(0, Purpose.HOLDOUT)
    path = folder / "own.npz"
    np.savez(path, x=rng.random((40, *shape)), y=np.arange(40) % classes)
    return path


def test_a_file_of_its_own_is_all_a_worker_trains_on(tmp_path: Path) -> None:
    text = "workers = 3\n[cluster]\n"
    own = read_own(own_file(tmp_path, (8, 8), 4))
    prepared, holding = share_of(experiment_of(text), 1, own=own)
    assert holding.dataset.train_inputs.shape == (40, 1, 8, 8)
    assert holding.parts[0].tolist() == list(range(40))
    assert len(holding.dataset.test_inputs) == len(prepared.dataset.test_inputs)
    assert (prepared.experiment.training.kernel, prepared.experiment.training.mixing) == (
        "worker",
        "ordered",
    )


@pytest.mark.parametrize(
    ("shape", "classes", "words"),
    [((9, 8), 4, "shape"), ((8, 8), 11, "class 10")],
)
def test_a_file_that_does_not_fit_is_refused(
    shape: tuple[int, ...], classes: int, words: str, tmp_path: Path
) -> None:
    own = read_own(own_file(tmp_path, shape, classes))
    with pytest.raises(DataError, match=words):
        share_of(experiment_of("workers = 3\n"), 0, own=own)
