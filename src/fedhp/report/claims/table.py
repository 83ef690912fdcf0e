"""The verdict per claim: the paper's claims and the project's own, as a table and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedhp.report.claims.acceptance import ACCEPTANCE
from fedhp.report.claims.paper import paper_claims
from fedhp.report.claims.pool import Pool
from fedhp.report.claims.step_questions import FIGURE
from fedhp.report.claims.verdicts import FAILS, HOLDS, REPORTED, UNKNOWN, Claim, Judged
from fedhp.report.formatting import MISSING

if TYPE_CHECKING:
    from fedhp.engine.runs.suite import Suite

HEADER = ["figure", "claim", "claimed", "verdict", "ours (FedHP: fill)", "opt", "why", "on"]
ABSTRACT = "abstract"


def paper_verdicts(suite: Suite, pool: Pool) -> list[Judged]:
    """The paper's claims about the figures of this suite, and its abstract's."""
    asked = {figure.name for figure in suite.figures} | {ABSTRACT}
    return _judged([claim for claim in paper_claims() if claim.figure in asked], suite, pool)


def acceptance_verdicts(suite: Suite, pool: Pool) -> list[Judged]:
    """The project's own claims about the figures of this suite, on every data set it has."""
    figures = {figure.name: figure for figure in suite.figures}
    claims = [
        rule.on(key, here.title)
        for rule in ACCEPTANCE
        for key, here in suite.sets.items()
        # Only its own runs can say anything about the number of steps.
        if rule.figure in figures and (rule.figure != FIGURE or key in figures[FIGURE].sets)
    ]
    return _judged(claims, suite, pool)


def verdict_rows(verdicts: Sequence[Judged]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table, a row per claim."""
    rows = []
    for judged in verdicts:
        claim, verdict = judged.claim, judged.verdict
        cells = [
            claim.figure,
            claim.text,
            claim.paper,
            verdict.status,
            verdict.ours,
            verdict.opt,
            verdict.why,
            verdict.where,
        ]
        rows.append([cell or MISSING for cell in cells])
    return list(HEADER), rows


def count_words(verdicts: Sequence[Judged]) -> str:
    """How many hold, do not, and cannot be tested here."""
    counts = Counter(judged.verdict.status for judged in verdicts)
    same = sum(j.verdict.status == FAILS and j.verdict.direction == "same" for j in verdicts)
    parts = [f"{counts[HOLDS]} of {len(verdicts)} hold"]
    if counts[FAILS]:
        parts.append(f"{counts[FAILS]} do not ({same} of these in the same direction)")
    if counts[UNKNOWN]:
        parts.append(f"{counts[UNKNOWN]} cannot be tested here")
    if counts[REPORTED]:
        parts.append(f"{counts[REPORTED]} only reported")
    return "; ".join(parts) + "."


def claims_markdown(verdicts: Sequence[Judged]) -> str:
    """A Markdown table, the count above it."""
    header, rows = verdict_rows(verdicts)
    marked = [[f"**{c}**" if c in (HOLDS, FAILS) else c for c in row] for row in rows]
    lines = [_line(header), "|" + "---|" * len(header), *(_line(row) for row in marked)]
    return "\n".join([count_words(verdicts), "", *lines]) + "\n"


def claims_json(verdicts: Sequence[Judged]) -> list[dict[str, Any]]:
    """Plain values, one table per claim."""
    return [judged.as_json() for judged in verdicts]


def _judged(claims: Sequence[Claim], suite: Suite, pool: Pool) -> list[Judged]:
    return [Judged(claim, claim.check(pool, suite)) for claim in claims]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
