"""`fedhp whatif`, called as the command line calls it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.support import Command, write
from unit.report.runs import make_run

ODD = '''
"""An algorithm of one's own that tells what it thinks."""
from dataclasses import dataclass
import numpy as np
from fedhp import Decision, NeighborMixing, Plan, Topology

@dataclass(frozen=True)
class State:
    steps: int

class Alone:
    def __init__(self, *, steps: int = 2): self.steps = steps
    def start(self, federation): return State(self.steps)
    def plan(self, state, observation, reports):
        print("a part may print what it likes")
        n, none = len(observation.available), np.empty(0, dtype=np.int64)
        links = np.empty((0, 2), dtype=np.int64)
        decision = Decision(links, none, np.empty(0), "alone")
        exchange = NeighborMixing(Topology(n, links))
        return state, Plan(exchange, decision, local_steps=np.full(n, state.steps))
'''


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("whatif") / "run", "fedhp")


def test_the_table_and_what_it_rests_on(command: Command, run: Path) -> None:
    outcome = command("whatif", run)
    assert outcome.code == 0, outcome.err
    rows = {line.split()[0]: line.split() for line in outcome.out.splitlines() if line.strip()}
    assert rows["fedhp"][1] == "6"
    assert rows["fedhp"][-1] == "recorded"
    assert rows["fedhp:deadline=fill"][-1] == "assumed"
    for planner in ("dpsgd", "ldsgd", "adpsgd", "adpsgd:steps=100"):
        assert rows[planner][-1] == "exact"
    assert rows["adpsgd"].count("0.00") + rows["adpsgd"].count("0.000") == 1  # it never waits
    words = " ".join(outcome.out.split())
    assert "so do all 6 rounds of the run's own planner, replayed" in words
    assert re.search(r"The fastest is \S+: [\d.]+ local steps per second of virtual time", words)
    assert "Nothing was trained" in words
    assert "Assumed for fedhp:deadline=fill: it plans by update norms and distances" in words
    assert "Assumed for pens: its scores are not on record" in words
    assert re.search(r"Replayed 6 planners over 6 rounds in [\d.]+ s\.", words)


def test_every_row_has_its_own_name(command: Command, run: Path) -> None:
    said = command("whatif", run, "world.drift=0", "--planner", "fedhp", "--planner", "dpsgd")
    rows = [line for line in said.out.splitlines() if line.startswith(("fedhp", "dpsgd"))]
    assert [row.split("  ")[0].rstrip(" 0123456789") for row in rows] == [
        "fedhp (recorded)",
        "fedhp (changed)",
        "dpsgd",
    ]
    said = command("whatif", run, "--planner", "fedhp")
    assert "fedhp (replayed)" in said.out


def test_planners_and_settings_of_ones_own(command: Command, run: Path) -> None:
    outcome = command("whatif", run, "world.drift=0", "--planner", "dpsgd", "--planner", "ldsgd")
    assert outcome.code == 0, outcome.err
    assert "Changed: world.drift=0." in outcome.out
    assert [line.split()[0] for line in outcome.out.splitlines()[3:6]] == [
        "fedhp",
        "dpsgd",
        "ldsgd",
    ]


def test_json_is_one_object(command: Command, run: Path) -> None:
    outcome = command("whatif", run, "--json", "--planner", "fedhp,adpsgd:steps=4")
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("\n") == 1
    result = outcome.json()
    assert result["check"]["exact"]
    assert [row["planner"] for row in result["planners"]] == ["fedhp", "adpsgd:steps=4"]
    same, other = result["planners"]
    assert same["round_time_change"] == 0
    assert same["sure"] == "recorded"
    assert (other["mean_waiting_time"], other["waiting_time_change"]) == (0, -1)
    assert set(other) >= {
        *("rounds", "round_time", "mean_waiting_time", "mean_local_steps"),
        *("steps_per_second", "mean_links", "total_time", "assumptions"),
    }
    assert result["seconds"] > 0


def test_an_algorithm_of_ones_own(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "replayed_part.py").write_text(ODD)
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path, algorithm={"name": "replayed_part:Alone", "steps": 3})
    assert command("run", file, "--out", tmp_path / "run").code == 0
    planners = ("--planner", "replayed_part:Alone", "--planner", "replayed_part:Alone:steps=1")
    outcome = command("whatif", tmp_path / "run", *planners, "--json")
    assert outcome.code == 0, outcome.err
    same, other = outcome.json()["planners"]
    assert (same["sure"], same["mean_local_steps"]) == ("recorded", 3)
    assert (other["sure"], other["mean_local_steps"]) == ("assumed", 1)
    assert "a part may print" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["data.skew=0.5"], "command line: data.skew: cannot be changed in a replay"),
        (["--planner", "fedph"], "--planner fedph: algorithm.name: unknown algorithm 'fedph'"),
        (["--planner", ":x=1"], "--planner: ':x=1' names no algorithm"),
        (["world.drift=much"], "command line: world.drift: invalid value 'much'"),
    ],
)
def test_mistakes(command: Command, run: Path, arguments: list[str], words: str) -> None:
    outcome = command("whatif", run, *arguments)
    assert outcome.code == 2
    assert words in outcome.err
    assert "allowed:" in outcome.err
    assert "fix:" in outcome.err
    assert outcome.out == ""


def test_a_path_without_a_run(command: Command, tmp_path: Path) -> None:
    outcome = command("whatif", tmp_path / "nothing")
    assert outcome.code == 2
    assert "is not a run folder" in outcome.err
    assert "fix:" in outcome.err
