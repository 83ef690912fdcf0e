"""The panels of the paper's figures, a data set each, drawn on axes that are given.

Means have the 95 % interval over the seeds as a band or whisker; one seed has none. An open
marker with an arrow stands where a run ended before it reached its target in every seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedhp.record.reader import target_key
from fedhp.record.statistics import Interval, interval
from fedhp.report.claims.judging import FILL
from fedhp.report.claims.questions import steps_of
from fedhp.report.claims.runs import SuiteRuns, final_accuracy, time_to
from fedhp.report.figures.panels import over_time, waiting_bars
from fedhp.report.figures.style import FAINT, INK, QUIET, Look, looks
from fedhp.report.formatting import ACCURACY, target_name
from fedhp.report.groups import Comparison, Group, RunCurves
from fedhp.report.tables import spread_evenly

if TYPE_CHECKING:
    from fedhp.engine.runs.suite import PaperSet

MOST_TARGETS = 4  # in a panel
SPREAD = 0.76  # of a group's place is taken by its marks
WIDE = 15.0  # times that differ by more than this factor stand on a logarithmic axis
FAR = 3.0  # the paper's marks may widen an axis by this factor, not more
OPEN: Any = {
    "markersize": 4.5,
    "markerfacecolor": "white",
    "markeredgecolor": INK,
    "markeredgewidth": 0.9,
}
TARGET_MARKS = ("o", "s", "^", "D")
TARGET_SHADES = ("#9ecae1", "#4292c6", "#08519c", "#08306b")  # higher targets are darker


@dataclass(frozen=True, slots=True)
class Panel:
    """A data set's runs and how their labels look."""

    all_runs: SuiteRuns
    here: PaperSet
    labels: tuple[str, ...]
    styles: Mapping[str, Look]

    def runs(self, label: str, skew: float) -> list[RunCurves]:
        """The finished runs of a label."""
        return self.all_runs.runs(self.here.key, label, skew=skew)

    def seeds(self, skews: Sequence[float]) -> list[int]:
        """How many seeds its labels have at these levels, each number once; zeros left out."""
        found = {len(self.runs(label, skew)) for label in self.labels for skew in skews}
        return sorted(found - {0})

    def comparison(self, skew: float) -> Comparison:
        """The runs at one level, as the other figures take them."""
        groups = [Group(label, tuple(self.runs(label, skew))) for label in self.labels]
        metrics = [run.metric for group in groups for run in group.runs]
        targets = tuple(target_key(target) for target in self.here.targets)
        return Comparison(tuple(groups), metrics[0] if metrics else ACCURACY, targets, ())


def paper_looks(labels: Sequence[str]) -> dict[str, Look]:
    """FedHP as the paper has it (`fill`) gets the strongest look; the others keep theirs."""
    plain = FILL.partition(":")[0]
    if FILL not in labels or plain in labels:
        return looks(labels)
    found = looks([plain if label == FILL else label for label in labels])
    return {label: found[plain if label == FILL else label] for label in labels}


