"""The time a campaign still takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedhp.config import parse
from fedhp.console.forecast import Forecast, RunForecast, cost_kind, round_work
from fedhp.engine.runs.campaign import Cell
from fedhp.terminal import duration


def cell(name: str, *, rounds: int = 10, model: str = "mlp", algorithm: str = "dpsgd") -> Cell:
    tables = {"rounds": rounds, "model": {"name": model}, "algorithm": {"name": algorithm}}
    return Cell(name, 0, parse(tables), Path(name))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_nothing_is_known_before_a_second_round() -> None:
    clock = Clock()
    one = cell("one")
    forecast = Forecast([one], jobs=1, clock=clock)
    assert forecast.seconds_left() is None
    forecast.round(one, 1)
    assert forecast.seconds_left() is None


def test_rounds_left_at_the_pace_seen() -> None:
    clock = Clock()
    one, two = cell("one"), cell("two")
    forecast = Forecast([one, two], jobs=1, clock=clock)
    forecast.round(one, 1)
    clock.now = 3.0
    forecast.round(one, 2)
    assert forecast.seconds_left() == pytest.approx(3.0 * (8 + 10))
    forecast.end(one)
    assert forecast.seconds_left() == pytest.approx(3.0 * 10)


def test_two_jobs_share_the_work_until_one_run_is_left() -> None:
    clock = Clock()
    one, two = cell("one"), cell("two")
    forecast = Forecast([one, two], jobs=2, clock=clock)
    forecast.round(one, 1)
    clock.now = 2.0
    forecast.round(one, 2)
    assert forecast.seconds_left() == pytest.approx(2.0 * 18 / 2)
    forecast.end(two)
    assert forecast.seconds_left() == pytest.approx(2.0 * 8)


def test_each_kind_has_its_own_pace() -> None:
    clock = Clock()
    small, large = cell("small"), cell("large", model="cnn")
    assert cost_kind(small) != cost_kind(large)
    forecast = Forecast([small, large], jobs=1, clock=clock)
    for each, pace in ((small, 1.0), (large, 9.0)):
        forecast.round(each, 1)
        clock.now += pace
        forecast.round(each, 2)
    assert forecast.seconds_left() == pytest.approx(8 * 1.0 + 8 * 9.0)


def test_work_follows_the_steps() -> None:
    base = round_work(cell("a"))
    assert round_work(cell("b", algorithm="ldsgd")) < base
    assert round_work(cell("c", algorithm="fedhp")) > base


def test_words() -> None:
    assert duration(3900) == "1 h 05 min"
    assert duration(600) == "10 min"
    assert duration(45) == "45 s"


def test_with_a_horizon_rounds_take_as_long_as_those_so_far() -> None:
    clock = Clock()
    one = Cell("one", 0, parse({"horizon": 100.0}), Path("one"))
    forecast = Forecast([one], jobs=1, clock=clock)
    forecast.round(one, 1, clock=5.0)
    clock.now = 2.0
    forecast.round(one, 2, clock=10.0)
    assert forecast.seconds_left() == pytest.approx(2.0 * 18)


def test_runs_that_are_not_known_yet_take_as_long_as_those_so_far() -> None:
    clock = Clock()
    found, one, two = cell("found"), cell("one"), cell("two")
    forecast = RunForecast(10, clock=clock)
    forecast.end(found)  # it had been finished before
    assert forecast.seconds_left() is None
    for run in (one, two):
        forecast.round(run, 1)
        clock.now += 4.0
        forecast.end(run)
    assert forecast.seconds_left() == pytest.approx(4.0 * 7)
    forecast.total = 6
    assert forecast.seconds_left() == pytest.approx(4.0 * 3)
