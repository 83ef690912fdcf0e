"""The paper's figures from the finished runs of its suite, a page wide, with caption and alt text.

What is drawn is asked of the pool, so that a figure also shows what others had run; data sets
and runs that are not there are named in the caption.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from fedhp.report.claims.judging import is_papers_own
from fedhp.report.claims.paper import PEAK, QUICKEST, WAITING
from fedhp.report.claims.questions import steps_of
from fedhp.report.claims.runs import SuiteRuns, final_accuracy, time_to, waiting_time
from fedhp.report.figures.panels import curve_handles
from fedhp.report.figures.paper_panels import (
    Panel,
    arrivals,
    draw_accuracy,
    draw_skew,
    draw_steps_accuracy,
    draw_steps_time,
    draw_targets,
    draw_waiting,
    empty_panel,
    paper_handle,
    paper_looks,
)
from fedhp.report.figures.style import PAGE, new_figure, paper_style
from fedhp.report.formatting import count, label_name, listed, number, score, target_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedhp.engine.runs.suite import PaperFigure, Suite

LEGEND_COLUMNS = 5  # more names stand in two rows
TITLE = 96  # letters of titles beside each other on a page
NAMED = 4  # cells that a caption names one by one


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure to save, with what stands below it and what is read aloud instead of it."""

    name: str
    caption: str
    alt: str
    figure: Figure


@dataclass(frozen=True, slots=True)
class _Sheet:
    """What the drawing of one figure needs."""

    figure: PaperFigure
    panels: tuple[Panel, ...]
    skews: tuple[float, ...]


def draw_figure(figure: PaperFigure, suite: Suite, runs: SuiteRuns) -> list[Drawing]:
    """The drawings of a figure: none where nothing of it is finished, or if it is a table."""
    kinds: Mapping[str, Callable[[_Sheet], tuple[Figure, str, str]]] = {
        "accuracy": _accuracy,
        "targets": _targets,
        "steps": _steps,
        "skew": _skew,
        "waiting": _waiting,
    }
    if figure.draw not in kinds:
        return []
    together = figure.draw in ("skew", "steps")
    parts = [figure.skews] if together else [(skew,) for skew in figure.skews]
    drawings = []
    for skews in parts:
        sheet = _sheet(figure, suite, runs=runs, skews=skews)
        if any(panel.seeds(skews) for panel in sheet.panels):
            drawn, how, alt = kinds[figure.draw](sheet)
            name = figure.name if len(parts) == 1 else f"{figure.name}-p{skews[0]:g}"
            caption = " ".join([f"{figure.title}.", how, *_notes(sheet, suite, runs=runs)])
            drawings.append(Drawing(name, caption, f"{figure.title}. {alt}", drawn))
    return drawings


def _sheet(
    figure: PaperFigure, suite: Suite, *, runs: SuiteRuns, skews: tuple[float, ...]
) -> _Sheet:
    here = [suite.sets[key] for key in figure.sets if key not in suite.missing]
    labels = tuple(
        label
        for label in figure.algorithms
        if any(runs.runs(each.key, label, skew=skew) for each in here for skew in skews)
    )
    styles = paper_looks(labels)
    return _Sheet(figure, tuple(Panel(runs, each, labels, styles) for each in here), skews)


@paper_style()
def _accuracy(sheet: _Sheet) -> tuple[Figure, str, str]:
    [skew] = sheet.skews
    figure, places = _grid(sheet, height=2.05)
    _legend(figure, sheet)
    for axes, panel in places:
        if _titled(axes, panel, sheet.skews):
            draw_accuracy(axes, panel, skew=skew)
    _outer_labels(places)
    how = (
        "Mean of the workers' test accuracies over virtual time; bands: 95 % interval over the "
        "seeds; dashed lines: target accuracies."
    )
    return figure, how, _spoken(sheet, lambda panel, label: _final_words(panel, label, skew))


