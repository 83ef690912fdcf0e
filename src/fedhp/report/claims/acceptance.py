"""What a sound implementation shows on every data set of the suite, over three seeds or more.

The bars are the project's own; where there is none, numbers are reported side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedhp.report.claims.questions import (
    AHEAD,
    FASTER,
    FIVE,
    RIVALS,
    TIME_SHARE,
    WAITING_SHARE,
    against,
    falls_least,
    falls_with_skew,
    reported,
)
from fedhp.report.claims.step_questions import FIGURE, accuracy_peaks_inside, time_falls_first
from fedhp.report.claims.verdicts import Claim, Measure, on_set, own_set

SEEDS = 3
TUNED = "adpsgd:steps=100"


@dataclass(frozen=True, slots=True)
class Rule:
    """A claim about any data set."""

    id: str
    figure: str
    text: str
    bar: str
    measure: Measure
    beside: bool = True  # FedHP takes part, so that its other variant is told, too

    def on(self, key: str, title: str) -> Claim:
        """The claim about this one."""
        check = on_set(own_set(key), self.measure, beside=self.beside)
        return Claim(f"{self.id}-{key}", self.figure, f"{title}: {self.text}", self.bar, check)


ACCEPTANCE = (
    Rule(
        "a-time",
        "fig3",
        "IID, completion time to a common target, FedHP's share of D-PSGD's, PENS's and LD-SGD's",
        "at most 0.60, 0.60, below 1",
        against(
            TIME_SHARE,
            {"dpsgd": 0.6, "pens": 0.6, "ldsgd": None},
            clear=True,
            need=SEEDS,
        ),
    ),
    Rule(
        "b-accuracy",
        "fig5",
        "p = 0.8, final accuracy, FedHP above each rival",
        "above 0",
        against(AHEAD, dict.fromkeys(RIVALS), skew=0.8, clear=True, need=SEEDS),
    ),
    Rule(
        "c-waiting",
        "fig7",
        "mean waiting time, FedHP's share of D-PSGD's and PENS's",
        "at most 0.25",
        against(WAITING_SHARE, {"dpsgd": 0.25, "pens": 0.25}, clear=True, need=SEEDS),
    ),
    Rule(
        "d-falls",
        "fig6",
        "accuracy falls from IID to p = 0.8 for all five, and rises nowhere between",
        "below 0",
        falls_with_skew(FIVE, need=SEEDS),
    ),
    Rule(
        "d-least",
        "fig6",
        "accuracy falls least for FedHP (points less than the rival's fall)",
        "above 0",
        falls_least(RIVALS, need=SEEDS),
    ),
    Rule(
        "e-time",
        "fig3",
        "IID, completion time to a common target, AD-PSGD's (30 steps, 100 steps) / FedHP's",
        "",
        reported(against(FASTER, {"adpsgd": None, TUNED: None})),
    ),
    Rule(
        "e-final",
        "fig5",
        "p = 0.8, final accuracy, FedHP above AD-PSGD (30 steps, 100 steps)",
        "",
        reported(against(AHEAD, {"adpsgd": None, TUNED: None}, skew=0.8)),
    ),
    Rule(
        "f-accuracy",
        FIGURE,
        "accuracy rises and falls with the local steps: the peak is inside",
        "inside",
        accuracy_peaks_inside(SEEDS),
        beside=False,
    ),
    Rule(
        "f-time",
        FIGURE,
        "completion time falls with the local steps, up to some number",
        "falls",
        time_falls_first(SEEDS),
        beside=False,
    ),
)
