"""Rounds of real workers: the bits of the simulation, lost peers, refusals, restarts."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.engine.local import LocalEngine
from fedhp.engine.prepare import prepare
from fedhp.types import PeerScoring
from net.fake_coordinator import FakeCoordinator, make_certificates
from net.federation import Federation, digests, experiment, federation, line, run

FIRST = Attempt(1, 1, 1)
ALONE: dict[str, Any] = {"peers": [], "weights": [], "own_weight": 1.0, "readers": []}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("net") / "certs", 3)


def alone(
    boss: FakeCoordinator, worker: int, attempt: Attempt, committed: Attempt = INITIAL
) -> None:
    """Order a worker to work with nobody."""
    boss.order(worker, boss.work(worker, committed=committed, attempt=attempt, **ALONE))


def trained(engine: LocalEngine, rounds: int = 1) -> None:
    for round_index in range(1, rounds + 1):
        engine.train(np.full(3, 3), round_index=round_index, learning_rate=0.1)


def test_three_rounds_have_the_bits_of_the_simulation(certificates: Path, tmp_path: Path) -> None:
    settings, exchange = experiment(), line(3)
    engine = LocalEngine(prepare(settings))

    async def test() -> None:
        async with federation(settings, certificates, tmp_path) as there:
            await there.ready(range(3))
            committed = INITIAL
            for round_index in (1, 2, 3):
                attempt = Attempt(1, round_index, 1)
                there.boss.mixing(
                    exchange, committed=committed, attempt=attempt, changes={"estimate": True}
                )
                await compare(there, round_index)
                committed = attempt
            for worker in range(3):
                there.boss.finish(worker, committed)
                assert await there.running[worker] == 0
                assert (tmp_path / f"w{worker}" / "model.safetensors").exists()
                stands = [each["round"] for each in there.events(worker, "advanced")]
                assert stands == [1, 2, 3]

    async def compare(there: Federation, round_index: int) -> None:
        steps = np.full(3, 3)
        training = engine.train(steps, round_index=round_index, learning_rate=0.1)
        estimates = engine.estimate(steps > 0, round_index=round_index)
        mixed = engine.exchange(exchange, round_index=round_index)
        engine.advance()
        tested = engine.evaluate()
        apart = dict(zip(map(tuple, mixed.links.tolist()), mixed.distance, strict=True))
        for worker in range(3):
            report = await there.boss.report(worker)
            assert report.digest == digests(engine)[worker]
            assert report.train_loss == training.loss[worker]
            assert report.update_norm == training.update_norm[worker]
            assert report.smoothness == estimates.smoothness[worker]
            assert report.gradient_variance == estimates.gradient_variance[worker]
            assert report.accuracy == tested.accuracy[worker]
            assert report.images == 50
            for link in report.links:
                pair = (min(worker, link.worker), max(worker, link.worker))
                assert link.distance == apart[pair]
                assert link.bytes > 4 * engine.prepared.layout.mixed
                assert not link.lost

    run(test())
    engine.close()


def test_scoring_has_the_bits_of_the_simulation(certificates: Path, tmp_path: Path) -> None:
    settings = experiment(algorithm={"name": "pens"})
    engine = LocalEngine(prepare(settings))
    peers = [[1, 2], [0, 2], [0, 1]]
    trained(engine)
    scoring = PeerScoring(np.array(peers), keep=1, samples=20, cost_per_candidate=0.1)
    chosen = engine.exchange(scoring, round_index=1).selected
    engine.advance()

    async def test() -> None:
        async with federation(settings, certificates, tmp_path) as there:
            await there.ready(range(3))
            for worker in range(3):
                order = there.boss.work(
                    worker,
                    peers=peers[worker],
                    weights=[],
                    own_weight=0.0,
                    readers=peers[worker],
                    committed=INITIAL,
                    attempt=FIRST,
                    changes={"keep": 1, "samples": 20},
                )
                there.boss.order(worker, order)
            for worker in range(3):
                report = await there.boss.report(worker)
                assert list(report.selected) == chosen[worker].tolist()
                assert report.digest == digests(engine)[worker]
                assert {link.worker for link in report.links} == set(peers[worker])

    run(test())
    engine.close()


def test_the_weight_of_a_lost_neighbor_goes_to_the_own_model(
    certificates: Path, tmp_path: Path
) -> None:
    settings = experiment()
    engine = LocalEngine(prepare(settings))
    trained(engine)
    rows, width = engine.shard.after, engine.prepared.layout.mixed
    expected = torch.mul(rows[0, :width], 0.5 + 0.2).add_(rows[1, :width], alpha=0.3)

    async def test() -> None:
        async with federation(settings, certificates, tmp_path) as there:
            await there.ready([0, 1])
            order = there.boss.work(
                0,
                peers=[1, 2],  # 2 is not there
                weights=[0.3, 0.2],
                own_weight=0.5,
                readers=[],
                committed=INITIAL,
                attempt=FIRST,
            )
            there.boss.order(0, order)
            theirs = {**ALONE, "readers": [0]}
            there.boss.order(1, there.boss.work(1, committed=INITIAL, attempt=FIRST, **theirs))
            report = await there.boss.report(0)
            assert {link.worker: link.lost for link in report.links} == {1: "", 2: "unreachable"}
            assert report.digest == hashlib.sha256(expected.numpy().tobytes()).digest()

    run(test())
    engine.close()


def test_nobody_waits_for_a_worker_that_is_gone(certificates: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with federation(experiment(), certificates, tmp_path) as there:
            await there.ready([0, 1])
            order = there.boss.work(
                0,
                peers=[1],  # it is there, but has no order, so it will never be ready
                weights=[0.5],
                own_weight=0.5,
                readers=[],
                committed=INITIAL,
                attempt=FIRST,
            )
            there.boss.order(0, order)
            await there.boss.until(lambda: "receiving" in there.boss.phases["w0"])
            there.boss.gone = [1]
            report = await there.boss.report(0)
            assert [link.lost for link in report.links] == ["gone"]
            assert np.isnan(report.links[0].distance)

    run(test())


def test_links_without_a_model_are_probed(certificates: Path, tmp_path: Path) -> None:
    async def test() -> None:
        settings = experiment(cluster={"probe_bytes": 3_000_000})
        async with federation(settings, certificates, tmp_path) as there:
            await there.ready([0, 1])
            order = there.boss.work(0, committed=INITIAL, attempt=FIRST, **ALONE)
            order.work.probes.extend([there.boss.peer(1), there.boss.peer(2)])
            there.boss.order(0, order)
            near, far = (await there.boss.report(0)).links
            # Its first quarter, in whole chunks, says nothing of the link.
            assert (near.worker, near.bytes, near.probe, near.lost) == (1, 2_250_000, True, "")
            assert near.seconds > 0
            assert (far.worker, far.probe, far.lost) == (2, True, "unreachable")

    run(test())


def test_a_survey_is_told_once_with_the_next_question(certificates: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with federation(experiment(), certificates, tmp_path) as there:
            await there.ready([0, 1])
            peers = [there.boss.peer(1), there.boss.peer(2)]
            survey = wire.Survey(peers=peers, deadline=10.0)
            stand = INITIAL.to_wire()
            there.boss.order(0, wire.Order(epoch=1, committed=stand, survey=survey))
            await there.boss.until(lambda: len(there.boss.surveyed["w0"]) == 2)
            near, far = there.boss.surveyed["w0"]
            assert (near.worker, near.bytes, near.probe, near.lost) == (1, 49152, True, "")
            assert near.seconds > 0
            assert near.started >= 0
            assert (far.worker, far.probe, far.lost) == (2, True, "unreachable")
            there.boss.order(0, wire.Order(epoch=1, committed=stand, wait=wire.Wait()))
            alone(there.boss, 0, FIRST)
            await there.boss.report(0)
            assert len(there.boss.surveyed["w0"]) == 2

    run(test())


def test_an_order_of_an_old_epoch_is_not_obeyed(certificates: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with federation(experiment(), certificates, tmp_path) as there:
            there.boss.epoch = 2
            await there.ready([0])
            alone(there.boss, 0, Attempt(1, 1, 1))
            alone(there.boss, 0, Attempt(2, 1, 1))
            report = await there.boss.report(0)
            assert report.envelope.epoch == 2
            (refused,) = there.events(0, "refused")
            assert (refused["reason"], refused["what"]) == ("epoch", "order")

    run(test())


def test_a_report_that_is_not_counted_is_no_end(certificates: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with federation(experiment(), certificates, tmp_path) as there:
            await there.ready([0])
            there.boss.receipt = lambda report: wire.Receipt(why="too late")
            alone(there.boss, 0, FIRST)
            first = await there.boss.report(0)
            alone(there.boss, 0, Attempt(1, 1, 2))
            second = await there.boss.report(0)
            assert (first.envelope.attempt, second.envelope.attempt) == (1, 2)
            assert first.digest == second.digest  # both from the committed model
            assert there.events(0, "reported")[0]["why"] == "too late"
            assert there.events(0, "advanced") == []

    run(test())


def test_an_attempt_that_is_overtaken_is_given_up(certificates: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with federation(experiment(), certificates, tmp_path) as there:
            await there.ready([0, 1])
            order = there.boss.work(
                0,
                peers=[1],
                weights=[0.5],
                own_weight=0.5,
                readers=[],
                committed=INITIAL,
                attempt=FIRST,
            )
            there.boss.order(0, order)
            await there.boss.until(lambda: "receiving" in there.boss.phases["w0"])
            alone(there.boss, 0, Attempt(1, 1, 2))
            there.boss.beat = Attempt(1, 1, 2)
            assert (await there.boss.report(0)).envelope.attempt == 2

    run(test())


def test_a_worker_that_was_stopped_comes_back_with_its_models(
    certificates: Path, tmp_path: Path
) -> None:
    settings = experiment()
    engine = LocalEngine(prepare(settings))
    for round_index in (1, 2):
        engine.train(np.full(3, 3), round_index=round_index, learning_rate=0.1)
        engine.shard.mixed.copy_(engine.shard.after)
        engine.advance()

    async def test() -> None:
        async with federation(settings, certificates, tmp_path) as there:
            await there.ready([0])
            alone(there.boss, 0, FIRST)
            await there.boss.report(0)
            asked = time.monotonic()
            there.stops[0].set()
            assert await there.running[0] == 130
            assert time.monotonic() - asked < 2
            assert there.boss.left == {"w0": "it was stopped"}
            there.boss.stands.clear()
            await there.ready([0])
            assert [each.round for each in there.boss.joins[1].stands] == [1]
            before, after = (join.envelope.incarnation for join in there.boss.joins)
            assert before < after
            assert FIRST in there.boss.stands["w0"]
            alone(there.boss, 0, Attempt(1, 2, 1), FIRST)
            report = await there.boss.report(0)
            assert report.digest == digests(engine)[0]

    run(test())
    engine.close()


def test_a_late_worker_catches_up(certificates: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with federation(experiment(), certificates, tmp_path) as there:
            await there.ready([0, 1, 2])
            alone(there.boss, 0, FIRST)
            digest = (await there.boss.report(0)).digest
            # Round 1 is committed without worker 2; worker 1 does not have its model either.
            behind = wire.Order(epoch=1, committed=FIRST.to_wire())
            behind.catch_up.peers.extend([there.boss.peer(1), there.boss.peer(0)])
            there.boss.order(2, behind)
            await there.boss.until(lambda: FIRST in there.boss.stands["w2"])
            assert there.boss.stands["w2"] == [FIRST]
            (caught,) = there.events(2, "caught_up")
            assert caught["peer"] == "w0"
            for worker in (0, 2):
                there.boss.finish(worker, FIRST)
                assert await there.running[worker] == 0
            first, second = (
                (tmp_path / f"w{worker}" / "model.safetensors").read_bytes() for worker in (0, 2)
            )
            assert first == second
            assert len(digest) == 32

    run(test())


def test_a_robust_rule_and_half_the_bytes(certificates: Path, tmp_path: Path) -> None:
    settings = experiment(cluster={"robust": "median", "compression": "fp16"})
    engine = LocalEngine(prepare(settings))
    trained(engine)
    width = engine.prepared.layout.mixed
    rows = engine.shard.after[:, :width].clone()
    rows[:2] = rows[:2].half().float()  # what the last one receives
    expected = rows.median(dim=0).values

    async def test() -> None:
        async with federation(settings, certificates, tmp_path) as there:
            await there.ready(range(3))
            for worker, peers, readers in ((0, [], [2]), (1, [], [2]), (2, [0, 1], [])):
                order = there.boss.work(
                    worker,
                    peers=peers,
                    weights=[0.25] * len(peers),
                    own_weight=1 - 0.25 * len(peers),
                    readers=readers,
                    committed=INITIAL,
                    attempt=FIRST,
                )
                there.boss.order(worker, order)
            report = await there.boss.report(2)
            assert [link.lost for link in report.links] == ["", ""]
            assert all(2 * width < link.bytes < 3 * width for link in report.links)
            assert report.digest == hashlib.sha256(expected.numpy().tobytes()).digest()

    run(test())
    engine.close()


def test_a_worker_takes_as_long_as_the_machine_it_emulates(
    certificates: Path, tmp_path: Path
) -> None:
    settings = experiment(
        cluster={"emulate": True},
        world={
            "devices": ["slow"],
            "device": {"slow": {"step_time": 0.1, "sd": 0.0}},
            "drift": 0.0,
        },
    )

    async def test() -> None:
        async with federation(settings, certificates, tmp_path) as there:
            await there.ready([0])
            alone(there.boss, 0, FIRST)
            report = await there.boss.report(0)
            assert report.step_time >= 0.1
            assert report.compute_seconds >= 0.3
            assert report.step_time == pytest.approx(report.compute_seconds / 3)

    run(test())
