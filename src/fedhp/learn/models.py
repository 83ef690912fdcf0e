"""The built-in models: factories (shape, classes, *, settings) -> module.

The paper's CNN, its AlexNet for 32x32 and VGG-16 for 64x64, ResNet-20, and three small ones.
None draws random numbers after its creation. Max-pooling comes before ReLU: the two commute
bit for bit, and ReLU then has a quarter of the work.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from fedhp import components
from fedhp.config import ComponentConfig
from fedhp.errors import ConfigError
from fedhp.learn.names import MODELS

Width = Annotated[float, Field(gt=0, le=8)]
# Of AlexNet and VGG-16: with 1, one diverges at learning rate 0.1, the other's loss rises to 15.
SMALL_OUTPUT = 0.1
GROUPS = 2  # of GroupNorm
Hidden = Annotated[Sequence[Annotated[int, Field(ge=1, le=65536)]], Field(max_length=16)]


def model_factory(
    part: ComponentConfig, shape: tuple[int, ...], classes: int
) -> Callable[[], nn.Module]:
    """A factory without arguments for the model an experiment names, its settings checked.

    It can be pickled; each call builds a new module from torch's default generator.
    """
    factory = components.resolve(part.name, MODELS, key="model.name")
    settings = components.check_settings(factory, part.settings, prefix="model")
    try:
        inspect.signature(factory).bind(shape, classes, **settings)
    except TypeError as error:
        raise ConfigError(
            f"{part.name!r} cannot be called as a model factory: {error}",
            key="model.name",
            allowed="a callable (shape, classes, *, settings...) that returns a torch.nn.Module",
            fix=f"write it as def {part.name.rpartition(':')[2].rpartition('.')[2]}"
            "(shape, classes, *, width=1.0): settings come after the star",
        ) from None
    build = components.build
    return functools.partial(build, factory, shape, classes, settings=settings, prefix="model")


def cnn(shape: tuple[int, ...], classes: int, *, width: Width = 1.0) -> nn.Module:
    """The paper's CNN for 28x28: two 5x5 convolutions (32, 64), each pooled, dense 512.

    1,690,046 parameters for one channel and 62 classes.
    """
    return _two_convolutions("cnn", shape, classes, kernel=5, sizes=(32, 64, 512), width=width)


def alexnet(shape: tuple[int, ...], classes: int, *, width: Width = 1.0) -> nn.Module:
    """AlexNet for 32x32: convolutions 11x11, 7x7 and three 3x3, two hidden dense layers.

    4,874,058 parameters for 3x32x32 and 10 classes. Trains at learning rate 0.1.
    """
    channels, height, side = _image("alexnet", shape, least=15)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for place, (size, kernel, pooled) in enumerate(_ALEXNET, start=1):
        out, stride = _scaled(size, width), 2 if place == 1 else 1
        layers[f"conv{place}"] = nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2)
        if pooled:
            layers[f"pool{place}"] = nn.MaxPool2d(2)
        layers[f"relu{place}"] = nn.ReLU()
        channels = out
    height, side = (math.ceil(size / 2) // 8 for size in (height, side))
    return _with_dense(layers, channels * height * side, _scaled(1024, width), classes)


# Channels, size of the kernel, and whether a pool follows.
_ALEXNET = ((64, 11, True), (192, 7, True), (384, 3, False), (256, 3, False), (256, 3, True))
_VGG16 = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg16(
    shape: tuple[int, ...],
    classes: int,
    *,
    width: Width = 1.0,
    norm: Literal["batch", "none"] = "batch",
) -> nn.Module:
    """VGG-16 for 64x64: 13 3x3 convolutions in five pooled groups, two dense layers of 512.

    With norm = "none" it does not train from scratch at learning rate 0.1: it stays at
    chance. training.batch_norm decides whether BatchNorm's running statistics travel.
    """
    channels, height, side = _image("vgg16", shape, least=32)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for group, sizes in enumerate(_VGG16, start=1):
        for position, size in enumerate(sizes, start=1):
            tag = f"{group}_{position}"
            out = _scaled(size, width)
            # Batch normalisation has a shift of its own.
            layers[f"conv{tag}"] = nn.Conv2d(channels, out, 3, padding=1, bias=norm == "none")
            if norm == "batch":
                layers[f"norm{tag}"] = nn.BatchNorm2d(out)
            if position == len(sizes):
                layers[f"pool{group}"] = nn.MaxPool2d(2)
            layers[f"relu{tag}"] = nn.ReLU()
            channels = out
    inputs = channels * (height // 32) * (side // 32)
    return _with_dense(layers, inputs, _scaled(512, width), classes)


def _with_dense(
    layers: Mapping[str, nn.Module], inputs: int, hidden: int, classes: int
) -> nn.Module:
    """Five groups of convolutions, then two hidden dense layers."""
    return _network(
        SMALL_OUTPUT,
        **layers,
        flatten=nn.Flatten(),
        dense1=nn.Linear(inputs, hidden),
        relu6=nn.ReLU(),
        dense2=nn.Linear(hidden, hidden),
        relu7=nn.ReLU(),
        output=nn.Linear(hidden, classes),
    )


def resnet20(
    shape: tuple[int, ...],
    classes: int,
    *,
    width: Width = 1.0,
    norm: Literal["group", "batch"] = "group",
) -> nn.Module:
    """ResNet-20 for small images (He et al., 2016): a 3x3 convolution, three groups of three
    residual blocks (16, 32, 64 channels), the mean over the image, one dense layer.

    269,722 parameters for 3 channels and 10 classes, with either norm. training.batch_norm decides
    whether BatchNorm's running statistics travel; GroupNorm has none, so that its mixed models
    behave as trained. Trains at learning rate 0.1.
    """
    channels, _, _ = _image("resnet20", shape, least=8)
    sizes = [_scaled(size, width) for size in (16, 32, 64)]
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(channels, sizes[0], 3, padding=1, bias=False),
        norm1=_norm(norm, sizes[0]),
        relu1=nn.ReLU(),
    )
    before = sizes[0]
    for group, size in enumerate(sizes, start=1):
        for position in (1, 2, 3):
            stride = 2 if group > 1 and position == 1 else 1
            layers[f"block{group}_{position}"] = _ResidualBlock(before, size, stride, norm)
            before = size
    return _network(
        SMALL_OUTPUT,
        **layers,
        mean=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        output=nn.Linear(before, classes),
    )


class _ResidualBlock(nn.Module):
    """Two normalised 3x3 convolutions, added to the input.

    Where the block has a stride or more channels, the input is subsampled and gets channels of
    zeros: the shortcut without parameters of ResNets for small images.
    """

    def __init__(self, channels: int, out: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride=stride, padding=1, bias=False)
        self.norm1 = _norm(norm, out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norm2 = _norm(norm, out)
        self.relu = nn.ReLU()
        self._stride, self._more = stride, out - channels
        for layer in (self.conv1, self.conv2):
            _initialise(layer, math.sqrt(2))

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.relu(self.norm1(self.conv1(images)))
        hidden = self.norm2(self.conv2(hidden))
        kept: Tensor = images
        if self._stride > 1:
            kept = kept[:, :, :: self._stride, :: self._stride]
        if self._more:
            kept = functional.pad(kept, (0, 0, 0, 0, self._more // 2, (self._more + 1) // 2))
        result: Tensor = self.relu(hidden + kept)
        return result


def _norm(kind: str, channels: int) -> nn.Module:
    """BatchNorm, or GroupNorm with GROUPS groups (one, where the channels cannot be divided)."""
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(math.gcd(GROUPS, channels), channels)


def small_cnn(shape: tuple[int, ...], classes: int, *, width: Width = 1.0) -> nn.Module:
    """For small images (8x8 digits, 16x16 colour): two 3x3 convolutions (16, 32), dense 64."""
    return _two_convolutions("small_cnn", shape, classes, kernel=3, sizes=(16, 32, 64), width=width)


def _two_convolutions(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    *,
    kernel: int,
    sizes: tuple[int, int, int],
    width: float,
) -> nn.Module:
    """Two convolutions, each pooled, and two dense layers; sizes of all but the last layer."""
    channels, height, side = _image(name, shape, least=4)
    first, second, hidden = (_scaled(size, width) for size in sizes)
    return _network(
        conv1=nn.Conv2d(channels, first, kernel, padding=kernel // 2),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(first, second, kernel, padding=kernel // 2),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        dense1=nn.Linear(second * (height // 4) * (side // 4), hidden),
        relu3=nn.ReLU(),
        output=nn.Linear(hidden, classes),
    )


def mlp(shape: tuple[int, ...], classes: int, *, hidden: Hidden = (32,)) -> nn.Module:
    """Dense layers with ReLU between them, for inputs of any shape."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    size = math.prod(shape)
    for position, out in enumerate(hidden, start=1):
        layers[f"dense{position}"] = nn.Linear(size, out)
        layers[f"relu{position}"] = nn.ReLU()
        size = out
    return _network(**layers, output=nn.Linear(size, classes))


