"""Tiny real runs for the tests of reports: digits, 6 unequal workers, 6 rounds."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from fedhp.config import parse
from fedhp.engine.runs.run import start_run
from fedhp.record.store import RECORD_FILE, Store
from unit.record.rounds import mesh, planned_round

WORLD: dict[str, Any] = {"profile": "slow_links", "model_megabits": 12}
TABLES: dict[str, Any] = {
    "workers": 6,
    "rounds": 6,
    "model": {"name": "mlp", "hidden": [8]},
    "data": {"name": "digits", "skew": 0.8, "train_images": 400, "test_images": 100},
    "training": {"local_steps": 10},
    "evaluation": {"targets": [0.3, 0.999]},
    "world": WORLD,
}


def make_run(
    folder: Path,
    algorithm: str,
    *,
    seed: int = 0,
    label: str = "",
    stop_after: int = 0,
    settings: dict[str, Any] | None = None,
    **tables: Any,
) -> Path:
    """Carry out a run (all of it, or the first rounds) and return its folder."""
    part = {"name": algorithm, **(settings or {})}
    experiment = parse({**TABLES, **tables, "algorithm": part, "seed": seed})
    rounds = start_run(experiment, folder, label=label).rounds()
    for done, _ in enumerate(rounds, start=1):
        if done == stop_after:
            break
    rounds.close()  # type: ignore[attr-defined]
    return folder


def wide_run(folder: Path, workers: int, *, rounds: int = 2, directed: bool = False) -> Path:
    """A real run's description with rounds made by hand: a full mesh of very many workers."""
    make_run(folder, "fedhp", rounds=1)
    store = Store.open(folder, write=True)
    store.truncate(0)
    devices = ["laptop", "xavier_nx", "jetson_tx2"]
    store.set_meta("workers", workers)
    store.set_meta("rounds", rounds)
    store.set_meta("devices", [devices[worker % 3] for worker in range(workers)])
    store.set_meta("samples", [7] * workers)
    for index in range(1, rounds + 1):
        store.commit(planned_round(workers, mesh(workers), round_index=index, directed=directed))
    store.seal()
    store.close()
    return folder


def set_status(folder: Path, status: str) -> None:
    """Pretend that a run ended otherwise."""
    store = Store.open(folder, write=True)
    store.set_meta("status", status)
    store.close()


def set_results(folder: Path, results: dict[int, float], *, others: float) -> None:
    """Give the workers these results in their last test."""
    with closing(sqlite3.connect(folder / RECORD_FILE)) as record, record:
        (last,) = record.execute("SELECT max(round) FROM worker_evaluations").fetchone()
        tests, own = "UPDATE worker_evaluations SET accuracy = ?", "round = ? AND worker = ?"
        record.execute(f"{tests} WHERE round = ?", (others, last))
        for worker, accuracy in results.items():
            record.execute(f"{tests} WHERE {own}", (accuracy, last, worker))
            record.execute(f"UPDATE workers SET links = 2 WHERE {own}", (last, worker))
    seal(folder)


def seal(folder: Path) -> None:
    """A record that was changed by hand is that of a finished run again."""
    store = Store.open(folder, write=True)
    store.seal()
    store.close()


def query(folder: Path, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """Read the record without any of the code under test."""
    with closing(sqlite3.connect(folder / RECORD_FILE)) as connection:
        return connection.execute(sql, values).fetchall()
