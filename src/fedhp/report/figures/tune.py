"""The picture of a tuning: time, bytes and accuracy against each other, with the Pareto fronts.

Every trial is faint, the tuned and the default settings on the held-out seeds are strong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedhp.engine.runs.run import run_storage_errors
from fedhp.engine.runs.tune import SeededRuns
from fedhp.files import write_file
from fedhp.record.statistics import Interval, interval
from fedhp.report.figures.style import (
    PAGE,
    QUIET,
    LineStyle,
    grid_lines,
    key,
    line_styles,
    marker,
    new_figure,
    paper_style,
    save_figure,
)
from fedhp.report.formatting import ACCURACY, data_size, label_base, target_name
from fedhp.report.tune import (
    TuneResult,
    final_result,
    sent_to_target,
    time_to_target,
    trials_csv,
    tune_markdown,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOGARITHMIC = 8  # an axis whose largest value is so many times its smallest is logarithmic
MARGIN = 0.08  # of an axis, on either side of the values
WIDEST_REACH = 0.3  # of the values' span: how far an axis goes to show an interval
ROOM_FOR_NAMES = 110  # letters in a line of the legend
MARGIN_TEXT: Any = {"rotation": 90, "va": "top", "ha": "left", "fontsize": 7, "color": QUIET}
Quantity = Callable[[SeededRuns], Interval | None]


@dataclass(frozen=True, slots=True)
class Form:
    """How trials and results are told apart; the colour and the shape are the algorithm's."""

    meaning: str
    size: float
    alpha: float = 1.0
    hollow: bool = False
    order: float = 3.0


FORMS = {
    "tuned": Form("tuned, held-out seeds (95 % interval)", 8.5, order=6.0),
    "default": Form("defaults, held-out seeds", 6.0, hollow=True, order=5.0),
    "trial": Form("trial, tuning seeds", 4.5, alpha=0.35),
}


@dataclass(frozen=True, slots=True)
class Axis:
    name: str
    of: Quantity
    sign: int = 1  # 1: less is better, -1: more is
    write: Callable[[float], str] = "{:g}".format  # its ticks


@dataclass(frozen=True, slots=True)
class Point:
    label: str
    x: Interval
    y: Interval


def save_tuning(result: TuneResult, *, figures: bool = True) -> Path | None:
    """Write tune.json, tune.md, trials.csv and the figure; returns the path of the figure."""
    folder = result.found.tuning.folder
    with run_storage_errors(folder):
        write_file(folder / "tune.json", json.dumps(result.as_json(), indent=1).encode())
        write_file(folder / "tune.md", tune_markdown(result).encode())
        write_file(folder / "trials.csv", trials_csv(result).encode())
        if figures:
            return save_figure(tune_figure(result), folder / "figures", "pareto")[0]
    return None