@paper_style()
def _targets(sheet: _Sheet) -> tuple[Figure, str, str]:
    [skew] = sheet.skews
    figure, places = _grid(sheet, height=2.05)
    _legend(figure, sheet)
    known = [
        (axes, panel, arrivals(panel, skew))
        for axes, panel in places
        if _titled(axes, panel, sheet.skews)
    ]
    logarithmic = any(found.wide for _, _, found in known)
    for axes, panel, found in known:
        draw_targets(axes, panel, found=found, logarithmic=logarithmic)
    _outer_labels(places)
    how = (
        "Completion time until the mean of the workers' test accuracies reaches a target; "
        "whiskers: 95 % interval over the seeds; open marks with an arrow: not reached in every "
        "seed, the runs ended there or above."
    )
    if logarithmic:
        how += " The axes of time are logarithmic."

    def words(panel: Panel, label: str) -> str:
        runs = panel.runs(label, skew)
        for target in reversed(panel.here.targets):
            times = [time for run in runs if (time := time_to(run, target)) is not None]
            if times and len(times) == len(runs):
                return f"{target_name(target)} after {number(float(np.mean(times)))} s"
        return "no target reached in every seed" if runs else ""

    return figure, how, _spoken(sheet, words)


@paper_style()
def _skew(sheet: _Sheet) -> tuple[Figure, str, str]:
    figure, places = _grid(sheet, height=2.05)
    _legend(figure, sheet)
    for axes, panel in places:
        if _titled(axes, panel, sheet.skews):
            known = set(panel.all_runs.levels(panel.here.key))
            draw_skew(axes, panel, skews=[p for p in sheet.skews if round(p, 6) in known])
    _outer_labels(places)
    how = (
        "Final test accuracy (mean of the workers) against the non-IID level p; whiskers: 95 % "
        "interval over the seeds; points of one level stand side by side."
    )

    def words(panel: Panel, label: str) -> str:
        said = {p: text for p in sheet.skews if (text := _final_words(panel, label, p))}
        ends = dict.fromkeys((min(said), max(said))) if said else ()
        return " and ".join(f"{said[p]} at p = {p:g}" for p in ends)

    return figure, how, _spoken(sheet, words)


@paper_style()
def _waiting(sheet: _Sheet) -> tuple[Figure, str, str]:
    [skew] = sheet.skews
    row = 0.2
    figure, places = _grid(sheet, height=0.8 + row * len(sheet.panels[0].labels), bars=True)
    marked, fit = False, True
    for axes, panel in places:
        paper = WAITING.get(panel.here.stands_for, {})
        if _titled(axes, panel, sheet.skews, share=0.7):  # beside names and numbers
            fit = draw_waiting(axes, panel, skew=skew, paper=paper) and fit
            marked = marked or bool(paper)
    _outer_labels(places, names=True)
    how = "Mean waiting time per round; whiskers: 95 % interval over the seeds; dots: single seeds"
    if marked:
        figure.legend(handles=[paper_handle()], loc="outside lower center")
        how += "; open diamonds: the paper's values, of its own models and devices"
    how += "." if fit else "; open triangles: the paper's value lies beyond the axis."

    def words(panel: Panel, label: str) -> str:
        waits = [
            value for run in panel.runs(label, skew) if (value := waiting_time(run)) is not None
        ]
        return f"{number(float(np.mean(waits)))} s" if waits else ""

    return figure, how, _spoken(sheet, words)


@paper_style()
def _steps(sheet: _Sheet) -> tuple[Figure, str, str]:
    skew = sheet.skews[0]
    panels = [panel for panel in sheet.panels if panel.seeds([skew])]
    figure = new_figure(PAGE, 0.2 + 2.2 * len(panels))
    axes = figure.subplots(len(panels), 2, squeeze=False)
    for (left, right), panel in zip(axes, panels, strict=True):
        left.set_title(panel.here.title, loc="left", pad=14)  # above the paper's mark
        draw_steps_accuracy(left, panel, skew=skew, mark=PEAK)
        handles = draw_steps_time(right, panel, skew=skew, mark=QUICKEST)
        if handles:
            right.legend(
                handles=handles, title="target", loc="center left", bbox_to_anchor=(1, 0.5)
            )
    bases = dict.fromkeys(label.partition(":")[0] for label in sheet.figure.algorithms)
    how = (
        f"{listed(map(label_name, bases))} with different numbers of local steps: final test "
        "accuracy (left) and completion time to target accuracies (right; only where every seed "
        "reached it); whiskers: 95 % interval over the seeds; dotted: the paper says that "
        f"accuracy falls beyond τ = {PEAK} and completion time falls until τ = {QUICKEST}."
    )

    def words(panel: Panel, label: str) -> str:
        text = _final_words(panel, label, skew)
        return f"{text} with {steps_of(label, panel.here)} steps" if text else ""

    return figure, how, _spoken(sheet, words, named=False)


