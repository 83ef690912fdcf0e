"""The bars of this project that `fedhp reproduce` judges on every data set.

The whole 95 % interval over three seeds or more has to pass. The bars of `make accept`, in one
fixed setting, are in experiments/acceptance_checks.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedhp.report.claims import questions as ask
from fedhp.report.claims import runs as metrics
from fedhp.report.claims.judging import Claim, JudgedClaim, Measure, judge_claims, on_set, own_set
from fedhp.report.claims.runs import SuiteRuns

if TYPE_CHECKING:
    from fedhp.engine.runs.suite import Suite

SEEDS = 3
TUNED = "adpsgd:steps=100"
SKEWED = 0.8

# The bars on any data set. None: any clear difference.
TIME_SHARE_BARS: dict[str, float | None] = {"dpsgd": 0.6, "pens": 0.6, "ldsgd": None}
WAITING_SHARE_BARS: dict[str, float | None] = {"dpsgd": 0.25, "pens": 0.25}


@dataclass(frozen=True, slots=True)
class Requirement:
    id: str
    figure: str
    text: str
    bar: str
    measure: Measure
    both_variants: bool = True  # FedHP takes part, so both of its deadline rules are reported

    def on(self, key: str, title: str) -> Claim:
        judge = on_set(own_set(key), self.measure, both_variants=self.both_variants)
        text = f"{title}: {self.text}"
        return Claim(f"{self.id}-{key}", self.figure, text, self.bar, judge, data=title)


REQUIREMENTS = (
    Requirement(
        "a-time",
        "fig3",
        "IID, completion time to a common target, FedHP's share of D-PSGD's, PENS's and LD-SGD's",
        "at most 0.60, 0.60, below 1",
        ask.against(metrics.TIME_SHARE, TIME_SHARE_BARS, clear=True, need=SEEDS),
    ),
    Requirement(
        "b-accuracy",
        "fig5",
        "p = 0.8, final accuracy, FedHP above each rival",
        "above 0",
        ask.against(metrics.AHEAD, dict.fromkeys(ask.RIVALS), skew=SKEWED, clear=True, need=SEEDS),
    ),
    Requirement(
        "c-waiting",
        "fig7",
        "mean waiting time, FedHP's share of D-PSGD's and PENS's",
        "at most 0.25",
        ask.against(metrics.WAITING_SHARE, WAITING_SHARE_BARS, clear=True, need=SEEDS),
    ),
    Requirement(
        "d-falls",
        "fig6",
        "accuracy falls from IID to p = 0.8 for all five, and rises nowhere between",
        "below 0",
        ask.falls_with_skew(ask.FIVE, need=SEEDS),
    ),
    Requirement(
        "d-least",
        "fig6",
        "accuracy falls least for FedHP (points less than the rival's fall)",
        "above 0",
        ask.falls_least(ask.RIVALS, need=SEEDS),
    ),
    Requirement(
        "e-time",
        "fig3",
        "IID, completion time to a common target, AD-PSGD's (30 steps, 100 steps) / FedHP's",
        "",
        ask.reported(ask.against(metrics.FASTER, {"adpsgd": None, TUNED: None})),
    ),
    Requirement(
        "e-final",
        "fig5",
        "p = 0.8, final accuracy, FedHP above AD-PSGD (30 steps, 100 steps)",
        "",
        ask.reported(ask.against(metrics.AHEAD, {"adpsgd": None, TUNED: None}, skew=SKEWED)),
    ),
    Requirement(
        "f-accuracy",
        ask.STEPS_FIGURE,
        "accuracy rises and falls with the local steps: the peak is inside",
        "inside",
        ask.accuracy_peaks_inside(SEEDS),
        both_variants=False,
    ),
    Requirement(
        "f-time",
        ask.STEPS_FIGURE,
        "completion time falls with the local steps, up to some number",
        "falls",
        ask.time_falls_first(SEEDS),
        both_variants=False,
    ),
)


def acceptance_verdicts(suite: Suite, runs: SuiteRuns) -> list[JudgedClaim]:
    """The requirements about the figures of this suite, judged on every data set it has."""
    figures = {figure.name: figure for figure in suite.figures}
    claims = [
        requirement.on(key, data_set.title)
        for requirement in REQUIREMENTS
        for key, data_set in suite.sets.items()
        if requirement.figure in figures
        # Only its own runs can say anything about the number of steps.
        and (requirement.figure != ask.STEPS_FIGURE or key in figures[ask.STEPS_FIGURE].sets)
    ]
    return judge_claims(claims, suite, runs)
