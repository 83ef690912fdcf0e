"""How many steps a round by time has: those that end in it, and a slow worker's over several."""

from __future__ import annotations

import time

import numpy as np
import pytest

from fedhp.cluster.worker import pace as module
from fedhp.cluster.worker.pace import StepPace


class Clock:
    """Time that passes only when somebody sleeps or works."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(module, "time", self)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def count(pace: StepPace, end: float, clock: Clock, *, work: float = 0.0) -> int:
    """Take steps until a moment; each takes so long on the real machine."""
    before = pace.steps
    while pace.until(end):
        clock.now += work
    return pace.steps - before


def test_emulated_steps_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    pace = StepPace(
        usual=9.0, emulated=lambda steps: np.full(steps, 0.3), stopped=lambda: False, carried=0.0
    )
    assert count(pace, 101.0, clock) == 3
    assert pace.seconds == pytest.approx(0.9)
    assert pace.carried == pytest.approx(0.1)


def test_a_slow_worker_takes_its_step_over_several_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in simulation: a step of 1 s in rounds of 0.4 s ends in the third one."""
    clock, carried, steps = Clock(monkeypatch), 0.0, []
    for number in range(5):
        pace = StepPace(
            usual=1.0,
            emulated=lambda count: np.full(count, 1.0),
            stopped=lambda: False,
            carried=carried,
        )
        end = 100.0 + 0.4 * (number + 1)
        steps.append(count(pace, end, clock))
        clock.now, carried = end, pace.carried
    assert steps == [0, 0, 1, 0, 1]


def test_real_steps_are_expected_to_take_as_long_as_those_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    pace = StepPace(usual=0.5, emulated=None, stopped=lambda: False)
    assert count(pace, 101.0, clock, work=0.3) == 3
    assert pace.seconds == pytest.approx(0.9)


def test_until_the_average_is_there_or_the_job_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stopped = Clock(monkeypatch), [False]
    pace = StepPace(usual=0.5, emulated=None, stopped=lambda: stopped[0])
    assert pace.until_arrival()
    clock.now += 0.5
    assert pace.until_arrival()
    clock.now += 0.5
    pace.arrived.set()
    assert not pace.until_arrival()
    assert (pace.steps, pace.seconds) == (2, 1.0)
    stopped[0] = True
    assert not pace.until(time.monotonic() + 1e9)
