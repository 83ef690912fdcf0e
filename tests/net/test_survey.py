"""The survey: who times which links before the first plan, and how the plan uses it."""

from __future__ import annotations

import numpy as np
import pytest

from fedhp.cluster.coordinator.planning.link_estimates import SURVEY_PEERS, LinkSurvey
from fedhp.cluster.coordinator.planning.round_planner import RoundPlanner
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.config import parse
from fedhp.graph import full
from fedhp.rounds.context import planning_context

NAN = float("nan")


def link(worker: int, *, megabits: float = 8.0, lost: str = "") -> wire.LinkReport:
    """One megabyte over a link of this speed."""
    size = 0 if lost else 1_000_000
    return wire.LinkReport(
        worker=worker, bytes=size, seconds=8.0 / megabits, distance=NAN, probe=True, lost=lost
    )


@pytest.mark.parametrize("workers", [[0, 1], [0, 2, 3, 7], list(range(40))])
def test_everyone_times_some_links_and_is_timed_as_often(workers: list[int]) -> None:
    survey = LinkSurvey(workers, full(max(workers) + 1, seed=0))
    count = min(SURVEY_PEERS, len(workers) - 1)
    for worker in workers:
        asked = survey.wanted(worker)
        assert len(set(asked)) == count
        assert worker not in asked
    timed = [peer for worker in workers for peer in survey.wanted(worker)]
    assert np.bincount(timed, minlength=max(workers) + 1)[workers].tolist() == [count] * len(
        workers
    )


def test_only_links_of_the_base_topology_between_participants_are_timed() -> None:
    survey = LinkSurvey([0, 1, 3, 4], np.array([(0, 1), (0, 3), (1, 2), (3, 4)]))
    assert [survey.wanted(worker) for worker in range(5)] == [(1, 3), (0,), (), (4, 0), (3,)]


def test_it_is_over_when_all_that_are_alive_have_answered() -> None:
    survey = LinkSurvey([0, 1, 2], full(3, seed=0))
    assert not survey.is_over([0, 1, 2])
    survey.add(0, [link(1), link(2)])
    assert survey.wanted(0) == survey.wanted(5) == ()
    assert not survey.is_over([0, 1])
    assert survey.is_over([0, 5])  # a worker that came later was not asked
    survey.add(1, [link(0, lost="unreachable")])
    assert survey.is_over([0, 1])


def test_links_that_were_not_asked_for_are_ignored() -> None:
    survey = LinkSurvey(range(30), full(30, seed=0))
    survey.add(0, [link(20)])
    assert survey.wanted(0)
    survey.add(0, [link(20), link(3)])
    assert [link_report.worker for link_report in survey.timed[0]] == [3]
    survey.add(0, [link(4)])  # once only
    assert [link_report.worker for link_report in survey.timed[0]] == [3]


@pytest.mark.parametrize("sharing", [True, False])
def test_the_first_plan_knows_the_slow_worker(sharing: bool) -> None:
    experiment = parse(
        {
            "workers": 4,
            "rounds": 10,
            "algorithm": {"name": "fedhp", "deadline": "fill"},
            "topology": {"name": "ring"},
            "world": {"bandwidth": {"sharing": sharing}},
        }
    )
    everyone, step_time = np.ones(4, dtype=np.bool_), np.full(4, 0.01)

    def first_steps(slow: float) -> list[int]:
        planner = RoundPlanner(planning_context(experiment, model_bits=8e6))
        speed = [slow, 8.0, 8.0, 8.0]
        assert not planner.links.known()
        planner.learn_links(
            {
                worker: [
                    link(peer, megabits=min(speed[worker], speed[peer]))
                    for peer in range(4)
                    if peer != worker
                ]
                for worker in range(4)
            }
        )
        assert planner.links.known()
        planned = planner.plan(1, everyone, step_time)
        assert planner.probes(planned) == []  # all were timed just now
        return [int(link_report) for link_report in planned.local_steps]

    even, uneven = first_steps(8.0), first_steps(2.0)
    assert len(set(even)) == 1
    assert uneven[2] > max(uneven[worker] for worker in (0, 1, 3))  # not next to the slow one
