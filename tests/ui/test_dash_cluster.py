"""A run of real processes on the page: a worker that is killed, lost, given up, and back."""

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


def enter_token(page: DashPage, token: str) -> None:
    """Fill the dialog and send it."""
    page.ask(
        "(() => { const dialog = document.querySelector('dialog[open]');"
        f"dialog.querySelector('input').value = '{token}';"
        "dialog.querySelector('form').requestSubmit(); })()"
    )


def test_a_run_is_stopped_with_the_token_alone(browser: Browser, tmp_path: Path) -> None:
    folder, token_file = tmp_path / "runs" / "federation", tmp_path / "token"
    token = "a-token-that-nobody-guesses-0123456789"
    token_file.write_text(token, encoding="utf-8")
    token_file.chmod(0o600)
    with Cluster(tiny(workers=2, rounds=ENDLESS), folder, restart=False) as cluster:
        cluster.start()
        until(cluster, lambda: round_of(cluster) >= 1, "a round")
        options = ("--certs", str(cluster.certificates), "--token-file", str(token_file))
        server = DashServer(folder.parent, *options)
        try:
            page = DashPage(browser, server)
            page.open("federation", section="workers")
            page.wait_text("Stop the run", ".runhead")
            page.click("Stop the run …")
            enter_token(page, "wrong")
            page.wait_text("token", "dialog .error")
            assert page.ask("document.querySelector('dialog[open]') !== null")
            enter_token(page, token)
            page.wait("document.querySelector('dialog') === null", "the end of the dialog")
            until(cluster, lambda: cluster.exit_codes()["coordinator"] is not None, "its end")
            page.wait("document.querySelector('.runhead .badge').dataset.live === 'false'", "over")
            page.wait("!document.querySelector('.runhead').innerText.includes('Stop')", "no button")
        finally:
            server.stop()


def test_a_killed_worker_is_lost_dead_and_back(browser: Browser, tmp_path: Path) -> None:
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
            cluster.supervise()  # which notes how it ended
            page.wait(f"{state_of('w1')} === 'lost'", "w1 is lost")
            page.wait_text("2 of 3 workers", ".runhead")
            page.wait(f"{state_of('w1')} === 'dead'", "w1 is dead")
            page.wait_text("without w1 (dead)", ".runhead")
            assert page.ask(state_of("w0")) == "ready"
            cluster.start_process("w1")
            page.wait(f"{state_of('w1')} === 'ready'", "w1 is back")
            page.click("Events", within="nav.sections")
            for kind in ("join", "lost", "suspect", "dead", "back"):
                page.wait_text(kind, "section[aria-label='List of events']")
            page.wait_ink("figure canvas")
            before = page.text(".facts")
            page.wait(f"document.querySelector('.facts').innerText !== {before!r}", "more rounds")
            page.assert_quiet()
        finally:
            server.stop()
