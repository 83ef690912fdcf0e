"""The paper's figures from the finished runs of its suite, a page wide, with caption and alt text.

A figure shows all runs that it can use, for whichever figure they were run; data sets and runs
that are missing are named in the caption. Means have the 95 % interval over the seeds as a band
or whisker. An open marker with an arrow: some seed ended before it reached the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from fedhp.engine.runs.suite import paper_folder, read_checked
from fedhp.record.reader import target_key
from fedhp.record.statistics import Interval, interval
from fedhp.report.claims.judging import FILL, is_papers_own
from fedhp.report.claims.paper import PEAK, QUICKEST, WAITING
from fedhp.report.claims.questions import steps_of
from fedhp.report.claims.runs import (
    FEDHP,
    SuiteRuns,
    final_accuracy,
    known_numbers,
    time_to,
    waiting_time,
)
from fedhp.report.figures.comparison import curve_handles, over_time, waiting_bars
from fedhp.report.figures.style import (
    FAINT,
    INK,
    PAGE,
    QUIET,
    LineStyle,
    LineStyles,
    grid_lines,
    key,
    legend_above,
    line_options,
    line_styles,
    marker,
    new_figure,
    paper_style,
    plain_log,
)
from fedhp.report.formatting import (
    ACCURACY,
    count,
    final_meaning,
    label_base,
    label_name,
    listed,
    number,
    score,
    target_name,
)
from fedhp.report.groups import Comparison, Group, RunCurves
from fedhp.report.tables import spread_evenly

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedhp.engine.runs.suite import PaperFigure, PaperSet, Suite

LEGEND_COLUMNS = 5  # with more names, the legend has two rows
TITLE_LETTERS = 96  # of all titles next to each other on a page
MOST_NAMED_RUNS = 4  # unfinished runs that a caption names one by one
MOST_TARGETS = 4  # in a panel
GROUP_WIDTH = 0.76  # share of a group's place that its markers use
WIDE_TIMES = 15.0  # times that differ by more than this factor need a logarithmic axis
FAR = 3.0  # the paper's values may widen an axis by this factor, not more
OPEN_MARKER = marker("white", width=0.9, size=4.5)
WHITE_EDGE: Any = {"markeredgecolor": "white", "markeredgewidth": 0.4}
TARGET_MARKERS = ("o", "s", "^", "D")
TARGET_SHADES = ("#9ecae1", "#4292c6", "#08519c", "#08306b")  # higher targets are darker


class FigureText(BaseModel):
    model_config = ConfigDict(frozen=True)

    title: str
    claim: str  # what the paper says
    draw: Literal["accuracy", "targets", "steps", "skew", "waiting", "table"]


def read_figure_texts(names: Iterable[str], folder: Path | None = None) -> dict[str, FigureText]:
    files = folder or paper_folder()
    return {name: read_checked(FigureText, files / f"{name}.toml") for name in names}


@dataclass(frozen=True, slots=True)
class PaperDrawing:
    """A figure to save, with its caption and the alternative text for those who cannot see it."""

    name: str
    caption: str
    alt: str
    figure: Figure


def draw_figure(
    figure: PaperFigure, text: FigureText, *, suite: Suite, runs: SuiteRuns
) -> list[PaperDrawing]:
    """The drawings of a figure: none if none of its runs is finished, or if it is a table."""
    kinds: Mapping[str, Callable[[_FigureData], tuple[Figure, str, str]]] = {
        "accuracy": _accuracy,
        "targets": _targets,
        "steps": _steps,
        "skew": _skew,
        "waiting": _waiting,
    }
    if text.draw not in kinds:
        return []
    together = text.draw in ("skew", "steps")
    parts = [figure.skews] if together else [(skew,) for skew in figure.skews]
    drawings = []
    for skews in parts:
        data = _FigureData(figure, suite, runs=runs, skews=skews)
        if any(panel.seeds(skews) for panel in data.panels):
            drawn, how, alt = kinds[text.draw](data)
            name = figure.name if len(parts) == 1 else f"{figure.name}-p{skews[0]:g}"
            caption = " ".join([f"{text.title}.", how, *_notes(data, suite, runs=runs)])
            drawings.append(PaperDrawing(name, caption, f"{text.title}. {alt}", drawn))
    return drawings


class _FigureData:
    def __init__(
        self, figure: PaperFigure, suite: Suite, *, runs: SuiteRuns, skews: tuple[float, ...]
    ) -> None:
        self.figure, self.skews = figure, skews
        data_sets = [suite.sets[name] for name in figure.sets if name not in suite.missing]
        labels = tuple(
            label
            for label in figure.algorithms
            if any(runs.runs(each.key, label, skew=skew) for each in data_sets for skew in skews)
        )
        styles = paper_styles(labels)
        self.panels = [DataPanel(runs, each, labels, styles) for each in data_sets]


@paper_style()
def _accuracy(data: _FigureData) -> tuple[Figure, str, str]:
    [skew] = data.skews
    figure, drawn = _labelled_panels(data)
    for axes, panel in drawn:
        over_time(axes, panel.comparison(skew))
    _outer_labels(figure)
    how = (
        "Mean of the workers' test accuracies over virtual time; bands: 95 % interval over the "
        "seeds; dashed lines: target accuracies."
    )
    return figure, how, _alt_text(data, lambda panel, label: _final_words(panel, label, skew))


@paper_style()
def _targets(data: _FigureData) -> tuple[Figure, str, str]:
    [skew] = data.skews
    figure, drawn = _labelled_panels(data)
    times = [target_times(panel, skew) for _, panel in drawn]
    # Where a linear axis would hide the short times.
    logarithmic = any(each.limit > WIDE_TIMES * each.least for each in times)
    for (axes, panel), each in zip(drawn, times, strict=True):
        draw_targets(axes, panel, each, logarithmic=logarithmic)
    _outer_labels(figure)
    how = (
        "Completion time until the mean of the workers' test accuracies reaches a target; "
        "whiskers: 95 % interval over the seeds; open markers with an arrow: not reached in every "
        "seed, the runs ended there or later."
    )
    if logarithmic:
        how += " The time axes are logarithmic."

    def words(panel: DataPanel, label: str) -> str:
        runs = panel.runs(label, skew)
        for target in reversed(panel.data_set.targets):
            reached = known_numbers(runs, partial(time_to, target=target))
            if reached and len(reached) == len(runs):
                return f"{target_name(target)} after {number(float(np.mean(reached)))} s"
        return "no target reached in every seed" if runs else ""

    return figure, how, _alt_text(data, words)


@paper_style()
def _skew(data: _FigureData) -> tuple[Figure, str, str]:
    figure, drawn = _labelled_panels(data)
    for axes, panel in drawn:
        known = set(panel.all_runs.levels(panel.data_set.key))
        skews = [p for p in data.skews if round(p, 6) in known]
        span = max(skews) - min(skews) or 1.0
        for index, label in enumerate(panel.labels):
            shift = 0.045 * span * _offset(index, len(panel.labels))
            points = [(p + shift, spread) for p in skews if (spread := _final(panel, label, p))]
            _errorbars(axes, points, style=panel.styles[label])
        axes.set_xticks(skews, [f"{p:g}" for p in skews])
        axes.set_xlim(min(skews) - 0.06 * span, max(skews) + 0.06 * span)
        grid_lines(axes, "y")
        axes.set_xlabel("non-IID level p")
        axes.set_ylabel("final test accuracy (%)")
    _outer_labels(figure)
    how = (
        f"Final test accuracy (mean of the workers; {_final_tests(data)}) against the "
        "non-IID level p; whiskers: 95 % interval over the seeds; points of one "
        "level are drawn side by side."
    )

    def words(panel: DataPanel, label: str) -> str:
        texts = {p: text for p in data.skews if (text := _final_words(panel, label, p))}
        ends = dict.fromkeys((min(texts), max(texts))) if texts else ()
        return " and ".join(f"{texts[p]} at p = {p:g}" for p in ends)

    return figure, how, _alt_text(data, words)


@paper_style()
def _waiting(data: _FigureData) -> tuple[Figure, str, str]:
    [skew] = data.skews
    height = 0.8 + 0.2 * len(data.panels[0].labels)
    figure, drawn = _panels(data, height=height, share=0.7)  # names and numbers need room
    marked, fit = False, True
    for axes, panel in drawn:
        paper = WAITING.get(panel.data_set.stands_for, {})
        fit = draw_waiting(axes, panel, skew=skew, paper=paper) and fit
        marked = marked or bool(paper)
    _outer_labels(figure, names=True)
    how = "Mean waiting time per round; whiskers: 95 % interval over the seeds; dots: single seeds"
    if marked:
        handle = key("the paper's value", linestyle="none", marker="D", **OPEN_MARKER)
        figure.legend(handles=[handle], loc="outside lower center")
        how += "; open diamonds: the paper's values, with its own models and devices"
    how += "." if fit else "; open triangles: the paper's value is beyond the axis."

    def words(panel: DataPanel, label: str) -> str:
        waits = known_numbers(panel.runs(label, skew), waiting_time)
        return f"{number(float(np.mean(waits)))} s" if waits else ""

    return figure, how, _alt_text(data, words)


@paper_style()
def _steps(data: _FigureData) -> tuple[Figure, str, str]:
    skew = data.skews[0]
    panels = [panel for panel in data.panels if panel.seeds([skew])]
    figure = new_figure(PAGE, 0.2 + 2.2 * len(panels))
    axes = figure.subplots(len(panels), 2, squeeze=False)
    for (left, right), panel in zip(axes, panels, strict=True):
        left.set_title(panel.data_set.title, loc="left", pad=14)  # above the paper's mark
        draw_steps_accuracy(left, panel, skew)
        handles = draw_steps_time(right, panel, skew)
        if handles:
            beside: Any = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
            right.legend(handles=handles, title="target", **beside)
    bases = dict.fromkeys(label_base(label) for label in data.figure.algorithms)
    how = (
        f"{listed(map(label_name, bases))} with different numbers of local steps: final test "
        f"accuracy ({_final_tests(data)}; left) and completion time to target accuracies "
        "(right; only where every seed reached it); whiskers: 95 % interval over "
        "the seeds; dotted: the paper says that "
        f"accuracy falls beyond τ = {PEAK} and completion time falls until τ = {QUICKEST}."
    )

    def words(panel: DataPanel, label: str) -> str:
        text = _final_words(panel, label, skew)
        return f"{text} with {steps_of(label, panel.data_set)} steps" if text else ""

    return figure, how, _alt_text(data, words, named=False)


def _labelled_panels(data: _FigureData) -> tuple[Figure, list[tuple[Any, DataPanel]]]:
    first, names = data.panels[0], len(data.panels[0].labels)
    columns = names if names <= LEGEND_COLUMNS else -(-names // 2)
    legend = 0.17 * -(-names // columns) + 0.1
    figure, drawn = _panels(data, height=2.05, legend=legend)
    handles = curve_handles(first.comparison(data.skews[0]))
    legend_above(figure, handles, columns=columns)
    return figure, drawn


def _panels(
    data: _FigureData, *, height: float, legend: float = 0.0, share: float = 1.0
) -> tuple[Figure, list[tuple[Any, DataPanel]]]:
    """Axes for every data set with its title, up to three in a row; those that have runs."""
    panels = data.panels
    across = len(panels) if len(panels) <= 3 else 2 if len(panels) == 4 else 3
    down = -(-len(panels) // across)
    figure = new_figure(PAGE, height * down + legend)
    all_axes = figure.subplots(down, across, squeeze=False).ravel()
    for spare in all_axes[len(panels) :]:
        spare.set_axis_off()
    drawn = []
    for axes, panel in zip(all_axes, panels, strict=False):
        title = wrap(panel.data_set.title, int(share * TITLE_LETTERS / across))
        axes.set_title("\n".join(title), loc="left")
        if panel.seeds(data.skews):
            drawn.append((axes, panel))
            continue
        axes.set(xticks=[], yticks=[])
        options: Any = {"ha": "center", "color": QUIET, "style": "italic"}
        axes.text(0.5, 0.5, "no finished run", transform=axes.transAxes, **options)
    return figure, drawn


def _outer_labels(figure: Figure, *, names: bool = False) -> None:
    """The y label, or the names of rows, once per row of panels."""
    for axes in figure.axes:
        subplot = axes.get_subplotspec()
        if subplot is not None and not subplot.is_first_col():
            axes.set_ylabel("")
            if names:
                axes.tick_params(labelleft=False)


def _alt_text(
    data: _FigureData, words: Callable[[DataPanel, str], str], *, named: bool = True
) -> str:
    sentences = []
    for panel in data.panels:
        texts = [
            f"{label_name(label)} {text}" if named else text
            for label in panel.labels
            if (text := words(panel, label))
        ]
        sentences.append(f"{panel.data_set.title}: {'; '.join(texts) or 'no finished run'}.")
    return " ".join(sentences)


def _final(panel: DataPanel, label: str, skew: float) -> Interval | None:
    return interval(known_numbers(panel.runs(label, skew), final_accuracy))


def _final_words(panel: DataPanel, label: str, skew: float) -> str:
    return score(final.mean) if (final := _final(panel, label, skew)) else ""


def _final_tests(data: _FigureData) -> str:
    return final_meaning(
        run.summary.final_tests
        for panel in data.panels
        for label in panel.labels
        for skew in data.skews
        for run in panel.runs(label, skew)
    )


def _notes(data: _FigureData, suite: Suite, *, runs: SuiteRuns) -> list[str]:
    """How many seeds there are, what the data sets stand for, and what is missing."""
    seeds = {
        panel.data_set.title: " to ".join(dict.fromkeys((str(counts[0]), str(counts[-1]))))
        for panel in data.panels
        if (counts := panel.seeds(data.skews))
    }
    if len(set(seeds.values())) == 1:
        number_of = next(iter(seeds.values()))
        notes = ["1 seed." if number_of == "1" else f"{number_of} seeds."]
    else:
        notes = [f"Seeds: {', '.join(f'{name} {counts}' for name, counts in seeds.items())}."]
    notes += [
        f"{panel.data_set.title} stands for the paper's {panel.data_set.stands_for}."
        for panel in data.panels
        if panel.data_set.stands_for and not is_papers_own(panel.data_set)
    ]
    gone = [key for key in data.figure.sets if key in suite.missing]
    notes += [f"Missing: {suite.sets[key].title} ({suite.missing[key]})." for key in gone]
    left_out = [
        f"{label_name(each.cell.label)}, seed {each.cell.seed}, on {suite.sets[each.data].title} "
        f"at p = {each.skew:g}"
        for each in runs.unfinished
        if each.data in data.figure.sets
        and each.skew in data.skews
        and each.cell.label in data.figure.algorithms
    ]
    if left_out:
        number_left = count(len(left_out), "run is", "runs are")
        notes.append(
            f"{number_left} unfinished and left out: {listed(left_out, most=MOST_NAMED_RUNS)}."
        )
    return notes


@dataclass(frozen=True, slots=True)
class DataPanel:
    all_runs: SuiteRuns
    data_set: PaperSet
    labels: tuple[str, ...]
    styles: LineStyles

    def runs(self, label: str, skew: float) -> list[RunCurves]:
        return self.all_runs.runs(self.data_set.key, label, skew=skew)

    def seeds(self, skews: Sequence[float]) -> list[int]:
        """How many seeds its labels have at these levels, each number once; zeros left out."""
        counts = {len(self.runs(label, skew)) for label in self.labels for skew in skews}
        return sorted(counts - {0})

    def comparison(self, skew: float) -> Comparison:
        """The runs at one level, as the other figures take them; the labels are of their styles."""
        groups = [
            Group(label if FEDHP in self.labels else _styled_as(label), runs, label_name(label))
            for label in self.labels
            for runs in [tuple(self.runs(label, skew))]
        ]
        metrics = [run.metric for group in groups for run in group.runs]
        targets = tuple(target_key(target) for target in self.data_set.targets)
        return Comparison(tuple(groups), metrics[0] if metrics else ACCURACY, targets, ())


def paper_styles(labels: Sequence[str]) -> dict[str, LineStyle]:
    """FedHP as the paper has it (`fill`) gets FedHP's own style; the others keep theirs."""
    if FEDHP in labels:
        return line_styles(labels)
    styles = line_styles([_styled_as(label) for label in labels])
    return {label: styles[_styled_as(label)] for label in labels}


