"""What is checked of numbers that an algorithm gave, with the words of a refusal."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np


class Unusable(Exception):
    """A part of a plan cannot be used: the problem, and what is allowed."""


def as_array(values: Any, name: str, wanted: str) -> Any:
    """The values as an array."""
    try:
        return np.asarray(values)
    except Exception as error:  # rows of different lengths, or an object of the user's own
        raise Unusable(f"{name} is not an array: {error}", wanted) from None


def check_links(values: Any, name: str, workers: int) -> Any:
    """Links [E, 2] between known workers."""
    wanted = "whole numbers of the shape [links, 2]"
    links = as_array(values, f"the links of {name}", wanted)
    if links.ndim != 2 or links.shape[1] != 2 or links.dtype.kind not in "iu":
        raise Unusable(f"the links of {name} are {links.dtype} of the shape {links.shape}", wanted)
    if links.size and (links.min() < 0 or links.max() >= workers):
        bad = int(links.max() if links.max() >= workers else links.min())
        raise Unusable(
            f"{name} has a link of the unknown worker {bad}", f"workers 0 to {workers - 1}"
        )
    return links


def is_whole(value: Any) -> bool:
    """Whether it is a whole number."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether it is a number."""
    return isinstance(value, Real) and not isinstance(value, bool)


def kind_of(value: Any) -> str:
    """What it is, for people."""
    return "None" if value is None else f"a {type(value).__name__}"
