"""Topologies, connectivity and mixing matrices: the paper's L = D - A, Eq. (6), Assumption 4.

Base topologies are components (components.py): a callable (workers, seed, *, settings) that
returns the links, or a ChangingTopology; the user's own is named by a dotted path in [topology].
Those with more structure are in topologies.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from fedhp import components
from fedhp.errors import ConfigError, FedhpError, at_user_place
from fedhp.seeds import Purpose, generator
from fedhp.types import BoolArray, ChangingTopology, FloatArray, IntArray, Topology

# scipy is imported where it is used: a wrong setting is refused without waiting for it.
if TYPE_CHECKING:
    from scipy.sparse import csr_array

TOPOLOGIES = {
    "full": "fedhp.graph:full",
    "ring": "fedhp.graph:ring",
    "star": "fedhp.graph:star",
    "grid": "fedhp.graph:grid",
    "random_regular": "fedhp.graph:random_regular",
    "random": "fedhp.graph:random",
    "links": "fedhp.graph:links",
    "exponential": "fedhp.topologies:exponential",
    "one_peer_exponential": "fedhp.topologies:one_peer_exponential",
    "torus": "fedhp.topologies:torus",
    "hypercube": "fedhp.topologies:hypercube",
    "base_k": "fedhp.topologies:base_k",
    "small_world": "fedhp.topologies:small_world",
}

LONGEST_PERIOD = 10_000  # rounds of a topology that changes, all of which are checked
_ROWS = 1 << 20  # links checked at a time: a full mesh of 10,000 has 50 million


def topology_from(workers: int, pairs: Any) -> Topology:
    """A topology from pairs in any order; each link once, smaller worker first."""
    array = np.asarray(list(pairs) if not isinstance(pairs, np.ndarray) else pairs)
    array = array.reshape(-1, 2).astype(np.int64, copy=False)
    if in_order(array):
        return Topology(workers, array)
    array = np.sort(array[array[:, 0] != array[:, 1]], axis=1)
    if not len(array):
        return Topology(workers, array)
    # One number per link sorts faster than rows; it reads back exactly.
    width = int(array.max()) + 1
    keys = np.unique(array[:, 0] * width + array[:, 1])
    return Topology(workers, np.stack(np.divmod(keys, width), axis=1))


def in_order(links: IntArray) -> bool:
    """Whether each link occurs once, smaller worker first, sorted; in little memory."""
    for first in range(0, len(links), _ROWS):
        part = links[first : first + _ROWS + 1]
        left, right = part[:, 0], part[:, 1]
        ahead = (left[1:] > left[:-1]) | ((left[1:] == left[:-1]) & (right[1:] > right[:-1]))
        if not ((left < right).all() and ahead.all()):
            return False
    return True


def full(workers: int, seed: int) -> IntArray:
    """Every worker is linked to every other."""
    links = np.empty((workers * (workers - 1) // 2, 2), dtype=np.int64)
    numbers, first = np.arange(workers), 0
    for worker in range(workers - 1):
        stop = first + workers - 1 - worker
        links[first:stop, 0] = worker
        links[first:stop, 1] = numbers[worker + 1 :]
        first = stop
    return links


def ring(workers: int, seed: int) -> IntArray:
    """A ring over a random permutation: index order would make same-class workers neighbors."""
    return ring_over(generator(seed, Purpose.TOPOLOGY).permutation(workers))


def ring_over(order: IntArray) -> IntArray:
    """The links of a ring that visits workers in this order."""
    if len(order) < 2:
        return np.empty((0, 2), dtype=np.int64)
    return np.stack([order, np.roll(order, -1)], axis=1).astype(np.int64)


def star(workers: int, seed: int, *, center: Annotated[int, Field(ge=0)] = 0) -> IntArray:
    """One worker in the center, linked to all others."""
    if center >= workers:
        raise ConfigError(
            f"is {center}, but workers = {workers}",
            key="topology.center",
            allowed=f"0 to {workers - 1}",
            fix=f"set topology.center to one of the {workers} workers",
            others=("workers",),
        )
    return np.array([(center, i) for i in range(workers) if i != center], dtype=np.int64)


def grid(workers: int, seed: int) -> IntArray:
    """A square-like grid, filled row by row."""
    width = int(np.ceil(np.sqrt(workers)))
    right = [(i, i + 1) for i in range(workers - 1) if (i + 1) % width]
    down = [(i, i + width) for i in range(workers - width)]
    return np.array(right + down, dtype=np.int64)


DRAWS = 100  # of a random graph until it is connected


def random_regular(
    workers: int, seed: int, *, degree: Annotated[int, Field(ge=1)] = 6, redraw: bool = False
) -> IntArray | ChangingTopology:
    """Every worker has exactly `degree` neighbors, at random; drawn until it is connected, or
    other ones every round (redraw)."""
    check_regular(workers, degree, connected=not redraw)
    if redraw:
        return ChangingTopology(
            lambda round_index: draw_regular(
                workers, degree, generator(seed, Purpose.TOPOLOGY, round_index)
            )
        )
    rng = generator(seed, Purpose.TOPOLOGY)
    if degree == 2:  # the connected 2-regular graphs are the rings
        return topology_from(workers, ring_over(rng.permutation(workers))).links
    return draw_regular(workers, degree, rng, connected=True).links


def check_regular(workers: int, degree: int, *, connected: bool = True) -> None:
    """Refuse degrees for which no (connected) regular graph exists."""
    product = "the number of workers times the degree must be even"
    if degree >= workers:
        problem, most = f"{degree} neighbors each, but workers = {workers}", workers - 1
        allowed = f"at most {most}: each worker has {most} others"
        fix = f"set topology.degree to at most {most}, or use topology.name = 'full'"
    elif degree * workers % 2:
        problem = f"{workers} workers cannot have {degree} neighbors each: {product}"
        allowed = "an even degree, or an even number of workers"
        even = degree + 1 if degree + 1 < workers else degree - 1
        fix = f"set topology.degree = {even}, or workers = {workers + 1}"
    elif degree == 1 and workers > 2 and connected:
        problem = f"{workers} workers with one neighbor each fall apart into pairs"
        allowed = "2 or more"
        fix = "set topology.degree to at least 2"
    else:
        return
    others = ("workers",) if degree >= workers else ()
    raise ConfigError(problem, key="topology.degree", allowed=allowed, fix=fix, others=others)


def draw_regular(
    workers: int, degree: int, rng: np.random.Generator, *, connected: bool = False
) -> Topology:
    """A random graph in which every degree is exact; drawn until it is connected, if asked for."""
    for _ in range(DRAWS):
        topology = _draw_regular(workers, degree, rng)
        if topology is not None and not (connected and not is_connected(topology)):
            return topology
    raise ConfigError(
        f"no connected graph of degree {degree} was found for {workers} workers in {DRAWS} draws",
        key="topology.degree",
        allowed="a degree for which random graphs are connected: 3 or more",
        fix="increase topology.degree, or set another seed",
    )


def _draw_regular(workers: int, degree: int, rng: np.random.Generator) -> Topology | None:
    """A random graph in which every degree is exact; None if the draw could not be completed.

    Every worker has `degree` ends; all ends are joined in random pairs. A pair that is a loop or
    repeats a link is exchanged with a random link: (a, b), (c, d) become (a, c), (b, d). A dense
    graph is the complement of a sparse one, in which few pairs need that.
    """
    if 2 * degree > workers - 1:
        missing = _draw_regular(workers, workers - 1 - degree, rng)
        if missing is None:
            return None
        left, right = np.nonzero(np.triu(~missing.adjacency, k=1))
        return Topology(workers, np.stack([left, right], axis=1).astype(np.int64))
    ends = np.sort(rng.permutation(np.repeat(np.arange(workers), degree)).reshape(-1, 2), axis=1)
    keys = ends[:, 0] * workers + ends[:, 1]
    usable = np.zeros(len(ends), dtype=np.bool_)
    usable[np.unique(keys, return_index=True)[1]] = True
    usable &= ends[:, 0] != ends[:, 1]
    pairs: list[tuple[int, int]] = [(a, b) for a, b in ends[usable].tolist()]
    if not _exchange_ends(pairs, ends[~usable].tolist(), rng):
        return None
    return topology_from(workers, np.array(pairs, dtype=np.int64).reshape(-1, 2))


def _exchange_ends(
    pairs: list[tuple[int, int]], unusable: list[list[int]], rng: np.random.Generator
) -> bool:
    """Add the ends of unusable pairs to the links by exchanges; whether all could be added."""
    present = set(pairs)
    for a, b in unusable:
        for _ in range(10_000 if pairs else 0):
            index = int(rng.integers(len(pairs)))
            c, d = pairs[index] if rng.random() < 0.5 else pairs[index][::-1]
            first, second = (min(a, c), max(a, c)), (min(b, d), max(b, d))
            new = a != c and b != d and first != second
            if new and first not in present and second not in present:
                present.remove(pairs[index])
                present.update((first, second))
                pairs[index] = first
                pairs.append(second)
                break
        else:
            return False
    return True


def random(
    workers: int,
    seed: int,
    *,
    probability: Annotated[float, Field(gt=0, le=1)] = 0.3,
    redraw: bool = False,
) -> IntArray | ChangingTopology:
    """Each link with this probability (Erdős-Rényi); drawn until it is connected, or others every
    round (redraw)."""
    if redraw:
        return ChangingTopology(
            lambda round_index: draw_links(
                workers, probability, generator(seed, Purpose.TOPOLOGY, round_index)
            )
        )
    rng = generator(seed, Purpose.TOPOLOGY)
    for _ in range(DRAWS):
        topology = draw_links(workers, probability, rng)
        if is_connected(topology):
            return topology.links
    likely = min(1.0, 1.5 * float(np.log(workers)) / workers)
    raise ConfigError(
        f"none of {DRAWS} random graphs of {workers} workers with probability {probability:g} was"
        " connected",
        key="topology.probability",
        allowed=f"a probability for which such graphs are connected: about {likely:.2g} or more",
        fix=f"set topology.probability = {likely:.2g}, or use topology.name = 'random_regular'",
    )


def draw_links(workers: int, probability: float, rng: np.random.Generator) -> Topology:
    """Each link with this probability; the graph may be disconnected."""
    # Worker by worker: links that are not drawn take no memory.
    drawn = [
        worker + 1 + np.flatnonzero(rng.random(workers - 1 - worker) < probability)
        for worker in range(workers)
    ]
    smaller = np.repeat(np.arange(workers), [len(neighbors) for neighbors in drawn])
    return topology_from(workers, np.stack([smaller, np.concatenate(drawn)], axis=1))


def links(workers: int, seed: int, *, pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The links listed in the settings: pairs = [[0, 1], [1, 2]]."""
    return pairs


