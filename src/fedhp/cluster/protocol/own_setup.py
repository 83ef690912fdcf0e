"""What this machine would train: its setup, computed from a task, its data and its modules."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import numpy as np

from fedhp.cluster.protocol.setup import (
    DATA,
    MAX_FACTS,
    MAX_SCALED,
    MODEL,
    MODULE,
    TEST,
    Setup,
    SetupPart,
)
from fedhp.data.fingerprint import fingerprint
from fedhp.trust import Trust
from fedhp.types import Dataset

if TYPE_CHECKING:
    from torch import nn


def module_parts(trust: Trust) -> list[SetupPart]:
    """The modules with the user's own parts, by the files that were read."""
    return [
        SetupPart(f"{MODULE}{module.name}", module.sha256)
        for module in trust.modules
        if module.sha256
    ]


def data_parts(dataset: Dataset, *, private: bool = False) -> list[SetupPart]:
    """The experiment's data set. A worker with private samples has its test set and its scaling
    only."""
    digests = fingerprint(dataset)
    shape = "x".join(map(str, dataset.shape)) or "one number"
    classes = "no classes" if dataset.classes is None else f"{dataset.classes} classes"
    train = f"{len(dataset.train_inputs)} training samples"
    scaled = f", scaled by {train}" if dataset.scaling is not None else ""
    parts = [
        SetupPart(DATA, digests.train, train),
        SetupPart(
            TEST,
            digests.test,
            f"{len(dataset.test_inputs)} test samples of {shape}, {classes}{scaled}",
        ),
    ]
    return parts[1:] if private else parts


def model_part(module: nn.Module) -> SetupPart:
    """The shapes and the initial values of a model."""
    tensors = {name: tensor.cpu().numpy() for name, tensor in module.state_dict().items()}
    shapes = [
        f"{name} {'x'.join(map(str, values.shape)) or 'one number'}"
        for name, values in tensors.items()
    ]
    numbers = sum(values.size for values in tensors.values())
    digest = hashlib.sha256(json.dumps(shapes).encode())
    square = projection = 0.0
    position = 0
    for values in tensors.values():
        digest.update(np.ascontiguousarray(values).data)
        flat = values.ravel().astype(np.float64)
        square += float(flat @ flat)
        projection += float(flat @ np.cos(np.arange(position, position + flat.size)))
        position += flat.size
    facts = f"{numbers} numbers: {', '.join(shapes)}"
    if len(facts) > MAX_FACTS:
        facts = f"{facts[: MAX_FACTS - 20]} ... {hashlib.sha256(facts.encode()).hexdigest()[:8]}"
    return SetupPart(MODEL, digest.hexdigest(), facts, (float(np.sqrt(square)), projection))


def setup_of(dataset: Dataset, module: nn.Module, *, trust: Trust, private: bool) -> Setup:
    """Of a worker."""
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    scaling = dataset.scaling
    if scaling is not None and scaling.mean.size <= MAX_SCALED:
        mean, deviation = (
            tuple(values.ravel().tolist()) for values in (scaling.mean, scaling.deviation)
        )
    parts = [*module_parts(trust), *data_parts(dataset, private=private), model_part(module)]
    return Setup(tuple(parts), private, mean, deviation)
