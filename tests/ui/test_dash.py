"""The page of `fedhp dash` in a real browser: live, compared, explained, downloaded, usable."""

from __future__ import annotations

import csv
import importlib.resources
import io
import json
import re
import shutil
import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from fedhp.config import parse
from fedhp.engine.runs.run import start_run
from fedhp.record.store import RECORD_FILE, Store
from ui.browser import Browser, find_browser
from ui.dash_page import SECTIONS, DashPage, DashServer
from unit.report.runs import TABLES, make_run, query
from waiting import wait_until

PROGRAM = find_browser()
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="no Chromium on the PATH; apt-get install chromium"
)

FEDHP, DPSGD, ADPSGD, PLUS = "compared/fedhp", "compared/dpsgd", "adpsgd", "plus"
EVIL = "<img src=x onerror=alert(1)>"
TOPOLOGY = ".canvas canvas"
SVG = "{http://www.w3.org/2000/svg}"
SLIDE = (
    "(() => {{ const slider = document.querySelector('.roundbar input[type=range]');"
    "slider.focus(); slider.value = '{}'; slider.dispatchEvent(new Event('input')); }})()"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("dash") / "runs"
    make_run(top / FEDHP, "fedhp")
    make_run(top / DPSGD, "dpsgd")
    make_run(top / ADPSGD, "adpsgd")
    make_run(top / PLUS, "fedhp_plus", rounds=12)
    return top


def test_the_list_leads_to_a_comparison_of_two_runs(page: DashPage) -> None:
    page.open()
    page.wait_text("4 runs")
    for name in ("FedHP", "D-PSGD", "AD-PSGD", "FedHP+"):
        assert name in page.text()
    for run in (FEDHP, DPSGD):
        page.ask(f"document.querySelector('input[aria-label$=\"{run}\"]').click()")
    page.click("Compare 2 runs")
    page.wait_text("Comparison of 2 runs")
    page.wait("document.querySelectorAll('.uplot').length >= 5", "charts of all runs")
    legend = page.text("figure .legend")
    assert "FedHP" in legend
    assert "D-PSGD" in legend
    page.wait_text("to 30 %".capitalize())  # the target of these runs, from the summary
    page.ask("document.querySelector('input[type=radio][value=round]').click()")
    assert "axis=round" in page.ask("location.hash")
    page.assert_quiet()


def test_a_live_run_updates_by_itself(page: DashPage, folder: Path) -> None:
    experiment = parse({**TABLES, "rounds": 30, "algorithm": {"name": "fedhp"}, "seed": 5})
    rounds = start_run(experiment, folder / "live").rounds()
    try:
        next(rounds)
        page.open("live", section="topology")
        page.wait_text("live", ".runhead .badge")
        page.wait_text("follows the last round")
        page.wait(f"Number({slider()}.value) === 1", "the first round")
        page.wait_text("round 1")
        before = page.pixels(TOPOLOGY)
        page.ask("document.querySelector('.roundbar .play').focus(); window.scrollTo(0, 120)")
        next(rounds)
        next(rounds)
        page.wait(f"Number({slider()}.value) === 3", "the third round, by itself")
        page.wait_text("Topology in round 3")
        wait_until(lambda: page.pixels(TOPOLOGY) != before, "another drawing", seconds=20)
        # The reader keeps the place and the focus.
        assert page.ask("window.scrollY") == 120
        assert page.ask("document.activeElement.className") == "play"

        page.ask(SLIDE.format(2))  # who has moved the slider stays there
        page.wait_text("Topology in round 2")
        next(rounds)
        page.wait(f"{slider()}.max === '4'", "the fourth round")
        assert page.ask(f"{slider()}.value") == "2"
        page.click("Follow the last round")
        page.wait_text("Topology in round 4")

        page.click("Progress", within="nav.sections")
        page.wait_text("Test accuracy")
        for _ in range(2):
            next(rounds)
        page.wait(
            "[...document.querySelectorAll('.facts dd')][1].textContent.trim().startsWith('6')",
            "round 6 in the head",
        )
        page.open()
        page.wait_text("1 live")
        page.wait_text("round 6 of 30", "tbody tr")  # live ones first
        page.assert_quiet()
    finally:
        rounds.close()  # type: ignore[attr-defined]
    page.wait_text("interrupted")  # the list follows, too
    shutil.rmtree(folder / "live")


def slider() -> str:
    return "document.querySelector('.roundbar input[type=range]')"


def test_the_slider_and_play_change_the_topology(page: DashPage) -> None:
    page.open(FEDHP, section="topology", round=2)
    page.wait_text("Topology in round 2")
    page.wait_text("cut")
    second = page.pixels(TOPOLOGY)
    page.ask(SLIDE.format(5))
    page.wait_text("Topology in round 5")
    wait_until(lambda: page.pixels(TOPOLOGY) != second, "another drawing")
    assert "round=5" in page.ask("location.hash")
    page.browser.call("Page.reload")
    page.wait_text("Topology in round 5")  # a reload returns to it
    page.click("First round")
    page.wait_text("Topology in round 1")
    page.ask("document.querySelector('.roundbar .play').click()")
    page.wait_text("Topology in round 3")
    page.ask("document.querySelector('.roundbar .play').click()")
    page.assert_quiet()


def test_a_link_tells_its_reason_to_pointer_and_keys(page: DashPage) -> None:
    page.open(FEDHP, section="topology", round=3)
    page.wait_text("Topology in round 3")
    page.wait_text("cut")
    page.ask("document.querySelector('.canvas').focus()")
    page.key("ArrowRight")  # the first stop is a link that was cut
    page.wait_text("not used in this round", ".detail")
    told = page.text(".detail")
    assert "cut, because" in told
    assert "predicted" in told
    page.key("Escape")
    page.wait_text("Nothing chosen", ".detail")
    # The pointer on the middle of the graph's box may miss; over every point it must not.
    box = page.ask(
        "(() => { const box = document.querySelector('.canvas').getBoundingClientRect();"
        "return [box.left, box.top, box.width, box.height]; })()"
    )
    told_at = []
    for share in range(1, 40):
        page.move_to(box[0] + box[2] * share / 40, box[1] + box[3] / 2)
        if page.ask("!document.getElementById('tip').hidden"):
            told_at.append(page.text("#tip"))
    assert any("predicted" in words or "took" in words for words in told_at)
    page.assert_quiet()


def test_a_group_average_is_a_tree(page: DashPage, folder: Path) -> None:
    [(index,)] = query(
        folder / PLUS, "SELECT max(round) FROM participation WHERE role = 'left_out'"
    )
    rows = query(
        folder / PLUS, "SELECT role, returns, root FROM participation WHERE round = ?", index
    )
    page.open(PLUS, section="topology", round=index)
    page.wait_text(f"Group tree in round {index}")
    shown = page.text(".plain").split("\n")
    facts = dict(zip(shown[::2], shown[1::2], strict=True))
    assert facts["participants"] == str(sum(role not in ("left_out", "away") for role, *_ in rows))
    assert facts["left out"] == str(sum(role == "left_out" for role, *_ in rows))
    assert facts["returning"] == str(sum(returns for _, returns, _ in rows))
    assert "worker" in facts["root"]
    page.wait_ink(TOPOLOGY)
    page.click("Timeline", within="nav.sections")
    page.wait_text("the transfer of the group took")
    page.open(ADPSGD, section="topology", round=2)
    page.wait_text("Pairs in round 2")
    page.assert_quiet()


def test_decisions_tell_why_and_what_others_would_save(page: DashPage) -> None:
    page.open(FEDHP, section="decisions", round=4)
    page.wait_text("Round 4: what was decided, and why")
    page.wait_text("Each worker gets as many local steps as fit")
    page.wait("document.querySelectorAll('.uplot').length === 2", "distance and forecast")
    assert "kept bound" in page.text().lower() or "kept" in page.text().lower()
    page.click("Replay with other planners")
    page.wait_text("As recorded")
    page.wait_text("Steps per s")
    assert page.ask("document.querySelectorAll('section table tbody tr').length") >= 3
    page.assert_quiet()


def test_workers_sort_and_have_a_history(page: DashPage) -> None:
    page.open(FEDHP, section="workers", round=3)
    page.wait_text("Workers in round 3")
    page.click("Step", within="table")
    assert page.ask("document.querySelector('th[aria-sort=descending]').textContent") == "Step"
    times = page.ask(
        "[...document.querySelectorAll('tbody tr')].map(row => parseFloat(row.cells[4].innerText))"
    )
    assert times == sorted(times, reverse=True)
    page.click("worker 2")
    page.wait("document.querySelectorAll('dialog .uplot').length >= 5", "the history")
    assert "worker=2" in page.ask("location.hash")
    page.click("Close", within="dialog")
    page.wait("document.querySelector('dialog') === null", "the end of the dialog")
    page.assert_quiet()


def test_a_killed_and_restarted_server_is_picked_up_again(
    browser: Browser, folder: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(folder / FEDHP, runs / "one")
    server = DashServer(runs)
    page = DashPage(browser, server)
    try:
        page.open("one", section="topology", round=2)
        page.wait_text("Topology in round 2")
        page.wait_text("connected", "#connection")
        server.stop()
        page.wait("!document.getElementById('unreachable').hidden", "the banner")
        assert page.text("#unreachable").startswith("Server unreachable, trying again")
        assert page.text("#connection") == "not connected"
        assert "Topology in round 2" in page.text()  # what was shown stays
        server.start()
        page.wait("document.getElementById('unreachable').hidden", "the end of the banner")
        page.wait_text("connected", "#connection")
        page.ask(SLIDE.format(6))
        page.wait_text("Topology in round 6")
        unexpected = [
            each
            for each in browser.complaints
            if "net::ERR" not in each and "Failed to load resource" not in each
        ]
        assert unexpected == []
    finally:
        server.stop()


def test_names_from_the_network_are_text(browser: Browser, folder: Path, tmp_path: Path) -> None:
    """Names of workers, devices and the run that are markup: all are shown, nothing is run."""
    runs = tmp_path / "runs"
    shutil.copytree(folder / FEDHP, runs / "evil")
    joins = [
        {"at": 1e9 + worker, "who": "coordinator", "process": 1, "event": "join"}
        | {"worker": worker, "name": f"{EVIL}{worker}"}
        for worker in range(6)
    ]
    history = runs / "evil" / "history-coordinator.jsonl"
    history.write_text("".join(json.dumps(line) + "\n" for line in joins), "utf-8")
    with closing(sqlite3.connect(runs / "evil" / RECORD_FILE)) as connection, connection:
        for key, value in (("devices", [EVIL] * 6), ("label", EVIL), ("network", True)):
            connection.execute("REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(value)))
    with closing(Store.open(runs / "evil", write=True)) as store:
        store.seal()
    server = DashServer(runs)
    page = DashPage(browser, server)
    try:
        page.open()
        page.wait_text(EVIL)
        for section in SECTIONS:
            page.open("evil", section=section)
            page.wait_text(EVIL)
            page.wait("!document.querySelector('main').hasAttribute('aria-busy')", "the page")
            assert page.ask("document.querySelectorAll('main img').length") == 0
        page.open("evil", section="workers", worker=1)
        page.wait_text(f"{EVIL}1", "dialog")
        assert page.ask("document.querySelectorAll('dialog img').length") == 0
        page.assert_quiet()
    finally:
        server.stop()


@pytest.mark.parametrize(
    "dark", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["light", "dark"]
)
def test_accessible_by_the_rules_of_axe(page: DashPage, dark: bool) -> None:
    rules = (importlib.resources.files("axe_core_python") / "axe.min.js").read_text("utf-8")
    views: list[tuple[tuple[str, ...], dict[str, Any], str]] = [
        ((), {}, "4 runs"),
        ((FEDHP, DPSGD), {}, "In numbers"),
        ((PLUS,), {"section": "topology"}, "Group tree"),
        ((FEDHP,), {"section": "workers", "worker": 1}, "Workers in round"),
        *(((FEDHP,), {"section": section, "round": 3}, "Settings") for section in SECTIONS),
    ]
    for runs, view, words in views:
        page.open(*runs, dark=dark, **view)
        page.wait_text(words)
        page.wait("document.querySelectorAll('[aria-busy]').length === 0", "the page")
        page.ask(f"{rules}; 0")
        found = page.ask(
            "axe.run(document, {resultTypes: ['violations']}).then(result => "
            "result.violations.map(each => [each.id, each.impact, "
            "each.nodes.map(node => node.html.slice(0, 200))]))"
        )
        bad = [each for each in found if each[1] in ("serious", "critical")]
        assert bad == [], (runs, view)
    page.assert_quiet()


def test_the_theme_follows_the_system_or_the_choice(page: DashPage) -> None:
    def shade() -> str:
        return str(page.ask("getComputedStyle(document.body).backgroundColor"))

    page.open(dark=False)
    light = shade()
    page.open(dark=True)
    dark = shade()
    assert light != dark
    page.ask("document.getElementById('theme').click()")  # system, then light
    assert shade() == light
    page.browser.call("Page.reload")
    page.wait_text("Runs")
    assert shade() == light  # kept
    page.ask("localStorage.clear()")
    page.assert_quiet()


@pytest.mark.parametrize("section", SECTIONS)
def test_fits_a_phone(page: DashPage, section: str) -> None:
    page.open(FEDHP, section=section, width=360, height=740)
    page.wait("document.querySelectorAll('.card').length > 1", "the section")
    assert page.ask("document.documentElement.scrollWidth") <= 360
    small = page.ask(
        "[...document.querySelectorAll('button, select, input[type=search]')].filter(each => "
        "each.offsetParent && !each.classList.contains('link') && !each.closest('th') && "
        "each.getBoundingClientRect().height < 24).map(each => each.outerHTML.slice(0, 80))"
    )
    assert small == []
    page.assert_quiet()


def test_what_is_seen_can_be_downloaded(page: DashPage, tmp_path: Path) -> None:
    page.browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    figures = {
        "progress": ["Test accuracy", "Loss", "Data sent"],
        "topology": ["Topology"],
        "timeline": ["Timeline of the round", "Who set the pace"],
        "decisions": ["Links by reason", "Distance against its bound"],
        "events": ["Events"],
    }
    ready = {
        "progress": "Test accuracy",
        "topology": "Topology in round 3",
        "timeline": "Round 3, worker by worker",
        "decisions": "Round 3: what was decided",
        "events": "events; over",
    }
    for section, titles in figures.items():
        page.open(FEDHP, section=section, round=3)
        page.wait_text(ready[section])
        page.wait_ink("figure canvas")
        for title in titles:
            for kind in ("SVG", "PNG", "CSV"):
                before = set(tmp_path.iterdir())
                page.click(f"Download {title} as {kind}")
                file = _downloaded(tmp_path, before, kind.lower())
                _check_download(file)
    page.open(FEDHP, section="workers", round=3)
    page.wait_text("Workers in round 3")
    page.click("Download the workers as CSV")
    rows = _rows(_downloaded(tmp_path, set(), "csv", "round-3-workers"))
    assert len(rows) == 1 + TABLES["workers"]
    page.assert_quiet()


def test_the_measured_last_worker_is_marked_in_every_view(page: DashPage, tmp_path: Path) -> None:
    """In the texts, in the strip and in the drawing; the plan's worker is a hollow mark."""
    top, wrong = page.server.folder, 0
    rows = query(
        top / FEDHP,
        "SELECT r.round, pace_setter, (SELECT worker FROM workers w WHERE w.round = r.round "
        "ORDER BY worker_time DESC, worker LIMIT 1) FROM rounds r ORDER BY r.round",
    )
    right = sum(planned == last for _, planned, last in rows)
    wrong, planned, last = next(row for row in rows if row[1] != row[2])
    ((a, b, time),) = query(
        top / FEDHP,
        "SELECT a, b, link_time FROM links WHERE round = ? AND used AND ? IN (a, b) "
        "ORDER BY link_time DESC LIMIT 1",
        wrong,
        last,
    )
    page.browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.open(FEDHP, section="timeline", round=wrong)
    page.wait_text(f"Who set the pace: the plan was right in {right} of {len(rows)} rounds")
    page.wait_text(f"worker {last} finished last, link to {b if a == last else a}: {time:.3}"[:48])
    page.wait_text(f"the plan expected worker {planned}")
    page.wait_ink("figure canvas")
    page.click("Download Timeline of the round as SVG")
    drawing = ElementTree.parse(_downloaded(tmp_path, set(), "svg")).getroot()
    bold = [each.text for each in drawing.iter(f"{SVG}text") if each.get("font-weight") == "700"]
    assert f"worker {last}" in bold
    assert f"worker {planned}" not in bold
    page.open(FEDHP, section="topology", round=wrong)
    page.wait_text("double outline: finished last; dotted: the plan expected it to")
    page.assert_quiet()


def test_turns_without_a_barrier_are_where_they_happened(page: DashPage, tmp_path: Path) -> None:
    """Bars in virtual time: two turns of a worker do not lie on each other."""
    page.browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.open(ADPSGD, section="timeline", round=3)
    page.wait_text("Turns around round 3")
    ((began,), (ended,)) = query(
        page.server.folder / ADPSGD, "SELECT clock FROM rounds WHERE round IN (2, 3) ORDER BY round"
    )
    page.wait_text("the round is from")
    page.wait_ink("figure canvas")
    page.click("Download Timeline of the round as CSV")
    header, *rows = _rows(_downloaded(tmp_path, set(), "csv"))
    phases = [dict(zip(header, row, strict=True)) for row in rows]
    assert min(float(phase["start"]) for phase in phases) < began
    assert max(float(phase["finish"]) for phase in phases) > ended
    page.click("Download Timeline of the round as SVG")
    drawing = ElementTree.parse(_downloaded(tmp_path, set(), "svg")).getroot()
    # Bars are as high as a row; the first rectangle is the ground of the picture.
    bars = [
        [float(each.get(name, "")) for name in ("x", "y", "width", "height")]
        for each in list(drawing.iter(f"{SVG}rect"))[1:]
    ]
    assert len(bars) == len(phases)
    lines: dict[float, list[tuple[float, float]]] = {}
    for x, y, width, _ in bars:
        lines.setdefault(y, []).append((x, x + width))
    assert len(lines) == TABLES["workers"]
    starts = set()
    for spans in lines.values():
        spans.sort()
        starts.add(spans[0][0])
        assert all(end <= start + 0.01 for (_, end), (start, _) in pairwise(spans))
    assert max(len(spans) for spans in lines.values()) > 1
    page.assert_quiet()


def test_a_run_that_did_not_record_its_turns_says_so(page: DashPage) -> None:
    old = page.server.folder / "old"
    shutil.copytree(page.server.folder / ADPSGD, old)
    with closing(sqlite3.connect(old / RECORD_FILE)) as connection:
        connection.execute("DROP TABLE phases")
        connection.commit()
    try:
        page.open("old", section="timeline", round=3)
        page.wait_text("when each turn began is not on record")
        page.assert_quiet()
    finally:
        shutil.rmtree(old)


def test_transfers_of_a_group_average_agree(page: DashPage) -> None:
    ((took,),) = query(
        page.server.folder / PLUS,
        "SELECT value FROM facts WHERE round = 4 AND name = 'transfer_time'",
    )
    ((members,),) = query(
        page.server.folder / PLUS,
        "SELECT count(*) FROM participation WHERE round = 4 AND role NOT IN ('left_out', 'away')",
    )
    page.open(PLUS, section="timeline", round=4)
    page.wait_text("the transfer of the group took")
    words = re.search(r"the transfer of the group took (\S+ s)", page.text())
    assert words is not None
    assert float(words[1].removesuffix(" s")) == pytest.approx(took, rel=0.01)
    page.open(PLUS, section="workers", round=4)
    page.wait_text("Workers in round 4")
    cells = page.ask(
        "[...document.querySelectorAll('td[data-title=Transfers]')].map(each => each.innerText)"
    )
    assert cells.count(words[1]) == members
    assert set(cells) - {words[1]} <= {"0 s"}
    page.assert_quiet()


def test_a_comparison_names_its_numbers_and_the_settings_that_differ(page: DashPage) -> None:
    page.open(PLUS, DPSGD)
    page.wait_text("In numbers")
    page.wait_text("Final (mean of 1 or 3)")  # six tests and twelve
    page.wait_text("learning rate (0.3 with FedHP+; 0.1 with D-PSGD)")
    headers = page.ask(
        "[...document.querySelectorAll('section.card th[scope=col]')]"
        ".map(each => [each.innerText.trim(), each.title])"
    )
    assert "Last test" in [name for name, _ in headers]
    assert all(meaning for _, meaning in headers)
    page.open(PLUS)
    page.wait_text("last test: accuracy", ".facts")
    page.assert_quiet()


def _downloaded(folder: Path, before: set[Path], kind: str, part: str = "") -> Path:
    def done() -> list[Path]:
        return [
            file
            for file in folder.glob(f"*.{kind}")
            if file not in before and part in file.name and file.stat().st_size
        ]

    wait_until(lambda: bool(done()), f"a download of {kind}", seconds=20)
    return done()[0]


def _rows(file: Path) -> list[list[str]]:
    return list(csv.reader(io.StringIO(file.read_text("utf-8"), newline="")))


def _check_download(file: Path) -> None:
    if file.suffix == ".svg":
        root = ElementTree.parse(file).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert len(list(root.iter())) > 10, file
        assert b"NaN" not in file.read_bytes()
        assert b"undefined" not in file.read_bytes()
    elif file.suffix == ".png":
        with Image.open(file) as image:
            image.load()
            assert image.width > 400
            colours = image.convert("RGB").getcolors(1 << 24)
            assert colours is not None
            assert len(colours) > 3
    else:
        rows = _rows(file)
        assert len(rows) > 1, file
        assert {len(row) for row in rows} == {len(rows[0])}
    file.unlink()


def test_everything_by_keyboard(page: DashPage) -> None:
    """Tab reaches the sections and the slider; arrow keys move rounds and read charts."""
    page.open(FEDHP, section="timeline", round=3)
    page.wait_text("Round 3, worker by worker")
    page.ask("document.querySelector('.roundbar input[type=range]').focus()")
    page.key("ArrowRight")
    page.wait_text("Round 4, worker by worker")
    page.ask("document.querySelector('.canvas').focus()")
    page.key("ArrowDown")
    page.wait("!document.getElementById('tip').hidden", "the first worker")
    assert "computes" in page.text("#tip")
    page.open(FEDHP)
    page.wait("document.querySelector('.chart .uplot') !== null", "a chart")
    page.ask("document.querySelector('.chart').focus()")
    page.key("ArrowLeft")
    page.wait_text("%", "figure [aria-live]")
    outline = page.ask("getComputedStyle(document.querySelector('.chart')).outlineStyle")
    assert outline != "none"
    page.assert_quiet()


def test_a_server_that_asks_readers_for_its_token(
    browser: Browser, folder: Path, tmp_path: Path
) -> None:
    token = "a-token-that-nobody-guesses-0123456789"
    file = tmp_path / "token"
    file.write_text(token, encoding="utf-8")
    file.chmod(0o600)
    server = DashServer(folder, "--require-token", "--token-file", str(file))
    try:
        browser.open(f"{server.url}/")
        page = DashPage(browser, server)
        page.wait("document.querySelector('input[type=password]') !== null", "the question")
        page.ask(
            f"(() => {{ const box = document.querySelector('input[type=password]');"
            f"box.value = '{token}'; box.form.requestSubmit(); }})()"
        )
        page.wait_text("4 runs")
        assert token not in page.ask("document.cookie + location.href")
    finally:
        server.stop()


def test_a_wrong_address_says_so(page: DashPage) -> None:
    page.open("nothing/here")
    page.wait_text("This cannot be shown")
    page.click("All runs", within="main")
    page.wait_text("4 runs")
    page.open(FEDHP, section="topology", round=99999)
    page.wait_text("Topology in round 6")  # the last one
