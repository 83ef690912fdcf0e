"""The reproduction of the paper on disk: one page, figures for a paper, all numbers, verdicts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedhp.engine.runs.suite import PaperFigure, Suite
from fedhp.errors import RunError
from fedhp.report.claims.acceptance import REQUIREMENTS, acceptance_verdicts
from fedhp.report.claims.judging import (
    FAILS,
    FILL,
    HOLDS,
    JudgedClaim,
    Verdict,
    claims_json,
    claims_markdown,
    count_words,
)
from fedhp.report.claims.paper import ABSTRACT, paper_verdicts
from fedhp.report.claims.runs import SuiteRuns, read_suite_runs
from fedhp.report.export import ExportedRun, Types, save_record_tables, save_summaries, save_text
from fedhp.report.figures.paper import FigureText, PaperDrawing, draw_figure
from fedhp.report.figures.style import save_figure
from fedhp.report.formatting import MISSING, listed
from fedhp.report.pages.page import (
    PageFigures,
    Section,
    details_html,
    figure_html,
    render_page,
    table_html,
    text_html,
)
from fedhp.report.pages.run_report import PAGE_FILE, run_sections

if TYPE_CHECKING:
    from fedhp.terminal import ProseTable

LEAD = (
    "Adaptive Configuration for Heterogeneous Participants in Decentralized Federated Learning "
    "(FedHP), reproduced: our curves next to the paper's claims, with a plain verdict for each."
)
HOW_JUDGED = (
    "Differences and ratios are between runs in the same world (same seed), with a 95 % "
    "interval over the seeds in brackets. A claim holds only if the interval supports it, or "
    "every seed where there are too few for an interval."
)
FINAL = (
    "Final accuracy is the mean of the last tests (evaluation.final_mean of them), or the last "
    "test of a run with fewer than ten."
)
EXAMINED = (FILL, "dpsgd")  # labels whose rounds are shown one by one
STATUS_MARKS: dict[str, str] = {HOLDS: "good", FAILS: "bad"}
SUITE_OWNER: Types = {"data": "TEXT", "skew": "REAL", "algorithm": "TEXT", "seed": "INTEGER"}


@dataclass(frozen=True, slots=True)
class Reproduction:
    page: Path
    paper: list[JudgedClaim]
    acceptance: list[JudgedClaim]

    def as_json(self) -> dict[str, Any]:
        return {
            "report": str(self.page),
            "paper": claims_json(self.paper),
            "acceptance": claims_json(self.acceptance),
        }

    def table(self) -> ProseTable:
        """Our own verdicts for the console; the page has the paper's, and the reasons."""
        from fedhp.terminal import ProseTable

        caption = (
            "FedHP has the deadline rule fill; values of other algorithms are their own. "
            f"{FINAL} The paper's own claims: {count_words(self.paper)}"
        )
        return ProseTable(
            *("claim", "bar", "verdict", "our values"),
            rows=[
                [claim.text, claim.paper, verdict.status, "\n".join(_values(verdict))]
                for claim, verdict in ((judged.claim, judged.verdict) for judged in self.acceptance)
            ],
            title="What we require: does it hold?",
            caption=caption,
        )


def save_reproduction(suite: Suite, texts: Mapping[str, FigureText], folder: Path) -> Reproduction:
    """Draw, judge and write everything that the finished runs allow."""
    runs = read_suite_runs(suite)
    if not runs.by_key:
        raise RunError(
            f"{folder}: no run has finished, so there is nothing to report",
            allowed="at least one finished run",
            fix="see why the runs failed or were skipped, then run the same command again",
        )
    paper, acceptance = paper_verdicts(suite, runs), acceptance_verdicts(suite, runs)
    verdicts = verdicts_html(suite, paper=paper, required=acceptance)
    sections = [Section("Does it hold?", "verdicts", verdicts), _setting_section(suite, runs)]
    for figure in suite.figures:
        drawings = draw_figure(figure, texts[figure.name], suite=suite, runs=runs)
        if drawings:
            sections.append(_figure_section(figure, texts[figure.name], suite, drawings))
        for drawn in drawings:
            save_figure(drawn.figure, folder / "figures", drawn.name)
    figures = PageFigures(folder / "figures" / "inside", word="Picture")
    sections += run_sections(_examined_runs(runs), figures)
    _save_numbers(runs, folder / "data")
    save_text(folder / "verdicts.md", claims_markdown([*acceptance, *paper]))
    verdicts_json = {"paper": claims_json(paper), "acceptance": claims_json(acceptance)}
    save_text(folder / "verdicts.json", json.dumps(verdicts_json))
    title = f"FedHP reproduced: profile {suite.profile}"
    html = render_page(title=title, lead=LEAD, sections=sections)
    return Reproduction(save_text(folder / PAGE_FILE, html), paper, acceptance)


def verdicts_html(
    suite: Suite, *, paper: Sequence[JudgedClaim], required: Sequence[JudgedClaim]
) -> str:
    """What we require in one small table, then the paper's claims by figure."""
    same = "The same with reasons, and with FedHP's other deadline rule"
    parts = [
        text_html(HOW_JUDGED),
        _requirement_table(suite, required),
        details_html(same, _claim_table(required)),
        text_html(f"The paper's own claims: {count_words(paper)}"),
    ]
    for figure in dict.fromkeys(judged.claim.figure for judged in paper):
        claims = [judged for judged in paper if judged.claim.figure == figure]
        name = "Abstract" if figure == ABSTRACT else f"Figure {figure.removeprefix('fig')}"
        parts.append(details_html(f"{name}: {count_words(claims)}", _claim_table(claims)))
    return "\n".join(parts)


