"""CIFAR-10 in all its formats, and malicious pickles."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedhp.config import DataConfig
from fedhp.data import load_data
from fedhp.data.cifar_pickle import read_python_batch
from fedhp.errors import DataError

NAMES = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
PER_BATCH = 4
Batches = dict[str, tuple[NDArray[np.uint8], list[int]]]


@pytest.fixture
def batches() -> Batches:
    rng = np.random.default_rng(1)
    return {
        name: (rng.integers(0, 256, (PER_BATCH, 3072), dtype=np.uint8), [0, 9, n, 3])
        for n, name in enumerate(NAMES)
    }


def binary(images: NDArray[np.uint8], labels: list[int]) -> bytes:
    rows = zip(images, labels, strict=True)
    return b"".join(bytes([label]) + image.tobytes() for image, label in rows)


def python2(images: NDArray[np.uint8], labels: list[int]) -> bytes:
    """A batch pickled the way Python 2 did it, opcode by opcode, as in the official files."""
    numbers = b"".join(b"K" + bytes([label]) for label in labels)
    shape = b"".join(b"M" + struct.pack("<H", size) for size in images.shape) + b"\x86"
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    layout = b"(K\x03U\x01|NNN" + 2 * b"J\xff\xff\xff\xff" + b"K\x00tb"
    kind = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R" + layout
    content = b"T" + struct.pack("<I", images.size) + images.tobytes()
    array = empty + b"(K\x01" + shape + kind + b"\x89" + content + b"tb"
    return b"\x80\x02}(U\x06labels](" + numbers + b"eU\x04data" + array + b"u."


def python3(images: NDArray[np.uint8], labels: list[int]) -> bytes:
    return pickle.dumps({b"data": images, b"labels": labels}, protocol=2)


def load(path: Path, **settings: Any) -> Any:
    settings = {"standardize": False, **settings}
    return load_data(DataConfig(name="cifar10", path=str(path), **settings))


def check(data: Any, batches: Batches) -> None:
    images = np.concatenate([batches[name][0] for name in NAMES[:5]]).reshape(-1, 3, 32, 32)
    np.testing.assert_allclose(data.train_inputs * 255, images, atol=1e-4)
    assert data.train_targets.tolist() == [t for name in NAMES[:5] for t in batches[name][1]]
    assert data.test_targets.tolist() == batches["test_batch"][1]
    assert data.classes == 10
    assert data.class_names[9] == "truck"


@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
def test_binary_batches(tmp_path: Path, batches: Batches, ending: str) -> None:
    packers: dict[str, Any] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}
    for name, batch in batches.items():
        (tmp_path / f"{name}.bin{ending}").write_bytes(packers[ending](binary(*batch)))
    check(load(tmp_path), batches)


@pytest.mark.parametrize("writer", [python2, python3])
def test_python_batches(tmp_path: Path, batches: Batches, writer: Any) -> None:
    for name, batch in batches.items():
        (tmp_path / name).write_bytes(writer(*batch))
    check(load(tmp_path), batches)


@pytest.mark.parametrize(("ending", "writer"), [(".bin", binary), ("", python2)])
def test_the_official_archive(tmp_path: Path, batches: Batches, ending: str, writer: Any) -> None:
    path = tmp_path / "cifar-10-x.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, batch in batches.items():
            content = writer(*batch)
            member = tarfile.TarInfo(f"cifar-10-batches/{name}{ending}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    check(load(path), batches)
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(DataError, match="not a readable archive"):
        load(path, test_images=1)


def test_later_batches_are_left_alone_when_not_needed(tmp_path: Path, batches: Batches) -> None:
    for name, batch in batches.items():
        (tmp_path / f"{name}.bin").write_bytes(binary(*batch))
    (tmp_path / "data_batch_5.bin").write_bytes(b"rubbish")
    data = load(tmp_path, train_images=PER_BATCH + 1)
    assert data.train_targets.tolist() == [*batches["data_batch_1"][1], 0]
    with pytest.raises(DataError, match="not a whole number of records"):
        load(tmp_path)


def test_missing_batches_are_named(tmp_path: Path, batches: Batches) -> None:
    for name in ("data_batch_1", "data_batch_3"):
        (tmp_path / f"{name}.bin").write_bytes(binary(*batches[name]))
    with pytest.raises(DataError, match=r"data_batch_2, data_batch_4, data_batch_5, test_batch"):
        load(tmp_path)


def test_a_batch_cut_between_records_is_noticed(tmp_path: Path, batches: Batches) -> None:
    for name, batch in batches.items():
        (tmp_path / f"{name}.bin").write_bytes(binary(*batch))
    file = tmp_path / "data_batch_4.bin"
    file.write_bytes(file.read_bytes()[:-3073])
    with pytest.raises(DataError, match="4, 4, 4, 3, 4 images"):
        load(tmp_path)


@pytest.mark.parametrize("writer", [binary, python2])
def test_labels_out_of_range(tmp_path: Path, batches: Batches, writer: Any) -> None:
    batches["data_batch_2"] = (batches["data_batch_2"][0], [0, 1, 10, 2])
    for name, batch in batches.items():
        (tmp_path / f"{name}{'.bin' if writer is binary else ''}").write_bytes(writer(*batch))
    with pytest.raises(DataError, match="label 10 of sample 2 is out of range") as caught:
        load(tmp_path)
    assert "data_batch_2" in str(caught.value)
    assert f"data.path = {tmp_path}" in str(caught.value)


class Attack:
    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> Any:
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_wants_to_run_something_is_refused(tmp_path: Path, protocol: int) -> None:
    victim = tmp_path / "victim"
    attack = pickle.dumps({b"data": Attack(os.system, f"touch {victim}")}, protocol=protocol)
    with pytest.raises(DataError, match=r"asks for \w+\.system, which a CIFAR batch never needs"):
        read_python_batch(attack, file="data_batch_1")
    assert not victim.exists()


@pytest.mark.parametrize(
    "name",
    [
        b"builtins\neval",
        b"builtins\ngetattr",
        b"__builtin__\nexec",
        b"numpy\nload",
        b"numpy.core.multiarray\nscalar",
        b"numpy.core.multiarray\n_reconstruct.__globals__",
        b"numpy\nndarray.__class__",
        b"_codecs\ndecode",
        b"os\nsystem",
    ],
)
def test_only_four_names_are_known(name: bytes) -> None:
    with pytest.raises(DataError, match="asks for"):
        read_python_batch(b"\x80\x02c" + name + b"\n.", file="data_batch_1")


def test_a_forged_array_state_is_refused(batches: Batches) -> None:
    images, labels = batches["data_batch_1"]
    good = python2(images, labels)
    for old, new, words in (
        (b"U\x02u1", b"U\x01O", "unsigned bytes"),
        (b"U\x02u1", b"U\x02f4", "unsigned bytes"),
        (b"M" + struct.pack("<H", PER_BATCH), b"M\xff\xff", "does not fit its bytes"),
        (b"U\x04data", b"U\x04dat_", "no array under the key 'data'"),
        (b"U\x06labels", b"U\x06label_", "under the key 'labels'"),
    ):
        assert old in good
        with pytest.raises(DataError, match=words):
            read_python_batch(good.replace(old, new, 1), file="data_batch_1")


def test_a_pickle_cannot_tamper_with_later_ones(batches: Batches) -> None:
    images, labels = batches["data_batch_1"]
    # BUILD sets attributes on the replacement for _reconstruct itself
    state = b"N}X\x07\0\0\0__doc__X\x03\0\0\0bads\x86"
    tamper = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n" + state + b"b."
    with pytest.raises(DataError, match="holds a function"):
        read_python_batch(tamper, file="data_batch_1")
    read, numbers = read_python_batch(python2(images, labels), file="data_batch_1")
    np.testing.assert_array_equal(read, images)
    assert numbers.tolist() == labels


@pytest.mark.parametrize("cut", [0, 1, 10, 100, 3000])
def test_a_damaged_pickle_is_refused(batches: Batches, cut: int) -> None:
    with pytest.raises(DataError, match="data_batch_1"):
        read_python_batch(python2(*batches["data_batch_1"])[:cut], file="data_batch_1")


@pytest.mark.parametrize("rows", [np.zeros((4, 3071), np.uint8), np.zeros((3, 3072), np.uint8)])
def test_rows_and_labels_must_fit(tmp_path: Path, batches: Batches, rows: Any) -> None:
    for name, batch in batches.items():
        (tmp_path / name).write_bytes(python2(*batch))
    (tmp_path / "data_batch_1").write_bytes(python2(rows, [1, 2, 3, 4]))
    with pytest.raises(DataError, match="with 4 labels"):
        load(tmp_path)
