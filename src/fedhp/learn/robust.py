"""Mixing that tolerates some poisoned peers: clipped differences, trimmed mean, median, Krum.

All work on blocks of columns, so that memory stays small however many peers there are. The
coordinate-wise rules sort the models by a network of minima and maxima over whole blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

ROBUST_RULES = ("clip", "trimmed_mean", "median", "krum")
_SORTED_BYTES = 2 << 20  # of all models together: the network passes over it many times
_PAIR_COLUMNS = 1 << 16  # of two models


def combine(
    own: Tensor,
    peers: Sequence[Tensor],
    weights: Sequence[float],
    own_weight: float,
    *,
    rule: str,
    poisoned: int,
    clip: float,
    radius: float | None = None,
) -> Tensor:
    """A new row from a worker's own [D] and its peers' [D], which all stay as they are.

    clip: the weighted mean, each peer's difference to the own model shortened to at most
    `clip` times the median of the peers' distances (of two middle ones the shorter), or to at most
    the radius if there is one (ClippedGossip).
    trimmed_mean: in each column the mean without as many values at either end as there may be
    `poisoned` peers; at least one is left. median: of each column. krum: the one model that is
    nearest to its count - poisoned - 2 nearest ones. These three ignore weights.
    """
    if len(weights) != len(peers):
        raise ValueError(f"{len(peers)} peers have {len(weights)} weights")
    if not peers:
        return own.clone()
    if rule == "clip":
        total = own_weight + sum(weights)  # the shares of all sum to 1
        return _clipped(own, peers, [weight / total for weight in weights], clip, radius)
    if rule == "krum":
        return _krum([own, *peers], poisoned)
    count = 1 + len(peers)
    if rule == "trimmed_mean":
        cut = min(poisoned, (count - 1) // 2)
    elif rule == "median":
        cut = (count - 1) // 2
    else:
        raise ValueError(f"unknown rule {rule!r}; allowed: {', '.join(ROBUST_RULES)}")
    return _middle(own, peers, cut)


def _clipped(
    own: Tensor, peers: Sequence[Tensor], shares: list[float], clip: float, radius: float | None
) -> Tensor:
    distances = torch.tensor([_distance(own, peer) for peer in peers], dtype=torch.float64)
    longest = clip * float(distances.median()) if radius is None else radius
    factors = [
        share * min(1.0, longest / length) if length else share
        for share, length in zip(shares, distances.tolist(), strict=True)
    ]
    out = torch.empty_like(own)
    for block in _blocks(len(own), _PAIR_COLUMNS):
        # In float64 the difference of two huge values is not infinite.
        mine = own[block].double()
        total = mine.clone()
        for peer, factor in zip(peers, factors, strict=True):
            total.add_(peer[block].double().sub_(mine), alpha=factor)
        out[block] = total
    return out


def _krum(models: Sequence[Tensor], poisoned: int) -> Tensor:
    """A copy of the model with the smallest sum of squared distances to its nearest ones; of equal
    ones the first."""
    count = len(models)
    squares = torch.zeros((count, count), dtype=torch.float64)
    for first in range(count):
        for second in range(first + 1, count):
            apart = _distance(models[first], models[second])
            squares[first, second] = squares[second, first] = apart * apart
    nearest = max(1, count - poisoned - 2)
    # The distance to itself, 0, comes first in every row.
    scores = squares.sort(dim=1).values[:, 1 : 1 + nearest].sum(dim=1)
    return models[int(scores.argmin())].clone()


def _distance(left: Tensor, right: Tensor) -> float:
    squares = [
        (left[block].double() - right[block].double()).square_().sum()
        for block in _blocks(len(left), _PAIR_COLUMNS)
    ]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


def _middle(own: Tensor, peers: Sequence[Tensor], cut: int) -> Tensor:
    """The mean of each column without its `cut` smallest and `cut` largest values."""
    count = 1 + len(peers)
    exchanges = list(_network(count))
    columns = max(256, _SORTED_BYTES // (own.element_size() * count))
    out = torch.empty_like(own)
    spare = torch.empty(min(columns, len(own)), dtype=own.dtype, device=own.device)
    for block in _blocks(len(own), columns):
        rows = list(torch.stack([own[block], *(peer[block] for peer in peers)]))
        smaller = spare[: len(rows[0])]
        for low, high in exchanges:
            torch.minimum(rows[low], rows[high], out=smaller)
            torch.maximum(rows[low], rows[high], out=rows[high])
            rows[low], smaller = smaller, rows[low]
        kept = rows[cut : count - cut]
        # Each divided first: the sum of huge values would be infinite.
        total = torch.div(kept[0], len(kept), out=out[block])
        for row in kept[1:]:
            total.add_(row, alpha=1 / len(kept))
    return out


def _network(count: int) -> Iterator[tuple[int, int]]:
    """The exchanges of Batcher's odd-even merge sort for any count: (smaller to, larger to)."""
    size = 1
    while size < count:
        step = size
        while step:
            for start in range(step % size, count - step, 2 * step):
                for low in range(start, min(start + step, count - step)):
                    if low // (2 * size) == (low + step) // (2 * size):
                        yield low, low + step
            step //= 2
        size *= 2


def _blocks(width: int, columns: int) -> Iterator[slice]:
    return (slice(start, start + columns) for start in range(0, width, columns))
