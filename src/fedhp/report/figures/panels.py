"""The panels of comparison figures, drawn on axes that are given: curves and bars.

Means and 95 % intervals are over the finished seeds; every single seed shows as a dot, and a
run that did not finish as a thin line that ends in a cross.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from fedhp.record.reader import RunSummary
from fedhp.record.statistics import Interval, interval
from fedhp.report.figures.style import FAINT, INK, QUIET, Look, device_looks, looks
from fedhp.report.formatting import ACCURACY, decimals_for, fixed, target_name
from fedhp.report.groups import Comparison, RunCurves, mean_curve
from fedhp.report.tables import with_spread
from fedhp.types import FloatArray

Looks: TypeAlias = Mapping[str, Look]

MARKS = 7  # markers along a curve
BELOW = 1.5  # the curves' axis goes so many times (best - lowest target) below that target
APART = 0.075  # of the axis between two targets' names, so that both can be read
ROOM = 1.6  # a whisker may widen the axis by this factor; longer ones end in an arrow


def over_time(axes: Any, comparison: Comparison, *, styles: Looks | None = None) -> None:
    """Test result against virtual time, targets marked."""
    _curves(axes, comparison, lambda run: run.clock, held=True, styles=styles)
    axes.set_xlabel("virtual time (s)")


def over_rounds(axes: Any, comparison: Comparison) -> None:
    """Test result against rounds, targets marked."""
    _curves(axes, comparison, lambda run: run.rounds, held=False)
    axes.set_xlabel("round")
    axes.xaxis.get_major_locator().set_params(integer=True)


def curve_handles(comparison: Comparison, *, styles: Looks | None = None) -> list[Any]:
    """The legend's entries of the curves, one per label."""
    from matplotlib.lines import Line2D

    chosen = _chosen(comparison, styles)
    return [
        Line2D([], [], label=group.name, **_line(chosen[group.label]))
        for group in comparison.groups
    ]


def value_bars(
    axes: Any,
    comparison: Comparison,
    value: Callable[[RunSummary], float | None],
    *,
    missing: str = "no finished run",
    share_reached: bool = False,
    styles: Looks | None = None,
) -> None:
    """A horizontal bar per label with its interval and seeds; the numbers stand beside it."""
    groups = comparison.groups
    chosen = _chosen(comparison, styles)
    numbers = [group.numbers(value) for group in groups]
    limit = _limit(numbers)
    decimals = decimals_for(number for each in numbers for number in each)
    for place, (group, mine) in enumerate(zip(groups, numbers, strict=True)):
        found = interval(mine)
        if found is None:
            text = missing if group.finished else "no finished run"
            axes.text(0.01 * limit, place, text, va="center", color=QUIET, style="italic")
            continue
        look = chosen[group.label]
        axes.barh(
            place, found.mean, height=0.62 if len(groups) > 3 else 0.45, color=look.color, zorder=2
        )
        _whisker(axes, place, found, limit)
        if found.high is not None and found.mean > 0:
            _seed_dots(axes, place, mine)
        text = with_spread(found, decimals)
        if share_reached and len(mine) < len(group.finished):
            text = f"{fixed(found.mean, decimals)} ({len(mine)}/{len(group.finished)})"
        _margin_text(axes, place, text)
    _rows(axes, [group.name for group in groups])
    axes.set_xlim(0, limit)
    if not any(numbers):
        axes.set_xticks([])


def target_bars(axes: Any, comparison: Comparison, target: str) -> None:
    """Virtual time until a target is reached."""

    def value(run: RunSummary) -> float | None:
        return run.time_to_target.get(target)

    value_bars(axes, comparison, value, missing="not reached", share_reached=True)
    axes.set_xlabel(f"virtual time to {_target_text(target, comparison.metric)} (s)")


def waiting_bars(axes: Any, comparison: Comparison, *, styles: Looks | None = None) -> None:
    """Mean waiting time per round."""
    value_bars(axes, comparison, lambda run: run.mean_waiting_time, styles=styles)
    axes.set_xlabel("mean waiting time per round (s)")


def step_bars(axes: Any, comparison: Comparison) -> list[Any]:
    """Mean local steps per round, by device kind. Returns the legend's handles."""
    kinds = comparison.kinds
    styles = device_looks(kinds)
    height = 0.78 / max(1, len(kinds))
    handles = []
    for k, kind in enumerate(kinds):
        offset = (k - (len(kinds) - 1) / 2) * height
        for place, group in enumerate(comparison.groups):
            found = [run.steps[kind] for run in group.finished if kind in run.steps]
            if found:
                axes.barh(
                    place + offset,
                    float(np.mean(found)),
                    height=height,
                    color=styles[kind].color,
                    edgecolor=INK,
                    linewidth=0.4,
                    zorder=2,
                )
        handles.append(_patch(styles[kind].color, kind))
    _rows(axes, [group.name for group in comparison.groups])
    axes.set_xlim(left=0)
    axes.set_xlabel("mean local steps per round")
    return handles


def spread_note(comparison: Comparison) -> str:
    """What whiskers, bands and dots mean; nothing where there is one seed only."""
    seeds = max(len(group.finished) for group in comparison.groups)
    if seeds < 2:
        return ""
    return f"mean and 95 % interval over {seeds} seeds; dots: single seeds"


