"""An own component that fails during a run: reported, with details, and other runs finish."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

import fedhp
from cli.support import Command, write

BREAKS = '''
"""An algorithm that plans two rounds and then has a bug."""
from dataclasses import dataclass
import numpy as np
from fedhp import Decision, NeighborMixing, Plan, Topology

@dataclass(frozen=True)
class State:
    rounds: int

class Breaks:
    def __init__(self, *, after: int = 2): self.after = after
    def start(self, federation): return State(0)
    def plan(self, state, observation, reports):
        if state.rounds == self.after:
            raise LookupError("the map\\nis lost")
        print("a component may print")
        n, none = len(observation.available), np.empty(0, dtype=np.int64)
        links = np.empty((0, 2), dtype=np.int64)
        decision = Decision(links, none, np.empty(0), "alone")
        exchange = NeighborMixing(Topology(n, links))
        return State(state.rounds + 1), Plan(exchange, decision, local_steps=np.full(n, 2))
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "breaking_part.py").write_text(BREAKS)
    (tmp_path / "details").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "details"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_a_run_reports_what_failed_and_where_the_details_are(
    command: Command, folder: Path
) -> None:
    file = write(folder, rounds=4, algorithm={"name": "breaking_part:Breaks"})
    told = command("run", file, "--out", folder / "run")
    assert told.code == 70
    assert "an unexpected LookupError: the map is lost" in told.err
    assert "your own code" in told.err
    (details,) = (folder / "details").iterdir()
    assert str(details) in told.err
    assert "breaking_part.py" in details.read_text()
    with fedhp.open_run(folder / "run") as run:
        assert run.rounds_done == 2


def test_in_a_comparison_the_others_finish(command: Command, folder: Path) -> None:
    algorithms = "breaking_part:Breaks,breaking_part:Breaks:after=9,dpsgd"
    options = ("--algorithms", algorithms, "--jobs", "1", "--no-figures", "--json")
    told = command("compare", write(folder), *options, "--out", folder / "out")
    assert told.code == 70
    assert "1 run failed" in told.err
    assert "breaking_part:Breaks, seed 0: an unexpected LookupError: the map is lost" in told.err
    runs = told.json()["runs"]
    assert [run["rounds"] for run in runs] == [2, 3, 3]
    assert [run["status"] for run in runs] == ["running", "finished", "finished"]


def test_the_command_can_be_called_repeatedly(command: Command, folder: Path) -> None:
    for _ in range(2):
        assert command("--version").code == 0
        assert command("run", folder / "absent.toml").code == 2
