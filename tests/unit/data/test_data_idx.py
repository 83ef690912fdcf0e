"""MNIST and EMNIST from IDX files, whole and broken."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhp.config import DataConfig
from fedhp.data import load_data
from fedhp.data.idx import emnist_splits, read_idx
from fedhp.errors import ConfigError, DataError

WriteIdx = Callable[..., Path]


def mnist(folder: Path, **settings: object) -> DataConfig:
    return DataConfig.model_validate({"name": "mnist", "path": str(folder), **settings})


def emnist(folder: Path, split: str | None) -> DataConfig:
    return DataConfig(name="emnist", path=str(folder), split=split, standardize=False)


def test_mnist_shapes_types_and_values(mnist_folder: Path) -> None:
    data = load_data(mnist(mnist_folder, standardize=False))
    raw = read_idx(mnist_folder / "train-images-idx3-ubyte.gz", dimensions=3)
    assert data.train_inputs.shape == (20, 1, 28, 28)
    assert data.test_inputs.shape == (10, 1, 28, 28)
    assert data.train_inputs.dtype == np.float32
    assert data.train_targets.dtype == np.int64
    assert data.classes == 10
    assert data.class_names == tuple("0123456789")
    np.testing.assert_allclose(data.train_inputs[:, 0], raw / 255, atol=1e-7)
    np.testing.assert_array_equal(data.train_targets, np.arange(20) % 10)


@pytest.mark.parametrize("spelling", ["{}-images-idx3-ubyte", "{}-images.idx3-ubyte"])
@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
def test_every_spelling_and_compression(mnist_folder: Path, spelling: str, ending: str) -> None:
    expected = load_data(mnist(mnist_folder)).train_inputs
    for stem in ("train", "t10k"):
        old = mnist_folder / f"{stem}-images-idx3-ubyte.gz"
        content = gzip.decompress(old.read_bytes())
        old.unlink()
        packers: dict[str, Any] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}
        (mnist_folder / (spelling.format(stem) + ending)).write_bytes(packers[ending](content))
    np.testing.assert_array_equal(load_data(mnist(mnist_folder)).train_inputs, expected)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x00\x00\x08\x01" + bytes(12), "starts with 00 00 08 01"),
        (b"", "starts with nothing"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"\x1f\x8b\x08\x00" + bytes(30), "without the .gz ending"),
        (b"\x00\x00\x08\x03\x00\x00", "header is cut short"),
        (b"\x00\x00\x08\x03\x00\x00\x00\x02\x00\x00\x00\x02\x00\x00\x00\x02" + bytes(7), "only 7"),
        (b"\x00\x00\x08\x03\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x02" + bytes(5), "more"),
        (b"\x00\x00\x08\x03" + b"\xff" * 12 + bytes(5), "only 5"),
    ],
)
def test_a_broken_idx_file_is_named(mnist_folder: Path, content: bytes, words: str) -> None:
    (mnist_folder / "train-images-idx3-ubyte.gz").unlink()
    file = mnist_folder / "train-images-idx3-ubyte"
    file.write_bytes(content)
    with pytest.raises(DataError) as caught:
        load_data(mnist(mnist_folder))
    assert words in str(caught.value)
    assert str(file) in str(caught.value)
    assert f"data.path = {mnist_folder}" in str(caught.value)
    assert "fix:" in str(caught.value)


@pytest.mark.parametrize("keep", [0.5, 0.98])
def test_a_truncated_gzip_is_refused(mnist_folder: Path, keep: float) -> None:
    file = mnist_folder / "train-images-idx3-ubyte.gz"
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(DataError, match="cut short or corrupt"):
        load_data(mnist(mnist_folder))


def test_a_file_that_is_not_gzip_is_refused(mnist_folder: Path) -> None:
    (mnist_folder / "train-labels-idx1-ubyte.gz").write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match=r"corrupt.*web page"):
        load_data(mnist(mnist_folder))


def test_counts_must_agree(mnist_folder: Path, write_idx: WriteIdx) -> None:
    write_idx(mnist_folder / "train-labels-idx1-ubyte.gz", np.zeros(19))
    with pytest.raises(DataError, match="19 labels for the 20 images"):
        load_data(mnist(mnist_folder))


def test_labels_out_of_range(mnist_folder: Path, write_idx: WriteIdx) -> None:
    write_idx(mnist_folder / "t10k-labels-idx1-ubyte.gz", [0, 1, 2, 10, 4, 5, 6, 7, 8, 9])
    with pytest.raises(DataError, match=r"label 10 of sample 3 is out of range\W[^$]*0 to 9"):
        load_data(mnist(mnist_folder))


def test_no_images_at_all(mnist_folder: Path, write_idx: WriteIdx) -> None:
    write_idx(mnist_folder / "t10k-images-idx3-ubyte.gz", np.zeros((0, 28, 28)))
    write_idx(mnist_folder / "t10k-labels-idx1-ubyte.gz", np.zeros(0))
    with pytest.raises(DataError, match="holds no images"):
        load_data(mnist(mnist_folder))


def test_sizes_must_agree(mnist_folder: Path, write_idx: WriteIdx) -> None:
    write_idx(mnist_folder / "t10k-images-idx3-ubyte.gz", np.zeros((10, 14, 14)))
    with pytest.raises(DataError, match="one size for all images"):
        load_data(mnist(mnist_folder))


@pytest.mark.parametrize("file", ["t10k-images-idx3-ubyte", "train-labels-idx1-ubyte"])
def test_a_missing_file_is_named(mnist_folder: Path, file: str) -> None:
    (mnist_folder / f"{file}.gz").unlink()
    with pytest.raises(DataError, match=f"{file} is missing"):
        load_data(mnist(mnist_folder))


def test_mnist_has_no_splits(mnist_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.split: the value 'letters'"):
        load_data(mnist(mnist_folder, split="letters"))


def test_emnist_is_put_upright(tmp_path: Path, write_idx: WriteIdx) -> None:
    image = np.arange(6).reshape(1, 2, 3)
    for part in ("train", "test"):
        write_idx(tmp_path / f"emnist-mine-{part}-images-idx3-ubyte.gz", image)
        write_idx(tmp_path / f"emnist-mine-{part}-labels-idx1-ubyte.gz", [0])
    data = load_data(emnist(tmp_path, "mine"))
    np.testing.assert_allclose(data.train_inputs[0, 0] * 255, image[0].T, atol=1e-5)


@pytest.mark.parametrize(
    ("split", "labels", "classes", "first_name"),
    [
        ("letters", [1, 26], 26, "a"),
        ("letters-part", [1, 13], 13, "a"),
        ("byclass", [0, 61], 62, "0"),
        (None, [0, 61], 62, "0"),
        ("balanced", [0, 3], 47, "0"),
        ("balanced-subset", [0, 46], 47, "0"),
        ("bymerge", [0, 46], 47, "0"),
        ("digits", [0, 9], 10, "0"),
        ("mine", [0, 4], 5, None),
    ],
)
def test_emnist_labels_and_classes(
    tmp_path: Path,
    write_idx: WriteIdx,
    split: str | None,
    labels: list[int],
    classes: int,
    first_name: str | None,
) -> None:
    for part in ("train", "test"):
        stem = f"emnist-{split or 'byclass'}-{part}"
        write_idx(tmp_path / f"{stem}-images-idx3-ubyte", np.zeros((2, 28, 28)))
        write_idx(tmp_path / f"{stem}-labels-idx1-ubyte", labels)
    data = load_data(emnist(tmp_path, split))
    assert data.classes == classes
    assert data.class_names[:1] == (() if first_name is None else (first_name,))
    assert len(data.class_names) in (0, classes)
    first = 1 if (split or "").startswith("letters") else 0
    assert data.train_targets.tolist() == [label - first for label in labels]


@pytest.mark.parametrize(("split", "label"), [("letters", 0), ("letters", 27), ("byclass", 62)])
def test_emnist_labels_out_of_range(
    tmp_path: Path, write_idx: WriteIdx, split: str, label: int
) -> None:
    for part in ("train", "test"):
        write_idx(tmp_path / f"emnist-{split}-{part}-images-idx3-ubyte", np.zeros((1, 28, 28)))
        write_idx(tmp_path / f"emnist-{split}-{part}-labels-idx1-ubyte", [label])
    with pytest.raises(DataError, match=f"label {label} of sample 0 is out of range"):
        load_data(emnist(tmp_path, split))


def test_an_undivided_emnist_file_is_split_alike_every_time(
    tmp_path: Path, write_idx: WriteIdx
) -> None:
    labels = np.repeat([1, 2, 3], [50, 50, 20])
    images = np.arange(120)[:, None, None] * np.ones((120, 2, 2))
    write_idx(tmp_path / "emnist-letters-test10k-images-idx3-ubyte.gz", images)
    write_idx(tmp_path / "emnist-letters-test10k-labels-idx1-ubyte.gz", labels)
    data = load_data(emnist(tmp_path, "letters-test10k"))
    assert np.bincount(data.train_targets).tolist() == [40, 40, 16]
    assert np.bincount(data.test_targets).tolist() == [10, 10, 4]
    seen = np.concatenate([data.train_inputs, data.test_inputs])[:, 0, 0, 0] * 255
    assert sorted(seen.round().astype(int).tolist()) == list(range(120))
    assert len(set(data.train_targets[:12].tolist())) > 1, "sorted files must be shuffled"


def test_an_absent_split_names_those_that_are_there(tmp_path: Path, write_idx: WriteIdx) -> None:
    write_idx(tmp_path / "emnist-letters-test10k-images-idx3-ubyte.gz", np.zeros((1, 2, 2)))
    write_idx(tmp_path / "emnist-balanced-train-images-idx3-ubyte.gz", np.zeros((1, 2, 2)))
    assert emnist_splits(tmp_path) == ["balanced", "letters-test10k"]
    with pytest.raises(DataError) as caught:
        load_data(emnist(tmp_path, "letters"))
    text = str(caught.value)
    assert "data.split = 'letters' is not there, but 'balanced', 'letters-test10k' is" in text
    assert "fedhp data fetch emnist" in text
