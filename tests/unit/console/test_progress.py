"""Live progress at every width: what matters most is there, and nothing is cut in two."""

from __future__ import annotations

import io
import re
import threading
from typing import Any

import pytest
from rich.console import Console

from emulator import Screen
from fedhp.console.heartbeat import Activity
from fedhp.console.progress import CampaignProgress
from waiting import PATIENCE, wait_until

WIDTHS = (40, 60, 80, 100, 160)
LONG = "adpsgd:steps=100:training.learning_rate=0.4"
LABELS = ("fedhp", "fedhp:deadline=fill", "dpsgd", LONG)
RUNS = [f"{label} seed {seed}" for label in LABELS for seed in range(3)]
NUMBERS = {"accuracy": r"0\.812", "clock": r"1234\.5 s", "waiting": r"1\.25 s", "steps": r"31\.5"}


def event(round_index: int, **changes: Any) -> dict[str, Any]:
    numbers = {"clock": 1234.5, "accuracy": 0.812, "waiting": 1.25, "steps": 31.5}
    return {"round": round_index, "metric": "accuracy", **numbers, **changes}


def campaign(console: Console, **changes: Any) -> CampaignProgress:
    """Twelve runs in progress, each in round 40 of 100; a round takes 7 seconds."""
    now = [0.0]
    display = CampaignProgress(len(RUNS), console=console, clock=lambda: now[0])
    for name in RUNS:
        display.begin(name, 100)
    now[0] = 280.0
    for name in RUNS:
        display.update(name, event(40, **changes), 740.0)
    return display


def drawn(width: int, **changes: Any) -> list[str]:
    out = io.StringIO()
    console = Console(width=width, file=out, force_terminal=True, color_system=None)
    console.print(campaign(console, **changes).lines())
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", WIDTHS)
def test_every_run_has_one_line_with_a_bar_its_round_and_the_time_left(width: int) -> None:
    heading, *lines, total = drawn(width)
    assert len(lines) == len(RUNS)
    assert max(map(len, [heading, *lines, total])) <= width
    for name, line in zip(RUNS, lines, strict=True):
        assert re.search(r"━+─+ +40/100 +7 min\b", line), line
        assert line.split("  ")[0].endswith(name[-7:])  # the seed
        assert line.split("  ")[0] == name or "…" in line
    assert "0 of 12 runs done, about 12 min left" in total


@pytest.mark.parametrize("width", WIDTHS)
def test_columns_are_shown_whole_or_not_at_all(width: int) -> None:
    heading, *lines, _ = drawn(width)
    shown = [name for name in NUMBERS if name in heading.split()]
    assert shown == list(NUMBERS)[: len(shown)], "the least important go first"
    numbers = r" +".join(NUMBERS[name] for name in shown)
    for line in lines:
        assert re.search(rf" 7 min *{numbers}$", line), line
    assert len(shown) >= {40: 0, 60: 1, 80: 2, 100: 3, 160: 4}[width]


def test_a_run_is_shown_from_its_start_until_its_end() -> None:
    """Also before its first round, and with no time left after its last one."""
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system=None)
    display = CampaignProgress(1, console=console)

    def lines() -> list[str]:
        with console.capture() as capture:
            console.print(display.lines())
        return capture.get().splitlines()

    display.begin("fedhp seed 0", 3)
    assert re.fullmatch(r"fedhp seed 0 +─+ +0/3 +- +- +- +- +-", lines()[1])
    display.begin("fedhp seed 0", 3, done=2)
    display.update("fedhp seed 0", event(3), 0.0)
    assert re.search(r" ━+ +3/3 +0 s ", lines()[1])


def test_a_usual_terminal_shows_short_labels_in_full() -> None:
    """At 80 columns a label is more important than waiting and steps."""
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system=None)
    display = CampaignProgress(1, console=console)
    display.begin(f"{LONG} seed 0", 100, short="AD-PSGD 100 steps, lr 0.4 seed 0")
    display.update(f"{LONG} seed 0", event(40))
    with console.capture() as capture:
        console.print(display.lines())
    assert capture.get().splitlines()[1].startswith("AD-PSGD 100 steps, lr 0.4 seed 0  ━")
    assert "1234.5 s" in capture.get()


@pytest.mark.parametrize("width", [40, 60])
def test_a_narrow_terminal_shows_short_labels(width: int) -> None:
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    display = CampaignProgress(2, console=console)
    for rate in (1, 2):
        name = f"adpsgd:steps=100:training.learning_rate=0.{rate} seed 0"
        display.begin(name, 10, short=f"AD-PSGD lr 0.{rate} seed 0")
        display.update(name, event(5))
    with console.capture() as capture:
        console.print(display.lines())
        display.end("adpsgd:steps=100:training.learning_rate=0.1 seed 0", "finished", 60.0)
    text = capture.get()
    assert max(map(len, text.splitlines())) <= width
    assert width == 40 or "AD-PSGD lr 0.2 seed 0" in text
    assert re.search(r"^\[1/2\] AD-PSGD.*lr 0.1 seed 0: finished", text, re.M)


def test_a_run_that_was_stopped_is_not_done() -> None:
    out = io.StringIO()
    with CampaignProgress(2, console=Console(file=out, width=80)) as display:
        display.begin("fedhp seed 0", 10)
        display.end("fedhp seed 0", "interrupted", done=False)
    assert out.getvalue().splitlines()[-2:] == ["fedhp seed 0: interrupted", "0 of 2 runs done"]


def test_a_line_is_not_printed_twice_at_the_end() -> None:
    out = io.StringIO()
    display = CampaignProgress(console=Console(file=out, width=80))
    display.begin("fedhp", 2)
    with display:
        display.update("fedhp", event(1))
        display.update("fedhp", event(2))
    assert [line.split()[2] for line in out.getvalue().splitlines()] == ["0/2", "1/2", "2/2"]


