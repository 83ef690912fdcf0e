"""The result of one check of `fedhp doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    verdict: Literal["ok", "warning", "wrong"]
    message: str
    fix: str = ""
