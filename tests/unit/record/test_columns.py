"""A column of the record is declared once: checks, record, logs and tables follow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedhp import columns
from fedhp.cluster.protocol import message_checks
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.guard import Refused
from fedhp.columns import WORKER_COLUMNS, Bounds, Column
from fedhp.record import store
from fedhp.record.store import Store
from fedhp.types import RoundRecord
from unit.record.rounds import mesh, planned_round

ENERGY = Column("energy", "J", reported=Bounds(0.0, 1e6), added=True)
WORKERS = 5
MODULES = (columns, store, message_checks)


def make_record(round_index: int) -> RoundRecord:
    return planned_round(WORKERS, mesh(WORKERS), round_index=round_index)


def declare(patch: pytest.MonkeyPatch, *added: Column) -> None:
    for module in MODULES:
        patch.setattr(module, "WORKER_COLUMNS", (*WORKER_COLUMNS, *added))


def test_added_columns_come_last() -> None:
    added = [column.added for column in WORKER_COLUMNS]
    assert added == sorted(added)
    assert len({column.name for column in WORKER_COLUMNS}) == len(WORKER_COLUMNS)


def test_what_sinks_log_of_every_worker() -> None:
    """Names of a log are a promise: charts that people made refer to them."""
    assert {column.name for column in WORKER_COLUMNS if column.logged} == {
        "local_steps",
        "step_time",
        "communication_time",
        "worker_time",
        "waiting_time",
        "train_loss",
        "bandwidth",
        "links",
    }


def test_what_is_declared_of_every_column() -> None:
    """Whole numbers are never missing; the page does not show what only planners need."""
    assert {column.name for column in WORKER_COLUMNS if column.whole} == {"local_steps", "links"}
    hidden = {"update_norm", "smoothness", "gradient_variance"}
    assert {column.name for column in WORKER_COLUMNS if not column.shown} == hidden
    assert not any(column.added for column in WORKER_COLUMNS)
    plain = Column("plain")
    assert (plain.unit, plain.whole, plain.reported, plain.logged) == ("", False, None, False)
    assert (plain.shown, plain.added) == (True, False)


def test_what_a_worker_may_report_of_itself() -> None:
    """Releases must agree on it: one that lowers a bound alone refuses what the others send."""
    largest = 3.5e38
    estimated = Bounds(0.0, largest, positive=False, unmeasured=True)
    reported = {column.name: column.reported for column in WORKER_COLUMNS if column.reported}
    assert reported == {
        "step_time": Bounds(0.0, 3600.0, positive=True, unmeasured=False),
        "train_loss": Bounds(-largest, largest, positive=False, unmeasured=False),
        "update_norm": Bounds(0.0, largest, positive=False, unmeasured=False),
        "smoothness": estimated,
        "gradient_variance": estimated,
    }
    assert 3.4e38 < float(np.finfo(np.float32).max) < largest


def test_a_record_without_a_column_is_read_and_gets_it_when_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = make_record(1)
    with_energy = replace(
        make_record(2), measures={"energy": np.arange(len(record.local_steps), dtype=np.float64)}
    )
    old = Store.create(tmp_path)
    old.commit(record)
    digest, rows = old.digest(), old.columns("workers")
    old.close()

    declare(monkeypatch, ENERGY)
    read = Store.open(tmp_path)
    assert read.columns("workers") == {**rows, "energy": [None] * len(rows["worker"])}
    assert read.columns("workers", names=("worker", "energy"))["energy"] == [None] * len(
        rows["worker"]
    )
    assert read.digest() == digest
    read.close()

    written = Store.open(tmp_path, write=True)
    assert written.digest() == digest  # it has no value yet
    written.commit(with_energy)
    written.close()
    again = Store.open(tmp_path)
    values = again.columns("workers", names=("energy",), where="round = 2")["energy"]
    assert values == with_energy.measures["energy"].tolist()
    whole = again.digest()
    again.close()

    written = Store.open(tmp_path, write=True)
    written.commit(make_record(2))
    assert written.digest() != whole  # a value is part of the result
    written.close()


def test_a_report_may_have_declared_columns_within_their_bounds_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report = wire.RoundReport(step_time=0.1)
    message_checks._check_measures(report)
    report.measures["energy"] = 3.0
    with pytest.raises(Refused, match="'energy' is not a column"):
        message_checks._check_measures(report)
    declare(monkeypatch, ENERGY)
    message_checks._check_measures(report)
    report.measures["energy"] = -1.0
    with pytest.raises(Refused, match="energy is -1"):
        message_checks._check_measures(report)
    declare(monkeypatch, replace(ENERGY, reported=None))
    with pytest.raises(Refused, match="'energy' is not a column"):
        message_checks._check_measures(report)
