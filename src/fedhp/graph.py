"""Topologies, connectivity and mixing matrices: the paper's L = D - A, Eq. (6), Assumption 4.

Base topologies are parts (components.py): a callable (workers, seed, *, settings) that
returns the links; a user's own is named by dotted path in [topology].
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from fedhp import components
from fedhp.errors import ConfigError
from fedhp.seeds import Purpose, generator
from fedhp.types import BoolArray, FloatArray, IntArray, Topology

TOPOLOGIES = {
    "full": "fedhp.graph:full",
    "ring": "fedhp.graph:ring",
    "star": "fedhp.graph:star",
    "grid": "fedhp.graph:grid",
    "random_regular": "fedhp.graph:random_regular",
    "random": "fedhp.graph:random",
    "links": "fedhp.graph:links",
}


def topology_from(workers: int, pairs: Any) -> Topology:
    """A topology from pairs in any order; each link once, smaller worker first."""
    array = np.asarray(list(pairs) if not isinstance(pairs, np.ndarray) else pairs)
    array = array.reshape(-1, 2).astype(np.int64)
    array = np.sort(array[array[:, 0] != array[:, 1]], axis=1)
    return Topology(workers, np.unique(array, axis=0))


def full(workers: int, seed: int) -> IntArray:
    """Everyone with everyone."""
    return np.argwhere(np.triu(np.ones((workers, workers), dtype=np.bool_), 1)).astype(np.int64)


def ring(workers: int, seed: int) -> IntArray:
    """A ring over a random permutation: index order would put same-class workers side by side."""
    return ring_over(generator(seed, Purpose.TOPOLOGY).permutation(workers))


def ring_over(order: IntArray) -> IntArray:
    """The links of a ring that visits workers in this order."""
    if len(order) < 2:
        return np.empty((0, 2), dtype=np.int64)
    return np.stack([order, np.roll(order, -1)], axis=1).astype(np.int64)


def star(workers: int, seed: int, *, center: Annotated[int, Field(ge=0)] = 0) -> IntArray:
    """One worker in the middle."""
    if center >= workers:
        raise ValueError(f"center = {center}, but workers = {workers}")
    return np.array([(center, i) for i in range(workers) if i != center], dtype=np.int64)


def grid(workers: int, seed: int) -> IntArray:
    """A square-like grid, filled row by row."""
    width = int(np.ceil(np.sqrt(workers)))
    right = [(i, i + 1) for i in range(workers - 1) if (i + 1) % width]
    down = [(i, i + width) for i in range(workers - width)]
    return np.array(right + down, dtype=np.int64)


def random_regular(workers: int, seed: int, *, degree: Annotated[int, Field(ge=2)] = 6) -> IntArray:
    """Every worker has about `degree` neighbors; always connected.

    A union of random rings (and one random matching for an odd degree): near-regular
    even where an exactly regular graph does not exist.
    """
    rng = generator(seed, Purpose.TOPOLOGY)
    if degree >= workers - 1:
        return full(workers, seed)
    pairs = [ring_over(rng.permutation(workers)) for _ in range(degree // 2)]
    if degree % 2:
        order = rng.permutation(workers)
        half = workers // 2
        pairs.append(np.stack([order[:half], order[half : 2 * half]], axis=1))
    return topology_from(workers, np.concatenate(pairs)).links


def random(
    workers: int, seed: int, *, probability: Annotated[float, Field(gt=0, le=1)] = 0.3
) -> IntArray:
    """Each link with this probability, plus a random ring, so that it is connected."""
    rng = generator(seed, Purpose.TOPOLOGY)
    candidates = full(workers, seed)
    drawn = candidates[rng.random(len(candidates)) < probability]
    return topology_from(
        workers, np.concatenate([drawn, ring_over(rng.permutation(workers))])
    ).links


def links(workers: int, seed: int, *, pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """A list of links of one's own: pairs = [[0, 1], [1, 2]]."""
    return pairs


