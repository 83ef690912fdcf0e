"""Augmentation against a loop over the images, bit for bit, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedhp.config import AugmentationConfig, parse, to_tables
from fedhp.engine.prepare import prepare
from fedhp.errors import ConfigError
from fedhp.learn.augment import Augmenter, augmented_bytes, check_augmentation
from fedhp.seeds import Purpose, generator


def images(shape: tuple[int, ...], count: int = 40) -> torch.Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(1))


def naive(
    batch: NDArray[np.float32], settings: AugmentationConfig, rng: np.random.Generator
) -> NDArray[np.float32]:
    """One image after the other."""
    crop, (height, width) = settings.crop, batch.shape[2:]
    places = rng.integers(2 * crop + 1, size=(2, len(batch))) if crop else None
    flips = rng.integers(2, size=len(batch)) if settings.flip else None
    results = []
    for index, image in enumerate(batch):
        changed = np.pad(image, ((0, 0), (crop, crop), (crop, crop)))
        top, left = (0, 0) if places is None else places[:, index]
        changed = changed[:, top : top + height, left : left + width]
        if flips is not None and flips[index]:
            changed = changed[:, :, ::-1]
        results.append(changed)
    return np.stack(results)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 6, 9), (4, 5, 3)])
@pytest.mark.parametrize(("crop", "flip"), [(0, True), (1, False), (2, True)])
def test_a_batch_equals_the_images_one_by_one(
    shape: tuple[int, ...], crop: int, flip: bool
) -> None:
    settings = AugmentationConfig(crop=crop, flip=flip)
    augment = Augmenter(settings, generator(5, Purpose.AUGMENTATION, 1, 2))
    rng = generator(5, Purpose.AUGMENTATION, 1, 2)
    for step in range(3):  # the numbers of the steps follow each other
        batch = images(shape, 30 + step)
        result = augment(batch)
        assert result.shape == batch.shape
        assert result.is_contiguous()
        assert np.array_equal(result.numpy(), naive(batch.numpy(), settings, rng))
    assert not torch.equal(result, batch)


def test_images_of_any_memory_layout_are_changed_alike() -> None:
    settings, batch = AugmentationConfig(crop=2, flip=True), images((3, 8, 8))
    other = batch.to(memory_format=torch.channels_last)
    results = [
        Augmenter(settings, generator(1, Purpose.AUGMENTATION))(each) for each in (batch, other)
    ]
    assert torch.equal(*results)


def test_about_half_of_the_images_are_flipped_and_all_places_occur() -> None:
    marked = torch.zeros(4000, 1, 3, 3)
    marked[:, 0, 1, 1] = 1.0
    marked[:, 0, 1, 2] = 2.0
    settings = AugmentationConfig(crop=1, flip=True)
    result = Augmenter(settings, generator(0, Purpose.AUGMENTATION))(marked)
    middle = (result == 1.0).flatten(1).float().mean(dim=0)
    assert middle.numpy() == pytest.approx(1 / 9, abs=0.02)
    flip = Augmenter(AugmentationConfig(flip=True), generator(0, Purpose.AUGMENTATION))(marked)
    assert (flip[:, 0, 1, 0] == 2.0).float().mean().item() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(
    ("shape", "settings", "key", "words"),
    [
        ((5,), {"crop": 1}, "augmentation.crop", "not that of images"),
        ((4, 4), {"flip": True}, "augmentation.flip", "not that of images"),
        ((3, 8, 6), {"crop": 6}, "augmentation.crop", "8 x 6 pixels"),
    ],
)
def test_what_cannot_be_augmented_is_refused(
    shape: tuple[int, ...], settings: dict[str, Any], key: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        check_augmentation(AugmentationConfig(**settings), shape)
    assert caught.value.key == key
    check_augmentation(AugmentationConfig(), shape)


def test_the_experiment_is_checked_before_work() -> None:
    with pytest.raises(ConfigError, match="0 to 7"):
        prepare(parse({"workers": 2, "augmentation": {"crop": 8}}))
    with pytest.raises(ConfigError, match="not that of images"):
        prepare(
            parse(
                {
                    "task": {"name": "unit.learn.tasks:Doubling"},
                    "workers": 2,
                    "augmentation": {"flip": True},
                }
            )
        )
    with pytest.raises(ConfigError, match=r"augmentation\.crop"):
        parse({"augmentation": {"crop": -1}})
    with pytest.raises(ConfigError, match=r"augmentation\.flop"):
        parse({"augmentation": {"flop": True}})


def test_a_batch_counts_in_the_memory_and_nothing_changes_without() -> None:
    plain = prepare(parse({"workers": 2, "training": {"batch_size": 60000}}))
    large = prepare(
        parse({"workers": 2, "training": {"batch_size": 60000}, "augmentation": {"crop": 2}})
    )
    settings = AugmentationConfig(crop=2)
    expected = augmented_bytes(settings, (1, 8, 8), batch_size=60000)
    assert expected >= 60000 * 4 * (12 * 12 + 2 * 64)
    assert large.memory.rest - plain.memory.rest in (expected, 2 * expected)  # by executors
    assert augmented_bytes(AugmentationConfig(), (5,), batch_size=60000) == 0
    assert "augmentation" not in to_tables(plain.experiment)
    assert to_tables(large.experiment)["augmentation"] == {"crop": 2, "flip": False}
