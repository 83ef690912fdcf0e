"""Slow, obvious reference implementations, written from SPEC.md and the paper's own text.

Plain lists and loops, networkx for connectivity, no import from fedhp: this is the oracle
the implementation is held against. Section and equation numbers refer to those two texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import networkx

Link = tuple[int, int]
Vector = list[float]
Matrix = list[list[float]]


def graph_of(nodes: Iterable[int], links: Iterable[Link]) -> networkx.Graph:
    """The graph with these workers and links."""
    graph = networkx.Graph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(links)
    return graph


def neighbors(worker: int, links: Iterable[Link]) -> list[int]:
    """N_i."""
    found = []
    for a, b in links:
        if a == worker:
            found.append(b)
        if b == worker:
            found.append(a)
    return sorted(found)


def joined(start: int, goal: int, links: Iterable[Link]) -> bool:
    """Whether a path leads from one worker to the other."""
    neighbors: dict[int, list[int]] = {}
    for a, b in links:
        neighbors.setdefault(a, []).append(b)
        neighbors.setdefault(b, []).append(a)
    seen, waiting = {start}, [start]
    while waiting:
        for other in neighbors.get(waiting.pop(), []):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return goal in seen


def laplacian(workers: int, links: Sequence[Link]) -> Matrix:
    """Eq. (1): L = D - A."""
    matrix = [[0.0] * workers for _ in range(workers)]
    for a, b in links:
        matrix[a][b] -= 1.0
        matrix[b][a] -= 1.0
    for i in range(workers):
        matrix[i][i] = float(len(neighbors(i, links)))
    return matrix


def max_degree_weight(workers: int, links: Sequence[Link]) -> float:
    """Eq. (6): w_ij = 1 / (u_max + 1)."""
    u_max = max(len(neighbors(i, links)) for i in range(workers))
    return 1.0 / (u_max + 1)


def link_weights(workers: int, links: Sequence[Link], rule: str) -> dict[Link, float]:
    """w_ij of every ordered pair of neighbors."""
    weights: dict[Link, float] = {}
    scaled = sinkhorn(workers, links) if rule == "sinkhorn" else []
    for i in range(workers):
        for j in neighbors(i, links):
            if rule == "max_degree":
                weights[i, j] = max_degree_weight(workers, links)
            elif rule == "metropolis":
                larger = max(len(neighbors(i, links)), len(neighbors(j, links)))
                weights[i, j] = 1.0 / (1 + larger)
            else:
                weights[i, j] = scaled[i][j]
    return weights


def sinkhorn(workers: int, links: Sequence[Link]) -> Matrix:
    """A + I, its rows and its columns scaled to sum 1 in turn, until both do."""
    matrix = [[1.0 if i == j else 0.0 for j in range(workers)] for i in range(workers)]
    for a, b in links:
        matrix[a][b] = matrix[b][a] = 1.0
    for _ in range(20_000):
        for i in range(workers):
            total = sum(matrix[i])
            matrix[i] = [value / total for value in matrix[i]]
        worst = 0.0
        for j in range(workers):
            total = sum(matrix[i][j] for i in range(workers))
            worst = max(worst, abs(total - 1.0))
            for i in range(workers):
                matrix[i][j] /= total
        if worst < 1e-13:
            break
    return matrix


def mix(models: Matrix, links: Sequence[Link], rule: str = "max_degree") -> Matrix:
    """Eq. (5): x_i + sum over neighbors j of w_ij (x_j - x_i), worker by worker."""
    weights = link_weights(len(models), links, rule)
    mixed = []
    for i, own in enumerate(models):
        new = list(own)
        for j in neighbors(i, links):
            for k in range(len(own)):
                new[k] += weights[i, j] * (models[j][k] - own[k])
        mixed.append(new)
    return mixed


def mean_model(models: Matrix) -> Vector:
    """x-bar."""
    return [math.fsum(model[k] for model in models) / len(models) for k in range(len(models[0]))]


def local_updating(
    start: Vector, gradient: Callable[[Vector, int], Vector], *, steps: int, learning_rate: float
) -> tuple[Vector, Vector]:
    """Eq. (3) `steps` times: the model after, and g_i, the sum of the gradients of Eq. (4)."""
    x, total = list(start), [0.0] * len(start)
    for k in range(steps):
        found = gradient(x, k)
        x = [value - learning_rate * slope for value, slope in zip(x, found, strict=True)]
        total = [value + slope for value, slope in zip(total, found, strict=True)]
    return x, total


def norm(vector: Vector) -> float:
    """The Euclidean norm."""
    return math.sqrt(math.fsum(value * value for value in vector))


def difference(left: Vector, right: Vector) -> Vector:
    """left - right."""
    return [a - b for a, b in zip(left, right, strict=True)]


def distance(models: Matrix, i: int, j: int) -> float:
    """Eq. (7): D_ij = ||x_i - x_j||."""
    return norm(difference(models[i], models[j]))


def distance_to_mean(models: Matrix, i: int) -> float:
    """Eq. (8): D_i = ||x-bar - x_i||."""
    return norm(difference(mean_model(models), models[i]))


def average_distance(models: Matrix) -> float:
    """Eq. (9): the mean of D_i."""
    return sum(distance_to_mean(models, i) for i in range(len(models))) / len(models)


def mean_distance(
    present: Sequence[int], links: Iterable[Link], distances: Matrix, *, count: int | None = None
) -> float:
    """Eq. (36): (1/N^2) * the sum over ordered pairs i != j of (1 - a_ij) D_ij."""
    linked = set(links)
    terms = []
    for i in present:
        for j in present:
            if i != j and (min(i, j), max(i, j)) not in linked:
                terms.append(distances[i][j])
    return math.fsum(terms) / (count or len(present)) ** 2


def floyd_warshall(workers: int, measured: dict[Link, float]) -> Matrix:
    """Eq. (37), (38) used iteratively: shortest paths over the measured pairs, three loops."""
    path = [[0.0 if i == j else math.inf for j in range(workers)] for i in range(workers)]
    for (a, b), value in measured.items():
        path[a][b] = path[b][a] = min(path[a][b], value)
    for p in range(workers):
        for i in range(workers):
            for j in range(workers):
                path[i][j] = min(path[i][j], path[i][p] + path[p][j])
    return path


def moving_average(old: float | None, new: float, weight: float) -> float:
    """(1 - weight) * old + weight * new, starting at the first value."""
    return new if old is None else (1 - weight) * old + weight * new


Known = list[list[float | None]]  # None: no measurement and no path so far


def update_distances(old: Known, measured: dict[Link, float], *, smoothing: float) -> Known:
    """Eq. (39) as settled: measured pairs overwrite, others move towards the shortest path."""
    workers = len(old)
    path = floyd_warshall(workers, measured)
    new: Known = [list(row) for row in old]
    for i in range(workers):
        for j in range(workers):
            pair = (min(i, j), max(i, j))
            if i == j:
                new[i][j] = 0.0
            elif pair in measured:
                new[i][j] = measured[pair]
            elif math.isfinite(path[i][j]):
                new[i][j] = moving_average(old[i][j], path[i][j], smoothing)
    return new


def distance_bound(
    old: float | None, update_norms: Sequence[float], *, smoothing: float, scale: float
) -> float:
    """Eq. (43) as settled: moving average of scale * mean ||x_i after - x_i before||."""
    fresh = scale * sum(update_norms) / len(update_norms)
    return moving_average(old, fresh, smoothing)


@dataclass
class Wires:
    """Bandwidth in bits per second, of each worker or (if there is any) of each link."""

    model_bits: float
    of_worker: dict[int, float] = field(default_factory=dict)
    of_link: dict[Link, float] = field(default_factory=dict)
    sharing: bool = False
    latency: float = 0.0

    def time(self, link: Link, topology: Sequence[Link]) -> float:
        """Seconds to move a model over this link while all of the topology is in use."""
        rates = []
        for end in link:
            rate = self.of_link[link] if self.of_link else self.of_worker[end]
            if self.sharing:
                rate /= len(neighbors(end, topology))
            rates.append(rate)
        return self.model_bits / min(rates) + self.latency

    def slowest(self, worker: int, topology: Sequence[Link]) -> float:
        """b_i = the longest link time among the neighbors; 0 without neighbors."""
        times = [self.time(link, topology) for link in topology if worker in link]
        return max(times, default=0.0)


def worker_time(step_times: Sequence[float], communication: float) -> float:
    """Eq. (10), with every step's own time: their sum + max over neighbors of link_time."""
    return math.fsum(step_times) + communication


def round_time(worker_times: Sequence[float]) -> float:
    """t = max t_i."""
    return max(worker_times)


def mean_waiting_time(worker_times: Sequence[float]) -> float:
    """Eq. (11)."""
    longest = round_time(worker_times)
    return sum(longest - each for each in worker_times) / len(worker_times)


def completion_time(
    round_times: Sequence[float], accuracies: Sequence[Sequence[float] | None], target: float
) -> float | None:
    """Sum of the round times up to the first evaluation whose mean accuracy is at the target."""
    total = 0.0
    for took, accuracy in zip(round_times, accuracies, strict=True):
        total += took
        if accuracy is not None and sum(accuracy) / len(accuracy) >= target:
            return total
    return None


def sample_variance(gradients: Matrix) -> float:
    """Unbiased estimate of E||g - E g||^2."""
    middle = mean_model(gradients)
    spread = [norm(difference(gradient, middle)) ** 2 for gradient in gradients]
    return math.fsum(spread) / (len(gradients) - 1)
