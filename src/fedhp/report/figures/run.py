"""Figures of single runs: topology, timelines, devices and links, steps, all workers over rounds.

In heat maps every row is a worker; rows are ordered by device kind, fastest first, and by speed
within a kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from fedhp.record.reader import RunReader
from fedhp.record.timeline import (
    overlaps,
    read_pace,
    read_turns,
    transfer_times,
    transfers_of_pairs,
)
from fedhp.report.figures.comparison import accuracy_over_time
from fedhp.report.figures.style import (
    BLUE,
    COLUMN,
    FAINT,
    INK,
    ORANGE,
    PAGE,
    QUIET,
    LineStyle,
    device_styles,
    key,
    legend_above,
    marker,
    new_figure,
    paper_style,
    plain_log,
    save_figure,
)
from fedhp.report.formatting import count, label_name, number
from fedhp.report.groups import device_order, kind_means, read_comparison
from fedhp.report.rounds import check_round
from fedhp.report.tables import spread_evenly
from fedhp.types import FloatArray
from fedhp.world.network import BITS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTHS = (0.25, 2.0)  # of the slowest and the fastest link, points
CROWDED = 70  # with more links than this, all lines get thinner
MOST_TIMELINE_ROWS = 60
LEGEND_COLUMNS = 5  # of timelines: more do not fit into a page
MOST_ARROWS, ARROWS_PER_WORKER = 300, 5  # with more directed links, lines without arrows
MOST_LINES = 400  # links of a topology: more would only be a grey disc
MOST_MARKERS = 1000  # workers of a topology: more would only be the same ring
MOST_NUMBERED = 40  # workers; with more, they are grouped by device kind and not numbered
COLORMAP = "viridis"  # even in grey and for every common kind of colour vision
AWAY_COLOR = "#e3e3e3"
TITLE_LETTERS = 80  # in a line across the page
WORKER_HEIGHT = 0.145  # inches
MOST_ROWS, MOST_COLUMNS = 400, 600  # of a heat map: more than a page can show
WIDE_RANGE = 4.0  # if the largest value is this many times the smallest, the axis is logarithmic
BAR: dict[str, Any] = {"height": 0.74, "linewidth": 0, "zorder": 2}
CENTERED: Any = {"ha": "center", "va": "center"}


def save_run_figures(folder: Path, out: Path) -> list[Path]:
    """Draw one run into a folder: its learning, its topology, its last round's timeline."""
    with RunReader(folder) as run:
        check_round(run, None)
        paths = save_figure(topology(run), out, "topology")
        paths += save_figure(timeline(run), out, "timeline")
    return save_figure(accuracy_over_time(read_comparison([folder])), out, "accuracy") + paths


