"""The models of a run as modules: the recorded weights, and the recorded accuracy."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedhp.config import parse
from fedhp.data import load_data
from fedhp.errors import ConfigError, RunError
from fedhp.record.checkpoint import CHECKPOINT_FILE
from fedhp.record.reader import RunReader
from fedhp.record.store import Store
from unit.report.runs import make_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("models") / "run", "dpsgd", rounds=2)


def accuracy(model: torch.nn.Module, run: RunReader) -> float:
    data = load_data(parse(run.meta("experiment")).data)
    with torch.no_grad():
        outputs = model(torch.tensor(data.test_inputs))
    return float((outputs.argmax(1).numpy() == data.test_targets).mean())


def test_a_model_has_the_recorded_accuracy(folder: Path) -> None:
    with RunReader(folder) as run:
        recorded = run.table("worker_evaluations", round_index=2)["accuracy"]
        measured = [accuracy(run.model(worker), run) for worker in range(6)]
        assert measured == pytest.approx(recorded)
        of_mean = run.table("evaluations", round_index=2)["mean_model_accuracy"][0]
        assert accuracy(run.mean_model(), run) == pytest.approx(of_mean)


def test_a_state_dict_holds_the_bits_of_the_checkpoint(folder: Path) -> None:
    with RunReader(folder) as run:
        models = run.models()
        assert models is not None
        tensors = run.state_dict(3)
        flat = np.concatenate([tensor.numpy().ravel() for tensor in tensors.values()])
        assert flat.tobytes() == models[3].tobytes()
        run.model(3).load_state_dict(tensors)


def test_exported_models_load_without_fedhp(folder: Path, tmp_path: Path) -> None:
    with RunReader(folder) as run:
        paths = run.run_models().save(tmp_path / "models")
        assert [path.name for path in paths] == [
            *(f"worker-{worker}.safetensors" for worker in range(6)),
            "mean.safetensors",
        ]
        loaded = load_file(paths[4])
        expected = run.state_dict(4)
        assert sorted(loaded) == sorted(expected)
        assert all(torch.equal(loaded[name], expected[name]) for name in expected)
        mean = load_file(paths[-1])
        assert all(torch.equal(mean[n], t) for n, t in run.mean_model().state_dict().items())


def test_counters_of_batch_norm_are_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("normed_model.py").write_text(
        "from torch import nn\n"
        "def build(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4),\n"
        "                         nn.Linear(4, classes))\n"
    )
    model = {"name": "normed_model:build"}
    folder = make_run(tmp_path / "run", "dpsgd", rounds=1, workers=2, model=model)
    with RunReader(folder) as run, pytest.raises(ConfigError, match="--trust normed_model"):
        run.state_dict(1)
    with RunReader(folder, trust=["normed_model"]) as run:
        assert int(run.state_dict(1)["2.num_batches_tracked"]) == 10


@pytest.mark.parametrize("worker", [-1, 6, np.int64(6), 1.0, "1", True])
def test_an_unknown_worker(folder: Path, worker: Any) -> None:
    with RunReader(folder) as run, pytest.raises(RunError, match="unknown worker") as bad:
        run.model(worker)
    assert bad.value.allowed == "a worker from 0 to 5"


def test_the_state_of_the_mean_model(folder: Path) -> None:
    with RunReader(folder) as run:
        tensors, expected = run.state_dict(), run.mean_model().state_dict()
        assert list(tensors) == list(expected)
        assert all(torch.equal(tensors[name], expected[name]) for name in expected)
        numpy_index: Any = np.int64(2)
        bias = run.state_dict(numpy_index)["output.bias"]
        assert torch.equal(bias, run.state_dict(2)["output.bias"])


def test_a_network_run_has_no_models(folder: Path, tmp_path: Path) -> None:
    run_folder = tmp_path / "network"
    shutil.copytree(folder, run_folder)
    (run_folder / CHECKPOINT_FILE).unlink()
    store = Store.open(run_folder, write=True)
    store.set_meta("network", True)
    store.close()
    with RunReader(run_folder) as run, pytest.raises(RunError, match="network run") as refused:
        run.model(0)
    assert "workers/NAME/model.safetensors" in refused.value.fix


def test_no_models_before_the_first_checkpoint(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", "dpsgd", rounds=2, stop_after=1)
    with RunReader(folder) as run, pytest.raises(RunError, match="no checkpoint yet"):
        run.mean_model()