def draw_accuracy(axes: Any, panel: Panel, *, skew: float) -> None:
    """Test accuracy over virtual time."""
    over_time(axes, panel.comparison(skew), styles=panel.styles)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When each label reached each target (or ended), by their places, and the axis for it."""

    targets: list[float]
    times: dict[tuple[int, int], tuple[Interval, bool]]  # whether some seed ended without
    least: float
    limit: float

    @property
    def wide(self) -> bool:
        """Whether a linear axis would hide the short times."""
        return self.limit > WIDE * self.least


def arrivals(panel: Panel, skew: float) -> Arrivals:
    """The completion times of a panel that has runs."""
    known = {label: panel.runs(label, skew) for label in panel.labels}
    targets = [t for t in panel.here.targets if _anyone(known, t)] or panel.here.targets[:1]
    targets = [targets[i] for i in spread_evenly(len(targets), MOST_TARGETS)]
    times = {
        (place, column): _arrival(known[label], target)
        for place, label in enumerate(panel.labels)
        for column, target in enumerate(targets)
        if known[label]
    }
    means = [time.mean for time, _ in times.values()]
    highest = [time.high or time.mean for time, late in times.values() if not late]
    # Runs that ended far away without arriving must not squeeze the others.
    return Arrivals(targets, times, min(means), 1.2 * max(highest or means))


def draw_targets(axes: Any, panel: Panel, *, found: Arrivals, logarithmic: bool) -> None:
    """Completion time to each target, grouped by target."""
    targets, limit = found.targets, found.limit
    frame = (found.least / 2, limit) if logarithmic else (0.0, limit)
    for (place, column), (time, late) in found.times.items():
        x = column + _offset(place, len(panel.labels))
        _lollipop(axes, x, time, look=panel.styles[panel.labels[place]], late=late, frame=frame)
    if logarithmic:
        _log_seconds(axes)
    axes.set_xticks(range(len(targets)), [target_name(target) for target in targets])
    axes.set_xlim(-0.5, len(targets) - 0.5)
    axes.set_ylim(frame[0], limit * (1.15 if logarithmic else 1.06))
    axes.tick_params(axis="x", length=0)
    _grid(axes, "y")
    for column in range(1, len(targets)):
        axes.axvline(column - 0.5, color=FAINT, linewidth=0.5, zorder=0)
    axes.set_xlabel("target accuracy")
    axes.set_ylabel("completion time (s)")


def draw_skew(axes: Any, panel: Panel, *, skews: Sequence[float]) -> None:
    """Final accuracy against the non-IID level p."""
    span = max(skews) - min(skews) or 1.0
    for place, label in enumerate(panel.labels):
        shift = 0.045 * span * _offset(place, len(panel.labels))
        points = [
            (p + shift, found)
            for p in skews
            if (found := interval(_finals(panel.runs(label, p)))) is not None
        ]
        _errorbars(axes, points, look=panel.styles[label])
    axes.set_xticks(list(skews), [f"{p:g}" for p in skews])
    axes.set_xlim(min(skews) - 0.06 * span, max(skews) + 0.06 * span)
    _grid(axes, "y")
    axes.set_xlabel("non-IID level p")
    axes.set_ylabel("final test accuracy (%)")


def draw_waiting(axes: Any, panel: Panel, *, skew: float, paper: Mapping[str, float]) -> bool:
    """Mean waiting time; the paper's values as open diamonds. Whether all of these fit."""
    waiting_bars(axes, panel.comparison(skew), styles=panel.styles)
    axes.set_xlabel("mean waiting time (s)")
    marks = {
        place: paper[base]
        for place, label in enumerate(panel.labels)
        if (base := "fedhp" if label == FILL else label) in paper
    }
    if not marks:
        return True
    ours = axes.get_xlim()[1]
    limit = max(ours, min(1.06 * max(marks.values()), FAR * ours))
    axes.set_xlim(0, limit)
    for place, value in marks.items():
        inside = value <= limit
        axes.plot(
            [min(value, limit)], [place], "D" if inside else ">", **OPEN, clip_on=False, zorder=6
        )
    return all(value <= limit for value in marks.values())


def paper_handle() -> Any:
    """The legend's entry of the paper's values."""
    from matplotlib.lines import Line2D

    return Line2D([], [], linestyle="none", marker="D", label="the paper's value", **OPEN)


def draw_steps_accuracy(axes: Any, panel: Panel, *, skew: float, mark: int) -> None:
    """Final accuracy against the number of local steps."""
    for base, labels in _bases(panel.labels).items():
        look = paper_looks([base])[base]
        points = [
            (float(steps_of(label, panel.here)), found)
            for label in labels
            if (found := interval(_finals(panel.runs(label, skew)))) is not None
        ]
        _errorbars(axes, sorted(points, key=lambda point: point[0]), look=look)
    _steps_axis(axes, panel, mark)
    axes.set_ylabel("final test accuracy (%)")


def draw_steps_time(axes: Any, panel: Panel, *, skew: float, mark: int) -> list[Any]:
    """Completion time against the number of local steps, a curve per target; their handles."""
    handles = []
    for labels in _bases(panel.labels).values():
        ordered = sorted(labels, key=lambda label: steps_of(label, panel.here))
        known = {label: panel.runs(label, skew) for label in ordered}
        targets = [t for t in panel.here.targets if _anyone(known, t)]
        targets = [targets[i] for i in spread_evenly(len(targets), MOST_TARGETS)]
        for place, target in enumerate(targets):
            look = Look(TARGET_SHADES[place], "-", TARGET_MARKS[place])
            points = []
            for label, runs in known.items():
                times = [time for run in runs if (time := time_to(run, target)) is not None]
                found = interval(times)
                if found is not None and len(times) == len(runs):
                    points.append((float(steps_of(label, panel.here)), found))
            handles.append(_errorbars(axes, points, look=look, name=target_name(target), scale=1))
    _steps_axis(axes, panel, mark)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("completion time (s)")
    return handles


