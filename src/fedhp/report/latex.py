"""A comparison as LaTeX tables (package booktabs): the numbers, then the paired verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedhp.record.reader import RunReader, RunSummary, find_runs
from fedhp.report.export import save_text
from fedhp.report.formatting import ACCURACY, MISSING, sentence
from fedhp.report.groups import sort_runs
from fedhp.report.labels import names_for, stored_names
from fedhp.report.paired import comparison_pairs, measure_words, number_words
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
    """A text that LaTeX prints as it is."""
    return "".join(SPECIAL.get(letter, letter) for letter in text)


def comparison_latex(
    summaries: Sequence[RunSummary], *, names: Mapping[str, str] | None = None
) -> str:
    """The comparison as one or two LaTeX tables; `names` are the user's own, by label."""
    names = names_for((run.algorithm for run in summaries), names)
    grid = comparison_grid(summaries, names=names)
    headers = [header.replace("-\n", "-").replace("\n", " ") for header in grid.headers]
    rows = []
    for row in grid.rows:
        first, *cells = row
        texts = [latex_text(first.text)]
        for cell in cells:
            text = latex_text(cell.text)
            texts.append(rf"\textbf{{{text}}}" if cell.best else text)
        rows.append(texts)
    caption = "; ".join(filter(None, [grid.caption, grid.bold_caption]))
    parts = [
        "% Written by fedhp. In the preamble: \\usepackage{booktabs}",
        _table(headers, rows, caption=sentence(caption), columns="l" + "r" * len(grid.rows[0][1:])),
    ]
    metric = summaries[0].metric if summaries else ACCURACY
    pairs = comparison_pairs(summaries)
    if pairs:
        lines = [
            [
                latex_text(text)
                for text in (
                    f"{names[paired.first]} against {names[paired.second]}",
                    number_words(paired, metric),
                    measure_words(paired, metric) or MISSING,
                    paired.verdict,
                )
            ]
            for paired in pairs
        ]
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
        summaries = []
        for run_folder in batch.folders:
            with RunReader(run_folder) as reader:
                summaries.append(reader.summary())
        heading = f"% {batch.name}\n" if batch.name else ""
        parts.append(heading + comparison_latex(summaries, names=stored_names(batch.folders)))
    return save_text(Path(file), "\n".join(parts))
