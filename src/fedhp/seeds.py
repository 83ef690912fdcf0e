"""The seed tree: (run seed, purpose, keys...) -> an independent random generator.

All randomness starts here, so a value depends only on its purpose and keys, never on the
order of drawing; two algorithms with the same seed get the same world.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """The purpose of a random stream. The numbers are part of every result: never reuse one."""

    PARTITION = 1
    DEVICES = 2
    STEP_TIMES = 3
    DRIFT = 4
    BANDWIDTH = 5
    AVAILABILITY = 6
    INITIAL_MODEL = 7
    BATCHES = 8
    PROBE = 9
    SCORING = 10
    ALGORITHM = 11
    TOPOLOGY = 12
    EVALUATION = 13
    MODULE_NOISE = 14
    HOLDOUT = 15
    OWN_TEST = 16
    SEARCH = 17  # of settings, in fedhp tune
    MONITOR = 18
    ATTACKERS = 30
    ATTACK_NOISE = 31
    LINES = 33  # of a worker, up and down
    JITTER = 34
    CLIENTS = 35  # of a recorded population
    ATTEMPTS = 36  # who takes part in an attempt, after several that failed
    HELPERS = 37  # from whom a worker that was away takes the committed model
    EPOCHS = 40  # the order of a worker's samples
    AUGMENTATION = 41


def generator(seed: int, purpose: Purpose, *keys: int) -> np.random.Generator:
    """An independent generator for this purpose and these keys (worker, round, ...)."""
    # The number of keys is included: SeedSequence ignores trailing zeros. One array takes a
    # third of the time of a list, and every key is below 2**32.
    words = np.array([seed, int(purpose), len(keys), *keys], dtype=np.uint32)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


def number(seed: int, purpose: Purpose, *keys: int) -> int:
    """A 63-bit seed for libraries with their own generators."""
    sequence = generator(seed, purpose, *keys).bit_generator.seed_seq
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
