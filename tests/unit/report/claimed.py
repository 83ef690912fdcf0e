"""Verdicts by claim, and the ladders of steps that the tests of claims share."""

from __future__ import annotations

from typing import Any

from fedhp.engine.runs.suite import Suite
from fedhp.report.claims.acceptance import acceptance_verdicts
from fedhp.report.claims.judging import Verdict
from fedhp.report.claims.paper import paper_verdicts
from fedhp.report.claims.runs import SuiteRuns
from unit.report.suite_runs import full_runs, full_suite

ALL = ("emnist", "cifar10", "image100")
PEAKED = {5: 0.84, 10: 0.87, 20: 0.89, 27: 0.9, 30: 0.895, 50: 0.88, 100: 0.85}
RISING = {5: 0.84, 10: 0.85, 20: 0.86, 27: 0.87, 30: 0.88, 50: 0.89, 100: 0.9}
FASTER = {5: 320.0, 10: 240.0, 20: 160.0, 27: 90.0, 30: 70.0, 50: 90.0, 100: 110.0}


def paper(all_runs: SuiteRuns, suite: Suite | None = None) -> dict[str, Verdict]:
    return {j.claim.id: j.verdict for j in paper_verdicts(suite or full_suite(), all_runs)}


def own(all_runs: SuiteRuns, suite: Suite | None = None) -> dict[str, Verdict]:
    return {j.claim.id: j.verdict for j in acceptance_verdicts(suite or full_suite(), all_runs)}


def changed(label: str, **numbers: Any) -> SuiteRuns:
    return full_runs(changes={label: numbers})
