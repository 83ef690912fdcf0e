"""The paper's figures are drawn from what is finished, and say what is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from fedhp.engine.runs.suite import FIGURES, PaperFigure, Suite
from fedhp.errors import ConfigError
from fedhp.report.claims.runs import SuiteRuns, group_runs, read_suite_runs
from fedhp.report.figures.paper import (
    PaperDrawing,
    draw_figure,
    paper_styles,
    read_figure_texts,
)
from fedhp.report.figures.style import PAGE, known_style, save_figure
from unit.report.conftest import Runs
from unit.report.suite_runs import (
    DRAWN,
    FILL,
    LABELS,
    figure_text,
    full_runs,
    full_suite,
    make_run,
    paper_cell,
    paper_figure,
    shaped_run,
    sweep_runs,
)

SETS = ("emnist", "cifar10", "image100")
TAUS = {5: 0.86, 10: 0.88, 20: 0.895, 27: 0.9, 30: 0.899, 50: 0.885, 100: 0.86}


def everything() -> SuiteRuns:
    return full_runs(SETS, more=sweep_runs(TAUS, key="emnist"))


def named(suite: Suite, name: str) -> PaperFigure:
    return next(figure for figure in suite.figures if figure.name == name)


def draw_all(figure: PaperFigure, suite: Suite, all_runs: SuiteRuns) -> list[PaperDrawing]:
    return draw_figure(figure, figure_text(figure.name), suite=suite, runs=all_runs)


def draw(name: str, suite: Suite, all_runs: SuiteRuns) -> PaperDrawing:
    [drawing] = draw_all(named(suite, name), suite, all_runs)
    return drawing


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts that cover each other."""
    figure.draw_without_rendering()
    texts = []
    for axes in figure.axes:
        found = [*axes.texts, axes.title, axes._left_title, axes._right_title]  # type: ignore[attr-defined]
        found += [axes.xaxis.label, axes.yaxis.label]
        found += [*axes.get_xticklabels(), *axes.get_yticklabels()]
        texts += [text for text in found if text.get_text() and text.get_visible()]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    return [
        (one, other)
        for i, (one, box) in enumerate(boxes)
        for other, second in boxes[:i]
        if box.width and second.width and box.shrunk(0.9, 0.8).overlaps(second.shrunk(0.9, 0.8))
    ]


@pytest.mark.parametrize("name", ["fig1", "fig2", "fig3", "fig4", "fig5", "fig6", "fig7"])
def test_every_kind_is_drawn_a_page_wide_without_overlaps(name: str, tmp_path: Path) -> None:
    suite = full_suite(SETS)
    drawing = draw(name, suite, everything())
    assert drawing.name == name
    assert drawing.caption.startswith(f"The title of {name}.")
    assert drawing.figure.get_figwidth() == PAGE
    assert overlapping(drawing.figure) == []
    png = save_figure(drawing.figure, tmp_path, name)[0]
    with Image.open(png) as image:
        pixels = np.asarray(image.convert("L"), dtype=np.int64)
    assert 0.01 < (pixels < 250).mean() < 0.5
    assert min(pixels[:, :2].min(), pixels[:, -1].min(), pixels[:2].min(), pixels[-1].min()) > 200


def test_the_alt_text_has_the_numbers() -> None:
    suite, all_runs = full_suite(SETS), everything()
    runs = all_runs.runs("emnist", "pens", skew=0.1)
    end = np.mean([run.summary.final_accuracy or 0 for run in runs])
    assert f"PENS {100 * end:.1f} %" in draw("fig2", suite, all_runs).alt
    waits = np.mean([run.summary.mean_waiting_time or 0 for run in runs])
    assert f"PENS {waits:.1f} s" in draw("fig7", suite, all_runs).alt
    assert "85 % after" in draw("fig3", suite, all_runs).alt
    assert "at p = 0.8" in draw("fig6", suite, all_runs).alt
    assert "with 27 steps" in draw("fig1", suite, all_runs).alt


def test_fedhp_as_the_paper_has_it_is_drawn_strongest() -> None:
    chosen = paper_styles(LABELS)
    assert chosen[FILL] == known_style("fedhp")
    assert max(chosen.values(), key=lambda look: look.width) == chosen[FILL]
    assert len({look.marker for look in chosen.values()}) == len(LABELS)
    assert len({(look.color, look.dashes) for look in chosen.values()}) == len(LABELS)
    assert paper_styles(["fedhp", FILL])["fedhp"] == known_style("fedhp")
    assert paper_styles(["dpsgd"]) == {"dpsgd": known_style("dpsgd")}


