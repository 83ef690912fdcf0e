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
from fedhp.engine.prepare import prepare
from fedhp.engine.sharded import LocalExecutor
from fedhp.exchange import NeighborMixing, PeerScoring
from fedhp.graph import topology_from
from net.fake_coordinator import FakeCoordinator
from net.federation import Federation, digests, experiment, line, run, start_federation

FIRST = Attempt(1, 1, 1)
ALONE: dict[str, Any] = {"peers": [], "weights": [], "own_weight": 1.0, "readers": []}


def alone(
    coordinator: FakeCoordinator, worker: int, attempt: Attempt, committed: Attempt = INITIAL
) -> None:
    """Order a worker to work with nobody."""
    coordinator.order(
        worker, coordinator.work(worker, committed=committed, attempt=attempt, **ALONE)
    )


def trained(engine: LocalExecutor, rounds: int = 1) -> None:
    for round_index in range(1, rounds + 1):
        engine.train(np.full(3, 3), round_index=round_index, learning_rate=0.1)


def test_three_rounds_have_the_bits_of_the_simulation(certificates: Path, tmp_path: Path) -> None:
    settings, exchange = experiment(), line(3)
    engine = LocalExecutor(prepare(settings))

    async def test() -> None:
        async with start_federation(settings, certificates, tmp_path) as federation:
            await federation.ready(range(3))
            committed = INITIAL
            for round_index in (1, 2, 3):
                attempt = Attempt(1, round_index, 1)
                federation.coordinator.mixing(
                    exchange, committed=committed, attempt=attempt, changes={"estimate": True}
                )
                await compare(federation, round_index)
                committed = attempt
            for worker in range(3):
                federation.coordinator.finish(worker, committed)
                assert await federation.running[worker] == 0
                assert (tmp_path / f"w{worker}" / "model.safetensors").exists()
                advanced = [event["round"] for event in federation.events(worker, "advanced")]
                assert advanced == [1, 2, 3]

    async def compare(federation: Federation, round_index: int) -> None:
        steps = np.full(3, 3)
        training = engine.train(steps, round_index=round_index, learning_rate=0.1)
        estimates = engine.estimate(steps > 0, round_index=round_index)
        mixed = exchange.carry_out(engine, round_index=round_index)
        engine.advance()
        tested = engine.evaluate()
        apart = dict(zip(map(tuple, mixed.links.tolist()), mixed.distance, strict=True))
        for worker in range(3):
            report = await federation.coordinator.report(worker)
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
    engine = LocalExecutor(prepare(settings))
    peers = [[1, 2], [0, 2], [0, 1]]
    trained(engine)
    scoring = PeerScoring(np.array(peers), keep=1, samples=20, cost_per_candidate=0.1)
    chosen = scoring.carry_out(engine, round_index=1).selected
    engine.advance()

    async def test() -> None:
        async with start_federation(settings, certificates, tmp_path) as federation:
            await federation.ready(range(3))
            for worker in range(3):
                order = federation.coordinator.work(
                    worker,
                    peers=peers[worker],
                    weights=[],
                    own_weight=0.0,
                    readers=peers[worker],
                    committed=INITIAL,
                    attempt=FIRST,
                    changes={"keep": 1, "samples": 20},
                )
                federation.coordinator.order(worker, order)
            for worker in range(3):
                report = await federation.coordinator.report(worker)
                assert list(report.selected) == chosen[worker].tolist()
                assert report.digest == digests(engine)[worker]
                assert {link.worker for link in report.links} == set(peers[worker])

    run(test())
    engine.close()