@paper_style()
def topology(run: RunReader, rounds: Sequence[int] | None = None) -> Figure:
    """The links in these rounds; by default in the first, the middle and the last."""
    last = check_round(run, None)
    chosen = list(rounds or dict.fromkeys((1, (last + 1) // 2, last)))
    links = [read_links(run, check_round(run, index)) for index in chosen]
    devices, styles = run_devices(run)
    speeds = np.concatenate([round_links.speed for round_links in links])
    top = float(speeds[np.isfinite(speeds)].max(initial=0.0))
    # Lines get thinner where there are very many.
    most = max(min(MOST_LINES, len(each.pairs)) for each in links)
    scale = float(np.clip(CROWDED / max(1, most), 0.2, 1.0))
    across = min(3, len(links))
    down = -(-len(links) // across)
    handles = topology_handles(run, styles, speeds, scale=scale)
    columns = (2, 3, len(handles))[across - 1]
    figure = new_figure(2.4 * across, 2.5 * down + 0.14 + 0.16 * -(-len(handles) // columns))
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for axes, round_links in zip(panels, links, strict=False):
        draw_topology(axes, round_links, devices, styles, top=top, scale=scale)
    for axes in panels[len(links) :]:
        axes.set_axis_off()
    legend_above(figure, handles, columns=columns)
    return figure


@paper_style()
def timeline(run: RunReader, round_index: int | None = None) -> Figure:
    index = check_round(run, round_index)
    devices, styles = run_devices(run)
    figure = new_figure(COLUMN, 1.0 + 0.15 * min(MOST_TIMELINE_ROWS, len(devices)))
    axes = figure.subplots()
    handles = draw_timeline(axes, run, index, devices=devices, order=list(styles))
    legend_above(figure, handles)
    return figure


@dataclass(frozen=True, slots=True)
class RoundLinks:
    """The links used in one round, as far as they are recorded."""

    round_index: int
    total: int  # recorded or not
    pairs: list[tuple[int, int]]  # (receiver, sender) where directed
    speed: FloatArray  # bits per second that the transfer reached, by the bytes sent; NaN: unknown
    directed: bool
    away: list[int]


def read_links(run: RunReader, round_index: int) -> RoundLinks:
    links = run.table("links", round_index=round_index)
    used = np.flatnonzero(links["used"])
    pairs = [(links["a"][i], links["b"][i]) for i in used]
    row = run.table("rounds", round_index=round_index)
    directed = bool(row["directed"][0])
    # How many models the bytes of each link are: one in each direction, at every exchange.
    models = np.full(len(pairs), 1.0 if directed else 2.0)
    if run.meta("asynchronous"):
        counted = transfers_of_pairs(run, round_index) or {}  # NaN: not on record
        models *= np.array([counted.get(pair, np.nan) for pair in pairs], dtype=np.float64)
    times = np.array([links["link_time"][i] or 0.0 for i in used])
    sizes = np.array([links["bytes"][i] for i in used], dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        speed = 8.0 * sizes / models / times
    workers = run.table("workers", round_index=round_index, columns=("worker", "worker_time"))
    away = [worker for worker, time in zip(*workers.values(), strict=True) if time is None]
    return RoundLinks(round_index, row["links"][0], pairs, speed, directed, away)


def run_devices(run: RunReader) -> tuple[list[str], dict[str, LineStyle]]:
    devices = list(run.meta("devices"))
    times = kind_means(run.array("workers", "step_time"), devices)
    return devices, device_styles(device_order(times, devices))


def draw_topology(
    axes: Any,
    links: RoundLinks,
    devices: Sequence[str],
    styles: dict[str, LineStyle],
    *,
    top: float,
    scale: float,
) -> None:
    """Workers on a circle, wider lines for faster links; `top` is the fastest speed drawn."""
    from matplotlib.collections import LineCollection

    # On a circle in order, or by device kind where the workers are too many.
    position = np.arange(len(devices))
    if len(devices) > MOST_NUMBERED:
        rank = {kind: rank for rank, kind in enumerate(styles)}
        order = np.argsort([rank[device] for device in devices], kind="stable")
        position[order] = np.arange(len(devices))
    angle = np.pi / 2 - 2 * np.pi * position / len(devices)
    x, y = np.cos(angle), np.sin(angle)
    size = float(np.clip(900 / len(devices), 2, 110))
    shown = spread_evenly(len(links.pairs), MOST_LINES)
    lines = [(*links.pairs[i], scale * link_width(float(links.speed[i]), top)) for i in shown]
    if links.directed and len(lines) <= min(MOST_ARROWS, ARROWS_PER_WORKER * len(devices)):
        arrow = {"arrowstyle": "-|>,head_length=0.25,head_width=0.12", "mutation_scale": 12}
        arrow |= {"color": QUIET, "shrinkA": 0, "shrinkB": size**0.5 / 2}
        for a, b, width in lines:
            # (receiver, sender): the arrow points the way the model travels.
            ends = (x[a], y[a]), (x[b], y[b])
            axes.annotate("", *ends, arrowprops={**arrow, "linewidth": width}, zorder=1)
    else:
        segments = [((x[a], y[a]), (x[b], y[b])) for a, b, _ in lines]
        widths = [width for _, _, width in lines]
        axes.add_collection(LineCollection(segments, linewidths=widths, colors=QUIET, zorder=1))
    _markers(axes, devices, styles, x, y, size=size, away=links.away)
    if len(devices) <= MOST_NUMBERED:
        for worker, (across, up) in enumerate(zip(x, y, strict=True)):
            color = QUIET if worker in links.away else INK
            at = (across, up), (1.17 * across, 1.17 * up)
            axes.annotate(str(worker), *at, color=color, fontsize=6.5, **CENTERED)
    axes.set_xlim(-1.28, 1.28)
    axes.set_ylim(-1.55, 1.28)
    axes.set_aspect("equal")
    axes.set_axis_off()
    what = "transfer" if links.directed else "link"
    away = f", {len(links.away)} away" if links.away else ""
    text = f"round {links.round_index}: {count(links.total, what)}{away}"
    if len(lines) < links.total:
        which = "of them drawn" if len(links.pairs) == links.total else "slowest and fastest drawn"
        text += f"\n{len(lines)} {which}"
    axes.text(0, -1.46, text, fontsize=8, **CENTERED)


def _markers(
    axes: Any,
    devices: Sequence[str],
    styles: dict[str, LineStyle],
    x: FloatArray,
    y: FloatArray,
    *,
    size: float,
    away: Sequence[int],
) -> None:
    """One call per device kind: one per worker would take minutes for very many workers."""
    gone = np.isin(np.arange(len(devices)), away)
    shown = np.zeros(len(devices), dtype=np.bool_)
    shown[spread_evenly(len(devices), MOST_MARKERS)] = True
    for kind, style in styles.items():
        of_kind = shown & np.array([device == kind for device in devices])
        # An edge would cover a marker this small.
        edge = INK if len(devices) <= MOST_MARKERS // 10 else style.color
        for rows, face, line in (
            (of_kind & ~gone, style.color, edge),
            (of_kind & gone, "white", FAINT),
        ):
            options = {"facecolor": face, "edgecolor": line, "linewidth": min(0.6, size / 20)}
            axes.scatter(x[rows], y[rows], s=size, marker=style.marker, **options, zorder=3)


def topology_handles(
    run: RunReader, styles: dict[str, LineStyle], speeds: FloatArray, *, scale: float
) -> list[Any]:
    """The legend: device kinds, and the widths of the slowest and the fastest link drawn."""
    handles = [
        key(kind, marker=style.marker, linestyle="", **marker(style.color, width=0.6, size=6))
        for kind, style in styles.items()
    ]
    speeds = speeds[np.isfinite(speeds)]
    if speeds.size:
        unit = unit_of(run)
        top = float(speeds.max())
        for speed in dict.fromkeys((float(speeds.min()), top)):
            text = f"{number(speed / BITS[unit])} {unit}"
            width = scale * link_width(speed, top)
            handles.append(key(text, color=QUIET, linewidth=width))
    return handles


def link_width(speed: float, top: float) -> float:
    """Line width of a link: in proportion to its speed, never invisible; unknown ones are thin."""
    thin, thick = WIDTHS
    if np.isnan(speed):
        return thin
    return thin + (thick - thin) * min(1.0, speed / top if top > 0 else 1.0)


def draw_timeline(
    axes: Any, run: RunReader, round_index: int, *, devices: Sequence[str], order: Sequence[str]
) -> list[Any]:
    """How every worker spent a round: compute, communicate, wait. Returns the legend's handles."""
    # By device kind, fastest first; of very many workers an even selection.
    ranked = sorted(range(len(devices)), key=lambda worker: order.index(devices[worker]))
    rows = [ranked[i] for i in spread_evenly(len(ranked), MOST_TIMELINE_ROWS)]
    if run.meta("asynchronous"):
        handles, text = _draw_turns(axes, run, round_index, rows)
    else:
        handles, text = _draw_round(axes, run, round_index, rows)
        axes.set_xlim(left=0)
    axes.set_yticks(range(len(rows)), [f"{devices[worker]}  {worker}" for worker in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_ylabel("worker")
    if len(rows) < len(devices):
        text += f", {len(rows)} of {len(devices)} workers"
    axes.set_xlabel(text)
    return handles


def _draw_round(
    axes: Any, run: RunReader, round_index: int, rows: Sequence[int]
) -> tuple[list[Any], str]:
    """A round with a barrier, from its start. Returns the legend's handles and the axis' name."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    table = run.table("workers", round_index=round_index)
    transfers, overlapped = transfer_times(run, table), overlaps(run, round_index)
    hatched: Any = {"edgecolor": FAINT, "hatch": "////"}
    # Both go on at the same time: one above the other, in the same row.
    bar, lift = (BAR, 0.0) if not overlapped else ({**BAR, "height": BAR["height"] / 2}, 0.185)
    for row, worker in enumerate(rows):
        if table["worker_time"][worker] is None:
            axes.text(0, row, " away", va="center", color=QUIET, style="italic", fontsize=6.5)
            continue
        compute, transfer = table["compute_time"][worker], transfers[worker] or 0.0
        axes.barh(row - lift, compute, color=BLUE, **bar)
        axes.barh(row + lift, transfer, left=0 if overlapped else compute, color=ORANGE, **bar)
        wait = table["waiting_time"][worker]
        if wait > 0:
            axes.barh(row, wait, left=table["worker_time"][worker], color="white", **hatched, **BAR)
    handles = _part_handles()
    if any(table["waiting_time"][worker] for worker in rows):
        handles.append(Patch(facecolor="#f3f3f3", linewidth=0, label="wait", **hatched))
    facts = run.table("facts", round_index=round_index)
    known = dict(zip(facts["name"], facts["value"], strict=True))
    planned = known.get("deadline")
    if planned is not None:
        # The deadline of a group average counts from the end of its transfer.
        planned += known.get("transfer_time") or 0.0
        axes.axvline(planned, color=INK, linewidth=0.9, dashes=(3, 2), zorder=4)
        handles.append(key("planned deadline", color=INK, linewidth=0.9, dashes=(3, 2)))
    pace = read_pace(run, round_index)
    # The hollow mark is larger, so that both are seen where the plan was right.
    for marked, name, face, size in (
        (pace.planned_worker, "planned to be last", "white", 6.0),
        (pace.last_worker, "finished last", INK, 3.5),
    ):
        if marked is not None and marked in rows and table["worker_time"][marked] is not None:
            options = {"linestyle": "", "marker": "o", **marker(face, width=0.8, size=size)}
            at = [table["worker_time"][marked]], [rows.index(marked)]
            mark = Line2D(*at, clip_on=False, zorder=5, label=name, **options)
            axes.add_line(mark)
            handles.append(mark)
    return handles, f"time in round {round_index} (s)"


def _draw_turns(
    axes: Any, run: RunReader, round_index: int, rows: Sequence[int]
) -> tuple[list[Any], str]:
    """Some turns around a round without a barrier, where they were in virtual time."""
    window = read_turns(run, round_index)
    place = {worker: row for row, worker in enumerate(rows)}
    for phase in window.phases:
        if phase.worker not in place:
            continue
        start, finish = max(phase.start, window.left), min(phase.finish, window.right)
        color = BLUE if phase.partner is None else ORANGE
        axes.barh(place[phase.worker], finish - start, left=start, color=color, **BAR)
    averaged = [
        (phase.finish, place[phase.worker], place[phase.partner])
        for phase in window.phases
        if phase.partner in place and phase.worker in place and phase.finish <= window.right
    ]
    for time, sender, partner in averaged:
        axes.plot([time, time], [sender, partner], color=INK, linewidth=0.5, zorder=4)
        axes.plot([time], [partner], marker=7 if partner > sender else 6, color=INK, zorder=4, ms=2)
    axes.axvspan(window.began, window.ended, color=AWAY_COLOR, linewidth=0, zorder=0)
    axes.set_xlim(window.left, window.right)
    if not window.recorded:
        middle = (window.left + window.right) / 2, (len(rows) - 1) / 2
        text = "when turns began is not on record"
        axes.text(*middle, text, ha="center", color=QUIET, style="italic")
    line = key("averages with", color=INK, linewidth=0.5, marker=7, ms=2)
    return [*_part_handles(), line], f"virtual time (s), round {round_index} in grey"


def _part_handles() -> list[Any]:
    from matplotlib.patches import Patch

    parts = {"compute": BLUE, "communicate": ORANGE}
    return [Patch(facecolor=color, label=name) for name, color in parts.items()]


@dataclass(frozen=True, slots=True)
class WorkerRows:
    """The workers of a run in the order of its heat maps."""

    devices: list[str]
    styles: dict[str, LineStyle]
    rows: list[int]  # the worker of every row, from the top; of very many an even selection
    step_time: FloatArray  # [rounds, N] s; NaN where a worker finished no step

    def mean_step_time(self, worker: int) -> float:
        """Over the rounds in which it took a step; NaN if there is none."""
        known = finite(self.step_time[:, worker])
        return float(known.mean()) if known.size else float("nan")


def read_worker_rows(run: RunReader) -> WorkerRows:
    devices, styles = run_devices(run)
    workers = WorkerRows(devices, styles, [], run.array("workers", "step_time"))
    rank = {kind: index for index, kind in enumerate(styles)}

    def position(worker: int) -> tuple[int, float, int]:
        speed = workers.mean_step_time(worker)
        return rank[devices[worker]], np.inf if np.isnan(speed) else speed, worker

    order = sorted(range(len(devices)), key=position)
    workers.rows.extend(order[row] for row in spread_evenly(len(order), MOST_ROWS))
    return workers


def finite(values: FloatArray) -> FloatArray:
    return values[np.isfinite(values)]


def unit_of(run: RunReader) -> str:
    return str(run.meta("experiment")["world"]["bandwidth"]["unit"])


def bandwidth_of(run: RunReader) -> tuple[FloatArray, str]:
    """Bandwidth at the start of every round, [rounds, N], in the unit of the experiment."""
    unit = unit_of(run)
    return run.array("workers", "bandwidth") * 8 / BITS[unit], unit


def local_steps_of(run: RunReader) -> FloatArray:
    """Local steps of every round, [rounds, N]; NaN for workers that are away."""
    present = ~np.isnan(run.array("workers", "worker_time"))
    return np.where(present, run.array("workers", "local_steps"), np.nan)


def varies(values: FloatArray) -> bool:
    known = finite(values)
    return bool(known.size) and float(np.ptp(known)) > 1e-9 * float(abs(known).max())


@paper_style()
def world(run: RunReader) -> Figure:
    workers = read_worker_rows(run)
    speed, unit = bandwidth_of(run)
    height = 0.75 + _map_height(workers)
    if not varies(speed):
        figure = new_figure(COLUMN, height)
        _step_times(figure.subplots(), workers)
        return figure
    figure = new_figure(PAGE, height)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1, 2.1))
    left.set_title("Computing", loc="left")
    _step_times(left, workers)
    right.set_title("Links", loc="left")
    edges = np.array([0.0, *run.table("rounds")["clock"]])
    _heat_map(right, workers, speed, edges, f"bandwidth ({unit})")
    right.set_xlabel("virtual time (s)")
    right.tick_params(axis="y", labelleft=False, length=0)
    return figure


@paper_style()
def step_map(run: RunReader) -> Figure:
    workers, steps = read_worker_rows(run), local_steps_of(run)
    figure = new_figure(PAGE, 0.6 + _map_height(workers))
    axes: Any = figure.subplots()
    edges = np.arange(len(steps) + 1, dtype=np.float64) + 0.5
    _heat_map(axes, workers, steps, edges, "local steps")
    _name_rows(axes, workers)
    axes.set_xlabel("round")
    axes.xaxis.get_major_locator().set_params(integer=True)
    return figure


@paper_style()
def link_maps(run: RunReader, rounds: Sequence[int]) -> Figure:
    """The links as tables of all pairs, where they are too many to be distinguished as lines."""
    workers, unit = read_worker_rows(run), unit_of(run)
    links = [read_links(run, index) for index in rounds]
    width = PAGE if len(rounds) > 1 else COLUMN
    figure = new_figure(width, (width - 1.3) / len(rounds) + 0.4)
    panels = figure.subplots(1, len(rounds), squeeze=False)[0]
    top = max(float(finite(each.speed).max(initial=0.0)) for each in links) / BITS[unit]
    for axes, round_links in zip(panels, links, strict=True):
        grid = np.full((len(workers.devices), len(workers.devices)), np.nan)
        for (a, b), speed in zip(round_links.pairs, round_links.speed / BITS[unit], strict=True):
            grid[a, b] = speed
            if not round_links.directed:
                grid[b, a] = speed
        shown = np.ma.masked_invalid(grid[np.ix_(workers.rows, workers.rows)])
        heat = axes.imshow(shown, cmap=COLORMAP, vmin=0.0, vmax=top, interpolation="none")
        _separate_kinds(axes, workers, upright=True)
        _name_rows(axes, workers, kinds_only=True)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        what = "transfer" if round_links.directed else "link"
        axes.set_xlabel(f"round {round_links.round_index}: {count(round_links.total, what)}")
        if axes is not panels[0]:
            axes.tick_params(labelleft=False)
    scale = figure.colorbar(heat, ax=list(panels), label=f"speed ({unit})", pad=0.015, aspect=30)
    scale.outline.set_visible(False)
    return figure


@paper_style()
def timelines(
    runs: Sequence[RunReader], round_index: int, *, names: Mapping[str, str] | None = None
) -> Figure:
    """How every worker spent one round, in several runs; with a common time axis if all have a
    barrier.

    `names` of their labels are shown, if known.
    """
    devices_and_styles = [run_devices(run) for run in runs]
    same = all(devices == devices_and_styles[0][0] for devices, _ in devices_and_styles)
    tallest = max(min(MOST_TIMELINE_ROWS, len(devices)) for devices, _ in devices_and_styles)
    figure = new_figure(PAGE, 1.05 + 0.15 * tallest)
    barriers = not any(run.meta("asynchronous") for run in runs)  # else time is not since its start
    panels = figure.subplots(1, len(runs), sharex=barriers, squeeze=False)[0]
    handles: dict[str, Any] = {}
    for axes, run, (devices, styles) in zip(panels, runs, devices_and_styles, strict=True):
        index = check_round(run, round_index)
        for handle in draw_timeline(axes, run, index, devices=devices, order=list(styles)):
            handles.setdefault(handle.get_label(), handle)
        label = run.meta("label")
        title = (names or {}).get(label, label_name(label))
        axes.set_title(fill(title, TITLE_LETTERS // len(runs)), loc="left")
        axes.set_ylabel("")
        axes.xaxis.get_major_locator().set_params(nbins=6)
        if same and axes is not panels[0]:
            axes.tick_params(labelleft=False)
    if barriers:  # each panel has set the common axis for itself; the longest round must fit
        panels[0].set_xlim(0, 1.03 * max(axes.dataLim.x1 for axes in panels))
    columns = len(handles) if len(handles) <= LEGEND_COLUMNS else -(-len(handles) // 2)
    legend_above(figure, list(handles.values()), columns=columns)
    return figure


def _map_height(workers: WorkerRows) -> float:
    """Inches of the rows; very many become thin."""
    return WORKER_HEIGHT * min(MOST_NUMBERED, len(workers.rows))


def _step_times(axes: Any, workers: WorkerRows) -> None:
    """A marker for every worker's mean, a line for nine tenths of its rounds."""
    from matplotlib.ticker import FixedLocator

    means = []
    for row, worker in enumerate(workers.rows):
        known = finite(workers.step_time[:, worker])
        if not known.size:
            continue
        style = workers.styles[workers.devices[worker]]
        means.append(float(known.mean()))
        low, high = np.quantile(known, (0.05, 0.95))
        axes.plot([low, high], [row, row], color=INK, linewidth=0.8, zorder=2)
        size = 4.5 if len(workers.rows) <= MOST_NUMBERED else 2.5
        options = marker(style.color, size=size)
        axes.plot([means[-1]], [row], style.marker, **options, zorder=3)
    _name_rows(axes, workers)
    axes.grid(axis="x", color=AWAY_COLOR, linewidth=0.5, zorder=0)
    axes.set_xlabel("time per local step (s)")
    low, high = min(means, default=0.0), max(means, default=0.0)
    if not 0 < WIDE_RANGE * low <= high:
        axes.set_xlim(left=0)
        return
    powers = range(int(np.floor(np.log10(low))) - 1, int(np.ceil(np.log10(high))) + 1)
    plain_log(axes, "x", FixedLocator([d * 10.0**p for p in powers for d in (1, 3)]))
    axes.set_xlim(0.75 * low, 1.35 * high)


def _heat_map(
    axes: Any, workers: WorkerRows, values: FloatArray, edges: FloatArray, name: str
) -> None:
    """Values [rounds, N] as a map with its scale; of very many rounds an even selection."""
    columns = spread_evenly(len(values), MOST_COLUMNS)
    sides = np.append(edges[columns], edges[-1])
    grid = np.ma.masked_invalid(values[np.ix_(columns, workers.rows)].T)
    rows = np.arange(len(workers.rows) + 1) - 0.5
    # A map of paths would be megabytes.
    heat = axes.pcolormesh(sides, rows, grid, cmap=COLORMAP, rasterized=True, linewidth=0)
    axes.set_facecolor(AWAY_COLOR)
    axes.set_xlim(sides[0], sides[-1])
    axes.set_ylim(len(workers.rows) - 0.5, -0.5)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    _separate_kinds(axes, workers)
    scale = axes.figure.colorbar(heat, ax=axes, label=name, pad=0.015, aspect=40)
    scale.outline.set_visible(False)
    scale.locator.set_params(integer=bool(np.all(grid.compressed() % 1 == 0)))
    scale.update_ticks()


def _separate_kinds(axes: Any, workers: WorkerRows, *, upright: bool = False) -> None:
    """Lines between the kinds of devices; in a table of pairs white would be a missing link."""
    style: Any = {"color": INK, "linewidth": 0.7} if upright else {"color": "white"}
    kinds = [workers.devices[worker] for worker in workers.rows]
    for row in range(1, len(kinds)):
        if kinds[row] != kinds[row - 1]:
            axes.axhline(row - 0.5, **style)
            if upright:
                axes.axvline(row - 0.5, **style)


def _name_rows(axes: Any, workers: WorkerRows, *, kinds_only: bool = False) -> None:
    """Each worker's device and number; of many workers only the kinds, each in its middle."""
    kinds = [workers.devices[worker] for worker in workers.rows]
    if len(kinds) <= MOST_NUMBERED and not kinds_only:
        names = [f"{kind}  {worker}" for kind, worker in zip(kinds, workers.rows, strict=True)]
        axes.set_yticks(range(len(names)), names)
    else:
        middle = {kind: np.mean(np.flatnonzero(np.array(kinds) == kind)) for kind in kinds}
        chosen = [list(middle)[i] for i in spread_evenly(len(middle), MOST_NUMBERED)]
        axes.set_yticks([middle[kind] for kind in chosen], chosen)
    axes.set_ylim(len(kinds) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
