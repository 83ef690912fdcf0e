"""What a networked round costs beyond its work: `python -m bench.network_rounds`.

Eight workers and a coordinator as processes of this machine, with a small model. The fixed cost
of a round is its wall time, from commit to commit, without the longest training and the longest
transfer in it. With `--against CHECKOUT` both trees run in turn, so that a busy machine slows
both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

BAR_MILLISECONDS = 80.0
WORKERS, ROUNDS, WARM_UP_ROUNDS = 8, 60, 10
SECONDS = 300.0  # for one run
SAMPLE_SECONDS = 0.1
EXPERIMENT = Path("experiments", "demo.toml")
# With one local step, hardly anything but the fixed cost is left. Tests and estimates are computing
# too, but the record does not say how long they take, so there are few.
WORKLOADS = {
    "one-step": (
        "algorithm.name=dpsgd",
        "training.local_steps=1",
        "topology.name=ring",
        "evaluation.every=30",
    ),
    "fedhp": ("algorithm.name=fedhp", "algorithm.estimate_every=1000", "evaluation.every=30"),
}


@dataclass(frozen=True, slots=True)
class RoundCost:
    """Medians over the rounds of one run, in milliseconds; CPU time is a mean."""

    wall: float
    compute: float
    transfer: float
    fixed: float
    worker_cpu: float  # of one worker, training included
    coordinator_cpu: float


def measure(workload: str, rounds: int) -> RoundCost:
    """Run one federation with the fedhp that is imported, and read what its record says."""
    from fedhp.cluster.history import read_history
    from fedhp.cluster.ops.launch import Cluster
    from fedhp.config import load
    from fedhp.record.reader import RunReader

    overrides = (f"workers={WORKERS}", f"rounds={rounds}", *WORKLOADS[workload])
    with tempfile.TemporaryDirectory(prefix="fedhp-rounds-") as name:
        folder = Path(name) / "run"
        with Cluster(load(EXPERIMENT, overrides), folder) as cluster:
            cluster.start()
            pids = {process: cluster.pid(process) for process in ("coordinator", *cluster.workers)}
            with CpuClock(pids) as clock:
                cluster.wait(SECONDS)
        commits = {
            event["round"]: event["at"]
            for event in read_history(folder / "history-coordinator.jsonl")
            if event["event"] == "commit"
        }
        timed = range(WARM_UP_ROUNDS + 1, rounds)
        walls, computes, transfers = [], [], []
        with RunReader(folder) as run:
            for index in timed:
                walls.append(1e3 * (commits[index] - commits[index - 1]))
                computes.append(
                    1e3 * longest(run.table("workers", round_index=index)["compute_time"])
                )
                transfers.append(1e3 * longest(run.table("links", round_index=index)["link_time"]))
        spent = clock.spent(commits[timed[0] - 1], commits[timed[-1]])
        per_round = {process: 1e3 * seconds / len(timed) for process, seconds in spent.items()}
        return RoundCost(
            wall=statistics.median(walls),
            compute=statistics.median(computes),
            transfer=statistics.median(transfers),
            fixed=statistics.median(
                wall - compute - transfer
                for wall, compute, transfer in zip(walls, computes, transfers, strict=True)
            ),
            worker_cpu=statistics.mean(per_round[worker] for worker in cluster.workers),
            coordinator_cpu=per_round["coordinator"],
        )


def longest(seconds: list[float | None]) -> float:
    return max((value for value in seconds if value is not None), default=0.0)


class CpuClock:
    """Samples the CPU time of processes; what they spent between two moments."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self._samples: list[tuple[float, dict[str, float]]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> CpuClock:
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            seconds = {name: cpu_seconds(pid) for name, pid in self._pids.items()}
            self._samples.append((time.time(), seconds))

    def spent(self, start: float, end: float) -> dict[str, float]:
        """Seconds of each process between two times of day, by the nearest samples."""

        def at(moment: float) -> tuple[float, dict[str, float]]:
            return min(self._samples, key=lambda sample: abs(sample[0] - moment))

        (first, before), (last, after) = at(start), at(end)
        share = (end - start) / max(last - first, 1e-9)
        return {name: share * (after[name] - before[name]) for name in self._pids}


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and all its threads."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:  # it has ended
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_in(checkout: Path, workload: str, rounds: int) -> RoundCost:
    """One measurement in a new process that imports fedhp from this checkout."""
    command = [sys.executable, "-m", "bench.network_rounds", "--measure", workload]
    answer = subprocess.run(
        [*command, "--rounds", str(rounds)],
        env={**os.environ, "PYTHONPATH": str(checkout / "src")},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        timeout=2 * SECONDS,
    )
    return RoundCost(**json.loads(answer.stdout.splitlines()[-1]))


def show(label: str, cost: RoundCost) -> None:
    print(
        f"  {label:10} round {cost.wall:6.1f}  compute {cost.compute:6.1f}  transfer "
        f"{cost.transfer:5.1f}  fixed {cost.fixed:6.1f}  CPU of a worker {cost.worker_cpu:5.1f}, "
        f"of the coordinator {cost.coordinator_cpu:5.1f}",
        flush=True,
    )


def compare(workload: str, arguments: argparse.Namespace) -> bool:
    """Print the costs, and the ratios to the other checkout; whether the bar is reached."""
    here = Path(__file__).resolve().parents[1]
    sides = {"this tree": here}
    if arguments.against is not None:
        sides["against"] = arguments.against.resolve()
    costs: dict[str, list[RoundCost]] = {side: [] for side in sides}
    print(f"{workload}: {WORKERS} workers, {arguments.rounds} rounds, milliseconds per round")
    for repeat in range(arguments.repeats):
        load = os.getloadavg()[0]
        for side in list(sides)[:: -1 if repeat % 2 == 0 else 1]:
            costs[side].append(run_in(sides[side], workload, arguments.rounds))
            show(side, costs[side][-1])
        print(f"  (load average before: {load:.1f})", flush=True)
    ours, theirs = costs["this tree"], costs.get("against", [])
    for name in ("fixed", "wall", "worker_cpu", "coordinator_cpu") if theirs else ():
        ratios = [
            getattr(our, name) / getattr(other, name)
            for our, other in zip(ours, theirs, strict=True)
        ]
        print(f"  {name}: {statistics.median(ratios):.2f} of the other checkout's")
    fixed = statistics.median(cost.fixed for cost in ours)
    print(f"  fixed cost: {fixed:.0f} ms, at most {BAR_MILLISECONDS:.0f} are allowed")
    return fixed <= BAR_MILLISECONDS


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.network_rounds", description=__doc__)
    parser.add_argument("workloads", nargs="*", help=f"some of {', '.join(WORKLOADS)}; all")
    parser.add_argument("--against", type=Path, help="another checkout of fedhp to compare with")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    unknown = set(arguments.workloads) - WORKLOADS.keys()
    if unknown:
        parser.error(f"unknown workload {sorted(unknown)[0]!r}; allowed: {', '.join(WORKLOADS)}")
    return arguments


def main() -> int:
    """Print the costs; 1 if a fixed cost is above the bar."""
    arguments = parsed()
    if arguments.measure:
        print(json.dumps(asdict(measure(arguments.measure, arguments.rounds))))
        return 0
    reached = [compare(workload, arguments) for workload in arguments.workloads or WORKLOADS]
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
