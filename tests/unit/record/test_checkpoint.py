"""Checkpoints: whole or not there, and any change to one is noticed."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save

from fedhp.errors import RunError
from fedhp.files import write_parts
from fedhp.record.checkpoint import (
    CHECKPOINT_FILE,
    Checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from fedhp.record.tensors import pack, read_buffer, read_tensors, tensor_parts, unpack


def sample(round_index: int = 3) -> Checkpoint:
    rng = np.random.default_rng(round_index)
    return Checkpoint(
        round_index,
        {
            "models": rng.normal(size=(4, 50)).astype(np.float32),
            "empty": np.empty((0, 2), dtype=np.int64),
            "flags": np.array([True, False]),
            "nan": np.array([np.nan, np.inf]),
        },
        {"clock": 0.1 + 0.2, "nothing": None, "name": "über", "bound": float("nan")},
    )


def test_what_is_written_comes_back_bit_for_bit(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path) is None
    write_checkpoint(tmp_path, sample())
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert found.round_index == 3
    assert found.scalars["clock"] == 0.1 + 0.2
    assert found.scalars["nothing"] is None
    for name, array in sample().arrays.items():
        assert found.arrays[name].dtype == array.dtype
        assert found.arrays[name].tobytes() == array.tobytes()
        assert found.arrays[name].shape == array.shape


def test_the_file_is_one_that_the_library_reads(tmp_path: Path) -> None:
    arrays = sample().arrays | {
        "half": np.arange(3, dtype=np.float16),
        "bytes": np.arange(5, dtype=np.uint8),
        "turned": np.arange(12.0).reshape(3, 4).T,
        "number": np.array(7),
    }
    write_checkpoint(tmp_path, Checkpoint(1, arrays, {}))
    with safe_open(tmp_path / CHECKPOINT_FILE, framework="np") as file:
        assert file.metadata()["round"] == "1"
        assert set(file.keys()) == set(arrays)
        for name, array in arrays.items():
            read = file.get_tensor(name)
            assert (read.dtype, read.shape) == (array.dtype, array.shape)
            assert read.tobytes() == array.tobytes()
    for mapped in (False, True):
        found = read_checkpoint(tmp_path, mapped=mapped)
        assert found is not None
        for name, array in arrays.items():
            assert found.arrays[name].tobytes() == array.tobytes()
            assert found.arrays[name].flags.writeable != mapped


def test_a_file_of_the_library_is_read(tmp_path: Path) -> None:
    """As the checkpoints were written at first."""
    write_checkpoint(tmp_path, sample())
    with safe_open(tmp_path / CHECKPOINT_FILE, framework="np") as file:
        metadata = file.metadata()
    (tmp_path / CHECKPOINT_FILE).write_bytes(save(sample().arrays, metadata=metadata))
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert found.arrays["models"].tobytes() == sample().arrays["models"].tobytes()


def test_kinds_of_numbers_without_a_place_are_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, sample(1))
    for array in (np.zeros(2, dtype=np.complex128), np.zeros(2, dtype=">f8"), np.array(["x"])):
        with pytest.raises(RunError, match="the array odd holds"):
            write_checkpoint(tmp_path, Checkpoint(2, {"odd": array}, {}))
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT_FILE]


MEMORY = """
import sys, threading
from pathlib import Path
import numpy as np
from fedhp.record.checkpoint import Checkpoint, read_checkpoint, write_checkpoint

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

def growth(action):
    base, top, done = anonymous(), [0], threading.Event()
    def watch():
        while not done.wait(0.001):
            top[0] = max(top[0], anonymous() - base)
    watcher = threading.Thread(target=watch)
    watcher.start()
    kept = action()
    done.set()
    watcher.join()
    return max(top[0], anonymous() - base)

