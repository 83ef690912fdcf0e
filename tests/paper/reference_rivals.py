"""The reference of the rivals, SPEC 8: LD-SGD, PENS, and AD-PSGD event by event.

As plain as reference.py, on which it stands.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from paper.reference import Link, Matrix, Vector, difference, mean_model


def ldsgd_schedule(local: int, communicating: int, rounds: int) -> list[int]:
    """Steps before each communication: I1 iterations without one, I2 each followed by one."""
    schedule: list[int] = []
    since = 0
    while len(schedule) < rounds:
        for _ in range(local):
            since += 1
        for _ in range(communicating):
            since += 1
            schedule.append(since)
            since = 0
    return schedule[:rounds]


def pens_selection(candidates: Sequence[int], losses: Sequence[float], keep: int) -> set[int]:
    """First stage: the candidates with the least loss on one's own samples."""
    ranked = sorted(zip(losses, range(len(candidates)), strict=True))
    return {candidates[k] for _, k in ranked[:keep]}


def pens_proved(
    counts: Sequence[int], reachable: Sequence[int], *, keep: int, stage_rounds: int
) -> set[int]:
    """Second stage: the peers that were kept more often than by chance."""
    by_chance = stage_rounds * min(1.0, keep / len(reachable))
    return {peer for peer in reachable if counts[peer] > by_chance}


def average_of(models: Matrix, members: Iterable[int]) -> Vector:
    """The plain mean of some models."""
    return mean_model([models[i] for i in members])


@dataclass
class AsyncEvent:
    """One averaging event of AD-PSGD."""

    time: float
    worker: int
    partner: int


def adpsgd(
    models: Matrix,
    *,
    events: int,
    train: Callable[[int, int, Vector, int], Vector],
    compute: Callable[[int, int, float], float],
    transfer: Callable[[int, int, float, list[Link]], float],
    partner: Callable[[int, int], int],
) -> tuple[Matrix, list[AsyncEvent]]:
    """AD-PSGD with an event heap: no locks, nobody waits.

    A turn: snapshot; train(worker, turn, snapshot, events so far) gives the trained snapshot;
    compute() seconds later the change is added to the model of that moment; transfer() seconds
    later both ends take the mean of their models of that moment. transfer() gets every
    transfer under way, its own included.
    """
    workers = len(models)
    models = [list(model) for model in models]
    changes: dict[int, Vector] = {}
    turns = [0] * workers
    flying: dict[int, Link] = {}
    heap: list[tuple[float, int, str]] = []
    log: list[AsyncEvent] = []

    def begin(worker: int, now: float) -> None:
        snapshot = list(models[worker])
        trained = train(worker, turns[worker], snapshot, len(log))
        changes[worker] = difference(trained, snapshot)
        heapq.heappush(heap, (now + compute(worker, turns[worker], now), worker, "trained"))

    for worker in range(workers):
        begin(worker, 0.0)
    while True:
        now, worker, what = heapq.heappop(heap)
        other = partner(worker, turns[worker])
        if what == "trained":
            models[worker] = [
                x + change for x, change in zip(models[worker], changes[worker], strict=True)
            ]
            flying[worker] = (worker, other)
            took = transfer(worker, other, now, list(flying.values()))
            heapq.heappush(heap, (now + took, worker, "arrived"))
            continue
        middle = [(a + b) / 2 for a, b in zip(models[worker], models[other], strict=True)]
        models[worker], models[other] = list(middle), list(middle)
        del flying[worker]
        log.append(AsyncEvent(now, worker, other))
        if len(log) == events:
            return models, log
        turns[worker] += 1
        begin(worker, now)
