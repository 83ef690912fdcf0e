"""Small changes to a stream of bytes, as the harnesses of the decoders make them."""

from __future__ import annotations

from typing import Any

import numpy as np

SPECIAL = (np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, -0.0)


def seldom(source: Any, share: float) -> bool:
    """True for a share of the inputs; False after their end, so that short ones stay valid."""
    return bool(source.ConsumeProbability() > 1 - share)


def change_bytes(source: Any, data: bytearray) -> None:
    """Overwrite, insert or remove a few bytes in place."""
    place = source.ConsumeIntInRange(0, len(data))
    kind = source.ConsumeIntInRange(0, 3)
    if kind == 0:
        data[place : place + 4] = source.ConsumeBytes(4)
    elif kind == 1:
        data[place:place] = source.ConsumeBytes(source.ConsumeIntInRange(0, 16))
    elif kind == 2:
        del data[place : place + source.ConsumeIntInRange(0, 16)]
    else:
        value = np.float32(source.PickValueInList(list(SPECIAL))).tobytes()
        start = place - place % 4
        data[start : start + 4] = value[: len(data) - start]
