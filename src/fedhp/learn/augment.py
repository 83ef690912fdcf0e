"""Augmentation of the images that a local step sees: a random crop and a random flip.

Each step of a worker's training draws its own numbers in sequence, so that the bits depend neither
on how many steps follow nor on threads. Estimators and tests see the images as they are.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedhp.config import AugmentationConfig
from fedhp.errors import ConfigError


class Augmenter:
    """Changes the batches of one worker's local training, one after the other."""

    def __init__(self, settings: AugmentationConfig, rng: np.random.Generator) -> None:
        self._settings = settings
        self._rng = rng

    def __call__(self, images: Tensor) -> Tensor:
        """The images [b, channels, height, width] padded with zeros, cropped back to their size
        at a random place, and flipped left to right with probability 1/2."""
        crop, count = self._settings.crop, len(images)
        height, width = images.shape[2:]
        top = left = np.zeros(count, dtype=np.int64)
        if crop:
            top, left = self._rng.integers(2 * crop + 1, size=(2, count))
        rows = top[:, None] + np.arange(height)
        columns = left[:, None] + np.arange(width)
        if self._settings.flip:
            flipped = self._rng.integers(2, size=count) == 1
            columns[flipped] = columns[flipped, ::-1]
        padded = functional.pad(images, (crop, crop, crop, crop)) if crop else images
        pixels = rows[:, :, None] * (width + 2 * crop) + columns[:, None, :]
        chosen = torch.from_numpy(pixels).to(images.device).view(count, 1, -1)
        return padded.flatten(2).gather(2, chosen.expand(-1, images.shape[1], -1)).view_as(images)


def augmented_bytes(
    settings: AugmentationConfig, shape: tuple[int, ...], *, batch_size: int
) -> int:
    """Memory for one augmented batch: its padded copy, the result and the chosen pixels."""
    if not settings.active:
        return 0
    channels, height, width = shape
    padded = channels * (height + 2 * settings.crop) * (width + 2 * settings.crop)
    return batch_size * (4 * padded + (4 * channels + 16) * height * width)


def check_augmentation(settings: AugmentationConfig, shape: tuple[int, ...]) -> None:
    """Refuse to augment what is not an image, and a crop that could miss the image."""
    if not settings.active:
        return
    if len(shape) != 3:
        key = "crop" if settings.crop else "flip"
        raise ConfigError(
            f"is {settings.crop if settings.crop else 'true'}, but the samples have the shape "
            f"{shape}, which is not that of images",
            key=f"augmentation.{key}",
            allowed="[augmentation] with samples of channels x height x width",
            fix="remove [augmentation], or use image data",
        )
    side = min(shape[1:])
    if settings.crop >= side:
        raise ConfigError(
            f"the value {settings.crop} is too large for images of {shape[1]} x {shape[2]} pixels: "
            "a crop could be all padding",
            key="augmentation.crop",
            allowed=f"0 to {side - 1}",
            fix="lower augmentation.crop",
        )
