"""The arithmetic of a group average: one fragment, summed up a tree, a momentum step at the root.

Every function is a step of one node, so that a simulation, Ray and a network compute the same
bits: own change first, then the children's messages by rising worker, all in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedhp.exchange import GroupAverage
from fedhp.learn.quantize import Row, from_int8_blocks, to_int8_blocks

Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class GroupStep:
    """What a round's average sends back to the participants, and what the senders keep."""

    change: Row  # [D] the step of the consensus, as every participant receives it
    wholes: dict[int, Row]  # [D] by worker that returns: the consensus, as it receives it
    residuals: Rows  # [P, D] what each participant's message left out
    root_residual: Row  # [D] what the root's message left out
    plain: Row  # [R] the mean of the columns that are averaged plainly


def fragment_columns(columns: int, fragment: int, fragments: int) -> tuple[int, int]:
    """Where a fragment starts and ends in a row of so many columns."""
    return fragment * columns // fragments, (fragment + 1) * columns // fragments


def received(values: Row, compression: str) -> Row:
    """The values of a message as its reader decodes them."""
    if compression == "none":
        return values
    return from_int8_blocks(*to_int8_blocks(values))


def node_sum(change: Row, residual: Row, messages: list[Row]) -> Row:
    """A node's own change, what its last message left out, and its children's messages."""
    total = change + residual
    for message in messages:
        total += message
    return total


def plain_sum(values: Row, sums: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """A node's own plain values and the sums of its children, in double precision."""
    total = values.astype(np.float64)
    for part in sums:
        total += part
    return total


def plain_mean(total: NDArray[np.float64], *, members: int) -> Row:
    """What the root makes of the sum of everyone's plain values."""
    return np.asarray(total / members, dtype=np.float32)


def root_change(
    total: Row,
    *,
    members: int,
    momentum: Row,
    root_residual: Row,
    factor: float,
    rate: float = 1.0,
) -> Row:
    """Nesterov's step d = r ((1 + k) u + k^2 m) with u = total / members, before it is coded."""
    mean = total / np.float32(members)
    change = np.float32(1 + factor) * mean + np.float32(factor * factor) * momentum
    return np.asarray(np.float32(rate) * change + root_residual, dtype=np.float32)


def next_momentum(change: Row, momentum: Row, factor: float, *, rate: float = 1.0) -> Row:
    """m = (d / r + k m) / (1 + k), which is u + k m: every participant knows d, only the root u."""
    step = change / np.float32(rate)
    result = (step + np.float32(factor) * momentum) / np.float32(1 + factor)
    return np.asarray(result, dtype=np.float32)


def tree_order(exchange: GroupAverage) -> list[int]:
    """Positions of the participants, the deepest first and the root last, by rising worker."""
    position = {worker: index for index, worker in enumerate(exchange.participants.tolist())}
    parents = [position.get(worker, -1) for worker in exchange.parents.tolist()]
    depth = [-1] * len(parents)
    for start in range(len(parents)):
        path, node = [], start
        while node >= 0 and depth[node] < 0:
            path.append(node)
            node = parents[node]
        for step, index in enumerate(reversed(path), start=1):
            depth[index] = step + (depth[node] if node >= 0 else -1)
    return sorted(range(len(parents)), key=lambda index: (-depth[index], index))


def group_step(
    exchange: GroupAverage,
    *,
    changes: Rows,
    residuals: Rows,
    plain: Rows,
    consensus: Mapping[int, Row],
    momentum: Row,
    root_residual: Row,
) -> GroupStep:
    """A whole round's average: changes x - b and residuals are [P, D] in the order of the
    participants; momentum and root_residual [D] are those of the root, and consensus those of
    the workers above one that returns, which send it the whole fragment."""
    workers, compression = exchange.participants.tolist(), exchange.compression
    position = {worker: index for index, worker in enumerate(workers)}
    messages: list[dict[int, tuple[Row, NDArray[np.float64]]]] = [{} for _ in workers]
    kept = np.zeros_like(residuals)
    total, plain_total = np.zeros_like(momentum), np.zeros(plain.shape[1])
    for index in tree_order(exchange):
        arrived = [messages[index][child] for child in sorted(messages[index])]
        total = node_sum(changes[index], residuals[index], [row for row, _ in arrived])
        plain_total = plain_sum(plain[index], [sums for _, sums in arrived])
        messages[index] = {}
        parent = int(exchange.parents[index])
        if parent >= 0:
            message = received(total, compression)
            kept[index] = total - message
            messages[position[parent]][workers[index]] = message, plain_total
    change = root_change(
        total,
        members=len(workers),
        momentum=momentum,
        root_residual=root_residual,
        factor=exchange.momentum,
        rate=exchange.rate,
    )
    coded = received(change, compression)
    return GroupStep(
        change=coded,
        wholes={
            workers[index]: received(consensus[int(exchange.parents[index])] + coded, compression)
            for index in np.flatnonzero(exchange.returning).tolist()
        },
        residuals=kept,
        root_residual=change - coded,
        plain=plain_mean(plain_total, members=len(workers)),
    )