def base_topology(name: str, settings: dict[str, Any], *, workers: int, seed: int) -> Topology:
    """The base topology of an experiment, checked: known workers, connected.

    Of one that changes over rounds, all links of a cycle; the first round's if it never repeats.
    """
    return topologies(name, settings, workers=workers, seed=seed)[0]


def topologies(
    name: str, settings: dict[str, Any], *, workers: int, seed: int
) -> tuple[Topology, ChangingTopology | None]:
    """The base topology of an experiment, and that of every round if it changes; checked."""
    component = components.resolve(name, TOPOLOGIES, key="topology.name")
    built = components.build(component, workers, seed, settings=settings, prefix="topology")

    def checked(pairs: Any) -> Topology:
        return _checked(pairs, name=name, workers=workers)

    if not isinstance(built, ChangingTopology):
        topology = checked(built)
        _check_connected(topology, name)
        return topology, None

    def at(round_index: int) -> Topology:
        try:
            pairs = built.at(round_index)
        except FedhpError:
            raise
        except Exception as error:  # the code of a user may fail in any way
            words = " ".join(str(error).split())
            raise ConfigError(
                f"{name!r} fails in round {round_index}: {type(error).__name__}: {words}"
                f"{at_user_place(error)}",
                key="topology.name",
                allowed="a function that gives the links of every round, counted from 1",
                fix="correct the topology",
            ) from error
        return checked(pairs)

    period = built.period
    whole = isinstance(period, int) and not isinstance(period, bool)
    if period is not None and not (whole and 1 <= period <= LONGEST_PERIOD):
        raise ConfigError(
            f"{name!r} repeats after {period!r} rounds",
            key="topology.name",
            allowed=f"a whole number from 1 to {LONGEST_PERIOD}, or None: it never repeats",
            fix="correct the period of the ChangingTopology",
        )
    changing = ChangingTopology(at, built.period)
    if built.period is None:
        return round_topology(changing, 1), changing
    links = [round_topology(changing, number + 1).links for number in range(built.period)]
    topology = topology_from(workers, np.concatenate(links))
    _check_connected(topology, name)
    return topology, changing


