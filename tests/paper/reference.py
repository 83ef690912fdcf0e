"""Slow, obvious reference implementations, written from SPEC.md and the paper's own text.

Plain lists and loops, networkx for connectivity, no import from fedhp: this is the oracle
the implementation is held against. Section and equation numbers refer to those two texts.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

import networkx

Link = tuple[int, int]
Vector = list[float]
Matrix = list[list[float]]

# "Fits the deadline" means a whole number up to rounding counts as whole.
ROUNDING = 1e-9


# --- graphs: Eq. (1), (5), (6) ---------------------------------------------------------------


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
    beside: dict[int, list[int]] = {}
    for a, b in links:
        beside.setdefault(a, []).append(b)
        beside.setdefault(b, []).append(a)
    seen, waiting = {start}, [start]
    while waiting:
        for other in beside.get(waiting.pop(), []):
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


# --- local updating: Eq. (3), (4) ------------------------------------------------------------


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


# --- consensus distances: Eq. (7) to (9), (36) to (39), (43) ---------------------------------


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


# --- time: Eq. (10), (11), (41), SPEC 1 ------------------------------------------------------


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


# --- pace, steps, deadline, objective: SPEC 3 and 4 ------------------------------------------


def raw_pace(
    workers: int,
    initial_loss: float,
    smoothness: float,
    rounds: int,
    learning_rate: float,
    gradient_variance: float,
) -> float:
    """SPEC 3; the gradient variance is a squared norm already."""
    return math.sqrt(
        workers * initial_loss / (smoothness * rounds * learning_rate**2 * gradient_variance)
    )


def clip(value: float, low: float, high: float) -> float:
    """The value, kept between low and high."""
    return min(max(value, low), high)


def steps_that_fit(deadline: float, step_time: float, communication: float, most: int) -> int:
    """clip(floor((T - b) / mu), 1, max_steps)."""
    return int(clip(math.floor((deadline - communication) / step_time + ROUNDING), 1, most))


@dataclass
class Assigned:
    """The steps that a topology gets, and what the planner thinks of it."""

    steps: list[int]
    deadline: float
    cost: float
    round_time: float


def objective(steps: list[int], worker_times: Vector, tolerance: float | None) -> float:
    """J = R / mean(local_steps), times the penalty of the soft waiting constraint."""
    cost = round_time(worker_times) / (sum(steps) / len(steps))
    if tolerance is not None:
        share = mean_waiting_time(worker_times) / round_time(worker_times)
        cost *= 1 + 10 * max(0.0, share - tolerance)
    return cost


def assign(
    deadline: float, step_time: Vector, communication: Vector, most: int, tolerance: float | None
) -> Assigned:
    """Everyone's steps for this deadline."""
    steps = [
        steps_that_fit(deadline, mu, b, most)
        for mu, b in zip(step_time, communication, strict=True)
    ]
    times = [tau * mu + b for tau, mu, b in zip(steps, step_time, communication, strict=True)]
    return Assigned(steps, deadline, objective(steps, times, tolerance), round_time(times))


def fill(
    step_time: Vector, communication: Vector, pace: float, most: int, tolerance: float | None
) -> Assigned:
    """T = max(min_i(pace * mu_i + b_i), max_i(b_i + mu_i))."""
    pairs = list(zip(step_time, communication, strict=True))
    paced = min(pace * mu + b for mu, b in pairs)
    needed = max(b + mu for mu, b in pairs)
    return assign(max(paced, needed), step_time, communication, most, tolerance)


def opt(step_time: Vector, communication: Vector, most: int, tolerance: float | None) -> Assigned:
    """The cheapest of 25 deadlines, evenly spread; the earlier of two that cost the same."""
    pairs = list(zip(step_time, communication, strict=True))
    low = max(b + mu for mu, b in pairs)
    high = max(b + most * mu for mu, b in pairs)
    best: Assigned | None = None
    for k in range(25):
        deadline = low + (high - low) * k / 24
        tried = assign(deadline, step_time, communication, most, tolerance)
        if best is None or tried.cost < best.cost:
            best = tried
    assert best is not None
    return best


