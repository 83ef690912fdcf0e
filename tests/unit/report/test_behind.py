"""Workers that do not learn are named, with their links, in the same words everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from dash.serving import client_of
from fedhp.record.reader import RunReader
from fedhp.report.behind import workers_behind
from fedhp.report.pages.run_report import run_sections
from fedhp.report.show import Fact, show_parts
from unit.report.runs import make_run, set_results, wide_run


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "run", "fedhp", rounds=2)


def behind_of(folder: Path) -> tuple[tuple[int, ...], str]:
    with RunReader(folder) as run:
        behind = workers_behind(run)
    return ((), "") if behind is None else (behind.workers, behind.text)


def test_the_workers_far_behind_are_named_with_their_links(tmp_path: Path) -> None:
    folder = wide_run(tmp_path / "wide", 40)
    set_results(folder, {25: 0.11, 7: 0.18, 31: 0.2, 3: 0.69}, others=0.71)
    workers, text = behind_of(folder)
    assert workers == (25, 7, 31)  # the worst first; 3 is hardly behind
    assert text.startswith(
        "3 of 40 workers are more than 50 points behind the median (71.0 %) in the test of "
        "round 2: workers 7, 25 and 31; they have 2 links, the median worker "
    )


def test_the_usual_spread_is_not_far_behind(run_folder: Path) -> None:
    set_results(run_folder, {0: 0.4, 1: 0.5, 2: 0.6, 3: 0.65}, others=0.7)
    assert behind_of(run_folder) == ((), "")
    set_results(run_folder, {0: 0.65}, others=0.7)
    assert behind_of(run_folder) == ((), "")


def test_the_terminal_the_report_and_the_page_say_the_same(run_folder: Path) -> None:
    set_results(run_folder, {4: 0.1}, others=0.9)
    _, text = behind_of(run_folder)
    assert text.startswith("1 of 6 workers is more than 80 points behind the median (90.0 %)")
    assert "worker 4; it has 2 links" in text
    assert text in [part.value for part in show_parts(run_folder) if isinstance(part, Fact)]
    result = next(each for each in run_sections([run_folder]) if each.anchor == "result")
    assert text in result.body
    client = client_of(run_folder.parent)
    answer = client.get(f"/api/progress?run={run_folder.name}").json()["behind"]
    assert (answer["text"], answer["workers"]) == (text, [4])
    assert answer["tests"]["worker"] == [4, 4]
    assert answer["tests"]["accuracy"][-1] == 0.1