def round_topology(changing: ChangingTopology, round_index: int) -> Topology:
    """The topology of a round of one that topologies() has checked."""
    topology = changing.at(round_index)
    assert isinstance(topology, Topology)
    return topology


def _checked(pairs: Any, *, name: str, workers: int) -> Topology:
    """What a topology returned, as links of known workers; its weights must allow mixing."""
    weights = None
    if isinstance(pairs, Topology):
        if pairs.workers != workers:
            raise ConfigError(
                f"{name!r} returned a topology for {pairs.workers} workers: workers = {workers}",
                key="topology.name",
                allowed=f"a Topology for {workers} workers, or its links",
                fix="return Topology(workers, links) with the number that the function gets",
                others=("workers",),
            )
        pairs, weights = pairs.links, pairs.weights
    try:
        given = np.asarray(pairs)
        if given.size and given.dtype.kind not in "iu":
            raise ValueError(f"they are {given.dtype}, not whole numbers")
        array = given.astype(np.int64, copy=False).reshape(-1, 2)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"{name!r} did not return a list of worker pairs: {error}",
            key="topology.name",
            allowed="an array of shape [links, 2] of worker numbers",
            fix="return pairs such as [[0, 1], [1, 2]]",
        ) from None
    if array.size and (array.min() < 0 or array.max() >= workers):
        bad = int(array.max() if array.max() >= workers else array.min())
        raise ConfigError(
            f"a link has the unknown worker {bad}: workers = {workers}",
            key="topology.pairs" if name == "links" else "topology.name",
            allowed=f"workers 0 to {workers - 1}",
            fix="correct the link, or increase workers",
            others=("workers",),
        )
    if weights is None:
        return topology_from(workers, array)
    topology = Topology(workers, array, weights)
    problem = weights_problem(topology)
    if problem:
        raise ConfigError(
            f"{name!r} returned weights that cannot be mixed by: {problem}",
            key="topology.name",
            allowed="links in ascending order, each with a weight above 0; at most 1 per worker",
            fix="correct the weights, or return the links alone",
        )
    return topology


