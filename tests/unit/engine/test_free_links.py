"""The limit: one model that every finished step moves at once, on links that cost nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedhp.cluster.coordinator.process.network_checks import check_network
from fedhp.config import parse
from fedhp.engine.events import EventLoop
from fedhp.engine.sharded import LocalExecutor
from fedhp.errors import ConfigError
from unit.engine.runs import NORMED, prepared_of

SLOW: dict[str, Any] = {
    "workers": 4,
    "rounds": 5,
    "training": {"batch_size": 4},
    "evaluation": {"seconds": 0.4, "images": 40},
    "world": {"profile": "slow_links", "model_megabits": 800.0},
}


class Watched:
    """An event loop whose steps are noted: time, worker, its change, models before and after."""

    def __init__(self, *changes: dict[str, Any], **settings: Any) -> None:
        self.executor = LocalExecutor(prepared_of("free_links", SLOW, *changes, **settings))
        self.loop = EventLoop(self.executor.prepared, self.executor, tester=self.executor)
        self.initial = self.executor.shard.rows.models.numpy().copy()
        self.steps: list[tuple[float, int, NDArray[Any], NDArray[Any], NDArray[Any]]] = []
        self.served: list[tuple[float, NDArray[Any]]] = []
        share, serve = self.executor.share, self.executor.serve

        def noted(worker: int) -> float:
            shard = self.executor.shard
            before, change = (
                shard.rows.models.numpy().copy(),
                shard.rows.after[worker].numpy().copy(),
            )
            norm = share(worker)
            self.steps.append(
                (self.loop.clock, worker, change, before, shard.rows.models.numpy().copy())
            )
            return norm

        def noted_serve(worker: int, factor: float) -> None:
            serve(worker, factor)
            if worker == 3:
                served = self.executor.shard.turns.served
                assert served is not None
                self.served.append((self.loop.clock, served.numpy().copy()))

        self.executor.share = noted  # type: ignore[method-assign]
        self.executor.serve = noted_serve  # type: ignore[method-assign]
        self.records = list(self.loop.rounds())
        self.executor.close()


def test_every_step_moves_the_one_model() -> None:
    run = Watched()
    assert (run.initial == run.initial[0]).all()
    for _, _, change, before, after in run.steps:
        assert (after == after[0]).all()
        np.testing.assert_allclose(after[0], before[0] + change, atol=1e-7)
        assert np.abs(change).max() > 0


def test_statistics_move_by_the_mean() -> None:
    """Each of the N workers has its own opinion of them: everyone gets the exact average."""
    run = Watched(NORMED)
    layout = run.executor.prepared.layout
    assert layout.trainable < layout.mixed
    for _, _, change, before, after in run.steps:
        plain = slice(layout.trainable, layout.mixed)
        np.testing.assert_allclose(after[0, plain], before[0, plain] + change[plain] / 4, atol=1e-6)


def test_all_devices_are_busy_and_nothing_is_sent() -> None:
    """Each worker does the steps that its step times allow, however slow the links are."""
    run = Watched()
    world = run.executor.prepared.world
    done = np.sum([record.local_steps for record in run.records], axis=0)
    for worker in range(4):
        ends = [0.0]
        while ends[-1] <= run.loop.clock:
            times = world.step_times(worker, len(ends), steps=1, time=0.0)
            ends.append(ends[-1] + float(times[0]))
        assert done[worker] == len(ends) - 2
    assert sum(record.bytes_sent for record in run.records) == 0
    assert all(record.timing.mean_waiting_time == 0 for record in run.records)
    assert all("limit" in str(record.decision.rule) for record in run.records if len(run.steps))


def test_workers_are_tested_on_a_moving_average() -> None:
    """e += (1 - exp(-(t - t_last) / (0.1 t))) (x - e), whenever a part of the time has passed."""
    run = Watched()
    average, last = run.initial[0].astype(np.float64), 0.0
    models = {time: after[0] for time, _, _, _, after in run.steps}
    assert len(run.served) > len(run.records)
    for time, served in run.served:
        factor = -np.expm1(-(time - last) / (0.1 * time))
        average += factor * (models[time] - average)
        last = time
        np.testing.assert_allclose(served, np.tile(average, (4, 1)), atol=1e-5)
    assert not Watched(serve="model").served


def test_a_network_refuses_it() -> None:
    with pytest.raises(ConfigError, match="links that cost nothing"):
        check_network(parse({"algorithm": {"name": "free_links"}}))
