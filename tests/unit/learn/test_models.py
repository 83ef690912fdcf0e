"""The built-in models: sizes, the order of pool and ReLU, initial values, what is refused."""

from __future__ import annotations

import math
import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedhp import components
from fedhp.config import ComponentConfig
from fedhp.errors import ConfigError
from fedhp.learn import models
from fedhp.learn.names import MODELS

Factory = Callable[..., nn.Module]


@pytest.fixture(autouse=True)
def _fixed_start() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(5)
        yield


def size(module: nn.Module) -> int:
    return sum(tensor.numel() for tensor in module.parameters())


def layers(module: nn.Module, kind: type[nn.Module]) -> list[nn.Module]:
    return [layer for layer in module.modules() if isinstance(layer, kind)]


def kernels(module: nn.Module) -> list[int]:
    return [layer.weight.shape[-1] for layer in module.modules() if isinstance(layer, nn.Conv2d)]


@pytest.mark.parametrize(
    ("factory", "shape", "classes", "parameters"),
    [
        (models.cnn, (1, 28, 28), 62, 1_690_046),
        (models.alexnet, (3, 32, 32), 10, 4_874_058),
        (models.vgg16, (3, 64, 64), 100, 16_081_956),
        (models.resnet20, (3, 32, 32), 10, 269_722),
        (models.resnet20, (1, 8, 8), 10, 269_722 - 2 * 9 * 16),
        (models.small_cnn, (1, 8, 8), 10, 13_706),
        (models.small_cnn, (3, 16, 16), 10, 38_570),
        (models.mlp, (1, 8, 8), 10, 64 * 32 + 32 + 32 * 10 + 10),
        (models.logistic, (1, 8, 8), 10, 650),
    ],
)
def test_parameter_counts(
    factory: Factory, shape: tuple[int, ...], classes: int, parameters: int
) -> None:
    module = factory(shape, classes)
    assert size(module) == parameters
    assert module.eval()(torch.zeros(2, *shape)).shape == (2, classes)


def test_the_papers_layers() -> None:
    assert kernels(models.cnn((1, 28, 28), 62)) == [5, 5]
    assert kernels(models.alexnet((3, 32, 32), 10)) == [11, 7, 3, 3, 3]
    vgg = models.vgg16((3, 64, 64), 100)
    assert kernels(vgg) == [3] * 13
    assert len(layers(vgg, nn.Linear)) == 3
    assert len(layers(vgg, nn.BatchNorm2d)) == 13
    assert len(layers(vgg, nn.MaxPool2d)) == 5
    assert not layers(models.vgg16((3, 32, 32), 10, norm="none", width=0.1), nn.BatchNorm2d)


def test_nothing_is_random_after_creation() -> None:
    for factory in (models.cnn, models.alexnet, models.vgg16, models.resnet20, models.small_cnn):
        module = factory((3, 32, 32), 10, width=0.1).train()
        before = torch.default_generator.get_state()
        module(torch.zeros(2, 3, 32, 32))
        assert torch.equal(before, torch.default_generator.get_state())


@pytest.mark.parametrize("name", ["cnn", "alexnet", "vgg16", "resnet20", "small_cnn"])
def test_width_scales_every_hidden_layer(name: str) -> None:
    factory = getattr(models, name)
    full, half = (factory((3, 32, 32), 10, width=width) for width in (1.0, 0.5))
    pairs = list(zip(full.named_parameters(), half.named_parameters(), strict=True))
    for (label, wide), (_, narrow) in pairs[:-2]:
        assert narrow.shape[0] == wide.shape[0] // 2, label
    assert pairs[-1][1][1].shape == (10,)
    thinnest = factory((3, 32, 32), 10, width=0.001)
    assert thinnest.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_mlp_layers_follow_hidden() -> None:
    module = models.mlp((3, 4), 5, hidden=[7, 6])
    dense = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    assert [(one.in_features, one.out_features) for one in dense] == [(12, 7), (7, 6), (6, 5)]
    assert size(models.mlp((12,), 5, hidden=[])) == size(models.logistic((12,), 5))


@pytest.mark.parametrize("shape", [(1, 4, 4), (2, 5, 9), (1, 28, 30)])
@pytest.mark.parametrize("name", ["cnn", "small_cnn"])
def test_any_image_of_at_least_the_least_size_fits(name: str, shape: tuple[int, ...]) -> None:
    assert getattr(models, name)(shape, 3, width=0.2)(torch.zeros(2, *shape)).shape == (2, 3)


@pytest.mark.parametrize("shape", [(1, 15, 15), (3, 17, 31), (3, 64, 48)])
def test_alexnet_fits_any_image_of_15_and_more(shape: tuple[int, ...]) -> None:
    assert models.alexnet(shape, 3, width=0.1)(torch.zeros(2, *shape)).shape == (2, 3)


def test_vgg16_fits_any_image_of_32_and_more() -> None:
    for shape in ((1, 32, 32), (3, 33, 70)):
        assert models.vgg16(shape, 3, width=0.05)(torch.zeros(2, *shape)).shape == (2, 3)