def logistic(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Logistic regression: one linear layer, for inputs of any shape."""
    return _network(flatten=nn.Flatten(), output=nn.Linear(math.prod(shape), classes))


class _ChannelsLast(nn.Module):
    """The same images stored pixel by pixel, on a CPU; the layers that follow keep that order.

    Colour images then take 0.6 to 0.9 of the time; for grey ones `blocked` is as good or better.
    """

    def forward(self, images: Tensor) -> Tensor:
        if images.device.type != "cpu":
            return images
        return images.contiguous(memory_format=torch.channels_last)


def _network(output_gain: float = 1.0, /, **layers: nn.Module) -> nn.Sequential:
    """The layers in order, initialised for plain SGD at learning rate 0.1.

    He initialisation doubles the variance to compensate for the half that ReLU removes.
    A max-pool before the ReLU already compensates; doubling as well lets the
    activations grow with every pool, and AlexNet then diverges at 0.1. No ReLU follows the
    output layer: its weights have a standard deviation of output_gain / sqrt(inputs).
    """
    names = list(layers)
    for name, following in zip(names, [*names[1:], ""], strict=True):
        layer = layers[name]
        if not isinstance(layer, nn.Conv2d | nn.Linear):
            continue
        gain = 1.0 if following.startswith("pool") else math.sqrt(2)
        if name == "output":
            gain = output_gain
        _initialise(layer, gain)
    first = layers[names[0]]
    if isinstance(first, nn.Conv2d) and first.in_channels > 1:
        layers = {"layout": _ChannelsLast(), **layers}
    return nn.Sequential(OrderedDict(layers))


def _initialise(layer: nn.Conv2d | nn.Linear, gain: float) -> None:
    nn.init.normal_(layer.weight, std=gain / math.sqrt(layer.weight[0].numel()))
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def _scaled(size: int, width: float) -> int:
    return max(1, round(size * width))


def _image(model: str, shape: tuple[int, ...], *, least: int) -> tuple[int, int, int]:
    """Channels, height and width of an input; refuses one that does not fit the model."""
    text = "x".join(map(str, shape)) or "()"
    if len(shape) != 3:
        raise ConfigError(
            f"{model} is for images, but one input of this data has the shape {text}",
            key="model.name",
            allowed="inputs of the shape channels x height x width",
            fix="use model.name = 'mlp' or 'logistic', or data of images",
        )
    channels, height, width = shape
    if min(height, width) < least:
        raise ConfigError(
            f"images of the shape {text} are too small for {model}",
            key="model.name",
            allowed=f"channels x height x width of at least {channels}x{least}x{least}",
            fix="use a smaller model (small_cnn, mlp), or a smaller data.pool",
        )
    return channels, height, width
