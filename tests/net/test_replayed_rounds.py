"""Rounds of a network repeated in simulation, one by one: what is unknown, and which weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from faults.invented_run import InventedRun
from fedhp import GroupAverage, WeightedMixing
from fedhp.cluster.audit.committed_rounds import CommittedRound
from fedhp.cluster.audit.replay import RunReplayer
from fedhp.cluster.audit.timeline import read_timeline
from fedhp.cluster.protocol.attempt import Attempt
from fedhp.config import parse, to_tables
from net.clusters import tiny

N = 3


def round_of(index: int, *, participants: tuple[int, ...] = (0, 1, 2), **facts: Any) -> Any:
    """A round with all links and nothing lost."""
    settings: dict[str, Any] = {
        "attempt": Attempt(1, index, 1),
        "participants": participants,
        "digests": dict.fromkeys(participants, ""),
        "unreported": {},
        "lost": {},
        "local_steps": np.array([int(worker in participants) for worker in range(N)]),
        "learning_rate": 0.1,
        "links": np.array([[0, 1], [0, 2], [1, 2]]),
        "directed": False,
        "scored": False,
        "has_all_links": True,
        "compute_time": np.zeros(N),
        "communication_time": np.zeros(N),
        "round_time": 1.0,
    }
    return CommittedRound(**(settings | facts))


@pytest.fixture
def history(tmp_path: Path) -> InventedRun:
    run = InventedRun(workers=N)
    run.lead(1)
    return run


def replayer_of(run: InventedRun, folder: Path, **sections: Any) -> RunReplayer:
    experiment = tiny(workers=N, rounds=4)
    tables = {**to_tables(experiment), **sections}
    return RunReplayer(tomli_w.dumps(to_tables(parse(tables))), read_timeline(run.write(folder)))


@pytest.fixture
def replayer(history: InventedRun, tmp_path: Path) -> Iterator[RunReplayer]:
    replayer = replayer_of(history, tmp_path)
    yield replayer
    replayer.close()


def test_a_round_that_is_not_on_record_ends_the_comparison(replayer: RunReplayer) -> None:
    assert replayer.prepare_round(round_of(2)) == "there is no record of round 1"
    assert replayer.prepare_round(round_of(3)) == "there is no record of round 1"  # still
    assert replayer.unknown_inputs(round_of(3)) == "there is no record of round 1"


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"has_all_links": False}, "only a selection of its links"),
        ({"scored": True}, "scored by an algorithm of your own"),
    ],
)
def test_what_a_record_does_not_say(facts: dict[str, Any], why: str, replayer: RunReplayer) -> None:
    assert why in replayer.prepare_round(round_of(1, **facts))


def test_a_group_average_needs_all_of_its_members(replayer: RunReplayer) -> None:
    returning = np.zeros(N, dtype=np.bool_)
    group = GroupAverage(np.arange(N), np.array([-1, 0, 0]), returning)
    lacking = round_of(1, exchange=group, digests={0: ""})
    assert "participants [1, 2] of its average did not report" in replayer.prepare_round(lacking)


def test_models_to_return_to_must_have_been_kept(replayer: RunReplayer) -> None:
    group = GroupAverage(np.arange(N), np.array([-1, 0, 0]), np.zeros(N, dtype=np.bool_))
    back = round_of(1, exchange=group, back_to=Attempt(1, 7, 1))
    assert replayer.prepare_round(back) == "the models of round 7 are unknown"


def test_who_began_with_an_unknown_model_is_not_compared(
    history: InventedRun, tmp_path: Path
) -> None:
    """Worker 2 was away in round 1; it took the model of worker 0 after that, or did not."""
    for caught_up in (False, True):
        folder = tmp_path / str(caught_up)
        folder.mkdir()
        if caught_up:
            history.note("w2", "caught_up", epoch=1, round=1, attempt=1, peer="w0", position=4)
        replayer = replayer_of(history, folder)
        alone = round_of(1, participants=(0, 1), links=np.array([[0, 1]]))
        assert replayer.prepare_round(alone) == ""
        digests = replayer.replay_round(alone)
        assert digests.keys() == {0, 1}
        assert digests[0] == digests[1]  # both have the mean of two
        after = round_of(2)
        assert replayer.prepare_round(after) == ""
        why = "" if caught_up else "the model that worker 2 began with is unknown"
        assert replayer.unknown_inputs(after) == why
        known = replayer.replay_round(after).keys()
        assert known == ({0, 1, 2} if caught_up else set())  # all heard of worker 2
        replayer.close()


def test_a_model_that_did_not_come_counts_for_the_reader_itself(
    history: InventedRun, tmp_path: Path
) -> None:
    """Without the only other model a worker keeps its own; without one of two it takes more of
    its own. Who has no part in the round keeps what it had."""
    found = []
    links = np.array([[0, 2], [1, 0], [1, 2], [2, 0], [2, 1]])
    more = WeightedMixing(links, np.full(5, 1 / 3), np.array([2 / 3, 1 / 3, 1 / 3]))
    own = WeightedMixing(links[1:], np.full(4, 1 / 3), np.array([1.0, 1 / 3, 1 / 3]))
    for name, lost, exchange in (
        ("none", {}, None),
        ("one", {0: {1: 0}}, None),
        ("both", {0: {1: 0, 2: 0}}, None),
        ("more of its own", {}, more),
        ("its own", {}, own),
    ):
        folder = tmp_path / name
        folder.mkdir()
        replayer = replayer_of(history, folder)
        done = round_of(1, lost=lost, exchange=exchange)
        assert replayer.prepare_round(done) == ""
        found.append(replayer.replay_round(done))
        replayer.close()
    whole, one, both, more_weight, alone = found
    assert (one[0], both[0]) == (more_weight[0], alone[0])
    assert whole[0] == whole[1] == whole[2]
    assert len({whole[0], one[0], both[0]}) == 3
    assert one[1] == both[1] == whole[1]
