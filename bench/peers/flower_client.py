"""The Flower client, in a module that Ray's actors can import."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.client import NumPyClient
from numpy.typing import NDArray

from bench.work import BATCH, LEARNING_RATE, SHARE, Arrays, local_steps, plain_model, read_data

Weights = list[NDArray[np.float32]]


@functools.cache
def arrays_of(folder: str, model: str) -> Arrays:
    """Read once per process: a real client would also have its data in memory."""
    torch.set_num_threads(1)
    return read_data(Path(folder), model)


@functools.cache
def module_of(model: str) -> torch.nn.Module:
    """One module per process; every client loads the global weights into it."""
    return plain_model(model)


def weights_of(module: torch.nn.Module) -> Weights:
    """The weights in the form that Flower sends."""
    return [value.detach().numpy() for value in module.state_dict().values()]


def load(module: torch.nn.Module, weights: Weights) -> None:
    """Load weights in that form."""
    names = module.state_dict().keys()
    values = (torch.from_numpy(np.array(value)) for value in weights)
    module.load_state_dict(dict(zip(names, values, strict=True)))


class Client(NumPyClient):  # type: ignore[misc]
    """Plain local SGD on the client's own images."""

    def __init__(self, worker: int, folder: str, model: str) -> None:
        self.worker, self.folder, self.model = worker, folder, model

    def fit(self, parameters: Weights, config: Any) -> tuple[Weights, int, dict[str, float]]:
        """One epoch over as many batches as this worker has steps."""
        arrays, module = arrays_of(self.folder, self.model), module_of(self.model)
        load(module, parameters)
        module.train()
        optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE)
        criterion = torch.nn.CrossEntropyLoss()
        steps = local_steps(self.model)[self.worker]
        order = self.worker * SHARE + torch.randperm(steps * BATCH)
        for index in torch.split(order, BATCH):
            optimizer.zero_grad()
            criterion(module(arrays.x_train[index]), arrays.y_train[index]).backward()
            optimizer.step()
        return weights_of(module), steps * BATCH, {}
