"""Networks called through the blocked layout: the same bits, or the module as it is."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedhp.learn.blocked import forward_of
from fedhp.learn.local import Samples, train
from fedhp.learn.models import alexnet, cnn, mlp, small_cnn, vgg16
from fedhp.learn.params import Replica, layout_of, row_of
from fedhp.learn.task import Classification
from fedhp.types import Dataset

CLASSES = 5
BATCH = 6
Case = tuple[Callable[[], nn.Module], tuple[int, ...]]

NETWORKS: dict[str, Case] = {
    "cnn": (lambda: cnn((1, 28, 28), CLASSES, width=0.25), (1, 28, 28)),
    "cnn odd": (lambda: cnn((1, 13, 11), CLASSES, width=0.15), (1, 13, 11)),
    "small_cnn": (lambda: small_cnn((1, 8, 8), CLASSES), (1, 8, 8)),
    "small_cnn colour": (lambda: small_cnn((3, 16, 16), CLASSES), (3, 16, 16)),
    "alexnet": (lambda: alexnet((3, 32, 32), CLASSES, width=0.125), (3, 32, 32)),
    "vgg16": (lambda: vgg16((3, 32, 32), CLASSES, width=0.125, norm="none"), (3, 32, 32)),
}
EVERY = pytest.mark.parametrize("name", NETWORKS)
needs_layout = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
    reason="this build of torch has no blocked layout",
)


def images(count: int, shape: tuple[int, ...], seed: int = 1) -> Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))


def network(name: str) -> nn.Module:
    """The layers alone: those for colour images would choose another layout themselves."""
    torch.manual_seed(2)
    module = NETWORKS[name][0]()
    layers = OrderedDict(module.named_children())
    layers.pop("layout", None)
    return nn.Sequential(layers)


def gradients(module: nn.Module, outputs: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(outputs.sin().sum(), list(module.parameters())))


@needs_layout
@EVERY
def test_outputs_and_gradients_are_the_same_bits(name: str) -> None:
    """For batches of other sizes than that of the trial as well."""
    module, shape = network(name), NETWORKS[name][1]
    forward = forward_of(module, images(BATCH, shape))
    assert forward is not module
    for count in (1, 2, BATCH, 5 * BATCH):
        inputs = images(count, shape, seed=3)
        plain, blocked = module(inputs), forward(inputs)
        assert torch.equal(plain, blocked)
        pairs = zip(gradients(module, plain), gradients(module, blocked), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)


@needs_layout
@EVERY
def test_tests_are_the_same_bits(name: str) -> None:
    module, shape = network(name).eval(), NETWORKS[name][1]
    forward = forward_of(module, images(BATCH, shape))
    with torch.inference_mode():
        for count in (128, 37):
            inputs = images(count, shape, seed=4)
            assert torch.equal(module(inputs), forward(inputs))


def trained(name: str, *, blocked: bool) -> tuple[Tensor, float]:
    """The row after some steps, and the mean loss."""
    module, shape = network(name), NETWORKS[name][1]
    layout = layout_of(module, batch_norm="mixed")
    row, counters = row_of(module, layout)
    forward = forward_of(module, images(BATCH, shape)) if blocked else module
    replica = Replica(module, layout, forward)
    replica.bind(row, counters)
    nothing, labels = np.zeros((1, *shape), dtype=np.float32), np.zeros(1, dtype=np.int64)
    task = Classification(
        Dataset("none", nothing, labels, nothing, labels, CLASSES), NETWORKS[name][0]
    )
    samples = Samples(images(20, shape, seed=5), torch.arange(20) % CLASSES)
    batches = torch.randint(20, (4, BATCH), generator=torch.Generator().manual_seed(6))
    loss = train(replica, task, samples, batches=batches, learning_rate=0.1, stop=lambda: False)
    return row, loss


@EVERY
def test_training_gives_the_same_bits(name: str) -> None:
    plain, loss = trained(name, blocked=False)
    row, same = trained(name, blocked=True)
    assert torch.equal(plain, row)
    assert loss == same
    start, _ = row_of(network(name), layout_of(network(name), batch_norm="mixed"))
    assert not torch.equal(start, row)


@needs_layout
def test_it_follows_the_row_it_is_bound_to() -> None:
    """A replica is pointed at one worker after the other."""
    module = network("small_cnn")
    layout = layout_of(module, batch_norm="mixed")
    row, counters = row_of(module, layout)
    forward = forward_of(module, images(BATCH, (1, 8, 8)))
    replica, inputs = Replica(module, layout, forward), images(3, (1, 8, 8))
    results = []
    for scale in (1.0, 0.5):
        replica.bind(row * scale, counters)
        assert torch.equal(replica.forward(inputs), module(inputs))
        results.append(replica.forward(inputs))
    assert not torch.equal(*results)


def head(*layers: nn.Module) -> nn.Module:
    """These layers on images of 8x8, then a dense one."""
    torch.manual_seed(7)
    body = nn.Sequential(*layers)
    size = body(images(2, (1, 8, 8))).flatten(1).shape[1]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(size, CLASSES))


class Own(nn.Module):
    """A user's own module."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = head(nn.Conv2d(1, 4, 3), nn.ReLU())

    def forward(self, inputs: Tensor) -> Tensor:
        results: Tensor = self.layers(inputs)
        return results


