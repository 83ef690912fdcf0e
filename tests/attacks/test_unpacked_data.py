"""A small compressed file that holds more than the memory is refused by its header."""

from __future__ import annotations

import gzip
import importlib.util
import io
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from cli.support import Command, caller
from fedhp.config import DataConfig
from fedhp.data.load import read
from fedhp.errors import DataError

FREE = 50_000_000  # bytes of memory in these tests
ROWS = 1_000_000


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedhp.data.source_files.available", lambda: FREE)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return caller(capsys)


def refusal(config: DataConfig) -> str:
    with pytest.raises(DataError) as refused:
        read(config)
    return refused.value.problem


def test_an_npz_file(tmp_path: Path, command: Command) -> None:
    file = tmp_path / "small.npz"
    inputs = np.zeros((ROWS, 64), np.uint8)
    np.savez_compressed(file, x=inputs, y=np.arange(ROWS) % 10)
    assert file.stat().st_size < 3_000_000
    assert "unpacked, its samples take 0.1 GB" in refusal(DataConfig(name="npz", path=str(file)))
    said = command("data", "check", file)
    assert said.code
    assert "0.1 GB are free" in said.err
    assert "fewer workers" not in said.err


def test_an_npz_file_whose_header_lies(tmp_path: Path) -> None:
    file = tmp_path / "lying.npz"
    header = io.BytesIO()
    fields = {"descr": "|u1", "fortran_order": False, "shape": (10**12, 64)}
    np.lib.format.write_array_header_1_0(header, fields)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", header.getvalue())
        archive.writestr("y.npy", header.getvalue())
    assert "its samples take 128000.0 GB" in refusal(DataConfig(name="npz", path=str(file)))


def test_an_idx_file(tmp_path: Path) -> None:
    for stem, count in (("train", 50_000), ("t10k", 10)):
        images = struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28) + bytes(count * 784)
        labels = struct.pack(">4BI", 0, 0, 8, 1, count) + bytes(count)
        for kind, content in (("images-idx3", images), ("labels-idx1", labels)):
            (tmp_path / f"{stem}-{kind}-ubyte.gz").write_bytes(gzip.compress(content))
    assert "but 0.1 GB are free" in refusal(DataConfig(name="mnist", path=str(tmp_path)))


def test_a_header_that_promises_more_than_the_file_can_hold_is_named_as_such(
    tmp_path: Path,
) -> None:
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(gzip.compress(struct.pack(">4B3I", 0, 0, 8, 3, 2**31, 28, 28)))
    from fedhp.data.idx import read_idx

    with pytest.raises(DataError, match="but only 0 follow"):
        read_idx(file, dimensions=3)


def test_a_zip_of_images(tmp_path: Path) -> None:
    from PIL import Image

    picture = io.BytesIO()
    Image.new("RGB", (1000, 1000)).save(picture, "PNG")
    file = tmp_path / "images.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(20):
            archive.writestr(f"{number % 2}/{number}.png", picture.getvalue())
    assert file.stat().st_size < 200_000
    problem = refusal(DataConfig(name="image_folder", path=str(file)))
    assert "0.1 GB of memory" in problem


@pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="needs datasets")
def test_a_parquet_file(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "small.parquet"
    columns = {"a": np.zeros(4 * ROWS), "label": np.zeros(4 * ROWS, np.int64)}
    pyarrow.parquet.write_table(pyarrow.table(columns), file, compression="zstd")
    assert file.stat().st_size < 100_000
    assert "but 0.1 GB are free" in refusal(DataConfig(name="huggingface", path=str(file)))


def test_the_limit_of_the_process_counts(tmp_path: Path) -> None:
    """With ulimit -v the machine has more memory than the process may take."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (5 * 10**9, 5 * 10**9)); "
        "from fedhp.machine import available; print(available())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 5 * 10**9
