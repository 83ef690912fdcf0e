"""The results: medians of paired ratios with their spread, as a table, JSON and a plot."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from bench.claim import Claim, Results

BLUE, VERMILLION, INK, PALE = "#0072B2", "#D55E00", "#333333", "#BBBBBB"


@dataclass(frozen=True, slots=True)
class Row:
    """The result of a claim; ratio is the median over repeats of the ratios within a repeat."""

    name: str
    what: str
    ratio: float | None
    bar: float | None
    passed: bool | None  # None: no bar, or not run
    spread: dict[str, float]  # min, q1, q3, max of the ratio
    repeats: int
    unit: str
    limit: str
    share: float | None  # of the limit
    measured: dict[str, float]  # medians of the numbers behind the ratio
    note: str


def row_of(
    claim: Claim, repeats: Sequence[Results], *, failed: Mapping[str, str], theirs: set[str]
) -> Row:
    """The row of a claim; a note says why a measurement is missing."""
    complete = [results for results in repeats if all(key in results for key in claim.needs)]
    ratios = [claim.ratio(results) for results in complete]
    reasons = [failed[key] for key in claim.needs if key in failed]
    ours_failed = any(key in failed and key not in theirs for key in claim.needs)
    note = claim.note
    if reasons:
        note = f"{'not run' if not complete else 'stopped early'}: {reasons[0]}"
    ratio = float(np.median(ratios)) if ratios else None
    passed = None if claim.bar is None or ratio is None else ratio >= claim.bar
    return Row(
        name=claim.name,
        what=claim.what,
        ratio=ratio,
        bar=claim.bar,
        passed=False if ours_failed else passed,
        spread=_spread(ratios),
        repeats=len(complete),
        unit=claim.unit,
        limit=claim.limit,
        share=_share(claim, complete),
        measured=_medians([claim.measured(results) for results in complete]),
        note=note,
    )


def missed(rows: Sequence[Row]) -> list[str]:
    """The claims that do not hold."""
    return [row.name for row in rows if row.passed is False]


def show(rows: Sequence[Row]) -> None:
    """Print the table and a summary."""
    print()
    print(_table(rows))
    missing_bar = missed(rows)
    held = sum(row.passed is True for row in rows)
    absent = sum(row.ratio is None for row in rows)
    print(f"\n{held} claims hold, {len(missing_bar)} missed, {absent} not run")
    if missing_bar:
        print(f"missed: {', '.join(missing_bar)}")


def write(rows: Sequence[Row], folder: Path, *, quick: bool) -> None:
    """results.json, results.md and results.png."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    lines = ["# Measured claims", "", _machine(), ""]
    if quick:
        lines += ["**Short measurements (`--quick`): for a quick check only.**", ""]
    lines += [_table(rows), "", "## Numbers behind the ratios (medians)", ""]
    lines += [f"- **{row.name}**: {row.what}. {_numbers(row)}" for row in rows]
    (folder / "results.md").write_text("\n".join(lines) + "\n")
    _plot([row for row in rows if row.bar is not None and row.ratio is not None], folder)


def read_rows(folder: Path) -> dict[str, Row]:
    """The rows written earlier, by name."""
    path = folder / "results.json"
    rows = json.loads(path.read_text()) if path.exists() else []
    return {row["name"]: Row(**row) for row in rows}


def _spread(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    quantiles = np.quantile(values, [0, 0.25, 0.75, 1])
    return dict(zip(("min", "q1", "q3", "max"), map(float, quantiles), strict=True))


def _share(claim: Claim, complete: Sequence[Results]) -> float | None:
    """Median share of the limit, over the repeats that measured the limit as well."""
    if claim.share is None:
        return None
    shares = []
    for results in complete:
        try:
            shares.append(claim.share(results))
        except KeyError:  # the limit was not measured in this repeat
            continue
    return float(np.median(shares)) if shares else None


def _medians(measured: Sequence[dict[str, float]]) -> dict[str, float]:
    if not measured:
        return {}
    return {key: float(np.median([numbers[key] for numbers in measured])) for key in measured[0]}


def _table(rows: Sequence[Row]) -> str:
    head = ("claim", "ratio", "min .. max", "bar", "", "limit reached", "repeats")
    cells = [
        (
            row.name,
            "-" if row.ratio is None else f"{_short(row.ratio)} {row.unit}",
            f"{_short(row.spread['min'])} .. {_short(row.spread['max'])}" if row.spread else "-",
            "-" if row.bar is None else f">= {row.bar:g}",
            _verdict(row),
            "-" if row.share is None else f"{row.share:.0%} of {row.limit}",
            str(row.repeats),
        )
        for row in rows
    ]
    widths = [max(len(line[i]) for line in [head, *cells]) for i in range(len(head))]

    def line(parts: Sequence[str]) -> str:
        padded = (part.ljust(width) for part, width in zip(parts, widths, strict=True))
        return f"| {' | '.join(padded)} |"

    return "\n".join([line(head), line(["-" * width for width in widths]), *map(line, cells)])


def _verdict(row: Row) -> str:
    if row.passed is None:
        return row.note if row.note.startswith("not run") else "reported"
    return "holds" if row.passed else "MISSED"


def _numbers(row: Row) -> str:
    medians = [f"{key.replace('_', ' ')} {_short(value)}" for key, value in row.measured.items()]
    quartiles = (
        [f"quartiles {_short(row.spread['q1'])} to {_short(row.spread['q3'])}"]
        if row.spread
        else []
    )
    return "; ".join([*medians, *quartiles, *([row.note] if row.note else [])])


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _machine() -> str:
    model = platform.processor() or platform.machine()
    described = Path("/proc/cpuinfo")
    if described.exists():
        names = [x for x in described.read_text().splitlines() if x.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    return (
        f"{model}, {os.cpu_count()} cores; Python {platform.python_version()},"
        f" torch {torch.__version__}."
    )


def _plot(rows: Sequence[Row], folder: Path) -> None:
    """The ratio of every claim divided by its bar, on a log axis, with quartiles and extremes."""
    if not rows:
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FuncFormatter, NullFormatter

    figure, axes = plt.subplots(figsize=(8.2, 0.9 + 0.34 * len(rows)), layout="constrained")
    axes.axvline(1.0, color=INK, linewidth=1.0)
    seen = set()
    for position, row in enumerate(reversed(rows)):
        assert row.bar is not None
        assert row.ratio is not None
        scaled = {key: value / row.bar for key, value in row.spread.items()}
        color, marker = (BLUE, "o") if row.passed else (VERMILLION, "X")
        label = "holds" if row.passed else "missed"
        axes.plot([scaled["min"], scaled["max"]], [position] * 2, color=color, linewidth=1.0)
        axes.plot(
            [scaled["q1"], scaled["q3"]], [position] * 2, color=color, linewidth=4.0, alpha=0.5
        )
        axes.plot(
            row.ratio / row.bar,
            position,
            marker,
            color=color,
            markersize=7,
            label=None if label in seen else label,
        )
        seen.add(label)
        axes.annotate(
            f"{_short(row.ratio)} {row.unit} (bar {row.bar:g})",
            (1.01, position),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=8,
            color=INK,
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(range(len(rows)), [row.name for row in reversed(rows)], fontsize=8)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlabel(
        "measured ratio / bar (right of 1: the claim holds); thick: quartiles, thin: extremes",
        fontsize=8,
    )
    axes.grid(axis="x", color=PALE, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=8, frameon=False)
    figure.savefig(folder / "results.png", dpi=150)
    plt.close(figure)
