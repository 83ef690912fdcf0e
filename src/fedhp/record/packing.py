"""Dataclasses of arrays and scalars <-> named arrays plus JSON, for checkpoints.

The one form a state may take on disk: nothing in it can execute, and floats keep their bits.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedhp.errors import RunError

T = TypeVar("T")
Arrays = dict[str, NDArray[Any]]


def pack(prefix: str, value: Any) -> tuple[Arrays, dict[str, Any]]:
    """A flat dataclass as arrays and JSON-ready scalars, keys prefixed."""
    arrays: Arrays = {}
    scalars: dict[str, Any] = {}
    for field in fields(value):
        item = getattr(value, field.name)
        key = f"{prefix}.{field.name}"
        if isinstance(item, np.ndarray):
            # safetensors has no boolean or empty-safe layout of its own for numpy strides
            arrays[key] = np.ascontiguousarray(item)
        elif item is None or isinstance(item, bool | int | float | str):
            scalars[key] = item
        elif isinstance(item, np.generic):
            scalars[key] = item.item()
        else:
            raise RunError(
                f"{type(value).__name__}.{field.name} is a {type(item).__name__}, "
                "which a checkpoint cannot hold",
                allowed="numpy arrays, numbers, strings, booleans and None",
                fix="keep only these in the algorithm's state dataclass",
            )
    return arrays, scalars


def unpack(prefix: str, kind: type[T], arrays: Arrays, scalars: dict[str, Any]) -> T:
    """The dataclass that was packed."""
    values: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        key = f"{prefix}.{field.name}"
        if key in arrays:
            values[field.name] = arrays[key]
        elif key in scalars:
            values[field.name] = scalars[key]
        else:
            raise RunError(
                f"the checkpoint lacks {key}",
                fix="it was written by another version; start the run anew",
            )
    return kind(**values)
