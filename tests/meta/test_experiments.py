"""Every experiment file that is shipped is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedhp.algorithms import load_algorithm
from fedhp.config import Draft, load
from fedhp.engine.prepare import prepare
from fedhp.engine.runs.campaign import plan_cells
from fedhp.engine.trial import try_algorithm

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted([*ROOT.glob("experiments/*.toml"), *ROOT.glob("examples/*.toml")])


def test_there_are_some() -> None:
    assert {"demo.toml", "acceptance.toml", "own_model.toml", "diabetes.toml"} <= {
        file.name for file in FILES
    }


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.name))
def test_it_is_a_valid_experiment(file: Path, tmp_path: Path) -> None:
    experiment = load(file)
    cells = plan_cells(Draft.read(file), overrides=[], algorithms=None, seeds=None, out=tmp_path)
    expected = len(experiment.compare.algorithms) * len(experiment.compare.seeds)
    assert len({cell.folder for cell in cells}) == len(cells) == expected
    for cell in cells:
        part = cell.experiment.algorithm
        if ":" not in part.name:
            load_algorithm(part.name, part.settings)


@pytest.mark.parametrize(
    "file",
    [file for file in FILES if load(file).data.name == "digits"],
    ids=lambda file: str(file.name),
)
def test_it_passes_the_gate(file: Path) -> None:
    try_algorithm(prepare(load(file)))
