"""The reproduction of the paper on disk: one page, figures for a paper, all numbers, verdicts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedhp.engine.runs.suite import PaperFigure, Suite
from fedhp.errors import RunError
from fedhp.record.reader import RunReader, RunSummary
from fedhp.report.claims.acceptance import acceptance_verdicts
from fedhp.report.claims.judging import JudgedClaim, claims_json, claims_markdown, count_words
from fedhp.report.claims.paper import paper_verdicts
from fedhp.report.claims.runs import SuiteRuns, read_suite_runs
from fedhp.report.datasets import Rows, Types, save_frame
from fedhp.report.export import save_text
from fedhp.report.figures.paper import draw_figure
from fedhp.report.figures.style import save_figure
from fedhp.report.groups import RunCurves
from fedhp.report.pages.album import Album
from fedhp.report.pages.page import (
    Section,
    details_html,
    figure_html,
    render_page,
    table_html,
    text_html,
)
from fedhp.report.pages.run_report import run_sections
from fedhp.report.pages.verdicts import verdicts_html

if TYPE_CHECKING:
    from rich.table import Table

LEAD = (
    "Adaptive Configuration for Heterogeneous Participants in Decentralized Federated Learning "
    "(FedHP), reproduced: our curves beside the paper's claims, with a plain verdict for each."
)
SHOWN = ("fedhp:deadline=fill", "dpsgd")  # whose rounds are looked at one by one


@dataclass(frozen=True, slots=True)
class Reproduction:
    """What was found and where it is."""

    page: Path
    paper: list[JudgedClaim]
    acceptance: list[JudgedClaim]
    files: list[Path]

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "report": str(self.page),
            "paper": claims_json(self.paper),
            "acceptance": claims_json(self.acceptance),
        }

    def table(self) -> Table:
        """Our own verdicts for the console; the page has the paper's, and the reasons."""
        from rich.table import Table

        table = Table(title="What we require: does it hold?", caption=self._counts())
        for name in ("claim", "bar", "verdict", "FedHP (fill)"):
            table.add_column(name, overflow="fold")
        for judged in self.acceptance:
            claim, verdict = judged.claim, judged.verdict
            values = "\n".join(verdict.ours_lines or verdict.reasons)
            table.add_row(claim.text, claim.paper, verdict.status, values, end_section=True)
        return table

    def _counts(self) -> str:
        return f"The paper's own claims: {count_words(self.paper)}"


def save_reproduction(suite: Suite, folder: Path) -> Reproduction:
    """Draw, judge and write everything that the finished runs allow."""
    runs = read_suite_runs(suite)
    if not runs.by_key:
        raise RunError(
            f"{folder}: no run has finished, so there is nothing to report",
            allowed="at least one finished run",
            fix="see why the runs failed or were skipped, and give the same command again",
        )
    paper, acceptance = paper_verdicts(suite, runs), acceptance_verdicts(suite, runs)
    files: list[Path] = []
    answer = verdicts_html(suite, paper=paper, required=acceptance)
    sections = [Section("Does it hold?", "verdicts", answer), _setting_section(suite, runs)]
    for figure in suite.figures:
        section, drawn = _figure_section(figure, suite, runs, folder / "figures")
        files += drawn
        if section is not None:
            sections.append(section)
    album = Album(folder / "figures" / "inside", word="Picture")
    sections += run_sections(_looked_at(runs), album=album)
    files += album.paths
    files += _save_numbers(runs, folder / "data")
    files += [
        save_text(folder / "verdicts.md", claims_markdown([*acceptance, *paper])),
        save_text(
            folder / "verdicts.json",
            json.dumps({"paper": claims_json(paper), "acceptance": claims_json(acceptance)}),
        ),
    ]
    html = render_page(
        title=f"FedHP reproduced: profile {suite.profile}", lead=LEAD, sections=sections
    )
    page = save_text(folder / "report.html", html)
    return Reproduction(page, paper, acceptance, files)