def best_known_target(comparison: Comparison) -> str | None:
    """The target that tells the most: reached by most algorithms, of these the highest."""

    def reached_by(target: str) -> int:
        return sum(
            any(run.summary.time_to_target.get(target) is not None for run in group.finished)
            for group in comparison.groups
        )

    return max(
        comparison.targets, key=lambda target: (reached_by(target), float(target)), default=None
    )


def _curves(
    axes: Any,
    comparison: Comparison,
    x: Callable[[RunCurves], FloatArray],
    *,
    held: bool,
    styles: Looks | None = None,
) -> None:
    """One curve per label; `held` values stay until the next evaluation."""
    chosen = _chosen(comparison, styles)
    scale = 100.0 if comparison.metric == ACCURACY else 1.0
    shown = []
    for place, group in enumerate(comparison.groups):
        look = chosen[group.label]
        curve = mean_curve(group.finished, x)
        if curve is not None:
            shown.append(scale * curve.mean)
            axes.plot(
                curve.x,
                scale * curve.mean,
                drawstyle="steps-post" if held else "default",
                markevery=_marks(len(curve.x), place),
                markeredgecolor="white",
                markeredgewidth=0.4,
                **_line(look),
            )
            axes.fill_between(
                curve.x,
                scale * curve.low,
                scale * curve.high,
                step="post" if held else None,
                color=look.color,
                alpha=0.1,
                linewidth=0,
                zorder=1.5,
            )
        for run in group.unfinished:
            if run.values.size:
                shown.append(scale * run.values)
                _unfinished(axes, x(run), scale * run.values, look)
    if shown:
        _limits(axes, shown, comparison, scale)
    _target_lines(axes, comparison, scale)
    unit = " (%)" if comparison.metric == ACCURACY else ""
    axes.set_ylabel(f"test {comparison.metric}{unit}")
    axes.set_xlim(left=0)


def _chosen(comparison: Comparison, styles: Looks | None) -> Looks:
    return looks([group.label for group in comparison.groups]) if styles is None else styles


def _unfinished(axes: Any, x: FloatArray, y: FloatArray, look: Look) -> None:
    axes.plot(x, y, drawstyle="steps-post", color=look.color, linewidth=0.7, zorder=2)
    axes.plot(x[-1:], y[-1:], "x", color=look.color, markersize=6, markeredgewidth=1.6, zorder=6)


def _limits(axes: Any, curves: Sequence[FloatArray], comparison: Comparison, scale: float) -> None:
    """From somewhat below the lowest target, every curve's end in sight; bands may leave."""
    values = np.concatenate(curves)
    values = values[np.isfinite(values)]
    if not values.size:
        return
    low, high = float(values.min()), float(values.max())
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


def _target_lines(axes: Any, comparison: Comparison, scale: float) -> None:
    """The targets in sight, the highest first; one too close to another is left out."""
    low, high = axes.get_ylim()
    last = np.inf
    for target in reversed(comparison.targets):
        level = scale * float(target)
        if not low <= level <= high or last - level < APART * (high - low):
            continue
        last = level
        axes.axhline(level, color=QUIET, linewidth=0.7, dashes=(2, 2), zorder=1)
        axes.annotate(
            target_name(target, comparison.metric),
            (1, level),
            xycoords=("axes fraction", "data"),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            color=QUIET,
            fontsize=7,
        )


def _target_text(target: str, metric: str) -> str:
    name = target_name(target, metric)
    return name if metric == ACCURACY else f"{metric} {name}"


def _line(look: Look) -> dict[str, Any]:
    return {
        "color": look.color,
        "linestyle": look.dashes,
        "linewidth": look.width,
        "marker": look.marker,
        "zorder": look.order,
    }


def _patch(color: str, label: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(facecolor=color, edgecolor=INK, linewidth=0.4, label=label)


def _marks(points: int, place: int) -> tuple[int, int]:
    """Where the markers go: first and step, shifted so that curves do not cover each other's."""
    step = max(1, points // MARKS)
    return (place * step // 4) % step, step


def _limit(numbers: Sequence[Sequence[float]]) -> float:
    """How far the axis goes: all seeds, and the whiskers unless they are very long."""
    largest = max((number for each in numbers for number in each), default=0.0)
    if largest <= 0:
        return 1.0
    highs = [found.high or 0.0 for each in numbers if (found := interval(each)) is not None]
    return min(ROOM * largest, 1.05 * max([largest, *highs]))


def _whisker(axes: Any, place: int, found: Interval, limit: float) -> None:
    if found.low is None or found.high is None or found.low == found.high:
        return
    low, high = max(0.0, found.low), min(limit, found.high)
    axes.plot([low, high], [place, place], color=INK, linewidth=0.9, zorder=3)
    if found.low > 0:
        axes.plot([low], [place], "|", color=INK, markersize=5, zorder=3)
    beyond = found.high > limit
    axes.plot([high], [place], ">" if beyond else "|", color=INK, markersize=3.5 if beyond else 5)


def _seed_dots(axes: Any, place: int, numbers: Sequence[float]) -> None:
    axes.plot(
        numbers,
        np.full(len(numbers), place - 0.17),
        "o",
        markersize=2.6,
        markerfacecolor="white",
        markeredgecolor=INK,
        markeredgewidth=0.5,
        zorder=4,
    )


def _margin_text(axes: Any, place: int, text: str) -> None:
    axes.annotate(
        text,
        (1, place),
        xycoords=("axes fraction", "data"),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        fontsize=7,
    )


def _rows(axes: Any, names: Sequence[str]) -> None:
    """One row per label, the first on top, no marks on the axis."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=FAINT, linewidth=0.5, zorder=0)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
