"""The models of a run as torch modules: a row of the checkpoint loaded into the run's own model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedhp import components
from fedhp.algorithms import load_algorithm
from fedhp.algorithms.base import rule_of
from fedhp.config import parse
from fedhp.config.origins import Origins
from fedhp.data import load_data
from fedhp.errors import RunError
from fedhp.files import storage_errors, write_parts
from fedhp.learn.params import layout_of
from fedhp.learn.task import initial_model, make_task
from fedhp.record.checkpoint import Checkpoint, served_models
from fedhp.record.tensors import tensor_parts


class RunModels:
    """The workers' models as of the last checkpoint, and their mean."""

    def __init__(
        self,
        folder: Path,
        tables: Mapping[str, Any],
        saved: Checkpoint,
        *,
        trust: Sequence[str] = (),
    ) -> None:
        self._folder = folder
        self._experiment = parse(tables, origins=Origins(str(folder)), stored=True)
        part = self._experiment.algorithm
        with components.parts_of_record(trust), self._experiment.origins.named():
            self._task = make_task(
                self._experiment.task,
                self._experiment.model,
                lambda: load_data(self._experiment.data),
            )
            self._algorithm = load_algorithm(part.name, part.settings)
        self._rows = served_models(saved)
        self._counters = saved.arrays["counters"]
        self.round_index = saved.round_index
        self.workers = len(self._rows)

    def model(self, worker: int) -> nn.Module:
        """A new module with a worker's weights, in evaluation mode."""
        whole = isinstance(worker, int | np.integer) and not isinstance(worker, bool)
        if not whole or not 0 <= worker < self.workers:
            shown = int(worker) if isinstance(worker, np.integer) else repr(worker)
            raise RunError(
                f"{self._folder}: unknown worker {shown}",
                allowed=f"a worker from 0 to {self.workers - 1}",
                fix="choose one of these, or mean_model() for the mean of all",
            )
        return self._module(self._rows[worker], self._counters[worker])

    def mean_model(self) -> nn.Module:
        """A new module with the mean of all workers' weights; counters are those of worker 0."""
        total = np.zeros(self._rows.shape[1])
        for row in self._rows:
            total += row
        return self._module((total / self.workers).astype(np.float32), self._counters[0])

    def save(self, folder: Path) -> list[Path]:
        """Write worker-0.safetensors, ... and mean.safetensors into a folder."""
        paths = [
            self._save(self.model(worker), folder / f"worker-{worker}.safetensors")
            for worker in range(self.workers)
        ]
        return [*paths, self._save(self.mean_model(), folder / "mean.safetensors")]

    def _save(self, module: nn.Module, path: Path) -> Path:
        arrays = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
        metadata = {"format": "pt", "round": str(self.round_index)}
        with storage_errors(path, option="--models"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_parts(path, tensor_parts(arrays, metadata))
        return path

    def _module(self, row: np.ndarray[Any, Any], counters: np.ndarray[Any, Any]) -> nn.Module:
        module = initial_model(self._task, self._experiment.seed)
        layout = layout_of(
            module,
            batch_norm=self._experiment.training.batch_norm,
            vectors=rule_of(self._algorithm).vectors,
            epochs=self._experiment.training.batches == "epochs",
        )
        if (layout.width, layout.counter_width) != (len(row), len(counters)):
            raise RunError(
                f"{self._folder}: the model has {layout.width} numbers now, "
                f"but the run recorded {len(row)}",
                allowed="the model and task that the run was started with, code included",
                fix="undo the change in your own model or task",
            )
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for slots, values in ((layout.slots, row), (layout.counters, counters)):
                for slot in slots:
                    part = np.array(values[slot.start : slot.stop])
                    tensors[slot.name].copy_(torch.from_numpy(part).view(slot.shape))
        return module.eval()
