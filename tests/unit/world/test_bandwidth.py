"""Bandwidth: uniform marginals, correlated in virtual time, a function of time and seed."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from scipy.stats import kstest, norm

from fedhp.config import BandwidthConfig
from fedhp.seeds import Purpose, generator
from fedhp.types import FloatArray
from fedhp.world import network
from fedhp.world.network import Bandwidth


def bandwidth(seed: int = 0, workers: int = 30, **settings: Any) -> Bandwidth:
    return Bandwidth(BandwidthConfig(**settings), workers=workers, seed=seed)


def series(links: Bandwidth, intervals: int, step: float = 10.0) -> FloatArray:
    """[intervals, N] in units of a million bits per second."""
    return np.array([links.at(k * step) for k in range(intervals)]) / 1e6


def test_units() -> None:
    for unit, factor in (("Mb/s", 1e6), ("MB/s", 8e6)):
        values = bandwidth(unit=unit, low=2.0, high=3.0).at(0.0)
        assert values.min() >= 2 * factor
        assert values.max() <= 3 * factor
    same = bandwidth(unit="MB/s").at(50.0) / bandwidth(unit="Mb/s").at(50.0)
    np.testing.assert_allclose(same, 8.0)


def test_uniform_between_low_and_high() -> None:
    """Independent intervals: a Kolmogorov-Smirnov distance as small as chance allows."""
    values = series(bandwidth(unit="Mb/s", correlation=0.0, workers=40), 200).ravel()
    assert kstest((values - 1) / 9, "uniform").statistic < 1.63 / np.sqrt(values.size)
    assert values.mean() == pytest.approx(5.5, abs=0.1)


def test_uniform_at_every_time_also_with_correlation() -> None:
    for interval in (0, 1, 7, 63, 64, 65, 200):
        values = np.concatenate(
            [bandwidth(seed, unit="Mb/s").at(10.0 * interval) / 1e6 for seed in range(60)]
        )
        assert kstest((values - 1) / 9, "uniform").statistic < 1.63 / np.sqrt(values.size)


@pytest.mark.parametrize("interval", [10.0, 2.5])
def test_correlation_of_the_copula_over_one_interval(interval: float) -> None:
    links = bandwidth(unit="Mb/s", interval=interval, workers=60)
    z = norm.ppf((series(links, 320, step=interval) - 1) / 9)
    for lag in (1, 2, 3):
        pairs = np.corrcoef(z[:-lag].ravel(), z[lag:].ravel())[0, 1]
        assert pairs == pytest.approx(0.8**lag, abs=0.03)
    assert z.std() == pytest.approx(1, abs=0.05)
    # Also from one drawn block to the next.
    border = np.corrcoef(z[63], z[64])[0, 1]
    assert border == pytest.approx(0.8, abs=0.2)


def test_workers_are_independent() -> None:
    z = norm.ppf((series(bandwidth(unit="Mb/s", correlation=0.0), 640) - 1) / 9)
    between = np.corrcoef(z.T)[~np.eye(30, dtype=np.bool_)]
    assert np.abs(between).max() < 0.2
    assert np.abs(between.mean()) < 0.01


def test_constant_within_an_interval() -> None:
    links = bandwidth()
    assert (links.at(20.0) == links.at(29.999)).all()
    assert not (links.at(20.0) == links.at(30.0)).any()


def test_the_order_of_the_questions_does_not_matter() -> None:
    times = [0.0, 5.0, 12.0, 700.0, 650.0, 3000.0, 1.0]
    forwards, backwards = bandwidth(4), bandwidth(4)
    first = {time: forwards.at(time) for time in times}
    second = {time: backwards.at(time) for time in reversed(times)}
    for time in times:
        assert (first[time] == second[time]).all()
        assert (bandwidth(4).at(time) == first[time]).all()
    assert not (bandwidth(5).at(0.0) == first[0.0]).any()


def test_the_caller_cannot_change_the_world() -> None:
    with pytest.raises(ValueError, match="read-only"):
        bandwidth().at(3.0)[:] = 0


def test_per_link_is_symmetric_and_uniform() -> None:
    links = bandwidth(unit="Mb/s", per="link", workers=40)
    upper = np.triu_indices(40, 1)
    for time in (0.0, 640.0):
        matrix = links.at(time) / 1e6
        assert matrix.shape == (40, 40)
        assert (matrix == matrix.T).all()
        values = matrix[upper]
        assert kstest((values - 1) / 9, "uniform").statistic < 1.63 / np.sqrt(values.size)
    z = np.array([norm.ppf((links.at(10.0 * k)[upper] / 1e6 - 1) / 9) for k in range(20)])
    assert np.corrcoef(z[:-1].ravel(), z[1:].ravel())[0, 1] == pytest.approx(0.8, abs=0.03)


def test_equal_ends_mean_a_constant() -> None:
    links = bandwidth(low=5.0, high=5.0, unit="MB/s")
    assert set(links.at(123.0).tolist()) == {40e6}


def test_full_correlation_never_moves() -> None:
    links = bandwidth(correlation=1.0)
    np.testing.assert_allclose(links.at(0.0), links.at(5000.0))


@pytest.mark.parametrize("per", ["worker", "link"])
def test_one_worker(per: str) -> None:
    links = bandwidth(per=per, workers=1).at(0.0)
    assert links.shape == ((1,) if per == "worker" else (1, 1))


def by_blocks(seed: int, size: int, intervals: int, correlation: float) -> FloatArray:
    """z drawn a block of 64 intervals at a time: what the numbers are by definition."""
    blocks = [
        generator(seed, Purpose.BANDWIDTH, block).standard_normal((64, size))
        for block in range(intervals // 64 + 1)
    ]
    z = np.concatenate(blocks)
    for k in range(1, len(z)):
        z[k] = np.sqrt(1 - correlation**2) * z[k] + correlation * z[k - 1]
    return z


@pytest.mark.parametrize("memory", [16e6, 1.0])
@pytest.mark.parametrize("per", ["worker", "link"])
def test_the_numbers_do_not_depend_on_what_is_remembered(
    per: str, memory: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also asked for earlier times, where it has to start again."""
    monkeypatch.setattr(network, "_MEMORY", memory)
    workers = 5
    links = bandwidth(3, workers, per=per, unit="Mb/s")
    z = by_blocks(3, 10 if per == "link" else workers, 300, 0.8)
    for interval in (0, 1, 63, 64, 70, 65, 200, 199, 2, 300, 128, 300):
        values = links.at(10.0 * interval + 3)
        if per == "link":
            assert (values == values.T).all()
            values = values[np.triu_indices(workers, 1)]
        np.testing.assert_allclose(values, (1 + 9 * norm.cdf(z[interval])) * 1e6, rtol=1e-12)


def test_one_interval_is_one_answer() -> None:
    links = bandwidth()
    assert links.at(12.0) is links.at(19.9)
    assert links.at(20.0) is not links.at(19.9)


def test_links_of_a_thousand_workers_need_few_intervals_in_memory() -> None:
    """A row has half a million numbers; rounds may ask for now and for one round ago."""
    links = bandwidth(workers=1000, per="link")
    tracemalloc.start()
    for interval in (0, 9, 0, 18, 9):
        links.at(10.0 * interval)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6
    drawn = links._drawn
    links.at(180.0)
    assert links._drawn == drawn == 18
