"""Your own model: a function (shape, classes, *, settings) that returns a module.

fedhp run examples/own_model.toml
fedhp run examples/own_model.toml model.channels=32 training.batch_norm=local
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """Two convolutions with a skip connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, inputs: Tensor) -> Tensor:
        inner = functional.relu(self.norm1(self.conv1(inputs)))
        return functional.relu(inputs + self.norm2(self.conv2(inner)))


def residual(
    shape: tuple[int, ...],
    classes: int,
    *,
    channels: Annotated[int, Field(ge=1, le=512)] = 16,
    blocks: Annotated[int, Field(ge=1, le=16)] = 1,
) -> nn.Module:
    """A small residual network for images of any size."""
    return nn.Sequential(
        nn.Conv2d(shape[0], channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        *(Block(channels) for _ in range(blocks)),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * channels, classes),
    )
