"""A model as a row: what trains in the module is written to the row, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedhp.learn.params import Replica, layout_of, row_of, rows_of


class Odd(nn.Module):
    """Everything a layout has to place: frozen weights, float and integer buffers."""

    scale: torch.Tensor
    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.full((2, 3), 7.0), requires_grad=False)
        self.first = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("scale", torch.tensor(1.5))
        self.register_buffer("seen", torch.tensor([3, 4]))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Something that uses all of it."""
        hidden: torch.Tensor = self.norm(self.first(inputs) * self.scale)
        return hidden + inputs @ self.frozen.T


def odd() -> Odd:
    torch.manual_seed(1)
    return Odd()


def test_columns_are_trainable_then_frozen_then_buffers() -> None:
    layout = layout_of(odd(), batch_norm="mixed")
    assert [slot.name for slot in layout.slots] == [
        "first.weight",
        "first.bias",
        "norm.weight",
        "norm.bias",
        "frozen",
        "scale",
        "norm.running_mean",
        "norm.running_var",
    ]
    assert layout.trainable == 6 + 2 + 2 + 2
    assert layout.width == 12 + 6 + 1 + 2 + 2
    edges = [0] + [slot.stop for slot in layout.slots]
    assert [slot.start for slot in layout.slots] == edges[:-1]
    assert [slot.name for slot in layout.counters] == ["seen", "norm.num_batches_tracked"]
    assert layout.counter_width == 3


def test_what_travels() -> None:
    """Mixed: all floats. Local: parameters, frozen ones included, but no running statistics."""
    assert layout_of(odd(), batch_norm="mixed").mixed == 23
    assert layout_of(odd(), batch_norm="local").mixed == 18


def test_a_model_without_buffers_is_all_trainable() -> None:
    layout = layout_of(nn.Linear(4, 2), batch_norm="local")
    assert (layout.trainable, layout.mixed, layout.width, layout.counter_width) == (10, 10, 10, 0)
    empty = layout_of(nn.ReLU(), batch_norm="mixed")
    assert (empty.trainable, empty.mixed, empty.width) == (0, 0, 0)


def test_shared_tensors_have_one_place() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    module = nn.Sequential(first, second)
    layout = layout_of(module, batch_norm="mixed")
    assert layout.width == 9 + 3 + 3
    replica = Replica(module, layout)
    row, counters = row_of(module, layout)
    replica.bind(row, counters)
    with torch.no_grad():
        first.weight.fill_(2.0)
    assert second.weight.eq(2).all()
    assert row[:9].eq(2).all()


def test_row_of_takes_every_tensor() -> None:
    module = odd()
    layout = layout_of(module, batch_norm="mixed")
    row, counters = row_of(module, layout)
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    for slot in layout.slots:
        assert row[slot.start : slot.stop].tolist() == tensors[slot.name].flatten().tolist()
    assert counters.tolist() == [3, 4, 0]
    assert row.dtype == torch.float32
    row.zero_()
    assert module.first.weight.abs().sum() > 0  # a copy


def test_training_through_a_replica_writes_the_row() -> None:
    module = odd()
    layout = layout_of(module, batch_norm="mixed")
    row, counters = row_of(module, layout)
    matrix = row.repeat(3, 1)
    numbers = counters.repeat(3, 1)
    replica = Replica(module, layout)
    replica.bind(rows_of(matrix)[1], numbers[1])
    module.train()
    before = matrix.clone()
    loss = module(torch.randn(8, 3, generator=torch.Generator().manual_seed(2))).pow(2).sum()
    torch.autograd.backward(loss)
    with torch.no_grad():
        for tensor in replica.trained:
            assert tensor.grad is not None
            tensor -= 0.1 * tensor.grad
    change = (matrix - before).ne(0)
    assert not change[0].any()
    assert not change[2].any()
    assert change[1, : layout.trainable].any()
    assert not change[1, 12:19].any()  # frozen, scale
    assert change[1, 19:].all()  # running mean and variance
    assert numbers.tolist() == [[3, 4, 0], [3, 4, 1], [3, 4, 0]]


def test_a_replica_goes_from_row_to_row() -> None:
    module = nn.Linear(2, 1)
    layout = layout_of(module, batch_norm="mixed")
    replica = Replica(module, layout)
    matrix = torch.tensor([[1.0, 1.0, 0.0], [2.0, 2.0, 1.0]])
    none = torch.zeros(0, dtype=torch.int64)
    outputs = []
    for row in rows_of(matrix):
        replica.bind(row, none)
        outputs.append(float(module(torch.tensor([[3.0, 4.0]])).detach()))
    assert outputs == [7.0, 15.0]
    matrix[1, 2] = 100.0  # the row is the model
    assert float(module(torch.zeros(1, 2)).detach()) == 100.0


def test_the_gradient_is_one_vector_of_the_trainable_columns() -> None:
    module = odd()
    layout = layout_of(module, batch_norm="mixed")
    replica = Replica(module, layout)
    replica.bind(*row_of(module, layout))
    torch.autograd.backward(module.first.bias.sum() * 3)  # reaches the bias only
    gradient = replica.gradient()
    assert gradient.shape == (12,)
    assert gradient.tolist() == [0.0] * 6 + [3.0, 3.0] + [0.0] * 4
    replica.clear()
    assert all(tensor.grad is None for tensor in replica.trained)
    assert replica.gradient().tolist() == [0.0] * 12


def test_rows_share_memory_but_no_version_counter() -> None:
    matrix = torch.zeros(2, 3)
    first, second = rows_of(matrix)
    first += 1
    assert matrix.tolist() == [[1, 1, 1], [0, 0, 0]]
    assert second._version == 0
    assert matrix._version == 0


@pytest.mark.parametrize("batch_norm", ["mixed", "local"])
def test_a_row_survives_a_round_trip(batch_norm: str) -> None:
    module = odd()
    layout = layout_of(module, batch_norm=batch_norm)
    row = torch.from_numpy(np.random.default_rng(3).standard_normal(layout.width).astype("f4"))
    counters = torch.tensor([9, 8, 7])
    Replica(module, layout).bind(row.clone(), counters.clone())
    again, numbers = row_of(module, layout)
    assert torch.equal(again, row)
    assert torch.equal(numbers, counters)


def test_what_a_layout_does_not_have_is_not_carried() -> None:
    module = nn.Linear(2, 1)
    replica = Replica(module, layout_of(module, batch_norm="mixed"))
    replica.bind(*row_of(module, replica.layout))
    with pytest.raises(KeyError, match="no columns for tracker"):
        replica.carried("tracker")