def test_the_layers_of_resnet20() -> None:
    """19 convolutions and one dense layer; either norm has two values per channel."""
    group = models.resnet20((3, 32, 32), 10)
    batch = models.resnet20((3, 32, 32), 10, norm="batch")
    assert kernels(group) == kernels(batch) == [3] * 19
    assert size(group) == size(batch)
    assert len(layers(group, nn.GroupNorm)) == len(layers(batch, nn.BatchNorm2d)) == 19
    assert not list(group.buffers())
    sizes = [layer.out_channels for layer in group.modules() if isinstance(layer, nn.Conv2d)]
    assert sizes == [16] * 7 + [32] * 6 + [64] * 6


def test_a_block_of_resnet20_adds_its_input() -> None:
    """With convolutions of zeros only the shortcut is left: every second pixel, zeros around."""
    block = models.resnet20((3, 8, 8), 10, norm="batch").eval().get_submodule("block2_1")
    for layer in block.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.zeros_(layer.weight)
    images = torch.rand(2, 16, 8, 8)
    result = block(images)
    assert result.shape == (2, 32, 4, 4)
    assert torch.equal(result[:, 8:24], images[:, :, ::2, ::2])
    assert not result[:, :8].any()
    assert not result[:, 24:].any()


@pytest.mark.parametrize("norm", ["group", "batch"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (2, 9, 31), (3, 64, 48)])
def test_resnet20_fits_any_image_of_8_and_more(
    shape: tuple[int, ...], norm: Literal["group", "batch"]
) -> None:
    for width in (0.01, 0.33):  # one channel, and an odd number of them
        module = models.resnet20(shape, 3, width=width, norm=norm).train()
        assert module(torch.zeros(1, *shape)).shape == (1, 3)


def swapped(module: nn.Module) -> nn.Sequential:
    """The same layers, the textbook way round: ReLU, then pool."""
    parts = dict(module.named_children())
    names = list(parts)
    order = list(names)
    for place, name in enumerate(names):
        if name.startswith("pool"):
            assert names[place + 1].startswith("relu")
            order[place : place + 2] = [names[place + 1], name]
    return nn.Sequential(OrderedDict((name, parts[name]) for name in order))


@pytest.mark.parametrize("name", ["cnn", "alexnet", "vgg16", "small_cnn"])
def test_pool_before_relu_is_bit_equal(name: str) -> None:
    module = getattr(models, name)((3, 32, 32), 10, width=0.2)
    inputs, targets = torch.randn(8, 3, 32, 32), torch.arange(8)
    results = []
    for variant in (module, swapped(module)):
        outputs = variant(inputs)
        loss = functional.cross_entropy(outputs, targets)
        results.append((outputs, torch.autograd.grad(loss, list(module.parameters()))))
    assert torch.equal(results[0][0], results[1][0])
    assert all(torch.equal(one, two) for one, two in zip(results[0][1], results[1][1], strict=True))


@pytest.mark.parametrize(
    ("name", "shape"),
    [("cnn", (1, 28, 28)), ("alexnet", (3, 32, 32)), ("small_cnn", (1, 8, 8)), ("mlp", (64,))],
)
def test_initial_signals_keep_their_size(name: str, shape: tuple[int, ...]) -> None:
    """Neither fading nor growing from layer to layer, also in the outputs."""
    module = getattr(models, name)(shape, 10)
    signal = torch.randn(32, *shape)
    with torch.no_grad():
        for label, layer in module.named_children():
            signal = layer(signal)
            if label.startswith("relu"):
                assert 0.35 < float(signal.square().mean().sqrt()) < 1.6, label
    # AlexNet diverges at learning rate 0.1 unless it starts with small outputs.
    least, most = (0.03, 0.2) if name == "alexnet" else (0.35, 2.0)
    assert least < float(signal.square().mean().sqrt()) < most
    weight = module.output.weight.detach()
    gain = float(weight.std()) * math.sqrt(weight.shape[1])
    assert gain == pytest.approx(0.1 if name == "alexnet" else 1.0, rel=0.15)


@pytest.mark.parametrize(
    ("factory", "shape", "settings"),
    [
        (models.cnn, (1, 28, 28), {"width": 0.25}),
        (models.alexnet, (3, 32, 32), {"width": 0.25}),
        (models.vgg16, (3, 32, 32), {"width": 0.125}),
        (models.resnet20, (3, 8, 8), {"width": 0.25}),
        (models.resnet20, (3, 8, 8), {"width": 0.25, "norm": "batch"}),
        (models.small_cnn, (1, 8, 8), {}),
        (models.mlp, (64,), {}),
        (models.logistic, (64,), {}),
    ],
)
def test_learns_two_patterns_at_learning_rate_0_1(
    factory: Factory, shape: tuple[int, ...], settings: dict[str, Any]
) -> None:
    patterns = torch.randn(2, *shape)
    module = factory(shape, 2, **settings).train()
    losses = []
    for _ in range(60):
        targets = torch.randint(2, (16,))
        inputs = patterns[targets] + 0.5 * torch.randn(16, *shape)
        loss = functional.cross_entropy(module(inputs), targets)
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        with torch.no_grad():
            for tensor, gradient in zip(module.parameters(), gradients, strict=True):
                tensor.sub_(gradient, alpha=0.1)
        losses.append(loss.item())
    assert losses[0] < math.log(2) + 2
    assert max(losses[-5:]) < 0.1