def weights_problem(topology: Topology) -> str:
    """Why the topology's own weights cannot be used for mixing; empty if they can."""
    weights = topology.weights
    if weights is None:
        return ""
    weights = np.asarray(weights)
    if weights.dtype.kind != "f" or weights.shape != (len(topology.links),):
        return f"{len(topology.links)} links, but weights {weights.dtype} of {weights.shape}"
    if not in_order(topology.links):
        return "the links are not in ascending order, each once"
    if not (weights > 0).all():
        return f"the weight {weights[~(weights > 0)][0]:g} is not above 0"
    twice = np.tile(weights, 2)
    total = np.bincount(topology.links.T.ravel(), twice, minlength=topology.workers)
    if (total > 1 + 1e-9).any():
        worker = int(np.argmax(total))
        return f"the weights of worker {worker} add up to {total[worker]:g}"
    return ""


def _check_connected(topology: Topology, name: str) -> None:
    groups = components_of(topology)
    if groups.max(initial=0) > 0:
        apart = int(np.flatnonzero(groups != groups[0])[0])
        raise ConfigError(
            f"the base topology {name!r} is disconnected: "
            f"there is no path from worker 0 to worker {apart}",
            key="topology.name",
            allowed="a connected graph over all workers",
            fix="add links between the groups, or use topology.name = 'full'",
        )


def with_weights_of(topology: Topology, weighted: Topology) -> Topology:
    """The same links with the weights that they have there; unchanged if one of them is not
    there, or has no weight."""
    if weighted.weights is None:
        return topology
    wanted, known = (each.links @ [each.workers, 1] for each in (topology, weighted))
    place = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
    if len(wanted) and (not len(known) or (known[place] != wanted).any()):
        return topology
    return Topology(topology.workers, topology.links, weighted.weights[place])


