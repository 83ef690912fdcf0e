"""Planning problems, drawn at random or enumerated, for the reference and for fedhp alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, repeat

import networkx
import numpy as np

from fedhp.algorithms.pace import Assignment, fill, literal, opt
from fedhp.algorithms.search import Assign, SearchResult, search
from fedhp.distance import absent_distance
from fedhp.graph import among, topology_from
from fedhp.timing import Network
from fedhp.types import FloatArray, IntArray, StepReason, StepRule, Topology
from paper import reference, reference_fedhp
from paper.reference import Link, Wires

MEGABIT = 1e6


@dataclass(frozen=True)
class Instance:
    """One planning problem in both languages."""

    workers: int
    base: list[Link]
    present: list[int]
    step_time: list[float]
    wires: Wires
    distances: list[list[float]]
    bound: float
    pace: float
    max_steps: int = 100
    tolerance: float | None = None

    @property
    def base_present(self) -> list[Link]:
        """The base links whose ends are both there."""
        return [link for link in self.base if set(link) <= set(self.present)]

    @property
    def topology(self) -> Topology:
        """The base topology among those present, for fedhp."""
        available = np.isin(np.arange(self.workers), self.present)
        return among(topology_from(self.workers, self.base), available)

    @property
    def network(self) -> Network:
        """The links, for fedhp."""
        return network_of(self.wires, self.workers)

    @property
    def present_step_time(self) -> list[float]:
        """Step times of those present."""
        return [self.step_time[i] for i in self.present]


def network_of(wires: Wires, workers: int) -> Network:
    """The same links as fedhp sees them."""
    if wires.of_link:
        bandwidth = np.ones((workers, workers))
        for (a, b), rate in wires.of_link.items():
            bandwidth[a, b] = bandwidth[b, a] = rate
    else:
        bandwidth = np.array([wires.of_worker[i] for i in range(workers)])
    return Network(bandwidth, wires.model_bits, sharing=wires.sharing, latency=wires.latency)


def draw(
    rng: np.random.Generator,
    workers: int,
    *,
    base: Sequence[Link] | None = None,
    per: str = "worker",
    sharing: bool = False,
    latency: float = 0.0,
    ties: bool = False,
    bound: str = "finite",
    away: int = 0,
    tolerance: float | None = None,
) -> Instance:
    """A random problem. ties: few distinct bandwidths and distances. bound: zero, finite or
    infinite; a finite one lies between 0 and what losing every link would cost."""
    pairs = list(combinations(range(workers), 2))
    links = pairs if base is None else list(base)

    def rate() -> float:
        return float(rng.integers(1, 4) if ties else rng.uniform(1, 10)) * MEGABIT

    of_link = {pair: rate() for pair in pairs} if per == "link" else {}
    of_worker = {} if of_link else {i: rate() for i in range(workers)}
    gone = rng.choice(workers, size=away, replace=False).tolist() if away else []
    present = [i for i in range(workers) if i not in gone]
    distances = np.zeros((workers, workers))
    for a, b in pairs:
        distances[a, b] = distances[b, a] = rng.integers(1, 4) if ties else rng.uniform(0.1, 2)
    farthest = reference.mean_distance(present, [], distances.tolist())
    bounds = {"zero": 0.0, "finite": float(rng.uniform(0, farthest)), "infinite": float("inf")}
    return Instance(
        workers=workers,
        base=links,
        present=present,
        step_time=(rng.choice([0.03, 0.1, 0.3], workers) * rng.uniform(0.8, 1.2, workers)).tolist(),
        wires=Wires(12 * MEGABIT, of_worker, of_link, sharing, latency),
        distances=distances.tolist(),
        bound=bounds[bound],
        pace=float(rng.uniform(1, 60)),
        tolerance=tolerance,
    )


def connected_graphs(workers: int) -> Iterator[list[Link]]:
    """All connected labelled graphs of so many workers."""
    pairs = list(combinations(range(workers), 2))
    for size in range(workers - 1, len(pairs) + 1):
        for links in combinations(pairs, size):
            if networkx.is_connected(reference.graph_of(range(workers), links)):
                yield list(links)


def random_base(rng: np.random.Generator, workers: int, share: float) -> list[Link]:
    """A connected base topology: a random tree and each other link with this probability."""
    order = rng.permutation(workers).tolist()
    links = {
        (min(order[k], other), max(order[k], other))
        for k in range(1, workers)
        for other in [order[int(rng.integers(k))]]
    }
    others = [pair for pair in combinations(range(workers), 2) if rng.random() < share]
    return sorted(links | set(others))


def expected(problem: Instance, mode: str) -> reference_fedhp.Searched:
    """What the reference makes of it; mode is opt, fill or literal."""
    step_time, most = problem.present_step_time, problem.max_steps

    def decide(communication: list[float]) -> reference_fedhp.Assigned:
        if mode == "literal":
            return reference_fedhp.literal(step_time, communication, problem.pace, most)
        if mode == "fill":
            return reference_fedhp.fill(
                step_time, communication, problem.pace, most, problem.tolerance
            )
        return reference_fedhp.opt(step_time, communication, most, problem.tolerance)

    return reference_fedhp.algorithm_3(
        problem.base_present,
        present=problem.present,
        wires=problem.wires,
        distances=problem.distances,
        bound=problem.bound,
        decide=decide,
    )


def assigner(problem: Instance, mode: str) -> Assign:
    """fedhp's rule for the steps of a topology."""
    present = np.array(problem.present)
    step_time = np.array(problem.present_step_time)

    def decide(communication: FloatArray) -> Assignment:
        mine = communication[present]
        if mode == "literal":
            return literal(step_time, mine, pace_steps=problem.pace, max_steps=problem.max_steps)
        if mode == "fill":
            return fill(
                step_time,
                mine,
                pace_steps=problem.pace,
                max_steps=problem.max_steps,
                waiting_tolerance=problem.tolerance,
            )
        return opt(
            step_time, mine, max_steps=problem.max_steps, waiting_tolerance=problem.tolerance
        )

    return decide