folder, size = Path(sys.argv[1]), 200_000_000
models = np.ones((1000, size // 4000), dtype=np.float32)
print(growth(lambda: write_checkpoint(folder, Checkpoint(1, {"models": models}, {}))) / size)
print(growth(lambda: read_checkpoint(folder)) / size)
print(growth(lambda: read_checkpoint(folder, mapped=True)) / size)
"""


def test_no_second_copy_is_made(tmp_path: Path) -> None:
    """Memory beyond the arrays, as shares of their size: in a process of its own."""
    if not Path("/proc/self/status").exists():
        pytest.skip("the memory of a process is read from /proc")
    child = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, text=True, check=True
    )
    write, read, mapped = map(float, child.stdout.split())
    assert write < 0.1
    assert 0.9 < read < 1.1
    assert mapped < 0.1


def test_a_new_one_replaces_the_old_and_leaves_nothing_else(tmp_path: Path) -> None:
    for round_index in (1, 2):
        write_checkpoint(tmp_path, sample(round_index))
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert found.round_index == 2
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT_FILE]


def outcome(folder: Path) -> Checkpoint | RunError:
    """What reading gives, or the clear error it raises; any other error goes through."""
    try:
        found = read_checkpoint(folder)
    except RunError as error:
        return error
    assert found is not None
    return found


def test_every_cut_and_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, sample())
    whole = (tmp_path / CHECKPOINT_FILE).read_bytes()
    rng = random.Random(1)
    broken = [whole[:size] for size in (0, 1, 7, 8, 100, len(whole) // 2, len(whole) - 1)]
    for _ in range(300):
        place, bit = rng.randrange(len(whole)), rng.randrange(8)
        changed = bytearray(whole)
        changed[place] ^= 1 << bit
        broken.append(bytes(changed))
    unnoticed = 0
    for content in broken:
        (tmp_path / CHECKPOINT_FILE).write_bytes(content)
        found = outcome(tmp_path)
        if isinstance(found, RunError):
            assert "the checkpoint is damaged" in found.problem
            assert CHECKPOINT_FILE in found.problem
            assert "--resume" in found.fix
            continue
        # Only a change that means nothing may pass: blanks that pad the header.
        assert found.scalars.keys() == sample().scalars.keys()
        unnoticed += any(
            found.arrays[name].tobytes() != array.tobytes()
            for name, array in sample().arrays.items()
        )
        unnoticed += found.round_index != 3 or found.scalars["clock"] != 0.1 + 0.2
    assert unnoticed == 0


def test_another_format_is_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"models": np.zeros(3, dtype=np.float32)}, tmp_path / CHECKPOINT_FILE)
    with pytest.raises(RunError, match="its version is None, not 1"):
        read_checkpoint(tmp_path)
    (tmp_path / CHECKPOINT_FILE).unlink()
    (tmp_path / CHECKPOINT_FILE).mkdir()
    with pytest.raises(RunError, match="damaged"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("dtype", ["BF16", "C64", "F8_E4M3", "NOPE"])
def test_kinds_of_numbers_that_nobody_wrote_are_refused(dtype: str, tmp_path: Path) -> None:
    size = {"BF16": 2, "C64": 8, "F8_E4M3": 1, "NOPE": 4}[dtype]
    entry = {"dtype": dtype, "shape": [3], "data_offsets": [0, 3 * size]}
    header = json.dumps({"models": entry}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(3 * size)
    (tmp_path / CHECKPOINT_FILE).write_bytes(content)
    for mapped in (False, True):
        with pytest.raises(RunError, match=f"the checkpoint is damaged: .*{dtype}"):
            read_checkpoint(tmp_path, mapped=mapped)
    with pytest.raises(ValueError, match=dtype):
        read_buffer(content)


def test_a_buffer_is_read_as_a_file_is(tmp_path: Path) -> None:
    arrays = {**sample().arrays, "number": np.array(7)}
    content = b"".join(bytes(part) for part in tensor_parts(arrays, {"round": "3"}))
    (tmp_path / "x").write_bytes(content)
    for found, metadata in (read_buffer(content), read_tensors(tmp_path / "x")):
        assert metadata == {"round": "3"}
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
            assert found[name].tobytes() == array.tobytes()
            assert found[name].flags.writeable
    for size in range(0, len(content), 7):
        with pytest.raises(ValueError):
            read_buffer(content[:size])


def test_equal_arrays_give_equal_files() -> None:
    """The library would put the metadata in another order each time."""
    metadata = {name: name for name in "zyxabc"}
    files = {
        b"".join(bytes(part) for part in tensor_parts(sample().arrays, metadata)) for _ in range(9)
    }
    assert len(files) == 1


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failed_write_keeps_the_old_one(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path, sample(1))

    def fail(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space left"):
        write_checkpoint(tmp_path, sample(2))
    monkeypatch.undo()
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert found.round_index == 1
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT_FILE]


def test_a_write_that_fails_halfway_keeps_the_old_one(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, sample(1))
    whole = (tmp_path / CHECKPOINT_FILE).read_bytes()

    def parts() -> Iterator[bytes]:
        yield b"x" * 100_000
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_parts(tmp_path / CHECKPOINT_FILE, parts())
    assert (tmp_path / CHECKPOINT_FILE).read_bytes() == whole
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT_FILE]


def test_a_kill_halfway_keeps_the_old_one(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, sample(1))
    program = (
        "import os, sys; from pathlib import Path; from fedhp import files\n"
        "parts = lambda: (yield b'x' * 100_000) or os._exit(9)\n"
        "files.write_parts(Path(sys.argv[1]), parts())"
    )
    child = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / CHECKPOINT_FILE)], check=False
    )
    assert child.returncode == 9
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert found.round_index == 1
    write_checkpoint(tmp_path, sample(2))
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT_FILE]


@dataclass
class State:
    numbers: Any
    name: str
    rate: float
    count: Any = None


def test_states_survive_packing() -> None:
    state = State(np.array([[1.5, np.nan]]), "x", 0.1, np.int64(7))
    arrays, scalars = pack("state", state)
    found = unpack("state", State, arrays, scalars)
    assert found.numbers.tobytes() == state.numbers.tobytes()
    assert (found.name, found.rate, found.count) == ("x", 0.1, 7)


def test_what_a_checkpoint_cannot_hold_is_named() -> None:
    with pytest.raises(RunError, match=r"State\.numbers is a list") as caught:
        pack("state", State([1], "x", 1.0))
    assert "arrays" in caught.value.allowed
    with pytest.raises(RunError, match=r"the checkpoint lacks state\.name"):
        unpack("state", State, {"state.numbers": np.zeros(1)}, {})
