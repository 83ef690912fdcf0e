"""Every algorithm passes the same suite: pure, deterministic, a state that packs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract.rounds import (
    ASYNCHRONOUS,
    CASES,
    SYNCHRONOUS,
    federation,
    make,
    observe,
    play,
    read_only,
)
from fedhp.algorithms import Algorithm, AsyncAlgorithm
from fedhp.record.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from fedhp.record.tensors import pack, unpack
from paper.compare import leaves


@pytest.mark.parametrize("name", SYNCHRONOUS)
@pytest.mark.parametrize("away", [False, True])
def test_planning_is_pure(name: str, away: bool) -> None:
    """The same inputs give the same outputs, and stay as they were."""
    for turn in play(name, 6, away=away):
        inputs = (turn.state, turn.observation, turn.reports)
        copies = deepcopy(inputs)
        for each in inputs:
            read_only(each)
        algorithm = make(name)
        assert isinstance(algorithm, Algorithm)
        after, plan = algorithm.plan(*inputs)
        assert leaves(after) == leaves(turn.after)
        assert leaves(plan) == leaves(turn.plan)
        for mine, copy in zip(inputs, copies, strict=True):
            assert leaves(mine) == leaves(copy)


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_acting_is_pure(name: str) -> None:
    """Also whatever was asked before: an action depends on worker and turn alone."""
    algorithm = make(name)
    assert isinstance(algorithm, AsyncAlgorithm)
    state = algorithm.start(federation(6))
    observation = observe(6, 1, away=True)
    read_only(state)
    read_only(observation)
    copies = deepcopy((state, observation))
    asked = [(worker, turn) for worker in range(6) for turn in range(5)]
    first = {key: algorithm.act(state, key[0], observation, turn=key[1]) for key in asked}
    fresh = make(name)
    assert isinstance(fresh, AsyncAlgorithm)
    for worker, turn in reversed(asked):
        after, action = fresh.act(state, worker, observation, turn=turn)
        assert leaves(after) == leaves(first[worker, turn][0])
        assert action == first[worker, turn][1]
    assert [leaves(each) for each in (state, observation)] == [leaves(each) for each in copies]


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_the_seed_decides(name: str) -> None:
    def plans(seed: int) -> list[list[Any]]:
        return [leaves(turn.plan) for turn in play(name, 12, seed=seed)]

    assert plans(0) == plans(0)
    if not name.startswith("fedhp"):  # FedHP draws nothing: its plans follow from the reports
        assert plans(0) != plans(1)


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_the_seed_decides_actions(name: str) -> None:
    def actions(seed: int) -> list[Any]:
        algorithm = make(name)
        assert isinstance(algorithm, AsyncAlgorithm)
        state = algorithm.start(federation(12, seed=seed))
        observation = observe(12, 1, away=False)
        return [
            algorithm.act(state, worker, observation, turn=turn)[1]
            for worker in range(12)
            for turn in range(4)
        ]

    assert actions(0) == actions(0)
    assert actions(0) != actions(1)


@pytest.mark.parametrize("name", CASES)
def test_the_global_generators_are_left_alone(name: str) -> None:
    state: Any = np.random.get_state()  # noqa: NPY002
    if name in SYNCHRONOUS:
        list(play(name, 5, away=True))
    else:
        algorithm = make(name)
        assert isinstance(algorithm, AsyncAlgorithm)
        algorithm.act(algorithm.start(federation(5)), 0, observe(5, 1, away=False), turn=0)
    assert (np.random.get_state()[1] == state[1]).all()  # type: ignore[index] # noqa: NPY002


def states(name: str) -> Iterator[Any]:
    """The state at the start and after every round."""
    algorithm = make(name)
    yield algorithm.start(federation(6))
    if isinstance(algorithm, Algorithm):
        for turn in play(name, 6, away=True):
            yield turn.after


@pytest.mark.parametrize("name", CASES)
def test_the_state_packs_bit_for_bit(name: str, tmp_path: Path) -> None:
    """Through JSON and through a checkpoint file."""
    for number, state in enumerate(states(name)):
        arrays, scalars = pack("state", state)
        again = unpack("state", type(state), arrays, json.loads(json.dumps(scalars)))
        assert leaves(again) == leaves(state)
        write_checkpoint(tmp_path, Checkpoint(number, arrays, scalars))
        saved = read_checkpoint(tmp_path)
        assert saved is not None
        assert saved.round_index == number
        loaded = unpack("state", type(state), saved.arrays, saved.scalars)
        assert leaves(loaded) == leaves(state)


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_an_unpacked_state_plans_the_same(name: str) -> None:
    for turn in play(name, 6, away=True):
        arrays, scalars = pack("state", turn.state)
        again = unpack("state", type(turn.state), arrays, scalars)
        algorithm = make(name)
        assert isinstance(algorithm, Algorithm)
        after, plan = algorithm.plan(again, turn.observation, turn.reports)
        assert leaves(plan) == leaves(turn.plan)
        assert leaves(after) == leaves(turn.after)


@pytest.mark.parametrize("name", CASES)
def test_the_state_is_a_frozen_dataclass(name: str) -> None:
    state = make(name).start(federation(3))
    assert is_dataclass(state)
    first = fields(state)[0].name
    with pytest.raises(AttributeError):
        setattr(state, first, None)
