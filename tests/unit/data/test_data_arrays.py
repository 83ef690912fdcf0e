"""digits, .npz files and own loaders."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fedhp.config import DataConfig
from fedhp.data import load_data
from fedhp.data.arrays import _digits
from fedhp.errors import ConfigError, DataError
from fedhp.types import Dataset


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def load(path: Path, **settings: Any) -> Dataset:
    settings = {"standardize": False, **settings}
    return load_data(DataConfig(name="npz", path=str(path), **settings))


def four(shape: tuple[int, ...] = (8, 8), dtype: Any = np.uint8, **changes: Any) -> dict[str, Any]:
    arrays = {
        "x_train": np.arange(6 * np.prod(shape)).reshape(6, *shape).astype(dtype),
        "y_train": np.array([0, 1, 2, 0, 1, 2]),
        "x_test": np.ones((3, *shape), dtype=dtype),
        "y_test": np.array([2, 1, 0]),
    }
    return {**arrays, **changes}


def test_digits_are_split_alike_whatever_the_run() -> None:
    data = load_data(DataConfig())
    assert data.train_inputs.shape == (1438, 1, 8, 8)
    assert data.test_inputs.shape == (359, 1, 8, 8)
    assert data.train_inputs.dtype == np.float32
    assert data.classes == 10
    shares = np.bincount(data.test_targets) / (
        np.bincount(data.train_targets) + np.bincount(data.test_targets)
    )
    assert shares.min() > 0.19
    assert shares.max() < 0.21
    # a change here changes every number ever measured on digits
    assert data.train_targets[:10].tolist() == [2, 0, 4, 6, 7, 8, 4, 5, 0, 9]
    for labels in (data.train_targets, data.test_targets):
        start = np.bincount(labels[:100].astype(np.int64), minlength=10)
        assert start.min() >= 3, "the first ones hold every class"
        assert start.max() <= 20


def test_digits_hold_every_image_once() -> None:
    from sklearn.datasets import load_digits

    data = load_data(DataConfig(standardize=False))
    mine = np.concatenate([data.train_inputs, data.test_inputs]).reshape(-1, 64) * 16
    official = load_digits().data
    assert sorted(map(tuple, mine.round())) == sorted(map(tuple, official))


def test_digits_are_bit_equal_to_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.datasets import load_digits

    from_file = _digits()
    for mine, official in zip(from_file, load_digits(return_X_y=True), strict=True):
        np.testing.assert_array_equal(mine, official, strict=mine.ndim == 2)
    # without the file, scikit-learn itself is asked
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for mine, official in zip(_digits(), from_file, strict=True):
        np.testing.assert_array_equal(mine, official)


@pytest.mark.parametrize(("key", "value"), [("path", "/x"), ("split", "letters")])
def test_digits_take_neither_path_nor_split(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"^data\.{key}: "):
        load_data(DataConfig.model_validate({key: value}))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((8, 7), (1, 8, 7)),
        ((8, 7, 3), (3, 8, 7)),
        ((8, 7, 1), (1, 8, 7)),
        ((3, 8, 7), (3, 8, 7)),
        ((1, 8, 3), (1, 8, 3)),
        ((10, 8, 7), (10, 8, 7)),
        ((12,), (12,)),
    ],
)
def test_axes_are_inferred(
    tmp_path: Path, given: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    arrays = four(given)
    data = load(save(tmp_path / "a.npz", **arrays))
    assert data.shape == expected
    first = arrays["x_train"][1] / 255
    if len(given) == 3 and given != expected:
        first = first.transpose(2, 0, 1)
    np.testing.assert_allclose(data.train_inputs[1], first.reshape(expected), atol=1e-6)


def test_the_layout_can_be_set(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", **four((3, 8, 3)))
    assert load(path).shape == (3, 8, 3)
    assert load(path, options={"layout": "channels_last"}).shape == (3, 3, 8)
    with pytest.raises(ConfigError, match=r"data\.options\.layout"):
        load(path, options={"layout": "sideways"})


def test_only_bytes_are_scaled(tmp_path: Path) -> None:
    for number, dtype in enumerate((np.float64, np.float32, np.int32, np.int64)):
        arrays = four((4,), dtype)
        data = load(save(tmp_path / f"{number}.npz", **arrays))
        np.testing.assert_allclose(data.train_inputs, arrays["x_train"])
        assert data.train_inputs.dtype == np.float32


def test_x_and_y_are_split(tmp_path: Path) -> None:
    x, y = np.arange(100.0)[:, None], np.repeat([0, 1], 50)
    data = load(save(tmp_path / "a.npz", x=x, y=y))
    assert np.bincount(data.train_targets).tolist() == [40, 40]
    assert np.bincount(data.test_targets).tolist() == [10, 10]
    together = np.concatenate([data.train_inputs, data.test_inputs]).ravel()
    assert sorted(together.tolist()) == list(range(100))
    np.testing.assert_array_equal(data.train_targets, data.train_inputs.ravel() >= 50)


def test_floats_to_predict(tmp_path: Path) -> None:
    values = four((4,), np.float32, y_train=np.arange(6.0), y_test=np.arange(3.0))
    data = load(save(tmp_path / "a.npz", **values))
    assert data.classes is None
    assert data.train_targets.shape == (6, 1)
    assert data.train_targets.dtype == np.float32
    undivided = load(save(tmp_path / "b.npz", x=np.ones((10, 2)), y=np.ones((10, 3))))
    assert undivided.train_targets.shape == (8, 3)
    assert undivided.test_targets.shape == (2, 3)


def test_class_names(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", **four(), class_names=np.array(["a", "b", "c", "d"]))
    assert load(path).class_names == ("a", "b", "c", "d")
    assert load(path).classes == 4
    with pytest.raises(DataError, match="2 class_names for 3 classes"):
        load(save(tmp_path / "b.npz", **four(), class_names=np.array(["a", "b"])))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"y_train": np.array([0, 1, -1, 0, 1, 2])}, "labels from -1 to 2"),
        ({"y_train": np.arange(5)}, "6 samples in x_train, but 5 targets"),
        ({"x_train": np.ones((6, 9, 8), np.uint8)}, "one shape for both"),
        ({"x_train": np.ones(6)}, "has the shape (6,)"),
        ({"x_train": np.ones((6, 1, 1, 1, 1))}, "has the shape (6, 1, 1, 1, 1)"),
        ({"x_train": np.ones((6, 0))}, "has the shape (6, 0)"),
        ({"x_test": np.full((3, 8, 8), np.nan)}, "x_test holds NaN"),
        ({"x_test": np.full((3, 8, 8), 1e300)}, "too large"),
        ({"x_train": np.ones((6, 8, 8), complex)}, "has the type complex128"),
        ({"y_test": np.array(["a", "b", "c"])}, "has the type <U1"),
        ({"y_test": np.ones(3)}, "y_train is int64, y_test float64"),
        ({"y_train": np.eye(6, dtype=int)}, "argmax"),
        ({"x_test": np.zeros((0, 8, 8)), "y_test": np.zeros(0, int)}, "y_test holds no samples"),
    ],
)
def test_bad_npz_files(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = save(tmp_path / "a.npz", **four(**change))
    with pytest.raises(DataError) as caught:
        load(path)
    assert words in str(caught.value)
    assert f"data.path = {path}" in str(caught.value)


def test_npz_with_objects_is_refused_unread(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (tmp_path / "victim").touch, ()

    objects = np.array([Trap()] * 6, dtype=object)
    np.savez(tmp_path / "a.npz", **four(x_train=objects))
    with pytest.raises(DataError, match="without object arrays"):
        load(tmp_path / "a.npz")
    assert not (tmp_path / "victim").exists()


def test_npz_keys_and_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has the keys x_train, labels"):
        load(save(tmp_path / "a.npz", x_train=np.ones(3), labels=np.ones(3)))
    (tmp_path / "b.npz").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"cannot be read as \.npz"):
        load(tmp_path / "b.npz")
    np.save(tmp_path / "c.npy", np.ones(3))
    with pytest.raises(DataError, match="is a single array"):
        load(tmp_path / "c.npy")
    with pytest.raises(DataError, match="1 sample"):
        load(save(tmp_path / "d.npz", x=np.ones((1, 2)), y=np.array([0])))
    good = save(tmp_path / "e.npz", **four())
    good.write_bytes(good.read_bytes()[:-200])
    with pytest.raises(DataError, match=r"cannot be read as \.npz"):
        load(good)


@pytest.fixture
def loaders(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("my_loaders")
    monkeypatch.setitem(sys.modules, "my_loaders", module)
    return module


def dataset(*parts: Any) -> Dataset:
    return Dataset("mine", *parts)


def own(name: str, **settings: Any) -> Dataset:
    settings = {"standardize": False, **settings}
    return load_data(DataConfig(name=f"my_loaders:{name}", **settings))


def test_an_own_loader(loaders: ModuleType) -> None:
    def arrays(*, count: int, scale: float = 1.0) -> tuple[Any, ...]:
        x, y = scale * np.ones((count, 4, 4)), np.arange(count) % 2
        return x, y, x[:2], y[:2]

    loaders.arrays = arrays  # type: ignore[attr-defined]
    data = own("arrays", options={"count": 6, "scale": 3})
    assert data.train_inputs.shape == (6, 1, 4, 4)
    assert data.train_inputs.max() == 3
    assert data.classes == 2
    with pytest.raises(ConfigError, match=r"data\.options\.count: is required"):
        own("arrays")
    with pytest.raises(ConfigError, match=r"data\.options\.size: unknown key"):
        own("arrays", options={"count": 6, "size": 3})
    with pytest.raises(ConfigError, match=r"data\.path: 'my_loaders:arrays' takes no path"):
        own("arrays", options={"count": 6}, path="/x")
    with pytest.raises(ConfigError, match=r"data\.split"):
        own("arrays", options={"count": 6}, split="x")


def test_a_loader_gets_its_path(loaders: ModuleType) -> None:
    seen: list[Any] = []
    x, y = np.ones((4, 3)), np.array([0, 1, 0, 1])

    def positional(path: str) -> Any:
        seen.append(path)
        return x, y, x, y

    def typed(path: Path, *, more: int = 0) -> Any:
        seen.append(path)
        return x, y, x, y

    def keyword(*, path: Path, more: int = 0) -> Any:
        seen.append((path, more))
        return x, y, x, y

    def optional(*, path: str = "none") -> Any:
        seen.append(path)
        return x, y, x, y

    loaders.__dict__.update(positional=positional, typed=typed, keyword=keyword, optional=optional)
    own("positional", path="/a")
    own("typed", path="/a")
    own("keyword", path="/a", options={"more": 2})
    own("optional")
    assert seen == ["/a", Path("/a"), (Path("/a"), 2), "none"]
    with pytest.raises(ConfigError, match=r"data\.path: is required by 'my_loaders:keyword'"):
        own("keyword")
    with pytest.raises(ConfigError, match=r"data\.options\.path"):
        own("keyword", options={"path": "/a"})


def test_a_loader_may_return_a_dataset(loaders: ModuleType) -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 2, 3)  # kept as [n, channels, length]
    y = np.array([0, 1, 0, 1], dtype=np.int32)
    loaders.whole = lambda: dataset(x, y, x, y, 5, tuple("abcde"))  # type: ignore[attr-defined]
    data = own("whole", train_images=3)
    assert data.train_inputs.shape == (3, 2, 3)
    assert data.train_targets.dtype == np.int64
    assert data.classes == 5
    assert data.class_names == tuple("abcde")
    assert x.flags.writeable, "the loader's own array is left alone"
    loaders.values = lambda: dataset(x, x[:, 0, 0], x, x[:, 0, 0], None)  # type: ignore[attr-defined]
    assert own("values").train_targets.shape == (4, 1)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, "the loader returned NoneType"),
        ((1, 2, 3), "a tuple of 3"),
        (dataset(np.ones((2, 3)), np.array([0, 9]), np.ones((1, 3)), np.array([0]), 3), "9"),
        (dataset(np.ones((2, 3)), np.ones(2), np.ones((1, 3)), np.ones(1), 3), "float64"),
        (dataset(np.ones((2, 3)), np.ones(1), np.ones((1, 3)), np.ones(1), None), "(2, 3)"),
        (
            dataset(np.ones((2, 3)), np.ones(2, int), np.ones((1, 4)), np.ones(1, int), 3),
            "one shape",
        ),
    ],
)
def test_what_a_loader_returns_is_checked(loaders: ModuleType, result: Any, words: str) -> None:
    loaders.bad = lambda: result  # type: ignore[attr-defined]
    with pytest.raises(DataError) as caught:
        own("bad")
    assert words in str(caught.value)
    assert "my_loaders:bad" in str(caught.value)


def test_a_loader_that_fails(loaders: ModuleType) -> None:
    def fails() -> None:
        raise KeyError("lost")

    def refuses() -> None:
        raise DataError("my own words")

    loaders.__dict__.update(fails=fails, refuses=refuses)
    with pytest.raises(DataError, match=r"'my_loaders:fails': the loader failed: KeyError: 'lost'"):
        own("fails")
    with pytest.raises(DataError, match=r"^my own words"):
        own("refuses")
    with pytest.raises(ConfigError, match=r"data\.name: cannot import 'my_loaders:absent'"):
        own("absent")


@pytest.mark.parametrize("split", [True, False])
def test_labels_counted_from_1_are_refused(tmp_path: Path, split: bool) -> None:
    x, y = np.ones((6, 4), dtype=np.float32), np.array([1, 2, 3, 1, 2, 3])
    arrays: dict[str, Any] = (
        {"x_train": x, "y_train": y, "x_test": x, "y_test": y} if split else {"x": x, "y": y}
    )
    path = tmp_path / "a.npz"
    np.savez(path, **arrays)
    with pytest.raises(DataError, match="labels from 1 to 3, and class 0 has no sample") as caught:
        load(path)
    assert "y - 1" in caught.value.fix
    np.savez(path, **arrays, class_names=np.array(["none", "a", "b", "c"]))
    assert load(path).classes == 4
    counted: dict[str, Any] = {name: a - 1 if a is y else a for name, a in arrays.items()}
    np.savez(path, **counted)
    assert load(path).classes == 3
