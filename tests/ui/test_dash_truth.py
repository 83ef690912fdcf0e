"""What the page shows is what the record knows: topology, points under the pointer, workers that
do not learn, more runs than one page takes."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fedhp.record.store import RECORD_FILE, Store
from ui.browser import Browser, find_browser
from ui.dash_page import DashPage, DashServer
from unit.report.runs import make_run, query, set_results, wide_run

PROGRAM = find_browser()
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="no Chromium on the PATH; apt-get install chromium"
)
MOST = 64  # runs in one comparison
WORKERS = 140  # so many that the record of a full mesh keeps a selection of the links
HOVER = """
(() => {
  const over = document.querySelector('figure .u-over');
  const box = over.getBoundingClientRect();
  return [box.left, box.top, box.width, box.height];
})()
"""
DOTS = """
[...document.querySelectorAll('figure')[0].querySelectorAll('.u-cursor-pt')].map(dot => {
  const box = dot.getBoundingClientRect();
  const over = document.querySelector('figure .u-over').getBoundingClientRect();
  return (box.left + box.width / 2 - over.left) / over.width;
})
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("truth") / "runs"
    wide_run(top / "wide", WORKERS)
    set_results(top / "wide", {25: 0.11, 91: 0.18}, others=0.71)
    make_run(top / "often", "fedhp", rounds=6)
    make_run(top / "seldom", "dpsgd", rounds=6, evaluation={"every": 3, "targets": [0.3]})
    for index in range(MOST - 2):
        shutil.copytree(top / "often", top / "many" / f"run-{index}")
    return top


def test_a_map_names_the_links_that_are_not_on_record(page: DashPage, folder: Path) -> None:
    counts = "SELECT links, links_known, links_recorded FROM rounds WHERE round = 2"
    ((used, known, recorded),) = query(folder / "wide", counts)
    ((used_on_record,),) = query(folder / "wide", "SELECT sum(used) FROM links WHERE round = 2")
    assert recorded < known / 2
    page.open("wide", section="topology")
    page.wait_text("Adjacency in round 2")
    unknown, unused = used - used_on_record, known - recorded - (used - used_on_record)
    keys = page.text(".keys")
    assert f"used, not on record: {unknown:,}; not used, not on record: {unused:,}" in keys
    assert f"on record: {used_on_record:,} used" in keys
    label = page.ask("document.querySelector('.canvas').getAttribute('aria-label')")
    assert f"{used:,} links in use, {used_on_record:,} of them on record" in label
    page.wait_ink(".canvas canvas")

    page.ask("document.querySelector('input[type=radio][value=graph]').click()")
    page.wait_text(f"the record keeps {used_on_record:,} of the {used:,} links in use")
    assert page.ask("document.querySelector('figure .canvas').hidden")  # no graph of a selection
    page.click("Show the map")
    page.wait("!document.querySelector('figure .canvas').hidden", "the map")
    page.assert_quiet()


def test_the_number_of_the_legend_is_that_of_the_dot(page: DashPage) -> None:
    page.open("often", "seldom", section="progress")
    page.wait("document.querySelectorAll('.uplot').length >= 5", "charts")
    left, top, width, height = page.ask(HOVER)
    tests = {}
    for run in ("often", "seldom"):
        answer = page.ask(f"fetch('/api/progress?run={run}').then(answer => answer.json())")
        tests[run] = list(zip(answer["tests"]["clock"], answer["tests"]["accuracy"], strict=True))
    clocks = [clock for points in tests.values() for clock, _ in points]
    first, last = min(clocks), max(clocks)
    for share in (0.1, 0.4, 0.55, 0.9):
        page.move_to(left + share * width, top + height / 2)
        page.wait("/ at [\\d.,]+ s/.test(document.querySelector('.legend').innerText)", "a time")
        pointer = first + (last - first) * share
        lines = page.text("figure .legend").splitlines()
        dots = page.ask(DOTS)
        for run, points in tests.items():
            clock, accuracy = min(points, key=lambda point: abs(point[0] - pointer))
            shown = [line for line in lines if f"{100 * accuracy:.1f} %" in line]
            assert any(line.endswith(f"at {clock:.3g} s") for line in shown), (run, lines)
            place = (clock - first) / (last - first)
            assert min(abs(dot - place) for dot in dots) < 0.01
    page.assert_quiet()


