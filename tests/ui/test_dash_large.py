"""Large runs on the page: how long it takes to open, and how long a frame is while rounds play."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedhp.record.store import Store
from fedhp.types import IntArray
from ui.browser import Browser, find_browser
from ui.dash_page import DashPage, DashServer
from unit.record.rounds import mesh, planned_round
from unit.report.runs import make_run

PROGRAM = find_browser()
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="no Chromium on the PATH; apt-get install chromium"
)

SANE_OPENING = 20.0  # s: a sanity limit; what was measured is printed
SANE_FRAME = 2.0  # s

# Moves the slider in every frame and says how long the frames were, in ms.
PLAY = """
new Promise(done => {
  const slider = document.querySelector('.roundbar input[type=range]');
  const frames = [];
  let before = performance.now(), round = 1;
  const step = now => {
    frames.push(now - before);
    before = now;
    if (frames.length > FRAMES) return done(frames.slice(1));
    round = round % Number(slider.max) + 1;
    slider.value = String(round);
    slider.dispatchEvent(new Event('input'));
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})
"""


def large_run(folder: Path, workers: int, links: IntArray, *, rounds: int) -> None:
    """A real run's description with rounds made by hand."""
    make_run(folder, "fedhp", rounds=1)
    store = Store.open(folder, write=True)
    store.truncate(0)
    kinds = ["laptop", "xavier_nx", "jetson_tx2"]
    store.set_meta("workers", workers)
    store.set_meta("rounds", rounds)
    store.set_meta("devices", [kinds[worker % 3] for worker in range(workers)])
    store.set_meta("samples", [7] * workers)
    for index in range(1, rounds + 1):
        store.commit(planned_round(workers, links, round_index=index))
    store.seal()
    store.close()


def some_links(workers: int, each: int) -> IntArray:
    """Every worker with its next ones."""
    pairs = {
        (min(a, b), max(a, b))
        for a in range(workers)
        for b in ((a + step * step) % workers for step in range(1, each + 1))
        if a != b
    }
    return np.array(sorted(pairs), dtype=np.int64)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    assert PROGRAM is not None
    opened = Browser(PROGRAM, tmp_path / "profile")
    yield opened
    opened.close()


def measured(page: DashPage, name: str, *, frames: int) -> None:
    """Open every section, play the rounds, print what it took."""
    opening = {}
    ready = {
        "progress": "document.querySelectorAll('.uplot').length >= 5",
        "topology": "/in round \\d+/.test(document.querySelector('figure h2').textContent)",
        "timeline": "/Round \\d+/.test(document.querySelector('figure h2').textContent)",
        "decisions": "document.querySelectorAll('.words h3').length > 0",
        "workers": "document.querySelectorAll('tbody tr').length > 5",
    }
    for section, expression in ready.items():
        page.open("large", section=section)
        page.wait(expression, f"the section {section}")
        opening[section] = page.ask("performance.now()") / 1000
    for section in ("topology", "timeline"):
        page.open("large", section=section)
        page.wait(ready[section], f"the section {section}")
        times = np.array(page.ask(PLAY.replace("FRAMES", str(frames)))) / 1000
        print(
            f"\n{name}, {section}: frame median {1000 * np.median(times):.0f} ms, 95 % "
            f"{1000 * np.quantile(times, 0.95):.0f} ms, longest {1000 * times.max():.0f} ms"
        )
        assert np.median(times) < SANE_FRAME
    print(f"{name}: opened in", {key: f"{value:.2f} s" for key, value in opening.items()})
    assert max(opening.values()) < SANE_OPENING
    page.assert_quiet()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "rounds", "each"),
    [(30, 500, 0), (1000, 100, 12)],
    ids=["30-by-500", "1000-by-100"],
)
def test_large_runs_stay_usable(
    browser: Browser, tmp_path: Path, workers: int, rounds: int, each: int
) -> None:
    links = some_links(workers, each) if each else mesh(workers)
    folder = tmp_path / "runs"
    large_run(folder / "large", workers, links, rounds=rounds)
    server = DashServer(folder)
    try:
        page = DashPage(browser, server)
        measured(page, f"{workers} workers x {rounds} rounds", frames=60)
        if workers > 50:
            page.open("large", section="topology")
            page.wait_text("Adjacency in round")
            for key in ("speed", "class", "worker", "device"):
                before = page.pixels(".canvas canvas")
                page.ask(
                    f"(() => {{ const box = document.querySelector('figure select');"
                    f"box.value = '{key}'; box.dispatchEvent(new Event('change')); }})()"
                )
                if key != "class":  # the data of this run has another number of workers
                    page.wait(
                        f"document.querySelector('.canvas canvas').toDataURL() !== '{before}'",
                        f"sorted by {key}",
                    )
            page.wait_ink(".canvas canvas")
    finally:
        server.stop()
