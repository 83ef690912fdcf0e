"""Whole numbers of a loader or a task reach the model as they are; bytes and images do not."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedhp
from fedhp.config import DataConfig, parse
from fedhp.data.fingerprint import fingerprint
from fedhp.data.load import clear_memory, load_data
from fedhp.errors import ConfigError

PARTS = """
import numpy as np
from torch import nn
from fedhp.types import Dataset

def tokens(*, kind: str = "int64", length: int = 8):
    x = np.arange(60 * length).reshape(60, length) % 20
    x, y = x.astype(kind), np.arange(60) % 2
    return x[:40], y[:40], x[40:], y[40:]

def dataset():
    x, y, u, v = tokens()
    return Dataset("sequences", x.reshape(40, 2, 4), y, u.reshape(20, 2, 4), v, classes=2)

def images():
    x, y, u, v = tokens(length=16)
    return x.reshape(40, 4, 4), y, u.reshape(20, 4, 4), v

class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.embedding = nn.Embedding(20, 4)
        self.output = nn.Linear(4 * shape[0], classes)
    def forward(self, inputs):
        return self.output(self.embedding(inputs).flatten(1))

class Reviews:
    metric_name = "accuracy"
    def data(self):
        x, y, u, v = tokens()
        return Dataset("reviews", x, y, u, v, classes=2, groups=np.arange(40) // 8)
    def model(self):
        return Net((8,), 2)
    def loss(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets)
    def metric(self, outputs, targets):
        return float((outputs.argmax(1) == targets).float().mean())
"""


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "token_parts.py").write_text(PARTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    clear_memory()
    return tmp_path


@pytest.mark.parametrize("kind", ["int64", "int32", "uint16"])
def test_tokens_stay_whole_numbers(parts: Path, kind: str) -> None:
    data = load_data(DataConfig(name="token_parts:tokens", options={"kind": kind}))
    for inputs in (data.train_inputs, data.test_inputs):
        assert inputs.dtype == np.int64
        assert (inputs.min(), inputs.max()) == (0, 19)
    assert data.scaling is None


def test_tokens_of_a_dataset_may_have_any_shape_but_that_of_images(parts: Path) -> None:
    assert load_data(DataConfig(name="token_parts:dataset")).train_inputs.dtype == np.int64
    images = load_data(DataConfig(name="token_parts:images"))
    assert images.train_inputs.dtype == np.float32
    assert images.shape == (1, 4, 4)


@pytest.mark.parametrize("kind", ["uint8", "float32", "float64"])
def test_bytes_and_floats_are_scaled_as_before(parts: Path, kind: str) -> None:
    data = load_data(DataConfig(name="token_parts:tokens", options={"kind": kind}))
    assert data.train_inputs.dtype == np.float32
    assert abs(float(data.train_inputs.mean())) < 1e-6
    assert data.scaling is not None
    assert data.scaling.mean.shape == (8,)


def test_a_model_with_an_embedding_trains_on_tokens(parts: Path) -> None:
    tables = {
        "workers": 3,
        "rounds": 2,
        "data": {"name": "token_parts:tokens"},
        "model": {"name": "token_parts:Net"},
    }
    with fedhp.run(parse(tables), parts / "run") as run:
        assert run.rounds_done == 2


def test_a_task_may_have_tokens(parts: Path) -> None:
    tables = {"workers": 2, "rounds": 1, "task": {"name": "token_parts:Reviews"}}
    with fedhp.run(parse(tables), parts / "run") as run:
        assert run.rounds_done == 1


def test_a_model_for_floats_refuses_tokens_and_says_why(parts: Path) -> None:
    tables = {"workers": 3, "rounds": 1, "data": {"name": "token_parts:tokens"}}
    with pytest.raises(ConfigError) as caught:
        fedhp.run(parse(tables), parts / "run")
    assert caught.value.key == "model.name"
    assert "whole numbers, which are never scaled" in caught.value.problem
    for words in ("torch.nn.Embedding", "astype(np.float32)", "data.standardize"):
        assert words in caught.value.fix


def test_whole_numbers_of_a_file_become_floats_with_a_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ages.npz"
    np.savez(path, x=np.arange(80).reshape(20, 4), y=np.arange(20) % 2)
    with caplog.at_level(logging.WARNING, logger="fedhp"):
        data = load_data(DataConfig(name="npz", path=str(path)))
    assert data.train_inputs.dtype == np.float32
    assert "whole numbers (int64); they become floats" in caplog.text


def test_a_fingerprint_is_of_samples_targets_order_and_preparation(tmp_path: Path) -> None:
    rows = np.arange(400, dtype=np.float32).reshape(40, 10)
    classes = np.arange(40) % 2

    def digests(name: str, x: NDArray[Any], y: NDArray[Any], **settings: object) -> tuple[str, str]:
        path = tmp_path / f"{name}.npz"
        np.savez(path, x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:])
        found = load_data(DataConfig.model_validate({"name": "npz", "path": str(path), **settings}))
        assert fingerprint(found) is found.fingerprint
        return fingerprint(found).train, fingerprint(found).test

    first = digests("first", rows, classes)
    assert digests("copy", rows, classes) == first
    swapped = rows.copy()
    swapped[[0, 2]] = swapped[[2, 0]]
    other = rows.copy()
    other[39, 0] += 1
    relabelled = classes.copy()
    relabelled[0] = 1
    assert digests("order", swapped, classes)[0] != first[0]
    assert digests("targets", rows, relabelled)[0] != first[0]
    assert digests("targets2", rows, relabelled)[1] == first[1]
    assert digests("tests", other, classes)[0] == first[0]
    assert digests("tests2", other, classes)[1] != first[1]
    unscaled = digests("unscaled", rows, classes, standardize=False)
    assert unscaled[0] == first[0]
    assert unscaled[1] != first[1]
    fewer = digests("fewer", rows, classes, train_images=20)
    assert fewer[0] != first[0]
    assert fewer[1] != first[1]  # fewer samples give another scaling
