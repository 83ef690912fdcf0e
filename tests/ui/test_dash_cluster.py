"""A run of real processes on the page: a worker that is killed, missed, given up, and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedhp.cluster.ops.launch import Cluster
from net.clusters import ENDLESS, PATIENCE, round_of, tiny, until
from ui.browser import Browser, find_browser
from ui.dash_page import DashPage, DashServer

PROGRAM = find_browser()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium on the PATH; apt-get install chromium"),
]
SETTINGS = {
    "gather": PATIENCE,
    "min_workers": 2,
    "beat": 0.2,
    "suspect_after": 2.0,
    "dead_after": 8.0,
}


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    assert PROGRAM is not None
    opened = Browser(PROGRAM, tmp_path / "profile")
    yield opened
    opened.close()


def state_of(name: str) -> str:
    """The words of a worker's badge."""
    return (
        "[...document.querySelectorAll('tbody tr')].find(row => row.cells[0].innerText.trim() === "
        f"'{name}')?.querySelector('.badge')?.lastChild.textContent"
    )


def test_a_killed_worker_is_suspect_dead_and_back(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "federation"
    experiment = tiny(workers=3, rounds=ENDLESS, cluster=SETTINGS)
    with Cluster(experiment, folder, restart=False) as cluster:
        cluster.start()
        until(cluster, lambda: round_of(cluster) >= 2, "two rounds")
        server = DashServer(folder.parent)
        try:
            page = DashPage(browser, server)
            page.open("federation", section="workers")
            page.wait_text("live", ".runhead .badge")
            page.wait(f"{state_of('w1')} === 'ready'", "w1 is ready")
            assert "on machines" in page.text(".runhead")
            cluster.kill("w1")
            page.wait(f"{state_of('w1')} === 'suspect'", "w1 is suspect")
            page.wait(f"{state_of('w1')} === 'dead'", "w1 is dead")
            assert page.ask(state_of("w0")) == "ready"
            cluster.start_worker("w1")
            page.wait(f"{state_of('w1')} === 'ready'", "w1 is back")
            page.click("Events", within="nav.sections")
            for kind in ("join", "suspect", "dead", "back"):
                page.wait_text(kind, "section[aria-label='List of events']")
            assert page.has_ink("figure canvas")
            before = page.text(".facts")
            page.wait(f"document.querySelector('.facts').innerText !== {before!r}", "more rounds")
            page.assert_quiet()
        finally:
            server.stop()