def literal(step_time: Vector, communication: Vector, pace: float, most: int) -> Assigned:
    """Algorithm 3 as printed: T_i at the formula's tau, T = T_l of the fastest worker l, which
    is what has to fall; line 23 gives the others the steps that fit T_l."""
    tau = max(1, math.floor(pace))
    times = [tau * mu + b for mu, b in zip(step_time, communication, strict=True)]
    fastest = min(times)
    found = assign(fastest, step_time, communication, most, None)
    return Assigned(found.steps, fastest, fastest, found.round_time)


# --- Algorithm 3 -----------------------------------------------------------------------------


@dataclass
class Searched:
    """What Algorithm 3 returns, and every topology it looked at, the base first, with the
    communication times of those present."""

    links: list[Link]
    assigned: Assigned
    tried: list[list[Link]]
    communication: Matrix
    search_steps: list[int]
    base_cost: float


def algorithm_3(
    base: Sequence[Link],
    *,
    present: Sequence[int],
    wires: Wires,
    distances: Matrix,
    bound: float | None,
    decide: Callable[[Vector], Assigned],
) -> Searched:
    """Algorithm 3, line by line, with the acceptance that `decide` prices.

    `decide` takes the communication times of the present workers. bound None (nothing is
    measured yet) and a base topology beyond the bound: nothing is removed.
    """

    communication: Matrix = []

    def price(links: list[Link]) -> Assigned:
        communication.append([wires.slowest(i, links) for i in present])
        return decide(communication[-1])

    current = sorted(base)  # line 1
    best = price(current)  # lines 2-3
    base_cost = best.cost
    tried = [list(current)]
    search_steps: list[int] = []
    if bound is None or mean_distance(present, current, distances) > bound:
        return Searched(current, best, tried, communication, search_steps, base_cost)
    flag, s = True, 0
    while True:  # line 4
        s = math.isqrt(2 * len(current)) if flag else s // 2  # lines 5-8
        if s == 0:
            break
        search_steps.append(s)
        slowest_first = sorted(
            current, key=lambda link: (-wires.time(link, current), distances[link[0]][link[1]])
        )
        candidate, removed = list(current), 0  # line 10
        for link in slowest_first:  # lines 9 and 11-14, one link at a time
            if removed == s:
                break
            without = [each for each in candidate if each != link]
            # Connected as before exactly if the two ends still are.
            if joined(*link, without) and mean_distance(present, without, distances) <= bound:
                candidate, removed = without, removed + 1
        found = price(candidate)  # lines 15-16
        tried.append(list(candidate))
        flag = removed > 0 and found.cost < best.cost  # line 17
        if flag:
            current, best = candidate, found  # line 18
        elif s == 1:  # lines 19-22
            break
    return Searched(
        current, best, tried, communication, search_steps, base_cost
    )  # line 23 is in `decide`


# --- Algorithm 2: the coordinator ------------------------------------------------------------


@dataclass
class Rules:
    """The settings of FedHP, as SPEC names them."""

    planner: str = "settled"
    deadline: str = "opt"
    pace: str = "ratio"
    initial_steps: int = 30
    max_steps: int = 100
    distance_smoothing: float = 0.5
    bound_smoothing: float = 0.5
    bound: str = "update"
    bound_scale: float = 0.5
    waiting_tolerance: float | None = None
    smoothing: float = 0.5


@dataclass
class Told:
    """What the workers report after a round; None where nothing was measured."""

    step_time: list[float | None]
    update_norm: list[float | None]
    distance: dict[Link, float]
    smoothness: list[float | None]
    gradient_variance: list[float | None]
    start_loss: list[float | None]


def finite(values: Iterable[float | None]) -> list[float]:
    """What was measured, non-finite values dropped (SPEC 6)."""
    return [value for value in values if value is not None and math.isfinite(value)]


