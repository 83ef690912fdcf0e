"""Topologies with more structure than those of graph.py, fixed ones and ones that change.

Each is first a pure function of the workers (and the round), in the order of their numbers; an
experiment gets it over the random order of its seed, for the reason that a ring has. Base-(k+1)
is from Takezawa et al., 2023; the exponential graphs are from Ying et al., 2021.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import combinations, zip_longest
from typing import Annotated, TypeAlias

import numpy as np
from pydantic import Field

from fedhp import graph
from fedhp.errors import ConfigError
from fedhp.seeds import Purpose, generator
from fedhp.types import ChangingTopology, FloatArray, IntArray, Topology

# Names that D-PSGD and LD-SGD never had a ring for: there, a user says which of the two it is.
ADDED_NAMES = (
    "exponential",
    "one_peer_exponential",
    "torus",
    "hypercube",
    "base_k",
    "small_world",
)

Weighted: TypeAlias = dict[tuple[int, int], float]  # the links of a round, with their weights


# --- of an experiment ----------------------------------------------------------------------


def exponential(workers: int, seed: int) -> IntArray:
    """Every worker is linked to those 1, 2, 4, 8, ... places away, in both directions."""
    numbers = np.arange(workers)
    offsets = [1 << power for power in range((workers - 1).bit_length()) if 1 << power < workers]
    pairs = [np.stack([numbers, (numbers + by) % workers], axis=1) for by in offsets]
    return _placed(_pairs(pairs), workers, seed)


def one_peer_exponential(workers: int, seed: int) -> ChangingTopology:
    """One peer per round, 1, 2, 4, ... places away in turn: all models are equal after a cycle."""
    why = "its models are equal after a cycle only then"
    instead = "'base_k' (exact for any number of workers)"
    _check_power_of_two(workers, "one_peer_exponential", why, instead)
    rounds = [one_peer_links(workers, turn) for turn in range(max(1, dimensions(workers)))]
    return _cycle([graph.topology_from(workers, _placed(r, workers, seed)) for r in rounds])


def hypercube(workers: int, seed: int) -> IntArray:
    """Workers whose numbers differ in one binary digit are linked."""
    why = "it links workers whose numbers differ in one binary digit"
    instead = "'exponential' (any number of workers)"
    _check_power_of_two(workers, "hypercube", why, instead)
    turns = [one_peer_links(workers, turn) for turn in range(dimensions(workers))]
    return _placed(_pairs(turns), workers, seed)


def torus(workers: int, seed: int, *, rows: Annotated[int, Field(ge=2)] | None = None) -> IntArray:
    """A grid whose edges meet: every worker has four neighbors, three where a side is two long."""
    numbers = np.arange(workers).reshape(_torus_rows(workers, rows), -1)
    right, below = np.roll(numbers, -1, axis=1), np.roll(numbers, -1, axis=0)
    sides = [np.stack([numbers.ravel(), side.ravel()], axis=1) for side in (right, below)]
    return _placed(_pairs(sides), workers, seed)


def base_k(workers: int, seed: int, *, k: Annotated[int, Field(ge=1)] = 1) -> ChangingTopology:
    """Base-(k+1): at most k peers per round, and all models are equal after a cycle, for any
    number of workers."""
    order = _order(workers, seed)
    return _cycle([_weighted(workers, links, order) for links in base_rounds(workers, k)])


def small_world(
    workers: int,
    seed: int,
    *,
    neighbors: Annotated[int, Field(ge=2)] = 4,
    probability: Annotated[float, Field(ge=0, le=1)] = 0.1,
    redraw: bool = False,
) -> IntArray | ChangingTopology:
    """A ring on which everyone knows the nearest ones; each link is moved with this probability
    (Watts and Strogatz). Drawn until it is connected."""
    _check_small_world(workers, neighbors)
    if redraw:

        def at(round_index: int) -> IntArray:
            rng = generator(seed, Purpose.TOPOLOGY, round_index)
            return _placed(small_world_links(workers, neighbors, probability, rng), workers, seed)

        return ChangingTopology(at)
    rng = generator(seed, Purpose.TOPOLOGY, 0)
    for _ in range(graph.DRAWS):
        links = _placed(small_world_links(workers, neighbors, probability, rng), workers, seed)
        if graph.is_connected(graph.topology_from(workers, links)):
            return links
    raise ConfigError(
        f"none of {graph.DRAWS} small worlds of {workers} workers with {neighbors} neighbors was"
        " connected",
        key="topology.neighbors",
        allowed="4 or more, or a smaller topology.probability",
        fix=f"set topology.neighbors = {neighbors + 2}",
    )


# --- in the order of the workers' numbers --------------------------------------------------


def dimensions(workers: int) -> int:
    """log2 of a power of two."""
    return workers.bit_length() - 1


def one_peer_links(workers: int, turn: int) -> IntArray:
    """(i, i XOR 2**turn), turns counted from 0: disjoint pairs, [N / 2, 2].

    The directed form sends to i + 2**turn. Both average exactly after a cycle for a power of two;
    this one has symmetric weights of one half, so that mixing keeps the mean with plain links.
    """
    if workers < 2:
        return np.empty((0, 2), dtype=np.int64)
    numbers = np.arange(workers)
    other = numbers ^ (1 << turn % dimensions(workers))
    return np.stack([numbers, other], axis=1)[numbers < other]


def small_world_links(
    workers: int, neighbors: int, probability: float, rng: np.random.Generator
) -> IntArray:
    """A lattice of the nearest neighbors in which every link may get another far end, [E, 2]."""
    sides = range(1, neighbors // 2 + 1)
    present = {_link(i, (i + by) % workers) for i in range(workers) for by in sides}
    degree = [neighbors] * workers
    for by in sides:
        for i in range(workers):
            j = (i + by) % workers
            if rng.random() >= probability or degree[i] == workers - 1:
                continue
            other = i
            while other == i or _link(i, other) in present:
                other = int(rng.integers(workers))
            present.remove(_link(i, j))
            present.add(_link(i, other))
            degree[j] -= 1
            degree[other] += 1
    return np.array(sorted(present), dtype=np.int64).reshape(-1, 2)


def base_rounds(workers: int, k: int) -> list[Weighted]:
    """The rounds of a cycle of Base-(k+1), at least one; each has links and their weights.

    Workers = smooth * rest, where no number from 2 to k + 1 divides the rest: groups of `rest`
    average by themselves, and then across. The simple form over all is taken where it is shorter.
    """
    numbers = list(range(workers))
    smooth = _smooth_part(workers, k)
    rest = workers // smooth
    groups = [numbers[first : first + rest] for first in range(0, workers, rest)]
    inside = _side_by_side([simple_base_rounds(group, k) for group in groups])
    across = [[group[member] for group in groups] for member in range(rest)]
    grouped = inside + _side_by_side([hyper_hypercube_rounds(members, k) for members in across])
    simple = simple_base_rounds(numbers, k)
    return min(simple, grouped, key=len) or [{}]


def simple_base_rounds(members: Sequence[int], k: int) -> list[Weighted]:
    """The Simple Base-(k+1) graph of these workers.

    Their number in base k + 1 has digits a_1, a_2, ... that are not zero: parts of a_l (k+1)**p_l.
    1. Every part averages by itself.
    2. In turn, each part hands the difference to all smaller ones out to them: each of their
       workers meets one from each of the part's a_l blocks, with such a weight that every block,
       and the smaller parts together, have the mean of all.
    3. Every block averages by itself, while the smaller parts go on with 2.
    """
    if _factors(len(members), k) is not None:
        return hyper_hypercube_rounds(members, k)
    parts = _digits(len(members), k + 1)
    first, blocks = 0, []  # [part][block] -> members
    for count, size in parts:
        blocks.append([members[first + b * size : first + (b + 1) * size] for b in range(count)])
        first += count * size
    whole = [[member for block in part for member in block] for part in blocks]
    rounds = _side_by_side([hyper_hypercube_rounds(part, k) for part in whole])
    start = len(rounds)
    for index, part in enumerate(blocks[:-1]):
        smaller = [member for later in whole[index + 1 :] for member in later]
        weight = len(part[0]) / (len(whole[index]) + len(smaller))
        met = {
            _link(member, block[place]): weight
            for place, member in enumerate(smaller)
            for block in part
        }
        after = _side_by_side([hyper_hypercube_rounds(block, k) for block in part])
        rounds = _side_by_side([rounds, [{}] * (start + index) + [met, *after]])
    return rounds


def hyper_hypercube_rounds(members: Sequence[int], k: int) -> list[Weighted]:
    """Workers as numbers with a digit for every factor of their count: in round l, those that
    differ in digit l alone take their mean. Needs factors of at most k + 1."""
    factors = _factors(len(members), k)
    assert factors is not None
    rounds, stride = [], 1
    for size in factors:
        links: Weighted = {}
        for place in range(len(members)):
            if place // stride % size == 0:
                clique = [members[place + digit * stride] for digit in range(size)]
                links |= {_link(a, b): 1 / size for a, b in combinations(clique, 2)}
        rounds.append(links)
        stride *= size
    return rounds


def _side_by_side(sequences: Iterable[list[Weighted]]) -> list[Weighted]:
    """Rounds of groups that have no worker in common, as common rounds."""
    together = zip_longest(*sequences, fillvalue={})
    return [{link: weight for part in parts for link, weight in part.items()} for parts in together]


@cache
def _factors(number: int, k: int) -> tuple[int, ...] | None:
    """The fewest factors from 2 to k + 1 that make a number; None if there are none."""
    if number == 1:
        return ()
    best: tuple[int, ...] | None = None
    for factor in range(min(k + 1, number), 1, -1):
        if number % factor == 0:
            others = _factors(number // factor, k)
            if others is not None and (best is None or len(others) + 1 < len(best)):
                best = (factor, *others)
    return best


def _smooth_part(number: int, k: int) -> int:
    """The largest divisor all of whose prime factors are at most k + 1."""
    smooth = 1
    for factor in range(2, min(k + 1, number) + 1):
        while number % factor == 0:
            smooth, number = smooth * factor, number // factor
    return smooth


def _digits(number: int, base: int) -> list[tuple[int, int]]:
    """The digits that are not zero, with the values of their places, largest place first."""
    place, digits = 1, []
    while number:
        number, digit = divmod(number, base)
        if digit:
            digits.append((digit, place))
        place *= base
    return digits[::-1]


# --- placing and refusing ------------------------------------------------------------------


def _order(workers: int, seed: int) -> IntArray:
    return generator(seed, Purpose.TOPOLOGY).permutation(workers)


def _placed(links: IntArray, workers: int, seed: int) -> IntArray:
    return np.asarray(_order(workers, seed)[links], dtype=np.int64).reshape(-1, 2)


def _weighted(workers: int, links: Weighted, order: IntArray) -> Topology:
    """The topology of a round, in the drawn order; each link keeps its weight."""
    pairs = np.array(list(links), dtype=np.int64).reshape(-1, 2)
    ends = np.sort(order[pairs], axis=1).astype(np.int64).reshape(-1, 2)
    weights: FloatArray = np.array(list(links.values()), dtype=np.float64)
    rows = np.lexsort((ends[:, 1], ends[:, 0]))
    return Topology(workers, ends[rows], weights[rows])


def _cycle(rounds: Sequence[Topology]) -> ChangingTopology:
    return ChangingTopology(
        lambda round_index: rounds[(round_index - 1) % len(rounds)], period=len(rounds)
    )


def _pairs(parts: Sequence[IntArray]) -> IntArray:
    return np.concatenate([np.empty((0, 2), dtype=np.int64), *parts])


def _link(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)


def _check_power_of_two(workers: int, name: str, why: str, instead: str) -> None:
    if workers & (workers - 1) == 0:
        return
    below = 1 << dimensions(workers)
    raise ConfigError(
        f"{name!r} needs a power of two as the number of workers, but workers = {workers}: {why}",
        key="topology.name",
        allowed="workers = 2, 4, 8, 16, ...",
        fix=f"set workers = {below} or {2 * below}, or use topology.name = {instead}",
        others=("workers",),
    )


def _torus_rows(workers: int, rows: int | None) -> int:
    """The rows given, or those of the torus that is nearest to a square."""
    sides = [side for side in range(2, workers // 2 + 1) if workers % side == 0]
    if rows in sides:
        return rows
    if rows is None and sides:
        return max(side for side in sides if side * side <= workers)
    if not sides:
        raise ConfigError(
            f"{workers} workers do not fill a torus: {workers} is not a product of two numbers "
            "above 1",
            key="topology.name",
            allowed="workers = rows * columns, both at least 2",
            # After a prime above 2 comes an even number.
            fix=f"set workers = {max(4, workers + 1)}, or use topology.name = 'grid' or 'ring'",
        )
    raise ConfigError(
        f"{workers} workers do not fill {rows} rows of equal length, at least 2 long",
        key="topology.rows",
        allowed=f"one of {', '.join(map(str, sides))}",
        fix="set topology.rows to one of these, or remove it",
    )


def _check_small_world(workers: int, neighbors: int) -> None:
    if neighbors % 2 == 0 and neighbors < workers:
        return
    most = max(2, (workers - 1) // 2 * 2)
    odd = neighbors % 2 == 1 and neighbors < workers
    raise ConfigError(
        f"{neighbors} neighbors each: as many on one side as on the other"
        if odd
        else f"{neighbors} neighbors each, but workers = {workers}",
        key="topology.neighbors",
        allowed=f"an even number from 2 to {most}" if workers > 2 else "3 workers or more",
        fix=f"set topology.neighbors = {min(most, neighbors + 1)}"
        if workers > 2
        else "increase workers, or use topology.name = 'full'",
        others=() if odd else ("workers",),
    )