def test_the_skew_figure_uses_what_other_figures_ran() -> None:
    drawing = draw("fig6", full_suite(SETS), full_runs(SETS, skews=(0.1, 0.8)))
    lines = drawing.figure.axes[0].containers
    assert len(lines) == len(LABELS)
    assert [tick.get_text() for tick in drawing.figure.axes[0].get_xticklabels()] == ["0.1", "0.8"]


def test_missing_sets_and_unfinished_runs_are_named(tmp_path: Path) -> None:
    suite = full_suite(SETS, missing={"image100": "no such folder"})
    all_runs = full_runs(["cifar10"], labels=LABELS[:3], seeds=[0])
    left = [paper_cell("emnist", 0.1, "pens", seed=s, folder=tmp_path) for s in range(6)]
    drawing = draw("fig2", suite, replace(all_runs, unfinished=tuple(left)))
    assert "Missing: IMAGE-100, small (no such folder)." in drawing.caption
    assert "6 runs are unfinished and left out: PENS, seed 0, on EMNIST, small at p = 0.1" in (
        drawing.caption
    )
    assert "and 2 more" in drawing.caption
    assert len(drawing.figure.axes) == 2
    assert [text.get_text() for text in drawing.figure.axes[0].texts] == ["no finished run"]
    assert "EMNIST, small: no finished run." in drawing.alt
    drawing.figure.draw_without_rendering()


@pytest.mark.parametrize("name", ["fig1", "fig2", "fig3", "fig4", "fig5", "fig6", "fig7"])
def test_with_one_seed_and_few_runs_it_still_draws(name: str) -> None:
    ladder = sweep_runs({5: 0.8, 30: 0.9}, key="emnist", seeds=[0])
    all_runs = full_runs(["emnist"], labels=("dpsgd", FILL), seeds=[0], more=ladder)
    figure = draw(name, full_suite(SETS), all_runs).figure
    figure.draw_without_rendering()
    first, *others = figure.axes
    assert first.lines or first.patches
    if name == "fig1":
        assert [text.get_text() for axes in figure.axes for text in axes.texts] == [
            "paper: τ = 27",
            "paper: τ = 30",
        ]
        assert all(axes.containers for axes in others)
        return
    assert [[text.get_text() for text in axes.texts] for axes in others] == [
        ["no finished run"]
    ] * 2
    if name == "fig7":
        assert len(first.patches) == len(first.containers) == 2  # a bar for each algorithm
        return
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["FedHP (deadline=fill)", "D-PSGD"]
    drawn = {line.get_color() for line in first.lines}
    styles = paper_styles([FILL, "dpsgd"])
    assert {style.color for style in styles.values()} <= drawn


def test_nothing_finished_gives_no_figure_and_tables_are_not_drawn() -> None:
    suite = full_suite(SETS)
    assert draw_all(named(suite, "fig2"), suite, group_runs([])) == []
    assert draw_all(paper_figure("tables"), suite, everything()) == []


def test_several_levels_give_several_drawings() -> None:
    suite = full_suite()
    figure = paper_figure("fig4", skews=(0.6, 0.8))
    names = [drawing.name for drawing in draw_all(figure, suite, full_runs())]
    assert names == ["fig4-p0.6", "fig4-p0.8"]


@pytest.mark.parametrize(("rounds", "inside"), [(10, True), (200, False)])
def test_a_target_never_reached_is_marked_at_the_end_of_the_run(rounds: int, inside: bool) -> None:
    slow = [
        ("cifar10", 0.1, make_run("ldsgd", seed=seed, end=0.75, constant=20.0, rounds=rounds))
        for seed in range(3)
    ]
    runs = [("cifar10", 0.1, shaped_run(FILL, seed=seed)) for seed in range(3)]
    axes = draw("fig3", full_suite(), group_runs([*runs, *slow])).figure.axes[0]
    ended = np.mean([run.summary.completion_time for _, _, run in slow])
    open_marks = [
        float(np.asarray(line.get_ydata())[0])
        for line in axes.lines
        if line.get_markerfacecolor() == "white"
    ]
    assert len(open_marks) == 2  # 80 % and 85 %, not 70 %
    top = axes.get_ylim()[1]
    assert open_marks == pytest.approx([ended, ended] if inside else [top / 1.06] * 2)
    assert (ended < top) == inside


