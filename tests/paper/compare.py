"""Bit-for-bit comparison of records, plans and states."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


def leaves(value: Any) -> list[Any]:
    """Everything in a dataclass but the wall clock: arrays as bytes, floats by their bits."""
    if isinstance(value, np.ndarray):
        return [value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes()]
    if is_dataclass(value):
        names = [field.name for field in fields(value) if field.name != "wall"]
        return [type(value).__name__] + [
            leaf for name in names for leaf in leaves(getattr(value, name))
        ]
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in (key, *leaves(value[key]))]
    if isinstance(value, float):
        return [value.hex()]
    return [repr(value)]