def _styled_as(label: str) -> str:
    return FEDHP if label == FILL else label


@dataclass(frozen=True, slots=True)
class TargetTimes:
    """When each label reached each target (or ended), and the axis for it."""

    targets: list[float]
    # By indices of label and target; whether some seed ended without reaching it.
    times: dict[tuple[int, int], tuple[Interval, bool]]
    least: float
    limit: float


def target_times(panel: DataPanel, skew: float) -> TargetTimes:
    known = {label: panel.runs(label, skew) for label in panel.labels}
    targets = _shown_targets(panel, known) or [*panel.data_set.targets[:1]]
    times: dict[tuple[int, int], tuple[Interval, bool]] = {}
    for index, label in enumerate(panel.labels):
        for column, target in enumerate(targets):
            reached = [(time_to(run, target), run.summary.completion_time) for run in known[label]]
            spread = interval([end if time is None else time for time, end in reached])
            if spread is not None:
                times[index, column] = spread, any(time is None for time, _ in reached)
    means = [time.mean for time, _ in times.values()]
    highest = [time.high or time.mean for time, late in times.values() if not late]
    # Runs that ended late without reaching the target must not squeeze the others.
    return TargetTimes(targets, times, min(means), 1.2 * max(highest or means))


def draw_targets(
    axes: Any, panel: DataPanel, target_times: TargetTimes, *, logarithmic: bool
) -> None:
    targets, limit = target_times.targets, target_times.limit
    frame = (target_times.least / 2, limit) if logarithmic else (0.0, limit)
    for (index, column), (time, late) in target_times.times.items():
        x = column + _offset(index, len(panel.labels))
        style = panel.styles[panel.labels[index]]
        _draw_target_time(axes, x, time, style=style, late=late, frame=frame)
    if logarithmic:
        from matplotlib.ticker import LogLocator

        plain_log(axes, "y", LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.set_xticks(range(len(targets)), [target_name(target) for target in targets])
    axes.set_xlim(-0.5, len(targets) - 0.5)
    axes.set_ylim(frame[0], limit * (1.15 if logarithmic else 1.06))
    axes.tick_params(axis="x", length=0)
    grid_lines(axes, "y")
    for column in range(1, len(targets)):
        axes.axvline(column - 0.5, color=FAINT, linewidth=0.5, zorder=0)
    axes.set_xlabel("target accuracy")
    axes.set_ylabel("completion time (s)")


def draw_waiting(axes: Any, panel: DataPanel, *, skew: float, paper: Mapping[str, float]) -> bool:
    """Mean waiting time, the paper's values as open diamonds; returns whether all of these fit."""
    waiting_bars(axes, panel.comparison(skew))
    axes.set_xlabel("mean waiting time (s)")
    marks = {
        index: paper[base]
        for index, label in enumerate(panel.labels)
        if (base := _styled_as(label)) in paper
    }
    if not marks:
        return True
    ours = axes.get_xlim()[1]
    limit = max(ours, min(1.06 * max(marks.values()), FAR * ours))
    axes.set_xlim(0, limit)
    for index, value in marks.items():
        shape = "D" if value <= limit else ">"
        axes.plot([min(value, limit)], [index], shape, **OPEN_MARKER, clip_on=False, zorder=6)
    return all(value <= limit for value in marks.values())


def draw_steps_accuracy(axes: Any, panel: DataPanel, skew: float) -> None:
    for base, labels in _labels_by_algorithm(panel.labels).items():
        style = paper_styles([base])[base]
        points = [
            (float(steps_of(label, panel.data_set)), spread)
            for label in labels
            if (spread := _final(panel, label, skew))
        ]
        _errorbars(axes, sorted(points, key=lambda point: point[0]), style=style)
    _steps_axis(axes, panel, PEAK)
    axes.set_ylabel("final test accuracy (%)")


def draw_steps_time(axes: Any, panel: DataPanel, skew: float) -> list[Any]:
    """Completion time against the number of local steps, a curve per target; their handles."""
    handles = []
    for labels in _labels_by_algorithm(panel.labels).values():
        ordered = sorted(labels, key=lambda label: steps_of(label, panel.data_set))
        known = {label: panel.runs(label, skew) for label in ordered}
        for index, target in enumerate(_shown_targets(panel, known)):
            style = LineStyle(TARGET_SHADES[index], "-", TARGET_MARKERS[index])
            points = []
            for label, runs in known.items():
                times = known_numbers(runs, partial(time_to, target=target))
                spread = interval(times)
                if spread is not None and len(times) == len(runs):
                    points.append((float(steps_of(label, panel.data_set)), spread))
            handles.append(_errorbars(axes, points, style=style, name=target_name(target), scale=1))
    _steps_axis(axes, panel, QUICKEST)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("completion time (s)")
    return handles


def _shown_targets(panel: DataPanel, known: Mapping[str, Sequence[RunCurves]]) -> list[float]:
    """Of the targets that some run reached, as many as fit into a panel."""
    runs = list(chain(*known.values()))
    targets = [t for t in panel.data_set.targets if any(time_to(r, t) is not None for r in runs)]
    return [targets[i] for i in spread_evenly(len(targets), MOST_TARGETS)]


def _labels_by_algorithm(labels: Sequence[str]) -> dict[str, list[str]]:
    by_algorithm: dict[str, list[str]] = {}
    for label in labels:
        by_algorithm.setdefault(label_base(label), []).append(label)
    return by_algorithm


def _offset(index: int, markers: int) -> float:
    """Where a marker is in its group, from -GROUP_WIDTH / 2 to GROUP_WIDTH / 2."""
    return GROUP_WIDTH * ((index + 0.5) / markers - 0.5)


def _draw_target_time(
    axes: Any,
    x: float,
    spread: Interval,
    *,
    style: LineStyle,
    late: bool,
    frame: tuple[float, float],
) -> None:
    strong = style.width > 1.5
    top = min(spread.mean, frame[1])
    # On a logarithmic axis lengths mean nothing: only a thin line down to the group.
    line: Any = {"linewidth": 0.8 if frame[0] else 3.0 if strong else 2.0, "color": style.color}
    line |= {"alpha": 0.35 if late else 1.0, "solid_capstyle": "butt"}
    axes.plot([x, x], [frame[0], top], **line, zorder=2)
    if late:
        arrow = {"arrowstyle": "<-", "color": style.color, "shrinkA": 0, "shrinkB": 2}
        place: Any = {"xytext": (0, 9), "textcoords": "offset points", "annotation_clip": False}
        axes.annotate("", (x, top), **place, arrowprops=arrow)
    elif spread.low is not None and spread.high is not None:
        ends = [max(frame[0], spread.low), spread.high]
        axes.plot([x, x], ends, color=INK, linewidth=0.8, zorder=4)
    face, edge, width = ("white", style.color, 0.9) if late else (style.color, "white", 0.4)
    options = marker(face, edge=edge, width=width, size=5 if strong else 4)
    axes.plot([x], [top], style.marker, **options, zorder=5)


def _errorbars(
    axes: Any,
    points: Sequence[tuple[float, Interval]],
    *,
    style: LineStyle,
    name: str = "",
    scale: float = 100.0,
) -> Any:
    reach = [scale * ((s.high or 0.0) - (s.low or 0.0)) / 2 for _, s in points]
    x, y = [x for x, _ in points], np.array([scale * spread.mean for _, spread in points])
    whiskers: Any = {"yerr": reach, "elinewidth": 0.8, "capsize": 1.8, "capthick": 0.8}
    return axes.errorbar(x, y, label=name or None, **line_options(style), **WHITE_EDGE, **whiskers)


def _steps_axis(axes: Any, panel: DataPanel, mark: int) -> None:
    """Steps on a logarithmic axis, ticks where runs are, and the paper's mark."""
    from matplotlib.ticker import FixedLocator, NullLocator

    taus = sorted({steps_of(label, panel.data_set) for label in panel.labels})
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
    place: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    look: Any = {"ha": "center", "va": "bottom", "color": QUIET, "fontsize": 7}
    axes.annotate(f"paper: τ = {mark}", (mark, 1), xytext=(0, 2), **place, **look)
    grid_lines(axes, "y")
    axes.set_xlabel("local steps τ")
