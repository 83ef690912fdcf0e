"""The picture of a sweep: lines over a numeric setting, or bars where no setting is numeric."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedhp.engine.runs.run import run_storage_errors
from fedhp.files import write_file
from fedhp.record.statistics import Interval
from fedhp.report.figures.style import (
    BLUE,
    COLUMN,
    INK,
    PAGE,
    grid_lines,
    legend_above,
    line_options,
    line_styles,
    new_figure,
    paper_style,
    save_figure,
)
from fedhp.report.formatting import ACCURACY, final_meaning, target_name
from fedhp.report.sweep import Combination, SweepResult, sweep_markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOGARITHMIC = 20  # an axis whose largest value is so many times its smallest is logarithmic
MOST_TICKS = 8  # with more values, the ticks are chosen evenly
ROW_HEIGHT = 0.24  # inches of a bar
CombinationNumber = Callable[[Combination], Interval | None]


def save_sweep(result: SweepResult, folder: Path, *, figures: bool = True) -> Path | None:
    """Write sweep.json, sweep.md and the figure, whose path is returned if there is one."""
    with run_storage_errors(folder):
        if any(combination.runs for combination in result.combinations):
            numbers = json.dumps(result.as_json(), indent=1)
            write_file(folder / "sweep.json", numbers.encode())
            write_file(folder / "sweep.md", sweep_markdown(result).encode())
        if figures and any(combination.finished for combination in result.combinations):
            return save_figure(sweep_figure(result), folder / "figures", "sweep")[0]
    return None


@paper_style()
def sweep_figure(result: SweepResult) -> Figure:
    """A panel for the final result, and one for the time to the highest target reached."""
    measures = _measures(result)
    axis = numeric_key(result)
    width = COLUMN if len(measures) == 1 else PAGE
    lines = {} if axis is None else _lines(result, axis)
    rows = len(result.combinations)
    height = 0.7 + ROW_HEIGHT * rows if axis is None else 2.3 + 0.16 * (len(lines) > 1) * len(lines)
    figure = new_figure(width, height)
    panels = figure.subplots(1, len(measures), squeeze=False)[0]
    for number, (axes, (name, measure)) in enumerate(zip(panels, measures.items(), strict=True)):
        if axis is None:
            _bars(axes, result, measure)
            axes.set_xlabel(name)
            if "(%)" in name:
                axes.set_xlim(right=min(100.0, axes.get_xlim()[1]))
            axes.tick_params(labelleft=number == 0)
        else:
            handles = _draw_lines(axes, lines, axis, measure)
            axes.set_xlabel(result.keys[axis])
            axes.set_ylabel(name)
            if "(%)" in name:  # the interval of few seeds may reach above 100 %
                axes.set_ylim(top=min(100.0, axes.get_ylim()[1]))
            if number == 0 and len(lines) > 1:
                legend_above(figure, handles, columns=min(2, len(lines)))
    return figure


def numeric_key(result: SweepResult) -> int | None:
    """The position of the first setting whose values are all numbers."""
    for position in range(len(result.keys)):
        values = [combination.values[position] for combination in result.combinations]
        if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            return position
    return None


def _measures(result: SweepResult) -> dict[str, CombinationNumber]:
    metric = result.metrics[0] if len(result.metrics) == 1 else "result"
    unit = "accuracy (%)" if metric == ACCURACY else metric
    tests = [run.final_tests for each in result.combinations for run in each.finished]
    final = f"final {unit}\n({final_meaning(tests)})"
    measures: dict[str, CombinationNumber] = {final: Combination.final}
    for target in reversed(result.targets):
        if any(combination.time_to(target) for combination in result.combinations):
            name = f"time to {target_name(target, metric)} (s)"
            measures[name] = partial(Combination.time_to, target=target)
            break
    return measures


def _lines(result: SweepResult, axis: int) -> dict[str, list[Combination]]:
    """The combinations that one line connects, by the values of the other settings."""
    lines: dict[str, list[Combination]] = {}
    for combination in result.combinations:
        others = [
            text if key == "algorithm.name" else f"{key}={text}"
            for position, (key, text) in enumerate(zip(result.keys, combination.texts, strict=True))
            if position != axis
        ]
        lines.setdefault(", ".join(others), []).append(combination)
    return lines


def _draw_lines(
    axes: Any, lines: dict[str, list[Combination]], axis: int, measure: CombinationNumber
) -> list[Any]:
    handles = []
    styles = line_styles(list(lines))
    numbers: list[float] = []
    for name, combinations in lines.items():
        points = [
            (float(each.values[axis]), measure(each))
            for each in sorted(combinations, key=lambda each: float(each.values[axis]))
        ]
        known = [(x, spread) for x, spread in points if spread is not None]
        numbers += [x for x, _ in points]
        x = np.array([x for x, _ in known])
        y = np.array([spread.mean for _, spread in known])
        style = styles[name]
        options = {**line_options(style), "zorder": 2}
        handles += axes.plot(x, y, **options, label=name)
        whiskers: Any = {"fmt": "none", "ecolor": style.color, "elinewidth": 0.8, "capsize": 2}
        axes.errorbar(x, y, yerr=_reach(known), **whiskers)
    if min(numbers) > 0 and max(numbers) >= LOGARITHMIC * min(numbers):
        axes.set_xscale("log")
    ticks = sorted(set(numbers))
    if len(ticks) <= MOST_TICKS:
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xticks([], minor=True)
    # A wide interval of few seeds may reach below 0, where no result is.
    if min((y for line in handles for y in line.get_ydata()), default=-1.0) >= 0:
        axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))
    grid_lines(axes, "y")
    return handles


def _bars(axes: Any, result: SweepResult, measure: CombinationNumber) -> None:
    rows = np.arange(len(result.combinations))
    spreads = [measure(combination) for combination in result.combinations]
    lengths = [0.0 if spread is None else spread.mean for spread in spreads]
    axes.barh(rows, lengths, color=BLUE, height=0.65)
    known = [(float(row), s) for row, s in zip(rows, spreads, strict=True) if s is not None]
    centers = [spread.mean for _, spread in known]
    axes.errorbar(
        centers, [row for row, _ in known], xerr=_reach(known), fmt="none", ecolor=INK, capsize=2
    )
    names = [", ".join(combination.texts) for combination in result.combinations]
    axes.set_yticks(rows, names)
    if min(lengths) >= 0:
        axes.set_xlim(left=0)
    axes.invert_yaxis()
    grid_lines(axes, "x")


def _reach(known: list[tuple[float, Interval]]) -> list[float]:
    """Half of every interval; 0 where there is one seed."""
    return [0.0 if s.high is None else s.high - s.mean for _, s in known]
