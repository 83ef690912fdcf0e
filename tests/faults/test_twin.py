"""A digital twin: the world captured from one run predicts the round times of other algorithms.

Workers behind shaped links (network namespaces) or on one machine as `fedhp cluster up` starts
them; step times are emulated, transfers are real. `python tests/faults/test_twin.py FOLDER` prints
the table of docs/cluster.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fedhp
from faults.custom_cluster import COORDINATOR, CustomCluster
from faults.namespaces import Net, needs_namespaces, why_not
from fedhp.cluster.ops.launch import Cluster
from fedhp.config import Experiment, parse, to_tables
from fedhp.record.reader import RunReader

MEGABITS = (1.0, 2.0, 3.0, 4.0, 6.0, 10.0)
STEP_SECONDS = (0.10, 0.30, 0.05, 0.20, 0.10, 0.05)
OFF_BY = 0.25
pytestmark = [pytest.mark.slow, pytest.mark.alone]

ALGORITHMS: dict[str, dict[str, Any]] = {
    "dpsgd": {"name": "dpsgd"},
    "ldsgd": {"name": "ldsgd"},
    "pens": {"name": "pens", "peers": 3, "keep": 1},
    "fedhp": {"name": "fedhp"},
    "fedhp_plus": {"name": "fedhp_plus"},
    "adpsgd": {"name": "adpsgd"},
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of one algorithm: seconds of a round, on the network and on the captured world."""

    algorithm: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Relative to the measured time."""
        return self.predicted / self.measured - 1


def settings(algorithm: str, folder: Path, *, rounds: int, shaped: bool) -> Experiment:
    """Six workers with their own step times; the file only emulates these."""
    steps = folder / "steps.csv"
    rows = [f"0,{worker},{seconds}" for worker, seconds in enumerate(STEP_SECONDS)]
    steps.write_text("\n".join(["time,worker,step_time", *rows, ""]), encoding="utf-8")
    workers = len(STEP_SECONDS)
    return parse(
        {
            "workers": workers,
            "rounds": rounds,
            "seed": 3,
            "algorithm": ALGORITHMS[algorithm],
            "model": {"name": "mlp", "hidden": [400]},  # 120 kB
            "data": {"skew": 0.5},
            "training": {"local_steps": 10, "batch_size": 8},
            "evaluation": {"images": 50, "every": rounds},
            "world": {
                "trace": str(steps),
                "bandwidth": {"unit": "Mb/s", "sharing": shaped},
            },
            "cluster": {
                "emulate": True,
                "min_workers": workers,
                "suspect_after": 10.0,
                "gather": 120.0,
            },
        }
    )


def run_network(experiment: Experiment, folder: Path, *, shaped: bool) -> None:
    """The experiment on real processes."""
    if not shaped:
        with Cluster(experiment, folder, restart=False) as cluster:
            cluster.start()
            cluster.wait(900)
        return
    hosts = [COORDINATOR, *(f"w{worker}" for worker in range(experiment.workers))]
    with Net(hosts) as net, CustomCluster(experiment, folder, net=net) as behind:
        for worker, megabits in enumerate(MEGABITS):
            net.shape(f"w{worker}", megabits)
        behind.start()
        behind.wait(900)


def seconds_of_a_round(folder: Path) -> float:
    """The mean over all rounds but the first, in which connections are made."""
    with RunReader(folder) as run:
        clock = run.array("rounds", "clock")
    return float((clock[-1] - clock[0]) / (len(clock) - 1))


def compare(
    algorithms: Sequence[str], folder: Path, *, rounds: int, shaped: bool
) -> list[Comparison]:
    """Capture D-PSGD, and predict all of these from it alone."""
    folder.mkdir(parents=True, exist_ok=True)
    trace = folder / "captured.csv"
    comparisons = []
    for algorithm in ("dpsgd", *(name for name in algorithms if name != "dpsgd")):
        experiment = settings(algorithm, folder, rounds=rounds, shaped=shaped)
        real = folder / f"{algorithm}-network"
        run_network(experiment, real, shaped=shaped)
        if algorithm == "dpsgd":
            fedhp.export(real, trace=trace)
        tables = to_tables(experiment)
        tables["world"]["trace"] = str(trace)
        with fedhp.run(parse(tables), folder / f"{algorithm}-twin"):
            pass
        comparisons.append(
            Comparison(
                algorithm,
                measured=seconds_of_a_round(real),
                predicted=seconds_of_a_round(folder / f"{algorithm}-twin"),
            )
        )
    return comparisons


def test_the_twin_of_shaped_links_predicts_other_algorithms(
    tmp_path: Path, record_property: Any
) -> None:
    needs_namespaces()
    for found in compare(["dpsgd", "fedhp", "pens"], tmp_path, rounds=8, shaped=True):
        record_property(
            f"figure: twin of {found.algorithm}",
            f"{found.predicted:.2f} s predicted, {found.measured:.2f} s measured",
        )
        assert abs(found.error) < OFF_BY, found


if __name__ == "__main__":
    for shaped in (False, True):
        if shaped and why_not():
            print(why_not())
            continue
        for found in compare(
            list(ALGORITHMS), Path(sys.argv[1]) / f"shaped-{shaped}", rounds=25, shaped=shaped
        ):
            where = "shaped" if shaped else "one machine"
            times = f"{found.measured:.2f} s | {found.predicted:.2f} s | {100 * found.error:+.0f} %"
            print(f"| {where} | {found.algorithm} | {times} |", flush=True)
