"""The checks of `make accept-plus`: all pass on good runs, each can fail, none needs a number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from acceptance_checks import AcceptanceCheck
from acceptance_plus import (
    AIDED,
    ALGORITHMS,
    DPSGD,
    FREE,
    FREE_PLUS,
    LIMITS,
    OURS,
    PLAIN,
    RIVAL,
    STRONGEST,
    TARGETS,
    GroupPromises,
    Level,
    best_of,
    plus_checks,
    plus_notes,
    read_promises,
)

import fedhp
from fedhp.record.reader import target_key
from fedhp.report.claims.runs import SuiteRuns, group_runs
from fedhp.report.groups import RunCurves
from unit.report.suite_runs import SEEDS, make_run

# Per label: seconds and megabytes to the target, final accuracy on IID data and at p = 0.8.
GOOD: dict[str, tuple[float, float, float, float]] = {
    OURS: (40, 300, 0.961, 0.947),
    PLAIN: (90, 860, 0.955, 0.94),
    RIVAL: (220, 1400, 0.95, 0.93),
    AIDED[0]: (75, 900, 0.957, 0.943),
    AIDED[1]: (70, 800, 0.957, 0.943),
    STRONGEST: (60, 1000, 0.958, 0.943),
    DPSGD: (390, 2000, 0.92, 0.87),
    LIMITS[0]: (11, 0, 0.95, 0.91),
    LIMITS[1]: (16, 0, 0.95, 0.91),
    LIMITS[2]: (12, 0, 0.95, 0.91),
    FREE_PLUS: (20, 7000, 0.95, 0.91),
}
KEPT = GroupPromises(longest_left_out=3, outdated_roots=0)


def run_of(label: str, skew: float, seed: int, **changes: Any) -> RunCurves:
    time, megabytes, iid, skewed = GOOD[label]
    final = iid if skew == 0.1 else skewed
    numbers: dict[str, Any] = {
        "time": time,
        "megabytes": megabytes,
        "final": final,
        "best": final + 0.002,
    }
    numbers |= {"mean_model": final + 0.001, "status": "finished", **changes}
    key = target_key(TARGETS[skew])
    run = make_run(label, seed=seed, end=0.97)
    known = numbers["time"] is not None
    sent = int(1e6 * numbers["megabytes"])
    summary = replace(
        run.summary,
        status=numbers["status"],
        final_accuracy=numbers["final"],
        best_accuracy=numbers["best"],
        mean_model_accuracy=numbers["mean_model"],
        completion_time=400.0,
        bytes_sent=10 * sent,
        time_to_target={key: numbers["time"] + seed if known else None},
        bytes_to_target={key: sent if known else None},
    )
    return replace(run, summary=summary)


def campaign(changes: Mapping[str, Mapping[str, Any]] | None = None) -> SuiteRuns:
    """The runs of the campaign; `changes` replace a label's numbers."""
    worlds = {**ALGORITHMS, FREE: (*LIMITS, FREE_PLUS)}
    return group_runs(
        (world, skew, run_of(label, skew, seed, **(changes or {}).get(label, {})))
        for world, labels in worlds.items()
        for skew in TARGETS
        for label in labels
        for seed in SEEDS
    )


def failed(
    changes: Mapping[str, Mapping[str, Any]] | None = None,
    promises: Iterable[GroupPromises] = (KEPT,),
) -> list[AcceptanceCheck]:
    return [check for check in plus_checks(campaign(changes), promises) if not check.passed]


def test_good_runs_pass_every_line() -> None:
    checks = plus_checks(campaign(), [KEPT])
    assert failed() == []
    assert {check.name.split()[0] for check in checks} == {f"P{line}" for line in range(1, 12)}
    assert checks[0].figure == "0.186 (41.0 s / 221 s)"


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({RIVAL: {"time": 100}}, {"P1", "P2", "P7"}),
        ({AIDED[0]: {"time": 35}}, {"P3", "P4"}),
        ({OURS: {"megabytes": 600}}, {"P5"}),
        ({AIDED[1]: {"megabytes": 400}}, {"P5"}),
        ({RIVAL: {"final": 0.96}}, {"P6"}),
        ({PLAIN: {"time": 200}}, {"P7"}),
        ({DPSGD: {"final": 0.95}}, {"P8"}),
        ({OURS: {"mean_model": 0.94}}, {"P9"}),
        ({OURS: {"best": 0.99}}, {"P11"}),
    ],
)
def test_each_line_can_fail(changes: Mapping[str, Mapping[str, Any]], lines: set[str]) -> None:
    assert lines <= {check.name.split()[0] for check in failed(changes)}


@pytest.mark.parametrize("broken", [GroupPromises(4, 0), GroupPromises(3, 1)])
def test_a_broken_promise_fails(broken: GroupPromises) -> None:
    assert [check.name.split()[0] for check in failed(promises=[KEPT, broken])] == ["P10"]
    assert len(failed(promises=[])) == 2


def test_a_target_that_we_do_not_reach_is_a_failure_with_a_reason() -> None:
    checks = failed({OURS: {"time": None, "best": 0.9312}})
    assert {"P1", "P2", "P3", "P4", "P5"} <= {check.name.split()[0] for check in checks}
    assert checks[0].figure == "94.0 % not reached in seed 0 (best 93.1 %)"
    assert "not reached" in plus_notes(campaign({OURS: {"time": None}}))[0]


def test_a_rival_that_does_not_reach_it_counts_with_its_whole_run() -> None:
    first = plus_checks(campaign({RIVAL: {"time": None}}), [KEPT])[0]
    assert first.figure == "0.102 (41.0 s / 400 s, the rival's whole run)"
    assert first.passed


def test_a_rival_that_needs_no_bytes_cannot_be_beaten() -> None:
    checks = failed({RIVAL: {"megabytes": 0}})
    assert {check.figure for check in checks} == {"inf (300 MB / 0 B)"}


def test_a_run_that_diverged_fails_its_checks_and_is_never_the_best() -> None:
    gone = {"time": None, "status": "diverged"}
    checks = failed({RIVAL: gone, AIDED[1]: gone})
    assert f"{RIVAL}, seed 0: diverged" in {check.figure for check in checks}
    level = Level("shared", 0.8, 0.9)
    assert best_of(campaign({AIDED[1]: gone}), AIDED, level) == AIDED[0]
    assert best_of(campaign(), AIDED, level) == AIDED[1]


def test_missing_runs_fail_instead_of_passing() -> None:
    assert all(not check.passed for check in plus_checks(group_runs([]), []))
    assert plus_notes(group_runs([]))[0].startswith("P12 per worker, IID: FedHP+ no run")


def test_the_notes_have_the_strongest_rival_and_the_limit() -> None:
    note = plus_notes(campaign())[0]
    assert "the strongest AD-PSGD 61.0 s and 1.00 GB; FedHP+ takes 0.67 of its time" in note
    assert "the limit with free links 12.0 s, of which FedHP+ reaches 29 %" in note


def test_promises_are_read_from_the_record(tmp_path: Path) -> None:
    experiment = fedhp.make_experiment(
        {
            "workers": 8,
            "rounds": 30,
            "algorithm": {"name": "fedhp_plus", "patience": 2},
            "evaluation": {"every": 10, "images": 50},
            "world": {"profile": "slow_links", "model_megabits": 12},
        }
    )
    with fedhp.run(experiment, tmp_path / "run") as run:
        roots = run.table("participation")["root"]
    assert sum(roots) == 29
    promises = read_promises(tmp_path / "run")
    assert promises == GroupPromises(longest_left_out=2, outdated_roots=0)