def _setting_section(suite: Suite, suite_runs: SuiteRuns) -> Section:
    """What was run, and what was reduced against the paper."""
    rows = []
    for each in suite.sets.values():
        runs = [
            run
            for (data, _, _), mine in suite_runs.by_key.items()
            if data == each.key
            for run in mine
        ]
        seeds = sorted({run.summary.seed for run in runs})
        note = each.note or "as in the paper"
        if each.key in suite.missing:
            note = f"skipped: {suite.missing[each.key]}"
        rows.append(
            [each.title, each.stands_for, str(len(runs)), ", ".join(map(str, seeds)) or "-", note]
        )
    header = ["data set", "stands for", "runs", "seeds", "setting"]
    body = table_html(header, rows)
    if suite_runs.unfinished:
        names = "\n\n".join(each.name for each in suite_runs.unfinished)
        body += details_html(f"{len(suite_runs.unfinished)} runs did not finish", text_html(names))
    return Section("What was run", "setting", body)


def _figure_section(
    figure: PaperFigure, suite: Suite, runs: SuiteRuns, out: Path
) -> tuple[Section | None, list[Path]]:
    body, files = "", []
    for drawing in draw_figure(figure, suite, runs):
        files += save_figure(drawing.figure, out, drawing.name)
        body += figure_html(
            drawing.figure, name=drawing.name, caption=drawing.caption, alt=drawing.alt
        )
    if not body:
        return None, files
    title = f"Figure {figure.name.removeprefix('fig')}: {figure.title}"
    said = text_html(f"The paper: {figure.claim}")
    skipped = [suite.sets[key].title for key in figure.sets if key in suite.missing]
    if skipped:
        reasons = "\n\n".join(suite.missing[key] for key in figure.sets if key in suite.missing)
        said += details_html(f"Without {', '.join(skipped)}", text_html(reasons))
    return Section(title, figure.name, said + body), files


def _looked_at(runs: SuiteRuns) -> list[Path]:
    """One run of FedHP and one of a rival, as non-IID as there is, for a look inside."""
    hardest = max(skew for _, skew, _ in runs.by_key)
    data = next(data for data, skew, _ in runs.by_key if skew == hardest)
    found = [mine[0].folder for label in SHOWN if (mine := runs.runs(data, label, skew=hardest))]
    return found or [next(iter(runs.by_key.values()))[0].folder]


def _save_numbers(suite_runs: SuiteRuns, out: Path) -> list[Path]:
    """Every number behind the figures: a row per run, per round and per test."""
    runs = [
        (data, skew, run) for (data, skew, _), mine in suite_runs.by_key.items() for run in mine
    ]
    owner: Types = {"data": "TEXT", "skew": "REAL", "algorithm": "TEXT", "seed": "INTEGER"}
    texts, integers = ("metric", "status", "digest"), ("rounds", "bytes_sent")
    fields = [name for name in RunSummary.__slots__ if name not in (*owner, "time_to_target")]
    targets = sorted({t for *_, run in runs for t in run.summary.time_to_target}, key=float)
    types = dict(owner)
    for name in fields:
        types[name] = "TEXT" if name in texts else "INTEGER" if name in integers else "REAL"
    types |= {f"time_to_{target}": "REAL" for target in targets}
    rows: Rows = []
    for data, skew, run in runs:
        plain = run.summary.as_json()
        times = [run.summary.time_to_target.get(target) for target in targets]
        values = [plain[name] for name in fields]
        rows.append((data, skew, run.summary.algorithm, run.summary.seed, *values, *times))
    paths = save_frame(out, "runs", types, lambda: iter([rows]))
    for table in ("evaluations", "rounds"):
        with RunReader(runs[0][2].folder) as first:
            types = {**owner, **first.column_types(table)}
        paths += save_frame(out, table, types, partial(_tables, runs, table))
    return paths


def _tables(runs: Sequence[tuple[str, float, RunCurves]], table: str) -> Iterator[Rows]:
    for data, skew, run in runs:
        with RunReader(run.folder) as reader:
            blocks = reader.blocks(table)
            next(blocks)  # its header
            for rows in blocks:
                own = (data, skew, run.summary.algorithm, run.summary.seed)
                yield [(*own, *row) for row in rows]
