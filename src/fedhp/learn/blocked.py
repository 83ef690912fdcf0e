"""Convolutions in the blocked memory layout of oneDNN: the same bits in less time on a CPU.

torch reorders a plain image tensor before and after every convolution, and pooling and ReLU use
the slow order. Here a network enters the blocked layout once and leaves it once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def forward_of(module: nn.Module, example: Tensor) -> Callable[[Tensor], Tensor]:
    """How to call the module: through the blocked layout where that is the same bit for bit.

    That needs a plain Sequential of convolutions, max-pools and ReLUs up to a Flatten (BatchNorm
    rounds differently in that layout); any other module is called as it is.
    """
    kinds = (nn.Conv2d, nn.MaxPool2d, nn.ReLU)
    if type(module) is not nn.Sequential or example.device.type != "cpu" or example.dim() != 4:
        return module
    layers = list(module)
    flat = next((i for i, layer in enumerate(layers) if type(layer) is nn.Flatten), 0)
    if not flat or not all(type(layer) in kinds and _plain(layer) for layer in layers[:flat]):
        return module
    if not torch.backends.mkldnn.is_available() or _hooked(module):  # type: ignore[no-untyped-call]
        return module
    images, rest = layers[:flat], layers[flat:]

    def forward(inputs: Tensor) -> Tensor:
        if len(inputs) == 1:  # oneDNN computes a single image another way, with other bits
            plain: Tensor = module(inputs)
            return plain
        hidden = inputs.to_mkldnn()
        for layer in images:
            hidden = layer(hidden)
        hidden = hidden.to_dense()
        for layer in rest:
            hidden = layer(hidden)
        return hidden

    return forward if _same(module, forward, example) else module


def _plain(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        return layer.padding_mode == "zeros" and layer.bias is not None
    if isinstance(layer, nn.MaxPool2d):
        return not layer.ceil_mode and not layer.return_indices and layer.dilation in (1, (1, 1))
    return not getattr(layer, "inplace", False)


def _hooked(module: nn.Module) -> bool:
    """Whether the module has hooks: it is then called as a whole."""
    return any(
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        for layer in module.modules()
    )


def _same(module: nn.Module, forward: Callable[[Tensor], Tensor], example: Tensor) -> bool:
    """Compare outputs and gradients on a few samples: not every build of torch has the layout."""
    parameters = [tensor for tensor in module.parameters() if tensor.requires_grad]
    try:
        results = []
        for call in (module, forward):
            with torch.random.fork_rng(devices=[]):
                outputs = call(example)
            gradients = torch.autograd.grad(outputs.square().sum(), parameters, allow_unused=True)
            results.append([outputs, *(g for g in gradients if g is not None)])
    except (RuntimeError, NotImplementedError):
        return False
    plain, blocked = results
    return len(plain) == len(blocked) and all(map(torch.equal, plain, blocked))
