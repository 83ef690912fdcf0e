"""Small runs for tests of the engine: loops over any shards, and results as comparable bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedhp.config import parse
from fedhp.engine.prepare import Prepared, prepare
from fedhp.engine.runs.run import loop_of
from fedhp.engine.sharded import ShardedExecutor
from fedhp.record.tensors import Arrays
from fedhp.tables import merge_tables
from fedhp.types import RoundRecord
from paper.tiny import BASE

ALGORITHMS: dict[str, dict[str, Any]] = {
    "fedhp": {"max_steps": 3},
    "fedhp_plus": {"first_deadline": 0.1},
    "dpsgd": {},
    "ldsgd": {},
    "pens": {"stage_share": 0.5},
    "adpsgd": {},
    "free_links": {},
}
EXACT: dict[str, Any] = {"training": {"kernel": "worker", "mixing": "ordered"}}
NORMED: dict[str, Any] = {"model": {"name": "unit.engine.runs:normed"}}
DROPPING: dict[str, Any] = {"model": {"name": "unit.engine.runs:dropping"}}


def normed(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A module with running statistics and a counter."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(shape), 6),
        nn.BatchNorm1d(6),
        nn.ReLU(),
        nn.Linear(6, classes),
    )


def dropping(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A module that draws random numbers."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(prod(shape), 8), nn.Dropout(0.4), nn.Linear(8, classes)
    )


def prepared_of(
    algorithm: str, *changes: Mapping[str, Any], overlap: bool | None = None, **settings: Any
) -> Prepared:
    """A tiny experiment with the changes laid over it; overlap as asked, whatever the machine."""
    tables = merge_tables(
        BASE, {"algorithm": {"name": algorithm, **ALGORITHMS[algorithm], **settings}}
    )
    for change in changes:
        tables = merge_tables(tables, change)
        tables["model"] = change.get("model", tables["model"])  # settings belong to a model
    prepared = prepare(parse(tables))
    return prepared if overlap is None else replace(prepared, overlap=overlap)


def carry_out(engine: ShardedExecutor) -> tuple[list[RoundRecord], Arrays]:
    """All records and the state at the end; the engine is closed."""
    try:
        records = list(loop_of(engine).rounds())
        return records, {name: array.copy() for name, array in engine.state().items()}
    finally:
        engine.close()


def bits(value: Any) -> Any:
    """A record, state or checkpoint as something that is equal where all bits are.

    Seconds of real time are left out.
    """
    if isinstance(value, np.ndarray):
        return _array(value)
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if field.name != "wall"]
        return {name: bits(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {key: bits(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [bits(item) for item in value]
    return repr(value)  # NaN is equal to itself, 0.0 is not -0.0


def _array(array: NDArray[Any]) -> tuple[str, tuple[int, ...], bytes]:
    return array.dtype.str, array.shape, array.tobytes()
