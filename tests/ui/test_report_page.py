"""The report in a real browser: all of it shows, nothing is asked for, nothing complained of."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from fedhp.report.pages.run_report import save_report
from ui.browser import Browser, find_browser
from unit.report.runs import make_run

PROGRAM = find_browser()
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="no Chromium on the PATH; apt-get install chromium"
)

SIZES = """
Array.from(document.querySelectorAll('section, svg'), each => {
  const box = each.getBoundingClientRect(), card = each.closest('.card') || each;
  const right = card.getBoundingClientRect().right;  // a card may be moved sideways inside
  return [each.tagName, each.id || each.closest('figure').id, box.width, box.height, right];
})
"""
OPEN_ALL = "document.querySelectorAll('details').forEach(each => each.open = true)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("ui")
    names = ("fedhp", "dpsgd", "adpsgd")
    folders = [make_run(top / name, name, rounds=3) for name in names]
    return save_report(folders, top / "report")[0]


@pytest.mark.parametrize(
    ("width", "dark"), [(1400, False), (1400, True), (420, False)], ids=["light", "dark", "phone"]
)
def test_everything_shows(browser: Browser, page: Path, width: int, dark: bool) -> None:
    browser.open(page.as_uri(), width=width, dark=dark)
    browser.evaluate(OPEN_ALL)
    found = browser.evaluate(SIZES)
    kinds = [kind for kind, *_ in found]
    assert kinds.count("SECTION") == 8
    assert kinds.count("svg") >= 9
    for kind, name, wide, high, right in found:
        assert wide > 100, (kind, name)
        assert high > 50, (kind, name)
        assert right <= width, f"{name} is wider than the window"
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.complaints == []
    asked = [url for url in browser.requests if not url.startswith("data:")]
    assert asked == [page.as_uri()]


def test_colours_follow_the_reader(browser: Browser, page: Path) -> None:
    shades = []
    for dark in (False, True):
        browser.open(page.as_uri(), dark=dark)
        shades.append(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
        card = browser.evaluate("getComputedStyle(document.querySelector('.card')).backgroundColor")
        assert card == "rgb(255, 255, 255)"
    assert shades[0] != shades[1]


def test_the_navigation_leads_to_every_section(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri())
    count = browser.evaluate("document.querySelectorAll('nav li a').length")
    assert count == 8
    for place in range(count - 1):
        top = browser.evaluate(
            f"(() => {{ const link = document.querySelectorAll('nav li a')[{place}]; link.click();"
            "return document.querySelector(link.getAttribute('href')).getBoundingClientRect().top;"
            "})()"
        )
        assert -1 <= top <= 40
    # It stays in sight.
    assert browser.evaluate("document.querySelector('nav').getBoundingClientRect().top") == 0


def test_maps_are_decoded(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri())
    widths = browser.evaluate(
        "Promise.all(Array.from(document.querySelectorAll('svg image'), each => {"
        "const image = new Image(); image.src = each.getAttribute('href');"
        "return image.decode().then(() => image.naturalWidth); }))"
    )
    assert min(widths) > 0
    assert sum(width > 400 for width in widths) == 3, "the world, the steps of two labels"


def test_the_policy_keeps_everything_in(browser: Browser, page: Path) -> None:
    """Were something in the page to reach out, the browser would not let it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.5)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/"
        browser.open(page.as_uri())
        refused = browser.evaluate(
            "new Promise(done => { const image = new Image(); image.onerror = () => done(true);"
            f"image.onload = () => done(false); image.src = '{address}'; }})"
        )
        assert refused is True
        fetched = browser.evaluate(f"fetch('{address}').then(() => true, () => false)")
        assert fetched is False
        with pytest.raises(TimeoutError):
            server.accept()
    assert any("Content Security Policy" in each for each in browser.complaints)


def test_a_reader_without_script_reads_the_same(browser: Browser, page: Path) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page.as_uri())
        shown = browser.call("Page.captureScreenshot", format="png")
        assert len(shown["data"]) > 10_000
        assert browser.complaints == []
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