@pytest.mark.parametrize(
    ("name", "shape", "least"),
    [
        ("cnn", (1, 3, 28), "1x4x4"),
        ("small_cnn", (3, 8, 2), "3x4x4"),
        ("alexnet", (3, 14, 14), "3x15x15"),
        ("vgg16", (3, 31, 64), "3x32x32"),
        ("resnet20", (3, 7, 16), "3x8x8"),
    ],
)
def test_images_too_small_are_refused(name: str, shape: tuple[int, ...], least: str) -> None:
    with pytest.raises(ConfigError) as caught:
        getattr(models, name)(shape, 10)
    text = str(caught.value)
    assert caught.value.key == "model.name"
    assert name in text
    assert "x".join(map(str, shape)) in text
    assert least in text
    assert "data.pool" in caught.value.fix


@pytest.mark.parametrize("shape", [(64,), (8, 8), (), (1, 2, 8, 8)])
def test_convolutions_refuse_what_is_no_image(shape: tuple[int, ...]) -> None:
    for name in ("cnn", "small_cnn", "alexnet", "vgg16", "resnet20"):
        with pytest.raises(ConfigError, match=f"{name} is for images") as caught:
            getattr(models, name)(shape, 10)
        assert "mlp" in caught.value.fix


def test_every_built_in_is_found_by_name() -> None:
    for name, path in MODELS.items():
        part = components.resolve(name, MODELS, key="model.name")
        assert part is getattr(models, name)
        assert path.endswith(f":{name}")


class TestFactory:
    def test_builds_a_new_module_each_time_and_can_be_pickled(self) -> None:
        part = ComponentConfig.model_validate({"name": "mlp", "hidden": [5]})
        factory = models.model_factory(part, (1, 8, 8), 10)
        for one in (factory, pickle.loads(pickle.dumps(factory))):
            assert size(one()) == 64 * 5 + 5 + 5 * 10 + 10
        assert factory() is not factory()

    @pytest.mark.parametrize(
        ("settings", "key", "words"),
        [
            ({"name": "cn"}, "model.name", "did you mean 'cnn'"),
            ({"name": "cnn", "width": 0.0}, "model.width", "above 0"),
            ({"name": "cnn", "width": 9.0}, "model.width", "at most 8"),
            ({"name": "cnn", "widht": 1.0}, "model.widht", "did you mean 'width'"),
            ({"name": "vgg16", "norm": "layer"}, "model.norm", "'batch' or 'none'"),
            ({"name": "resnet20", "norm": "none"}, "model.norm", "'group' or 'batch'"),
            ({"name": "mlp", "hidden": [0]}, "model.hidden.0", "from 1 to"),
            ({"name": "mlp", "hidden": "wide"}, "model.hidden", "wide"),
            ({"name": "logistic", "width": 1.0}, "model.width", "takes no settings"),
        ],
    )
    def test_names_a_wrong_setting(self, settings: dict[str, Any], key: str, words: str) -> None:
        with pytest.raises(ConfigError) as caught:
            models.model_factory(ComponentConfig.model_validate(settings), (1, 8, 8), 10)
        assert caught.value.key == key
        assert str(caught.value).startswith(f"{key}: ")
        assert words in str(caught.value)

    def test_explains_a_factory_that_does_not_take_shape_and_classes(self) -> None:
        part = ComponentConfig(name=f"{__name__}:without_arguments")
        with pytest.raises(ConfigError, match="cannot be called as a model factory") as caught:
            models.model_factory(part, (1, 8, 8), 10)
        assert "def without_arguments(shape, classes, *" in caught.value.fix

    def test_explains_a_factory_that_fails(self) -> None:
        factory = models.model_factory(ComponentConfig(name=f"{__name__}:broken"), (1, 8, 8), 10)
        with pytest.raises(ConfigError, match="ZeroDivisionError") as caught:
            factory()
        assert caught.value.key == "model.name"


def without_arguments() -> nn.Module:
    return nn.Linear(1, 1)


def broken(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(1 // 0, classes)


@pytest.mark.parametrize("name", ["cnn", "alexnet", "vgg16", "resnet20", "small_cnn"])
def test_colour_images_are_laid_out_for_a_cpu_and_mean_the_same(name: str) -> None:
    torch.manual_seed(3)
    module = getattr(models, name)((3, 32, 32), 5, width=0.125).double().eval()
    layers = OrderedDict(module.named_children())
    layout = layers.pop("layout")
    images = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    assert layout(images).is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(module(images), nn.Sequential(layers)(images))
    grey = getattr(models, name)((1, 32, 32), 5, width=0.125)
    assert "layout" not in dict(grey.named_children())
