"""Draws docs/images/fedhp_plus.png from a simulated run: python docs/pictures.py."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

import fedhp
from fedhp.record.reader import RunReader

TARGET = Path(__file__).with_name("images") / "fedhp_plus.png"
FIRST, LAST = 9, 15  # the rounds that are drawn
WORKERS = 10
TRAINING, FRAGMENTS = "#d9dde3", ("#0072b2", "#d55e00")


def main() -> None:
    """A short run of ten workers on the digits, a few of its rounds as a picture."""
    with tempfile.TemporaryDirectory() as folder:
        experiment = fedhp.make_experiment(
            {
                "workers": WORKERS,
                "rounds": LAST,
                "seed": 4,
                "data": {"skew": 0.8},
                "world": {"profile": "slow_links", "model_megabits": 12},
                "algorithm": {"name": "fedhp_plus"},
            }
        )
        with fedhp.run(experiment, Path(folder) / "run") as run:
            draw(run)


def draw(run: RunReader) -> None:
    """The timeline on the left, the tree of the last round on the right."""
    figure, (timeline, tree) = plt.subplots(
        1, 2, figsize=(11, 4.2), width_ratios=(3.1, 1), layout="constrained"
    )
    bandwidth = 8e-6 * run.array("workers", "bandwidth")
    draw_rounds(timeline, run, order=np.argsort(bandwidth[FIRST - 1 : LAST].mean(axis=0)))
    draw_tree(tree, run, bandwidth[LAST - 1])
    figure.legend(
        handles=[
            Patch(color=TRAINING, label="trains"),
            *(
                Patch(color=color, label=f"averages half {half} of the model, and trains")
                for half, color in zip("AB", FRAGMENTS, strict=True)
            ),
            Patch(facecolor="white", edgecolor="black", hatch="////", label="returns"),
            Line2D([], [], marker="o", color="black", linestyle="", label="root of the tree"),
        ],
        loc="outside lower center",
        ncols=5,
        frameon=False,
    )
    TARGET.parent.mkdir(exist_ok=True)
    figure.savefig(TARGET, dpi=150)


def draw_rounds(axes: Axes, run: RunReader, *, order: np.ndarray) -> None:
    """Who trains and who averages when, the fastest links on top."""
    clock = run.array("rounds", "clock")
    height = {int(worker): row for row, worker in enumerate(order)}
    start, end = clock[FIRST - 2], clock[LAST - 1]
    for row in range(WORKERS):
        axes.barh(row, end - start, left=start, height=0.8, color=TRAINING)
    facts = {(int(row[0]), row[1]): row[2] for row in rows(run, "facts", "round", "name", "value")}
    for round_index, worker, role, returns, root in rows(
        run, "participation", "round", "worker", "role", "returns", "root"
    ):
        if not FIRST <= round_index <= LAST or role in ("left_out", "away"):
            continue
        seconds = facts[(round_index, "transfer_time")]
        begin = clock[round_index - 2]
        axes.barh(
            height[worker],
            seconds,
            left=begin,
            height=0.8,
            color=FRAGMENTS[int(facts[(round_index, "fragment")])],
            hatch="////" if returns else None,
            edgecolor="white",
            linewidth=0,
        )
        if root:
            axes.plot(begin + seconds / 2, height[worker], "o", color="black", markersize=5)
    for round_index in range(FIRST, LAST + 2):
        axes.axvline(clock[round_index - 2], color="black", linewidth=0.6, linestyle=":")
    axes.set_yticks(range(WORKERS), [f"worker {worker}" for worker in order])
    axes.set_ylim(-0.6, WORKERS - 0.4)
    axes.set_xlim(start, end)
    axes.set_xlabel("virtual time (s); dotted: a round starts")
    axes.set_ylabel("slow links  →  fast links")
    axes.set_title("Train all the time, average among fast links", loc="left")
    axes.spines[["top", "right"]].set_visible(False)


def draw_tree(axes: Axes, run: RunReader, bandwidth: np.ndarray) -> None:
    """The links of the last round: sums go up, the step of the consensus comes down."""
    links = [
        (int(a), int(b))
        for round_index, a, b in rows(run, "links", "round", "a", "b")
        if round_index == LAST
    ]
    (root,) = (
        int(worker)
        for round_index, worker, root in rows(run, "participation", "round", "worker", "root")
        if round_index == LAST and root
    )
    levels, place = [[root]], {root: (0.0, 0.0)}
    while levels[-1]:
        below = [
            child
            for above in levels[-1]
            for child in sorted({a + b - above for a, b in links if above in (a, b)} - set(place))
        ]
        for column, child in enumerate(below):
            place[child] = (column - (len(below) - 1) / 2, -float(len(levels)))
        levels.append(below)
    for a, b in links:
        axes.annotate(
            "", place[a], place[b], arrowprops={"arrowstyle": "<->", "shrinkA": 11, "shrinkB": 11}
        )
    for worker, (x, y) in place.items():
        axes.plot(x, y, "o", markersize=21, color="black" if worker == root else "white")
        axes.plot(x, y, "o", markersize=21, markerfacecolor="none", markeredgecolor="black")
        label = f"{worker}\n{bandwidth[worker]:.1f}"
        color = "white" if worker == root else "black"
        axes.text(x, y, label, ha="center", va="center", fontsize=7, color=color)
    axes.margins(0.2)
    axes.set_axis_off()
    axes.set_title("The tree of the last round\n(worker, Mb/s)", loc="left", fontsize=10)


def rows(run: RunReader, table: str, *columns: str) -> list[tuple[Any, ...]]:
    """These columns of a table, row by row."""
    content = run.table(table)
    return list(zip(*(content[column] for column in columns), strict=True))


if __name__ == "__main__":
    main()
