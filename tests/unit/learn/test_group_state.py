"""What a worker keeps of group averages: prepared, then committed or given up, number by number."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fedhp.learn.group_state import Columns, GroupState, GroupUpdate
from fedhp.learn.params import layout_of

F = np.float32


def state() -> GroupState:
    """Three workers with the model [1, 2] and one frozen value."""
    module = nn.Linear(2, 1)
    module.bias.requires_grad_(False)
    layout = layout_of(module, batch_norm="mixed")
    return GroupState(3, torch.tensor([1.0, 2.0, 9.0]), layout)


def update(returning: list[bool]) -> GroupUpdate:
    return GroupUpdate(
        rows=[0, 2],
        returning=np.array(returning),
        residuals=np.array([[0.1, 0.2], [0.3, 0.4]], dtype=F),
        root=0,
        change=np.array([0.5, -1.0], dtype=F),
        wholes={2: np.array([7.0, 8.0], dtype=F)},
        root_residual=np.array([0.01, 0.02], dtype=F),
        plain=np.array([5.0], dtype=F),
        factor=0.25,
    )


COLUMNS = Columns.of(0, 3, trainable=2)


def test_columns_of_a_fragment_are_trained_ones_then_plain_ones() -> None:
    assert (COLUMNS.trained, COLUMNS.plain) == (slice(0, 2), slice(2, 3))
    for start, stop, middle in ((0, 1, 1), (1, 2, 2), (2, 3, 2), (0, 2, 2)):
        assert Columns.of(start, stop, trainable=2) == Columns(start, middle, stop)


def test_an_average_counts_when_it_is_committed() -> None:
    kept = state()
    kept.momentum[0] = torch.tensor([0.4, 0.8])
    before = kept.consensus.clone()
    new = kept.prepare(update([False, True]), COLUMNS)
    assert new[0].tolist() == [1.5, 1.0]
    assert new[2].tolist() == [7.0, 8.0]
    assert torch.equal(kept.consensus, before)
    expected = {row: kept.after_commit(row) for row in range(3)}
    kept.commit()
    assert kept.consensus.tolist() == [[1.5, 1.0, 5.0], [1.0, 2.0, 9.0], [7.0, 8.0, 5.0]]
    # (change + k m) / (1 + k); who returns has no momentum.
    np.testing.assert_allclose(kept.momentum[0], [0.6 / 1.25, -0.8 / 1.25])
    assert kept.momentum[1:].tolist() == [[0.0, 0.0]] * 2
    np.testing.assert_array_equal(kept.residual, np.array([[0.1, 0.2], [0, 0], [0.3, 0.4]], F))
    np.testing.assert_array_equal(kept.root_residual, np.array([[0.01, 0.02], [0, 0], [0, 0]], F))
    for row, named in expected.items():
        for name, values in named.items():
            np.testing.assert_array_equal(values, getattr(kept, name)[row].numpy())
    assert kept.consensus[0].tolist() == [1.5, 1.0, 5.0]
    kept.consensus[0] = 0.0
    kept.commit()  # nothing is prepared any more
    assert kept.consensus[0].tolist() == [0.0, 0.0, 0.0]


def test_what_was_given_up_leaves_nothing() -> None:
    kept = state()
    kept.prepare(update([False, False]), COLUMNS)
    kept.give_up()
    kept.commit()
    assert kept.consensus.tolist() == [[1.0, 2.0, 9.0]] * 3
    kept.prepare(update([False, False]), COLUMNS)
    kept.prepare(update([False, True]), COLUMNS)  # replaces it
    kept.commit()
    assert kept.consensus[2].tolist() == [7.0, 8.0, 5.0]


def test_what_workers_bring_and_the_root_knows() -> None:
    kept = state()
    kept.residual[1] = torch.tensor([0.5, 0.25])
    kept.momentum[1] = torch.tensor([3.0, 4.0])
    kept.root_residual[1] = torch.tensor([5.0, 6.0])
    models = torch.tensor([[0.0, 0.0, 0.0], [2.0, 5.0, 8.0], [1.5, 1.0, 7.0]])
    brought = kept.contributions(models, [1, 2], COLUMNS)
    assert brought.changes.tolist() == [[1.0, 3.0], [0.5, -1.0]]
    assert brought.residuals.tolist() == [[0.5, 0.25], [0.0, 0.0]]
    assert brought.plain.tolist() == [[8.0], [7.0]]
    root = kept.root_rows(1, COLUMNS)
    assert root.consensus.tolist() == [1.0, 2.0]
    assert (root.momentum.tolist(), root.root_residual.tolist()) == ([3.0, 4.0], [5.0, 6.0])


def test_the_consensus_is_served_with_what_does_not_travel() -> None:
    kept = state()
    assert kept.served(torch.zeros(3, 3)) is kept.consensus
    module = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    layout = layout_of(module, batch_norm="local")
    initial = torch.arange(float(layout.width))
    local = GroupState(2, initial, layout)
    models = torch.full((2, layout.width), 50.0)
    served = local.served(models)
    assert served.tolist() == [[0.0, 1.0, 2.0, 3.0, 50.0, 50.0]] * 2