@dataclass
class Coordinator:
    """Algorithm 2 with SPEC 2, 3 and 5: learns from the reports, then plans."""

    workers: int
    rounds: int
    base: list[Link]
    rules: Rules
    step_time: list[float | None] = field(default_factory=list)
    distances: Known = field(default_factory=list)
    bound: float | None = None
    smoothness: float | None = None
    gradient_variance: float | None = None
    initial_loss: float | None = None
    learning_rate: float | None = None
    first_raw: float | None = None

    def __post_init__(self) -> None:
        self.step_time = [None] * self.workers
        self.distances = [
            [0.0 if i == j else None for j in range(self.workers)] for i in range(self.workers)
        ]

    def learn(self, told: Told) -> None:
        """Lines 3-5 and the updates of SPEC 5."""
        rules = self.rules
        for i, took in enumerate(told.step_time):
            if took is not None:
                self.step_time[i] = moving_average(self.step_time[i], took, rules.smoothing)
        if told.distance:
            self.distances = update_distances(
                self.distances, told.distance, smoothing=rules.distance_smoothing
            )
        norms = finite(told.update_norm)
        if norms and rules.bound == "gradient":
            assert self.learning_rate is not None
            norms = [value / self.learning_rate for value in norms]
        if norms:
            self.bound = distance_bound(
                self.bound, norms, smoothing=rules.bound_smoothing, scale=rules.bound_scale
            )
        bends = finite(told.smoothness)
        if bends:
            self.smoothness = moving_average(self.smoothness, median(bends), rules.smoothing)
        spreads = finite(told.gradient_variance)
        if spreads:
            mean = sum(spreads) / len(spreads)
            self.gradient_variance = moving_average(self.gradient_variance, mean, rules.smoothing)
        losses = finite(told.start_loss)
        if losses and self.initial_loss is None:
            self.initial_loss = sum(losses) / len(losses)
        if self.first_raw is None:
            self.first_raw = self.raw()

    def raw(self) -> float | None:
        """The formula, once all of its parts are known."""
        if (
            self.initial_loss is None
            or self.smoothness is None
            or self.gradient_variance is None
            or self.learning_rate is None
        ):
            return None
        return raw_pace(
            self.workers,
            self.initial_loss,
            self.smoothness,
            self.rounds,
            self.learning_rate,
            self.gradient_variance,
        )

    def pace_steps(self) -> float:
        """SPEC 3."""
        rules, raw = self.rules, self.raw()
        wanted = float(rules.initial_steps)
        if raw is not None:
            if rules.pace == "formula" or rules.planner == "literal":
                wanted = raw
            elif rules.pace == "ratio":
                assert self.first_raw is not None
                wanted = rules.initial_steps * raw / self.first_raw
        return clip(wanted, 1.0, float(rules.max_steps))

    def plan(self, *, learning_rate: float, present: list[int], wires: Wires) -> Searched:
        """Line 6: Algorithm 3 on what is known. Before the first distances: the base topology."""
        rules = self.rules
        self.learning_rate = learning_rate
        pace = self.pace_steps()
        step_time = []
        for i in present:
            mine = self.step_time[i]
            assert mine is not None
            step_time.append(mine)
        known = [value for row in self.distances for value in row if value is not None]
        # A pair that nothing has ever joined counts as far as the farthest known.
        farthest = max(known, default=0.0)
        distances = [
            [farthest if value is None else value for value in row] for row in self.distances
        ]

        def decide(communication: Vector) -> Assigned:
            if rules.planner == "literal":
                return literal(step_time, communication, pace, rules.max_steps)
            # Alone, every deadline costs the same per step; the pace decides.
            if rules.deadline == "fill" or len(step_time) == 1:
                return fill(
                    step_time, communication, pace, rules.max_steps, rules.waiting_tolerance
                )
            return opt(step_time, communication, rules.max_steps, rules.waiting_tolerance)

        bound = self.bound
        if rules.bound == "none" and bound is not None:
            bound = math.inf
        base = [(a, b) for a, b in self.base if a in present and b in present]
        return algorithm_3(
            base, present=present, wires=wires, distances=distances, bound=bound, decide=decide
        )


# --- estimators: Algorithm 1, lines 4 and 5, SPEC 6 ------------------------------------------


def smoothness(
    gradient_before: Vector, gradient_after: Vector, before: Vector, after: Vector
) -> float:
    """||grad(after; B) - grad(before; B)|| / max(||dx||, 1e-8)."""
    bent = norm(difference(gradient_after, gradient_before))
    return bent / max(norm(difference(after, before)), 1e-8)


def sample_variance(gradients: Matrix) -> float:
    """Unbiased estimate of E||g - E g||^2."""
    middle = mean_model(gradients)
    spread = [norm(difference(gradient, middle)) ** 2 for gradient in gradients]
    return math.fsum(spread) / (len(gradients) - 1)


# --- rivals: SPEC 8 --------------------------------------------------------------------------


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
    later both ends take the mean of their models of that moment. transfer() is told every
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
