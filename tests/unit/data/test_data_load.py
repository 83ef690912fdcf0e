"""Preparation, where files are looked up, and the data sets kept in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhp.config import DataConfig
from fedhp.data import load_data
from fedhp.data.source_files import cache_folder
from fedhp.errors import ConfigError, DataError


def save(path: Path, x: Any, y: Any, *, tests: int = 2) -> Path:
    np.savez(path, x_train=x, y_train=y, x_test=x[:tests], y_test=y[:tests])
    return path


def load(path: Path, **settings: Any) -> Any:
    return load_data(DataConfig(name="npz", path=str(path), **settings))


@pytest.fixture
def images(tmp_path: Path) -> tuple[Path, Any]:
    x = np.random.default_rng(3).integers(0, 256, (10, 3, 8, 12), dtype=np.uint8)
    x[:, 2] = 7  # a channel that never changes
    return save(tmp_path / "images.npz", x, np.arange(10) % 4), x


def test_the_order_of_preparation(images: tuple[Path, Any]) -> None:
    path, x = images
    data = load(path, train_images=6, test_images=1, pool=4)
    pooled = x[:6].astype(np.float64).reshape(6, 3, 2, 4, 3, 4).mean(axis=(3, 5)) / 255
    mean = pooled.mean(axis=(0, 2, 3), keepdims=True)
    deviation = pooled.std(axis=(0, 2, 3), keepdims=True)
    deviation[:, 2] = 1
    np.testing.assert_allclose(data.train_inputs, (pooled - mean) / deviation, atol=2e-5)
    np.testing.assert_allclose(data.test_inputs, data.train_inputs[:1], atol=1e-6)
    assert data.train_targets.tolist() == [0, 1, 2, 3, 0, 1]
    assert np.abs(data.train_inputs[:, 2]).max() < 1e-6


@pytest.mark.parametrize("rows", [1, 7, 5000])
def test_pooling_and_moments_do_not_depend_on_the_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    x = np.random.default_rng(4).integers(0, 256, (50, 4, 4), dtype=np.uint8)
    path = save(tmp_path / "a.npz", x, np.arange(50) % 5)
    monkeypatch.setattr("fedhp.data.prepare._CHUNK", rows * 16)
    data = load(path, pool=2)
    pooled = x.astype(np.float64).reshape(50, 2, 2, 2, 2).mean(axis=(2, 4)) / 255
    expected = (pooled - pooled.mean()) / pooled.std()
    np.testing.assert_allclose(data.train_inputs[:, 0], expected, atol=1e-5)


def test_columns_are_standardised_one_by_one(tmp_path: Path) -> None:
    x = np.random.default_rng(5).normal((1e6, 0, -3e-8), (1e3, 1e-9, 1e-9), (200, 3))
    data = load(save(tmp_path / "a.npz", x, np.arange(200) % 2))
    assert np.abs(data.train_inputs.mean(axis=0)).max() < 1e-3
    np.testing.assert_allclose(data.train_inputs.std(axis=0), 1, rtol=1e-3)


@pytest.mark.parametrize("pool", [3, 5, 8, 16])
def test_pool_must_divide(images: tuple[Path, Any], pool: int) -> None:
    with pytest.raises(ConfigError) as caught:
        load(images[0], pool=pool)
    assert caught.value.key == "data.pool"
    assert f"the value {pool} does not divide the images of 8x12" in str(caught.value)
    assert "allowed: 1, 2, 4" in str(caught.value)


def test_pool_needs_images(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", np.ones((4, 6)), np.arange(4) % 2)
    with pytest.raises(ConfigError, match=r"data\.pool: the value 2 needs images"):
        load(path, pool=2)


@pytest.mark.parametrize(("key", "there"), [("train_images", 10), ("test_images", 2)])
def test_more_images_than_the_data_set_has(images: tuple[Path, Any], key: str, there: int) -> None:
    with pytest.raises(ConfigError) as caught:
        load(images[0], **{key: 11})
    assert caught.value.key == f"data.{key}"
    assert f"1 to {there}" in str(caught.value)


def test_arrays_are_read_only(images: tuple[Path, Any]) -> None:
    data = load(images[0])
    for array in (data.train_inputs, data.train_targets, data.test_inputs, data.test_targets):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_the_same_preparation_is_loaded_once(images: tuple[Path, Any]) -> None:
    path, x = images
    first = load(path)
    assert load(path, partition="iid") is first, "the split is not part of the preparation"
    assert load(path, pool=2) is not first
    save(path, 255 - x, np.arange(10) % 4)
    again = load(path)
    assert again is not first, "a file that was written again is read again"
    assert not np.array_equal(again.train_inputs, first.train_inputs)


def test_folders_are_searched_in_order(
    mnist_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = DataConfig(name="mnist")
    with pytest.raises(DataError) as caught:
        load_data(config)
    text = str(caught.value)
    assert "data.path = not set" in text
    assert f"the cache folder {tmp_path / 'cache'} (does not exist)" in text
    assert "$FEDHP_DATA is not set" in text
    assert "train-images-idx3-ubyte" in text
    assert "fedhp data fetch mnist" in text
    assert "set data.path" in text
    mnist_folder.rename(tmp_path / "cached")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cached").rename(tmp_path / "cache" / "mnist")
    assert len(load_data(config).train_inputs) == 20
    monkeypatch.setenv("FEDHP_DATA", str(tmp_path / "shared"))
    assert len(load_data(config).train_inputs) == 20, "a missing FEDHP_DATA is skipped"
    (tmp_path / "shared" / "MNIST").mkdir(parents=True)
    (tmp_path / "cache" / "mnist").rename(tmp_path / "shared" / "MNIST" / "raw")
    assert len(load_data(config).train_inputs) == 20, "torchvision's layout is known"


def test_path_may_be_the_parent(mnist_folder: Path) -> None:
    data = load_data(DataConfig(name="mnist", path=str(mnist_folder.parent)))
    assert len(data.train_inputs) == 20


def test_a_wrong_path_is_not_replaced_by_another(
    mnist_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDHP_DATA", str(mnist_folder.parent))
    assert len(load_data(DataConfig(name="mnist")).train_inputs) == 20
    with pytest.raises(DataError, match=r"data\.path = .*absent: no such file"):
        load_data(DataConfig(name="mnist", path=str(tmp_path / "absent")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no data found, data\.path = .*empty"):
        load_data(DataConfig(name="mnist", path=str(tmp_path / "empty")))


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDHP_CACHE", "/a")
    assert cache_folder() == Path("/a")
    monkeypatch.delenv("FEDHP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_folder() == Path("/b/fedhp")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/c")
    assert cache_folder() == Path("/c/.cache/fedhp")


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError) as caught:
        load_data(DataConfig(name="mnits"))
    assert "data.name: unknown data set 'mnits'" in str(caught.value)
    assert "did you mean 'mnist'?" in str(caught.value)
