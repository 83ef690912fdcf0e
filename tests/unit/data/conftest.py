"""Every test starts without data sets in memory or in the environment."""

from __future__ import annotations

import gzip
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhp.data import clear_memory

REAL = os.environ.get("FEDHP_DATA", "")
WriteIdx = Callable[..., Path]


@pytest.fixture(autouse=True)
def _nothing_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.delenv("FEDHP_DATA", raising=False)
    monkeypatch.setenv("FEDHP_CACHE", str(tmp_path / "cache"))
    clear_memory()
    yield
    clear_memory()


@pytest.fixture(scope="session")
def real() -> Callable[[str], Path]:
    """The place of a real data set below FEDHP_DATA, or a skip that names it."""

    def find(name: str) -> Path:
        path = Path(REAL) / name
        if not REAL or not path.exists():
            pytest.skip(f"real data set {name!r} is absent: FEDHP_DATA = {REAL or 'not set'}")
        return path

    return find


@pytest.fixture
def write_idx() -> WriteIdx:
    """Write an array as an IDX file, gzipped by its ending."""

    def write(path: Path, array: Any, *, magic: bytes | None = None) -> Path:
        array = np.asarray(array, dtype=np.uint8)
        head = magic if magic is not None else bytes((0, 0, 8, array.ndim))
        content = head + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
        return path

    return write


@pytest.fixture
def mnist_folder(tmp_path: Path, write_idx: WriteIdx) -> Path:
    """A tiny MNIST: 20 training and 10 test images of 28x28, labels 0..9 in turn."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "mnist"
    for stem, count in (("train", 20), ("t10k", 10)):
        images = rng.integers(0, 256, (count, 28, 28))
        write_idx(folder / f"{stem}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{stem}-labels-idx1-ubyte.gz", np.arange(count) % 10)
    return folder
