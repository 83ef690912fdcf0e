"""The arrays of CIFAR's "python batches", without running any code that a pickle names."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from fedhp.data.raw import AnyArray
from fedhp.errors import DataError

# Why this is safe: a pickle can only call what find_class returns. It returns four inert
# replacements, never numpy's own functions (a forged dtype state passed to numpy itself
# could read memory), and refuses every other name. The replacements only keep their
# arguments; each file gets new ones, so that a pickle that tampers with them changes
# nothing outside. The array is then built here, from checked bytes.
_RECONSTRUCT = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}


def read_python_batch(content: bytes, *, file: str) -> tuple[AnyArray, AnyArray]:
    """Images [n, 3072] uint8 and labels [n] int64 of one pickled batch."""
    reader = _RestrictedUnpickler(io.BytesIO(content), file)
    try:
        batch = reader.load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle fails in many ways
        _refuse(file, f"is not a CIFAR python batch ({type(error).__name__}: {error})")
    if not isinstance(batch, dict):
        _refuse(file, f"holds a {type(batch).__name__}, not a dictionary")
    data, labels = batch.get(b"data"), batch.get(b"labels")
    if not isinstance(data, reader.array_type):
        _refuse(file, "has no array under the key 'data'")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        _refuse(file, "has no list of whole numbers under the key 'labels'")
    if any(not 0 <= label <= 255 for label in labels):
        _refuse(file, "has a label outside 0..255")
    rows = _rows(getattr(data, "state", None), reader.dtype_type, file=file)
    return rows, np.array(labels, dtype=np.int64)


def _rows(state: Any, dtype_type: type, *, file: str) -> AnyArray:
    """The array behind numpy's pickled state (version, shape, dtype, fortran order, bytes)."""
    if not isinstance(state, tuple) or len(state) != 5:
        _refuse(file, "has an array in an unknown format")
    _, shape, dtype, fortran, content = state
    kind = getattr(dtype, "arguments", ())[:1]
    if not isinstance(dtype, dtype_type) or kind not in (("u1",), (b"u1",)):
        _refuse(file, "has an array that is not of unsigned bytes")
    numbers = isinstance(shape, tuple) and [type(size) is int and size >= 0 for size in shape]
    plain = numbers == [True, True] and isinstance(content, bytes)
    if not plain or shape[0] * shape[1] != len(content):
        _refuse(file, "has an array whose shape does not fit its bytes")
    order = "F" if fortran else "C"
    return np.frombuffer(content, dtype=np.uint8).reshape(shape, order=order)  # type: ignore[call-overload,no-any-return]


class _RestrictedUnpickler(pickle.Unpickler):
    """An unpickler that knows four harmless names and refuses all others."""

    def __init__(self, stream: io.BytesIO, file: str) -> None:
        # bytes: the official files were written by Python 2
        super().__init__(stream, encoding="bytes")
        self.file = file
        self.array_type, self.dtype_type, self.names = _replacements()

    def find_class(self, module: str, name: str) -> Any:
        replacement = self.names.get((module, name))
        if replacement is None:
            _refuse(self.file, f"asks for {module}.{name}, which a CIFAR batch never needs")
        return replacement


def _replacements() -> tuple[type, type, dict[tuple[str, str], Callable[..., Any]]]:
    class PickledArray:
        state: Any = None

        def __setstate__(self, state: Any) -> None:
            self.state = state

    class PickledDtype:
        def __init__(self, *arguments: Any) -> None:
            self.arguments = arguments

        def __setstate__(self, state: Any) -> None:
            # byte order and field layout: unsigned bytes have neither
            pass

    class PickledMarker:
        pass

    def reconstruct(*_: Any) -> PickledArray:
        return PickledArray()

    def encode(text: Any, encoding: Any = "latin1") -> bytes:
        # Python 3 writes bytes this way in protocol 2
        if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
            raise ValueError("only latin1 text")
        return text.encode("latin1")

    names: dict[tuple[str, str], Callable[..., Any]] = dict.fromkeys(_RECONSTRUCT, reconstruct)
    names[("numpy", "ndarray")] = PickledMarker
    names[("numpy", "dtype")] = PickledDtype
    names[("_codecs", "encode")] = encode
    return PickledArray, PickledDtype, names


def _refuse(file: str, problem: str) -> NoReturn:
    raise DataError(
        f"{file}: {problem}",
        allowed="an official CIFAR-10 python batch: a pickled dictionary of one uint8 array"
        " 'data' and a list 'labels'",
        fix="get the official files, or use the binary version: `fedhp data fetch cifar10`",
    )
