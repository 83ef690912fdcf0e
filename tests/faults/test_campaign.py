"""The fault campaign on real processes: a few cases always, all of them in the long suite.

`make faults` runs all cases with ten seeds and prints a table.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.cases import CASES
from faults.fault_run import FaultCase
from faults.namespaces import needs_namespaces
from faults.partitions import PARTITIONS
from net.etcd_support import needs_etcd

QUICK = {
    "worker killed: mixing": 0,
    "group member killed: broadcasting": 1,
    "coordinator killed: committing": 1,
}


def check_case(case: FaultCase, folder: Path, seed: int, record_property: object) -> None:
    outcome = case.run(folder / "run", seed)
    assert not outcome.hang
    assert not outcome.error
    assert not outcome.violations
    assert callable(record_property)
    record_property(f"figure: {case.name}, longest pause", f"{outcome.pause:.1f} s")


def case_named(name: str) -> FaultCase:
    return next(case for case in CASES if case.name == name)


@pytest.mark.parametrize("name", QUICK)
def test_a_fault_breaks_no_promise(name: str, tmp_path: Path, record_property: object) -> None:
    check_case(case_named(name), tmp_path, QUICK[name], record_property)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@needs_etcd
def test_every_case(case: FaultCase, tmp_path: Path, record_property: object) -> None:
    check_case(case, tmp_path, 2, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("case", PARTITIONS, ids=lambda case: case.name)
def test_every_partition(case: FaultCase, tmp_path: Path, record_property: object) -> None:
    needs_namespaces()
    check_case(case, tmp_path, 2, record_property)