@paper_style()
def tune_figure(result: TuneResult) -> Figure:
    """Time against bytes and against the final result; without a target bytes against result."""
    panels = _panels(result)
    labels = [algorithm.label for algorithm in result.found.tuning.algorithms]
    styles = _styles(labels)
    look = FORMS["tuned"]
    handles = [key(result.names[label], **_marker(s, look)) for label, s in styles.items()]
    longest = max(len(name) for name in result.names.values())
    columns = max(1, min(len(handles), ROOM_FOR_NAMES // longest))
    rows = -(-len(handles) // columns)
    figure = new_figure(PAGE, 2.9 + 0.17 * rows)
    for axes, (x, y) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw(axes, result, styles, x, y)
    legend: Any = {"handlelength": 1.4, "columnspacing": 1.4}
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, **legend)
    figure.legend(handles=_form_handles(), loc="outside lower center", ncols=4, **legend)
    return figure


def _styles(labels: Sequence[str]) -> dict[str, LineStyle]:
    """An algorithm that is there once looks as everywhere, whatever the entry fixes."""
    bases = [label_base(label) for label in labels]
    keys = [
        base if bases.count(base) == 1 else label for label, base in zip(labels, bases, strict=True)
    ]
    styles = line_styles(keys)
    return {label: styles[key] for label, key in zip(labels, keys, strict=True)}


def _panels(result: TuneResult) -> list[tuple[Axis, Axis]]:
    metric = result.metric
    name = "final accuracy (%)" if metric == ACCURACY else f"final {metric}"
    final = Axis(name, _percent if metric == ACCURACY else final_result, -1)
    if result.target is None:
        all_sent = Axis(
            "data sent", lambda m: interval([run.bytes_sent for run in m.runs]), write=_size
        )
        return [(all_sent, final)]
    goal = target_name(result.target, metric)
    time = Axis(f"time to {goal} (s)", time_to_target)
    sent = Axis(f"data sent until {goal}", sent_to_target, write=_size)
    return [(time, sent), (time, final)]


def _size(value: float) -> str:
    return re.sub(r"\.0+ ", " ", data_size(value))


def _percent(measured: SeededRuns) -> Interval | None:
    return interval([100 * value for value in measured.finals])


def _draw(axes: Any, result: TuneResult, styles: dict[str, LineStyle], x: Axis, y: Axis) -> None:
    measured = _measured(result)
    drawn = [
        (form, point) for label, runs, form in measured if (point := _point(label, runs, x, y))
    ]
    trials = [point for form, point in drawn if form is FORMS["trial"]]
    rows = [(form, point) for form, point in drawn if form is not FORMS["trial"]]
    grid_lines(axes, "both")
    axes.set_xlabel(x.name)
    axes.set_ylabel(y.name)
    if not drawn:
        axes.text(0.5, 0.5, "no trial reached the target", ha="center", transform=axes.transAxes)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    # What missed the target is in the panel that shows results.
    missed = [
        (label, spread.mean, form)
        for label, runs, form in measured
        if y.sign < 0 and runs.rank[0] == 1 and (spread := y.of(runs))
    ]
    tuned = [point for form, point in rows if form is FORMS["tuned"]]
    across = [point.x.mean for _, point in drawn]
    # Of what missed the target, only the results on the held-out seeds decide the scale.
    up = [final for _, final, form in missed if form is not FORMS["trial"]]
    up += [point.y.mean for _, point in drawn]
    _set_scale(axes, "x", _with_ends(across, [point.x for point in tuned]), x)
    _set_scale(axes, "y", _with_ends(up, [point.y for point in tuned]), y)
    _draw_front(axes, trials, x, y)
    for point in trials:
        axes.plot(point.x.mean, point.y.mean, **_marker(styles[point.label], FORMS["trial"]))
    for label, final, form in missed:
        _draw_missed(axes, styles[label], final, form)
    if missed:
        axes.text(1.05, 1.0, "target not reached", **MARGIN_TEXT, transform=axes.transAxes)
    for form, point in rows:
        _draw_compared(axes, styles[point.label], point, form)


def _measured(result: TuneResult) -> list[tuple[str, SeededRuns, Form]]:
    """Everything that was run, the trials first."""
    trials = [(trial.algorithm, trial.measured, FORMS["trial"]) for trial in result.found.trials]
    return trials + [
        (row.algorithm.label, row.compared, FORMS["tuned" if row.tuned else "default"])
        for row in result.rows()
    ]


def _point(label: str, measured: SeededRuns, x: Axis, y: Axis) -> Point | None:
    """Where settings are in a panel; None if they failed or missed the target with a seed."""
    if measured.rank[0]:
        return None
    across, up = x.of(measured), y.of(measured)
    return None if across is None or up is None else Point(label, across, up)


def _with_ends(values: Sequence[float], spreads: Sequence[Interval]) -> list[float]:
    """The values and the ends of intervals, as far as these are not a long way from the values."""
    least, most = min(values), max(values)
    reach = WIDEST_REACH * (most - least)
    low = least - reach if least <= 0 else max(least - reach, least / 2)
    ends = [end for spread in spreads for end in (spread.low, spread.high) if end is not None]
    return [*values, *(min(max(end, low), most + reach) for end in ends)]


def _set_scale(axes: Any, letter: str, values: Sequence[float], quantity: Axis) -> None:
    """Limits around the values of the x or y axis; logarithmic if they differ much."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axis = axes.xaxis if letter == "x" else axes.yaxis
    low, high = min(values), max(values)
    if quantity.sign > 0 and low > 0 and high >= LOGARITHMIC * low:
        factor = (high / low) ** MARGIN * 1.1
        axes.set(**{f"{letter}scale": "log", f"{letter}lim": (low / factor, high * factor)})
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_locator(NullLocator())
    else:
        room = MARGIN * (high - low) or 0.1 * abs(high) or 1.0
        bottom = max(0.0, low - room) if low >= 0 else low - room
        top = min(100.0, high + room) if "(%)" in quantity.name else high + room
        axes.set(**{f"{letter}lim": (bottom, top)})
        axis.set_major_locator(MaxNLocator(5))
    axis.set_major_formatter(FuncFormatter(lambda value, _: quantity.write(value)))


def _draw_front(axes: Any, points: Sequence[Point], x: Axis, y: Axis) -> None:
    """The trials that no other beats in both numbers, joined by a line of steps."""
    front = pareto_front([(x.sign * p.x.mean, y.sign * p.y.mean) for p in points])
    across = [x.sign * first for first, _ in front]
    up = [y.sign * second for _, second in front]
    if front:
        # To the edges of the panel: everything above and right of the line is beaten.
        left_end = axes.get_ylim()[1] if y.sign > 0 else axes.get_ylim()[0]
        across = [across[0], *across, axes.get_xlim()[1]]
        up = [left_end, *up, up[-1]]
        axes.step(across, up, where="post", color=QUIET, linewidth=0.9, linestyle="--", zorder=2)


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other point beats, where less is better; by their first number."""
    front: list[tuple[float, float]] = []
    for point in sorted(set(points)):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front


def _draw_missed(axes: Any, style: LineStyle, final: float, form: Form) -> None:
    """In the margin right of the panel; an arrow if it lies below."""
    bottom = axes.get_ylim()[0]
    below = {"marker": 7} if final < bottom else {}  # a caret whose tip is at the point
    options = {**_marker(style, form), **below, "transform": axes.get_yaxis_transform()}
    axes.plot(1.02, max(final, bottom), **options, clip_on=False)


def _draw_compared(axes: Any, style: LineStyle, point: Point, form: Form) -> None:
    across, up = (
        [0.0 if spread.high is None else spread.high - spread.mean] for spread in (point.x, point.y)
    )
    options = _marker(style, form)
    options |= {"elinewidth": 1.2 if form is FORMS["tuned"] else 0.7, "capsize": 2.5}
    axes.errorbar(point.x.mean, point.y.mean, xerr=across, yerr=up, **options)


def _marker(style: LineStyle, form: Form) -> dict[str, Any]:
    size = form.size * (1.5 if style.marker == "*" else 1.0)  # a star needs more room
    edged = marker(style.color, edge="white", size=size)
    if form.hollow:
        edged = marker("white", edge=style.color, width=0.9, size=size)
    shape = {"color": style.color, "marker": style.marker, "linestyle": "none"}
    return {**shape, **edged, "alpha": form.alpha, "zorder": form.order}


def _form_handles() -> list[Any]:
    dot = LineStyle(QUIET, "-", "o")
    forms = [key(form.meaning, **_marker(dot, form)) for form in FORMS.values()]
    front: Any = {"color": QUIET, "linestyle": "--", "linewidth": 0.9}
    return [*forms, key("Pareto front of the trials", **front)]
