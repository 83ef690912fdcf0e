"""Figures that compare runs, sized for a paper, and their panels: curves and bars.

Means and 95 % intervals are over the finished seeds; every single seed is a dot, and a run that
did not finish is a thin line that ends in a cross. Figures are made without pyplot, so nothing
global is left behind.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedhp.record.reader import RunSummary
from fedhp.record.statistics import Interval, interval
from fedhp.report.figures.style import (
    COLUMN,
    INK,
    PAGE,
    QUIET,
    LineStyles,
    device_styles,
    grid_lines,
    key,
    legend_above,
    line_options,
    line_styles,
    marker,
    new_figure,
    paper_style,
    right_text,
    save_figure,
)
from fedhp.report.formatting import ACCURACY, decimals_for, fixed, target_name
from fedhp.report.groups import Comparison, RunCurves, mean_curve, read_comparison
from fedhp.report.paired import telling_target
from fedhp.report.tables import with_spread
from fedhp.types import FloatArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BAR_HEIGHT = 0.23  # inches
NAME_LINE, LEGEND_LINE = 0.13, 0.16  # inches of a line of a name
BAR_LETTERS, LEGEND_LETTERS = 24, 48  # of a line of a name
LETTER = 0.053  # inches of a letter in a legend, about
MARKERS_PER_CURVE = 7
BELOW = 1.5  # the curves' axis goes this many times (best - lowest target) below that target
UNBROKEN = "\u00a0"  # a space where no line ends
APART = 0.075  # of the axis between two targets' names, so that both are readable
LEAST_SPAN = 0.02  # of a flat curve's axis: two points of accuracy
ROOM = 1.6  # a whisker may widen the axis by this factor; longer ones end in an arrow


def save_comparison_figures(
    folders: Sequence[Path], out: Path, *, names: Mapping[str, str] | None = None
) -> list[Path]:
    comparison = read_comparison(folders, names=names)
    targets = [time_to_target] if comparison.targets else []
    first = [overview, accuracy_over_time, accuracy_over_rounds]
    drawings = [*first, *targets, waiting_time, local_steps]
    saved = [save_figure(draw(comparison), out, draw.__name__) for draw in drawings]
    return [path for paths in saved for path in paths]


@paper_style()
def _curve_figure(comparison: Comparison, draw: Callable[[Any, Comparison], None]) -> Figure:
    columns = _legend_columns(comparison, COLUMN, 2)
    figure = new_figure(COLUMN, 2.3 + LEGEND_LINE * _legend_lines(comparison, columns))
    legend_above(figure, curve_handles(comparison), columns=columns)
    draw(figure.subplots(), comparison)
    return figure


def accuracy_over_time(comparison: Comparison) -> Figure:
    return _curve_figure(comparison, over_time)


def accuracy_over_rounds(comparison: Comparison) -> Figure:
    return _curve_figure(comparison, over_rounds)


@paper_style()
def time_to_target(comparison: Comparison) -> Figure:
    targets = comparison.targets
    figure = new_figure(COLUMN, len(targets) * (0.55 + _bars_height(comparison)))
    panels = figure.subplots(len(targets), 1, squeeze=False)[:, 0]
    for axes, target in zip(panels, targets, strict=True):
        target_bars(axes, comparison, target)
    return figure


@paper_style()
def waiting_time(comparison: Comparison) -> Figure:
    figure = new_figure(COLUMN, 0.55 + _bars_height(comparison))
    waiting_bars(figure.subplots(), comparison)
    return figure


@paper_style()
def local_steps(comparison: Comparison) -> Figure:
    least = 0.1 * len(comparison.kinds) * len(comparison.groups)
    figure = new_figure(COLUMN, 0.85 + max(_bars_height(comparison), least))
    handles = step_bars(figure.subplots(), comparison)
    legend_above(figure, handles, columns=min(3, len(handles)))
    return figure


@paper_style()
def overview(comparison: Comparison) -> Figure:
    """The whole comparison in one picture: accuracy, time and data to target, waiting; without a
    target, the steps instead."""
    bars = _bars_height(comparison)
    columns = _legend_columns(comparison, PAGE, min(4, len(comparison.groups)))
    curves = max(2.3, 0.9 + bars)  # inches; the bars next to the curves need their room, too
    legend = LEGEND_LINE * max(0, _legend_lines(comparison, columns) - 3)
    figure = new_figure(PAGE, 1.2 + curves + legend + bars + (0.4 if curves > 2.3 else 0))
    legend_above(figure, curve_handles(comparison), columns=columns)
    # Each row has its own grid, so that long names below do not narrow the curves above.
    halves = figure.add_gridspec(2, 1, height_ratios=(curves, 0.6 + bars))
    target = most_telling_target(comparison)
    panels = 1 if target is None else 2
    upper = halves[0].subgridspec(1, panels, width_ratios=(1.4, 1)[:panels])
    lower = halves[1].subgridspec(1, 2)

    def panel(place: Any, title: str) -> Any:
        axes = figure.add_subplot(place)
        axes.set_title(title, loc="left")
        return axes

    over_time(panel(upper[0], "Learning"), comparison)
    if target is not None:
        target_bars(panel(upper[1], "Time to target"), comparison, target)
    waiting_bars(panel(lower[0], "Waiting"), comparison)
    other = panel(lower[1], "Work by device" if target is None else "Data to target")
    if target is not None:
        data_bars(other, comparison, target)
    else:
        kinds = step_bars(other, comparison)
        other.legend(handles=kinds, loc="center left", bbox_to_anchor=(1, 0.5))
    other.tick_params(labelleft=False)
    figure.supxlabel(spread_note(comparison), fontsize=7, color=QUIET)
    return figure


def overview_words(comparison: Comparison) -> str:
    """What the panels of the overview show, for its caption."""
    target = most_telling_target(comparison)
    learning = f"Test {comparison.metric} over virtual time"
    waiting = "mean waiting time per round"
    if target is None:
        return f"{learning}, {waiting}, and local steps by device kind"
    goal = _target_text(target, comparison.metric)
    return f"{learning}, time to {goal}, {waiting}, and data that all workers send until {goal}"


def _legend_columns(comparison: Comparison, width: float, most: int) -> int:
    """As many columns as fit into a width in inches."""
    names = [line for group in comparison.groups for line in _wrapped(group.name, LEGEND_LETTERS)]
    widest = 0.5 + LETTER * max(map(len, names))
    return max(1, min(most, int(width / widest)))


def _legend_lines(comparison: Comparison, columns: int) -> int:
    """How many lines of text a legend has, one above the other."""
    lines = [len(_wrapped(group.name, LEGEND_LETTERS)) for group in comparison.groups]
    return -(-len(lines) // columns) * max(lines)


def _bars_height(comparison: Comparison) -> float:
    """Inches of all rows: a long name takes several lines."""
    lines = max(len(_wrapped(group.name, BAR_LETTERS)) for group in comparison.groups)
    return max(BAR_HEIGHT, 0.03 + NAME_LINE * lines) * len(comparison.groups)


def _wrapped(name: str, letters: int) -> list[str]:
    """The name in lines, broken after commas where that is enough: "lr 0.4" stays together."""
    parts = name.split(", ")
    joined = [part.replace(" ", UNBROKEN) if len(part) < letters else part for part in parts]
    lines = textwrap.wrap(", ".join(joined), letters) or [name]
    return [line.replace(UNBROKEN, " ") for line in lines]


def over_time(axes: Any, comparison: Comparison) -> None:
    _curves(axes, comparison, lambda run: run.clock, held=True)
    axes.set_xlabel("virtual time (s)")


def over_rounds(axes: Any, comparison: Comparison) -> None:
    _curves(axes, comparison, lambda run: run.rounds, held=False)
    axes.set_xlabel("round")
    axes.xaxis.get_major_locator().set_params(integer=True)


def curve_handles(comparison: Comparison) -> list[Any]:
    chosen = _styles(comparison)
    texts = {g.label: "\n".join(_wrapped(g.name, LEGEND_LETTERS)) for g in comparison.groups}
    return [key(text, **line_options(chosen[label])) for label, text in texts.items()]


def value_bars(
    axes: Any,
    comparison: Comparison,
    value: Callable[[RunSummary], float | None],
    *,
    target: bool = False,
) -> None:
    """A horizontal bar per label with its interval and seeds, its number at the right; of a
    `target`, how many seeds reached it."""
    groups = comparison.groups
    chosen = _styles(comparison)
    numbers = [group.numbers(value) for group in groups]
    limit = _limit(numbers)
    decimals = decimals_for(number for values in numbers for number in values)
    for row, (group, values) in enumerate(zip(groups, numbers, strict=True)):
        spread = interval(values)
        if spread is None:
            text = "not reached" if target and group.finished else "no finished run"
            axes.text(0.01 * limit, row, text, va="center", color=QUIET, style="italic")
            continue
        style = chosen[group.label]
        axes.barh(
            row, spread.mean, height=0.62 if len(groups) > 3 else 0.45, color=style.color, zorder=2
        )
        _whisker(axes, row, spread, limit)
        if spread.high is not None and spread.mean > 0:  # the seeds as dots
            dots = marker("white", size=2.6)
            axes.plot(values, np.full(len(values), row - 0.17), "o", **dots, zorder=4)
        text = with_spread(spread, decimals)
        if target and len(values) < len(group.finished):
            text = f"{fixed(spread.mean, decimals)} ({len(values)}/{len(group.finished)})"
        right_text(axes, row, text, gap=4)
    _rows(axes, [group.name for group in groups])
    axes.set_xlim(0, limit)
    if not any(numbers):
        axes.set_xticks([])


def target_bars(axes: Any, comparison: Comparison, target: str) -> None:
    value_bars(axes, comparison, lambda run: run.time_to_target.get(target), target=True)
    axes.set_xlabel(f"virtual time to {_target_text(target, comparison.metric)} (s)")


def data_bars(axes: Any, comparison: Comparison, target: str) -> None:
    """What all workers together send until a target is reached."""

    def value(run: RunSummary, unit: float = 1.0) -> float | None:
        size = run.bytes_to_target.get(target)
        return None if size is None else size / unit

    sizes = [size for group in comparison.groups for size in group.numbers(value)]
    unit, name = (1e9, "GB") if max(sizes, default=0) >= 1e9 else (1e6, "MB")
    value_bars(axes, comparison, lambda run: value(run, unit), target=True)
    axes.set_xlabel(f"sent to {_target_text(target, comparison.metric)} ({name})")


def waiting_bars(axes: Any, comparison: Comparison) -> None:
    value_bars(axes, comparison, lambda run: run.mean_waiting_time)
    axes.set_xlabel("mean waiting time per round (s)")


def step_bars(axes: Any, comparison: Comparison) -> list[Any]:
    """Mean local steps per round, by device kind. Returns the legend's handles."""
    from matplotlib.patches import Patch

    kinds = comparison.kinds
    styles = device_styles(kinds)
    height = 0.78 / max(1, len(kinds))
    edge: Any = {"edgecolor": INK, "linewidth": 0.4}
    handles = []
    for k, kind in enumerate(kinds):
        offset = (k - (len(kinds) - 1) / 2) * height
        for row, group in enumerate(comparison.groups):
            steps = [run.steps[kind] for run in group.finished if kind in run.steps]
            if steps:
                bar = {"height": height, "color": styles[kind].color, "zorder": 2, **edge}
                axes.barh(row + offset, float(np.mean(steps)), **bar)
        handles.append(Patch(facecolor=styles[kind].color, label=kind, **edge))
    _rows(axes, [group.name for group in comparison.groups])
    axes.set_xlim(left=0)
    axes.set_xlabel("mean local steps per round")
    return handles


