"""The display of a federation at every width: round, time left and workers; never silent."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from emulator import Screen
from fedhp.cluster.ops.progress import RoundFacts
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.console.cluster import ClusterView
from waiting import wait_until

WIDTHS = (40, 60, 80, 100, 160)


def facts(index: int) -> RoundFacts:
    return RoundFacts(index, 2.5, 4, 31.5, 0.25, 0.9123, "R2")


def status() -> wire.StatusReply:
    members = [
        wire.MemberStatus(
            name=f"worker-{number}",
            status="ready",
            phase="training",
            round=3,
            local_steps=30,
            step_time=0.0011,
            accuracy=0.9123,
            silent_seconds=1.0,
        )
        for number in range(4)
    ]
    return wire.StatusReply(
        state="running", round=3, rounds=100, round_seconds=2.5, epoch=1, members=members
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_the_round_and_the_time_left_are_shown(width: int) -> None:
    now = [0.0]
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None, height=50)
    with ClusterView(100, label="fedhp", console=console, clock=lambda: now[0]) as view:
        view.show(None)
        view.show(status(), rounds=[facts(1)])
        now[0] = 6.0
        view.show(status(), rounds=[facts(2), facts(3)], notes=["worker-3 " + "x" * 200])
    screen = Screen(width)
    screen.feed(out.getvalue().replace("\n", "\r\n"))
    assert screen.broken == []
    assert re.search(r"^fedhp +━*─+ +3/100 +5 min", screen.text, re.M)
    assert "R2" in screen.text or width < 60
    assert "accuracy" not in screen.text
    assert len(re.findall(r"^worker-\d +ready", screen.text, re.M)) == 4
    assert screen.cursor_visible


def test_a_pipe_is_never_silent_for_long() -> None:
    """The coordinator does not answer, and no round ends."""
    out = io.StringIO()
    console = Console(file=out, width=80)
    with ClusterView(9, label="fedhp", console=console, silent_seconds=0.01) as view:
        wait_until(lambda: out.getvalue().count("starting: round 0/9\n") >= 2, "lines at the start")
        view.show(status(), rounds=[facts(3)])
        wait_until(lambda: "running: round 3/9\n" in out.getvalue(), "lines between rounds")
    assert "round 3/9  2.50 s  4 workers  steps 31.5  waiting 0.25 s  R2 0.9123" in out.getvalue()
