"""Cases of the campaign in which the network itself breaks, and heals."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from faults.drill import OVER, SOON, Case, experiment
from faults.namespaces import Net
from faults.yard import BOSS, Yard
from fedhp.config import Experiment

Cut = tuple[str, str]  # nothing from the first reaches the second


def both(left: Iterable[str], right: Iterable[str]) -> list[Cut]:
    """Two sides that do not hear each other."""
    sides = list(left), list(right)
    return [pair for a in sides[0] for b in sides[1] for pair in ((a, b), (b, a))]


def cuts_of(kind: str, seed: int, workers: int) -> tuple[list[Cut], list[str]]:
    """Which wires break, and whom it hurts."""
    one, other = f"w{seed % workers}", f"w{(seed + 1) % workers}"
    if kind == "a worker is not heard by the coordinator":
        return [(one, BOSS)], [one]
    if kind == "a worker does not hear the coordinator":
        return [(BOSS, one)], [one]
    if kind == "a worker is not heard by another":
        return [(one, other)], [one, other]
    half = [f"w{(seed + offset) % workers}" for offset in range(workers // 2)]
    rest = [f"w{worker}" for worker in range(workers) if f"w{worker}" not in half]
    return both(half, [*rest, BOSS]), half


def partition(kind: str) -> Callable[[Path, int], tuple[Experiment, float | None]]:
    """The wires break for a while; those that can go on do, and all are back in the end."""

    def play(folder: Path, seed: int) -> tuple[Experiment, float | None]:
        settings = experiment(seed=seed, rounds=40)
        hosts = [BOSS, *(f"w{worker}" for worker in range(settings.workers))]
        with Net(hosts) as net, Yard(settings, folder, net=net) as yard:
            cuts, hurt = cuts_of(kind, seed, settings.workers)
            yard.start()
            yard.until_round(3, seconds=SOON)
            yard.note("cut", hurt)
            for source, target in cuts:
                net.cut(source, target)
            yard.until_round(yard.committed() + (3 if seed % 2 else 6), seconds=SOON)
            for source, target in cuts:
                net.heal(source, target)
            yard.note("heal", hurt)
            yard.wait(OVER)
            last = set(yard.events("attempt")[-1]["participants"])
            if last != set(range(settings.workers)):
                raise AssertionError(f"in the last round were {sorted(last)} only")
        return settings, None

    return play


KINDS = (
    "a worker is not heard by the coordinator",
    "a worker does not hear the coordinator",
    "a worker is not heard by another",
    "half of the workers are cut off",
)
PARTITIONS: tuple[Case, ...] = tuple(Case(f"partition: {kind}", partition(kind)) for kind in KINDS)