def spread_note(comparison: Comparison) -> str:
    """What whiskers, bands and dots mean; empty where there is only one seed."""
    seeds = max(len(group.finished) for group in comparison.groups)
    if seeds < 2:
        return ""
    return f"mean and 95 % interval over {seeds} seeds; dots: single seeds"


def most_telling_target(comparison: Comparison) -> str | None:
    return telling_target(run.summary for group in comparison.groups for run in group.runs)


def _curves(
    axes: Any, comparison: Comparison, x: Callable[[RunCurves], FloatArray], *, held: bool
) -> None:
    """One curve per label; `held` values stay until the next evaluation."""
    chosen = _styles(comparison)
    scale = 100.0 if comparison.metric == ACCURACY else 1.0
    drawstyle = "steps-post" if held else "default"
    shown = []
    for index, group in enumerate(comparison.groups):
        style = chosen[group.label]
        line = line_options(style)
        curve = mean_curve(group.finished, x)
        if curve is not None:
            shown.append(scale * curve.mean)
            edge: dict[str, Any] = {"markeredgecolor": "white", "markeredgewidth": 0.4}
            # Shifted, so that the curves' markers do not cover each other.
            step = max(1, len(curve.x) // MARKERS_PER_CURVE)
            edge["markevery"] = ((index * step // 4) % step, step)
            axes.plot(curve.x, scale * curve.mean, drawstyle=drawstyle, **edge, **line)
            band: Any = {"color": style.color, "alpha": 0.1, "linewidth": 0, "zorder": 1.5}
            band["step"] = "post" if held else None
            axes.fill_between(curve.x, scale * curve.low, scale * curve.high, **band)
        else:  # without a common time, as after a single test: every run by itself
            for run in (run for run in group.finished if run.values.size):
                shown.append(scale * run.values)
                thin = {**line, "linewidth": 0.7}
                axes.plot(x(run), scale * run.values, drawstyle=drawstyle, **thin)
        for run in group.unfinished:
            if run.values.size:
                shown.append(scale * run.values)
                thin = {"drawstyle": "steps-post", "linewidth": 0.7, "zorder": 2}
                axes.plot(x(run), shown[-1], color=style.color, **thin)
                cross = {"markersize": 6, "markeredgewidth": 1.6, "zorder": 6}
                axes.plot(x(run)[-1:], shown[-1][-1:], "x", color=style.color, **cross)
    if shown:
        _limits(axes, shown, comparison, scale)
    _target_lines(axes, comparison, scale)
    unit = " (%)" if comparison.metric == ACCURACY else ""
    axes.set_ylabel(f"test {comparison.metric}{unit}")
    axes.set_xlim(left=0)


def _styles(comparison: Comparison) -> LineStyles:
    return line_styles([group.label for group in comparison.groups])


def _limits(axes: Any, curves: Sequence[FloatArray], comparison: Comparison, scale: float) -> None:
    """From somewhat below the lowest target, with every curve's end visible; bands may be cut."""
    values = np.concatenate(curves)
    values = values[np.isfinite(values)]
    if not values.size:
        return
    low, high = float(values.min()), float(values.max())
    least = LEAST_SPAN * (scale if comparison.metric == ACCURACY else abs(high) or 1.0)
    if high - low < least:  # one test, or equal ones: the ticks would differ in the tenth digit
        low, high = high - least, high + least
    ends = [float(curve[-1]) for curve in curves if np.isfinite(curve[-1])]
    near = [scale * float(t) for t in comparison.targets]
    span = max(high - low, 1e-9)
    near = [target for target in near if low - span / 2 <= target <= high + span / 2]
    low, high = min([low, *near]), max([high, *near])
    if near and min(near) < high:
        low = max(low, min([min(near) - BELOW * (high - min(near)), *ends]))
    margin = 0.05 * max(high - low, 1e-9)
    top = high + margin
    if comparison.metric == ACCURACY:
        low, top = max(low, margin), min(top, 100.8)
    axes.set_ylim(low - margin, top)
    axes.ticklabel_format(axis="y", useOffset=False)


def _target_lines(axes: Any, comparison: Comparison, scale: float) -> None:
    """The visible targets, the highest first; one too close to another is left out."""
    low, high = axes.get_ylim()
    last = np.inf
    for target in reversed(comparison.targets):
        level = scale * float(target)
        if not low <= level <= high or last - level < APART * (high - low):
            continue
        last = level
        axes.axhline(level, color=QUIET, linewidth=0.7, dashes=(2, 2), zorder=1)
        right_text(axes, level, target_name(target, comparison.metric), gap=3, color=QUIET)


def _target_text(target: str, metric: str) -> str:
    name = target_name(target, metric)
    return name if metric == ACCURACY else f"{metric} {name}"


def _limit(numbers: Sequence[Sequence[float]]) -> float:
    """How far the axis goes: all seeds, and the whiskers unless they are very long."""
    largest = max((number for values in numbers for number in values), default=0.0)
    if largest <= 0:
        return 1.0
    highs = [spread.high or 0.0 for values in numbers if (spread := interval(values)) is not None]
    return min(ROOM * largest, 1.05 * max([largest, *highs]))


def _whisker(axes: Any, row: int, spread: Interval, limit: float) -> None:
    if spread.low is None or spread.high is None or spread.low == spread.high:
        return
    low, high = max(0.0, spread.low), min(limit, spread.high)
    axes.plot([low, high], [row, row], color=INK, linewidth=0.9, zorder=3)
    if spread.low > 0:
        axes.plot([low], [row], "|", color=INK, markersize=5, zorder=3)
    beyond = spread.high > limit
    axes.plot([high], [row], ">" if beyond else "|", color=INK, markersize=3.5 if beyond else 5)


def _rows(axes: Any, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), ["\n".join(_wrapped(name, BAR_LETTERS)) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    grid_lines(axes, "x")
    axes.spines["left"].set_visible(False)
