"""Attacks on the others' models, for studies: who attacks, and what they send instead.

An attacker trains, mixes and keeps its own model like everyone else; what it sends is poisoned, or
(label_flip) what it learns from. Pure functions: the same on every engine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhp.config import AttackConfig
from fedhp.learn.quantize import LARGEST_FLOAT, Row
from fedhp.seeds import Purpose, generator
from fedhp.types import IntArray

ON_MODELS = ("sign_flip", "noise")  # the kinds that change what is sent


def attackers_of(attack: AttackConfig, *, workers: int, seed: int) -> tuple[int, ...]:
    """Which workers attack, rising; drawn by the seed, whatever the algorithm and the kind."""
    order = generator(seed, Purpose.ATTACKERS).permutation(workers)
    return tuple(sorted(order[: attack.count(workers)].tolist()))


def poisoned(
    row: Row, attack: AttackConfig, *, trainable: int, seed: int, worker: int, round_index: int
) -> Row:
    """What an attacker sends instead of its trained model [D].

    sign_flip: the model times -scale. noise: normal noise with the standard deviation `scale` is
    added. Only the trainable columns change: a negative variance of a BatchNorm would give NaN,
    which is noticed at once.
    """
    if attack.kind not in ON_MODELS:
        return row
    sent = row.copy()
    part = sent[:trainable]
    with np.errstate(over="ignore"):
        if attack.kind == "sign_flip":
            part *= np.float32(-attack.scale)
        else:
            rng = generator(seed, Purpose.ATTACK_NOISE, worker, round_index)
            noise = rng.standard_normal(len(part), dtype=np.float32)
            part += np.float32(attack.scale) * noise
    np.clip(part, -LARGEST_FLOAT, LARGEST_FLOAT, out=part)
    return sent


def flipped_labels(targets: NDArray[Any], classes: int) -> IntArray:
    """label_flip: class c becomes class classes - 1 - c."""
    return np.asarray(classes - 1 - targets, dtype=np.int64)
