"""Step times: Gaussian per step, a drift per round, a floor; a function of seed and place."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from fedhp.config import parse
from fedhp.errors import ConfigError
from fedhp.world.devices import Devices, build_devices


def devices(seed: int = 0, workers: int = 30, **world: Any) -> Devices:
    return build_devices(parse({"world": world}).world, workers=workers, seed=seed)


def one(*, sd: float = 0.15, drift: float = 0.05, floor: float = 0.2) -> Devices:
    return Devices(0, ("some",), np.array([0.1]), np.array([sd]), drift, floor)


def test_ten_of_each_kind_shuffled_by_the_seed() -> None:
    first, second = devices(0), devices(1)
    for machines in (first, second):
        assert Counter(machines.names) == {"laptop": 10, "xavier_nx": 10, "jetson_tx2": 10}
        means = {"laptop": 0.03, "xavier_nx": 0.1, "jetson_tx2": 0.3}
        assert machines.mean.tolist() == [means[name] for name in machines.names]
        assert set(machines.sd.tolist()) == {0.15}
        assert (machines.drift, machines.floor) == (0.05, 0.2)
    assert first.names != second.names
    assert devices(0).names == first.names


def test_the_order_of_the_file_without_shuffling() -> None:
    machines = devices(0, 4, shuffle_devices=False)
    assert machines.names == ("laptop", "xavier_nx", "jetson_tx2", "laptop")
    counted = devices(0, 3, devices={"laptop": 1, "jetson_tx2": 2}, shuffle_devices=False)
    assert counted.names == ("laptop", "jetson_tx2", "jetson_tx2")


def test_a_device_of_ones_own() -> None:
    machines = devices(0, 2, devices=["phone"], device={"phone": {"step_time": 0.7, "sd": 0.0}})
    assert machines.mean.tolist() == [0.7, 0.7]
    times = machines.step_times(0, 1, 5)
    assert np.ptp(times) == 0  # no spread: only the drift of the round is left
    assert times[0] == pytest.approx(0.7, rel=0.3)


def test_each_step_is_gaussian_around_the_mean() -> None:
    times = np.concatenate([one(drift=0.0).step_times(0, k, 500) for k in range(40)]) / 0.1
    assert times.mean() == pytest.approx(1, abs=0.005)
    assert times.std() == pytest.approx(0.15, rel=0.03)
    inside = (np.abs(times - 1) < 0.15).mean()
    assert inside == pytest.approx(0.6827, abs=0.01)


def test_drift_moves_a_whole_round() -> None:
    rounds = np.array([one(sd=0.0).step_times(0, k, 3) for k in range(2000)]) / 0.1
    assert np.ptp(rounds, axis=1).max() == 0
    assert rounds[:, 0].mean() == pytest.approx(1, abs=0.005)
    assert rounds[:, 0].std() == pytest.approx(0.05, rel=0.06)


def test_no_drift_is_drawn_when_it_is_off() -> None:
    assert one(sd=0.0, drift=0.0).step_times(0, 7, 3).tolist() == [0.1, 0.1, 0.1]


def test_a_floor_under_every_step() -> None:
    wild = one(sd=1.0).step_times(0, 1, 2000) / 0.1
    assert wild.min() == pytest.approx(0.2, rel=1e-12)
    assert (wild < 0.2000001).mean() == pytest.approx(0.212, abs=0.04)  # P(1 + z < 0.2)


def test_more_steps_only_append() -> None:
    machines = devices(3)
    for worker in (0, 17):
        long = machines.step_times(worker, 5, 100)
        for steps in (0, 1, 30, 99):
            assert machines.step_times(worker, 5, steps).tolist() == long[:steps].tolist()


def test_workers_rounds_and_seeds_have_their_own_times() -> None:
    machines = devices(0)
    base = (machines.step_times(0, 1, 4) / machines.mean[0]).tolist()
    for other in (
        machines.step_times(1, 1, 4) / machines.mean[1],
        machines.step_times(0, 2, 4) / machines.mean[0],
        Devices(1, machines.names, machines.mean, machines.sd, 0.05, 0.2).step_times(0, 1, 4)
        / machines.mean[0],
    ):
        assert not np.isclose(other, base).any()
    assert (machines.step_times(0, 1, 4) / machines.mean[0]).tolist() == base


def test_an_unknown_device() -> None:
    with pytest.raises(ConfigError, match=r"world.devices: unknown device 'lap'"):
        devices(0, 3, devices=["lap"])


def test_counts_that_do_not_add_up() -> None:
    with pytest.raises(ConfigError, match=r"add up to 2 devices, but workers = 3"):
        devices(0, 3, devices={"laptop": 2})


def test_no_devices() -> None:
    with pytest.raises(ConfigError, match=r"the list of devices is empty"):
        devices(0, 3, devices=[])