def _requirement_table(suite: Suite, required: Sequence[JudgedClaim]) -> str:
    """A row per requirement, a column per data set that was run often enough for verdicts."""
    verdicts = {judged.claim.id: judged.verdict for judged in required}
    statuses = {
        key: {verdicts[id_].status for r in REQUIREMENTS if (id_ := f"{r.id}-{key}") in verdicts}
        for key in suite.sets
    }
    judged = [key for key in suite.sets if statuses[key]]
    keys = [key for key in judged if statuses[key] & STATUS_MARKS.keys()] or judged
    others = [suite.sets[key].title for key in judged if key not in keys]
    rows: list[list[str]] = []
    marks: dict[tuple[int, int], str] = {}
    for requirement in REQUIREMENTS:
        row = [verdicts.get(f"{requirement.id}-{key}") for key in keys]
        if not any(row):
            continue
        for column, verdict in enumerate(row, start=2):
            marks[len(rows), column] = STATUS_MARKS.get(verdict.status if verdict else "", "quiet")
        rows.append([requirement.text, requirement.bar or MISSING, *map(_short, row)])
    header = ["what we require", "bar", *(suite.sets[key].title for key in keys)]
    caption = f"FedHP with the deadline rule fill. {FINAL}"
    if others:
        caption += f" Too few seeds for a verdict: {listed(others)}; their figures are below."
    return table_html(header, rows, marks=marks, caption=caption)


def _short(verdict: Verdict | None) -> str:
    return "\n".join([verdict.status, *_values(verdict)]) if verdict else MISSING


def _values(verdict: Verdict) -> Sequence[str]:
    return verdict.ours_lines or verdict.reasons


def _claim_table(judged_claims: Sequence[JudgedClaim]) -> str:
    rows, marks = [], {}
    for index, judged in enumerate(judged_claims):
        claim, verdict = judged.claim, judged.verdict
        claimed = f"\nclaimed: {claim.paper}" if claim.paper else ""
        ours = list(verdict.ours_lines or [MISSING])
        if verdict.opt_lines not in ((), (MISSING,)):
            ours += ["", "with opt:", *verdict.opt_lines]
        on = f"on {verdict.where}" if verdict.where not in ("", claim.data) else ""
        why = "\n".join(filter(None, [*verdict.reasons, on]))
        rows.append([claim.text + claimed, verdict.status, "\n".join(ours), why])
        marks[index, 1] = STATUS_MARKS.get(verdict.status, "quiet")
    return table_html(["claim", "verdict", "ours", "why"], rows, marks=marks)


def _setting_section(suite: Suite, suite_runs: SuiteRuns) -> Section:
    rows = []
    for data_set in suite.sets.values():
        of_set = [runs for key, runs in suite_runs.by_key.items() if key[0] == data_set.key]
        runs = list(chain.from_iterable(of_set))
        seeds = sorted({run.summary.seed for run in runs})
        note = data_set.note or "as in the paper"
        if data_set.key in suite.missing:
            note = f"skipped: {suite.missing[data_set.key]}"
        seed_list = ", ".join(map(str, seeds)) or "-"
        rows.append([data_set.title, data_set.stands_for, str(len(runs)), seed_list, note])
    body = table_html(["data set", "stands for", "runs", "seeds", "setting"], rows)
    if suite_runs.unfinished:
        names = "\n\n".join(cell.name for cell in suite_runs.unfinished)
        summary = f"{len(suite_runs.unfinished)} runs did not finish"
        body += details_html(summary, text_html(names))
    return Section("What was run", "setting", body)


def _figure_section(
    figure: PaperFigure, text: FigureText, suite: Suite, drawings: Sequence[PaperDrawing]
) -> Section:
    body = "".join(
        figure_html(drawn.figure, name=drawn.name, caption=drawn.caption, alt=drawn.alt)
        for drawn in drawings
    )
    claim = text_html(f"The paper: {text.claim}")
    missing = [key for key in figure.sets if key in suite.missing]
    if missing:
        titles = ", ".join(suite.sets[key].title for key in missing)
        reasons = "\n\n".join(suite.missing[key] for key in missing)
        claim += details_html(f"Without {titles}", text_html(reasons))
    title = f"Figure {figure.name.removeprefix('fig')}: {text.title}"
    return Section(title, figure.name, claim + body)


def _examined_runs(runs: SuiteRuns) -> list[Path]:
    """One run of FedHP and one of a rival, at the highest non-IID level there is."""
    hardest = max(skew for _, skew, _ in runs.by_key)
    data = next(data for data, skew, _ in runs.by_key if skew == hardest)
    of_labels = [runs.runs(data, label, skew=hardest) for label in EXAMINED]
    folders = [of_label[0].folder for of_label in of_labels if of_label]
    return folders or [next(iter(runs.by_key.values()))[0].folder]


def _save_numbers(suite_runs: SuiteRuns, out: Path) -> None:
    """Every number behind the figures: a row per run, per round and per test."""
    runs = [
        ExportedRun((data, skew, label, run.summary.seed), run.folder, run.summary)
        for (data, skew, label), of_key in suite_runs.by_key.items()
        for run in of_key
    ]
    save_summaries(runs, out / "runs", owner=SUITE_OWNER)
    save_record_tables(runs, out, owner=SUITE_OWNER, tables=("evaluations", "rounds"))
