"""The world as the engine meets it: traces before models, sizes, deadlines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhp.config import parse
from fedhp.world import World, build_world


def world(workers: int = 3, seed: int = 0, **tables: Any) -> World:
    config = parse({"workers": workers, "world": tables}).world
    return build_world(config, workers=workers, rounds=9, seed=seed, model_bits=5e6)


def test_profiles() -> None:
    """`paper` means megabytes: only these fit the round times the paper reports."""
    paper, slow = world(30), world(30, profile="slow_links")
    np.testing.assert_allclose(paper.network(0.0).bandwidth, 8 * slow.network(0.0).bandwidth)
    uniform = world(profile="uniform")
    assert set(uniform.network(0.0).bandwidth.tolist()) == {40e6}
    assert set(uniform.devices.names) == {"xavier_nx"}
    assert uniform.devices.drift == 0


def test_the_size_of_the_model() -> None:
    assert world().network(0.0).model_bits == 5e6
    assert world(model_megabits=12.0).network(0.0).model_bits == 12e6


def test_sharing_and_latency_reach_the_network() -> None:
    built = world(bandwidth={"sharing": True, "latency": 0.25}).network(0.0)
    assert (built.sharing, built.latency) == (True, 0.25)
    plain = world().network(0.0)
    assert (plain.sharing, plain.latency) == (False, 0.0)


def test_compute_times_are_sums_of_step_times() -> None:
    built = world()
    steps = np.array([0, 3, 50])
    times = built.compute_times(steps, 2, time=0.0)
    expected = [built.devices.step_times(i, 2, int(steps[i])).sum() for i in range(3)]
    assert times.tolist() == expected
    assert times[0] == 0.0


def test_steps_until_a_deadline() -> None:
    built = world()
    for worker in range(3):
        ends = np.cumsum(built.step_times(worker, 4, steps=400, time=0.0))
        for deadline in (0.0, float(ends[0]) - 1e-9, float(ends[0]), 0.5, 3.0, float(ends[70])):
            count = built.steps_until(worker, 4, deadline=deadline, time=0.0)
            assert count == int((ends <= deadline).sum())


def test_a_trace_takes_the_place_of_what_it_records(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time,worker,bandwidth\n0,0,1\n0,1,2\n0,2,3\n50,0,9\n", encoding="utf-8")
    built = world(trace=str(path), bandwidth={"unit": "Mb/s"})
    assert built.network(49.0).bandwidth.tolist() == [1e6, 2e6, 3e6]
    assert built.network(50.0).bandwidth.tolist() == [9e6, 2e6, 3e6]
    assert np.ptp(built.step_times(0, 1, steps=9, time=0.0)) > 0  # still drawn
    path.write_text("time,worker,step_time\n0,0,1\n0,1,2\n0,2,3\n50,0,9\n", encoding="utf-8")
    built = world(trace=str(path))
    assert built.step_times(0, 1, steps=2, time=49.0).tolist() == [1.0, 1.0]
    assert built.step_times(0, 8, steps=2, time=60.0).tolist() == [9.0, 9.0]
    assert built.steps_until(2, 1, deadline=10.0, time=0.0) == 3
    assert (built.network(0.0).bandwidth == world().network(0.0).bandwidth).all()


def test_presence() -> None:
    built = world(away=[{"worker": 2, "first": 4, "last": 4}])
    assert built.available(4).tolist() == [True, True, False]
    assert built.available(5).tolist() == [True, True, True]


@pytest.mark.parametrize("per", ["worker", "link"])
def test_same_seed_same_world(per: str) -> None:
    one, two = (world(5, 7, bandwidth={"per": per}) for _ in range(2))
    two.network(4321.0)  # what was asked before does not matter
    for time in (0.0, 33.0, 999.0):
        assert (one.network(time).bandwidth == two.network(time).bandwidth).all()
    assert one.devices.names == two.devices.names
    other = world(5, 8, bandwidth={"per": per})
    assert not np.array_equal(one.network(0.0).bandwidth, other.network(0.0).bandwidth)
