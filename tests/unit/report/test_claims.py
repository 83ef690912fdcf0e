"""Every kind of verdict, in both directions: each check can fail, and says why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from fedhp.record.statistics import interval
from fedhp.report.claims.judging import judge
from fedhp.report.claims.runs import PERCENT, POINTS, SHARE, Sample, SuiteRuns, group_runs
from unit.report.claimed import ALL, FASTER, PEAKED, RISING, changed, own, paper
from unit.report.suite_runs import (
    FILL,
    OPT,
    SEEDS,
    full_runs,
    full_suite,
    make_run,
    paper_set,
    shaped_run,
    sweep_runs,
)


@pytest.mark.parametrize(
    ("values", "status", "direction", "words"),
    [
        ([0.55, 0.57, 0.59], "holds", "same", ""),
        ([0.7, 0.71, 0.72], "holds", "same", ""),
        ([0.34, 0.35, 0.36], "does not hold", "same", "smaller: 35 % instead of 56 %"),
        ([-0.1, 0.5, 0.9], "does not hold", "same", "smaller: 43 % instead of 56 %"),
        ([0.1, 0.6, 1.2], "does not hold", "same", "the interval includes zero difference"),
        ([-0.21, -0.2, -0.19], "does not hold", "opposite", "-20 % instead of 56 %"),
        ([0.6], "holds", "same", "1 seed"),
        ([0.558], "holds", "same", "1 seed"),  # 56 % as the paper writes it
        ([0.6, 0.57], "holds", "same", "2 seeds"),
        ([0.6, 0.5], "does not hold", "same", "smaller: 55 % instead of 56 %"),
        ([0.5], "does not hold", "same", "smaller: 50 % instead of 56 %"),
    ],
)
def test_a_number_is_judged_by_direction_and_size(
    values: Sequence[float], status: str, direction: str, words: str
) -> None:
    found = judge(Sample(tuple(values)), PERCENT, bar=0.56)
    assert (found.status, found.direction) == (status, direction)
    assert words in found.why
    assert found.ours_lines[-1].endswith(f"{len(values)} seed" + "s" * (len(values) > 1))


@pytest.mark.parametrize(
    ("values", "status", "words"),
    [
        ([0.4, 0.42, 0.44], "holds", ""),
        ([0.3, 0.5, 0.7], "does not hold", "the mean passes, but the interval goes to 1.00"),
        ([0.7, 0.72, 0.74], "does not hold", "smaller: 0.72 instead of 0.60"),
        ([1.2, 1.3, 1.4], "does not hold", "opposite direction: 1.30 instead of 0.60"),
        ([0.603, 0.603, 0.603], "does not hold", "smaller"),  # 0.60, but not at most 0.6
        ([0.4, 0.42], "not testable here", "needs 3 seeds, 2 finished"),
    ],
)
def test_our_own_bars_need_the_whole_interval(
    values: Sequence[float], status: str, words: str
) -> None:
    found = judge(Sample(tuple(values)), SHARE, bar=0.6, clear=True, need=3)
    assert found.status == status
    assert words in found.why


def test_a_difference_without_a_bar_has_to_be_clear() -> None:
    assert judge(Sample((0.01, 0.011, 0.012)), POINTS).status == "holds"
    close = judge(Sample((-0.001, 0.011, 0.012)), POINTS)
    assert (close.status, close.direction) == ("does not hold", "same")
    assert "includes zero difference" in close.why
    below = judge(Sample((0.001, -0.002, -0.003)), POINTS)
    assert (below.status, below.direction) == ("does not hold", "opposite")
    assert below.why == "opposite direction, but not clearly: -0.13 points"
    assert judge(Sample((0.0, 0.0, 0.0)), POINTS).why == "no difference: +0.00 points"


def test_a_bound_supports_but_never_refutes() -> None:
    bound = "PENS never reached 85 %; its whole time counts"
    good = judge(Sample((0.6, 0.62, 0.61), "to 85 %", bound), PERCENT, bar=0.56)
    assert good.status == "holds"
    assert good.values[0].startswith("at least 61 % [")
    assert bound in good.why
    poor = judge(Sample((0.3, 0.32, 0.31), "to 85 %", bound), PERCENT, bar=0.56)
    assert poor.status == "not testable here"
    assert "only a bound" in poor.why


def test_ours_is_the_paired_difference_with_its_student_interval() -> None:
    all_runs = full_runs()
    verdict = paper(all_runs)["fig5-more-cifar10-dpsgd"]
    mine, theirs = (all_runs.by_seed("cifar10", label, skew=0.8) for label in (FILL, "dpsgd"))
    ratios = [
        (mine[seed].summary.final_accuracy or 0) / (theirs[seed].summary.final_accuracy or 1) - 1
        for seed in SEEDS
    ]
    found = interval(ratios)
    assert found is not None
    assert verdict.interval == found
    assert found.low is not None
    assert found.high is not None
    low, high = 100 * found.low, 100 * found.high
    assert verdict.ours == f"{100 * found.mean:.2f} % [{low:.2f}, {high:.2f}], 3 seeds"
    assert verdict.where == "CIFAR-10, small"


def test_runs_that_had_not_converged_are_told() -> None:
    words = "still rising when the runs ended"
    assert words not in paper(full_runs())["fig5-more-cifar10-dpsgd"].why
    early = changed("dpsgd", rounds=12)
    assert words in paper(early)["fig5-more-cifar10-dpsgd"].why
    assert words in own(early)["b-accuracy-cifar10"].why
    assert words not in paper(early)["fig7-less-cifar10-dpsgd"].why


def test_seeds_that_only_one_has_do_not_count() -> None:
    extra = [("cifar10", 0.8, make_run(FILL, seed=7, end=0.2))]
    verdict = paper(full_runs(more=extra))["fig5-more-cifar10-dpsgd"]
    assert verdict.ours == paper(full_runs())["fig5-more-cifar10-dpsgd"].ours


def test_completion_times_in_both_directions() -> None:
    good = paper(full_runs())["fig3-less-cifar10-dpsgd"]
    assert (good.status, good.direction) == ("holds", "same")
    assert "to 85 %" in good.ours
    poor = paper(changed(FILL, constant=100.0))["fig3-less-cifar10-dpsgd"]
    assert (poor.status, poor.direction) == ("does not hold", "same")
    assert "instead of 51 %" in poor.why
    lost = paper(changed(FILL, constant=300.0))["fig3-less-cifar10-dpsgd"]
    assert (lost.status, lost.direction) == ("does not hold", "opposite")
    assert lost.opt.endswith(": holds")


def test_the_common_target_is_the_highest_that_both_reached() -> None:
    weak = paper(changed("ldsgd", end=0.82))["fig3-less-cifar10-ldsgd"]
    assert "to 80 %" in weak.ours
    never = paper(changed("ldsgd", end=0.5))["fig3-less-cifar10-ldsgd"]
    assert never.ours.startswith("at least ")
    assert "LD-SGD never reached 85 %; its whole time counts" in never.why
    assert never.status == "holds"
    short = paper(changed("ldsgd", end=0.5, rounds=8))["fig3-less-cifar10-ldsgd"]
    assert short.status == "not testable here"
    one = [("cifar10", 0.1, make_run("ldsgd", seed=seed, end=(0.5, 0.75, 0.75)[seed]))
           for seed in SEEDS]  # fmt: skip
    others = full_runs(labels=(FILL,))
    mixed = group_runs([*_flat(others), *one])
    assert "in 1 of 3 seeds" in paper(mixed)["fig3-less-cifar10-ldsgd"].why


def test_a_fedhp_that_never_arrives_has_lost() -> None:
    lost = paper(changed(FILL, end=0.5))["fig3-less-cifar10-pens"]
    assert (lost.status, lost.direction) == ("does not hold", "opposite")
    assert "did not reach in every seed what PENS did" in lost.why
    both = full_runs(changes={FILL: {"end": 0.5}, "pens": {"end": 0.5}})
    neither = paper(both)["fig3-less-cifar10-pens"]
    assert neither.status == "not testable here"
    assert "neither" in neither.why


def test_one_seed_says_so() -> None:
    verdict = paper(full_runs(seeds=[0]))["fig3-less-cifar10-dpsgd"]
    assert verdict.status == "holds"
    assert verdict.ours.endswith(", 1 seed")
    assert "1 seed: no interval" in verdict.why


def test_what_is_not_there_is_not_testable() -> None:
    suite = full_suite(ALL, missing={"image100": "no such folder"})
    found = paper(full_runs(labels=(FILL, OPT, "dpsgd")), suite)
    assert "no such folder" in found["fig3-faster-image100-dpsgd"].why
    assert "no finished run of PENS at p = 0.1 (IID)" in found["fig3-less-cifar10-pens"].why
    assert "no finished run of FedHP" in found["fig3-less-emnist-dpsgd"].why
    unknown = ("fig3-faster-image100-dpsgd", "fig3-less-cifar10-pens", "fig3-less-emnist-dpsgd")
    assert {found[name].status for name in unknown} == {"not testable here"}
    alone = paper(full_runs(), full_suite(["cifar10"]))
    assert "EMNIST is not among the data sets that were run" in alone["fig3-less-emnist-dpsgd"].why
    apart = group_runs(
        [("cifar10", 0.1, shaped_run(FILL, seed=0)), ("cifar10", 0.1, shaped_run("pens", seed=1))]
    )
    assert "no seed in common" in paper(apart)["fig3-less-cifar10-pens"].why


def test_absolute_numbers_need_the_papers_own_data_and_models() -> None:
    all_runs = changed(FILL, end=0.768, waiting=1.7)
    small = paper(all_runs)["fig4-final-cifar10-fedhp"]
    assert small.status == "not testable here"
    assert small.ours
    whole = full_suite(profile="paper", sets={"cifar10": paper_set("cifar10", title="CIFAR-10")})
    assert paper(all_runs, whole)["fig4-final-cifar10-fedhp"].status == "holds"
    assert paper(all_runs, whole)["fig7-waiting-cifar10-fedhp"].status == "holds"
    other = paper(changed(FILL, end=0.5), whole)["fig4-final-cifar10-fedhp"]
    assert other.status == "does not hold"
    assert "times the paper's" in other.why
    stand_in = full_suite(
        profile="paper", sets={"cifar10": paper_set("cifar10", title="Other", data="mnist")}
    )
    assert paper(all_runs, stand_in)["fig4-final-cifar10-fedhp"].status == "not testable here"


def test_of_two_stand_ins_the_papers_own_set_is_taken_if_it_is_here() -> None:
    sets = {"mnist": paper_set("mnist", title="MNIST"), "emnist": paper_set("emnist", "EMNIST x")}
    suite = full_suite(("mnist", "emnist"), sets=sets)
    assert paper(full_runs(["emnist"]), suite)["fig3-less-emnist-pens"].where == "EMNIST x"
    gone = full_suite(("mnist", "emnist"), sets=sets, missing={"emnist": "absent"})
    assert paper(full_runs(["mnist"]), gone)["fig3-less-emnist-pens"].where == "MNIST"


@pytest.mark.parametrize(
    ("claim", "changes", "words"),
    [
        ("fig2-similar-cifar10", {"pens": {"end": 0.85}}, "points apart"),
        ("fig2-fastest-cifar10", {"adpsgd": {"constant": 20.0}}, "FedHP before AD-PSGD: opposite"),
        ("fig4-more-cifar10-pens", {FILL: {"end": 0.88}}, "smaller"),
        ("fig4-less-cifar10-dpsgd", {FILL: {"constant": 600.0, "round_time": 60.0}}, "opposite"),
        ("fig5-more-cifar10-pens", {"pens": {"end": 0.89}}, "opposite"),
        ("fig6-falls-cifar10", {"pens": {"end": 0.9}}, "PENS: no difference"),
        ("fig6-least-cifar10", {"pens": {"end": 0.9}}, "PENS: opposite"),
        ("fig6-highest-cifar10", {"pens": {"end": 0.95}}, "of 20 fall short"),
        ("fig6-pens-cifar10", {"dpsgd": {"end": 0.95}}, "PENS above D-PSGD: opposite"),
        ("fig6-adpsgd-cifar10", {"adpsgd": {"end": 0.95}}, "PENS above AD-PSGD"),
        ("fig7-less-cifar10-pens", {FILL: {"waiting": 6.0}}, "smaller: 5"),
        ("fig7-least-cifar10", {"adpsgd": {"waiting": 3.0}}, "AD-PSGD below FedHP"),
        ("fig7-most-cifar10", {"pens": {"waiting": 3.0}}, "D-PSGD below PENS"),
    ],
)
def test_each_of_the_papers_claims_can_hold_and_fail(
    claim: str, changes: Mapping[str, Mapping[str, Any]], words: str
) -> None:
    helped = {
        "fig6-highest-cifar10": {FILL: {"end": 0.91}},
        "fig2-fastest-cifar10": {"adpsgd": {"constant": 70.0}},
        "fig4-more-cifar10-pens": {"pens": {"end": 0.8}},
        "fig4-less-cifar10-dpsgd": {"dpsgd": {"round_time": 30.0}},
        "fig5-more-cifar10-pens": {"pens": {"end": 0.8}},
    }.get(claim, {})
    good = paper(full_runs(changes=helped))[claim]
    assert good.status == "holds", good
    poor = paper(full_runs(changes=changes))[claim]
    assert poor.status == "does not hold"
    assert words in poor.why


def test_a_rise_between_the_levels_is_no_fall() -> None:
    odd = [("cifar10", 0.5, make_run("pens", seed=seed, end=0.95)) for seed in SEEDS]
    found = paper(full_runs(more=odd))["fig6-falls-cifar10"]
    assert found.status == "does not hold"
    assert "PENS: rises from p = 0.4 to 0.5" in found.why


def test_the_steps_claims_hold_and_fail() -> None:
    found = paper(full_runs(more=sweep_runs(PEAKED, constants=FASTER)))
    assert found["fig1-accuracy"].status == "holds"
    assert "at tau = 27" in found["fig1-accuracy"].ours
    assert found["fig1-time"].status == "holds"
    assert found["fig1-time"].opt == ""
    rising = paper(full_runs(more=sweep_runs(RISING)))["fig1-accuracy"]
    assert (rising.status, rising.direction) == ("does not hold", "opposite")
    bumpy = {**PEAKED, 50: 0.93}
    assert (
        "rises from tau = 30 to 50" in paper(full_runs(more=sweep_runs(bumpy)))["fig1-accuracy"].why
    )
    slower = {tau: 400.0 - constant for tau, constant in FASTER.items()}
    slow = paper(full_runs(more=sweep_runs(PEAKED, constants=slower)))["fig1-time"]
    assert slow.status == "does not hold"
    late = paper(full_runs(more=sweep_runs({**PEAKED, 5: 0.5}, constants=FASTER)))["fig1-time"]
    assert late.status == "holds"
    assert "tau = 5 never reached it" in late.why
    few = paper(full_runs(more=sweep_runs({5: 0.8, 30: 0.9})))["fig1-accuracy"]
    assert few.status == "not testable here"


def test_the_abstract_is_judged_by_its_weakest_number() -> None:
    suite = full_suite(ALL)
    found = paper(full_runs(ALL), suite)
    assert found["abstract-time"].status == "does not hold"
    assert "CIFAR-10 closest against AD-PSGD" in found["abstract-time"].ours
    weak = {label: {"end": 0.7} for label in ("dpsgd", "ldsgd", "pens", "adpsgd")}
    good = paper(full_runs(ALL, changes=weak), suite)["abstract-accuracy"]
    assert good.status == "holds"
    assert paper(full_runs(ALL), suite)["abstract-accuracy"].status == "does not hold"


def _flat(all_runs: SuiteRuns) -> list[tuple[str, float, Any]]:
    return [(data, p, run) for (data, p, _), runs in all_runs.by_key.items() for run in runs]