def test_the_seeds_of_every_data_set_are_told() -> None:
    more = [("image100", 0.1, shaped_run(FILL, seed=0)), ("emnist", 0.1, shaped_run(FILL, seed=0))]
    suite = full_suite(SETS)
    mixed = draw("fig2", suite, full_runs(["cifar10"], skews=[0.1], more=more))
    assert "Seeds: EMNIST, small 1, CIFAR-10, small 3, IMAGE-100, small 1." in mixed.caption
    few = [("cifar10", 0.8, shaped_run(FILL, skew=0.8, seed=0))]
    some = draw("fig6", suite, full_runs(["cifar10"], skews=[0.1], more=few))
    assert "1 to 3 seeds." in some.caption
    assert " 3 seeds." in draw("fig2", suite, everything()).caption


def test_times_that_differ_much_stand_on_a_logarithmic_axis() -> None:
    runs = [
        ("cifar10", 0.1, make_run(label, seed=seed, constant=constant))
        for label, constant in ((FILL, 10.0), ("dpsgd", 250.0))
        for seed in range(3)
    ]
    drawing = draw("fig3", full_suite(), group_runs(runs))
    assert drawing.figure.axes[0].get_yscale() == "log"
    assert "logarithmic" in drawing.caption
    assert draw("fig3", full_suite(), full_runs()).figure.axes[0].get_yscale() == "linear"


def marks(axes: Axes, shape: str) -> list[float]:
    return [
        float(np.asarray(line.get_xdata())[0]) for line in axes.lines if line.get_marker() == shape
    ]


def test_the_papers_waiting_times_are_open_diamonds() -> None:
    axes = draw("fig7", full_suite(SETS), everything()).figure.axes
    assert marks(axes[0], "D") == []  # the paper gives none for EMNIST
    assert sorted(marks(axes[1], "D")) == [1.7, 10.6, 12.1]
    assert sorted(marks(axes[2], "D")) == [2.9, 3.2, 19.2, 21.5, 24.7]


def test_waiting_times_far_beyond_ours_stay_at_the_edge() -> None:
    short = {label: {"waiting": 0.1} for label in LABELS}
    drawing = draw("fig7", full_suite(), full_runs(changes=short))
    axes = drawing.figure.axes[0]
    assert marks(axes, ">") == [axes.get_xlim()[1]] * 3
    assert "beyond the axis" in drawing.caption


def steps_texts(axes: Sequence[Axes]) -> list[str]:
    return [text.get_text() for each in axes for text in each.texts]


def test_the_steps_figure_marks_what_the_paper_says() -> None:
    axes = draw("fig1", full_suite(SETS), everything()).figure.axes
    assert steps_texts(axes) == ["paper: τ = 27", "paper: τ = 30"]
    assert [
        float(np.asarray(line.get_xdata())[0])
        for line in axes[0].lines
        if line.get_linestyle() == ":"
    ] == [27]


def test_the_pool_reads_finished_cells_once_and_names_the_others(
    runs: Runs, tmp_path: Path
) -> None:
    cells = [
        paper_cell("cifar10", 0.1, "fedhp", seed=1, folder=runs.fedhp[1]),
        paper_cell("cifar10", 0.1, "fedhp", seed=0, folder=runs.fedhp[0]),
        paper_cell("cifar10", 0.1, "dpsgd", seed=2, folder=runs.stopped),
        paper_cell("cifar10", 0.1, "pens", seed=0, folder=tmp_path / "absent"),
    ]
    figure = paper_figure("fig2", labels=("fedhp", "dpsgd", "pens"), cells=cells)
    suite = replace(full_suite(), figures=(figure, figure))
    all_runs = read_suite_runs(suite)
    assert [run.summary.seed for run in all_runs.runs("cifar10", "fedhp", skew=0.1)] == [0, 1]
    assert all_runs.runs("cifar10", "dpsgd", skew=0.1) == []
    assert [each.cell.label for each in all_runs.unfinished] == ["dpsgd", "pens"]
    assert all_runs.levels("cifar10") == [0.1]
    assert all_runs.levels("cifar10", "pens") == []


def test_the_papers_files_say_what_each_figure_is() -> None:
    texts = read_figure_texts(FIGURES)
    assert list(texts) == list(FIGURES)
    assert all(text.title and text.claim for text in texts.values())
    assert {text.draw for text in texts.values()} == set(DRAWN.values())


def test_an_unknown_kind_of_drawing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fig1.toml").write_text('title = "T"\nclaim = "C"\ndraw = "pie"\n')
    with pytest.raises(ConfigError, match="accuracy") as caught:
        read_figure_texts(["fig1"], tmp_path)
    assert "draw" in str(caught.value)
