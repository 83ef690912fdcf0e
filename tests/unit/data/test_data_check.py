"""check recognises data at a path, and the commands print it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedhp.cli.commands.data import app
from fedhp.data.check import check
from fedhp.errors import ConfigError, DataError, FedhpError

WriteIdx = Callable[..., Path]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def refuse(*arguments: str) -> tuple[str, FedhpError]:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    assert isinstance(result.exception, FedhpError), result.output
    return result.output, result.exception


def test_a_mnist_folder(mnist_folder: Path) -> None:
    (finding,) = check(mnist_folder)
    assert finding.title == "mnist"
    assert (finding.train_images, finding.test_images, finding.classes) == (20, 10, 10)
    assert finding.shape == (1, 28, 28)
    assert finding.train_counts is not None
    assert finding.train_counts.tolist() == [2] * 10
    assert finding.official.startswith("NOT the official content")
    assert finding.lines == ('data.name = "mnist"', f'data.path = "{mnist_folder}"')
    output = run("check", str(mnist_folder))
    for words in ("20 for training, 10 for test", "1x28x28", "2 of each class", "data.path ="):
        assert words in output


def test_everything_below_a_folder(tmp_path: Path, mnist_folder: Path, write_idx: WriteIdx) -> None:
    for part in ("train", "test"):
        stem = tmp_path / "emnist" / f"emnist-letters-{part}"
        write_idx(Path(f"{stem}-images-idx3-ubyte.gz"), np.zeros((2, 28, 28)))
        write_idx(Path(f"{stem}-labels-idx1-ubyte.gz"), [1, 2])
    np.savez(tmp_path / "mine.npz", x=np.ones((10, 4)), y=np.ones(10))
    assert [finding.title for finding in check(tmp_path)] == [
        "emnist, split letters",
        "npz",
        "mnist",
    ]
    output = run("check", str(tmp_path))
    assert 'data.split = "letters"' in output
    assert "none: values to predict" in output


def test_a_problem_is_reported(mnist_folder: Path) -> None:
    (mnist_folder / "t10k-labels-idx1-ubyte.gz").write_bytes(b"rubbish")
    output, error = refuse("check", str(mnist_folder))
    assert "problem:" in output
    assert "t10k-labels-idx1-ubyte.gz" in str(error)
    assert "corrupt" in str(error)


def test_single_files(mnist_folder: Path, tmp_path: Path) -> None:
    (images,) = check(mnist_folder / "train-images-idx3-ubyte.gz")
    assert (images.title, images.train_images) == ("IDX file of images", 20)
    (labels,) = check(mnist_folder / "train-labels-idx1-ubyte.gz")
    assert labels.classes == 10
    batch = tmp_path / "data_batch_1.bin"
    batch.write_bytes(b"".join(bytes([label]) + bytes(3072) for label in (0, 3, 3)))
    (finding,) = check(batch)
    assert finding.train_counts is not None
    assert finding.train_counts.tolist() == [1, 0, 0, 2, 0, 0, 0, 0, 0, 0]
    assert "set data.path to its folder" in run("check", str(batch))


def test_nothing_recognised(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing recognised"):
        check(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(DataError, match="nothing recognised"):
        check(tmp_path / "notes.txt")
    with pytest.raises(DataError, match="no such file"):
        check(tmp_path / "absent")
    (tmp_path / "bad.zip").write_bytes(b"rubbish")
    assert "zip" in str(check(tmp_path / "bad.zip")[0].problem)


def test_paths_with_strange_characters(tmp_path: Path) -> None:
    import tomllib

    folder = tmp_path / 'a "b" [c]\\d'
    folder.mkdir()
    np.savez(folder / "mine.npz", x=np.ones((10, 4)), y=np.arange(10) % 2)
    (finding,) = check(folder)
    assert tomllib.loads("\n".join(finding.lines))["data"]["path"] == str(folder / "mine.npz")
    assert "[c]" in run("check", str(folder))


def table(output: str) -> list[list[int]]:
    rows = [
        re.findall(r"\d+|·", line) for line in output.splitlines() if re.match(r"\s*\d+ ", line)
    ]
    return [[0 if cell == "·" else int(cell) for cell in row] for row in rows]


def test_split_shows_the_samples_of_each_worker(tmp_path: Path) -> None:
    output = run("split", "data.skew=0.8", "workers=6", "--plot", str(tmp_path / "a.png"))
    rows = table(output)
    assert [row[0] for row in rows] == list(range(6))
    assert all(row[1] == sum(row[2:]) for row in rows)
    assert sum(row[1] for row in rows) == 1438
    assert "skew 0.8" in output
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


def test_split_of_an_experiment_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('workers = 4\n[data]\npartition = "dirichlet"\nalpha = 0.1\n')
    output = run("split", str(file), "seed=3")
    assert "4 workers, Dirichlet, alpha 0.1, seed 3" in output
    assert len(table(output)) == 4


@pytest.mark.parametrize("kind", ["shards", "quantity", "iid", "skew"])
def test_split_of_every_kind(kind: str) -> None:
    assert len(table(run("split", f"data.partition={kind}", "workers=3"))) == 3


def test_split_of_many_classes_and_workers(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((1000, 2)), y=np.arange(1000) % 50)
    output = run("split", "data.name=npz", f"data.path={tmp_path / 'a.npz'}", "workers=100")
    assert "most of" in output
    assert "and 40 more workers" in output


def test_split_without_classes(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((100, 2)), y=np.ones(100))
    path, plot = str(tmp_path / "a.npz"), str(tmp_path / "a.svg")
    output = run("split", "data.name=npz", f"data.path={path}", "workers=4", "--plot", plot)
    assert table(output) == [[worker, 20] for worker in range(4)]
    assert (tmp_path / "a.svg").exists()


def test_split_refuses(tmp_path: Path) -> None:
    error: Any
    _, error = refuse("split", "workers=5000")
    assert isinstance(error, ConfigError)
    assert str(error).startswith("command line: workers: 5000 workers cannot share 1438")
    _, error = refuse("split", "absent.toml")
    assert "does not exist" in str(error)
    _, error = refuse("split", "--plot", str(tmp_path / "no" / "a.png"))
    assert "the plot cannot be written" in str(error)
    _, error = refuse("split", "--plot", str(tmp_path / "a.xyz"))
    assert "the plot cannot be written" in str(error)


def test_fetch_refuses_an_unknown_name() -> None:
    _, error = refuse("fetch", "imagenet")
    assert "mnist, emnist, cifar10, tiny_imagenet" in str(error)


def test_fetch_prints_where_it_went(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from fedhp.data.fetch import Fetched

    def fake(name: str, *, to: Path | None, mirror: str | None, progress: Any) -> Fetched:
        progress("a.gz", 5, 10)
        progress("a.gz", 10, 10)
        return Fetched(name, tmp_path / "mnist", ("a.gz",), ("b.gz",))

    monkeypatch.setattr("fedhp.data.fetch.fetch", fake)
    output = run("fetch", "mnist", "--to", str(tmp_path))
    assert "a.gz: downloaded" in output
    assert "b.gz: already present" in output
    assert f'data.path = "{tmp_path / "mnist"}"' in output


def test_help_is_quick_to_import() -> None:
    import subprocess
    import sys

    code = "import sys, fedhp.cli.commands.data; print([m for m in HEAVY if m in sys.modules])"
    heavy = "HEAVY = ('numpy', 'torch', 'sklearn', 'PIL', 'matplotlib', 'pydantic'); "
    result = subprocess.run(
        [sys.executable, "-c", heavy + code], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.strip() == "[]"


OWN_TASK = """
import numpy as np
from fedhp.types import Dataset

class Reviews:
    metric_name = "accuracy"
    def data(self):
        inputs, targets = np.zeros((12, 3), np.float32), np.arange(12) % 2
        return Dataset("reviews", inputs, targets, inputs, targets, 2, groups=np.arange(12) // 4)
    def model(self): ...
    def loss(self, outputs, targets): ...
    def metric(self, outputs, targets): ...
"""


def test_split_of_an_own_task_shows_its_data(tmp_path: Path) -> None:
    (tmp_path / "split_task.py").write_text(OWN_TASK)
    file = tmp_path / "task.toml"
    file.write_text('workers = 3\n[task]\nname = "split_task:Reviews"\n')
    output = run("split", str(file), "data.partition=iid")
    assert output.startswith("reviews: 12 samples, 3 workers, IID")
    assert sum(row[1] for row in table(output)) == 12
    assert "users per worker: 1 to 1, 3 in total" in run(
        "split", str(file), "data.partition=natural"
    )


def test_split_without_a_skew_is_iid() -> None:
    assert "5 workers, IID, seed 0" in run("split", "data.skew=none", "workers=5")
