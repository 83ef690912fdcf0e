"""Figures are written, have ink, repeat bit for bit, and draw the right numbers."""

from __future__ import annotations

import itertools
import math
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from PIL import Image

import fedhp
from fedhp.algorithms.base import ALGORITHMS
from fedhp.errors import RunError
from fedhp.record.reader import RunReader
from fedhp.report.figures.comparison import (
    accuracy_over_rounds,
    accuracy_over_time,
    local_steps,
    overview,
    overview_words,
    save_comparison_figures,
    time_to_target,
    waiting_time,
)
from fedhp.report.figures.run import save_run_figures, timeline, topology
from fedhp.report.figures.style import (
    HUES,
    VERMILLION,
    device_styles,
    known_style,
    line_styles,
    save_figure,
)
from fedhp.report.formatting import short_names
from fedhp.report.groups import mean_curve, read_comparison
from unit.report.conftest import Runs
from unit.report.runs import make_run, query

NAMES = [
    "overview",
    "accuracy_over_time",
    "accuracy_over_rounds",
    "time_to_target",
    "waiting_time",
    "local_steps",
]


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"), dtype=np.int64)


def ink(path: Path) -> float:
    """The share of pixels that are not white."""
    return float((pixels(path) < 250).any(axis=2).mean())


def bars(axes: Axes) -> list[tuple[float, float]]:
    """(left, width) of every bar."""
    found = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    return [(bar.get_x(), bar.get_width()) for bar in found]


