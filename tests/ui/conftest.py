"""A real browser, and the page of `fedhp dash` over a module's own folder of runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ui.browser import Browser, find_browser
from ui.dash_page import DashPage, DashServer


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Closed after the module's tests."""
    program = find_browser()
    assert program is not None
    opened = Browser(program, tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[DashServer]:
    """Serves the module's folder of runs."""
    started = DashServer(folder)
    yield started
    started.stop()


@pytest.fixture
def page(browser: Browser, server: DashServer) -> DashPage:
    """The page in the browser, not opened yet."""
    return DashPage(browser, server)