def components_of(topology: Topology) -> IntArray:
    """The connected component of every worker, numbered by its first member, [N]."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    workers, links = topology.workers, topology.links
    # More links than a full mesh of all workers but one has: the graph is connected.
    if len(links) > (workers - 1) * (workers - 2) // 2:
        return np.zeros(workers, dtype=np.int64)
    present = np.ones(len(links), dtype=np.int8)
    graph = csr_array((present, (links[:, 0], links[:, 1])), shape=(workers, workers))
    labels = connected_components(graph, directed=False)[1]
    first = np.unique(labels, return_index=True)[1]
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return np.asarray(rank[labels])


def neighbor_lists(topology: Topology) -> tuple[IntArray, IntArray]:
    """All neighbors in one array: those of worker i are neighbors[start[i]:start[i + 1]].

    start is [N + 1], neighbors [2E], ascending for each worker.
    """
    graph = _symmetric(topology, np.ones(2 * len(topology.links), dtype=np.int8))
    return graph.indptr.astype(np.int64), graph.indices.astype(np.int64)


def _symmetric(topology: Topology, values: Any, diagonal: Any = None) -> csr_array:
    """The matrix with these values at (b, a) and then at (a, b) of every link, [N, N].

    Rows keep the order of the entries, so with sorted links their columns ascend: first the
    smaller neighbors, then the diagonal if there is one, then the larger neighbors.
    """
    from scipy.sparse import csr_array

    workers, (a, b) = topology.workers, topology.links.T
    half = len(a)
    itself = np.arange(0 if diagonal is None else workers)
    data = values
    if diagonal is not None:
        data = np.concatenate([values[:half], diagonal, values[half:]])
    cells = (np.concatenate([b, itself, a]), np.concatenate([a, itself, b]))
    return csr_array((data, cells), shape=(workers, workers))


def is_connected(topology: Topology) -> bool:
    """Whether any two workers are joined by a path (lambda_2 of the Laplacian is positive)."""
    return topology.workers <= 1 or int(components_of(topology).max()) == 0


def among(topology: Topology, available: BoolArray) -> Topology:
    """The links with both ends available [N]."""
    left, right = topology.links[:, 0], topology.links[:, 1]
    return topology.keep(available[left] & available[right])


def laplacian(topology: Topology) -> FloatArray:
    """D - A, [N, N]."""
    return np.diag(topology.degrees).astype(np.float64) - topology.adjacency


MixingRule = Literal["max_degree", "metropolis", "sinkhorn"]


def mixing_weights(topology: Topology, rule: str = "max_degree") -> csr_array:
    """Symmetric doubly stochastic weights, sparse [N, N] with the diagonal, columns ascending.

    The topology's own if it has some; otherwise by the rule: Eq. (6) for max_degree. A diagonal
    weight is 1 minus the sum of the row's other weights, added one by one in ascending order of
    the neighbors.
    """
    a, b = topology.links.T
    degrees = topology.degrees
    if topology.weights is not None:
        weights = topology.weights
    elif rule == "max_degree":
        weights = np.full(len(a), 1.0 / (degrees.max(initial=0) + 1))
    elif rule == "metropolis":
        weights = 1.0 / (1 + np.maximum(degrees[a], degrees[b]))
    elif rule == "sinkhorn":
        return _sinkhorn(
            _symmetric(topology, np.ones(2 * len(a)), diagonal=np.ones(topology.workers))
        )
    else:
        raise ValueError(f"unknown mixing rule {rule!r}")
    both = np.concatenate([weights, weights])
    rows = _symmetric(topology, both) @ np.ones(topology.workers)
    return _symmetric(topology, both, diagonal=1.0 - rows)


def directed_weights(sources: IntArray) -> csr_array:
    """Row-stochastic weights [N, N]: a worker and its sources [N, M] in equal parts."""
    from scipy.sparse import csr_array

    workers = len(sources)
    receivers, columns = np.nonzero(sources >= 0)
    itself = np.arange(workers)
    rows = np.concatenate([receivers, itself])
    ends = np.concatenate([sources[receivers, columns], itself])
    values = 1.0 / (1 + np.bincount(receivers, minlength=workers))[rows]
    return sorted_rows(csr_array((values, (rows, ends)), shape=(workers, workers)))


def link_weights(links: IntArray, weights: FloatArray, own_weights: FloatArray) -> csr_array:
    """Weights [N, N] of links (receiver, sender) [E, 2] and of the workers' own models [N]."""
    from scipy.sparse import csr_array

    workers = len(own_weights)
    itself = np.arange(workers)
    rows = np.concatenate([links[:, 0], itself])
    columns = np.concatenate([links[:, 1], itself])
    values = np.concatenate([weights, own_weights]).astype(np.float64)
    return sorted_rows(csr_array((values, (rows, columns)), shape=(workers, workers)))


def sorted_rows(weights: csr_array) -> csr_array:
    """The same weights with ascending columns in every row: the order of the ordered kernel."""
    weights.sum_duplicates()
    weights.sort_indices()
    return weights


def mixing_matrix(topology: Topology, rule: str = "max_degree") -> FloatArray:
    """mixing_weights as a dense matrix, [N, N]: for spectra and small federations."""
    dense: FloatArray = mixing_weights(topology, rule).toarray()
    return dense


def _sinkhorn(matrix: csr_array, tolerance: float = 1e-12) -> csr_array:
    """Scale a symmetric matrix by one positive diagonal on both sides to row sums 1."""
    scale = 1.0 / np.sqrt(matrix @ np.ones(matrix.shape[0]))
    for _ in range(100_000):
        rows = scale * (matrix @ scale)
        if np.abs(rows - 1.0).max() <= tolerance:
            break
        scale = scale / np.sqrt(rows)
    matrix.data *= np.repeat(scale, np.diff(matrix.indptr)) * scale[matrix.indices]
    return matrix


def mixing_rate(matrix: FloatArray) -> float:
    """rho = max(|lambda_2|, |lambda_N|) of a symmetric mixing matrix; 0 mixes in one round."""
    values = np.sort(np.abs(np.linalg.eigvalsh(matrix)))
    return float(values[-2]) if len(values) > 1 else 0.0
