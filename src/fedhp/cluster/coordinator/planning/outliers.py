"""Numbers that one member reports and that plans for everybody depend on.

Values far from the median of all members are limited, or replaced by it. With fewer than three
there is no majority, and nothing is changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from fedhp.types import FloatArray

STEP_TIME_FACTOR = 30.0  # how far honest machines are apart at most, from the median
ESTIMATE_FACTOR = 10.0  # the same for what is measured on models
METRIC_SPREAD = 1.0  # how far results of tests may always be apart: accuracies never are further
LEAST_VALUES = 3


def limit_to_median(values: FloatArray, factor: float) -> FloatArray:
    """The values, none further from the median than this factor; NaN stays."""
    finite = values[np.isfinite(values)]
    if finite.size < LEAST_VALUES:
        return values
    middle = float(np.median(finite))
    return np.clip(values, middle / factor, middle * factor)


def set_aside_large(values: FloatArray) -> FloatArray:
    """The values, with the median in place of those far above it. Small ones stay: they do not
    dominate a mean."""
    finite = values[np.isfinite(values)]
    middle = float(np.median(finite)) if finite.size >= LEAST_VALUES else 0.0
    if middle <= 0:
        return values
    return np.where(values > ESTIMATE_FACTOR * middle, middle, values)


def set_aside_odd_metrics(values: FloatArray) -> FloatArray:
    """Results of tests, with NaN (not tested) in place of those that no honest worker has: one
    of them would decide the mean, and with it when a run ends (`until.accuracy`)."""
    finite = values[np.isfinite(values)]
    if finite.size < LEAST_VALUES:
        return values
    middle = float(np.median(finite))
    spread = float(np.median(np.abs(finite - middle)))
    odd = np.abs(values - middle) > max(METRIC_SPREAD, ESTIMATE_FACTOR * spread)
    return np.where(odd, np.nan, values)


def usual_count(counts: Iterable[int]) -> int:
    """What most members say; of equally frequent counts the smaller; 0 if nobody says anything."""
    frequency = Counter(counts)
    return min(frequency, key=lambda count: (-frequency[count], count), default=0)
