"""The panels of one run: who talked to whom in a round, and how everyone spent it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedhp.record.reader import RunReader
from fedhp.report.figures.style import BLUE, FAINT, INK, ORANGE, QUIET, DeviceLook, device_looks
from fedhp.report.formatting import count, number
from fedhp.report.groups import device_order, kind_means
from fedhp.report.tables import spread_evenly
from fedhp.types import FloatArray
from fedhp.world.network import BITS

WIDTHS = (0.25, 2.0)  # of the slowest and the fastest link, points
CROWD = 70  # links from which on all of them get thinner
TALLEST = 60  # workers of a timeline
ARROWS = 5  # directed links per worker up to which arrows are drawn
MOST_ARROWS = 300
DRAWN = 400  # links of a picture: more would only be a grey disc
DOTS = 1000  # workers of a picture: more would only be the same ring
LABELS = 40  # workers up to which each has its number, and above which devices stand together


@dataclass(frozen=True, slots=True)
class RoundLinks:
    """The links used in one round, as far as they are recorded."""

    round_index: int
    total: int  # recorded or not
    pairs: list[tuple[int, int]]  # (receiver, sender) where directed
    speed: FloatArray  # bits per second that the transfer reached
    directed: bool
    away: list[int]


def read_links(run: RunReader, round_index: int) -> RoundLinks:
    """The used links of a round with their speed."""
    links = run.table("links", round_index=round_index)
    used = np.flatnonzero(links["used"])
    times = np.array([links["link_time"][i] or 0.0 for i in used])
    with np.errstate(divide="ignore"):
        speed = 8.0 * run.meta("model_bytes") / times
    workers = run.table("workers", round_index=round_index)
    row = run.table("rounds", round_index=round_index)
    return RoundLinks(
        round_index=round_index,
        total=row["links"][0],
        pairs=[(links["a"][i], links["b"][i]) for i in used],
        speed=speed,
        directed=bool(row["directed"][0]),
        away=[
            w for w, t in zip(workers["worker"], workers["worker_time"], strict=True) if t is None
        ],
    )


def run_devices(run: RunReader) -> tuple[list[str], dict[str, DeviceLook]]:
    """Every worker's device, and how each kind is drawn, fastest first."""
    devices = list(run.meta("devices"))
    times = kind_means(run.array("workers", "step_time"), devices)
    return devices, device_looks(device_order(times, devices))


def draw_topology(
    axes: Any,
    links: RoundLinks,
    devices: Sequence[str],
    looks: dict[str, DeviceLook],
    *,
    top: float,
    scale: float,
) -> None:
    """Workers on a circle, wider lines for faster links; `top` is the fastest speed drawn."""
    x, y = _places(devices, looks)
    size = marker_size(len(devices))
    shown = spread_evenly(len(links.pairs), DRAWN)
    lines = [(*links.pairs[i], scale * link_width(float(links.speed[i]), top)) for i in shown]
    if links.directed and len(lines) <= min(MOST_ARROWS, ARROWS * len(devices)):
        _arrows(axes, lines, x, y, room=size**0.5 / 2)
    else:
        _lines(axes, lines, x, y)
    _markers(axes, devices, looks, x, y, away=links.away)
    if len(devices) <= LABELS:
        for worker in range(len(devices)):
            axes.annotate(
                str(worker),
                (x[worker], y[worker]),
                (1.17 * x[worker], 1.17 * y[worker]),
                ha="center",
                va="center",
                fontsize=6.5,
                color=QUIET if worker in links.away else INK,
            )
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
    axes.text(0, -1.46, text, ha="center", va="center", fontsize=8)


def marker_size(workers: int) -> float:
    """The area of a worker's mark, so that a circle of them stays one."""
    return float(np.clip(900 / workers, 2, 110))


def _places(devices: Sequence[str], looks: dict[str, DeviceLook]) -> tuple[FloatArray, FloatArray]:
    """Where the workers stand: in order, or by device kind where they are too many to be named."""
    place = np.arange(len(devices))
    if len(devices) > LABELS:
        rank = {kind: rank for rank, kind in enumerate(looks)}
        order = np.argsort([rank[device] for device in devices], kind="stable")
        place[order] = np.arange(len(devices))
    angle = np.pi / 2 - 2 * np.pi * place / len(devices)
    return np.cos(angle), np.sin(angle)


def _arrows(
    axes: Any, lines: Sequence[tuple[int, int, float]], x: FloatArray, y: FloatArray, *, room: float
) -> None:
    for a, b, width in lines:
        # (receiver, sender): the arrow points the way the model travels.
        axes.annotate(
            "",
            (x[a], y[a]),
            (x[b], y[b]),
            arrowprops={
                "arrowstyle": "-|>,head_length=0.25,head_width=0.12",
                "linewidth": width,
                "color": QUIET,
                "shrinkA": 0,
                "shrinkB": room,
                "mutation_scale": 12,
            },
            zorder=1,
        )


def _lines(
    axes: Any, lines: Sequence[tuple[int, int, float]], x: FloatArray, y: FloatArray
) -> None:
    from matplotlib.collections import LineCollection

    ends = [((x[a], y[a]), (x[b], y[b])) for a, b, _ in lines]
    widths = [width for _, _, width in lines]
    axes.add_collection(LineCollection(ends, linewidths=widths, colors=QUIET, zorder=1))


