"""The aids that AD-PSGD may have: overlap, a served average, int8, momentum, tests by the clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedhp
from fedhp.cluster.coordinator.process.network_checks import check_network
from fedhp.config import parse
from fedhp.engine.events import EventLoop
from fedhp.engine.sharded import LocalExecutor
from fedhp.errors import ConfigError
from fedhp.exchange.mailbox import INT8_SIZE, Mail
from fedhp.record.checkpoint import read_checkpoint
from unit.engine.runs import EXACT, bits, carry_out, prepared_of

ALL: dict[str, Any] = {
    "overlap": True,
    "serve": "average",
    "compression": "int8",
    "momentum": 0.9,
    "learning_rate": 0.02,
}
SLOW: dict[str, Any] = {
    "workers": 5,
    "rounds": 4,
    "training": {"local_steps": 3, "batch_size": 4},
    "evaluation": {"images": 40},
    "world": {"profile": "slow_links", "model_megabits": 8.0},
}
BY_TIME: dict[str, Any] = {"evaluation": {"seconds": 2.5}}
# Often nobody ends its steps between two tests.
OFTEN: dict[str, Any] = {"rounds": 40, "evaluation": {"seconds": 0.25, "images": 5}}


class Watched:
    """An event loop whose exchanges are noted: time, pair, models before and after."""

    def __init__(self, *changes: dict[str, Any], **settings: Any) -> None:
        aids = {"algorithm": settings}
        self.executor = LocalExecutor(prepared_of("adpsgd", SLOW, *changes, aids))
        self.loop = EventLoop(self.executor.prepared, self.executor, tester=self.executor)
        self.initial = self.executor.shard.rows.models.numpy().copy()
        self.exchanges: list[tuple[float, int, int, NDArray[Any], NDArray[Any]]] = []
        self.rounds: list[int] = []  # in which each exchange was counted
        average = self.executor.average

        def noted(worker: int, partner: int, *, compression: str = "none") -> float:
            before = self.executor.shard.rows.models.numpy().copy()
            distance = average(worker, partner, compression=compression)
            after = self.executor.shard.rows.models.numpy().copy()
            self.exchanges.append((self.loop.clock, worker, partner, before, after))
            self.rounds.append(self.loop.round_index + 1)
            return distance

        self.starts: list[tuple[float, int]] = []  # of transfers
        transfer_time = self.loop._transfer_time

        def timed(worker: int, mail: Mail) -> float:
            self.starts.append((self.loop.clock, worker))
            return transfer_time(worker, mail)

        self.executor.average = noted  # type: ignore[method-assign]
        self.loop._transfer_time = timed  # type: ignore[method-assign]
        self.records = list(self.loop.rounds())
        self.executor.close()


def test_int8_moves_both_by_half_of_the_coded_difference() -> None:
    """The mean of all models stays, and the bytes are those of codes and scales."""
    run = Watched(compression="int8")
    assert len(run.exchanges) == 4 * 5
    for _, worker, partner, before, after in run.exchanges:
        np.testing.assert_allclose(
            after.astype(np.float64).mean(axis=0), before.astype(np.float64).mean(axis=0), atol=1e-6
        )
        for start in range(0, before.shape[1], 256):
            block = slice(start, start + 256)
            difference = before[partner, block] - before[worker, block]
            scale = np.abs(difference).max() / 127
            coded = np.rint(difference / scale) * scale if scale else difference
            moved = after[worker, block] - before[worker, block]
            np.testing.assert_allclose(moved, coded / 2, atol=1e-6 + scale / 100)
        others = [i for i in range(5) if i not in (worker, partner)]
        assert (after[others] == before[others]).all()
    model_bytes = run.executor.prepared.model_bytes
    exchanges = [round(record.bytes_sent / (2 * model_bytes * INT8_SIZE)) for record in run.records]
    assert exchanges == [5] * 4
    assert pytest.approx(1 / 4 + 4 / (256 * 4)) == INT8_SIZE
    first = run.records[0]
    assert first.clock < 10  # the links have not changed yet
    whole = run.executor.prepared.world.network(0.0).link_time(first.links)
    np.testing.assert_allclose(first.link_time, INT8_SIZE * whole)


def test_the_served_average_follows_its_definition() -> None:
    """e += (1 - exp(-(t - t_last) / (0.1 t))) (x - e) at every averaging of a worker."""
    run = Watched(serve="average")
    served, last = run.initial.astype(np.float64), np.zeros(5)
    for time, worker, partner, _, after in run.exchanges:
        for end in (worker, partner):
            share = 1 - np.exp(-(time - last[end]) / (0.1 * time))
            served[end] += share * (after[end] - served[end])
            last[end] = time
    kept = run.executor.state()["served"]
    np.testing.assert_allclose(kept, served, rtol=1e-5, atol=1e-6)
    assert not np.allclose(kept, run.executor.state()["models"], atol=1e-4)


def test_tests_by_time_see_the_model_of_the_last_averaging(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Watched(BY_TIME)
    served = run.initial.copy()
    for _, worker, partner, _, after in run.exchanges:
        served[[worker, partner]] = after[[worker, partner]]
    state = run.executor.state()
    assert (state["served"] == served).all()
    assert (state["models"] != served).any()
    tested = LocalExecutor(prepared_of("adpsgd", SLOW, BY_TIME))
    tested.load({**state, "models": served})
    expected = tested.evaluate()
    tested.close()
    final = run.records[-1].evaluation
    assert final is not None
    assert (final.accuracy == expected.accuracy).all()
    assert final.mean_model_accuracy == expected.mean_model_accuracy


@pytest.mark.parametrize("changes", [{}, BY_TIME], ids=["events", "time"])
def test_with_overlap_nobody_ever_waits(changes: dict[str, Any]) -> None:
    """Turn follows turn without a gap, and nobody has two own transfers on their way."""
    run = Watched(changes, overlap=True, compression="int8")
    world, clock = run.executor.prepared.world, run.loop.clock
    steps = np.sum([record.local_steps for record in run.records], axis=0)
    for worker in range(5):
        ends = [0.0]
        while ends[-1] <= clock:
            times = world.step_times(worker, len(ends), steps=3, time=0.0)
            ends.append(ends[-1] + float(times.sum()))
        assert steps[worker] == 3 * (len(ends) - 2)
        # A transfer starts when steps are done and the one before has arrived.
        arrivals = [time for time, sender, *_ in run.exchanges if sender == worker]
        start, arrival = 0.0, 0.0
        for index, began in enumerate(time for time, sender in run.starts if sender == worker):
            start = max(arrival, min(end for end in ends if end > start))
            assert began == pytest.approx(start)
            arrival = arrivals[index] if index < len(arrivals) else np.inf
            start = began
    sent = sum(record.bytes_sent for record in run.records)
    values = run.executor.prepared.model_bytes // 4
    assert sent == len(run.exchanges) * 2 * (values + 4 * int(np.ceil(values / 256)))
    without = Watched(changes, compression="int8")
    time = without.loop.clock
    trained = np.sum([record.local_steps for record in without.records], axis=0)
    assert (steps / clock >= trained / time).all()
    assert steps.sum() / clock > 1.2 * trained.sum() / time


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("changes", [{}, BY_TIME, OFTEN], ids=["events", "time", "often"])
def test_transfers_count_in_the_round_in_which_they_arrive(
    changes: dict[str, Any], overlap: bool
) -> None:
    """In the order of the clock, and with the time from their start to their arrival."""
    run = Watched(changes, overlap=overlap)
    clocks = [0.0, *(record.clock for record in run.records)]
    arrivals = [time for time, *_ in run.exchanges]
    assert arrivals == sorted(arrivals)
    for time, index in zip(arrivals, run.rounds, strict=True):
        assert clocks[index - 1] <= time <= clocks[index]
    taken = np.zeros((len(run.records), 5))
    for worker in range(5):
        starts = [time for time, sender in run.starts if sender == worker]
        for (time, sender, *_), index in zip(run.exchanges, run.rounds, strict=True):
            if sender == worker:
                taken[index - 1, worker] += time - starts.pop(0)
    measured = [record.timing.communication_time for record in run.records]
    np.testing.assert_allclose(measured, taken, atol=1e-9)
    assert np.sum(measured) > 0


@pytest.mark.parametrize("settings", [ALL, {**ALL, "serve": "model"}], ids=str)
def test_shards_have_the_same_bits(settings: dict[str, Any]) -> None:
    prepared = prepared_of("adpsgd", SLOW, EXACT, BY_TIME, {"algorithm": settings})
    records, state = carry_out(LocalExecutor(prepared))
    assert "served" in state
    assert state["models"][:, prepared.layout.state].any()
    several, end = carry_out(LocalExecutor(prepared, shards=2))
    assert bits(several) == bits(records)
    assert bits(end) == bits(state)


def test_a_resumed_run_continues_with_every_transfer(tmp_path: Path) -> None:
    tables = {**SLOW, **BY_TIME, "horizon": 15.0, "algorithm": {"name": "adpsgd", **ALL}}
    del tables["rounds"]
    experiment = fedhp.make_experiment({**tables, "checkpoint": {"seconds": 0.0}})
    with fedhp.run(experiment, tmp_path / "whole") as whole:
        digest, models = whole.digest(), whole.models()
    saved = read_checkpoint(tmp_path / "whole")
    assert saved is not None
    assert models is not None
    assert (models == saved.arrays["served"]).all()
    assert np.isfinite(saved.arrays["side.due"]).any()
    for record in fedhp.start(experiment, tmp_path / "run").rounds():
        if record.round_index == 3:
            break
    with fedhp.run(experiment, tmp_path / "run", resume=True) as resumed:
        assert resumed.digest() == digest


@pytest.mark.parametrize("name", ["overlap", "serve", "compression"])
def test_a_network_refuses_them(name: str) -> None:
    tables = {"workers": 3, "algorithm": {"name": "adpsgd", name: ALL[name]}}
    with pytest.raises(ConfigError, match=f"algorithm.{name}"):
        check_network(parse(tables))


def test_bad_values_are_refused() -> None:
    for setting in ({"serve": "median"}, {"compression": "int4"}, {"momentum": 1.0}):
        with pytest.raises(ConfigError):
            prepared_of("adpsgd", SLOW, **setting)
