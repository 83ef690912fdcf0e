"""Data sets of the library `datasets`: made here, saved, read back, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedhp
from fedhp.config import DataConfig
from fedhp.data import load_data
from fedhp.data.check import check
from fedhp.errors import ConfigError, DataError, DataMissing
from fedhp.types import Dataset

datasets = pytest.importorskip(
    "datasets", reason="datasets is not installed (pip install '.[huggingface]')"
)

# The library uses what is deprecated in the libraries that it uses.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

NAMES = ["cat", "dog", "owl"]


def load(path: Path | None, *, options: dict[str, Any] | None = None, **settings: Any) -> Dataset:
    settings = {"standardize": False, **settings}
    place = None if path is None else str(path)
    return load_data(DataConfig(name="huggingface", path=place, options=options or {}, **settings))


def pixels(samples: int, *, channels: int = 3, seed: int = 0) -> Any:
    shape = (samples, 6, 5) if channels == 1 else (samples, 6, 5, channels)
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def images(samples: int, *, channels: int = 3, seed: int = 0, **more: Any) -> Any:
    """A split with an image, a class and whose image it is."""
    arrays = pixels(samples, channels=channels, seed=seed)
    columns: dict[str, Any] = {
        "image": [Image.fromarray(array) for array in arrays],
        "label": [index % 3 for index in range(samples)],
        "writer": [f"w{index % 4}" for index in range(samples)],
        **more,
    }
    features = datasets.Features(
        image=datasets.Image(),
        label=datasets.ClassLabel(names=NAMES),
        writer=datasets.Value("string"),
    )
    return datasets.Dataset.from_dict(columns, features=features)


def table(samples: int = 12, **changes: Any) -> Any:
    """A split with two columns of numbers, one of lists, and whole numbers as labels."""
    rng = np.random.default_rng(0)
    columns = {
        "height": rng.normal(size=samples).tolist(),
        "width": rng.normal(size=samples).tolist(),
        "signal": rng.normal(size=(samples, 4)).tolist(),
        "label": [index % 2 for index in range(samples)],
        "name": [f"sample {index}" for index in range(samples)],
        **changes,
    }
    return datasets.Dataset.from_dict(columns)


def save(path: Path, **splits: Any) -> Path:
    datasets.DatasetDict(splits).save_to_disk(str(path))
    return path


def test_images_with_splits(tmp_path: Path) -> None:
    data = load(save(tmp_path / "set", train=images(9), test=images(6, seed=1)))
    expected = pixels(9).transpose(0, 3, 1, 2) / np.float32(255)
    assert data.train_inputs.shape == (9, 3, 6, 5)
    assert data.test_inputs.shape == (6, 3, 6, 5)
    np.testing.assert_allclose(data.train_inputs, expected, rtol=1e-6)
    assert data.train_targets.tolist() == [0, 1, 2] * 3
    assert data.classes == 3
    assert list(data.class_names) == NAMES


def test_gray_images_have_one_channel(tmp_path: Path) -> None:
    folder = save(tmp_path / "set", train=images(9, channels=1), test=images(6, channels=1))
    data = load(folder)
    assert data.train_inputs.shape == (9, 1, 6, 5)
    np.testing.assert_allclose(data.train_inputs[:, 0], pixels(9, channels=1) / 255.0, rtol=1e-6)
    assert load(folder, options={"grayscale": False}).train_inputs.shape == (9, 3, 6, 5)
    assert load(folder, options={"size": 4}).train_inputs.shape == (9, 1, 4, 4)


def test_only_the_first_images_are_read(tmp_path: Path) -> None:
    folder = save(tmp_path / "set", train=images(9), test=images(6))
    data = load(folder, train_images=5, test_images=3)
    assert len(data.train_inputs) == 5
    assert len(data.test_inputs) == 3


def test_a_set_without_splits_is_divided(tmp_path: Path) -> None:
    images(30).save_to_disk(str(tmp_path / "set"))
    data = load(tmp_path / "set")
    assert (len(data.train_inputs), len(data.test_inputs)) == (24, 6)
    assert np.bincount(data.test_targets).tolist() == [2, 2, 2]
    rows = np.concatenate([data.train_inputs, data.test_inputs]).reshape(30, -1)
    expected = pixels(30).transpose(0, 3, 1, 2).reshape(30, -1) / np.float32(255)
    np.testing.assert_allclose(rows[np.lexsort(rows.T)], expected[np.lexsort(expected.T)])


def test_parquet(tmp_path: Path) -> None:
    """As the Hub lays them out: names that begin with the split, several files per split."""
    folder = tmp_path / "set" / "data"
    folder.mkdir(parents=True)
    images(6).to_parquet(folder / "train-00000-of-00002.parquet")
    images(3, seed=2).to_parquet(folder / "train-00001-of-00002.parquet")
    images(6, seed=1).to_parquet(folder / "test-00000-of-00001.parquet")
    data = load(tmp_path / "set")
    assert data.train_inputs.shape == (9, 3, 6, 5)
    assert data.test_inputs.shape == (6, 3, 6, 5)
    assert list(data.class_names) == NAMES
    single = load(folder / "train-00000-of-00002.parquet")
    assert len(single.train_inputs) + len(single.test_inputs) == 6


@pytest.mark.parametrize("names", [("part-0", "part-0"), ("00", "01"), ("x", "y")])
def test_parquet_in_folders_of_splits(names: tuple[str, str], tmp_path: Path) -> None:
    for split, name in zip(("train", "test"), names, strict=True):
        (tmp_path / split).mkdir()
        images(6 if split == "train" else 3).to_parquet(tmp_path / split / f"{name}.parquet")
    data = load(tmp_path)
    assert (len(data.train_inputs), len(data.test_inputs)) == (6, 3)


def test_one_parquet_file_is_a_split_if_it_is_named_so(tmp_path: Path) -> None:
    images(30).to_parquet(tmp_path / "train-00000-of-00001.parquet")
    with pytest.raises(DataError, match="no split 'test'"):
        load(tmp_path)
    (tmp_path / "train-00000-of-00001.parquet").rename(tmp_path / "flowers.parquet")
    assert len(load(tmp_path).train_inputs) == 24


def test_parquet_of_several_data_sets(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        images(6).to_parquet(tmp_path / name / "train-0.parquet")
        images(3).to_parquet(tmp_path / name / "test-0.parquet")
    with pytest.raises(DataError, match=r"the split 't.*' is in several folders: one, two"):
        load(tmp_path)
    assert len(load(tmp_path / "two").train_inputs) == 6


@pytest.mark.parametrize(
    ("splits", "options", "key"),
    [
        ({"train": images, "test": images}, {"config": "plain"}, "config"),
        ({"train": images, "test": images}, {"revision": "main"}, "revision"),
        ({"train": images, "test": images}, {"download": True}, "download"),
        ({"train": images, "test": images}, {"layout": "channels_last"}, "layout"),
        ({"train": images, "other": images}, {"divide": True, "test": "other"}, "test"),
        ({"train": images, "other": images}, {"divide": True, "layout": "channels_last"}, "layout"),
        ({"train": table, "test": table}, {"inputs": "signal", "size": 5}, "size"),
        ({"train": table, "test": table}, {"inputs": "signal", "grayscale": True}, "grayscale"),
        ({}, {"train": "first"}, "train"),
        ({}, {"test": "second"}, "test"),
    ],
)
def test_options_without_effect(
    splits: dict[str, Any], options: dict[str, Any], key: str, tmp_path: Path
) -> None:
    if splits:
        save(tmp_path / "set", **{name: make(12) for name, make in splits.items()})
    else:
        images(12).save_to_disk(str(tmp_path / "set"))
    with pytest.raises(ConfigError, match=f"data.options.{key}: .* has no effect: "):
        load(tmp_path / "set", options=options)


def test_columns_of_features(tmp_path: Path) -> None:
    train, test = table(), table(6)
    folder = save(tmp_path / "set", train=train, test=test)
    data = load(folder, options={"inputs": ["height", "width", "signal"]})
    assert data.train_inputs.shape == (12, 6)
    np.testing.assert_allclose(data.train_inputs[:, 0], train["height"][:], rtol=1e-6)
    np.testing.assert_allclose(data.train_inputs[:, 2:], train["signal"][:], rtol=1e-6)
    assert data.classes == 2
    one = load(folder, options={"inputs": "signal", "targets": "label"})
    assert one.train_inputs.shape == (12, 4)


def test_arrays_as_images(tmp_path: Path) -> None:
    features = datasets.Features(
        x=datasets.Array3D(shape=(6, 5, 3), dtype="uint8"), y=datasets.Value("int64")
    )
    columns = {"x": list(pixels(8)), "y": [0, 1] * 4}
    part = datasets.Dataset.from_dict(columns, features=features)
    data = load(save(tmp_path / "set", train=part, test=part))
    assert data.train_inputs.shape == (8, 3, 6, 5)
    np.testing.assert_allclose(data.train_inputs, pixels(8).transpose(0, 3, 1, 2) / 255, rtol=1e-6)


def test_groups_for_the_natural_partition(tmp_path: Path) -> None:
    folder = save(tmp_path / "set", train=images(9), test=images(6))
    data = load(folder, options={"groups": "writer"})
    assert data.groups is not None
    assert data.groups.tolist() == [index % 4 for index in range(9)]
    images(20).save_to_disk(str(tmp_path / "one"))
    divided = load(tmp_path / "one", options={"groups": "writer"})
    assert divided.groups is not None
    assert len(divided.groups) == len(divided.train_inputs)


def test_floats_are_values_to_predict(tmp_path: Path) -> None:
    part = table(label=[0.5 * index for index in range(12)])
    data = load(save(tmp_path / "set", train=part, test=part), options={"inputs": "signal"})
    assert data.classes is None
    assert data.train_targets.shape == (12, 1)


def test_a_run(tmp_path: Path) -> None:
    save(tmp_path / "set", train=images(60), test=images(30, seed=1))
    experiment = fedhp.make_experiment(
        {
            "workers": 4,
            "rounds": 2,
            "data": {
                "name": "huggingface",
                "path": str(tmp_path / "set"),
                "partition": "natural",
                "options": {"groups": "writer"},
            },
            "model": {"name": "mlp"},
            "algorithm": {"name": "dpsgd"},
        }
    )
    with fedhp.run(experiment, tmp_path / "run") as run:
        assert run.meta("samples") == [15, 15, 15, 15]


SPLITS = {"train": lambda: table(), "test": lambda: table(6)}


@pytest.mark.parametrize(
    ("splits", "options", "words"),
    [
        (SPLITS, {}, ("which column holds the inputs is not clear", "height (float64)")),
        (SPLITS, {"inputs": "weight"}, ("no column 'weight'", "height (float64)")),
        (SPLITS, {"inputs": "signal", "targets": "class"}, ("no column 'class'",)),
        (SPLITS, {"inputs": "name"}, ("does not hold numbers of one shape",)),
        (SPLITS, {"inputs": "signal", "targets": "name"}, ("holds text", "class_encode_column")),
        (SPLITS, {"inputs": "signal", "groups": "owner"}, ("no column 'owner'",)),
        (
            {"train": table},
            {"inputs": "signal"},
            ("no split 'test'", "the splits 'train'", "divide = true", "train_test_split"),
        ),
        (
            {"train": table, "validation": table},
            {"inputs": "signal"},
            ("no split 'test'", "data.options.test = 'validation'"),
        ),
        ({"a": table, "test": table}, {"inputs": "signal"}, ("no split 'train'", "'a'")),
        (
            {"train": table, "test": lambda: table(label=[-1] * 12)},
            {"inputs": "signal"},
            ("the label -1", "data.options.test"),
        ),
        (
            {"train": lambda: table(label=[None, *[1] * 11]), "test": table},
            {"inputs": "signal"},
            ("without a label",),
        ),
        (
            {"train": lambda: table(signal=[[1.0] * (3 + i % 2) for i in range(12)])},
            {"inputs": "signal", "divide": True},
            ("does not hold numbers of one shape",),
        ),
        (
            {"train": table, "test": lambda: table(signal=[[1.0] * 5] * 12)},
            {"inputs": "signal"},
            ("training samples have the shape (4,), test samples (5,)",),
        ),
    ],
)
def test_what_is_refused(
    splits: dict[str, Any], options: dict[str, Any], words: tuple[str, ...], tmp_path: Path
) -> None:
    folder = save(tmp_path / "set", **{name: make() for name, make in splits.items()})
    with pytest.raises(DataError) as caught:
        load(folder, options=options)
    for word in words:
        assert word in str(caught.value)
    assert caught.value.fix


def test_dividing_the_training_split(tmp_path: Path) -> None:
    folder = save(tmp_path / "set", train=table(20), other=table())
    data = load(folder, options={"inputs": "signal", "divide": True})
    assert (len(data.train_inputs), len(data.test_inputs)) == (16, 4)


def test_images_of_different_sizes(tmp_path: Path) -> None:
    pictures = [Image.fromarray(array) for array in pixels(6)]
    pictures[4] = pictures[4].resize((9, 9))
    folder = save(tmp_path / "set", train=images(6, image=pictures), test=images(3))
    with pytest.raises(DataError, match=r"row 4 of 'image': is 9x9.*\n.*one size"):
        load(folder)
    assert load(folder, options={"size": 6}).train_inputs.shape == (6, 3, 6, 6)


def test_data_check_recognises_it(tmp_path: Path) -> None:
    folder = save(tmp_path / "set", train=images(9), test=images(6, seed=1))
    images(9).to_parquet(tmp_path / "single.parquet")
    for path, test_images in ((folder, 6), (tmp_path / "single.parquet", 3)):
        (finding,) = check(path)
        assert finding.title == "huggingface"
        assert finding.problem is None
        assert (finding.test_images, finding.classes) == (test_images, 3)
        assert finding.class_names == tuple(NAMES)


def test_what_is_no_data_set(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "text.csv").write_text("a,b\n1,2\n")
    for name, words in (
        ("absent", "no such file"),
        ("empty", "is not a data set of Hugging Face"),
        ("text.csv", "is not a data set of Hugging Face"),
        ("broken.parquet", "cannot be read"),
    ):
        with pytest.raises(DataError, match=words):
            load(tmp_path / name)
    with pytest.raises(ConfigError, match=r"data.path: is missing"):
        load(None)
    with pytest.raises(ConfigError, match="both given"):
        load(tmp_path, options={"dataset": "mnist"})


def test_the_hub_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is not in the cache: an error, and no connection."""
    connections: list[Any] = []
    watching = True

    def watch(event: str, arguments: Any) -> None:
        if watching and event in ("socket.connect", "socket.getaddrinfo"):
            connections.append(arguments)

    sys.addaudithook(watch)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(DataMissing, match=r"from the cache.*\n(.*\n)*.*download = true"):
        load(None, options={"dataset": "someone/that-does-not-exist"})
    watching = False
    assert connections == []


def test_a_missing_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    with pytest.raises(ConfigError, match=r"pip install '\.\[huggingface\]'"):
        load(tmp_path)
