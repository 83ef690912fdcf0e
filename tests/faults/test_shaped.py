"""Shaped links: eight workers behind 1 to 10 Mb/s, each in its own network namespace.

The simulator's prediction of the rounds that were run must fit the clock, and FedHP must wait
less than D-PSGD on the same links. Step times are emulated, transfers are real.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faults.custom_cluster import COORDINATOR, CustomCluster
from faults.namespaces import Net, needs_namespaces
from fedhp.cluster.audit.committed_rounds import CommittedRound, read_committed_rounds
from fedhp.cluster.audit.invariants import check_invariants
from fedhp.cluster.audit.timeline import read_timeline
from fedhp.config import Experiment, parse
from fedhp.record.reader import RunReader
from fedhp.rounds.context import planning_context
from fedhp.timing import slowest_link, slowest_pull
from fedhp.types import FloatArray

MEGABITS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
STEP_SECONDS = (0.10, 0.30, 0.05, 0.20, 0.10, 0.30, 0.05, 0.20)
ROUNDS = 10
OFF_BY = 0.15
pytestmark = [pytest.mark.slow, pytest.mark.alone]


@dataclass(frozen=True, slots=True)
class Ran:
    """One run on these links."""

    real: FloatArray  # s of every round
    predicted: FloatArray  # by the simulator, for the same plans
    waiting: FloatArray  # s, mean over the workers


ALGORITHMS: dict[str, dict[str, Any]] = {
    "dpsgd": {"name": "dpsgd"},
    # The fastest need more than the usual 100 steps to fill a round of the slowest link.
    "fedhp": {"name": "fedhp", "max_steps": 250},
    "fedhp, fill": {"name": "fedhp", "deadline": "fill"},
}


def settings(algorithm: str, folder: Path) -> Experiment:
    """The same world for all: step times and links of the workers."""
    trace = folder / "world.csv"
    rows = [
        f"0,{worker},{megabits},{step}"
        for worker, (megabits, step) in enumerate(zip(MEGABITS, STEP_SECONDS, strict=True))
    ]
    trace.write_text("\n".join(["time,worker,bandwidth,step_time", *rows, ""]), encoding="utf-8")
    return parse(
        {
            "workers": len(MEGABITS),
            "rounds": ROUNDS,
            "seed": 3,
            "algorithm": ALGORITHMS[algorithm],
            "model": {"name": "mlp", "hidden": [400]},  # 120 kB
            "data": {"skew": 0.5},
            "training": {"local_steps": 10, "batch_size": 8},
            "evaluation": {"images": 50, "every": ROUNDS},
            "world": {
                "trace": str(trace),
                "bandwidth": {"low": 1.0, "high": 10.0, "unit": "Mb/s", "sharing": True},
            },
            "cluster": {"emulate": True, "min_workers": 8, "suspect_after": 10.0, "gather": 120.0},
        }
    )


def ran(algorithm: str, folder: Path) -> Ran:
    """Run it, in namespaces."""
    folder.mkdir()
    experiment = settings(algorithm, folder)
    hosts = [COORDINATOR, *(f"w{worker}" for worker in range(experiment.workers))]
    with Net(hosts) as net, CustomCluster(experiment, folder / "run", net=net) as cluster:
        for worker, megabits in enumerate(MEGABITS):
            net.shape(f"w{worker}", megabits)
        cluster.start()
        cluster.wait(600)
    assert check_invariants(folder / "run", rounds=ROUNDS) == []
    with RunReader(folder / "run") as reader:
        waiting = reader.array("rounds", "mean_waiting_time")
        model_bytes = int(reader.meta("model_bytes"))
    rounds = list(read_committed_rounds(read_timeline(folder / "run")))
    return Ran(
        np.array([done.round_time for done in rounds]),
        np.array([predicted(experiment, done, model_bits=8.0 * model_bytes) for done in rounds]),
        waiting,
    )


def predicted(experiment: Experiment, done: CommittedRound, *, model_bits: float) -> float:
    """What the simulator says of this plan in this world."""
    world = planning_context(experiment, model_bits=model_bits).world
    compute = world.compute_times(done.local_steps, done.attempt.round_index, time=0.0)
    transfers = np.bincount(done.links.ravel(), minlength=experiment.workers)
    times = world.network(0.0).link_time(done.links, transfers)
    slowest = slowest_pull if done.directed else slowest_link
    return float((compute + slowest(experiment.workers, done.links, times)).max())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    needs_namespaces()
    base = tmp_path_factory.mktemp("shaped")
    return {name: ran(name, base / name) for name in ALGORITHMS}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_simulator_predicts_the_rounds(
    runs: dict[str, Ran], algorithm: str, record_property: Any
) -> None:
    run = runs[algorithm]
    errors = np.abs(run.predicted - run.real) / run.real
    record_property(
        f"figure: {algorithm} on shaped links, round time",
        f"{run.real.mean():.2f} s, predicted {run.predicted.mean():.2f} s, off by "
        f"{100 * errors.mean():.1f} % in the mean, {100 * errors.max():.1f} % at worst",
    )
    assert abs(run.predicted.mean() - run.real.mean()) <= OFF_BY * run.real.mean()
    assert errors.mean() <= OFF_BY


@pytest.mark.parametrize("algorithm", ["fedhp", "fedhp, fill"])
def test_fedhp_waits_a_third_of_dpsgd(
    runs: dict[str, Ran], algorithm: str, record_property: Any
) -> None:
    fedhp, dpsgd = runs[algorithm].waiting, runs["dpsgd"].waiting
    record_property(
        f"figure: waiting on shaped links, {algorithm}",
        f"{fedhp.mean():.2f} s ({fedhp[1:].mean():.2f} s without the first round), "
        f"D-PSGD {dpsgd.mean():.2f} s ({dpsgd[1:].mean():.2f} s)",
    )
    # Filling rounds short of the slowest transfer is at the mercy of how transfers share a link.
    assert fedhp.mean() <= dpsgd.mean() / (2 if algorithm == "fedhp, fill" else 3)