def test_a_wide_terminal_shows_labels_in_full() -> None:
    assert any(line.startswith(f"{LONG} seed 2 ") for line in drawn(160))


@pytest.mark.parametrize("width", [5, 10, 20, 30])
def test_even_a_tiny_terminal_gets_no_longer_lines(width: int) -> None:
    assert max(map(len, drawn(width))) <= width


def test_the_metric_has_its_own_name() -> None:
    heading, first, *_ = drawn(100, metric="R2", accuracy=-0.25)
    assert "R2" in heading
    assert "accuracy" not in heading
    assert "-0.250" in first
    assert "mean s…error" in drawn(160, metric="mean squared error")[0]


def test_a_pipe_gets_whole_lines_at_the_start_and_the_end() -> None:
    out = io.StringIO()
    console = Console(file=out, width=40)
    display = CampaignProgress(console=console)
    display.begin(LONG, 3)
    with display:
        assert out.getvalue() == f"{LONG}  round 0/3\n"
        for index in (1, 2, 3):
            display.update(LONG, event(index, metric="R2"))
    last = out.getvalue().splitlines()[-1]
    assert last == f"{LONG}  round 3/3  R2 0.812  clock 1234.5 s  waiting 1.25 s  steps 31.5"
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize("width", WIDTHS)
def test_a_dumb_terminal_gets_lines_that_fit(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = io.StringIO()
    console = Console(width=width, height=25, file=out, force_terminal=True, color_system=None)
    with campaign(console) as display:
        display.end(RUNS[0], "finished", 700.0)
    text = out.getvalue()
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= width
    assert "round 40/100" in text
    assert "1 of 12 runs done" in " ".join(text.split())


class Written(io.StringIO):
    """Says when it was written to."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def write(self, text: str) -> int:
        self.written.set()
        return super().write(text)


def test_a_pipe_is_never_silent_for_long() -> None:
    """No round ends, and still there are lines."""
    out = Written()
    console = Console(file=out, width=80)
    with CampaignProgress(1, console=console, silent_seconds=0.01) as display:
        wait_until(lambda: out.getvalue().count("0 of 1 run done\n") >= 3, "lines are printed")
        display.begin("fedhp seed 0", 1000)
        display.update("fedhp seed 0", event(1))
        wait_until(lambda: out.getvalue().count("round 1/1000") >= 3, "the run is named")


def test_other_long_work_says_what_it_does() -> None:
    out = Written()
    with Activity("drawing 9 runs", console=Console(file=out), seconds=0.01) as activity:
        activity.note("12 figures drawn")
        assert out.written.wait(PATIENCE)
        wait_until(lambda: "12 figures" in out.getvalue(), "the detail is printed")
    assert re.search(r"^drawing 9 runs: 12 figures drawn, \d+ s so far$", out.getvalue(), re.M)


def test_the_parts_of_long_work_share_the_silence() -> None:
    """Many short parts one after another do not make a long silence."""
    out = Written()
    with Activity("starting", console=Console(file=out), seconds=0.5) as activity:
        for part in range(10_000):
            activity.now(f"part {part}")
            if out.written.wait(0.01):
                break
    assert re.search(r"^part \d+, 1 s so far$", out.getvalue(), re.M)


@pytest.mark.parametrize("width", WIDTHS)
def test_other_long_work_fits_in_one_line(width: int) -> None:
    out = Written()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    with Activity("drawing 9 runs", console=console) as activity:
        activity.note("[b] 12 figures drawn")
        wait_until(lambda: "12 figures" in out.getvalue(), "the detail is shown")
    screen = Screen(width)
    screen.feed(out.getvalue().replace("\n", "\r\n"))
    assert screen.broken == []
    assert screen.cursor_visible


def test_short_work_prints_nothing_in_a_pipe() -> None:
    out = io.StringIO()
    with Activity("drawing", console=Console(file=out)):
        pass
    assert out.getvalue() == ""


def test_a_live_display_ends_while_runs_end() -> None:
    """Drawing and ending a run from two threads do not wait for each other."""
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    display = CampaignProgress(100, console=console)

    def work() -> None:
        for index in range(100):
            display.begin(f"fedhp seed {index}", 2)
            display.update(f"fedhp seed {index}", event(1))
            display.end(f"fedhp seed {index}", "finished")

    thread = threading.Thread(target=work, daemon=True)
    with display:
        thread.start()
        for _ in range(100):
            display._live.refresh()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_a_run_with_a_horizon_shows_its_virtual_time() -> None:
    now = [0.0]
    out = io.StringIO()
    console = Console(width=100, file=out, force_terminal=True, color_system=None)
    display = CampaignProgress(1, console=console, clock=lambda: now[0])
    display.begin("dpsgd seed 0", 10_000_000, horizon=400.0)
    now[0] = 30.0
    display.update("dpsgd seed 0", event(7, clock=100.4))
    console.print(display.lines())
    heading, line, _ = out.getvalue().splitlines()
    assert heading.split()[1] == "time"
    assert re.search(r"━+─+ +100/400 s +90 s", line), line
    plain = io.StringIO()
    with CampaignProgress(1, console=Console(file=plain, width=100)) as lines:
        lines.begin("dpsgd seed 0", 10_000_000, horizon=400.0)
        for index, clock in enumerate((10.0, 70.0, 85.0, 170.0, 401.0), start=1):
            lines.update("dpsgd seed 0", event(index, clock=clock))
    shown = [line for line in plain.getvalue().splitlines() if "accuracy" in line]
    assert [re.findall(r"round (\d), (\d+)/400 s", line) for line in shown] == [
        [("3", "85")],
        [("4", "170")],
        [("5", "401")],
    ]
