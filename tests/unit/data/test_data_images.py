"""Class folders and the Tiny-ImageNet tree, in folders and in zips."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedhp.config import DataConfig
from fedhp.data import load_data
from fedhp.data.images import natural
from fedhp.errors import ConfigError, DataError


def image(value: int, *, size: tuple[int, int] = (6, 6), mode: str = "RGB") -> bytes:
    color: Any = value if mode == "L" else (value, 0, 255 - value)
    sink = io.BytesIO()
    Image.new(mode, size, color).save(sink, "PNG")
    return sink.getvalue()


def write(root: Path, files: dict[str, bytes | str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def pack(path: Path, files: dict[str, bytes | str], *, top: str = "") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(top + name, content)
    return path


def load(name: str, path: Path, **settings: Any) -> Any:
    return load_data(DataConfig(name=name, path=str(path), standardize=False, **settings))


@pytest.fixture
def divided() -> dict[str, bytes | str]:
    files: dict[str, bytes | str] = {"README.txt": "not an image"}
    for label, animal in enumerate(("cat", "dog", "eel")):
        for number in range(4):
            files[f"train/{animal}/{number}.png"] = image(10 * label + number)
        files[f"test/{animal}/0.PNG"] = image(200 + label)
    return files


@pytest.fixture
def tiny() -> dict[str, bytes | str]:
    wnids = ["n02", "n01", "n03"]
    files: dict[str, bytes | str] = {
        "wnids.txt": "\n".join(wnids) + "\n",
        "words.txt": "n01\tgoldfish, Carassius\nn02\tkoala, bear\n",
    }
    for label, wnid in enumerate(wnids):
        for number in (0, 1, 2, 10):
            mode = "L" if number == 10 else "RGB"
            name = f"train/{wnid}/images/{wnid}_{number}.JPEG"
            files[name] = image(10 * label + number, mode=mode)
        files[f"train/{wnid}/{wnid}_boxes.txt"] = "boxes"
    order = ["n03", "n02", "n01"]
    files["val/val_annotations.txt"] = "".join(
        f"val_{i}.JPEG\t{wnid}\t0\t0\t9\t9\n" for i, wnid in enumerate(order)
    )
    for i in range(3):
        files[f"val/images/val_{i}.JPEG"] = image(100 + i)
    files["test/images/test_0.JPEG"] = image(1)
    return files


@pytest.mark.parametrize("zipped", [False, True])
def test_divided_folders(tmp_path: Path, divided: dict[str, bytes | str], zipped: bool) -> None:
    where = pack(tmp_path / "a.zip", divided) if zipped else write(tmp_path / "a", divided)
    data = load("image_folder", where)
    assert data.class_names == ("cat", "dog", "eel")
    assert data.train_inputs.shape == (12, 3, 6, 6)
    assert data.train_targets.tolist() == [0, 1, 2] * 4, "classes take turns"
    red = (data.train_inputs[:, 0, 0, 0] * 255).round().astype(int)
    assert red.tolist() == [10 * label + n for n in range(4) for label in range(3)]
    assert data.test_targets.tolist() == [0, 1, 2]
    some = load("image_folder", where, train_images=3, test_images=1)
    assert some.train_targets.tolist() == [0, 1, 2]


def test_val_is_used_as_test(tmp_path: Path, divided: dict[str, bytes | str]) -> None:
    files = {name.replace("test/", "val/"): content for name, content in divided.items()}
    assert len(load("image_folder", write(tmp_path, files)).test_targets) == 3


def test_undivided_folders_are_split_alike_every_time(tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {
        f"{name}/{i}.png": image(i) for name in ("a", "b") for i in range(20)
    }
    data = load("image_folder", write(tmp_path, files))
    assert np.bincount(data.train_targets).tolist() == [16, 16]
    assert np.bincount(data.test_targets).tolist() == [4, 4]
    some = load("image_folder", tmp_path, train_images=5)
    np.testing.assert_array_equal(some.train_inputs, data.train_inputs[:5])
    np.testing.assert_array_equal(some.test_inputs, data.test_inputs)


def test_sizes_must_agree_unless_a_size_is_given(
    tmp_path: Path, divided: dict[str, bytes | str]
) -> None:
    divided["train/dog/1.png"] = image(7, size=(12, 8))
    write(tmp_path, divided)
    with pytest.raises(DataError) as caught:
        load("image_folder", tmp_path)
    assert "dog/1.png: is 8x12, but train/cat/0.png is 6x6" in str(caught.value)
    assert "data.options.size" in str(caught.value)
    resized = load("image_folder", tmp_path, options={"size": 5})
    assert resized.train_inputs.shape == (12, 3, 5, 5)
    gray = load("image_folder", tmp_path, options={"size": 5, "grayscale": True})
    assert gray.train_inputs.shape == (12, 1, 5, 5)


@pytest.mark.parametrize("options", [{"size": 0}, {"size": "big"}, {"sise": 5}])
def test_wrong_options_name_the_key(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"^data\.options\.{next(iter(options))}: "):
        load("image_folder", tmp_path, options=options)


def test_bad_folders(tmp_path: Path, divided: dict[str, bytes | str]) -> None:
    with pytest.raises(ConfigError, match=r"data\.path: is required"):
        load_data(DataConfig(name="image_folder"))
    with pytest.raises(DataError, match=r"data\.path = .*no such file or folder"):
        load("image_folder", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"0 image\(s\) in class folders"):
        load("image_folder", tmp_path / "empty")
    only_train = {name: c for name, c in divided.items() if name.startswith("train")}
    with pytest.raises(DataError, match="no images in test/<class> or val/<class>"):
        load("image_folder", write(tmp_path / "b", only_train))
    divided["test/fox/0.png"] = image(3)
    with pytest.raises(DataError, match="the test folder has the class 'fox'"):
        load("image_folder", write(tmp_path / "c", divided))


@pytest.mark.parametrize("content", [b"", b"not an image", image(1)[:40]])
def test_a_broken_image_is_named(
    tmp_path: Path, divided: dict[str, bytes | str], content: bytes
) -> None:
    divided["train/eel/3.png"] = content
    with pytest.raises(DataError, match=r"train/eel/3\.png: is not a readable image"):
        load("image_folder", write(tmp_path, divided))


def test_an_image_that_expands_to_gigabytes_is_refused(
    tmp_path: Path, divided: dict[str, bytes | str]
) -> None:
    good = bytearray(image(1))
    good[16:24] = (9000).to_bytes(4, "big") * 2  # width and height in the PNG header
    import zlib

    good[29:33] = zlib.crc32(good[12:29]).to_bytes(4, "big")
    divided["train/cat/0.png"] = bytes(good)
    with pytest.raises(DataError, match=r"train/cat/0\.png: is not a readable image: 9000x9000"):
        load("image_folder", write(tmp_path, divided))


@pytest.mark.parametrize("form", ["folder", "zip", "zip without top folder"])
def test_tiny_imagenet(tmp_path: Path, tiny: dict[str, bytes | str], form: str) -> None:
    if form == "folder":
        where = write(tmp_path / "tiny", tiny)
    else:
        top = "tiny-imagenet-3/" if form == "zip" else ""
        where = pack(tmp_path / "mine.zip", tiny, top=top)
    data = load("tiny_imagenet", where)
    assert data.classes == 3
    assert data.class_names == ("koala", "goldfish", "n03"), "in the order of wnids.txt"
    assert data.train_inputs.shape == (12, 3, 6, 6)
    assert data.train_targets.tolist() == [0, 1, 2] * 4
    assert data.test_targets.tolist() == [2, 0, 1]
    red = (data.train_inputs[::3, 0, 0, 0] * 255).round().astype(int)
    assert red.tolist() == [0, 1, 2, 10], "natural order, gray turned into RGB"
    assert len(load("tiny_imagenet", where, test_images=2).test_targets) == 2


def test_tiny_imagenet_below_the_path(tmp_path: Path, tiny: dict[str, bytes | str]) -> None:
    write(tmp_path / "tiny-imagenet-200", tiny)
    assert load("tiny_imagenet", tmp_path).classes == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"val/val_annotations.txt": None}, "val_annotations.txt: is missing"),
        ({"wnids.txt": "n02\nn01\nn03\nn77\n"}, "no images of the class n77"),
        ({"wnids.txt": "n02\nn01\n"}, "line 1: val_0.JPEG: class 'n03' is not in wnids.txt"),
        ({"val/images/val_2.JPEG": None}, "line 3: val_2.JPEG: no such file"),
        ({"val/val_annotations.txt": "\n"}, "lists no images"),
        ({"val/val_annotations.txt": b"\xff\xfe"}, "is not text"),
        ({"val/images/val_1.JPEG": b"broken"}, "val_1.JPEG: is not a readable image"),
    ],
)
def test_bad_tiny_imagenet(
    tmp_path: Path, tiny: dict[str, bytes | str], change: dict[str, Any], words: str
) -> None:
    files = {name: content for name, content in {**tiny, **change}.items() if content is not None}
    with pytest.raises(DataError) as caught:
        load("tiny_imagenet", pack(tmp_path / "mine.zip", files, top="t/"))
    assert words in str(caught.value)
    assert f"data.path = {tmp_path / 'mine.zip'}" in str(caught.value)


def test_a_truncated_zip_is_refused(tmp_path: Path, tiny: dict[str, bytes | str]) -> None:
    path = pack(tmp_path / "mine.zip", tiny)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"mine\.zip: is not a readable zip"):
        load("tiny_imagenet", path)


def test_a_damaged_zip_entry_is_refused(tmp_path: Path, divided: dict[str, bytes | str]) -> None:
    path = pack(tmp_path / "mine.zip", divided)
    content = path.read_bytes()
    target = image(31 - 10)
    assert content.count(target) == 1
    path.write_bytes(content.replace(target, target[:-10] + bytes(10)))
    with pytest.raises(DataError, match=r"cannot be read from the zip: Bad CRC"):
        load("image_folder", path)


def test_natural_order() -> None:
    names = ["x_10.png", "x_2.png", "2", "10", "b", "x_2a"]
    assert sorted(names, key=natural) == ["2", "10", "b", "x_2.png", "x_2a", "x_10.png"]
