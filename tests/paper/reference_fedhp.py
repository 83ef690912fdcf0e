"""The reference of FedHP: SPEC 3 and 4 (pace, steps, deadline, objective), Algorithms 2 and 3.

As plain as reference.py, on which it stands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from paper.reference import (
    Known,
    Link,
    Matrix,
    Vector,
    Wires,
    distance_bound,
    joined,
    mean_distance,
    mean_waiting_time,
    moving_average,
    round_time,
    update_distances,
)

# "Fits the deadline" means a whole number up to rounding counts as whole.
ROUNDING = 1e-9


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
class ReportedNumbers:
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

    def learn(self, reported: ReportedNumbers) -> None:
        """Lines 3-5 and the updates of SPEC 5."""
        rules = self.rules
        for i, took in enumerate(reported.step_time):
            if took is not None:
                self.step_time[i] = moving_average(self.step_time[i], took, rules.smoothing)
        if reported.distance:
            self.distances = update_distances(
                self.distances, reported.distance, smoothing=rules.distance_smoothing
            )
        norms = finite(reported.update_norm)
        if norms and rules.bound == "gradient":
            assert self.learning_rate is not None
            norms = [value / self.learning_rate for value in norms]
        if norms:
            self.bound = distance_bound(
                self.bound, norms, smoothing=rules.bound_smoothing, scale=rules.bound_scale
            )
        bends = finite(reported.smoothness)
        if bends:
            self.smoothness = moving_average(self.smoothness, median(bends), rules.smoothing)
        spreads = finite(reported.gradient_variance)
        if spreads:
            mean = sum(spreads) / len(spreads)
            self.gradient_variance = moving_average(self.gradient_variance, mean, rules.smoothing)
        losses = finite(reported.start_loss)
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
