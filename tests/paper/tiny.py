"""Very small experiments on real data (digits), and their engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedhp.config import Experiment, parse
from fedhp.engine.loop import RoundLoop
from fedhp.engine.prepare import prepare
from fedhp.engine.sharded import LocalExecutor
from fedhp.tables import merge_tables

BASE: dict[str, Any] = {
    "workers": 5,
    "rounds": 3,
    "seed": 3,
    "device": "cpu",
    "executors": 1,
    "data": {"name": "digits", "skew": 0.8},
    "model": {"name": "mlp", "hidden": [6]},
    "training": {"local_steps": 3, "batch_size": 8},
    "world": {"profile": "slow_links", "model_megabits": 12.0},
}


def tiny(algorithm: str, more: Mapping[str, Any] | None = None, **settings: Any) -> Experiment:
    """An experiment of a second."""
    tables = merge_tables(BASE, {"algorithm": {"name": algorithm, **settings}})
    return parse(merge_tables(tables, more or {}))


@contextmanager
def engine_of(experiment: Experiment) -> Iterator[LocalExecutor]:
    """A training engine, closed afterwards."""
    engine = LocalExecutor(prepare(experiment))
    try:
        yield engine
    finally:
        engine.close()


def loop_of(engine: LocalExecutor) -> RoundLoop:
    """The round loop of a synchronous experiment."""
    return RoundLoop(engine.prepared, engine, tester=engine)
