"""Cases of the campaign in which the network itself breaks and recovers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from faults.custom_cluster import COORDINATOR, CustomCluster
from faults.fault_run import EVENT_SECONDS, RUN_SECONDS, CaseResult, FaultCase, experiment
from faults.namespaces import Net

Cut = tuple[str, str]  # nothing from the first reaches the second


def both(left: Iterable[str], right: Iterable[str]) -> list[Cut]:
    """Cut all links between two sides."""
    sides = list(left), list(right)
    return [pair for a in sides[0] for b in sides[1] for pair in ((a, b), (b, a))]


def cuts_of(kind: str, seed: int, workers: int) -> tuple[list[Cut], list[str]]:
    """The links that break, and the workers that it affects."""
    one, other = f"w{seed % workers}", f"w{(seed + 1) % workers}"
    if kind == "a worker is not heard by the coordinator":
        return [(one, COORDINATOR)], [one]
    if kind == "a worker does not hear the coordinator":
        return [(COORDINATOR, one)], [one]
    if kind == "a worker is not heard by another":
        return [(one, other)], [one, other]
    half = [f"w{(seed + offset) % workers}" for offset in range(workers // 2)]
    rest = [f"w{worker}" for worker in range(workers) if f"w{worker}" not in half]
    return both(half, [*rest, COORDINATOR]), half


def partition(kind: str) -> Callable[[Path, int], CaseResult]:
    """Links break for a while; those workers that can continue do, and all are back at the end."""

    def run_case(folder: Path, seed: int) -> CaseResult:
        settings = experiment(seed=seed, rounds=40)
        hosts = [COORDINATOR, *(f"w{worker}" for worker in range(settings.workers))]
        with Net(hosts) as net, CustomCluster(settings, folder, net=net) as cluster:
            cuts, affected = cuts_of(kind, seed, settings.workers)
            cluster.start()
            cluster.until_round(3, seconds=EVENT_SECONDS)
            cluster.note("cut", affected)
            for source, target in cuts:
                net.cut(source, target)
            cluster.until_round(cluster.committed() + (3 if seed % 2 else 6), seconds=EVENT_SECONDS)
            for source, target in cuts:
                net.heal(source, target)
            cluster.note("heal", affected)
            cluster.wait(RUN_SECONDS)
            last = set(cluster.events("attempt")[-1]["participants"])
            if last != set(range(settings.workers)):
                raise AssertionError(f"only {sorted(last)} took part in the last round")
        return settings, None

    return run_case


KINDS = (
    "a worker is not heard by the coordinator",
    "a worker does not hear the coordinator",
    "a worker is not heard by another",
    "half of the workers are cut off",
)
PARTITIONS: tuple[FaultCase, ...] = tuple(
    FaultCase(f"partition: {kind}", partition(kind)) for kind in KINDS
)