@pytest.fixture(scope="module")
def drawn(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("figures")
    paths = save_comparison_figures(runs.comparison, out)
    assert paths == [out / f"{name}.{kind}" for name in NAMES for kind in ("png", "svg", "pdf")]
    return out


@pytest.mark.parametrize("name", NAMES)
def test_comparison_figures_have_ink_and_the_size_of_a_column(drawn: Path, name: str) -> None:
    path = drawn / f"{name}.png"
    width = pixels(path).shape[1]
    assert width == (1440 if name == "overview" else 700)
    assert 0.01 < ink(path) < 0.6
    border = np.concatenate([pixels(path)[:, :2].ravel(), pixels(path)[:, -1].ravel()])
    assert border.min() > 200, "something is cut off at the edge"
    assert (drawn / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    svg = (drawn / f"{name}.svg").read_text()
    assert "<svg" in svg
    assert "<dc:date>" not in svg


def test_fedhp_has_the_strongest_colour(drawn: Path) -> None:
    color = np.array([int(VERMILLION[i : i + 2], 16) for i in (1, 3, 5)])
    found = (abs(pixels(drawn / "waiting_time.png") - color).max(axis=2) <= 2).sum()
    assert found > 100


def test_the_same_run_gives_the_same_files(runs: Runs, tmp_path: Path) -> None:
    for out in ("a", "b"):
        comparison = read_comparison(runs.comparison[:3])
        save_figure(waiting_time(comparison), tmp_path / out, "waiting")
    for kind in ("png", "svg", "pdf"):
        one, other = (tmp_path / out / f"waiting.{kind}" for out in ("a", "b"))
        assert one.read_bytes() == other.read_bytes()


def test_drawing_leaves_no_global_trace(runs: Runs) -> None:
    before = dict(matplotlib.rcParams)
    overview(read_comparison(runs.comparison[:2]))
    assert dict(matplotlib.rcParams) == before
    for path in Path(fedhp.__file__).with_name("report").glob("*.py"):
        assert "import pyplot" not in path.read_text()
        assert "matplotlib.pyplot" not in path.read_text()


def test_a_label_keeps_its_colour_in_any_company() -> None:
    labels = ["fedhp", "dpsgd", "adpsgd:steps=100", "fedhp:deadline=fill", "own:Algorithm"]
    together = line_styles(labels)
    for label in labels:
        assert line_styles([label])[label].color == together[label].color
        assert line_styles(["pens", label])[label].color == together[label].color
    assert together["fedhp"] == known_style("fedhp")
    assert together["fedhp"].width == max(look.width for look in together.values())


def test_many_labels_are_told_apart_by_more_than_colour() -> None:
    labels = [*ALGORITHMS, "fedhp:deadline=fill", "adpsgd:steps=50", "adpsgd:steps=100"]
    chosen = line_styles(labels)
    assert len({look.marker for look in chosen.values()}) == len(labels)
    assert len({(look.color, look.dashes) for look in chosen.values()}) == len(labels)
    kinds = device_styles(["laptop", "xavier_nx", "jetson_tx2"])
    assert len({look.marker for look in kinds.values()}) == 3


ROBUST = [
    "dpsgd:attack.kind=none",
    "dpsgd",
    *(f"dpsgd:exchange.robust={rule}" for rule in ("clip", "trimmed_mean", "median", "krum")),
    "dpsgd:exchange.robust=clip:exchange.radius=0.6",
    "dpsgd:exchange.robust=clip:exchange.radius=0.9",
    "dpsgd:exchange.robust=none",
]


def difference(first: str, second: str) -> float:
    """How different two colours look, black and white about 765 (the redmean formula)."""
    a, b = ([int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in (first, second))
    red = (a[0] + b[0]) / 2
    parts = (2 + red / 256, 4.0, 2 + (255 - red) / 256)
    return math.sqrt(sum(part * (x - y) ** 2 for part, x, y in zip(parts, a, b, strict=True)))


@pytest.mark.parametrize("others", [[], ["fedhp", "adpsgd"]])
def test_eight_variants_of_one_algorithm_differ_clearly(others: list[str]) -> None:
    chosen = line_styles([*others, *ROBUST])
    assert chosen["dpsgd"] == known_style("dpsgd")
    assert all(chosen[label] == known_style(label) for label in others)
    looks = list(chosen.values())
    assert len({look.marker for look in looks}) == len(looks)
    for one, two in itertools.combinations(looks, 2):
        assert difference(one.color, two.color) > 120, (one, two)
    most_alike = max(Counter(look.dashes for look in looks).values())
    assert most_alike <= 3


def test_two_variants_are_shades_of_their_algorithm() -> None:
    pair = line_styles(["dpsgd", *ROBUST[2:4]])
    alone = line_styles([ROBUST[2]])
    assert pair[ROBUST[2]].color == alone[ROBUST[2]].color
    assert pair[ROBUST[2]].color not in HUES


def test_the_mean_curve_holds_values_and_stays_where_all_seeds_have_data(runs: Runs) -> None:
    group = read_comparison(runs.fedhp).groups[0]
    curve = mean_curve(group.finished, lambda run: run.clock)
    assert curve is not None
    tables = [query(folder, "SELECT clock, accuracy FROM evaluations") for folder in runs.fedhp]
    start, end = max(t[0][0] for t in tables), min(t[-1][0] for t in tables)
    assert (curve.x[0], curve.x[-1]) == (start, end)
    for x, mean, low, high in zip(curve.x, curve.mean, curve.low, curve.high, strict=True):
        held = [[value for clock, value in table if clock <= x][-1] for table in tables]
        assert mean == pytest.approx(sum(held) / 2)
        # Two seeds: t = 12.706, half-width = t * |a - b| / 2.
        assert high - mean == pytest.approx(12.7062 * abs(held[0] - held[1]) / 2, rel=1e-4)
        assert mean - low == pytest.approx(high - mean)


def test_runs_without_a_common_time_have_no_mean_curve(runs: Runs) -> None:
    first, second = read_comparison(runs.fedhp).groups[0].finished
    later = replace(second, clock=second.clock + first.clock[-1])
    assert mean_curve([first, later], lambda run: run.clock) is None


def test_runs_without_a_common_time_are_drawn_one_by_one(runs: Runs) -> None:
    comparison = read_comparison(runs.fedhp)
    group = comparison.groups[0]
    tested_once = tuple(
        replace(run, clock=run.clock[:1] + seed, rounds=run.rounds[:1], values=run.values[:1])
        for seed, run in enumerate(group.runs)
    )
    crowd = replace(comparison, groups=(replace(group, runs=tested_once),))
    axes = accuracy_over_time(crowd).axes[0]
    drawn = [np.asarray(line.get_ydata()).tolist() for line in axes.lines]
    for run in tested_once:
        assert (100 * run.values).tolist() in drawn


def test_an_unfinished_run_is_marked_and_not_averaged(runs: Runs, tmp_path: Path) -> None:
    comparison = read_comparison([*runs.dpsgd, runs.stopped])
    group = comparison.groups[0]
    assert group.name == "D-PSGD [1/3 diverged]"
    assert len(group.finished) == 2
    assert sorted(group.numbers(lambda run: run.seed)) == [0, 1]
    axes = accuracy_over_rounds(comparison).axes[0]
    crosses = [line for line in axes.lines if line.get_marker() == "x"]
    assert [np.asarray(line.get_xdata()).tolist() for line in crosses] == [[3]]
    alone = save_figure(waiting_time(read_comparison([runs.stopped])), tmp_path, "alone")
    assert ink(alone[0]) > 0.005


def test_targets_nobody_reached_are_named(runs: Runs) -> None:
    figure = time_to_target(read_comparison(runs.comparison))
    reached, missed = figure.axes
    assert "30 %" in reached.get_xlabel()
    assert "99.9 %" in missed.get_xlabel()
    assert [text.get_text() for text in missed.texts] == ["not reached"] * 5
    [(clock,)] = query(runs.adpsgd, "SELECT min(clock) FROM evaluations WHERE accuracy >= 0.3")
    assert clock in [width for _, width in bars(reached)]


@pytest.mark.parametrize("which", ["fedhp", "adpsgd", "pens", "away"])
def test_run_figures_are_drawn_for_every_kind_of_run(
    runs: Runs, tmp_path: Path, which: str
) -> None:
    folder = runs.fedhp[0] if which == "fedhp" else getattr(runs, which)
    with RunReader(folder) as run:
        links = topology(run, [1, 6])
        time = timeline(run, 3)
        [axes, _] = links.axes
        (count,) = query(folder, "SELECT sum(used) FROM links WHERE round = 1")[0]
        assert f"round 1: {count} " in axes.texts[-1].get_text()
        assert "round 3" in time.axes[0].get_xlabel()
        if which == "away":
            gone = save_figure(time, tmp_path, "timeline")
            assert ink(gone[0]) > 0.01


@pytest.mark.parametrize("targets", [(), ("0.3",)])
def test_the_caption_of_the_overview_names_its_panels(runs: Runs, targets: tuple[str, ...]) -> None:
    comparison = replace(read_comparison(runs.comparison), targets=targets)
    titles = [axes.get_title(loc="left") for axes in overview(comparison).axes]
    words = {
        "Learning": "Test accuracy over virtual time",
        "Time to target": "time to 30 %",
        "Waiting": "mean waiting time per round",
        "Data to target": "data that all workers send until 30 %",
        "Work by device": "local steps by device kind",
    }
    said = [title for title, part in words.items() if part in overview_words(comparison)]
    assert said == titles


def test_the_timeline_draws_the_recorded_times(runs: Runs) -> None:
    with RunReader(runs.dpsgd[0]) as run:
        axes = timeline(run, 2).axes[0]
    ends = sorted(left + width for left, width in bars(axes))
    (longest,) = query(runs.dpsgd[0], "SELECT max(worker_time) FROM workers WHERE round = 2")[0]
    assert ends[-1] == pytest.approx(longest)
    computed = {round(width, 9) for left, width in bars(axes) if left == 0}
    rows = query(runs.dpsgd[0], "SELECT compute_time FROM workers WHERE round = 2")
    assert computed == {round(time, 9) for (time,) in rows}


def test_errors_name_the_cause(runs: Runs, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no round is committed"):
        save_run_figures(runs.empty, tmp_path)
    with pytest.raises(RunError, match="no run to draw"):
        read_comparison([])
    with RunReader(runs.dpsgd[0]) as run, pytest.raises(RunError, match="round 7") as caught:
        timeline(run, 7)
    assert caught.value.allowed == "a round from 1 to 6"
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        save_figure(waiting_time(read_comparison([runs.dpsgd[0]])), blocked / "below", "x")


@pytest.mark.parametrize("metric", ["accuracy", "R2"])
def test_one_test_has_an_axis_that_can_be_read(tmp_path: Path, metric: str) -> None:
    folder = make_run(tmp_path / "run", "dpsgd", rounds=1, evaluation={"targets": []})
    comparison = replace(read_comparison([folder]), metric=metric)
    figure = accuracy_over_time(comparison)
    figure.draw_without_rendering()
    axis = figure.axes[0].yaxis
    assert axis.get_major_formatter().get_offset() == ""
    texts = [text for label in axis.get_majorticklabels() if (text := label.get_text())]
    assert len(set(texts)) == len(texts) > 1
    assert all(len(text) <= 6 for text in texts), texts


def test_twelve_long_labels_keep_bars_and_legends_whole(runs: Runs) -> None:
    comparison = read_comparison(runs.comparison)
    label = "adpsgd:steps=100:training.learning_rate=0.4:algorithm.some_long_setting={}"
    labels = [label.format(f"value-{index}") for index in range(12)]
    names = short_names([*labels, "dpsgd"])
    groups = [
        replace(comparison.groups[index % 5], label=label, title=names[label])
        for index, label in enumerate(labels)
    ]
    crowded = replace(comparison, groups=tuple(groups))
    for draw in (overview, accuracy_over_time, time_to_target, waiting_time, local_steps):
        figure = draw(crowded)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            figure.draw_without_rendering()
        whole = figure.bbox
        box = figure.get_tightbbox().transformed(figure.dpi_scale_trans)
        inside = (box.x0, box.y0, whole.x1 - box.x1, whole.y1 - box.y1)
        assert min(inside) >= -1, (draw.__name__, inside)
        for axes in figure.axes:
            size = axes.get_window_extent()
            assert size.width > 0.7 * figure.dpi, draw.__name__
            assert size.height > 0.7 * figure.dpi, draw.__name__
            texts = [text.get_window_extent() for text in axes.get_yticklabels() if text.get_text()]
            pairs = itertools.pairwise(sorted(texts, key=lambda text: text.y0))
            if axes.get_ylabel() == "":
                assert all(low.y1 <= high.y0 + 1 for low, high in pairs), draw.__name__


def test_warnings_of_matplotlib_do_not_reach_the_terminal(
    runs: Runs, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    comparison = read_comparison(runs.fedhp)
    groups = tuple(replace(group, title="\u4e2d\u6587") for group in comparison.groups)
    save_figure(waiting_time(replace(comparison, groups=groups)), tmp_path, "x")
    assert not recwarn.list