def found(
    problem: Instance,
    mode: str,
    *,
    assign: Assign | None = None,
    bound: float | None = None,
) -> SearchResult:
    """fedhp's result."""
    mask = np.isin(np.arange(problem.workers), problem.present)
    base, distances = problem.topology, np.array(problem.distances)
    return search(
        base,
        network=problem.network,
        link_distance=distances[base.links[:, 0], base.links[:, 1]],
        absent_distance=absent_distance(base, distances, mask),
        distance_bound=problem.bound if bound is None else bound,
        members=len(problem.present),
        assign=assign or assigner(problem, mode),
    )


def watched(
    problem: Instance, mode: str, *, assign: Assign | None = None
) -> tuple[SearchResult, list[tuple[list[float], Assignment]]]:
    """fedhp's result, and for every topology it priced, the base first: the communication
    times of those present, and what they were given."""
    decide = assign or assigner(problem, mode)
    seen: list[tuple[list[float], Assignment]] = []

    def noting(communication: FloatArray) -> Assignment:
        made = decide(communication)
        seen.append((communication[problem.present].tolist(), made))
        return made

    return found(problem, mode, assign=noting), seen


def revealed(
    problem: Instance, mode: str, *, assign: Assign | None = None
) -> tuple[SearchResult, list[list[Link]]]:
    """fedhp's result, and every topology it looked at, the base first.

    From the outside only: to see the k-th candidate, the search is played again with the
    same answers up to it; then that one is praised, so that it is taken, and no later one.
    """
    result, seen = watched(problem, mode, assign=assign)
    steps = seen[0][1].local_steps
    tried = [as_links(problem.topology)]
    for k in range(1, len(seen)):
        prices = [made.objective for _, made in seen[:k]]
        answers = chain(prices, [-np.inf], repeat(np.inf))
        tried.append(as_links(found(problem, mode, assign=scripted(steps, answers)).topology))
    return result, tried


def scripted(steps: IntArray, prices: Iterable[float]) -> Assign:
    """A rule that prices topology after topology as the script says."""
    answers = iter(prices)

    def decide(_: FloatArray) -> Assignment:
        price = next(answers)
        return Assignment(steps, price, price, price, StepReason(StepRule.OPT))

    return decide


def as_links(topology: Topology) -> list[Link]:
    """Links as plain pairs."""
    return [(int(a), int(b)) for a, b in topology.links]
