"""The reproduction of the paper on disk: one page, figures for a paper, all numbers, verdicts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedhp.engine.suite import PaperFigure, Suite
from fedhp.errors import RunError
from fedhp.report.claims import (
    Judged,
    acceptance_verdicts,
    claims_json,
    claims_markdown,
    paper_verdicts,
    verdict_rows,
)
from fedhp.report.dossier import run_sections
from fedhp.report.export import save_rows, save_text
from fedhp.report.page import (
    Section,
    details_html,
    figure_html,
    render_page,
    table_html,
    text_html,
)
from fedhp.report.paper_figures import draw_figure
from fedhp.report.pool import Pool, read_pool
from fedhp.report.style import save_figure

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
    paper: list[Judged]
    acceptance: list[Judged]
    files: list[Path]

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "report": str(self.page),
            "paper": claims_json(self.paper),
            "acceptance": claims_json(self.acceptance),
        }

    def table(self) -> Table:
        """The verdicts for the console."""
        from rich.table import Table

        header, rows = verdict_rows([*self.acceptance, *self.paper])
        table = Table(title="Does it hold?", show_lines=False)
        for name in header:
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*row)
        return table


def save_reproduction(suite: Suite, folder: Path) -> Reproduction:
    """Draw, judge and write everything that the finished runs allow."""
    pool = read_pool(suite)
    if not pool.cells:
        raise RunError(
            f"{folder}: no run has finished, so there is nothing to report",
            allowed="at least one finished run",
            fix="see why the runs failed or were skipped, and give the same command again",
        )
    paper, acceptance = paper_verdicts(suite, pool), acceptance_verdicts(suite, pool)
    files: list[Path] = []
    sections = [_verdict_section(paper, acceptance), _setting_section(suite, pool)]
    for figure in suite.figures:
        section, drawn = _figure_section(figure, suite, pool, folder / "figures")
        files += drawn
        if section is not None:
            sections.append(section)
    sections += run_sections(_looked_at(pool))
    files += _save_numbers(pool, folder / "data")
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


def _verdict_section(paper: Sequence[Judged], acceptance: Sequence[Judged]) -> Section:
    body = text_html(
        "Differences and ratios are between runs in the same world (same seed), with a 95 % "
        "interval over the seeds. A claim holds only if the interval, or every seed where there "
        "are too few, bears it out."
    )
    for title, verdicts in (("What we require", acceptance), ("What the paper claims", paper)):
        header, rows = verdict_rows(verdicts)
        place = header.index("verdict")
        look = {"holds": "good", "does not hold": "bad"}
        marks = {
            (index, place): look.get(row[place].split(",")[0], "quiet")
            for index, row in enumerate(rows)
        }
        body += table_html(header, rows, caption=title, marks=marks)
    return Section("Does it hold?", "verdicts", body)


def _setting_section(suite: Suite, pool: Pool) -> Section:
    """What was run, and what was reduced against the paper."""
    rows = []
    for each in suite.sets.values():
        seeds = sorted({run.summary.seed for run in pool.runs(data=each.key)})
        finished = sum(cell.data == each.key for cell in pool.cells)
        note = each.note or "as in the paper"
        if each.key in suite.missing:
            note = f"skipped: {suite.missing[each.key]}"
        rows.append(
            [each.title, each.stands_for, str(finished), ", ".join(map(str, seeds)) or "-", note]
        )
    header = ["data set", "stands for", "runs", "seeds", "setting"]
    return Section("What was run", "setting", table_html(header, rows))


def _figure_section(
    figure: PaperFigure, suite: Suite, pool: Pool, out: Path
) -> tuple[Section | None, list[Path]]:
    body, files = "", []
    for drawing in draw_figure(figure, suite, pool):
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


def _looked_at(pool: Pool) -> list[Path]:
    """One run of FedHP and one of a rival, as non-IID as there is, for a look inside."""
    hardest = max(cell.skew for cell in pool.cells)
    data = next(cell.data for cell in pool.cells if cell.skew == hardest)
    found = []
    for label in SHOWN:
        mine = [
            cell
            for cell in pool.cells
            if (cell.data, cell.skew, cell.cell.label) == (data, hardest, label)
        ]
        if mine:
            found.append(min(mine, key=lambda cell: cell.cell.seed).cell.folder)
    return found or [pool.cells[0].cell.folder]


def _save_numbers(pool: Pool, out: Path) -> list[Path]:
    """Every number behind the figures: a row per run, and a row per test of a run."""
    keys = ["data", "skew", "algorithm", "seed"]
    summaries, tests = [], []
    for each in pool.cells:
        run = pool.run(each)
        key = [each.data, each.skew, each.cell.label, each.cell.seed]
        plain = run.summary.as_json()
        targets = plain.pop("time_to_target")
        summaries.append({**dict(zip(keys, key, strict=True)), **plain, "targets": targets})
        tests += [
            [*key, round_index, clock, value]
            for round_index, clock, value in zip(
                run.rounds.tolist(), run.clock.tolist(), run.values.tolist(), strict=True
            )
        ]
    names = sorted({target for row in summaries for target in row["targets"]}, key=float)
    fields = [name for name in summaries[0] if name not in (*keys, "targets", "metric", "status")]
    header = [*keys, *fields, *(f"time_to_{name}" for name in names)]
    rows = [
        [row[name] for name in (*keys, *fields)] + [row["targets"].get(name) for name in names]
        for row in summaries
    ]
    return [
        *save_rows(out / "runs", header, rows),
        *save_rows(out / "curves", [*keys, "round", "clock", "accuracy"], tests),
    ]