def _grid(
    sheet: _Sheet, *, height: float, bars: bool = False
) -> tuple[Figure, list[tuple[Any, Panel]]]:
    """Axes for every data set: up to three in a row."""
    panels = sheet.panels
    across = len(panels) if len(panels) <= 3 else 2 if len(panels) == 4 else 3
    down = -(-len(panels) // across)
    legend = 0.0 if bars else 0.17 * -(-len(panels[0].labels) // _columns(sheet)) + 0.1
    figure = new_figure(PAGE, height * down + legend)
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for spare in axes[len(panels) :]:
        spare.set_axis_off()
    return figure, list(zip(axes, panels, strict=False))


def _titled(axes: Any, panel: Panel, skews: Sequence[float], *, share: float = 1.0) -> bool:
    """Write the data set above its panel; whether there is anything to draw in it."""
    letters = int(share * TITLE / axes.get_subplotspec().get_gridspec().ncols)
    axes.set_title("\n".join(wrap(panel.here.title, letters)), loc="left")
    if panel.seeds(skews):
        return True
    empty_panel(axes)
    return False


def _outer_labels(places: Sequence[tuple[Any, Panel]], *, names: bool = False) -> None:
    """The y label, or the names of rows, once per row of panels."""
    for axes, _ in places:
        if not axes.get_subplotspec().is_first_col():
            axes.set_ylabel("")
            if names:
                axes.tick_params(labelleft=False)


def _legend(figure: Figure, sheet: _Sheet) -> None:
    first = sheet.panels[0]
    handles = curve_handles(first.comparison(sheet.skews[0]), styles=first.styles)
    figure.legend(handles=handles, loc="outside upper center", ncols=_columns(sheet))


def _columns(sheet: _Sheet) -> int:
    names = len(sheet.panels[0].labels)
    return names if names <= LEGEND_COLUMNS else -(-names // 2)


def _spoken(sheet: _Sheet, words: Callable[[Panel, str], str], *, named: bool = True) -> str:
    """The numbers of every panel in sentences."""
    sentences = []
    for panel in sheet.panels:
        said = [
            f"{label_name(label)} {text}" if named else text
            for label in panel.labels
            if (text := words(panel, label))
        ]
        sentences.append(f"{panel.here.title}: {'; '.join(said) or 'no finished run'}.")
    return " ".join(sentences)


def _final_words(panel: Panel, label: str, skew: float) -> str:
    found = [value for run in panel.runs(label, skew) if (value := final_accuracy(run)) is not None]
    return score(float(np.mean(found))) if found else ""


def _notes(sheet: _Sheet, suite: Suite, *, runs: SuiteRuns) -> list[str]:
    """How many seeds there are, what the data sets stand for, and what is not shown."""
    seeds = {
        panel.here.title: " to ".join(dict.fromkeys((str(found[0]), str(found[-1]))))
        for panel in sheet.panels
        if (found := panel.seeds(sheet.skews))
    }
    if len(set(seeds.values())) == 1:
        number_of = next(iter(seeds.values()))
        notes = ["1 seed." if number_of == "1" else f"{number_of} seeds."]
    else:
        notes = [f"Seeds: {', '.join(f'{name} {found}' for name, found in seeds.items())}."]
    notes += [
        f"{panel.here.title} stands for the paper's {panel.here.stands_for}."
        for panel in sheet.panels
        if panel.here.stands_for and not is_papers_own(panel.here)
    ]
    gone = [key for key in sheet.figure.sets if key in suite.missing]
    notes += [f"Not here: {suite.sets[key].title} ({suite.missing[key]})." for key in gone]
    left_out = [
        f"{label_name(each.cell.label)}, seed {each.cell.seed}, on {suite.sets[each.data].title} "
        f"at p = {each.skew:g}"
        for each in runs.unfinished
        if each.data in sheet.figure.sets
        and each.skew in sheet.skews
        and each.cell.label in sheet.figure.algorithms
    ]
    if left_out:
        number_left = count(len(left_out), "run is", "runs are")
        notes.append(f"{number_left} not finished and left out: {listed(left_out, most=NAMED)}.")
    return notes
