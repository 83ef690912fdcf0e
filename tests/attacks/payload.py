"""A module that a worker's operator never agreed to run: importing it leaves a mark."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

MARK = os.environ.get("FEDHP_ATTACK_MARK")
if MARK:
    Path(MARK).write_text("imported")


def model(shape: tuple[int, ...], classes: int, *, hidden: int = 4) -> nn.Module:
    """A harmless part of a module that can be trusted."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(int(np.prod(shape)), hidden), nn.Linear(hidden, classes)
    )


def fire(*arguments: Any, **settings: Any) -> Any:
    """What an attacker would want to be called."""
    raise AssertionError("the payload ran")


erase = shutil.rmtree  # as `from shutil import rmtree` would
