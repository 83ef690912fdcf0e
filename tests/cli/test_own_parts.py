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


FAILS = """
import numpy as np
import torch
from fedhp.types import Dataset

def load():
    return np.loadtxt("absent.csv")  # here: load

class Net(torch.nn.Linear):
    def __init__(self, shape, classes):
        super().__init__(64, classes)
    def forward(self, inputs):
        return super().forward(inputs)  # here: Net

def model(shape, classes):
    raise KeyError("no such layer")  # here: model

class Own:
    metric_name = "R2"
    def data(self):
        return helper()
    def model(self): ...
    def loss(self, outputs, targets): ...
    def metric(self, outputs, targets): ...

def helper():
    return Dataset(1 / 0)  # here: Own

class Plans:
    def start(self, federation):
        return federation.nothing  # here: Plans
    def plan(self, state, observation, reports): ...

def graph(workers, seed):
    return [1, 2][workers]  # here: graph
"""


def line_of(code: str, mark: str) -> int:
    """The number of the line with this mark, from 1."""
    return next(number for number, line in enumerate(code.split("\n"), 1) if mark in line)


@pytest.mark.parametrize(
    ("setting", "part", "words"),
    [
        ("data.name", "load", "FileNotFoundError"),
        ("model.name", "Net", "cannot be multiplied"),
        ("model.name", "model", "no such layer"),
        ("task.name", "Own", "ZeroDivisionError"),
        ("algorithm.name", "Plans", "AttributeError"),
        ("topology.name", "graph", "IndexError"),
    ],
)
def test_an_error_in_own_code_has_its_file_and_line(
    command: Command, tmp_path: Path, *, setting: str, part: str, words: str
) -> None:
    code = tmp_path / f"failing_{part.lower()}_part.py"  # modules are imported once
    code.write_text(FAILS, encoding="utf-8")
    file = tmp_path / "own.toml"
    file.write_text(f"[{setting.split('.')[0]}]\nname = '{code.stem}:{part}'\n")
    result = command("run", file, "--out", tmp_path / "run")
    assert result.code == 2
    assert words in result.err
    assert f"{code}, line {line_of(FAILS, f'# here: {part}')}" in result.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("code", ["x = 1\nimport absent_library\n", "x = 1\nx = = 2\n"])
def test_an_error_at_import_has_its_file_and_line(
    command: Command, tmp_path: Path, code: str
) -> None:
    module = tmp_path / f"bad_import_{len(code)}.py"
    module.write_text(code, encoding="utf-8")
    file = write(tmp_path, model={"name": f"{module.stem}:Net"})
    result = command("run", file, "--out", tmp_path / "run")
    assert result.code == 2
    assert f"{module}, line 2" in result.err


def test_a_bad_plan_ends_a_run_with_its_file_and_line(command: Command, tmp_path: Path) -> None:
    code = BREAKS.replace('raise LookupError("the map\\nis lost")', "links = [[0, 99]]")
    code = code.replace("links = np.empty((0, 2), dtype=np.int64)", "")
    code = code.replace(
        "n, none =", "links = [[0, 99]] if state.rounds == 2 else [[0, 1]]; n, none ="
    )
    code = code.replace("Decision(links,", "Decision(np.empty((0, 2), dtype=np.int64),")
    code = code.replace("Topology(n, links)", "Topology(n, np.array(links))")
    module = tmp_path / "bad_plan_part.py"
    module.write_text(code, encoding="utf-8")
    file = write(tmp_path, rounds=4, algorithm={"name": "bad_plan_part:Breaks"})
    result = command("run", file, "--out", tmp_path / "run")
    assert result.code == 2
    assert "round 3: its topology has a link of the unknown worker 99" in result.err
    assert f"{module}, line {line_of(code, 'def plan')}" in result.err
    with fedhp.open_run(tmp_path / "run") as run:
        assert run.rounds_done == 2


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
    result = command("run", file, "--out", folder / "run")
    assert result.code == 70
    assert "an unexpected LookupError: the map is lost" in result.err
    assert "your own code" in result.err
    assert f"{folder / 'breaking_part.py'}, line {line_of(BREAKS, 'LookupError')};" in result.err
    (details,) = (folder / "details").iterdir()
    assert str(details) in result.err
    assert "breaking_part.py" in details.read_text()
    with fedhp.open_run(folder / "run") as run:
        assert run.rounds_done == 2


def test_in_a_comparison_the_others_finish(command: Command, folder: Path) -> None:
    algorithms = "breaking_part:Breaks,breaking_part:Breaks:after=9,dpsgd"
    options = ("--algorithms", algorithms, "--jobs", "1", "--no-figures", "--json")
    result = command("compare", write(folder), *options, "--out", folder / "out")
    assert result.code == 70
    assert "1 run failed" in result.err
    assert "breaking_part:Breaks, seed 0: an unexpected LookupError: the map is lost" in result.err
    runs = result.json()["runs"]
    assert [run["rounds"] for run in runs] == [2, 3, 3]
    assert [run["status"] for run in runs] == ["interrupted", "finished", "finished"]


def test_the_command_can_be_called_repeatedly(command: Command, folder: Path) -> None:
    for _ in range(2):
        assert command("--version").code == 0
        assert command("run", folder / "absent.toml").code == 2


def test_own_code_that_calls_sys_exit_is_named(command: Command, folder: Path) -> None:
    module = folder / "exits.py"
    module.write_text(
        BREAKS.replace('raise LookupError("the map\\nis lost")', "raise SystemExit(0)")
    )
    assert "SystemExit" in module.read_text()
    file = write(folder, algorithm={"name": "exits:Breaks"})
    said = command("run", file, "--out", folder / "ended")
    assert said.code == 70
    assert f"{module}, line" in said.err
    said = command(
        *("compare", file, "--algorithms", "exits:Breaks,dpsgd", "--no-figures"),
        *("--out", folder / "both"),
    )
    assert said.code == 70
    assert f"{module}, line" in said.err
