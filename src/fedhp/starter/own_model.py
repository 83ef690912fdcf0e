"""A model to start from: a function (shape, classes, *, settings) that returns a torch module.

fedhp run experiment.toml model.name=own_model:two_convolutions model.channels=16
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import nn


def two_convolutions(
    shape: tuple[int, ...],  # of one sample: (channels, height, width)
    classes: int,
    *,
    channels: Annotated[int, Field(ge=1, le=256)] = 8,  # a setting: model.channels
) -> nn.Module:
    """Two convolutions and a linear layer, for images of any size."""
    return nn.Sequential(
        nn.Conv2d(shape[0], channels, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(16 * channels, classes),
    )
