"""The 40 checks of `make accept`: all pass on good runs, and each can fail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from acceptance_checks import (
    ACCEPTANCE_DATA,
    IID,
    LITERAL,
    AcceptanceCheck,
    acceptance_checks,
    tuned_note,
)

from fedhp.report.claims.acceptance import SKEWED, TUNED
from fedhp.report.claims.runs import SuiteRuns, group_runs
from unit.report.suite_runs import FILL, SEEDS, make_run

# Per label: accuracy on IID data and at p = 0.8, time constant, round time, waiting time.
GOOD: dict[str, tuple[float, float, float, float, float]] = {
    "fedhp": (0.96, 0.94, 60.0, 13.0, 1.9),
    FILL: (0.955, 0.935, 60.0, 11.0, 0.95),
    "dpsgd": (0.94, 0.89, 260.0, 18.0, 9.1),
    "adpsgd": (0.94, 0.90, 90.0, 7.0, 0.0),
    "ldsgd": (0.94, 0.88, 280.0, 14.0, 7.1),
    "pens": (0.94, 0.90, 260.0, 19.0, 9.0),
    TUNED: (0.96, 0.94, 60.0, 12.0, 0.0),
    LITERAL: (0.85, 0.80, 200.0, 9.0, 3.0),
}


def campaign(changes: Mapping[str, Mapping[str, Any]] | None = None) -> SuiteRuns:
    """The runs of the campaign; `changes` replace a label's numbers."""
    runs = []
    names = ("iid", "skewed", "constant", "round_time", "waiting")
    for label, values in GOOD.items():
        numbers = {**dict(zip(names, values, strict=True)), **(changes or {}).get(label, {})}
        ends = {IID: numbers.pop("iid"), SKEWED: numbers.pop("skewed")}
        runs += [
            (ACCEPTANCE_DATA, skew, make_run(label, seed=seed, end=end, **numbers))
            for skew, end in ends.items()
            for seed in SEEDS
        ]
    return group_runs(runs)


def failures(runs: SuiteRuns) -> list[AcceptanceCheck]:
    return [
        check for checks in acceptance_checks(runs).values() for check in checks if not check.passed
    ]


def test_good_runs_pass_all_forty() -> None:
    checks = acceptance_checks(campaign())
    assert [len(variant) for variant in checks.values()] == [20, 20]
    assert [check.name for check in checks["opt"]] == [check.name for check in checks["fill"]]
    assert failures(campaign()) == []
    assert "AD-PSGD with 100 steps: IID final 96." in tuned_note(campaign())


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"dpsgd": {"constant": 90.0}}, {"A1"}),
        ({"pens": {"constant": 60.0}}, {"A2"}),
        ({"ldsgd": {"constant": 30.0}}, {"A2"}),
        ({"adpsgd": {"constant": 40.0}}, {"A3"}),
        ({"dpsgd": {"round_time": 13.0}}, {"A4"}),
        ({"dpsgd": {"iid": 0.97, "skewed": 0.96}}, {"A5", "B1", "B2"}),
        ({"pens": {"skewed": 0.93}}, {"B1"}),
        ({"pens": {"waiting": 4.0}}, {"C1"}),
        ({"adpsgd": {"waiting": 5.0}}, {"C2"}),
        ({LITERAL: {"skewed": 0.93}}, {"D"}),
    ],
)
def test_each_check_can_fail(changes: Mapping[str, Mapping[str, Any]], names: set[str]) -> None:
    failed = {check.name.split()[0] for check in failures(campaign(changes))}
    assert names <= failed


def test_a_rival_that_never_arrives_counts_with_its_whole_time() -> None:
    never = acceptance_checks(campaign({"dpsgd": {"iid": 0.9}}))["opt"][0]
    assert never.passed
    lost = acceptance_checks(campaign({"fedhp": {"iid": 0.9}}))["opt"][0]
    assert (lost.figure, lost.bar, lost.passed) == ("inf", "<= 0.55", False)
