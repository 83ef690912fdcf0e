"""Figures of comparisons and runs, sized for a paper, as PNG, SVG and PDF.

Every function returns a matplotlib Figure made without pyplot: nothing global stays behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedhp.record.reader import RunReader
from fedhp.report.figures.panels import (
    best_known_target,
    curve_handles,
    over_rounds,
    over_time,
    spread_note,
    step_bars,
    target_bars,
    waiting_bars,
)
from fedhp.report.figures.run_panels import (
    TALLEST,
    crowd_scale,
    draw_timeline,
    draw_topology,
    read_links,
    run_devices,
    topology_handles,
)
from fedhp.report.figures.style import COLUMN, PAGE, QUIET, new_figure, paper_style, save_figure
from fedhp.report.groups import Comparison, read_comparison
from fedhp.report.rounds import check_round

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROW = 0.23  # inches per bar


def save_comparison_figures(folders: Sequence[Path], out: Path) -> list[Path]:
    """Draw everything that compares these runs into a folder; returns the files."""
    comparison = read_comparison(folders)
    drawings: dict[str, Callable[[Comparison], Figure]] = {
        "overview": overview,
        "accuracy_over_time": accuracy_over_time,
        "accuracy_over_rounds": accuracy_over_rounds,
        "time_to_target": time_to_target,
        "waiting_time": waiting_time,
        "local_steps": local_steps,
    }
    if not comparison.targets:
        del drawings["time_to_target"]
    paths: list[Path] = []
    for name, draw in drawings.items():
        paths += save_figure(draw(comparison), out, name)
    return paths


@paper_style()
def accuracy_over_time(comparison: Comparison) -> Figure:
    """Test accuracy (or the task's metric) against virtual time."""
    figure = new_figure(COLUMN, 2.3 + _legend_height(comparison))
    _legend(figure, curve_handles(comparison))
    over_time(figure.subplots(), comparison)
    return figure


@paper_style()
def accuracy_over_rounds(comparison: Comparison) -> Figure:
    """Test accuracy (or the task's metric) against rounds."""
    figure = new_figure(COLUMN, 2.3 + _legend_height(comparison))
    _legend(figure, curve_handles(comparison))
    over_rounds(figure.subplots(), comparison)
    return figure


@paper_style()
def time_to_target(comparison: Comparison) -> Figure:
    """Virtual time to each target, one panel per target."""
    targets = comparison.targets
    figure = new_figure(COLUMN, len(targets) * (0.55 + ROW * len(comparison.groups)))
    panels = figure.subplots(len(targets), 1, squeeze=False)[:, 0]
    for axes, target in zip(panels, targets, strict=True):
        target_bars(axes, comparison, target)
    return figure


@paper_style()
def waiting_time(comparison: Comparison) -> Figure:
    """Mean waiting time of each algorithm."""
    figure = new_figure(COLUMN, 0.55 + ROW * len(comparison.groups))
    waiting_bars(figure.subplots(), comparison)
    return figure


@paper_style()
def local_steps(comparison: Comparison) -> Figure:
    """Mean local steps of each algorithm, by device kind."""
    row = max(ROW, 0.1 * len(comparison.kinds))
    figure = new_figure(COLUMN, 0.85 + row * len(comparison.groups))
    handles = step_bars(figure.subplots(), comparison)
    figure.legend(handles=handles, loc="outside upper center", ncols=min(3, len(handles)))
    return figure


@paper_style()
def overview(comparison: Comparison) -> Figure:
    """The whole comparison in one picture: accuracy, time to target, waiting, steps."""
    rows = len(comparison.groups)
    figure = new_figure(PAGE, 3.5 + ROW * rows)
    _legend(figure, curve_handles(comparison), columns=min(4, rows))
    # Each row has a grid of its own, so that long names below do not narrow the curves above.
    halves = figure.add_gridspec(2, 1, height_ratios=(2.3, 0.6 + ROW * rows))
    target = best_known_target(comparison)
    panels = 1 if target is None else 2
    upper = halves[0].subgridspec(1, panels, width_ratios=(1.4, 1)[:panels])
    learning = figure.add_subplot(upper[0])
    learning.set_title("Learning", loc="left")
    over_time(learning, comparison)
    if target is not None:
        speed = figure.add_subplot(upper[1])
        speed.set_title("Time to target", loc="left")
        target_bars(speed, comparison, target)
    lower = halves[1].subgridspec(1, 2)
    waiting = figure.add_subplot(lower[0])
    waiting.set_title("Waiting", loc="left")
    waiting_bars(waiting, comparison)
    work = figure.add_subplot(lower[1])
    work.set_title("Work by device", loc="left")
    kinds = step_bars(work, comparison)
    work.tick_params(labelleft=False)
    work.legend(handles=kinds, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.supxlabel(spread_note(comparison), fontsize=7, color=QUIET)
    return figure


def save_run_figures(folder: Path, out: Path) -> list[Path]:
    """Draw one run into a folder: its learning, its topology, its last round's timeline."""
    with RunReader(folder) as run:
        check_round(run, None)
        paths = save_figure(topology(run), out, "topology")
        paths += save_figure(timeline(run), out, "timeline")
    return save_figure(accuracy_over_time(read_comparison([folder])), out, "accuracy") + paths


@paper_style()
def topology(run: RunReader, rounds: Sequence[int] | None = None) -> Figure:
    """The links at chosen rounds; without a choice at the first, the middle and the last."""
    last = check_round(run, None)
    chosen = list(rounds or dict.fromkeys((1, (last + 1) // 2, last)))
    links = [read_links(run, check_round(run, index)) for index in chosen]
    devices, styles = run_devices(run)
    speeds = np.concatenate([each.speed for each in links])
    top = float(speeds[np.isfinite(speeds)].max(initial=0.0))
    scale = crowd_scale(links)
    across = min(3, len(links))
    down = -(-len(links) // across)
    handles = topology_handles(run, styles, speeds, scale=scale)
    columns = (2, 3, len(handles))[across - 1]
    figure = new_figure(2.4 * across, 2.5 * down + 0.14 + 0.16 * -(-len(handles) // columns))
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for axes, each in zip(panels, links, strict=False):
        draw_topology(axes, each, devices=devices, looks=styles, top=top, scale=scale)
    for axes in panels[len(links) :]:
        axes.set_axis_off()
    _legend(figure, handles, columns=columns)
    return figure


@paper_style()
def timeline(run: RunReader, round_index: int | None = None) -> Figure:
    """How every worker spent one round (the last, if none is named)."""
    index = check_round(run, round_index)
    devices, styles = run_devices(run)
    figure = new_figure(COLUMN, 1.0 + 0.15 * min(TALLEST, len(devices)))
    axes = figure.subplots()
    handles = draw_timeline(axes, run, index, devices=devices, order=list(styles))
    _legend(figure, handles)
    return figure


def _legend_height(comparison: Comparison) -> float:
    return 0.16 * ((len(comparison.groups) + 1) // 2)


def _legend(figure: Figure, handles: Sequence[Any], *, columns: int = 2) -> None:
    figure.legend(handles=list(handles), loc="outside upper center", ncols=columns)