def base_topology(
    name: str, settings: dict[str, Any], *, workers: int, seed: int, source: str = ""
) -> Topology:
    """The base topology of an experiment, checked: known workers, connected."""
    part = components.resolve(name, TOPOLOGIES, key="topology.name", source=source)
    pairs = components.build(
        part, workers, seed, settings=settings, prefix="topology", source=source
    )
    try:
        array = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"{name!r} did not give a list of worker pairs: {error}",
            key="topology.name",
            source=source,
            allowed="an array of shape [links, 2] of worker numbers",
            fix="return pairs such as [[0, 1], [1, 2]]",
        ) from None
    if array.size and (array.min() < 0 or array.max() >= workers):
        bad = int(array.max() if array.max() >= workers else array.min())
        raise ConfigError(
            f"a link names worker {bad}, but workers = {workers}",
            key="topology.pairs" if name == "links" else "topology.name",
            source=source,
            allowed=f"workers 0 to {workers - 1}",
            fix="mend the link or raise workers",
        )
    topology = topology_from(workers, array)
    groups = components_of(topology)
    if groups.max(initial=0) > 0:
        apart = int(np.flatnonzero(groups != groups[0])[0])
        raise ConfigError(
            f"the base topology {name!r} is disconnected: "
            f"no path joins worker 0 and worker {apart}",
            key="topology.name",
            source=source,
            allowed="a connected graph over all workers",
            fix="add links between the groups, or use topology.name = 'full'",
        )
    return topology


def components_of(topology: Topology) -> IntArray:
    """Connected component of every worker, numbered by first member, [N]."""
    parent = list(range(topology.workers))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for a, b in topology.links.tolist():
        left, right = root(a), root(b)
        if left != right:
            parent[max(left, right)] = min(left, right)
    roots = np.array([root(i) for i in range(topology.workers)], dtype=np.int64)
    return np.unique(roots, return_inverse=True)[1].astype(np.int64)


def is_connected(topology: Topology) -> bool:
    """Whether a path joins any two workers (lambda_2 of the Laplacian is positive)."""
    return topology.workers <= 1 or int(components_of(topology).max()) == 0


def among(topology: Topology, available: BoolArray) -> Topology:
    """The links both of whose ends are available [N]."""
    left, right = topology.links[:, 0], topology.links[:, 1]
    return topology.keep(available[left] & available[right])


def laplacian(topology: Topology) -> FloatArray:
    """D - A, [N, N]."""
    return np.diag(topology.degrees).astype(np.float64) - topology.adjacency


MixingRule = Literal["max_degree", "metropolis", "sinkhorn"]


def mixing_matrix(topology: Topology, rule: str = "max_degree") -> FloatArray:
    """Symmetric doubly stochastic weights, [N, N]; Eq. (6) for max_degree."""
    weights: FloatArray
    adjacency = topology.adjacency.astype(np.float64)
    degrees = topology.degrees
    if rule == "max_degree":
        weights = adjacency / (degrees.max(initial=0) + 1)
    elif rule == "metropolis":
        weights = adjacency / (1 + np.maximum.outer(degrees, degrees))
    elif rule == "sinkhorn":
        return _sinkhorn(adjacency + np.eye(topology.workers))
    else:
        raise ValueError(f"unknown mixing rule {rule!r}")
    np.fill_diagonal(weights, 1.0 - weights.sum(axis=1))
    return weights


def _sinkhorn(matrix: FloatArray, tolerance: float = 1e-12) -> FloatArray:
    """Scale a symmetric matrix by one positive diagonal on both sides to row sums 1."""
    scale = 1.0 / np.sqrt(matrix.sum(axis=1))
    for _ in range(100_000):
        rows = scale * (matrix @ scale)
        if np.abs(rows - 1.0).max() <= tolerance:
            break
        scale = scale / np.sqrt(rows)
    scaled: FloatArray = scale[:, None] * matrix * scale[None, :]
    return scaled


def mixing_rate(matrix: FloatArray) -> float:
    """rho = max(|lambda_2|, |lambda_N|) of a symmetric mixing matrix; 0 mixes at once."""
    values = np.sort(np.abs(np.linalg.eigvalsh(matrix)))
    return float(values[-2]) if len(values) > 1 else 0.0
