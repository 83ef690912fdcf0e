"""Figures of all workers over all rounds: step times, bandwidth, local steps; rounds side by side.

Every row is a worker; rows stand by device kind, fastest first, and by speed within a kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedhp.record.reader import RunReader
from fedhp.report.figures.run_panels import LABELS, TALLEST, draw_timeline, read_links, run_devices
from fedhp.report.figures.style import COLUMN, INK, PAGE, DeviceLook, new_figure, paper_style
from fedhp.report.formatting import count, label_name
from fedhp.report.rounds import check_round
from fedhp.report.tables import spread_evenly
from fedhp.types import FloatArray
from fedhp.world.network import BITS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = "viridis"  # even in grey and for every common kind of colour vision
AWAY = "#e3e3e3"
ROW = 0.145  # inches per worker
MOST_ROWS, MOST_COLUMNS = 400, 600  # of a heat map: more than a page can show
WIDE_RANGE = 4.0  # the largest over the smallest from which on an axis is logarithmic


@dataclass(frozen=True, slots=True)
class Roster:
    """The workers of a run in the order of its heat maps."""

    devices: list[str]
    looks: dict[str, DeviceLook]
    rows: list[int]  # the worker of every row, from the top; of very many an even choice
    step_time: FloatArray  # [rounds, N] s; NaN where a worker finished no step

    def mean_step_time(self, worker: int) -> float:
        """Over the rounds in which it took a step; NaN if there is none."""
        known = finite(self.step_time[:, worker])
        return float(known.mean()) if known.size else float("nan")


def read_roster(run: RunReader) -> Roster:
    """Who works in a run, sorted."""
    devices, looks = run_devices(run)
    roster = Roster(devices, looks, [], run.array("workers", "step_time"))
    rank = {kind: place for place, kind in enumerate(looks)}

    def place(worker: int) -> tuple[int, float, int]:
        speed = roster.mean_step_time(worker)
        return rank[devices[worker]], np.inf if np.isnan(speed) else speed, worker

    order = sorted(range(len(devices)), key=place)
    roster.rows.extend(order[row] for row in spread_evenly(len(order), MOST_ROWS))
    return roster


def finite(values: FloatArray) -> FloatArray:
    """The values that are numbers."""
    return values[np.isfinite(values)]


def bandwidth_of(run: RunReader) -> tuple[FloatArray, str]:
    """Bandwidth at the start of every round, [rounds, N], in the unit of the experiment."""
    unit = run.meta("experiment")["world"]["bandwidth"]["unit"]
    return run.array("workers", "bandwidth") * 8 / BITS[unit], unit


def steps_of(run: RunReader) -> FloatArray:
    """Local steps of every round, [rounds, N]; NaN for those who are away."""
    there = ~np.isnan(run.array("workers", "worker_time"))
    return np.where(there, run.array("workers", "local_steps"), np.nan)


def varies(values: FloatArray) -> bool:
    """Whether there is anything to see in a map of these values."""
    known = finite(values)
    return bool(known.size) and float(np.ptp(known)) > 1e-9 * float(abs(known).max())


@paper_style()
def world(run: RunReader) -> Figure:
    """Who is slow: the step time of every worker, and its bandwidth over virtual time."""
    roster = read_roster(run)
    speed, unit = bandwidth_of(run)
    height = 0.75 + ROW * _shown(roster)
    if not varies(speed):
        figure = new_figure(COLUMN, height)
        _step_times(figure.subplots(), roster)
        return figure
    figure = new_figure(PAGE, height)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1, 2.1))
    left.set_title("Computing", loc="left")
    _step_times(left, roster)
    right.set_title("Links", loc="left")
    edges = np.array([0.0, *run.table("rounds")["clock"]])
    _heat(right, roster, speed, edges, f"bandwidth ({unit})")
    right.set_xlabel("virtual time (s)")
    right.tick_params(axis="y", labelleft=False, length=0)
    return figure


@paper_style()
def step_map(run: RunReader) -> Figure:
    """The local steps of every worker in every round."""
    roster, steps = read_roster(run), steps_of(run)
    figure = new_figure(PAGE, 0.6 + ROW * _shown(roster))
    axes: Any = figure.subplots()
    edges = np.arange(len(steps) + 1, dtype=np.float64) + 0.5
    _heat(axes, roster, steps, edges, "local steps")
    _name_rows(axes, roster)
    axes.set_xlabel("round")
    axes.xaxis.get_major_locator().set_params(integer=True)
    return figure


@paper_style()
def link_maps(run: RunReader, rounds: Sequence[int]) -> Figure:
    """Who talks to whom as tables of all pairs: for links too many to be told apart as lines."""
    roster = read_roster(run)
    unit = run.meta("experiment")["world"]["bandwidth"]["unit"]
    links = [read_links(run, index) for index in rounds]
    width = PAGE if len(rounds) > 1 else COLUMN
    figure = new_figure(width, (width - 1.3) / len(rounds) + 0.4)
    panels = figure.subplots(1, len(rounds), squeeze=False)[0]
    top = max(float(finite(each.speed).max(initial=0.0)) for each in links) / BITS[unit]
    for axes, each in zip(panels, links, strict=True):
        grid = np.full((len(roster.devices), len(roster.devices)), np.nan)
        for (a, b), speed in zip(each.pairs, each.speed / BITS[unit], strict=True):
            grid[a, b] = speed
            if not each.directed:
                grid[b, a] = speed
        shown = np.ma.masked_invalid(grid[np.ix_(roster.rows, roster.rows)])
        heat = axes.imshow(shown, cmap=COLORS, vmin=0.0, vmax=top, interpolation="none")
        _part_kinds(axes, roster, upright=True)
        _name_rows(axes, roster, kinds_only=True)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        what = "transfer" if each.directed else "link"
        axes.set_xlabel(f"round {each.round_index}: {count(each.total, what)}")
        if axes is not panels[0]:
            axes.tick_params(labelleft=False)
    scale = figure.colorbar(heat, ax=list(panels), label=f"speed ({unit})", pad=0.015, aspect=30)
    scale.outline.set_visible(False)
    return figure


@paper_style()
def timelines(runs: Sequence[RunReader], round_index: int) -> Figure:
    """How every worker spent one round, in several runs on one scale of time."""
    rosters = [run_devices(run) for run in runs]
    same = all(devices == rosters[0][0] for devices, _ in rosters)
    tallest = max(min(TALLEST, len(devices)) for devices, _ in rosters)
    figure = new_figure(PAGE, 1.05 + 0.15 * tallest)
    panels = figure.subplots(1, len(runs), sharex=True, squeeze=False)[0]
    handles: dict[str, Any] = {}
    for axes, run, (devices, looks) in zip(panels, runs, rosters, strict=True):
        index = check_round(run, round_index)
        for handle in draw_timeline(axes, run, index, devices=devices, order=list(looks)):
            handles.setdefault(handle.get_label(), handle)
        axes.set_title(label_name(run.meta("label")), loc="left")
        axes.set_ylabel("")
        axes.xaxis.get_major_locator().set_params(nbins=6)
        if same and axes is not panels[0]:
            axes.tick_params(labelleft=False)
    # Each panel has set the common scale for itself; the longest round must fit.
    panels[0].set_xlim(0, 1.03 * max(axes.dataLim.x1 for axes in panels))
    figure.legend(handles=list(handles.values()), loc="outside upper center", ncols=len(handles))
    return figure


def _shown(roster: Roster) -> int:
    """Rows that the height counts: very many become thin."""
    return min(LABELS, len(roster.rows))


def _step_times(axes: Any, roster: Roster) -> None:
    """A mark for every worker's mean, a line for nine tenths of its rounds."""
    means = {}
    for place, worker in enumerate(roster.rows):
        known = finite(roster.step_time[:, worker])
        if not known.size:
            continue
        look = roster.looks[roster.devices[worker]]
        means[worker] = float(known.mean())
        low, high = np.quantile(known, (0.05, 0.95))
        axes.plot([low, high], [place, place], color=INK, linewidth=0.8, zorder=2)
        axes.plot(
            [means[worker]],
            [place],
            look.marker,
            markersize=4.5 if len(roster.rows) <= LABELS else 2.5,
            markerfacecolor=look.color,
            markeredgecolor=INK,
            markeredgewidth=0.5,
            zorder=3,
        )
    _name_rows(axes, roster)
    axes.grid(axis="x", color=AWAY, linewidth=0.5, zorder=0)
    axes.set_xlabel("time per local step (s)")
    if means and 0 < WIDE_RANGE * min(means.values()) <= max(means.values()):
        _logarithmic(axes, min(means.values()), max(means.values()))
    else:
        axes.set_xlim(left=0)


