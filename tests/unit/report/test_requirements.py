"""Our own requirements, in both directions, and how all verdicts are shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from html import escape
from typing import Any

import pytest

from fedhp.engine.runs.suite import Suite
from fedhp.report.claims.acceptance import acceptance_verdicts
from fedhp.report.claims.judging import claims_json, claims_markdown, verdict_rows
from fedhp.report.claims.paper import paper_claims, paper_verdicts
from fedhp.report.pages.reproduction import verdicts_html
from unit.report.claimed import ALL, FASTER, PEAKED, RISING, changed, own, paper
from unit.report.suite_runs import (
    FILL,
    experiment,
    full_runs,
    full_suite,
    paper_set,
    sweep_runs,
)


def test_our_own_verdicts_hold_on_good_runs() -> None:
    found = own(full_runs(more=sweep_runs(PEAKED, constants=FASTER)))
    statuses = {name: verdict.status for name, verdict in found.items()}
    assert [statuses.pop(f"e-{what}-cifar10") for what in ("time", "final")] == ["reported"] * 2
    assert set(statuses.values()) == {"holds"}
    assert len(statuses) == 7
    assert "peak" in found["f-accuracy-cifar10"].ours
    assert "least" in found["f-time-cifar10"].ours
    assert "AD-PSGD (steps=100)" in found["e-time-cifar10"].ours
    assert found["b-accuracy-cifar10"].opt.endswith("3 seeds: holds")


@pytest.mark.parametrize(
    ("claim", "changes", "words"),
    [
        ("a-time-cifar10", {"dpsgd": {"constant": 60.0}}, "D-PSGD: same direction, smaller"),
        ("a-time-cifar10", {"pens": {"constant": 60.0}}, "PENS: same direction, smaller"),
        ("a-time-cifar10", {"ldsgd": {"constant": 20.0}}, "LD-SGD: opposite"),
        ("b-accuracy-cifar10", {"ldsgd": {"end": 0.89}}, "LD-SGD: opposite"),
        ("c-waiting-cifar10", {FILL: {"waiting": 3.0}}, "smaller: 0.33 instead of 0.25"),
        ("d-falls-cifar10", {"adpsgd": {"end": 0.9}}, "AD-PSGD: no difference"),
        ("d-least-cifar10", {"adpsgd": {"end": 0.9}}, "AD-PSGD: opposite"),
    ],
)
def test_each_of_our_own_can_fail(
    claim: str, changes: Mapping[str, Mapping[str, Any]], words: str
) -> None:
    poor = own(full_runs(changes=changes))[claim]
    assert poor.status == "does not hold"
    assert words in poor.why


def test_our_own_steps_verdicts_can_fail() -> None:
    flat = dict.fromkeys(PEAKED, 100.0)
    found = own(full_runs(more=sweep_runs(RISING, constants=flat)))
    assert found["f-accuracy-cifar10"].status == "does not hold"
    assert "the peak is at the most steps" in found["f-accuracy-cifar10"].why
    level = dict.fromkeys(PEAKED, 0.9)
    flat_top = own(full_runs(more=sweep_runs({**level, 27: 0.9005})))["f-accuracy-cifar10"]
    assert flat_top.status == "does not hold"
    slower = {tau: 10.0 * tau for tau in PEAKED}
    slow = own(full_runs(more=sweep_runs(level, constants=slower)))["f-time-cifar10"]
    assert slow.status == "does not hold"
    assert "not clearly less than at tau = 5" in slow.why


def test_our_own_verdicts_ask_for_three_seeds() -> None:
    found = own(full_runs(seeds=[0, 1], more=sweep_runs(PEAKED, seeds=[0, 1])))
    statuses = {verdict.status for verdict in found.values()}
    assert statuses == {"not testable here", "reported"}
    assert "needs 3 seeds, 2 finished" in found["b-accuracy-cifar10"].why
    assert found["b-accuracy-cifar10"].ours


def test_a_slower_fedhp_is_reported_as_such() -> None:
    found = own(changed(FILL, constant=80.0))["e-time-cifar10"]
    assert found.status == "reported"
    assert "opposite direction" in found.why


def test_only_claims_about_the_figures_asked_for_are_judged() -> None:
    suite = full_suite()
    alone = Suite(suite.profile, suite.sets, suite.figures[1:2])
    figures = {j.claim.figure for j in paper_verdicts(alone, full_runs())}
    assert figures == {"fig2", "abstract"}
    assert acceptance_verdicts(alone, full_runs()) == []


def test_every_number_of_the_paper_is_claimed_once() -> None:
    claims = paper_claims()
    assert len({claim.id for claim in claims}) == len(claims)
    text = " ".join(claim.paper for claim in claims)
    printed = (
        "1064 2725 1680 1129 2254 56 41 3 51 2.17 1.65 1.06 2.07 76.77 73.52 70.54 69.29 70.35 "
        "5015 11953 8926 5539 10634 4.83 13.37 14.26 13.52 50.63 47.81 45.69 45.12 45.83 "
        "5.90 10.81 12.22 10.47 1.7 12.1 10.6 3.2 24.7 19.2 2.9 21.5"
    )
    words = text.replace("x", "").split()
    assert [number for number in printed.split() if number not in words] == []


def test_tables_and_json_have_every_verdict() -> None:
    suite, all_runs = full_suite(ALL), full_runs(ALL, more=sweep_runs(PEAKED, key="cifar10"))
    verdicts = paper_verdicts(suite, all_runs)
    header, rows = verdict_rows(verdicts)
    assert len(rows) == len(verdicts) > 60
    assert {len(row) for row in rows} == {len(header)}
    markdown = claims_markdown(verdicts)
    lines = markdown.splitlines()
    assert lines[0].startswith(f"{sum(r[3] == 'holds' for r in rows)} of {len(rows)} hold; ")
    assert len(lines) == len(rows) + 4
    assert {line.count("|") for line in lines[2:]} == {len(header) + 1}
    plain = json.loads(json.dumps(claims_json(verdicts), allow_nan=False))
    assert [each["id"] for each in plain] == [j.claim.id for j in verdicts]
    assert {each["status"] for each in plain} <= {"holds", "does not hold", "not testable here"}
    assert claims_markdown([]).startswith("0 of 0 hold.")


def test_the_page_shows_each_requirement_once_and_every_claim() -> None:
    suite, all_runs = full_suite(ALL), full_runs(ALL, more=sweep_runs(PEAKED, key="cifar10"))
    paper_ones, own_ones = paper_verdicts(suite, all_runs), acceptance_verdicts(suite, all_runs)
    page = verdicts_html(suite, paper=paper_ones, required=own_ones)
    matrix, _, rest = page.partition("</table>")
    assert matrix.count("accuracy falls least for FedHP") == 1
    for key in ALL:
        assert f">{suite.sets[key].title}</th>" in matrix
    assert 'class="good">holds<br>' in matrix
    for judged in (*paper_ones, *own_ones):
        assert escape(judged.claim.text) in rest
    assert "Figure 3: " in rest
    assert "Abstract: " in rest


def test_accuracies_near_chance_are_not_compared() -> None:
    here = replace(paper_set(), experiment=experiment([0.999]))
    suite = full_suite(sets={"cifar10": here})
    found = {**paper(full_runs(), suite), **own(full_runs(), suite)}
    for name in ("fig5-more-cifar10-pens", "fig6-falls-cifar10", "b-accuracy-cifar10"):
        assert found[name].status == "not testable here"
        assert "no run reached even 99.9 %: too little was learned" in found[name].why
    assert found["c-waiting-cifar10"].status == "holds"
