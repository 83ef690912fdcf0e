"""The real data sets below FEDHP_DATA, as published."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedhp.config import DataConfig
from fedhp.data import class_counts, load_data, partition
from fedhp.data.check import check
from fedhp.types import Dataset

Real = Callable[[str], Path]


def load(name: str, path: Path, **settings: object) -> Dataset:
    return load_data(DataConfig.model_validate({"name": name, "path": str(path), **settings}))


def test_mnist_is_the_official_one(real: Real) -> None:
    (finding,) = check(real("mnist"))
    assert finding.official == "official: the MD5 of all 4 files matches"
    assert finding.train_counts is not None
    assert finding.train_counts.tolist() == [
        5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949,
    ]  # fmt: skip


def test_mnist_as_in_the_acceptance_setting(real: Real) -> None:
    data = load("mnist", real("mnist"), pool=2, test_images=2000)
    assert data.train_inputs.shape == (60000, 1, 14, 14)
    assert data.test_inputs.shape == (2000, 1, 14, 14)
    assert data.test_targets[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert abs(float(data.train_inputs.mean(dtype=np.float64))) < 1e-5
    assert abs(float(data.train_inputs.std(dtype=np.float64)) - 1) < 1e-4
    config = DataConfig(skew=0.8)
    parts = partition(data.train_targets, classes=10, workers=30, config=config, seed=0)
    counts = class_counts(parts, data.train_targets.astype(np.int64), 10)
    home = counts[:3, 0].sum() / counts[:, 0].sum()
    assert abs(home - 0.8) < 0.001


def test_emnist_parts(real: Real) -> None:
    folder = real("emnist")
    balanced = load("emnist", folder, split="balanced-subset", standardize=False)
    assert balanced.train_inputs.shape == (2000, 1, 28, 28)
    assert balanced.classes == 47
    letters = load("emnist", folder, split="letters-test10k", standardize=False)
    assert letters.train_inputs.shape == (8000, 1, 28, 28)
    assert letters.class_names == tuple("abcdefghijklm")
    # upright: a T has its ink in the upper rows and the middle column, an L at the left and below
    capital_t = balanced.train_inputs[balanced.train_targets == 29, 0].mean(axis=0)
    assert capital_t[:12].sum() > 1.3 * capital_t[16:].sum()
    assert capital_t[16:, 10:18].sum() > 3 * capital_t[16:, 18:].sum()
    seven = balanced.train_inputs[balanced.train_targets == 7, 0].mean(axis=0)
    assert seven[4:10, 4:24].sum() > seven[18:24, 4:24].sum()
    assert seven[18:24, 4:14].sum() > seven[18:24, 16:26].sum()


@pytest.fixture(scope="module")
def cifar(real: Real) -> Dataset:
    """Two of the six batches: unpacking .xz takes about 1.5 s each."""
    path = real("cifar-10-batches-bin")
    return load("cifar10", path, train_images=10000, standardize=False)


def test_cifar_first_batch(cifar: Dataset) -> None:
    assert cifar.train_inputs.shape == (10000, 3, 32, 32)
    assert cifar.test_inputs.shape == (10000, 3, 32, 32)
    names = [cifar.class_names[label] for label in cifar.train_targets[:4].astype(int)]
    assert names == ["frog", "truck", "truck", "deer"]
    assert np.bincount(cifar.test_targets.astype(int)).tolist() == [1000] * 10
    assert np.allclose(cifar.train_inputs[0, :, 0, 0] * 255, [59, 62, 63])


def test_tiny_imagenet_start(real: Real) -> None:
    path = real("tiny-imagenet-100.zip")
    data = load("tiny_imagenet", path, train_images=1000, test_images=300, pool=2)
    assert data.train_inputs.shape == (1000, 3, 32, 32)
    assert data.classes == 100
    assert np.bincount(data.train_targets.astype(int)).tolist() == [10] * 100
    assert data.class_names[0] == "goldfish"


def test_places_below_the_root(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDHP_DATA", str(real("mnist").parent))
    data = load_data(DataConfig(name="mnist", train_images=100, test_images=100))
    assert len(data.train_inputs) == 100
