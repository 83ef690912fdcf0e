"""The verdicts on a page: what we require in one small table, the paper's claims by figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fedhp.report.claims.acceptance import REQUIREMENTS
from fedhp.report.claims.judging import FAILS, HOLDS, JudgedClaim, Verdict, count_words
from fedhp.report.claims.paper import ABSTRACT
from fedhp.report.formatting import MISSING, listed
from fedhp.report.pages.page import details_html, table_html, text_html

if TYPE_CHECKING:
    from fedhp.engine.runs.suite import Suite

RULES = (
    "Differences and ratios are between runs in the same world (same seed), with a 95 % "
    "interval over the seeds in brackets. A claim holds only if the interval, or every seed "
    "where there are too few, bears it out."
)
LOOKS: dict[str, str] = {HOLDS: "good", FAILS: "bad"}


def verdicts_html(
    suite: Suite, *, paper: Sequence[JudgedClaim], required: Sequence[JudgedClaim]
) -> str:
    """Both parts, the short answer first."""
    return "\n".join(
        [
            text_html(RULES),
            _required(suite, required),
            details_html(
                "The same with reasons, and with FedHP's other deadline rule", _list(required)
            ),
            text_html(f"The paper's own claims: {count_words(paper)}"),
            *_by_figure(paper),
        ]
    )


def _required(suite: Suite, required: Sequence[JudgedClaim]) -> str:
    """A row per rule, a column per data set that was run often enough to say something."""
    verdicts = {judged.claim.id: judged.verdict for judged in required}
    by_set = {
        key: [verdicts[id_] for r in REQUIREMENTS if (id_ := f"{r.id}-{key}") in verdicts]
        for key in suite.sets
    }
    decided = [key for key, mine in by_set.items() if any(v.status in LOOKS for v in mine)]
    keys = decided or [key for key, mine in by_set.items() if mine]
    others = [suite.sets[key].title for key, mine in by_set.items() if mine and key not in keys]
    rows: list[list[str]] = []
    marks: dict[tuple[int, int], str] = {}
    for requirement in REQUIREMENTS:
        row = [verdicts.get(f"{requirement.id}-{key}") for key in keys]
        if not any(row):
            continue
        for column, verdict in enumerate(row, start=2):
            marks[len(rows), column] = LOOKS.get(verdict.status if verdict else "", "quiet")
        rows.append([requirement.text, requirement.bar or MISSING, *map(_short, row)])
    header = ["what we require", "bar", *(suite.sets[key].title for key in keys)]
    caption = "FedHP with the deadline rule fill."
    if others:
        caption += f" Too few seeds for a verdict: {listed(others)}; their figures are below."
    return table_html(header, rows, marks=marks, caption=caption)


def _short(verdict: Verdict | None) -> str:
    if verdict is None:
        return MISSING
    return "\n".join([verdict.status, *(verdict.ours_lines or verdict.reasons)])


def _by_figure(paper: Sequence[JudgedClaim]) -> Iterable[str]:
    for figure in dict.fromkeys(judged.claim.figure for judged in paper):
        mine = [judged for judged in paper if judged.claim.figure == figure]
        name = "Abstract" if figure == ABSTRACT else f"Figure {figure.removeprefix('fig')}"
        yield details_html(f"{name}: {count_words(mine)}", _list(mine))


def _list(verdicts: Sequence[JudgedClaim]) -> str:
    """A row per claim, every value on a line of its own."""
    rows, marks = [], {}
    for place, judged in enumerate(verdicts):
        claim, verdict = judged.claim, judged.verdict
        claimed = f"\nclaimed: {claim.paper}" if claim.paper else ""
        ours = list(verdict.ours_lines or [MISSING])
        if verdict.opt_lines not in ((), (MISSING,)):
            ours += ["", "with opt:", *verdict.opt_lines]
        on = f"on {verdict.where}" if verdict.where not in ("", claim.data) else ""
        why = "\n".join(filter(None, [*verdict.reasons, on]))
        rows.append([claim.text + claimed, verdict.status, "\n".join(ours), why])
        marks[place, 1] = LOOKS.get(verdict.status, "quiet")
    return table_html(["claim", "verdict", "ours", "why"], rows, marks=marks)
