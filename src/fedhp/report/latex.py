"""A comparison as LaTeX tables (package booktabs): the numbers, then the paired verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedhp.record.reader import RunSummary, find_runs
from fedhp.report.export import save_text
from fedhp.report.formatting import ACCURACY, MISSING, sentence
from fedhp.report.groups import read_summaries, sort_runs
from fedhp.report.labels import names_for, stored_names
from fedhp.report.paired import comparison_pairs, pair_cells
from fedhp.report.tables import comparison_grid

SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "τ": r"$\tau$",
    MISSING: "--",
    **{letter: f"\\{letter}" for letter in "&%$#_"},
}


def latex_text(text: str) -> str:
    return "".join(SPECIAL.get(letter, letter) for letter in text)


def comparison_latex(
    summaries: Sequence[RunSummary], *, names: Mapping[str, str] | None = None
) -> str:
    """The comparison as one or two LaTeX tables; `names` are the user's own, by label."""
    names = names_for((run.algorithm for run in summaries), names)
    grid = comparison_grid(summaries, names=names)
    rows = [
        [rf"\textbf{{{latex_text(c.text)}}}" if c.best else latex_text(c.text) for c in row]
        for row in grid.rows
    ]
    caption, columns = sentence(grid.full_caption), "l" + "r" * len(grid.rows[0][1:])
    parts = [
        "% Written by fedhp. In the preamble: \\usepackage{booktabs}",
        _table(grid.plain_headers, rows, caption=caption, columns=columns),
    ]
    metric = summaries[0].metric if summaries else ACCURACY
    lines = [
        [latex_text(text or MISSING) for text in pair_cells(paired, metric, names)]
        for paired in comparison_pairs(summaries)
    ]
    if lines:
        caption = "The same runs paired by seed: equal seeds mean equal worlds."
        header = ["pair", "number", "first compared with second", "verdict"]
        parts.append(_table(header, lines, caption=caption, columns="llll"))
    return "\n\n".join(parts) + "\n"


def _table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str, columns: str
) -> str:
    def line(cells: Sequence[str]) -> str:
        return " & ".join(cells) + r" \\"

    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{latex_text(caption)}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            line([latex_text(header) for header in headers]),
            r"\midrule",
            *map(line, rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def save_latex(folder: str | Path, file: str | Path) -> Path:
    """Write the comparison of the run or runs in a folder as LaTeX tables; returns the file."""
    parts = []
    for batch in sort_runs(find_runs(folder)).batches:
        heading = f"% {batch.name}\n" if batch.name else ""
        summaries, names = read_summaries(batch.folders), stored_names(batch.folders)
        parts.append(heading + comparison_latex(summaries, names=names))
    return save_text(Path(file), "\n".join(parts))