def _logarithmic(axes: Any, low: float, high: float) -> None:
    """Ticks at 1 and 3 of every power of ten, written plainly."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log")
    axes.set_xlim(0.75 * low, 1.35 * high)
    powers = range(int(np.floor(np.log10(low))) - 1, int(np.ceil(np.log10(high))) + 1)
    axes.xaxis.set_major_locator(FixedLocator([d * 10.0**p for p in powers for d in (1, 3)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _heat(axes: Any, roster: Roster, values: FloatArray, edges: FloatArray, name: str) -> None:
    """Values [rounds, N] as a map with its scale; an even choice of very many rounds."""
    columns = spread_evenly(len(values), MOST_COLUMNS)
    sides = np.append(edges[columns], edges[-1])
    grid = np.ma.masked_invalid(values[np.ix_(columns, roster.rows)].T)
    heat = axes.pcolormesh(
        sides,
        np.arange(len(roster.rows) + 1) - 0.5,
        grid,
        cmap=COLORS,
        rasterized=True,  # a map of paths would be megabytes
        linewidth=0,
    )
    axes.set_facecolor(AWAY)
    axes.set_xlim(sides[0], sides[-1])
    axes.set_ylim(len(roster.rows) - 0.5, -0.5)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    _part_kinds(axes, roster)
    scale = axes.figure.colorbar(heat, ax=axes, label=name, pad=0.015, aspect=40)
    scale.outline.set_visible(False)
    scale.locator.set_params(integer=bool(np.all(grid.compressed() % 1 == 0)))
    scale.update_ticks()


def _part_kinds(axes: Any, roster: Roster, *, upright: bool = False) -> None:
    """Lines between the kinds of devices; in a table of pairs white would be a missing link."""
    look: Any = {"color": INK, "linewidth": 0.7} if upright else {"color": "white"}
    kinds = [roster.devices[worker] for worker in roster.rows]
    for row in range(1, len(kinds)):
        if kinds[row] != kinds[row - 1]:
            axes.axhline(row - 0.5, **look)
            if upright:
                axes.axvline(row - 0.5, **look)


def _name_rows(axes: Any, roster: Roster, *, kinds_only: bool = False) -> None:
    """Each worker's device and number; of many only the kinds, in the middle of each."""
    kinds = [roster.devices[worker] for worker in roster.rows]
    if len(kinds) <= LABELS and not kinds_only:
        names = [f"{kind}  {worker}" for kind, worker in zip(kinds, roster.rows, strict=True)]
        axes.set_yticks(range(len(names)), names)
    else:
        middle = {kind: np.mean(np.flatnonzero(np.array(kinds) == kind)) for kind in kinds}
        chosen = [list(middle)[place] for place in spread_evenly(len(middle), LABELS)]
        axes.set_yticks([middle[kind] for kind in chosen], chosen)
    axes.set_ylim(len(kinds) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