def test_the_weight_of_a_lost_neighbor_goes_to_the_own_model(
    certificates: Path, tmp_path: Path
) -> None:
    settings = experiment()
    engine = LocalExecutor(prepare(settings))
    trained(engine)
    rows, width = engine.shard.rows.after, engine.prepared.layout.mixed
    expected = torch.mul(rows[0, :width], 0.5 + 0.2).add_(rows[1, :width], alpha=0.3)

    async def test() -> None:
        async with start_federation(settings, certificates, tmp_path) as federation:
            await federation.ready([0, 1])
            order = federation.coordinator.work(
                0,
                peers=[1, 2],  # 2 is not there
                weights=[0.3, 0.2],
                own_weight=0.5,
                readers=[],
                committed=INITIAL,
                attempt=FIRST,
            )
            federation.coordinator.order(0, order)
            theirs = {**ALONE, "readers": [0]}
            federation.coordinator.order(
                1, federation.coordinator.work(1, committed=INITIAL, attempt=FIRST, **theirs)
            )
            report = await federation.coordinator.report(0)
            assert {link.worker: link.lost for link in report.links} == {1: "", 2: "unreachable"}
            assert report.digest == hashlib.sha256(expected.numpy().tobytes()).digest()

    run(test())
    engine.close()


def test_nobody_waits_for_a_worker_that_is_gone(certificates: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with start_federation(experiment(), certificates, tmp_path) as federation:
            await federation.ready([0, 1])
            order = federation.coordinator.work(
                0,
                peers=[1],  # it is there, but has no order, so it will never be ready
                weights=[0.5],
                own_weight=0.5,
                readers=[],
                committed=INITIAL,
                attempt=FIRST,
            )
            federation.coordinator.order(0, order)
            await federation.coordinator.until(
                lambda: "receiving" in federation.coordinator.phases["w0"]
            )
            federation.coordinator.gone = [1]
            report = await federation.coordinator.report(0)
            assert [link.lost for link in report.links] == ["gone"]
            assert np.isnan(report.links[0].distance)

    run(test())


def test_links_without_a_model_are_probed(certificates: Path, tmp_path: Path) -> None:
    async def test() -> None:
        settings = experiment(cluster={"probe_bytes": 3_000_000})
        async with start_federation(settings, certificates, tmp_path) as federation:
            await federation.ready([0, 1])
            order = federation.coordinator.work(0, committed=INITIAL, attempt=FIRST, **ALONE)
            order.work.probes.extend(
                [federation.coordinator.peer(1), federation.coordinator.peer(2)]
            )
            federation.coordinator.order(0, order)
            near, far = (await federation.coordinator.report(0)).links
            # Its first quarter, in whole chunks, says nothing of the link.
            assert (near.worker, near.bytes, near.probe, near.lost) == (1, 2_250_000, True, "")
            assert near.seconds > 0
            assert (far.worker, far.probe, far.lost) == (2, True, "unreachable")

    run(test())


def test_a_survey_is_told_once_with_the_next_question(certificates: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with start_federation(experiment(), certificates, tmp_path) as federation:
            await federation.ready([0, 1])
            peers = [federation.coordinator.peer(1), federation.coordinator.peer(2)]
            survey = wire.Survey(peers=peers, deadline=10.0)
            initial = INITIAL.to_wire()
            federation.coordinator.order(0, wire.Order(epoch=1, committed=initial, survey=survey))
            await federation.coordinator.until(
                lambda: len(federation.coordinator.surveyed["w0"]) == 2
            )
            near, far = federation.coordinator.surveyed["w0"]
            assert (near.worker, near.bytes, near.probe, near.lost) == (1, 49152, True, "")
            assert near.seconds > 0
            assert near.started >= 0
            assert (far.worker, far.probe, far.lost) == (2, True, "unreachable")
            federation.coordinator.order(
                0, wire.Order(epoch=1, committed=initial, wait=wire.Wait())
            )
            alone(federation.coordinator, 0, FIRST)
            await federation.coordinator.report(0)
            assert len(federation.coordinator.surveyed["w0"]) == 2

    run(test())


def test_an_order_of_an_old_epoch_is_not_obeyed(certificates: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with start_federation(experiment(), certificates, tmp_path) as federation:
            federation.coordinator.epoch = 2
            await federation.ready([0])
            alone(federation.coordinator, 0, Attempt(1, 1, 1))
            alone(federation.coordinator, 0, Attempt(2, 1, 1))
            report = await federation.coordinator.report(0)
            assert report.envelope.epoch == 2
            (refused,) = federation.events(0, "refused")
            assert (refused["reason"], refused["what"]) == ("epoch", "order")

    run(test())


def test_a_report_that_is_not_counted_is_no_end(certificates: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with start_federation(experiment(), certificates, tmp_path) as federation:
            await federation.ready([0])
            federation.coordinator.receipt = lambda report: wire.Receipt(why="too late")
            alone(federation.coordinator, 0, FIRST)
            first = await federation.coordinator.report(0)
            alone(federation.coordinator, 0, Attempt(1, 1, 2))
            second = await federation.coordinator.report(0)
            assert (first.envelope.attempt, second.envelope.attempt) == (1, 2)
            assert first.digest == second.digest  # both from the committed model
            assert federation.events(0, "reported")[0]["why"] == "too late"
            assert federation.events(0, "advanced") == []

    run(test())


def test_an_attempt_that_is_overtaken_is_given_up(certificates: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with start_federation(experiment(), certificates, tmp_path) as federation:
            await federation.ready([0, 1])
            order = federation.coordinator.work(
                0,
                peers=[1],
                weights=[0.5],
                own_weight=0.5,
                readers=[],
                committed=INITIAL,
                attempt=FIRST,
            )
            federation.coordinator.order(0, order)
            await federation.coordinator.until(
                lambda: "receiving" in federation.coordinator.phases["w0"]
            )
            alone(federation.coordinator, 0, Attempt(1, 1, 2))
            federation.coordinator.beat = Attempt(1, 1, 2)
            assert (await federation.coordinator.report(0)).envelope.attempt == 2

    run(test())


def test_a_worker_that_was_stopped_comes_back_with_its_models(
    certificates: Path, tmp_path: Path
) -> None:
    settings = experiment()
    engine = LocalExecutor(prepare(settings))
    for round_index in (1, 2):
        engine.train(np.full(3, 3), round_index=round_index, learning_rate=0.1)
        engine.shard.rows.mixed.copy_(engine.shard.rows.after)
        engine.advance()

    async def test() -> None:
        async with start_federation(settings, certificates, tmp_path) as federation:
            await federation.ready([0])
            alone(federation.coordinator, 0, FIRST)
            await federation.coordinator.report(0)
            asked = time.monotonic()
            federation.stops[0].set()
            assert await federation.running[0] == 130
            assert time.monotonic() - asked < 2
            assert federation.coordinator.left == {"w0": "it was stopped"}
            federation.coordinator.stored.clear()
            await federation.ready([0])
            assert [version.round for version in federation.coordinator.joins[1].stands] == [1]
            before, after = (join.envelope.incarnation for join in federation.coordinator.joins)
            assert before < after
            assert FIRST in federation.coordinator.stored["w0"]
            alone(federation.coordinator, 0, Attempt(1, 2, 1), FIRST)
            report = await federation.coordinator.report(0)
            assert report.digest == digests(engine)[0]

    run(test())
    engine.close()


def test_a_late_worker_catches_up(certificates: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with start_federation(experiment(), certificates, tmp_path) as federation:
            await federation.ready([0, 1, 2])
            alone(federation.coordinator, 0, FIRST)
            digest = (await federation.coordinator.report(0)).digest
            # Round 1 is committed without worker 2; worker 1 does not have its model either.
            behind = wire.Order(epoch=1, committed=FIRST.to_wire())
            behind.catch_up.peers.extend(
                [federation.coordinator.peer(1), federation.coordinator.peer(0)]
            )
            federation.coordinator.order(2, behind)
            await federation.coordinator.until(lambda: FIRST in federation.coordinator.stored["w2"])
            assert federation.coordinator.stored["w2"] == [FIRST]
            (caught,) = federation.events(2, "caught_up")
            assert caught["peer"] == "w0"
            for worker in (0, 2):
                federation.coordinator.finish(worker, FIRST)
                assert await federation.running[worker] == 0
            first, second = (
                (tmp_path / f"w{worker}" / "model.safetensors").read_bytes() for worker in (0, 2)
            )
            assert first == second
            assert len(digest) == 32

    run(test())


def test_an_optimizer_begins_again_with_the_model_of_another(
    certificates: Path, tmp_path: Path
) -> None:
    """Its own velocity is that of another path; who stays on its path keeps it."""
    settings = experiment(training={"momentum": 0.9})
    engine = LocalExecutor(prepare(settings))
    second, third, alone_only = Attempt(1, 2, 2), Attempt(1, 3, 1), np.empty((0, 2), dtype=int)

    def simulate(round_index: int) -> bytes:
        """The digest of the model that worker 2 has after this round, alone."""
        engine.train(np.full(3, 3), round_index=round_index, learning_rate=0.1)
        NeighborMixing(topology_from(3, alone_only)).carry_out(engine, round_index=round_index)
        engine.advance()
        return digests(engine)[2]

    async def test() -> None:
        async with start_federation(settings, certificates, tmp_path) as federation:
            coordinator = federation.coordinator
            await federation.ready([0, 2])
            for worker in (0, 2):
                alone(coordinator, worker, FIRST)
            await coordinator.report(0)
            assert (await coordinator.report(2)).digest == simulate(1)
            alone(coordinator, 2, Attempt(1, 2, 1), FIRST)  # it is given up
            await coordinator.report(2)
            alone(coordinator, 0, second, FIRST)
            await coordinator.report(0)
            behind = wire.Order(epoch=1, committed=second.to_wire())
            behind.catch_up.peers.append(coordinator.peer(0))
            coordinator.order(2, behind)
            await coordinator.until(lambda: second in coordinator.stored["w2"])
            simulate(2)
            state = {name: rows.copy() for name, rows in engine.state().items()}
            state["models"][2] = state["models"][0]
            own = state["models"][2, engine.prepared.layout.state]
            assert own.any()
            own[:] = 0.0
            engine.load(state)
            alone(coordinator, 2, third, second)
            assert (await coordinator.report(2)).digest == simulate(3)

    run(test())
    engine.close()


def test_a_robust_rule_and_half_the_bytes(certificates: Path, tmp_path: Path) -> None:
    settings = experiment(exchange={"robust": "median", "compression": "fp16"})
    engine = LocalExecutor(prepare(settings))
    trained(engine)
    width = engine.prepared.layout.mixed
    rows = engine.shard.rows.after[:, :width].clone()
    rows[:2] = rows[:2].half().float()  # what the last one receives
    expected = rows.median(dim=0).values

    async def test() -> None:
        async with start_federation(settings, certificates, tmp_path) as federation:
            await federation.ready(range(3))
            for worker, peers, readers in ((0, [], [2]), (1, [], [2]), (2, [0, 1], [])):
                order = federation.coordinator.work(
                    worker,
                    peers=peers,
                    weights=[0.25] * len(peers),
                    own_weight=1 - 0.25 * len(peers),
                    readers=readers,
                    committed=INITIAL,
                    attempt=FIRST,
                )
                federation.coordinator.order(worker, order)
            report = await federation.coordinator.report(2)
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
        async with start_federation(settings, certificates, tmp_path) as federation:
            await federation.ready([0])
            alone(federation.coordinator, 0, FIRST)
            report = await federation.coordinator.report(0)
            assert report.step_time >= 0.1
            assert report.compute_seconds >= 0.3
            assert report.step_time == pytest.approx(report.compute_seconds / 3)

    run(test())