def empty_panel(axes: Any, words: str = "no finished run") -> None:
    """A panel that says why there is nothing in it."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", color=QUIET, style="italic")


def _anyone(known: Mapping[str, Sequence[RunCurves]], target: float) -> bool:
    return any(time_to(run, target) is not None for runs in known.values() for run in runs)


def _arrival(runs: Sequence[RunCurves], target: float) -> tuple[Interval, bool]:
    """When the runs reached the target, or ended; whether any ended without."""
    times = [time_to(run, target) for run in runs]
    ended = [
        run.summary.completion_time if time is None else time
        for run, time in zip(runs, times, strict=True)
    ]
    found = interval(ended)
    assert found is not None
    return found, None in times


def _finals(runs: Sequence[RunCurves]) -> list[float]:
    return [value for run in runs if (value := final_accuracy(run)) is not None]


def _bases(labels: Sequence[str]) -> dict[str, list[str]]:
    """Labels by the algorithm they are variants of."""
    found: dict[str, list[str]] = {}
    for label in labels:
        found.setdefault(label.partition(":")[0], []).append(label)
    return found


def _offset(place: int, places: int) -> float:
    """Where in its group a mark stands, from -SPREAD / 2 to SPREAD / 2."""
    return SPREAD * ((place + 0.5) / places - 0.5)


def _lollipop(
    axes: Any,
    x: float,
    found: Interval,
    *,
    look: Look,
    late: bool,
    frame: tuple[float, float],
) -> None:
    strong = look.width > 1.5
    top = min(found.mean, frame[1])
    axes.plot(
        [x, x],
        [frame[0], top],
        color=look.color,
        # On a logarithmic axis lengths mean nothing: only a thread down to the group.
        linewidth=0.8 if frame[0] else 3.0 if strong else 2.0,
        alpha=0.35 if late else 1.0,
        solid_capstyle="butt",
        zorder=2,
    )
    if late:
        axes.annotate(
            "",
            (x, top),
            xytext=(0, 9),
            textcoords="offset points",
            arrowprops={"arrowstyle": "<-", "color": look.color, "shrinkA": 0, "shrinkB": 2},
            annotation_clip=False,
        )
    elif found.low is not None and found.high is not None:
        axes.plot(
            [x, x], [max(frame[0], found.low), found.high], color=INK, linewidth=0.8, zorder=4
        )
    axes.plot(
        [x],
        [top],
        look.marker,
        markersize=5 if strong else 4,
        markerfacecolor="white" if late else look.color,
        markeredgecolor=look.color if late else "white",
        markeredgewidth=0.9 if late else 0.4,
        zorder=5,
    )


def _errorbars(
    axes: Any,
    points: Sequence[tuple[float, Interval]],
    *,
    look: Look,
    name: str = "",
    scale: float = 100.0,
) -> Any:
    means = np.array([scale * found.mean for _, found in points])
    ends = [(found.low, found.high) for _, found in points]
    reach = [
        scale * (high - low) / 2 if low is not None and high is not None else 0.0
        for low, high in ends
    ]
    return axes.errorbar(
        [x for x, _ in points],
        means,
        yerr=reach,
        label=name or None,
        color=look.color,
        linestyle=look.dashes,
        linewidth=look.width,
        marker=look.marker,
        markeredgecolor="white",
        markeredgewidth=0.4,
        elinewidth=0.8,
        capsize=1.8,
        capthick=0.8,
        zorder=look.order,
    )


def _steps_axis(axes: Any, panel: Panel, mark: int) -> None:
    """Steps on a logarithmic axis, ticks where runs are, and the paper's mark."""
    from matplotlib.ticker import FixedLocator, NullLocator

    taus = sorted({steps_of(label, panel.here) for label in panel.labels})
    axes.set_xscale("log")
    axes.set_xlim(taus[0] / 1.2, taus[-1] * 1.2)
    ticks: list[int] = []
    for tau in taus:
        if not ticks or tau / ticks[-1] > 1.3:
            ticks.append(tau)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(ticks, [str(tau) for tau in ticks])
    axes.axvline(mark, color=QUIET, linewidth=0.8, linestyle=":", zorder=1)
    axes.annotate(
        f"paper: τ = {mark}",
        (mark, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, 2),
        textcoords="offset points",
        ha="center",
        va="bottom",
        color=QUIET,
        fontsize=7,
    )
    _grid(axes, "y")
    axes.set_xlabel("local steps τ")


def _log_seconds(axes: Any) -> None:
    """A logarithmic axis of times, with plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _grid(axes: Any, axis: str) -> None:
    axes.grid(axis=axis, color=FAINT, linewidth=0.5, zorder=0)
    axes.set_axisbelow(True)
