"""FedHP+ on shaped links: eight workers behind 1 to 10 Mb/s, each in its own network namespace.

The consensus has the bits of the simulation, the simulator's prediction of the rounds fits the
clock, the bytes are those that were planned; and members that are killed during the transfer, at
any instant, cost the others a round and no more.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faults.custom_cluster import COORDINATOR, CustomCluster
from faults.namespaces import Net, needs_namespaces
from faults.test_shaped import MEGABITS, OFF_BY, settings
from fedhp.cluster.audit.committed_rounds import CommittedRound, read_committed_rounds
from fedhp.cluster.audit.invariants import GRACE, check_invariants
from fedhp.cluster.audit.timeline import read_timeline
from fedhp.cluster.audit.verify import verify
from fedhp.config import Experiment, parse, to_tables
from fedhp.exchange import GroupAverage
from fedhp.record.reader import RunReader
from fedhp.rounds.context import planning_context
from fedhp.seeds import Purpose, generator
from fedhp.tables import merge_tables
from fedhp.types import FloatArray
from waiting import let_fault_last, wait_until

ROUNDS = 20
KILLS = 20
FRAMES = 0.08  # of a transfer: TCP, TLS and HTTP/2, and their acknowledgements
HEADERS = 1.10  # bytes of a stream of pieces, in multiples of the numbers in it
pytestmark = [pytest.mark.slow, pytest.mark.alone]


def group_settings(folder: Path, *, rounds: int, **changes: Any) -> Experiment:
    """The world of test_shaped.py; 900,000 parameters, of which half travels at a time."""
    tables = to_tables(settings("dpsgd", folder))
    group = {
        "rounds": rounds,
        "algorithm": {"name": "fedhp_plus", "deadline_ratio": 0.3},
        "model": {"hidden": [12000]},
        "evaluation": {"every": rounds},
    }
    return parse(merge_tables(merge_tables(tables, group), changes))


@dataclass(frozen=True, slots=True)
class Ran:
    """A run without faults."""

    folder: Path
    experiment: Experiment
    rounds: list[CommittedRound]
    deadline: FloatArray  # s, of every round
    planned: FloatArray  # s of the transfer that the coordinator expected, of every average
    model_bits: float


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    needs_namespaces()
    base = tmp_path_factory.mktemp("groups")
    experiment, folder = group_settings(base, rounds=ROUNDS), base / "run"
    with shaped(experiment, folder) as cluster:
        cluster.wait(280)
    assert check_invariants(folder, rounds=ROUNDS) == []
    with RunReader(folder) as reader:
        facts = reader.table("facts")
        model_bits = 8.0 * int(reader.meta("model_bytes"))
    deadline, planned = (
        np.array([v for n, v in zip(facts["name"], facts["value"], strict=True) if n == name])
        for name in ("deadline", "planned_transfer_time")
    )
    rounds = list(read_committed_rounds(read_timeline(folder)))
    return Ran(folder, experiment, rounds, deadline, planned, model_bits)


@contextmanager
def shaped(experiment: Experiment, folder: Path) -> Iterator[CustomCluster]:
    """A running cluster on these links."""
    hosts = [COORDINATOR, *(f"w{worker}" for worker in range(experiment.workers))]
    with Net(hosts) as net, CustomCluster(experiment, folder, net=net) as cluster:
        for worker, megabits in enumerate(MEGABITS):
            net.shape(f"w{worker}", megabits)
        cluster.start()
        yield cluster


def averages(run: Ran) -> Iterator[tuple[CommittedRound, GroupAverage, float]]:
    """The rounds with an average, and their deadlines."""
    for done, deadline in zip(run.rounds, run.deadline, strict=True):
        if done.averaged is not None and done.averaged.required:
            (group,) = done.averaged.groups
            yield done, group, float(deadline)


def test_the_consensus_has_the_bits_of_the_simulation(ran: Ran) -> None:
    verification = verify(ran.folder)
    assert verification.equal
    assert verification.whole
    assert sum(verdict.compared for verdict in verification.rounds) == 8 * ROUNDS
    assert all(len(done.consensus) == 8 for done in ran.rounds)


def test_the_simulator_predicts_the_rounds(ran: Ran, record_property: Any) -> None:
    network = planning_context(ran.experiment, model_bits=ran.model_bits).world.network(0.0)
    predicted = np.array(
        [group.transfer_time(network) + deadline for _, group, deadline in averages(ran)]
    )
    real = np.array([done.round_time for done, _, _ in averages(ran)])
    errors = np.abs(predicted - real) / real
    record_property(
        "figure: fedhp_plus on shaped links, round time",
        f"{real.mean():.2f} s, predicted {predicted.mean():.2f} s, off by "
        f"{100 * errors.mean():.1f} % in the mean, {100 * errors.max():.1f} % at worst",
    )
    # The simulator's links have no frames and acknowledgements; the coordinator learns them, below.
    assert errors.mean() <= OFF_BY + FRAMES


def test_the_coordinator_predicts_the_rounds(ran: Ran, record_property: Any) -> None:
    """From measured links and the overhead that it has learned."""
    planned = ran.planned + [deadline for _, _, deadline in averages(ran)]
    real = np.array([done.round_time for done, _, _ in averages(ran)])
    errors = np.abs(planned - real) / real
    record_property(
        "figure: fedhp_plus on shaped links, round time as the coordinator expects it",
        f"{real.mean():.2f} s, planned {planned.mean():.2f} s, off by "
        f"{100 * errors.mean():.1f} % in the mean, {100 * errors.max():.1f} % at worst",
    )
    assert errors.mean() <= OFF_BY


def test_nobody_sends_more_than_its_degree_times_a_fragment(ran: Ran, record_property: Any) -> None:
    ratios = []
    with RunReader(ran.folder) as reader:
        for done, group, _ in averages(ran):
            links = reader.table("links", round_index=done.attempt.round_index)
            used = np.array(links["used"], dtype=np.bool_)
            measured = np.array(links["bytes"])[used]
            planned = group.link_bytes(ran.model_bits)
            np.testing.assert_array_equal(done.links, group.links)
            ratios.extend((measured / planned).tolist())
    record_property(
        "figure: fedhp_plus on shaped links, bytes of a link",
        f"{min(ratios):.3f} to {max(ratios):.3f} of those predicted",
    )
    assert max(ratios) <= HEADERS
    assert min(ratios) >= 1 / HEADERS


def test_the_slowest_links_take_part_less_often(ran: Ran, record_property: Any) -> None:
    """Participants are chosen by the bandwidth that was measured."""
    counts = np.zeros(8)
    for _, group, _ in averages(ran):
        counts[group.participants] += 1
    record_property("figure: fedhp_plus on shaped links, averages by worker", str(counts.tolist()))
    assert counts[[5, 6, 7]].min() > counts[0]


@pytest.mark.timeout(900)
def test_members_killed_during_the_transfer(tmp_path: Path, record_property: Any) -> None:
    needs_namespaces()
    experiment = group_settings(
        tmp_path,
        rounds=10_000,
        model={"hidden": [4000]},
        cluster={"min_workers": 3, "suspect_after": 3.0, "dead_after": 8.0, "beat": 0.5},
    )
    folder, rng = tmp_path / "run", generator(0, Purpose.ALGORITHM, 78)
    with shaped(experiment, folder) as cluster:
        cluster.until_round(3, seconds=120)
        for _ in range(KILLS):
            until_attempt(cluster, len(cluster.events("attempt")) + 1)
            group = cluster.events("attempt")[-1]["group"]
            victim = f"w{rng.choice(group['participants'])}"
            let_fault_last(float(rng.uniform(0, 1.0)))
            process = cluster.processes[victim]
            assert process.pid is not None
            cluster.note("kill", [victim])
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            cluster.until_round(cluster.committed() + 2, seconds=60)
            cluster.note("start", [victim])
            cluster.start_worker(victim)
            cluster.until_round(cluster.committed() + 1, seconds=60)
        given_up = len(cluster.events("gave_up"))
    violations = check_invariants(folder)
    assert violations == []
    verification = verify(folder)
    assert verification.equal
    assert verification.whole
    timeline = read_timeline(folder)
    waits = [end - start for start, end in next_commits(timeline.terms[0].events)]
    record_property(
        f"figure: fedhp_plus on shaped links, {KILLS} members killed during the transfer",
        f"{given_up} attempts given up, the next round after {max(waits):.1f} s at most; "
        f"{sum(verdict.compared for verdict in verification.rounds)} models compared, all equal",
    )


def until_attempt(cluster: CustomCluster, count: int) -> None:
    """Wait until so many attempts have begun."""
    wait_until(lambda: len(cluster.events("attempt")) >= count, "an attempt")


def next_commits(events: Sequence[Mapping[str, Any]]) -> Iterator[tuple[float, float]]:
    """From each attempt that was given up to the next commit; each within its deadline."""
    started: Mapping[str, Any] = {}
    lost: Mapping[str, Any] | None = None
    for event in events:
        if event["event"] == "attempt":
            started = event
        elif event["event"] == "gave_up" and lost is None:
            lost = started
        elif event["event"] == "commit" and lost is not None:
            assert event["at"] - lost["at"] <= lost["deadline"] + GRACE
            yield float(lost["at"]), float(event["at"])
            lost = None
