"""The work of every side: the same arrays, models, batches and number of local steps.

Needs only numpy and torch, so that the programs of the peers can use it in their own venvs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

WORKERS = 30
BATCH = 32
DEGREE = 6
LEARNING_RATE = 0.05
SIDE = 28
TEST_IMAGES = 2000
SHARE = 640  # training images of each worker: 20 batches, the most local steps
CNN_STEPS = 5  # local steps of every worker in a round with the CNN
EVALUATE_EVERY = 5
CLASSES = {"cnn": 62, "mlp": 10, "logistic": 10}
SEED = 7


@dataclass(frozen=True, slots=True)
class Arrays:
    """Images [n, 1, 28, 28] and labels [n]; worker i owns rows i * SHARE to (i + 1) * SHARE."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor


def local_steps(model: str) -> list[int]:
    """Local steps of each worker in a round: 1 to 20 for the small models."""
    if model == "cnn":
        return [CNN_STEPS] * WORKERS
    return [worker % 20 + 1 for worker in range(WORKERS)]


def plain_model(model: str) -> nn.Module:
    """The model with torch's own layers and initial values."""
    classes = CLASSES[model]
    if model == "cnn":
        return nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, 512),
            nn.ReLU(),
            nn.Linear(512, classes),
        )
    if model == "mlp":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(SIDE * SIDE, 128), nn.ReLU(), nn.Linear(128, classes)
        )
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, classes))


def data_file(folder: Path, model: str) -> Path:
    """Where the arrays for this model are."""
    return folder / f"classes{CLASSES[model]}.npz"


def write_data(folder: Path) -> None:
    """Write synthetic images, one noisy prototype per class, for all sides of all claims."""
    for model in ("cnn", "mlp"):
        classes = CLASSES[model]
        rng = np.random.default_rng([SEED, classes])
        prototypes = rng.standard_normal((classes, 1, SIDE, SIDE), dtype=np.float32)

        def draw(
            count: int,
            *,
            rng: np.random.Generator = rng,
            prototypes: NDArray[np.float32] = prototypes,
        ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
            labels = rng.permutation(np.arange(count) % len(prototypes))
            noise = rng.standard_normal((count, 1, SIDE, SIDE), dtype=np.float32)
            return (prototypes[labels] + 2 * noise) / math.sqrt(5), labels

        x_train, y_train = draw(WORKERS * SHARE)
        x_test, y_test = draw(TEST_IMAGES)
        np.savez(
            data_file(folder, model), x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test
        )


def read_data(folder: Path, model: str) -> Arrays:
    """The arrays as tensors."""
    with np.load(data_file(folder, model), allow_pickle=False) as content:
        return Arrays(
            *(torch.from_numpy(content[k]) for k in ("x_train", "y_train", "x_test", "y_test"))
        )


def step_flops(model: str, *, batch: int = BATCH, on_padding: bool = True) -> float:
    """Floating-point operations of one training step: products only, a multiply-add is two.

    The first layer needs no gradient of its input. on_padding = False leaves out the
    products with the zeros around an image, which a GEMM-based convolution computes too.
    """
    layers = layer_flops(model, on_padding=on_padding)
    return batch * (3 * sum(layers) - layers[0])


def image_flops(model: str) -> float:
    """Floating-point operations of one image forward."""
    return sum(layer_flops(model))


def layer_flops(model: str, *, on_padding: bool = True) -> list[float]:
    """Forward products of each layer with weights, for one image."""
    flops: list[float] = []
    side = SIDE
    for layer in plain_model(model).children():
        if isinstance(layer, nn.Conv2d):
            kernel = layer.kernel_size[0]
            taps = side * kernel
            if not on_padding:
                offsets = range(-(kernel // 2), kernel // 2 + 1)
                taps = sum(side - abs(offset) for offset in offsets)
            flops.append(2.0 * taps**2 * layer.in_channels * layer.out_channels)
        elif isinstance(layer, nn.MaxPool2d):
            side //= 2
        elif isinstance(layer, nn.Linear):
            flops.append(2.0 * layer.in_features * layer.out_features)
    return flops
