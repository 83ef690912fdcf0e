"""What travels with a model besides its numbers: push-sum's weight and a tracked change.

Push-sum: x = w z + the local change travels with w; both are mixed, and z = x / w is the model
again. On directed links, whose weights sum to 1 by sender, every z tends to the mean of all.
Tracking: a side vector y follows the mean change of all workers; a worker moves by y instead of
its own change. All work in place on rows [n, D]; without these columns nothing happens.
"""

from __future__ import annotations

from torch import Tensor

from fedhp.learn.params import LAST_CHANGE, PUSH_WEIGHT, SIDE, Layout


def track(before: Tensor, after: Tensor, layout: Layout) -> None:
    """y <- y + change - last change; after <- before + y. (Mixing then averages both.)"""
    side, last = layout.columns(SIDE), layout.columns(LAST_CHANGE)
    if side is None or last is None:
        return
    trainable = slice(layout.trainable)
    change = after[:, trainable] - before[:, trainable]
    after[:, side] = before[:, side] + (change - before[:, last])
    after[:, last] = change
    after[:, trainable] = before[:, trainable] + after[:, side]


def weigh(before: Tensor, after: Tensor, layout: Layout) -> None:
    """What travels with push-sum, instead of a model: the weight times it, plus the change."""
    column = layout.columns(PUSH_WEIGHT)
    if column is None:
        return
    weight = before[:, column]
    trainable = slice(layout.trainable)
    after[:, trainable] += (weight - 1) * before[:, trainable]
    # Of statistics a true mean: a variance plus a change could be negative.
    for columns in _others(layout, column):
        after[:, columns] *= weight


def unweigh(mixed: Tensor, layout: Layout) -> None:
    """The models again, after mixing."""
    column = layout.columns(PUSH_WEIGHT)
    if column is None:
        return
    for columns in (slice(layout.trainable), *_others(layout, column)):
        mixed[:, columns] /= mixed[:, column]


def _others(layout: Layout, weight: slice) -> list[slice]:
    """Columns that travel, and are neither trained nor carried: frozen ones and statistics."""
    side = layout.columns(SIDE)
    carried_stop = weight.stop if side is None else side.stop
    return [slice(layout.trainable, weight.start), slice(carried_stop, layout.mixed)]