def _markers(
    axes: Any,
    devices: Sequence[str],
    looks: dict[str, DeviceLook],
    x: FloatArray,
    y: FloatArray,
    *,
    away: Sequence[int],
) -> None:
    """One call per device kind: one per worker would take minutes for very many."""
    size = marker_size(len(devices))
    gone = np.isin(np.arange(len(devices)), away)
    shown = np.zeros(len(devices), dtype=np.bool_)
    shown[spread_evenly(len(devices), DOTS)] = True
    for kind, look in looks.items():
        mine = shown & np.array([device == kind for device in devices])
        # An edge around a dot this small would be all of it.
        edge = INK if len(devices) <= DOTS // 10 else look.color
        for rows, face, line in ((mine & ~gone, look.color, edge), (mine & gone, "white", FAINT)):
            axes.scatter(
                x[rows],
                y[rows],
                s=size,
                marker=look.marker,
                facecolor=face,
                edgecolor=line,
                linewidth=min(0.6, size / 20),
                zorder=3,
            )


def crowd_scale(links: Sequence[RoundLinks]) -> float:
    """How much thinner lines must be where there are very many."""
    lines = max(min(DRAWN, len(each.pairs)) for each in links)
    return float(np.clip(CROWD / max(1, lines), 0.2, 1.0))


def topology_handles(
    run: RunReader, looks: dict[str, DeviceLook], speeds: FloatArray, *, scale: float
) -> list[Any]:
    """The legend: device kinds, and the widths of the slowest and the fastest link drawn."""
    from matplotlib.lines import Line2D

    handles: list[Any] = [
        Line2D(
            [],
            [],
            linestyle="",
            marker=look.marker,
            markerfacecolor=look.color,
            markeredgecolor=INK,
            markeredgewidth=0.6,
            markersize=6,
            label=kind,
        )
        for kind, look in looks.items()
    ]
    speeds = speeds[np.isfinite(speeds)]
    if speeds.size:
        unit = run.meta("experiment")["world"]["bandwidth"]["unit"]
        top = float(speeds.max())
        for speed in dict.fromkeys((float(speeds.min()), top)):
            text = f"{number(speed / BITS[unit])} {unit}"
            width = scale * link_width(speed, top)
            handles.append(Line2D([], [], color=QUIET, linewidth=width, label=text))
    return handles


def link_width(speed: float, top: float) -> float:
    """Line width of a link: in proportion to its speed, never invisible."""
    thin, thick = WIDTHS
    return thin + (thick - thin) * min(1.0, speed / top if top > 0 else 1.0)


def draw_timeline(
    axes: Any, run: RunReader, round_index: int, *, devices: Sequence[str], order: Sequence[str]
) -> list[Any]:
    """How every worker spent a round: compute, communicate, wait. Returns legend handles."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    table = run.table("workers", round_index=round_index)
    rows = timeline_rows(devices, order)
    for place, worker in enumerate(rows):
        if table["worker_time"][worker] is None:
            axes.text(0, place, " away", va="center", color=QUIET, style="italic", fontsize=6.5)
            continue
        compute = table["compute_time"][worker]
        talk = table["communication_time"][worker]
        axes.barh(place, compute, color=BLUE, **_BAR)
        axes.barh(place, talk, left=compute, color=ORANGE, **_BAR)
        wait = table["waiting_time"][worker]
        if wait > 0:
            axes.barh(
                place,
                wait,
                left=compute + talk,
                color="white",
                edgecolor=FAINT,
                hatch="////",
                **_BAR,
            )
    handles: list[Any] = [
        Patch(facecolor=BLUE, label="compute"),
        Patch(facecolor=ORANGE, label="communicate"),
    ]
    if any(table["waiting_time"][worker] for worker in rows):
        handles.append(
            Patch(facecolor="#f3f3f3", edgecolor=FAINT, linewidth=0, hatch="////", label="wait")
        )
    facts = run.table("facts", round_index=round_index)
    planned = dict(zip(facts["name"], facts["value"], strict=True)).get("deadline")
    if planned is not None:
        axes.axvline(planned, color=INK, linewidth=0.9, dashes=(3, 2), zorder=4)
        line = Line2D([], [], color=INK, linewidth=0.9, dashes=(3, 2), label="planned deadline")
        handles.append(line)
    axes.set_yticks(range(len(rows)), [f"{devices[worker]}  {worker}" for worker in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlim(left=0)
    axes.set_ylabel("worker")
    text = f"time in round {round_index} (s)"
    if run.meta("asynchronous"):
        text = f"time of the turns that ended in round {round_index} (s)"
    if len(rows) < len(devices):
        text += f", {len(rows)} of {len(devices)} workers"
    axes.set_xlabel(text)
    return handles


def timeline_rows(devices: Sequence[str], order: Sequence[str]) -> list[int]:
    """The workers of a timeline by device kind, fastest first; an even choice of very many."""
    ranks = {kind: rank for rank, kind in enumerate(order)}
    rows = sorted(range(len(devices)), key=lambda worker: (ranks[devices[worker]], worker))
    if len(rows) <= TALLEST:
        return rows
    return [rows[round(i * (len(rows) - 1) / (TALLEST - 1))] for i in range(TALLEST)]


_BAR: dict[str, Any] = {"height": 0.74, "linewidth": 0, "zorder": 2}
