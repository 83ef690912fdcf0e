"""The notebook in examples/ was executed, is small, and its cells run in order as plain Python."""

from __future__ import annotations

import base64
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

from subprocesses import forked_jobs

FILE = Path(__file__).parents[2] / "examples/demo.ipynb"


def code_cells() -> list[dict[str, Any]]:
    cells = json.loads(FILE.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_it_has_its_outputs_and_pictures() -> None:
    assert FILE.stat().st_size < 400_000
    outputs = [output for cell in code_cells() for output in cell["outputs"]]
    assert [cell["execution_count"] for cell in code_cells()] == [*range(1, len(code_cells()) + 1)]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert not re.search(r"/(home|root|work|tmp)/", json.dumps(outputs)), "a path of a machine"
    pictures = [output["data"]["image/png"] for output in outputs if "data" in output]
    assert len(pictures) == 2
    for picture in pictures:
        assert base64.b64decode(picture).startswith(b"\x89PNG")


def test_its_cells_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the notebook goes to a folder of its own; this one is restored
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    shown: list[int] = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(len(plt.gcf().axes)))
    names: dict[str, Any] = {}
    with forked_jobs():
        for cell in code_cells():
            source = "".join(cell["source"]).replace("rounds=20", "rounds=10")
            exec(compile(source, FILE.name, "exec"), names)
    plt.close("all")
    assert shown == [2, 2]
    assert [run.summary().algorithm for run in names["own"]] == ["my_algorithm:RandomRing"]
