"""Who is there: listed absences, random ones, and always someone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedhp.config import parse
from fedhp.errors import ConfigError
from fedhp.world.availability import Availability, build_availability


def availability(seed: int = 0, workers: int = 4, rounds: int = 10, **world: Any) -> Availability:
    config = parse({"workers": workers, "world": world}).world
    return build_availability(config, workers=workers, rounds=rounds, seed=seed)


def test_everyone_by_default() -> None:
    assert availability().at(1).tolist() == [True] * 4


def test_listed_absences_include_both_ends() -> None:
    schedule = availability(
        away=[{"worker": 1, "first": 3, "last": 5}, {"worker": 2, "first": 5, "last": 5}]
    )
    gone = {k: np.flatnonzero(~schedule.at(k)).tolist() for k in range(2, 7)}
    assert gone == {2: [], 3: [1], 4: [1], 5: [1, 2], 6: []}


def test_random_absences_have_the_given_probability() -> None:
    schedule = availability(workers=50, away_probability=0.3)
    gone = np.array([~schedule.at(k) for k in range(1, 201)])
    assert gone.mean() == pytest.approx(0.3, abs=0.02)
    assert gone.mean(axis=0).max() < 0.5


def test_a_function_of_seed_and_round() -> None:
    one, two = availability(away_probability=0.5), availability(away_probability=0.5)
    forwards = [one.at(k).tolist() for k in range(1, 30)]
    backwards = [two.at(k).tolist() for k in reversed(range(1, 30))]
    assert forwards == backwards[::-1]
    other = availability(1, away_probability=0.5)
    assert [other.at(k).tolist() for k in range(1, 30)] != forwards


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_someone_is_always_there(workers: int) -> None:
    schedule = availability(workers=workers, away_probability=0.99)
    for round_index in range(1, 200):
        assert schedule.at(round_index).any()


def test_who_stays_is_not_one_who_is_listed_as_away() -> None:
    absences = [{"worker": 0, "first": 1, "last": 99}]
    schedule = availability(workers=3, away=absences, away_probability=0.99)
    stayed = set()
    for round_index in range(1, 100):
        there = np.flatnonzero(schedule.at(round_index)).tolist()
        assert there
        assert 0 not in there
        stayed.update(there)
    assert stayed == {1, 2}


def test_a_round_without_anyone_is_refused() -> None:
    absences = [{"worker": 0, "first": 2, "last": 6}, {"worker": 1, "first": 5, "last": 9}]
    with pytest.raises(ConfigError, match=r"world.away: all 2 workers are away in round 5"):
        availability(workers=2, away=absences)
    assert not availability(workers=2, rounds=4, away=absences).at(3)[0]  # never comes to it
