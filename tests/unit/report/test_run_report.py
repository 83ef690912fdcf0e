"""The report on runs: every section, figures and numbers next to it, nothing from outside."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path

import numpy as np
import pytest

from fedhp.errors import RunError
from fedhp.record.reader import RunReader
from fedhp.record.store import ROUND_TABLES
from fedhp.report.explain import explain_round, round_line
from fedhp.report.export import has_parquet
from fedhp.report.figures.run import (
    link_maps,
    local_steps_of,
    read_worker_rows,
    step_map,
    timelines,
    world,
)
from fedhp.report.formatting import seconds
from fedhp.report.groups import read_comparison
from fedhp.report.pages.findings import (
    result_sentences,
    step_words,
    topology_words,
    world_words,
)
from fedhp.report.pages.page import PageFigures, Section, render_page
from fedhp.report.pages.run_report import LOG_ROUNDS, decision_log, run_sections, save_report
from fedhp.report.rounds import read_round
from unit.report.conftest import Runs
from unit.report.markup import Markup, check_page, read_markup
from unit.report.runs import make_run, query, wide_run

ANCHORS = ["result", "world", "topology", "round", "steps", "decisions", "settings"]


@pytest.fixture(scope="module")
def files(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return save_report(runs.comparison, tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def text(files: list[Path]) -> str:
    return files[0].read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text: str) -> Markup:
    return check_page(text)


def body(sections: list[Section], anchor: str) -> str:
    return next(section.body for section in sections if section.anchor == anchor)


def test_the_page_has_every_chapter_with_a_figure(page: Markup, text: str) -> None:
    sections = page.all("section")
    assert [e.attributes["id"] for e in sections] == [*ANCHORS, "files"]
    for anchor in ("result", "world", "topology", "round", "steps"):
        part = text.split(f'<section id="{anchor}">')[1].split("</section>")[0]
        assert "<figure" in part
        assert "<svg" in part
    assert page.all("h1")[0].text == "FedHP, D-PSGD, AD-PSGD, LD-SGD and PENS"
    assert len(text) < 4_000_000


def test_every_figure_has_words_and_is_saved_for_a_paper(page: Markup, files: list[Path]) -> None:
    captions = [e.text for e in page.all("figcaption")]
    assert [int(each.split(".")[0].removeprefix("Figure ")) for each in captions] == [
        *range(1, len(captions) + 1)
    ]
    for svg in page.all("svg"):
        assert len(svg.attributes["aria-label"]) > 20
    saved = [path for path in files if path.parent.name == "figures"]
    names = {path.stem for path in saved}
    assert {e.attributes["id"].removeprefix("figure-") for e in page.all("figure")} < names
    assert {"waiting_time", "local_steps", "accuracy_over_time"} < names
    assert "links_fedhp" not in names, "fifteen links are seen well enough"
    for name in names:
        for kind in ("pdf", "svg", "png"):
            path = saved[0].parent / f"{name}.{kind}"
            assert path in saved
            assert path.stat().st_size > 1000
    listed = {e.text for e in page.all("th") if e.attributes["scope"] == "row"}
    assert names < listed


def test_the_table_has_the_means_of_the_record(runs: Runs, text: str) -> None:
    part = text.split('<section id="result">')[1].split("</table>")[0]
    rows = {element.text: element for element in read_markup(part + "</table></div>").all("th")}
    assert {"FedHP", "D-PSGD", "AD-PSGD", "LD-SGD", "PENS"} <= set(rows)
    waiting = [query(f, "SELECT avg(mean_waiting_time) FROM rounds")[0][0] for f in runs.dpsgd]
    assert f">{np.mean(waiting):.2f}<" in part


def test_labels_after_the_second_are_folded(page: Markup) -> None:
    figures = {e.attributes["id"].removeprefix("figure-"): e.path for e in page.all("figure")}
    assert "details" not in figures["topology_fedhp"]
    assert "details" not in figures["topology_dpsgd"]
    assert "details" not in figures["timeline_fedhp_dpsgd"]
    for name in ("topology_adpsgd", "topology_pens", "timeline_ldsgd", "steps_adpsgd"):
        assert "details" in figures[name]


def test_the_numbers_are_all_there(runs: Runs, files: list[Path]) -> None:
    data = {path.name: path for path in files if path.parent.name == "data"}
    assert {f"{table}.csv" for table in (*ROUND_TABLES, "summary", "means")} <= set(data)
    with data["workers.csv"].open(newline="") as stream:
        found = list(csv.DictReader(stream))
    expected = [
        (owner.meta("label"), owner.meta("seed"), *row)
        for folder in runs.comparison
        for owner in [RunReader(folder)]
        for row in query(
            folder, "SELECT round, worker, local_steps, step_time, bandwidth FROM workers"
        )
    ]
    columns = ("label", "seed", "round", "worker", "local_steps", "step_time", "bandwidth")
    given = [tuple(row[name] for name in columns) for row in found]
    written = [tuple("" if v is None else str(v) for v in row) for row in expected]
    assert sorted(given) == sorted(written)
    assert {(row["label"], row["seed"]) for row in found} >= {("fedhp", "1"), ("pens", "0")}


def test_means_and_summary(runs: Runs, files: list[Path]) -> None:
    folder = files[0].parent / "data"
    with (folder / "means.csv").open(newline="") as stream:
        means = {(row["label"], row["number"]): row for row in csv.DictReader(stream)}
    row = means["fedhp", "round_time"]
    times = [query(f, "SELECT avg(round_time) FROM rounds")[0][0] for f in runs.fedhp]
    assert float(row["mean"]) == pytest.approx(np.mean(times))
    assert float(row["high"]) - float(row["mean"]) == pytest.approx(
        12.7062 * abs(times[0] - times[1]) / 2, rel=1e-4
    )
    assert row["seeds"] == "2"
    assert means["fedhp", "time_to_0.999"]["mean"] == ""
    with (folder / "summary.csv").open(newline="") as stream:
        summary = list(csv.DictReader(stream))
    assert len(summary) == 7
    with RunReader(runs.fedhp[1]) as run:
        mine = next(row for row in summary if row["run"] == str(runs.fedhp[1]))
        assert mine["digest"] == run.digest()
        assert float(mine["time_to_0.30"]) == run.summary().time_to_target["0.30"]


def test_parquet_holds_the_same(files: list[Path]) -> None:
    if importlib.util.find_spec("pyarrow") is None:
        assert not has_parquet()
        assert not [path for path in files if path.suffix == ".parquet"]
        pytest.skip("pyarrow is not installed; pip install '.[parquet]'")
    import pyarrow.parquet

    for path in files:
        if path.parent.name != "data" or path.suffix != ".csv":
            continue
        table = pyarrow.parquet.read_table(path.with_suffix(".parquet"))
        with path.open(newline="") as stream:
            header, *rows = list(csv.reader(stream))
        assert table.column_names == header
        assert table.num_rows == len(rows)
        for name, column in zip(header, zip(*rows, strict=True), strict=False):
            values = table.column(name).to_pylist()
            assert ["" if value is None else str(value) for value in values] == list(column)


def test_the_same_runs_give_the_same_page(runs: Runs, tmp_path: Path) -> None:
    sections = run_sections([runs.away])
    page = save_report([runs.away], tmp_path)[0].read_text(encoding="utf-8")
    for section in sections:
        assert section.body in page, "shown or saved, a figure is the same"


@pytest.mark.parametrize("which", ["adpsgd", "away", "per_link", "stopped"])
def test_any_single_run_has_a_page(runs: Runs, which: str) -> None:
    sections = run_sections([getattr(runs, which)])
    assert [section.anchor for section in sections] == ANCHORS
    assert sections[0].title == "Result"
    markup = check_page(render_page(title="t", lead="l", sections=sections))
    assert len(markup.all("svg")) >= 4


def test_a_run_of_one_round(tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", "fedhp", rounds=1)
    markup = check_page(render_page(title="t", lead="l", sections=run_sections([one])))
    assert len(markup.all("svg")) >= 4


@pytest.mark.slow
def test_settings_that_differ_are_told_apart(runs: Runs, tmp_path: Path) -> None:
    files = save_report([*runs.dpsgd, runs.away], tmp_path)
    text = files[0].read_text(encoding="utf-8")
    markup = check_page(text)
    anchors = [e.attributes["id"] for e in markup.all("section")]
    assert anchors == [*ANCHORS, *(f"{anchor}-2" for anchor in ANCHORS), "files"]
    assert "2 settings, reported one after the other" in text
    assert sum("world.away" in e.text for e in markup.all("h2")) == 2 * len(ANCHORS)


def test_runs_of_different_tasks_stand_in_one_report(runs: Runs, tmp_path: Path) -> None:
    from fedhp.record.store import Store

    other = make_run(tmp_path / "other", "dpsgd", rounds=2)
    store = Store.open(other, write=True)
    store.set_meta("metric", "R2")
    store.close()
    sections = run_sections([runs.dpsgd[0], other])
    assert "Test R2 over virtual time" in body(sections, "result-2")


def test_an_unfinished_run_is_marked(runs: Runs) -> None:
    text = body(run_sections([*runs.dpsgd, runs.stopped]), "result")
    assert "D-PSGD, seed 2: diverged after 3 rounds" in text
    alone = body(run_sections([runs.stopped]), "result")
    assert "D-PSGD, seed 2: diverged after 3 rounds" in alone
    assert "No run has finished" in result_sentences(read_comparison([runs.stopped]))[0]


def test_the_log_tells_what_explain_tells(runs: Runs) -> None:
    with RunReader(runs.fedhp[0]) as run:
        log = decision_log(run)
        said = explain_round(run, 4)
        line = round_line(read_round(run, 4))
    markup = read_markup(log)
    assert len(markup.all("details")) == 6
    entry = next(e for e in markup.all("details") if e.text.strip().startswith("Round 4:"))
    for paragraph in said:
        assert paragraph.text in entry.text
    assert line in entry.text
    [(clock, links, waiting, time)] = query(
        runs.fedhp[0],
        "SELECT clock, links, mean_waiting_time, round_time FROM rounds WHERE round=4",
    )
    assert f"to {clock:.1f} s" in line
    assert f"{links} of 15 links kept" in line
    assert f"{seconds(waiting)} waiting ({100 * waiting / time:.0f} %)" in line
    assert "The same in a terminal: " in log
    assert "fedhp explain" in log


def test_a_long_log_is_a_choice_and_says_so(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "long", "dpsgd", rounds=25)
    with RunReader(folder) as run:
        log = read_markup(decision_log(run))
    heads = [e.text.split(":")[0] for e in log.all("summary")]
    assert len(heads) == LOG_ROUNDS
    assert (heads[0], heads[-1]) == ("Round 1", "Round 25")
    assert f"{LOG_ROUNDS} of 25 rounds. Any other in a terminal: " in log.all("p")[-1].text


def test_rows_stand_by_device_and_speed(runs: Runs) -> None:
    with RunReader(runs.fedhp[0]) as run:
        workers = read_worker_rows(run)
        devices = run.meta("devices")
    means = dict(query(runs.fedhp[0], "SELECT worker, avg(step_time) FROM workers GROUP BY worker"))
    assert sorted(workers.rows) == list(range(6))
    assert workers.rows == sorted(workers.rows, key=means.__getitem__), "laptops are the fastest"
    kinds = [devices[worker] for worker in workers.rows]
    assert list(dict.fromkeys(kinds)) == ["laptop", "xavier_nx", "jetson_tx2"]


def test_the_maps_draw_the_record(runs: Runs) -> None:
    with RunReader(runs.away) as run:
        workers = read_worker_rows(run)
        [heat] = step_map(run).axes[0].collections
        drawn = heat.get_array()
        assert drawn is not None
        grid = np.ma.getdata(drawn).reshape(6, 6)
        mask = np.ma.getmaskarray(drawn).reshape(6, 6)
        [bandwidth] = world(run).axes[1].collections
        shown = np.asarray(bandwidth.get_array()).reshape(6, 6)
    for h, worker, steps, speed, time in query(
        runs.away, "SELECT round, worker, local_steps, bandwidth, worker_time FROM workers"
    ):
        row = workers.rows.index(worker)
        assert mask[row, h - 1] == (time is None) == (worker == 2 and 2 <= h <= 4)
        if time is not None:
            assert grid[row, h - 1] == steps
        assert shown[row, h - 1] == pytest.approx(8 * speed / 1e6)


@pytest.mark.parametrize("order", [1, -1])
def test_timelines_share_their_scale(runs: Runs, order: int) -> None:
    with RunReader(runs.fedhp[0]) as fedhp, RunReader(runs.dpsgd[0]) as dpsgd:
        left, right = timelines([fedhp, dpsgd][::order], 3).axes
    assert left.get_xlim() == right.get_xlim()
    names = ["FedHP", "D-PSGD"][::order]
    assert [left.get_title(loc="left"), right.get_title(loc="left")] == names
    longest = max(
        query(folder, "SELECT round_time FROM rounds WHERE round=3")[0][0]
        for folder in (runs.fedhp[0], runs.dpsgd[0])
    )
    assert left.get_xlim()[1] >= longest


def test_what_is_the_same_all_the_time_is_said_not_drawn(runs: Runs, tmp_path: Path) -> None:
    uniform = make_run(tmp_path / "run", "dpsgd", rounds=2, world={"profile": "uniform"})
    sections = run_sections([uniform])
    assert "Every worker takes 10 local steps in every round." in body(sections, "steps")
    assert "<svg" not in body(sections, "steps")
    assert "Every link has 5.00 MB/s all the time." in body(sections, "world")
    with RunReader(uniform) as run:
        assert len(world(run).axes) == 1
    fixed = read_markup(body(run_sections([runs.dpsgd[0]]), "topology"))
    assert "the same in the first, the middle and the last round" in fixed.all("figcaption")[0].text


def test_findings_are_those_of_the_record(runs: Runs) -> None:
    folder = runs.fedhp[0]
    with RunReader(folder) as run:
        words, steps, links = world_words(run), step_words(run), topology_words(run)
    means = dict(query(folder, "SELECT worker, avg(step_time) FROM workers GROUP BY worker"))
    slow, quick = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    assert f"worker {slow} (" in words
    assert f"worker {quick} (" in words
    [(low, high)] = query(folder, "SELECT min(local_steps), max(local_steps) FROM workers")
    assert steps.startswith(f"From {low} to {high};")
    [(low, high)] = query(folder, "SELECT min(links), max(links) FROM rounds")
    assert links.startswith(f"{low} to {high} links per round")
    with RunReader(runs.away) as run:
        assert "Workers are away 8.3 % of the time." in world_words(run)


def test_who_was_first(runs: Runs) -> None:
    comparison = read_comparison([*runs.fedhp, *runs.dpsgd])
    text = " ".join(result_sentences(comparison))
    times = {
        group.name: np.mean(group.numbers(lambda run: run.time_to_target["0.30"]))
        for group in comparison.groups
    }
    first, second = sorted(times, key=times.__getitem__)
    start = f"to 30 % (means of 2 seeds): {first}, after {seconds(float(times[first]))}"
    assert start in text
    assert "2 seeds, too few to rank" in text
    assert f"Then {second} after {seconds(float(times[second]))}" in text


def test_a_dense_topology_is_also_shown_pair_by_pair(runs: Runs, tmp_path: Path) -> None:
    with RunReader(runs.pens) as run:
        workers = read_worker_rows(run)
        [first, _, _] = link_maps(run, [1, 2, 6]).axes[:3]
        missing = np.ma.getmaskarray(np.ma.asarray(first.images[0].get_array()))
    pairs = {(a, b) for a, b in query(runs.pens, "SELECT a, b FROM links WHERE round=1 AND used")}
    drawn = {(workers.rows[i], workers.rows[j]) for i, j in np.argwhere(~missing)}
    assert drawn == pairs, "a directed link has one cell"
    with RunReader(runs.fedhp[0]) as run:
        [only] = link_maps(run, [4]).axes[:1]
        shown = ~np.ma.getmaskarray(np.ma.asarray(only.images[0].get_array()))
    [(used,)] = query(runs.fedhp[0], "SELECT links FROM rounds WHERE round=4")
    assert shown.sum() == 2 * used
    assert (shown == shown.T).all()
    dense = wide_run(tmp_path / "run", 20, rounds=1)
    assert 'id="figure-links_fedhp"' in body(run_sections([dense]), "topology")


def test_very_many_workers(tmp_path: Path) -> None:
    folder = wide_run(tmp_path / "run", 600, rounds=2)
    sections = run_sections([folder])
    size = sum(len(section.body) for section in sections)
    assert size < 3_000_000
    with RunReader(folder) as run:
        assert len(read_worker_rows(run).rows) <= 400
        assert local_steps_of(run).shape == (2, 600)


def test_names_are_never_shared(tmp_path: Path) -> None:
    figures = PageFigures()
    from fedhp.report.figures.style import new_figure

    shown = [
        figures.show(new_figure(1, 1), name=name, caption="c", alt="a")
        for name in ("a:b", "a=b", "a-b-2", "a b")
    ]
    markup = read_markup("".join(shown))
    ids = [e.attributes["id"] for e in markup.all("figure")]
    assert len(set(ids)) == 4
    assert figures.paths == []


def test_a_folder_that_cannot_be_written(runs: Runs, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    with pytest.raises(RunError, match="cannot be written") as caught:
        save_report([runs.fedhp[0]], file)
    assert caught.value.fix
