"""Shuffled epochs: every sample exactly once in each, however batches cut the stream."""

from __future__ import annotations

import numpy as np
import pytest

from fedhp.learn.batches import ShuffledEpochs
from fedhp.seeds import Purpose, generator


def stream(samples: int, *, worker: int = 3, position: int = 0, seed: int = 7) -> ShuffledEpochs:
    return ShuffledEpochs(seed, worker, samples, position=position)


@pytest.mark.parametrize(
    ("samples", "batch"), [(1, 1), (1, 5), (7, 3), (10, 10), (12, 32), (64, 9)]
)
def test_every_sample_is_seen_once_in_every_epoch(samples: int, batch: int) -> None:
    epochs = 5
    drawn = stream(samples)
    batches = [drawn.take(batch) for _ in range(-(-epochs * samples // batch))]
    assert all(len(each) == batch for each in batches)
    assert drawn.position == len(batches) * batch
    taken = np.concatenate(batches)
    for epoch in range(epochs):
        seen = taken[epoch * samples : (epoch + 1) * samples]
        assert sorted(seen.tolist()) == list(range(samples))
        expected = generator(7, Purpose.EPOCHS, 3, epoch).permutation(samples)
        assert seen.tolist() == expected.tolist()


def test_the_stream_does_not_depend_on_how_it_is_cut() -> None:
    whole = stream(13).take(100)
    for size in (1, 4, 13, 40):
        drawn = stream(13)
        pieces = [drawn.take(size) for _ in range(100 // size)]
        assert np.concatenate(pieces).tolist() == whole[: size * (100 // size)].tolist()
    assert stream(13, position=37).take(63).tolist() == whole[37:].tolist()
    assert stream(13).take(0).shape == (0,)


def test_epochs_workers_and_seeds_have_orders_of_their_own() -> None:
    first, second = stream(50).take(100).reshape(2, 50)
    assert first.tolist() != second.tolist()
    assert stream(50, worker=4).take(50).tolist() != first.tolist()
    assert stream(50, seed=8).take(50).tolist() != first.tolist()