def test_workers_that_do_not_learn_are_named_and_drawn(page: DashPage) -> None:
    page.open("wide", section="progress")
    page.wait("document.querySelectorAll('.uplot').length >= 5", "charts")
    assert "2 of 140 workers are more than 50 points behind" in page.text(".behind")
    assert "workers 25 and 91" in page.text(".behind")
    assert "2 workers far behind 11.0 % to 18.0 %" in " ".join(page.text(".legend").split())
    assert "from the 10 % to the 90 % quantile" in page.text("figure")
    page.click("Workers", within=".behind")
    page.wait_text("Workers in round 2")
    page.assert_quiet()


def test_more_runs_than_can_be_compared_are_refused_with_the_reason(
    page: DashPage, folder: Path
) -> None:
    runs = ["often", "seldom", *(f"many/run-{index}" for index in range(MOST - 2))]
    page.open()
    page.wait_text(f"{MOST + 1} runs")
    page.ask("document.querySelector('thead input').click()")
    page.wait_text(f"{MOST + 1} runs chosen; at most {MOST} can be compared", ".actionbar")
    assert page.ask("document.querySelector('.actionbar .main').disabled")
    page.open("wide", *runs)
    page.wait_text(f"{MOST + 1} runs are chosen")
    page.wait_text(f"at most {MOST} runs")
    page.assert_quiet()

    page.open(*runs, section="progress")
    page.wait_text(f"Comparison of {MOST} runs")
    page.wait_text("Curves of the first 20 of 64 runs")
    assert (
        page.ask("document.querySelectorAll('figure')[0].querySelectorAll('.legend li').length")
        == 20
    )
    page.wait_text("connected", "#connection")
    page.assert_quiet()


def test_a_refused_stream_is_not_an_unreachable_server(browser: Browser, folder: Path) -> None:
    server = DashServer(folder)
    try:
        page = DashPage(browser, server)
        shutil.copytree(folder / "often", folder / "gone")
        page.open("gone", section="progress")
        page.wait_text("connected", "#connection")
        server.stop()
        shutil.rmtree(folder / "gone")
        page.wait_text("Server unreachable", "#unreachable")
        server.start()
        page.wait_text("No live updates: there is no run 'gone'", "#unreachable")
        assert "unreachable" not in json.dumps(page.text("#unreachable"))
    finally:
        server.stop()


def network_run(folder: Path, source: Path) -> None:
    """A run of machines whose worker 1 was killed in round 3; rounds and tests are those of a
    simulated run."""
    shutil.copytree(source, folder)
    with closing(sqlite3.connect(folder / RECORD_FILE)) as record, record:
        record.execute("DELETE FROM worker_evaluations WHERE worker = 1 AND round > 2")
        record.execute(
            "UPDATE workers SET worker_time = NULL, bandwidth = 1e6 WHERE worker = 1 AND round > 2"
        )
    store = Store.open(folder, write=True)
    store.set_meta("network", True)
    store.seal()
    store.close()
    everyone = list(range(6))
    lines: list[dict[str, object]] = [
        {"event": "join", "worker": worker, "name": f"w{worker}"} for worker in everyone
    ]
    for index in range(1, 7):
        lines.append({"event": "attempt", "participants": everyone, "round": index})
        if index == 3:
            lines.append({"event": "ended", "name": "w1", "why": "was ended by SIGKILL"})
        reported = everyone if index < 3 else [0, *everyone[2:]]
        lines.append({"event": "commit", "round": index, "reported": reported})
    written = [json.dumps({"at": float(at), "who": "c", **line}) for at, line in enumerate(lines)]
    (folder / "history-c.jsonl").write_text("\n".join(written) + "\n", encoding="utf-8")


def test_a_lost_worker_is_an_event_a_mark_and_has_no_present_numbers(
    page: DashPage, folder: Path
) -> None:
    network_run(folder / "machines", folder / "often")
    words = "w1 is lost: its process was ended by SIGKILL"
    page.open("machines", section="events")
    page.wait_text(words)
    for section, charts in (("progress", 5), ("timeline", 1), ("decisions", 2)):
        page.open("machines", section=section, axis="round")
        page.wait("document.querySelector('.uplot') !== null", f"the charts of {section}")
        page.wait(
            f"[...document.querySelectorAll('.uplot')].filter(each => each.closest('figure')."
            f"querySelector('.marks').innerText.includes('in round 3 {words}')).length >= {charts}",
            f"the marks of {section}",
        )
    page.open("machines", section="workers")
    page.wait_text("Workers in round 6")
    row = page.ask(
        "[...document.querySelectorAll('tbody tr')].find(row => row.innerText.includes('w1'))"
        ".innerText"
    )
    assert "lost" in row
    assert "in round 2" in row  # of its last test
    assert "MB/s" not in row  # measured in an earlier round
    page.assert_quiet()