class OwnSequential(nn.Sequential):
    """Its forward could be any."""


class OwnRelu(nn.ReLU):
    """So could this one's."""


def conv() -> nn.Conv2d:
    return nn.Conv2d(1, 4, 3)


AS_IT_IS: dict[str, Callable[[], nn.Module]] = {
    "BatchNorm": lambda: head(conv(), nn.BatchNorm2d(4), nn.ReLU()),
    "own module": Own,
    "own Sequential": lambda: OwnSequential(*head(conv(), nn.ReLU()).children()),
    "own layer": lambda: head(conv(), OwnRelu()),
    "in-place ReLU": lambda: head(conv(), nn.ReLU(inplace=True)),
    "ceil_mode": lambda: head(conv(), nn.MaxPool2d(4, ceil_mode=True), nn.ReLU()),
    "dilated pool": lambda: head(conv(), nn.MaxPool2d(2, dilation=2)),
    "no bias": lambda: head(nn.Conv2d(1, 4, 3, bias=False), nn.ReLU()),
    "reflected borders": lambda: head(nn.Conv2d(1, 4, 3, padding=1, padding_mode="reflect")),
    "average pool": lambda: head(conv(), nn.AvgPool2d(2)),
    "sigmoid": lambda: head(conv(), nn.Sigmoid()),
    "no images": lambda: mlp((1, 8, 8), CLASSES),
    "no flatten": lambda: nn.Sequential(conv(), nn.ReLU()),
    "empty": nn.Sequential,
    "dropout": lambda: head(conv(), nn.Dropout()),
}


@pytest.mark.parametrize("name", AS_IT_IS)
def test_other_modules_are_called_as_they_are(name: str) -> None:
    module = AS_IT_IS[name]()
    assert forward_of(module, images(BATCH, (1, 8, 8))) is module


@needs_layout
def test_the_same_without_these_is_taken() -> None:
    module = head(conv(), nn.MaxPool2d(2), nn.ReLU())
    assert forward_of(module, images(BATCH, (1, 8, 8))) is not module


def test_inputs_that_are_no_images() -> None:
    module = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(12, CLASSES))
    assert forward_of(module, images(BATCH, (12,))) is module
    assert forward_of(module, images(BATCH, (3, 4))) is module


def listen(module: nn.Module, kind: str) -> None:
    """Add a hook that does nothing."""
    if kind == "forward":
        module.register_forward_hook(lambda *_: None)
    elif kind == "forward_pre":
        module.register_forward_pre_hook(lambda *_: None)
    elif kind == "full_backward":
        module.register_full_backward_hook(lambda *_: None)
    else:
        module.register_full_backward_pre_hook(lambda *_: None)


@pytest.mark.parametrize("where", ["", "conv2", "dense1"])
@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
def test_a_module_with_a_hook_is_called_as_it_is(kind: str, where: str) -> None:
    module = network("small_cnn")
    listen(module.get_submodule(where), kind)
    assert forward_of(module, images(BATCH, (1, 8, 8))) is module


def test_choosing_leaves_the_weights_alone() -> None:
    module = network("small_cnn")
    before = [tensor.clone() for tensor in module.parameters()]
    forward_of(module, images(BATCH, (1, 8, 8)))
    assert all(map(torch.equal, before, module.parameters()))
    assert all(tensor.grad is None for tensor in module.parameters())


def test_a_layer_used_twice() -> None:
    """The second use counts, even where the trial cannot see it."""
    torch.manual_seed(1)
    relu, hidden = nn.ReLU(), nn.Linear(144, 8)
    with torch.no_grad():
        hidden.bias.add_(50)  # at first the ReLU does nothing
    module = nn.Sequential(nn.Conv2d(1, 4, 3), relu, nn.Flatten(), hidden, relu, nn.Linear(8, 5))
    inputs = torch.randn(6, 1, 8, 8)
    forward = forward_of(module, inputs)
    with torch.no_grad():
        hidden.bias.sub_(50)
    assert torch.equal(forward(inputs), module(inputs))


def test_choosing_leaves_the_random_state_alone() -> None:
    torch.manual_seed(3)
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(144, 5)
    )
    before = torch.get_rng_state()
    forward_of(module, torch.zeros(2, 1, 8, 8))
    assert torch.equal(before, torch.get_rng_state())
