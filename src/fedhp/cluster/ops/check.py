"""The result of one check of `fedhp doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CheckVerdict = Literal["ok", "warning", "wrong"]


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    verdict: CheckVerdict
    message: str
    fix: str = ""
